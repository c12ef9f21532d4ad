//! What two documents are compared by.

use kernels::squares::squared;
use sha2::{Digest, Sha256};

use super::Measure;
use super::shingles::Shingles;

/// The parts of a document that a measure compares.
#[derive(Clone, Debug, Default)]
pub(super) struct Likeness {
    /// Half of the text's SHA-256; `None` if there is no text.
    pub text: Option<[u8; 16]>,
    pub shingles: Shingles,
    /// Of unit length.
    pub vector: Vec<f32>,
}

impl Likeness {
    /// `vector` is of unit length; it is not read where texts decide.
    pub fn new(measure: Measure, text: &str, vector: Vec<f32>) -> Likeness {
        let shingles = if measure == Measure::Words { Shingles::of(text) } else { Shingles::default() };
        Likeness { text: text_hash(text), shingles, vector }
    }

    pub fn similarity(&self, other: &Likeness, measure: Measure) -> f32 {
        match measure {
            _ if self.text.is_some() && self.text == other.text => 1.0,
            Measure::Text => 0.0,
            Measure::Words => self.shingles.jaccard(&other.shingles),
            // The cosine of unit vectors. It is exactly 1 for equal ones.
            Measure::Vectors => 1.0 - squared(&self.vector, &other.vector) / 2.0,
        }
    }
}

/// Half of a SHA-256: two texts of 10^9 are equal in it by chance once in 10^20 corpora. A text without words is like no other.
pub(super) fn text_hash(text: &str) -> Option<[u8; 16]> {
    (!text.trim().is_empty()).then(|| Sha256::digest(text)[..16].try_into().expect("16 bytes"))
}
