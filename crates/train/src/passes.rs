//! Encoder passes over a tokenised corpus: clean embeddings, and views under dropout.

use std::ops::Range;
use std::path::Path;

use engine::encoder::{Dropout, Embedder};
use engine::{Error, Matrix, Progress, Result};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::vector_cache::{Key, VectorCache, clean_vectors, key};
use crate::views::Encode;

/// Seed of the dropout masks. Runs of different seeds share one cache of views unless [`Passes::masked_by`] says otherwise. The seed
/// of a run decides which views it draws from the cache.
const MASK_SEED: u64 = 1;

/// Token sequences, their encoder and their clean embeddings.
pub struct Passes<'a> {
    embedder: &'a Embedder,
    tokens: Vec<Vec<u32>>,
    cut: Vec<bool>,
    dropout: f64,
    masks: u64,
    // Without the masks.
    fingerprint: String,
    clean: Matrix,
}

impl<'a> Passes<'a> {
    /// Tokenises `texts` and encodes them without dropout. Embeddings of the same tokens and encoder are read from the `cache`
    /// directory. Views are passes with dropout at `rate`.
    pub fn new(
        embedder: &'a Embedder,
        texts: &[impl AsRef<str> + Sync],
        rate: f64,
        cache: Option<&Path>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::option("dropout", format!("is {rate}; it must be at least 0 and below 1")));
        }
        progress.stage("tokenising", None);
        let (tokens, cut) = embedder.tokens_and_cut(texts)?;
        let config = embedder.config();
        // Everything that decides a value, and nothing else: texts that clean to the same tokens share embeddings. GPU and
        // CPU embeddings agree to a few thousandths but not bit for bit, so each has its own cache and a run resumes with
        // the kind it started with.
        let mut encoder = config.vectors_of_tokens();
        if let Some(arithmetic) = embedder.encoder().map(engine::encoder::Encoder::arithmetic).filter(|a| *a != "f32") {
            encoder += &format!("|{arithmetic}");
        }
        let keys: Vec<Key> = tokens.par_iter().map(|sequence| key(sequence)).collect();
        let mut hash = Sha256::new();
        hash.update(&encoder);
        keys.iter().for_each(|key| hash.update(key));
        let fingerprint = format!("{}|{rate}", hex::encode(&hash.finalize()[..16]));
        let cache = cache.map(|dir| {
            let name = hex::encode(&Sha256::digest(&encoder)[..8]);
            VectorCache::open(dir.join(format!("vectors-{name}")), embedder.width())
        });
        let clean = clean_vectors(embedder, &tokens, &keys, cache.transpose()?, progress)?;
        Ok(Passes { embedder, tokens, cut, dropout: rate, masks: MASK_SEED, fingerprint, clean })
    }

    /// The same with other dropout masks: every seed has views of its own. Seed 0 is the default.
    pub fn masked_by(mut self, seed: u64) -> Self {
        self.masks = MASK_SEED.wrapping_add(seed);
        self
    }

    /// Clean embeddings, one row per text.
    pub fn clean(&self) -> &Matrix {
        &self.clean
    }

    pub fn into_clean(self) -> Matrix {
        self.clean
    }

    /// Clean embeddings, token sequences and which texts were cut.
    pub fn into_parts(self) -> (Matrix, Vec<Vec<u32>>, Vec<bool>) {
        (self.clean, self.tokens, self.cut)
    }
}

impl Passes<'_> {
    fn views(
        &self,
        documents: &[usize],
        views: Range<u32>,
        last_layers: Option<usize>,
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let sequences: Vec<&[u32]> = documents.iter().map(|&d| self.tokens[d].as_slice()).collect();
        let numbers: Vec<u64> = documents.iter().map(|&d| d as u64).collect();
        let dropout = |view| {
            let all_layers = Dropout::new(self.dropout, self.masks, view, &numbers);
            Some(last_layers.map_or(all_layers, |layers| all_layers.in_last(layers)))
        };
        let dropped: Vec<Option<Dropout>> = views.clone().filter(|view| *view > 0).map(dropout).collect();
        let mut out = Vec::with_capacity(views.len());
        if views.contains(&0) {
            out.push(self.clean.select(documents));
        }
        if !dropped.is_empty() {
            out.extend(self.embedder.encode_views(&sequences, &dropped, &InterruptOnly(progress))?);
        }
        Ok(out)
    }
}

impl Encode for Passes<'_> {
    fn documents(&self) -> usize {
        self.tokens.len()
    }

    fn width(&self) -> usize {
        self.embedder.width()
    }

    fn fingerprint(&self) -> String {
        format!("{}|{}", self.fingerprint, self.masks)
    }

    fn encode_views(&self, documents: &[usize], views: Range<u32>, progress: &dyn Progress) -> Result<Vec<Matrix>> {
        self.views(documents, views, None, progress)
    }

    fn dropout_in_last(&self, layers: u32) -> Result<Box<dyn Encode + '_>> {
        let available = self.embedder.encoder().map_or(0, |e| e.config().num_hidden_layers);
        if layers as usize > available {
            return Err(Error::option(
                "views",
                format!(
                    "is last{layers}, but the encoder has {available} layers; use fewer layers, or full or noise views"
                ),
            ));
        }
        Ok(Box::new(LastLayers { passes: self, layers }))
    }

    fn documents_at_once(&self) -> usize {
        self.embedder.sequences_at_once()
    }
}

/// Passes with dropout only in the last layers.
struct LastLayers<'a> {
    passes: &'a Passes<'a>,
    layers: u32,
}

impl Encode for LastLayers<'_> {
    fn documents(&self) -> usize {
        self.passes.documents()
    }

    fn width(&self) -> usize {
        self.passes.width()
    }

    fn fingerprint(&self) -> String {
        format!("{}/last{}", self.passes.fingerprint(), self.layers)
    }

    fn encode_views(&self, documents: &[usize], views: Range<u32>, progress: &dyn Progress) -> Result<Vec<Matrix>> {
        self.passes.views(documents, views, Some(self.layers as usize), progress)
    }

    fn dropout_in_last(&self, layers: u32) -> Result<Box<dyn Encode + '_>> {
        self.passes.dropout_in_last(layers)
    }

    // All passes of a document go into one call, because they share the first layers.
    fn documents_at_once(&self) -> usize {
        self.passes.documents_at_once().max(256)
    }
}

/// Forwards interruption and no progress: the caller counts documents, not passes.
struct InterruptOnly<'a>(&'a dyn Progress);

impl Progress for InterruptOnly<'_> {
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}
