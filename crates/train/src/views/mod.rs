//! Training data: one clean embedding per document, and views of it.
//!
//! A full view is a pass through the encoder with dropout ([`FullViews`]: all passes are computed once and cached on disk). A
//! cheap view is the clean embedding plus noise of the same distribution ([`NoiseViews`], fitted on the passes of a sample).

mod cache;
mod noise;
mod user_vectors;

pub use cache::{CacheKey, ViewCache};
pub use noise::{NoiseModel, NoiseViews};
pub use user_vectors::UserVectorViews;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use engine::encoder::Pooling;
use engine::{Error, Matrix, Progress, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::random::{Purpose, Stream};

/// Encodes the documents of a corpus.
pub trait Encode: Sync {
    fn documents(&self) -> usize;

    /// Values in an embedding.
    fn width(&self) -> usize;

    /// Identifies everything that decides a value: corpus, encoder, pooling, dropout rate. Cached views of another fingerprint
    /// are refused.
    fn fingerprint(&self) -> String;

    /// Embeddings `[documents.len(), width]` of `documents`, one matrix per view. View 0 is clean; every other number is a pass
    /// with its own dropout masks. A document and a view number always give the same embedding, in any batch.
    /// Implementations check `progress.interrupted()`; the caller counts the progress.
    fn encode_views(&self, documents: &[usize], views: Range<u32>, progress: &dyn Progress) -> Result<Vec<Matrix>>;

    /// The same encoder with dropout only in the last `layers` layers.
    fn dropout_in_last(&self, _layers: u32) -> Result<Box<dyn Encode + '_>> {
        Err(Error::config("these embeddings have no encoder with layers; use full or noise views"))
    }

    /// Documents per call that encode fastest; 0 when it does not matter.
    fn documents_at_once(&self) -> usize {
        0
    }
}

/// Seed and epoch of a pair of views. The same draw of the same document gives the same views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    pub seed: u64,
    /// Validation uses a number that no real epoch reaches.
    pub epoch: u64,
}

/// Clean embeddings and views of the training documents.
pub trait Views: Sync {
    fn documents(&self) -> usize;

    /// Values in an embedding.
    fn width(&self) -> usize;

    /// Identifies everything that decides a value, for checkpoints.
    fn fingerprint(&self) -> String;

    /// Writes the clean embeddings `[documents.len(), width]` of `documents` to `out`.
    fn clean(&self, documents: &[u32], out: &mut [f32]);

    /// Writes two distinct views of every document to `out`, `[2, documents.len(), width]`.
    fn pair(&self, documents: &[u32], draw: Draw, out: &mut [f32]);
}

/// From this many documents on, a note tells how often each is encoded.
const NOTE_MIN_DOCUMENTS: usize = 20_000;

/// Documents that the noise model is fitted on.
const SAMPLE_DOCUMENTS: usize = 2000;

/// How views are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ViewChoice {
    /// `full:R`: R passes with dropout for every document.
    Full(u32),
    /// `lastL:R`: R passes with dropout only in the last L layers. The passes of a document share the layers before.
    Last { layers: u32, passes: u32 },
    /// `noise:R`: one clean pass for every document, and R passes with dropout for a sample, to fit the noise.
    Noise(u32),
}

impl ViewChoice {
    /// Default for a pooling: the fewest passes that lose at most 0.2 points of P@100 against sixteen passes, on both measured
    /// corpora (docs/tuning.md).
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
        let unknown = || {
            Error::config(format!(
                "unknown views '{text}'; use full:R, noise:R, lastL:R or noise, with 2 to 1000 passes R and dropout in the \
                 last L layers"
            ))
        };
        let (name, passes) = match text.split_once(':') {
            Some((name, passes)) => (name, passes.parse().map_err(|_| unknown())?),
            None => (text, 12),
        };
        let choice = match name {
            "full" if text != name => ViewChoice::Full(passes),
            "noise" => ViewChoice::Noise(passes),
            _ if text != name => match name.strip_prefix("last").map(str::parse) {
                Some(Ok(layers @ 1..=1000)) => ViewChoice::Last { layers, passes },
                _ => return Err(unknown()),
            },
            _ => return Err(unknown()),
        };
        if (2..=1000).contains(&passes) { Ok(choice) } else { Err(unknown()) }
    }
}

impl ViewChoice {
    /// Encoder passes for this many documents.
    pub fn passes(self, documents: usize) -> u64 {
        match self {
            ViewChoice::Full(passes) | ViewChoice::Last { passes, .. } => documents as u64 * (1 + u64::from(passes)),
            ViewChoice::Noise(passes) => {
                documents as u64 + (documents.min(SAMPLE_DOCUMENTS) as u64) * (1 + u64::from(passes))
            }
        }
    }

    /// Computes the views, or opens those that an earlier run with the same corpus and encoder cached in `dir`.
    pub fn prepare(self, encoder: &dyn Encode, dir: &Path, progress: &dyn Progress) -> Result<Box<dyn Views>> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let all: Vec<usize> = (0..encoder.documents()).collect();
        if all.is_empty() {
            return Err(Error::input("corpus", "holds no documents; training needs at least 2"));
        }
        // Several corpora and encoders share one directory.
        let prefix = format!("{:08x}", crc32fast::hash(encoder.fingerprint().as_bytes()));
        match self {
            ViewChoice::Full(passes) => {
                let path = dir.join(format!("{prefix}-views-{passes}"));
                // It takes an hour or more on a CPU, so the note names the faster options.
                if all.len() >= NOTE_MIN_DOCUMENTS && encoder.documents_at_once() == 0 && !path.exists() {
                    let (times, texts) = (passes + 1, all.len());
                    progress.note(&format!(
                        "each of {texts} texts is encoded {times} times; views noise:12 encode each once and lose 0.2 to 0.5 \
                         points of P@100 with mean pooling, more with CLS; sample trains on fewer texts"
                    ));
                }
                Ok(Box::new(FullViews::new(ViewCache::open_or_fill(&path, encoder, &all, passes, progress)?)?))
            }
            ViewChoice::Last { layers, passes } => {
                let path = dir.join(format!("{prefix}-last{layers}-{passes}"));
                let last_layers = encoder.dropout_in_last(layers)?;
                Ok(Box::new(FullViews::new(ViewCache::open_or_fill(&path, &*last_layers, &all, passes, progress)?)?))
            }
            ViewChoice::Noise(passes) => {
                let clean = ViewCache::open_or_fill(&dir.join(format!("{prefix}-clean")), encoder, &all, 0, progress)?;
                // The seed of the run does not matter here, so all runs share one sample.
                let mut sample: Vec<usize> = Stream::new(0, Purpose::Sample, &[])
                    .permutation(all.len())
                    .into_iter()
                    .map(|i| i as usize)
                    .collect();
                sample.truncate(SAMPLE_DOCUMENTS);
                sample.sort_unstable();
                let path = dir.join(format!("{prefix}-sample-{passes}"));
                let sample_passes = ViewCache::open_or_fill(&path, encoder, &sample, passes, progress)?;
                progress.stage("fitting the noise model", None);
                let model = NoiseModel::fit_cache(&sample_passes)?;
                Ok(Box::new(NoiseViews::from_cache(clean, model)?))
            }
        }
    }
}

/// Views that are two of a document's cached passes, drawn anew in every epoch.
pub struct FullViews {
    cache: ViewCache,
}

impl FullViews {
    /// The cache must hold at least two passes per document.
    pub fn new(cache: ViewCache) -> Result<Self> {
        if cache.passes() < 2 {
            return Err(Error::option(
                "views",
                format!(
                    "needs at least 2 passes with dropout for two distinct views, not {}; use full:2",
                    cache.passes()
                ),
            ));
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
            let (one, other) = stream.two_below(passes);
            self.cache.read(document as usize, 1 + one as u32, first);
            self.cache.read(document as usize, 1 + other as u32, second);
        });
    }
}

#[cfg(test)]
#[path = "views_tests.rs"]
pub(crate) mod tests;
