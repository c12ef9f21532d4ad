//! A tokenised corpus behind its encoder: where clean vectors and dropout views come from, and where the clean ones are
//! kept.

use std::path::{Path, PathBuf};

use micpq::encoder::{Dropout, Features};
use micpq::npy::{self, NpyWriter};
use micpq::{Error, Matrix, Result, Watch, hex};
use sha2::{Digest, Sha256};

use crate::views::Encode;

/// Seed of the encoder's masks. One for all runs, so that runs of different seeds share one cache of views; what a
/// training run draws from the cache is decided by its own seed.
const MASKS: u64 = 1;

/// Documents in a file of clean vectors: what an interrupted pass loses at most.
const CHUNK: usize = 4096;

/// Token sequences, the encoder that reads them, and their clean vectors.
pub struct Passes<'a> {
    features: &'a Features,
    tokens: Vec<Vec<u32>>,
    dropout: f64,
    fingerprint: String,
    clean: Matrix,
}

impl<'a> Passes<'a> {
    /// Tokenises `texts` and encodes them cleanly, or takes the vectors kept under `cache` from an earlier run on the same
    /// tokens and encoder. Views are passes with dropout at `rate`.
    pub fn new(
        features: &'a Features,
        texts: &[impl AsRef<str> + Sync],
        rate: f64,
        cache: Option<&Path>,
        watch: &dyn Watch,
    ) -> Result<Self> {
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::config(format!("a dropout rate is in [0, 1), not {rate}")));
        }
        watch.stage("tokenising", None);
        let tokens = features.tokens(texts)?;
        let config = features.config();
        let mut hash = Sha256::new();
        // Everything that decides a value, and nothing that does not: texts cleaned to the same tokens share vectors.
        hash.update(format!("{}|{}|{}", config.encoder_sha256, config.pooling, config.unit_length));
        for sequence in &tokens {
            hash.update((sequence.len() as u64).to_le_bytes());
            let bytes: Vec<u8> = sequence.iter().flat_map(|id| id.to_le_bytes()).collect();
            hash.update(&bytes);
        }
        let fingerprint = hex(&hash.finalize()[..16]);
        let kept = cache.map(|dir| dir.join(format!("clean-{fingerprint}")));
        let clean = clean_vectors(features, &tokens, kept.as_deref(), watch)?;
        Ok(Passes { features, tokens, dropout: rate, fingerprint: format!("{fingerprint}|{rate}|{MASKS}"), clean })
    }

    /// The token sequences, one a document.
    pub fn tokens(&self) -> &[Vec<u32>] {
        &self.tokens
    }

    /// The clean vectors, one a document.
    pub fn clean(&self) -> &Matrix {
        &self.clean
    }

    /// The clean vectors alone.
    pub fn into_clean(self) -> Matrix {
        self.clean
    }

    /// Clean vectors and token sequences.
    pub fn into_parts(self) -> (Matrix, Vec<Vec<u32>>) {
        (self.clean, self.tokens)
    }
}

/// Clean vectors in files of [`CHUNK`] documents, each whole or absent, so that a pass that was stopped goes on.
fn clean_vectors(features: &Features, tokens: &[Vec<u32>], kept: Option<&Path>, watch: &dyn Watch) -> Result<Matrix> {
    if let Some(dir) = kept {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
    }
    let mut all = Matrix::zeros(0, features.width());
    watch.stage("encoding", Some(tokens.len() as u64));
    for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
        let path: Option<PathBuf> = kept.map(|dir| dir.join(format!("{i:06}.npy")));
        // A file that is damaged or of another shape is made again: it can be.
        let known = path.as_deref().filter(|p| p.exists()).and_then(|p| npy::read_f32(p).ok());
        let rows = match known.filter(|m| m.rows() == chunk.len() && m.cols() == features.width()) {
            Some(rows) => {
                watch.advance(chunk.len() as u64);
                rows
            }
            None => {
                let rows = features.encode_tokens(chunk, None, watch)?;
                if let Some(path) = &path {
                    let mut writer = NpyWriter::f32(path, features.width())?;
                    writer.rows_f32(&rows)?;
                    writer.finish()?;
                }
                rows
            }
        };
        all.extend(&rows);
    }
    Ok(all)
}

impl Encode for Passes<'_> {
    fn documents(&self) -> usize {
        self.tokens.len()
    }

    fn width(&self) -> usize {
        self.features.width()
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn encode(&self, documents: &[usize], view: u32, watch: &dyn Watch) -> Result<Matrix> {
        if view == 0 {
            return Ok(self.clean.select(documents));
        }
        let sequences: Vec<&[u32]> = documents.iter().map(|&d| self.tokens[d].as_slice()).collect();
        let numbers: Vec<u64> = documents.iter().map(|&d| d as u64).collect();
        let dropout = Dropout::new(self.dropout, MASKS, view, &numbers);
        self.features.encode_tokens(&sequences, Some(dropout), &OnlyStops(watch))
    }
}

/// Passes on the wish to stop, and keeps the count to itself: the caller counts documents, not passes.
struct OnlyStops<'a>(&'a dyn Watch);

impl Watch for OnlyStops<'_> {
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}
