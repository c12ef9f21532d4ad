//! `micpq import`: indexes out of what others made: FAISS product quantizers, and files of vectors.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use micpq::corpus::{Corpus, DocId, Document};
use micpq::encoder::Pooling;
use micpq::formats::faiss::ProductIndex;
use micpq::formats::vectors::{VectorFile, is_vectors};
use micpq::index::{Index, IndexConfig, Keep, Store};
use micpq::model::Model;
use micpq::{Error, Matrix, Watch};
use train::vectors::{VectorJob, VectorViews};

use super::index::metrics_of;
use crate::args::{CorpusArgs, TrainingArgs};
use crate::output;
use crate::progress::Progress;

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
    /// Directory of the index to make
    #[arg(long, short)]
    pub output: PathBuf,
    /// Use this model instead of training one; of a FAISS file, the model it was exported from
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// The documents the rows belong to, in the same order: their ids, texts and attributes are kept
    #[arg(long, value_name = "CORPUS")]
    pub documents: Option<PathBuf>,
    /// Dataset of an HDF5 file (train)
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<String>,
    /// Noise of the views trained on, in units of the vectors' own spread
    #[arg(long, value_name = "SCALE", default_value_t = VectorViews::NOISE)]
    pub noise: f64,
    /// How vectors are kept for the second stage of a search: int8, f16 or none
    #[arg(long, default_value_t = Keep::Int8)]
    pub keep: Keep,
    /// Replace an index that is already there
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub corpus: CorpusArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
}

pub fn run(args: Import, json: bool, progress: &Progress) -> Result<()> {
    if args.output.exists() && !args.force {
        let place = args.output.display();
        return Err(Error::config(format!("{place} exists; name another place, or replace it with --force")).into());
    }
    if is_vectors(&args.source) {
        vectors(&args, progress)?
    } else {
        faiss(&args, progress)?
    };
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
        "{}: {} documents, {} bytes each, asked with vectors of {} values",
        args.output.display(),
        index.len(),
        model.shape().code_bytes(),
        model.inputs()
    ))
}

fn faiss(args: &Import, progress: &Progress) -> Result<()> {
    let made = ProductIndex::read(&args.source)?;
    let model = match &args.model {
        None => made.model(&args.source.display().to_string())?,
        Some(dir) => {
            let model = Model::load(dir)?;
            if model.codebooks() != &made.codebooks {
                return Err(Error::config(format!(
                    "{} has other codebooks than {}; name the model it was exported from, or none",
                    dir.display(),
                    args.source.display()
                ))
                .into());
            }
            model
        }
    };
    let bytes = model.shape().code_bytes();
    // A FAISS file holds codes alone: there are no features to keep.
    let mut filler = Filler::create(args, &model, Keep::None, made.len(), progress)?;
    for (i, code) in made.codes.chunks_exact(bytes).enumerate() {
        let document = filler.document(made.id(i))?;
        filler.writer.add(&document, code)?;
    }
    filler.finish()
}

/// Vectors encoded at a time.
const CHUNK: usize = 16_384;

fn vectors(args: &Import, progress: &Progress) -> Result<()> {
    let file = VectorFile::open(&args.source, args.dataset.as_deref())?;
    let model = match &args.model {
        Some(dir) => Model::load(dir)?,
        None => fit(args, &file, progress)?,
    };
    if model.inputs() != file.width() {
        return Err(Error::config(format!(
            "{} holds vectors of {} values, the model takes {}; use the encoder it was trained with",
            args.source.display(),
            file.width(),
            model.inputs()
        ))
        .into());
    }
    let mut filler = Filler::create(args, &model, args.keep, file.rows(), progress)?;
    for start in (0..file.rows()).step_by(CHUNK) {
        let vectors = file.read(start..(start + CHUNK).min(file.rows()))?;
        let ids = (start..start + vectors.rows()).map(|row| DocId::Int(row as u64));
        let documents: Vec<Document> = ids.map(|id| filler.document(id)).collect::<Result<_>>()?;
        filler.writer.add_features(&documents, &vectors)?;
    }
    filler.finish()
}

/// Trains on the vectors, or an even sample of them.
fn fit(args: &Import, file: &VectorFile, progress: &Progress) -> Result<Model> {
    let config = args.training.config(Pooling::Mean)?;
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
    let cache = super::cache_dir(args.training.cache.as_deref())?;
    let job = VectorJob {
        config,
        vectors: sample.as_slice(),
        width: file.width(),
        views: VectorViews::Noise(args.noise),
        cache: Some(&cache),
    };
    let trained = train::vectors::run(&job, progress)?;
    if trained.interrupted {
        return Err(anyhow::Error::new(Error::Interrupted).context("the same command goes on where training was"));
    }
    Ok(trained.model)
}

/// Rows on their way into a new index, each beside its document where documents are given.
struct Filler<'a> {
    index: Index,
    writer: micpq::index::IndexWriter,
    documents: Option<(Corpus, &'a Path)>,
    rows: usize,
    added: usize,
    progress: &'a Progress,
}

impl<'a> Filler<'a> {
    fn create(args: &'a Import, model: &Model, keep: Keep, rows: usize, progress: &'a Progress) -> Result<Self> {
        let documents = match &args.documents {
            Some(path) => Some((Corpus::open(path, &args.corpus.config())?, path.as_path())),
            None => None,
        };
        let store = if documents.is_some() { Store::All } else { Store::Codes };
        let metrics = args.model.as_deref().map_or(Ok(serde_json::Value::Null), metrics_of)?;
        let config = IndexConfig { store, keep, replace: args.force, metrics };
        let index = Index::create(&args.output, model, config)?;
        let writer = index.writer()?;
        progress.stage("indexing", Some(rows as u64));
        Ok(Filler { index, writer, documents, rows, added: 0, progress })
    }

    /// The next row's document.
    fn document(&mut self, id: DocId) -> Result<Document> {
        let document = match &mut self.documents {
            None => Document { id, text: String::new(), labels: Vec::new(), attributes: Vec::new() },
            Some((corpus, path)) => corpus.next().transpose()?.ok_or_else(|| {
                Error::input(
                    path.display(),
                    format!(
                        "has {} documents, there are {} rows; both must be in the same order",
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
            let problem = format!("has more documents than the {} rows; both must be in the same order", self.rows);
            return Err(Error::input(path.display(), problem).into());
        }
        self.writer.commit(self.progress)?;
        self.writer.close(self.progress)?;
        self.index.reload(self.progress)?;
        Ok(())
    }
}
