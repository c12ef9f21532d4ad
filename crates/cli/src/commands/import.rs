//! `micpq import`: creates an index from a FAISS product quantizer or a file of vectors.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use engine::corpus::{Corpus, DocId, Document};
use engine::encoder::Pooling;
use engine::formats::faiss::ProductIndex;
use engine::formats::vectors::{VectorFile, is_vectors};
use engine::index::{Claim, Index, IndexConfig, RerankVectors, Store};
use engine::model::Model;
use engine::{Error, Matrix, Progress};
use micpq::BuildConfig;
use micpq::vectors::{UserVectors, train_on_vectors};
use train::vectors::VectorViews;

use super::index::metrics_of;
use crate::args::{CorpusArgs, TrainingArgs};
use crate::output;
use crate::progress::TerminalProgress;

#[derive(Args)]
#[command(after_help = "\
Examples:
  micpq import news.faiss -o news.micpq                    IndexPQ or IndexPQFastScan, alone or in an IndexIDMap
  micpq import vectors.fbin --bits 64 -o news.micpq        train on vectors of any encoder, then index them
  micpq import vectors.npy --documents news.jsonl -o news.micpq
  micpq import glove-100-angular.hdf5 --dataset train -o glove.micpq")]
pub struct Import {
    /// A FAISS file, or vectors: .npy, .fbin, .u8bin, .i8bin, .fvecs, .bvecs, .hdf5
    pub source: PathBuf,
    /// Index directory to create
    #[arg(long, short)]
    pub output: PathBuf,
    /// Use this model instead of training one. For a FAISS file: the model it was exported from
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Documents of the rows, in the same order; the index stores their ids, texts and attributes
    #[arg(long, value_name = "CORPUS")]
    pub documents: Option<PathBuf>,
    /// Dataset of an HDF5 file. Default: train
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<String>,
    /// Noise of the training views, in units of the vectors' spread
    #[arg(long, value_name = "SCALE", default_value_t = VectorViews::NOISE)]
    pub noise: f64,
    /// How vectors are stored for re-ranking: int8 (a byte per value), f16 or none
    #[arg(long, default_value_t = BuildConfig::RERANK_VECTORS)]
    pub rerank_vectors: RerankVectors,
    /// Replace an existing index
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub corpus: CorpusArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
}

pub fn run(args: Import, json: bool, progress: &TerminalProgress) -> Result<()> {
    if args.output.exists() && !args.force {
        let path = args.output.display();
        return Err(Error::config(format!("{path} exists; choose another path, or replace it with --force")).into());
    }
    // Claims the path before an hour of training. An old index stays until the new one is complete.
    let claim = Claim::new(&args.output, args.force)?;
    if is_vectors(&args.source) {
        vectors(&args, &claim.path(), progress)?;
    } else {
        faiss(&args, &claim.path(), progress)?;
    };
    claim.finish()?;
    progress.finish();
    let index = Index::open(&args.output, progress)?;
    let model = index.model();
    if json {
        return output::json(&serde_json::json!({
            "index": args.output, "documents": index.len(), "bits": model.shape().bits(), "inputs": model.inputs(),
            "fingerprint": model.fingerprint(),
        }));
    }
    output::line(format!(
        "{}: {} documents, {} bytes each, searched with vectors of {} values",
        args.output.display(),
        index.len(),
        model.shape().code_bytes(),
        model.inputs()
    ))
}

fn faiss(args: &Import, path: &Path, progress: &TerminalProgress) -> Result<()> {
    let imported = ProductIndex::read(&args.source)?;
    let model = match &args.model {
        None => imported.model(&args.source.display().to_string())?,
        Some(dir) => {
            let model = Model::load(dir)?;
            if model.codebooks() != &imported.codebooks {
                return Err(Error::config(format!(
                    "{} has other codebooks than {}; name the model it was exported from, or leave --model out",
                    dir.display(),
                    args.source.display()
                ))
                .into());
            }
            model
        }
    };
    let bytes = model.shape().code_bytes();
    // A FAISS file has only codes: there is nothing to re-rank by.
    let mut filler = Filler::create(args, path, &model, RerankVectors::None, imported.len(), progress)?;
    for (i, code) in imported.codes.chunks_exact(bytes).enumerate() {
        let document = filler.document(imported.id(i))?;
        filler.writer.add(&document, code)?;
    }
    filler.finish()
}

/// Vectors encoded at a time.
const CHUNK: usize = 16_384;

fn vectors(args: &Import, path: &Path, progress: &TerminalProgress) -> Result<()> {
    let file = VectorFile::open(&args.source, args.dataset.as_deref())?;
    let model = match &args.model {
        Some(dir) => Model::load(dir)?,
        None => train(args, &file, progress)?,
    };
    if model.inputs() != file.width() {
        return Err(Error::config(format!(
            "{} has vectors of {} values, but the model takes {}; use vectors of the encoder it was trained with",
            args.source.display(),
            file.width(),
            model.inputs()
        ))
        .into());
    }
    let mut filler = Filler::create(args, path, &model, args.rerank_vectors, file.rows(), progress)?;
    for start in (0..file.rows()).step_by(CHUNK) {
        let vectors = file.read(start..(start + CHUNK).min(file.rows()))?;
        let ids = (start..start + vectors.rows()).map(|row| DocId::Int(row as u64));
        let documents: Vec<Document> = ids.map(|id| filler.document(id)).collect::<Result<_>>()?;
        filler.writer.add_embeddings(&documents, &vectors)?;
    }
    filler.finish()
}

/// Trains on the vectors, or on an even sample of them.
fn train(args: &Import, file: &VectorFile, progress: &TerminalProgress) -> Result<Model> {
    let training = args.training.training(Pooling::Mean)?;
    let step = file.rows().div_ceil(args.training.sample.max(1)).max(1);
    progress.stage("reading vectors", Some(file.rows() as u64));
    let mut sample = Matrix::zeros(0, file.width());
    for start in (0..file.rows()).step_by(CHUNK) {
        let chunk = file.read(start..(start + CHUNK).min(file.rows()))?;
        let rows: Vec<usize> = (0..chunk.rows()).filter(|i| (start + i).is_multiple_of(step)).collect();
        sample.extend(&chunk.select(&rows));
        progress.advance(chunk.rows() as u64);
        if progress.interrupted() {
            return Err(Error::Interrupted.into());
        }
    }
    let cache = micpq::pipeline::cache_dir(args.training.cache.as_deref())?;
    let vectors = UserVectors::from(&sample).views(VectorViews::Noise(args.noise));
    let trained = train_on_vectors(&training, vectors, &cache, progress).map_err(|error| match error {
        Error::Interrupted => anyhow::Error::new(error).context("run the same command to continue the training"),
        error => error.into(),
    })?;
    Ok(trained.model)
}

/// Fills a new index with rows. A row has a document if `--documents` gives one.
struct Filler<'a> {
    writer: engine::index::IndexWriter,
    documents: Option<(Corpus, &'a Path)>,
    rows: usize,
    added: usize,
    progress: &'a TerminalProgress,
}

impl<'a> Filler<'a> {
    fn create(
        args: &'a Import,
        path: &Path,
        model: &Model,
        rerank_vectors: RerankVectors,
        rows: usize,
        progress: &'a TerminalProgress,
    ) -> Result<Self> {
        let documents = match &args.documents {
            Some(corpus) => Some((Corpus::open(corpus, &args.corpus.config())?, corpus.as_path())),
            None => None,
        };
        let store = if documents.is_some() { Store::All } else { Store::Codes };
        let metrics = args.model.as_deref().map_or(Ok(serde_json::Value::Null), metrics_of)?;
        let config = IndexConfig { store, rerank_vectors, metrics, ..IndexConfig::default() };
        let writer = Index::create(path, model, config)?.writer()?;
        progress.stage("indexing", Some(rows as u64));
        Ok(Filler { writer, documents, rows, added: 0, progress })
    }

    /// The next row's document.
    fn document(&mut self, id: DocId) -> Result<Document> {
        let document = match &mut self.documents {
            None => Document { id, text: String::new(), labels: Vec::new(), attributes: Vec::new() },
            Some((corpus, path)) => corpus.next().transpose()?.ok_or_else(|| {
                Error::input(
                    path.display(),
                    format!(
                        "has {} documents for {} rows; give one document per row, in the same order",
                        self.added, self.rows
                    ),
                )
            })?,
        };
        self.added += 1;
        self.progress.advance(1);
        if self.progress.interrupted() {
            return Err(Error::Interrupted.into());
        }
        Ok(document)
    }

    fn finish(mut self) -> Result<()> {
        if let Some((corpus, path)) = &mut self.documents
            && corpus.next().is_some()
        {
            let problem =
                format!("has more documents than the {} rows; give one document per row, in the same order", self.rows);
            return Err(Error::input(path.display(), problem).into());
        }
        self.writer.commit(self.progress)?;
        self.writer.close(self.progress)?;
        Ok(())
    }
}
