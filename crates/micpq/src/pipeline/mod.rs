//! From a corpus to a searchable index: the one pipeline that the command line and Python call.
//!
//! [`build`] reads the corpus once, trains a model on a sample of it, embeds what training did not, and puts the finished
//! index in its place in one step. With a model given it streams: nothing is held but a chunk.

mod config;
mod distill;
mod fill;
mod spool;
mod sync;

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use engine::chunk::Chunker;
use engine::corpus::{Corpus, CorpusConfig, Document};
use engine::encoder::{Embedder, QueryEncoder};
use engine::index::{Claim, Index, IndexConfig};
use engine::language::{Language, LanguageChoice};
use engine::model::Model;
use engine::query::{DepthRecall, Searcher};
use engine::{Error, Matrix, Progress, Result};
use methods::Training;
use methods::recall::{FloatRecall, LengthChoice, MIN_DOCUMENTS};
use methods::training::Task;
use train::dataset::{Dataset, LabelNames};
use train::passes::Passes;
use train::query_encoder::DistillConfig;

pub use config::{BuildConfig, cache_dir};
pub use distill::{distill_corpus, distill_index};
pub use fill::{CHUNK, Embeddings, Filled, cut_note, fill};
use spool::Spool;
pub use sync::{Synced, sync};

/// Neighbours that `target_recall` counts.
const TARGET_K: usize = 10;

/// What an index is built from.
pub enum Source<'a> {
    /// A file or folder; `-` is standard input.
    Corpus(&'a Path, &'a CorpusConfig),
    Documents(Box<dyn Iterator<Item = Result<Document>> + 'a>),
}

/// Where the model comes from.
pub enum ModelSource<'a> {
    /// Trained on the documents.
    Train,
    /// A finished model, with its metrics, and its encoder where that is loaded already.
    Given { model: &'a Model, metrics: serde_json::Value, embedder: Option<&'a Embedder> },
}

/// What a build did.
pub struct Built {
    pub index: Index,
    pub documents: usize,
    /// Texts that were encoded (documents, or their chunks), and how many of them the encoder cut.
    pub texts: usize,
    pub cut: usize,
    pub metrics: serde_json::Value,
    /// Seconds of encoding and training, before the first document was indexed.
    pub training_seconds: f64,
    pub seconds: f64,
    /// Recall 10@100 of the trained codes beside OPQ's, where it was measured.
    pub recall: Option<FloatRecall>,
    /// The fewest re-ranked candidates that reach `target_recall` in the finished index, where one was given and they do.
    pub rerank: Option<DepthRecall>,
    /// Rows of the corpus that were skipped, with the first reasons.
    pub skipped: Vec<String>,
    /// The encoder, for the first query.
    pub embedder: Option<Embedder>,
}

/// Builds an index at `output`. What is there must be an index, and `config.index.replace` set, or an empty place; it stays
/// until the new one is whole.
pub fn build(
    source: Source,
    output: &Path,
    model: ModelSource,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<Built> {
    let begun = Instant::now();
    config.validate()?;
    // What can be refused is refused before an hour is spent on encoding.
    let claim = Claim::new(output, config.index.replace)?;
    let mut reader = Reader::open(source)?;
    let mut built = match model {
        ModelSource::Given { model, metrics, embedder } => {
            let loaded = match embedder {
                Some(_) => None,
                None => Some(Embedder::for_model(model, None, progress)?.on(config.embedding.device, progress)?),
            };
            let embedder = embedder.or(loaded.as_ref()).expect("one of them is there");
            let training_seconds = begun.elapsed().as_secs_f64();
            let embeddings = Embeddings::Encode(embedder);
            let head: Vec<Document> = reader.by_ref().take(LanguageChoice::SAMPLE).collect::<Result<_>>()?;
            let language = config.language.of(head.iter().map(|document| document.text.as_str()));
            let settings = settings(config, embedder, language)?;
            let mut documents = head.into_iter().map(Ok).chain(reader.by_ref());
            let filled =
                index(&claim.path(), model, &metrics, &mut documents, &embeddings, settings, config, progress)?;
            distill_new(&claim, embedder, config, progress)?;
            Outcome { filled, metrics, training_seconds, recall: None, embedder: loaded }
        }
        ModelSource::Train => train_and_index(&claim, &mut reader, config, progress)?,
    };
    claim.finish()?;
    let opened = Index::open(output, progress)?;
    built.filled.report_cut(&opened, progress);
    let rerank = config.target_recall.and_then(|target| reranked_for(&opened, target, progress));
    Ok(Built {
        rerank,
        index: opened,
        documents: built.filled.documents,
        texts: built.filled.texts,
        cut: built.filled.cut,
        metrics: std::mem::take(&mut built.metrics),
        training_seconds: built.training_seconds,
        seconds: begun.elapsed().as_secs_f64(),
        recall: built.recall,
        embedder: built.embedder,
        skipped: reader.skipped(progress),
    })
}

/// Builds an index from documents whose embeddings the user gives, one per document in order.
pub fn build_from_vectors(
    source: Source,
    vectors: &Matrix,
    output: &Path,
    model: &Model,
    metrics: &serde_json::Value,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<Index> {
    config.validate()?;
    if config.chunk.is_some() {
        return Err(Error::config("chunk needs an encoder: a user vector is of a whole document; leave chunk out"));
    }
    let claim = Claim::new(output, config.index.replace)?;
    let mut reader = Reader::open(source)?;
    let head: Vec<Document> = reader.by_ref().take(LanguageChoice::SAMPLE).collect::<Result<_>>()?;
    let language = config.language.of(head.iter().map(|document| document.text.as_str()));
    let settings = IndexConfig { language, ..config.index.clone() };
    let mut documents = head.into_iter().map(Ok).chain(reader.by_ref());
    let embeddings = Embeddings::Given(vectors);
    index(&claim.path(), model, metrics, &mut documents, &embeddings, settings, config, progress)?;
    claim.finish()?;
    reader.skipped(progress);
    Index::open(output, progress)
}

struct Outcome {
    filled: Filled,
    metrics: serde_json::Value,
    training_seconds: f64,
    recall: Option<FloatRecall>,
    embedder: Option<Embedder>,
}

fn train_and_index(
    claim: &Claim,
    reader: &mut Reader,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<Outcome> {
    let begun = Instant::now();
    let encoder = match config.training.needs_encoder() {
        true => Some(Embedder::load(&config.embedding, progress)?),
        false => None,
    };
    let spool = Spool::read(reader.by_ref(), claim.folder(), progress)?;
    let seed = config.training.seed();
    let chunker = match (config.chunk, &encoder) {
        (None, _) => None,
        (Some(chunk), Some(encoder)) => Some(Chunker::new(chunk.sizes(encoder)?, encoder)?),
        (Some(_), None) => {
            return Err(Error::config("this method takes keywords and cuts no text; leave chunk out"));
        }
    };
    // A model is trained on what it will encode: documents, or their chunks.
    let (texts, what): (Box<dyn Iterator<Item = _>>, _) = match &chunker {
        None => (spool.iter()?, "documents"),
        Some(chunker) => (Box::new(chunks(spool.iter()?, chunker)), "chunks"),
    };
    let sample = Dataset::sample_of(texts, config.sample, seed, &mut LabelNames::default(), progress)?;
    if sample.seen > sample.texts.len() {
        progress.note(&format!("training on {} of {} {what}", sample.texts.len(), sample.seen));
    }
    let cache = config.cache_dir()?;
    let task = Task {
        embedder: encoder.as_ref(),
        clean: config.embedding.clean,
        dropout: config.dropout,
        corpus: &sample,
        validation: None,
        test: None,
        cache: &cache,
    };
    let training = match (config.target_recall, &encoder) {
        (Some(target), Some(encoder)) => {
            let passes = Passes::new(encoder, &sample.texts, config.dropout, Some(&cache), progress)?;
            of_length(target, passes.clean(), sample.seen, &config.training, progress)?
        }
        _ => config.training.clone(),
    };
    let (mut trained, (rows, _)) = task.fit(&training, progress)?;
    if trained.interrupted {
        if let Some(path) = &config.interrupted_model {
            trained.model.save(path, &trained.metrics)?;
        }
        return Err(Error::Interrupted);
    }
    progress.note(&trained.summary());
    let recall = match config.measure_recall {
        true => measure(&trained.model, &rows, seed, progress)?,
        false => None,
    };
    if let Some(recall) = recall {
        progress.note(&recall.summary(&trained.model.config.method, trained.model.shape().bits()));
        trained.metrics["float_recall"] = serde_json::to_value(recall).expect("plain data has a JSON form");
    }
    let embedder = match encoder {
        Some(embedder) if trained.model.config.embedding.as_ref() == Some(embedder.config()) => embedder,
        // Terms, or a pooling that was learned: the model holds them.
        _ => Embedder::for_model(&trained.model, Some(config.embedding.precision), progress)?
            .on(config.embedding.device, progress)?,
    };
    let training_seconds = begun.elapsed().as_secs_f64();
    let embeddings = Embeddings::Trained { embedder: &embedder, positions: &sample.positions, rows: &rows };
    let (model, metrics) = (&trained.model, &trained.metrics);
    let head: Vec<Document> = spool.iter()?.take(LanguageChoice::SAMPLE).collect::<Result<_>>()?;
    let language = config.language.of(head.iter().map(|document| document.text.as_str()));
    let settings = settings(config, &embedder, language)?;
    let mut documents = spool.iter()?;
    let filled = index(&claim.path(), model, metrics, &mut documents, &embeddings, settings, config, progress)?;
    distill_new(claim, &embedder, config, progress)?;
    Ok(Outcome { filled, metrics: trained.metrics, training_seconds, recall, embedder: Some(embedder) })
}

/// Gives a new index its fast query encoder, where the build asks for one.
fn distill_new(claim: &Claim, embedder: &Embedder, config: &BuildConfig, progress: &dyn Progress) -> Result<()> {
    if config.query_encoder == QueryEncoder::Fast {
        let distilling = DistillConfig { seed: config.training.seed(), ..DistillConfig::default() };
        distill_index(&Index::open(&claim.path(), progress)?, embedder, &distilling, progress)?;
    }
    Ok(())
}

/// The chunks of documents, each as a document of its own.
pub fn chunks<'a>(
    documents: impl Iterator<Item = Result<Document>> + 'a,
    chunker: &'a Chunker,
) -> impl Iterator<Item = Result<Document>> + 'a {
    documents.flat_map(move |document| match document {
        Err(error) => vec![Err(error)],
        Ok(document) => {
            let chunk = |range: Range<usize>| Document { text: document.text[range].to_owned(), ..document.clone() };
            chunker.split(&document.text).into_iter().map(|range| Ok(chunk(range))).collect()
        }
    })
}

/// The settings of the index of a build.
fn settings(config: &BuildConfig, embedder: &Embedder, language: Language) -> Result<IndexConfig> {
    let chunk = config.chunk.map(|chunk| chunk.sizes(embedder)).transpose()?;
    Ok(IndexConfig { language, chunk, ..config.index.clone() })
}

/// The training with as many bits as a recall needs, chosen on embeddings of a corpus of `documents`.
fn of_length(
    target: f64,
    embeddings: &Matrix,
    documents: usize,
    training: &Training,
    progress: &dyn Progress,
) -> Result<Training> {
    if embeddings.rows() < MIN_DOCUMENTS {
        progress.note(&format!(
            "{} documents are too few to choose bits for a recall; {} bits it is",
            embeddings.rows(),
            training.bits()
        ));
        return Ok(training.clone());
    }
    let chosen = LengthChoice::reaching(target, embeddings, documents, training.seed(), progress)?;
    let LengthChoice { bits, rerank, recall } = chosen;
    progress.note(&format!(
        "{bits} bits for a recall@10 of {target}: {} bytes per document in memory; OPQ of this length has {recall:.3} on a sample with {rerank} candidates re-ranked",
        bits / 8
    ));
    training.clone().with_option("bits", bits.into())
}

/// Measures the finished index. It is whole either way, so what goes wrong here is a note.
fn reranked_for(index: &Index, target: f64, progress: &dyn Progress) -> Option<DepthRecall> {
    let measured =
        Searcher::new(index.clone(), None).and_then(|searcher| searcher.rerank_for(target, TARGET_K, progress));
    match measured {
        Ok(depth) => {
            let DepthRecall { rerank, recall } = depth;
            progress.note(&format!("recall@{TARGET_K} is {recall:.3} with {rerank} candidates re-ranked"));
            Some(depth)
        }
        Err(problem) => {
            progress.note(&problem.to_string());
            None
        }
    }
}

/// Terms have no float vectors to compare with.
fn measure(model: &Model, rows: &Matrix, seed: u64, progress: &dyn Progress) -> Result<Option<FloatRecall>> {
    if model.config.embedding.as_ref().is_some_and(|embedding| embedding.terms.is_some()) {
        return Ok(None);
    }
    FloatRecall::measure(model, rows, seed, progress)
}

#[allow(clippy::too_many_arguments)] // The parts of a build, each used once.
fn index(
    path: &Path,
    model: &Model,
    metrics: &serde_json::Value,
    documents: &mut dyn Iterator<Item = Result<Document>>,
    embeddings: &Embeddings,
    settings: IndexConfig,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<Filled> {
    let settings = IndexConfig { metrics: metrics.clone(), replace: false, ..settings };
    let index = Index::create(path, model, settings)?;
    progress.stage("indexing", None);
    let filled = fill(&index, documents, embeddings, config.commit_every, progress)?;
    // Half an index never takes its place.
    if filled.interrupted { Err(Error::Interrupted) } else { Ok(filled) }
}

/// The documents of a source, read once.
enum Reader<'a> {
    Corpus(Box<Corpus>),
    Documents(Box<dyn Iterator<Item = Result<Document>> + 'a>),
}

impl<'a> Reader<'a> {
    fn open(source: Source<'a>) -> Result<Reader<'a>> {
        Ok(match source {
            Source::Corpus(path, config) => Reader::Corpus(Box::new(Corpus::open(path, config)?)),
            Source::Documents(documents) => Reader::Documents(documents),
        })
    }

    /// Reports rows that were skipped, and gives the first reasons.
    fn skipped(&self, progress: &dyn Progress) -> Vec<String> {
        let Reader::Corpus(corpus) = self else { return Vec::new() };
        report_skipped(corpus, progress);
        corpus.skipped().reasons().to_vec()
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        match self {
            Reader::Corpus(corpus) => corpus.next(),
            Reader::Documents(documents) => documents.next(),
        }
    }
}

/// Notes rows of a corpus that were skipped, with the first reasons.
pub fn report_skipped(corpus: &Corpus, progress: &dyn Progress) {
    let skipped = corpus.skipped();
    if skipped.count() > 0 {
        for reason in skipped.reasons() {
            progress.note(&format!("skipped: {reason}"));
        }
        progress.note(&format!("{} rows skipped in all", skipped.count()));
    }
}
