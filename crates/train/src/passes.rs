//! A tokenised corpus behind its encoder: where clean vectors and dropout views come from.

use micpq::encoder::{Dropout, Features};
use micpq::{Error, Matrix, Result, Watch, hex};
use sha2::{Digest, Sha256};

use crate::views::Encode;

/// Seed of the encoder's masks. One for all runs, so that runs of different seeds share one cache of views; what a
/// training run draws from the cache is decided by its own seed.
const MASKS: u64 = 1;

/// Token sequences and the encoder that reads them.
pub struct Passes<'a> {
    features: &'a Features,
    tokens: Vec<Vec<u32>>,
    dropout: f64,
    fingerprint: String,
}

impl<'a> Passes<'a> {
    /// Tokenises `texts`; views are passes with dropout at `rate`.
    pub fn new(features: &'a Features, texts: &[impl AsRef<str> + Sync], rate: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::config(format!("a dropout rate is in [0, 1), not {rate}")));
        }
        let tokens = features.tokens(texts)?;
        let config = features.config();
        let mut hash = Sha256::new();
        // Everything that decides a value, and nothing that does not: texts cleaned to the same tokens share views.
        hash.update(format!("{}|{}|{}|{rate}|{MASKS}", config.encoder_sha256, config.pooling, config.unit_length));
        for sequence in &tokens {
            hash.update((sequence.len() as u64).to_le_bytes());
            sequence.iter().for_each(|id| hash.update(id.to_le_bytes()));
        }
        Ok(Passes { features, tokens, dropout: rate, fingerprint: hex(&hash.finalize()[..16]) })
    }

    /// The token sequences, one a document.
    pub fn tokens(&self) -> &[Vec<u32>] {
        &self.tokens
    }
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
        let sequences: Vec<&[u32]> = documents.iter().map(|&d| self.tokens[d].as_slice()).collect();
        let numbers: Vec<u64> = documents.iter().map(|&d| d as u64).collect();
        let dropout = (view > 0).then(|| Dropout::new(self.dropout, MASKS, view, &numbers));
        self.features.encode_tokens(&sequences, dropout, watch)
    }
}
