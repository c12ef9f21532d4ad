//! The texts a model is trained on: read once, cut into chunks where a build asks for them, and sampled.

use std::ops::Range;
use std::path::{Path, PathBuf};

use engine::chunk::Chunker;
use engine::corpus::Document;
use engine::encoder::Embedder;
use engine::{Error, Progress, Result};
use methods::training::Task;
use train::dataset::{Dataset, LabelNames};

use super::config::BuildConfig;
use super::source::{Reader, Source};

/// Where the texts of a training come from.
pub struct TrainingSources<'a> {
    pub corpus: Source<'a>,
    /// Labelled queries that choose the best epoch.
    pub validation: Option<Source<'a>>,
    /// Labelled queries that measure the finished model; they decide nothing.
    pub test: Option<Source<'a>>,
}

impl<'a> From<Source<'a>> for TrainingSources<'a> {
    fn from(corpus: Source<'a>) -> Self {
        TrainingSources { corpus, validation: None, test: None }
    }
}

/// Texts that any number of models can be trained on.
///
/// ```no_run
/// use std::path::Path;
///
/// use micpq::pipeline::{BuildConfig, Source, TrainingTexts};
/// use micpq::{CorpusConfig, NoProgress};
///
/// let config = BuildConfig::default();
/// let encoder = config.encoder(&NoProgress)?;
/// let read = CorpusConfig { unique_ids: false, ..CorpusConfig::default() };
/// let source = Source::Corpus(Path::new("news.jsonl"), &read);
/// let texts = TrainingTexts::read(source.into(), encoder.as_ref(), &config, &NoProgress)?;
/// let (trained, _) = texts.task(encoder.as_ref(), &config).fit(&config.training, &NoProgress)?;
/// trained.model.save(Path::new("news.model"), &trained.metrics)?;
/// # Ok::<(), micpq::Error>(())
/// ```
pub struct TrainingTexts {
    /// The sample that is trained on: documents, or their chunks.
    pub corpus: Dataset,
    pub validation: Option<Dataset>,
    pub test: Option<Dataset>,
    cache: PathBuf,
}

impl TrainingTexts {
    /// Reads the sources. Rows that are skipped become notes to `progress`.
    pub fn read(
        sources: TrainingSources,
        encoder: Option<&Embedder>,
        config: &BuildConfig,
        progress: &dyn Progress,
    ) -> Result<TrainingTexts> {
        let (chunker, mut names) = (chunker(config, encoder)?, LabelNames::default());
        let mut read = |source: Source, limit: usize, chunker: Option<&Chunker>| -> Result<Dataset> {
            let mut reader = Reader::open(source)?;
            let set = sample(reader.by_ref(), chunker, limit, config.training.seed(), &mut names, progress)?;
            reader.skipped(progress);
            Ok(set)
        };
        // A model is trained on what it will encode: documents, or their chunks.
        let corpus = read(sources.corpus, config.sample, chunker.as_ref())?;
        let mut queries = |source: Option<Source>| source.map(|source| read(source, usize::MAX, None)).transpose();
        let (validation, test) = (queries(sources.validation)?, queries(sources.test)?);
        Ok(TrainingTexts { corpus, validation, test, cache: config.cache_dir()? })
    }

    /// The task of training on these texts.
    pub fn task<'a>(&'a self, encoder: Option<&'a Embedder>, config: &BuildConfig) -> Task<'a> {
        let (validation, test) = (self.validation.as_ref(), self.test.as_ref());
        Task { validation, test, ..task(&self.corpus, encoder, config, &self.cache) }
    }
}

/// The task of training on a sample, with everything else as the config says.
pub(super) fn task<'a>(
    corpus: &'a Dataset,
    encoder: Option<&'a Embedder>,
    config: &BuildConfig,
    cache: &'a Path,
) -> Task<'a> {
    let clean = encoder.map_or(config.embedding.clean, |encoder| encoder.config().clean);
    let (dropout, passes) = (config.dropout, Default::default());
    Task { embedder: encoder, clean, dropout, corpus, validation: None, test: None, cache, passes }
}

/// What cuts long texts, if the config asks for chunks.
pub(super) fn chunker<'a>(config: &BuildConfig, encoder: Option<&'a Embedder>) -> Result<Option<Chunker<'a>>> {
    match (config.chunk, encoder) {
        (None, _) => Ok(None),
        (Some(chunk), Some(encoder)) => Chunker::new(chunk.sizes(encoder)?, encoder).map(Some),
        (Some(_), None) => {
            Err(Error::option("chunk", "is given, but this method takes keywords and cuts no text; leave chunk out"))
        }
    }
}

/// An even sample of at most `limit` documents, or chunks.
pub(super) fn sample(
    documents: impl Iterator<Item = Result<Document>>,
    chunker: Option<&Chunker>,
    limit: usize,
    seed: u64,
    names: &mut LabelNames,
    progress: &dyn Progress,
) -> Result<Dataset> {
    match chunker {
        None => Dataset::sample_of(documents, limit, seed, names, progress),
        Some(chunker) => Dataset::sample_of(chunks(documents, chunker), limit, seed, names, progress),
    }
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
