//! Every option of a build, each default once.

use std::path::PathBuf;

use engine::chunk::ChunkConfig;
use engine::encoder::{Embedder, EmbedderConfig, QueryEncoder, pull};
use engine::index::{IndexConfig, RerankVectors, Store};
use engine::language::LanguageChoice;
use engine::{Error, Progress, Result};
use methods::{MethodHandle, Training};

use super::fill::FillConfig;

/// How an index is built from a corpus.
///
/// ```
/// use micpq::{BuildConfig, Training};
///
/// // The default method at 64 bits, and the same with another method, fewer documents to train on and another seed.
/// let config = BuildConfig::default();
/// assert_eq!((config.training.method().name(), config.training.bits()), ("distilled", 64));
/// let training = Training::named("opq", 32)?.with_option("seed", 7.into())?;
/// let config = BuildConfig { sample: 50_000, ..BuildConfig::new(training) };
/// config.validate()?;
/// let error = BuildConfig { sample: 0, ..config }.validate().unwrap_err();
/// assert!(error.to_string().contains("sample is 0"));
/// # Ok::<(), micpq::Error>(())
/// ```
#[derive(Clone)]
pub struct BuildConfig {
    pub embedding: EmbedderConfig,
    /// The method and its options, bits and seed among them.
    pub training: Training,
    /// Rate of dropout in the encoder's views. The authors' value by default.
    pub dropout: f64,
    /// Documents trained on at most. A larger corpus is sampled evenly by the seed.
    pub sample: usize,
    /// Where embeddings, views and checkpoints stay between runs. Default: under the user's cache.
    pub cache: Option<PathBuf>,
    pub index: IndexConfig,
    /// Language of keyword search; it takes the place of `index.language`.
    pub language: LanguageChoice,
    /// Split long texts; it takes the place of `index.chunk`. Default: they are cut at what the encoder takes.
    pub chunk: Option<ChunkConfig>,
    pub fill: FillConfig,
    /// Where the best model so far is saved when training is interrupted.
    pub interrupted_model: Option<PathBuf>,
    /// Recall@10 against exact float search that searches should have, 0 to 1. The bits of the method are then chosen on a
    /// sample, and the finished index is measured for the number of candidates to re-rank.
    pub target_recall: Option<f64>,
    /// Fast: distil the encoder into a query encoder that takes microseconds, too.
    pub query_encoder: QueryEncoder,
    /// Compare the trained codes with exact float search and with OPQ on a sample, and record it in the metrics.
    pub measure_recall: bool,
}

impl Default for BuildConfig {
    /// The default method, [`BuildConfig::METHOD`], with codes of [`BuildConfig::BITS`] bits.
    fn default() -> Self {
        let training = Training::named(BuildConfig::METHOD, BuildConfig::BITS);
        BuildConfig::new(training.expect("the default method has valid defaults"))
    }
}

impl BuildConfig {
    /// The method of a build that names none, nor a preset.
    pub const METHOD: &str = "distilled";
    pub const BITS: usize = 64;
    pub const DROPOUT: f64 = 0.3;
    pub const RERANK_VECTORS: RerankVectors = RerankVectors::Int8;
    pub const SAMPLE: usize = 200_000;

    pub fn new(training: Training) -> BuildConfig {
        BuildConfig {
            embedding: EmbedderConfig::default(),
            training,
            dropout: BuildConfig::DROPOUT,
            sample: BuildConfig::SAMPLE,
            cache: None,
            index: IndexConfig { rerank_vectors: BuildConfig::RERANK_VECTORS, ..IndexConfig::default() },
            language: LanguageChoice::Auto,
            chunk: None,
            fill: FillConfig::default(),
            interrupted_model: None,
            target_recall: None,
            query_encoder: QueryEncoder::Full,
            measure_recall: true,
        }
    }

    /// The method that was named. A preset is a run of MICPQ.
    pub fn method(named: Option<MethodHandle>, preset: bool) -> Result<MethodHandle> {
        named.map_or_else(|| methods::find(if preset { "micpq" } else { BuildConfig::METHOD }), Ok)
    }

    pub fn validate(&self) -> Result<()> {
        self.fill.validate()?;
        if self.sample == 0 {
            return Err(Error::option("sample", "is 0; training needs documents"));
        }
        if self.query_encoder == QueryEncoder::Fast && self.index.store == Store::Codes {
            return Err(Error::option(
                "query_encoder",
                "is fast, which learns from the texts of the index, and store codes leaves them out; store all, or distil later from the corpus",
            ));
        }
        if self.query_encoder == QueryEncoder::Fast && !self.training.needs_encoder() {
            return Err(Error::option(
                "query_encoder",
                "is fast, which copies an encoder; give a method that reads embeddings",
            ));
        }
        let Some(target) = self.target_recall else { return Ok(()) };
        if !(target > 0.0 && target <= 1.0) {
            return Err(Error::option("target_recall", format!("is {target}; give a share above 0 and at most 1")));
        }
        if self.index.rerank_vectors == RerankVectors::None {
            return Err(Error::option("target_recall", "is reached by re-ranking; set rerank_vectors to int8 or f16"));
        }
        if !self.training.needs_encoder() {
            return Err(Error::option(
                "target_recall",
                "is measured against float search; give a method that reads embeddings",
            ));
        }
        Ok(())
    }

    /// Loads the encoder, if the method reads embeddings. A registered encoder that is missing is fetched first.
    pub fn encoder(&self, progress: &dyn Progress) -> Result<Option<Embedder>> {
        self.training.needs_encoder().then(|| Embedder::load(&self.embedding, progress)).transpose()
    }

    /// The cache directory, created where it is missing.
    pub fn cache_dir(&self) -> Result<PathBuf> {
        cache_dir(self.cache.as_deref())
    }
}

/// The directory where embeddings, views and checkpoints stay between runs, created where it is missing.
pub fn cache_dir(given: Option<&std::path::Path>) -> Result<PathBuf> {
    let dir = match given {
        Some(dir) => dir.to_path_buf(),
        None => pull::models_dir()?.parent().map_or_else(|| PathBuf::from("cache"), PathBuf::from).join("train"),
    };
    std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
    Ok(dir)
}
