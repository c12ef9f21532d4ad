//! From a corpus to a searchable index: the one pipeline that the command line, Python and the server call.
//!
//! [`build`] reads the corpus once, trains a model on a sample of it, embeds what training did not, and puts the finished
//! index in its place in one step. With a model given it streams: nothing is held but a chunk.

mod config;
mod source;
mod spool;
mod texts;
mod training;
mod fill;
mod distill;
mod sync;

use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::corpus::Document;
use engine::duplicates::Repeats;
use engine::encoder::{Embedder, QueryEncoder};
use engine::index::{Claim, Index, IndexConfig};
use engine::language::LanguageChoice;
use engine::model::Model;
use engine::query::{DepthRecall, Searcher};
use engine::{Error, Matrix, NoProgress, Progress, Result};
use methods::recall::FloatRecall;
use train::query_encoder::DistillConfig;

pub use ::train::untrained::model as untrained_model;
pub use config::{BuildConfig, cache_dir};
pub use distill::{DistillTarget, distill_corpus, distill_index};
pub use fill::{Embeddings, FillConfig, Filled, Sampled, cut_note, fill};
use source::Reader;
pub use source::{Source, report_skipped};
pub use sync::{Looks, SyncConfig, Synced, sync, sync_again};
pub use texts::{TrainingSources, TrainingTexts, chunks};

/// Neighbours that `target_recall` counts.
const TARGET_K: usize = 10;

/// Where the model comes from.
pub enum ModelSource<'a> {
    /// Trained on the documents.
    Train,
    /// Trained on the documents, with an encoder that is loaded already.
    TrainWith(&'a Embedder),
    /// A finished model, with its metrics, and its encoder where that is loaded already.
    Given { model: &'a Model, metrics: serde_json::Value, embedder: Option<&'a Embedder> },
    /// A finished model of user vectors, with its metrics, and one vector per document in order.
    Vectors { model: &'a Model, metrics: serde_json::Value, vectors: &'a Matrix },
}

/// The result of a build.
pub struct Built {
    pub index: Index,
    pub documents: usize,
    /// Texts that were encoded (documents, or their chunks), and how many of them the encoder cut.
    pub texts: usize,
    pub cut: usize,
    /// What became of documents that repeat another.
    pub repeats: Repeats,
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

/// An index to build at `output`. What is there must be an index, and `config.index.replace` set, or an empty place; it stays
/// until the new one is whole.
///
/// ```no_run
/// let built = micpq::build("news.jsonl", "news.micpq").run()?;
/// println!("{} documents in {:.0} s", built.documents, built.seconds);
/// # Ok::<(), micpq::Error>(())
/// ```
pub fn build<'a>(source: impl Into<Source<'a>>, output: impl Into<PathBuf>) -> Build<'a> {
    Build {
        source: source.into(),
        output: output.into(),
        config: BuildConfig::default(),
        model: ModelSource::Train,
        progress: &NoProgress,
    }
}

/// A build that [`build`] begins and [`Build::run`] carries out. Every option has a default.
pub struct Build<'a> {
    source: Source<'a>,
    output: PathBuf,
    config: BuildConfig,
    model: ModelSource<'a>,
    progress: &'a dyn Progress,
}

impl<'a> Build<'a> {
    /// The options. Default: [`BuildConfig::default`].
    pub fn config(self, config: BuildConfig) -> Self {
        Build { config, ..self }
    }

    /// Where the model comes from. Default: it is trained on the documents.
    pub fn model(self, model: ModelSource<'a>) -> Self {
        Build { model, ..self }
    }

    /// What is told of the progress, and may interrupt. Default: nothing.
    pub fn progress(self, progress: &'a dyn Progress) -> Self {
        Build { progress, ..self }
    }

    pub fn run(self) -> Result<Built> {
        let Build { source, output, config, model, progress } = self;
        let begun = Instant::now();
        config.validate()?;
        // What can be refused is refused before an hour is spent on encoding.
        let claim = Claim::new(&output, config.index.replace)?;
        let staged = build_staged(source, &claim.path(), model, &config, progress)?;
        claim.finish()?;
        let index = Index::open(&output, progress)?;
        staged.filled.report_cut(&index, progress);
        staged.filled.report_repeats(progress);
        let rerank = config.target_recall.and_then(|target| reranked_for(&index, target, progress));
        Ok(Built {
            rerank,
            index,
            documents: staged.filled.documents,
            texts: staged.filled.texts,
            cut: staged.filled.cut,
            repeats: staged.filled.repeats,
            metrics: staged.metrics,
            training_seconds: staged.training_seconds,
            seconds: begun.elapsed().as_secs_f64(),
            recall: staged.recall,
            embedder: staged.embedder,
            skipped: staged.skipped,
        })
    }
}

/// A whole index that is not in its place yet.
#[derive(Default)]
pub struct Staged {
    pub filled: Filled,
    pub metrics: serde_json::Value,
    /// Documents the model was trained on; 0 where it was given.
    pub trained_on: usize,
    /// See [`Built`].
    pub training_seconds: f64,
    pub recall: Option<FloatRecall>,
    pub embedder: Option<Embedder>,
    pub skipped: Vec<String>,
}

/// [`build`] without the last step: a whole index at `to`, where nothing is yet. The caller puts it in its place. Temporary
/// files go beside it.
pub fn build_staged(
    source: Source,
    to: &Path,
    model: ModelSource,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<Staged> {
    let begun = Instant::now();
    config.validate()?;
    let mut reader = Reader::open(source)?;
    let mut staged = match model {
        ModelSource::Train => training::train_and_index(&mut reader, to, None, config, progress)?,
        ModelSource::TrainWith(embedder) => {
            training::train_and_index(&mut reader, to, Some(embedder), config, progress)?
        }
        ModelSource::Given { model, metrics, embedder } => {
            let loaded = match embedder {
                Some(_) => None,
                None => Some(model.embedder(None, progress)?.on(config.embedding.device, progress)?),
            };
            let embedder = embedder.or(loaded.as_ref()).expect("one of them is there");
            let training_seconds = begun.elapsed().as_secs_f64();
            let parts = Parts { model, metrics: &metrics, embeddings: Embeddings::Encode(embedder), total: None };
            let filled = index(to, reader.by_ref(), &parts, config, progress)?;
            distill_new(to, embedder, config, progress)?;
            Staged { filled, metrics, training_seconds, embedder: loaded, ..Staged::default() }
        }
        ModelSource::Vectors { model, metrics, vectors } => {
            if config.chunk.is_some() {
                return Err(Error::option(
                    "chunk",
                    "needs an encoder: a user vector is of a whole document; leave chunk out",
                ));
            }
            let parts = Parts { model, metrics: &metrics, embeddings: Embeddings::Given(vectors), total: None };
            let filled = index(to, reader.by_ref(), &parts, config, progress)?;
            Staged { filled, metrics, ..Staged::default() }
        }
    };
    staged.skipped = reader.skipped(progress);
    Ok(staged)
}

/// The parts of a new index beside its documents.
struct Parts<'a> {
    model: &'a Model,
    metrics: &'a serde_json::Value,
    embeddings: Embeddings<'a>,
    /// Number of the documents, where it is known.
    total: Option<u64>,
}

fn index(
    to: &Path,
    mut documents: impl Iterator<Item = Result<Document>>,
    parts: &Parts,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<Filled> {
    let head: Vec<Document> = documents.by_ref().take(LanguageChoice::SAMPLE).collect::<Result<_>>()?;
    let language = config.language.of(head.iter().map(|document| document.text.as_str()));
    let chunk = match (config.chunk, parts.embeddings.embedder()) {
        (Some(chunk), Some(embedder)) => Some(chunk.sizes(embedder)?),
        _ => None,
    };
    let metrics = parts.metrics.clone();
    let settings = IndexConfig { language, chunk, metrics, replace: false, ..config.index.clone() };
    let index = Index::create(to, parts.model, settings)?;
    progress.stage("indexing", parts.total);
    let documents = head.into_iter().map(Ok).chain(documents);
    let filled = fill(&index, documents, &parts.embeddings, config.fill, progress)?;
    // Half an index never takes its place.
    if filled.interrupted { Err(Error::Interrupted) } else { Ok(filled) }
}

/// Gives a new index its fast query encoder, where the build asks for one.
fn distill_new(to: &Path, embedder: &Embedder, config: &BuildConfig, progress: &dyn Progress) -> Result<()> {
    if config.query_encoder == QueryEncoder::Fast {
        let distilling = DistillConfig { seed: config.training.seed(), ..DistillConfig::default() };
        distill_index(&Index::open(to, progress)?, embedder, &distilling, progress)?;
    }
    Ok(())
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
