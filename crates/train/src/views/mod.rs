//! Where training vectors come from: a clean feature vector a document, and noisy views of it.
//!
//! A faithful view is a pass through the encoder with dropout ([`FullViews`]: all of them made once and kept on disk); a
//! cheap one is the clean vector with noise of the same shape ([`NoiseViews`], fitted on the passes of a sample).

mod brought;
mod cache;
mod noise;

pub use brought::BroughtViews;
pub use cache::{CacheKey, ViewCache};
pub use noise::{NoiseModel, NoiseViews};

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use micpq::encoder::Pooling;
use micpq::{Error, Matrix, Result, Watch};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::random::{Purpose, Stream};

/// Turns documents into feature vectors: what an encoder with its corpus implements.
pub trait Encode: Sync {
    /// Number of documents.
    fn documents(&self) -> usize;

    /// Values in a feature vector.
    fn width(&self) -> usize;

    /// What decides every value: corpus, encoder, pooling, dropout rate. Kept views of another fingerprint are refused.
    fn fingerprint(&self) -> String;

    /// The vectors `[documents.len(), width]` of some documents, for every view. View 0 is clean; every other number is
    /// a pass with dropout masks of its own. The same document and view give the same vector, whatever they are asked
    /// together with. Implementations ask `watch.interrupted()`; the caller counts the progress.
    fn encode_views(&self, documents: &[usize], views: Range<u32>, watch: &dyn Watch) -> Result<Vec<Matrix>>;

    /// The same with dropout in the last `layers` layers alone, where there are layers.
    fn in_last(&self, _layers: u32) -> Result<Box<dyn Encode + '_>> {
        Err(Error::config("these vectors come of no encoder with layers; take full or noise views"))
    }

    /// Documents worth encoding in one call; 0 where it does not matter.
    fn documents_at_once(&self) -> usize {
        0
    }
}

/// Which draw of the views: the same draw of the same document gives the same views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// The epoch; measurements use numbers no epoch reaches.
    pub epoch: u64,
}

/// Training vectors.
pub trait Views: Sync {
    /// Number of documents.
    fn documents(&self) -> usize;

    /// Values in a vector.
    fn width(&self) -> usize;

    /// What decides every value, for checkpoints.
    fn fingerprint(&self) -> String;

    /// The clean vectors of some documents, `[documents.len(), width]`.
    fn clean(&self, documents: &[u32], out: &mut [f32]);

    /// Two distinct views of every document: `[2, documents.len(), width]`, the first views before the second.
    fn pair(&self, documents: &[u32], draw: Draw, out: &mut [f32]);
}

/// Documents from which on it is said how long their passes take.
const MANY: usize = 20_000;

/// Documents the noise model is fitted on.
const SAMPLE: usize = 2000;

/// How views are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ViewChoice {
    /// Passes with dropout for every document.
    Full(u32),
    /// So many passes with dropout in the last layers alone, of so many layers: a document's passes share what comes
    /// before.
    Last {
        /// Layers that drop.
        layers: u32,
        /// Passes.
        passes: u32,
    },
    /// One clean pass for every document; passes with dropout for a sample, to fit the noise.
    Noise(u32),
}

impl ViewChoice {
    /// What to take where nothing is said: the fewest passes that lose at most 0.2 points of P@100 against sixteen on both
    /// corpora they were measured on (docs/tuning.md).
    pub fn suited_to(pooling: Pooling) -> ViewChoice {
        if pooling == Pooling::Mean { ViewChoice::default() } else { ViewChoice::Full(16) }
    }
}

impl Default for ViewChoice {
    fn default() -> Self {
        ViewChoice::Full(8)
    }
}

impl fmt::Display for ViewChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewChoice::Full(passes) => write!(f, "full:{passes}"),
            ViewChoice::Last { layers, passes } => write!(f, "last{layers}:{passes}"),
            ViewChoice::Noise(passes) => write!(f, "noise:{passes}"),
        }
    }
}

impl From<ViewChoice> for String {
    fn from(choice: ViewChoice) -> String {
        choice.to_string()
    }
}

impl TryFrom<String> for ViewChoice {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for ViewChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::config(format!(
                "unknown views '{text}'; write full:R, noise:R or lastL:R with R passes, 2 to 1000, and dropout in the \
                 last L layers, or noise"
            ))
        };
        let (name, passes) = match text.split_once(':') {
            Some((name, passes)) => (name, passes.parse().map_err(|_| bad())?),
            None => (text, 12),
        };
        let choice = match name {
            "full" if text != name => ViewChoice::Full(passes),
            "noise" => ViewChoice::Noise(passes),
            _ if text != name => match name.strip_prefix("last").map(str::parse) {
                Some(Ok(layers @ 1..=1000)) => ViewChoice::Last { layers, passes },
                _ => return Err(bad()),
            },
            _ => return Err(bad()),
        };
        if (2..=1000).contains(&passes) { Ok(choice) } else { Err(bad()) }
    }
}

impl ViewChoice {
    /// Passes through the encoder that `documents` need.
    pub fn passes(self, documents: usize) -> u64 {
        match self {
            ViewChoice::Full(passes) | ViewChoice::Last { passes, .. } => documents as u64 * (1 + u64::from(passes)),
            ViewChoice::Noise(passes) => documents as u64 + (documents.min(SAMPLE) as u64) * (1 + u64::from(passes)),
        }
    }

    /// Makes the views, or finds them in `dir` where an earlier run with the same corpus and encoder left them.
    pub fn prepare(self, encoder: &dyn Encode, dir: &Path, watch: &dyn Watch) -> Result<Box<dyn Views>> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let all: Vec<usize> = (0..encoder.documents()).collect();
        if all.is_empty() {
            return Err(Error::input("corpus", "holds no documents; training needs at least two"));
        }
        // One directory serves several corpora and encoders.
        let prefix = format!("{:08x}", crc32fast::hash(encoder.fingerprint().as_bytes()));
        match self {
            ViewChoice::Full(passes) => {
                let path = dir.join(format!("{prefix}-views-{passes}"));
                // On a CPU an hour or more: who would rather have it sooner should know.
                if all.len() >= MANY && encoder.documents_at_once() == 0 && !path.exists() {
                    let (times, texts) = (passes + 1, all.len());
                    watch.note(&format!(
                        "every one of {texts} texts is encoded {times} times; views noise:12 encode it once, and lose 0.2 to 0.5 points \
                         of P@100 with mean pooling, more with CLS; sample takes fewer texts"
                    ));
                }
                Ok(Box::new(FullViews::new(ViewCache::open_or_fill(&path, encoder, &all, passes, watch)?)?))
            }
            ViewChoice::Last { layers, passes } => {
                let path = dir.join(format!("{prefix}-last{layers}-{passes}"));
                let ending = encoder.in_last(layers)?;
                Ok(Box::new(FullViews::new(ViewCache::open_or_fill(&path, &*ending, &all, passes, watch)?)?))
            }
            ViewChoice::Noise(passes) => {
                let clean = ViewCache::open_or_fill(&dir.join(format!("{prefix}-clean")), encoder, &all, 0, watch)?;
                // Always the same sample, so that runs of every seed share it.
                let mut sample: Vec<usize> = Stream::new(0, Purpose::Sample, &[])
                    .permutation(all.len())
                    .into_iter()
                    .map(|i| i as usize)
                    .collect();
                sample.truncate(SAMPLE);
                sample.sort_unstable();
                let path = dir.join(format!("{prefix}-sample-{passes}"));
                let passes = ViewCache::open_or_fill(&path, encoder, &sample, passes, watch)?;
                watch.stage("fitting the noise model", None);
                let model = NoiseModel::fit_cache(&passes)?;
                Ok(Box::new(NoiseViews::from_cache(clean, model)?))
            }
        }
    }
}

/// Two of the passes kept for each document, drawn anew every epoch.
pub struct FullViews {
    cache: ViewCache,
}

impl FullViews {
    /// Takes kept passes; a document needs two to show two views.
    pub fn new(cache: ViewCache) -> Result<Self> {
        if cache.passes() < 2 {
            return Err(Error::config(format!(
                "{} pass with dropout cannot give two distinct views; keep at least 2 (full:2)",
                cache.passes()
            )));
        }
        Ok(FullViews { cache })
    }
}

impl Views for FullViews {
    fn documents(&self) -> usize {
        self.cache.documents()
    }

    fn width(&self) -> usize {
        self.cache.width()
    }

    fn fingerprint(&self) -> String {
        self.cache.fingerprint()
    }

    fn clean(&self, documents: &[u32], out: &mut [f32]) {
        self.cache.clean(documents, out);
    }

    fn pair(&self, documents: &[u32], draw: Draw, out: &mut [f32]) {
        let (width, passes) = (self.width(), u64::from(self.cache.passes()));
        let (first, second) = out.split_at_mut(documents.len() * width);
        let rows = first.par_chunks_exact_mut(width).zip(second.par_chunks_exact_mut(width));
        documents.par_iter().with_min_len(16).zip(rows).for_each(|(&document, (first, second))| {
            let stream = Stream::new(draw.seed, Purpose::Views, &[draw.epoch, u64::from(document)]);
            let one = stream.below(0, passes);
            let other = stream.below(1, passes - 1);
            let other = other + u64::from(other >= one);
            self.cache.read(document as usize, 1 + one as u32, first);
            self.cache.read(document as usize, 1 + other as u32, second);
        });
    }
}

#[cfg(test)]
#[path = "views_tests.rs"]
pub(crate) mod tests;
