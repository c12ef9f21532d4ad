//! Embeddings without an encoder: the weighted terms of a text through one learned layer.
//!
//! ```text
//! text -> terms (lower case, two letters or more) -> those of the vocabulary -> weights x (sparse)
//!      -> W' x + b, with ReLU where the method has one: the vector the model's layers take
//! ```
//! The row `x` has one value per term of the vocabulary and is never materialized: the layer adds the rows of `W` of the
//! text's terms.

use std::collections::HashMap;
use std::sync::Arc;

use rayon::prelude::*;
use sha2::{Digest, Sha256};
use strum::{Display, EnumString, VariantNames};

use crate::{Error, Matrix, Result};

/// The encoder name of a model without an encoder.
pub const NAME: &str = "tfidf";

/// Value of a term in the sparse row.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, Display, EnumString, VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_weighting)]
pub enum Weighting {
    /// Count times inverse document frequency, the row scaled to unit length.
    Tfidf,
    /// 1 if the text has the term.
    Presence,
}

fn unknown_weighting(name: &str) -> Error {
    Error::unknown("weighting", name, Weighting::VARIANTS)
}

/// Words and their inverse document frequencies.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    terms: Vec<String>,
    frequencies: Vec<f32>,
    numbers: HashMap<String, u32>,
}

impl PartialEq for Vocabulary {
    fn eq(&self, other: &Self) -> bool {
        self.terms == other.terms && self.frequencies == other.frequencies
    }
}

impl Vocabulary {
    /// Takes distinct terms and the inverse document frequency of each.
    pub fn new(terms: Vec<String>, frequencies: Vec<f32>) -> Result<Self> {
        let numbers: HashMap<String, u32> = terms.iter().cloned().zip(0..).collect();
        if terms.is_empty() || numbers.len() != terms.len() || frequencies.len() != terms.len() {
            return Err(Error::config(format!(
                "a vocabulary has one inverse document frequency for each of its terms, no term twice: {} terms, {} different, {} frequencies",
                terms.len(),
                numbers.len(),
                frequencies.len()
            )));
        }
        if !frequencies.iter().all(|f| f.is_finite() && *f > 0.0) {
            return Err(Error::config("an inverse document frequency is not a positive number"));
        }
        Ok(Vocabulary { terms, frequencies, numbers })
    }

    pub fn len(&self) -> usize {
        self.terms.len()
    }

    /// Whether there are no terms, as before a model's files are read.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The terms, by number.
    pub fn terms(&self) -> &[String] {
        &self.terms
    }

    /// Inverse document frequencies, by term number.
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// Numbers of the text's terms that are in the vocabulary, in the order of the text, with repetitions.
    pub fn term_numbers(&self, text: &str) -> Vec<u32> {
        terms_of(text).filter_map(|term| self.numbers.get(&term).copied()).collect()
    }

    /// The sparse row of a text's terms: distinct terms in ascending order, each with its weight.
    pub fn row(&self, terms: &[u32], weighting: Weighting) -> Vec<(u32, f32)> {
        let mut sorted = terms.to_vec();
        sorted.sort_unstable();
        let mut row: Vec<(u32, f32)> = sorted
            .chunk_by(|a, b| a == b)
            .map(|same| match weighting {
                Weighting::Tfidf => (same[0], same.len() as f32 * self.frequencies[same[0] as usize]),
                Weighting::Presence => (same[0], 1.0),
            })
            .collect();
        if weighting == Weighting::Tfidf {
            let length = row.iter().map(|(_, w)| w * w).sum::<f32>().sqrt();
            row.iter_mut().for_each(|(_, w)| *w /= length);
        }
        row
    }
}

/// Words of a text: runs of letters, digits and underscores, two characters or more, in lower case.
pub fn terms_of(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|term| term.chars().nth(1).is_some())
        .map(str::to_lowercase)
}

/// The learned first layer, applied to sparse rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layer {
    /// `[terms, width]`: a row per term.
    pub weight: Vec<f32>,
    /// `[width]`.
    pub bias: Vec<f32>,
}

/// How terms become a vector, as a model records it. The tables are in `model.safetensors`.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Terms {
    pub weighting: Weighting,
    /// Whether the layer ends in a ReLU.
    pub relu: bool,
    #[serde(skip)]
    vocabulary: Arc<Vocabulary>,
    #[serde(skip)]
    layer: Arc<Layer>,
}

impl Terms {
    /// Joins a vocabulary and a layer over it.
    pub fn new(weighting: Weighting, relu: bool, vocabulary: Arc<Vocabulary>, layer: Layer) -> Result<Self> {
        let mut terms = Terms { weighting, relu, vocabulary: Arc::default(), layer: Arc::default() };
        terms.fill(vocabulary, layer)?;
        Ok(terms)
    }

    /// Sets the tables, which a model directory stores in another file.
    pub(crate) fn fill(&mut self, vocabulary: Arc<Vocabulary>, layer: Layer) -> Result<()> {
        if layer.bias.is_empty() || layer.weight.len() != vocabulary.len() * layer.bias.len() {
            return Err(Error::config(format!(
                "a layer of {} outputs over {} terms cannot have {} weights",
                layer.bias.len(),
                vocabulary.len(),
                layer.weight.len()
            )));
        }
        if !layer.weight.iter().chain(&layer.bias).all(|v| v.is_finite()) {
            return Err(Error::config("the layer over terms holds a value that is not a finite number"));
        }
        (self.vocabulary, self.layer) = (vocabulary, Arc::new(layer));
        Ok(())
    }

    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    pub fn width(&self) -> usize {
        self.layer.bias.len()
    }

    /// SHA-256 over terms, frequencies and layer. It takes the role of the hash of an encoder's weights.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for (term, frequency) in self.vocabulary.terms.iter().zip(&self.vocabulary.frequencies) {
            hash.update(term.as_bytes());
            hash.update([0]);
            hash.update(frequency.to_le_bytes());
        }
        for value in self.layer.weight.iter().chain(&self.layer.bias) {
            hash.update(value.to_le_bytes());
        }
        hex::encode(hash.finalize())
    }

    /// Vectors of texts given by their terms: `[n, width]`. The vector of a text without a known term is the layer's bias.
    pub fn encode(&self, sequences: &[impl AsRef<[u32]> + Sync]) -> Result<Matrix> {
        let width = self.width();
        let known = self.vocabulary.len() as u32;
        if let Some(i) = sequences.iter().position(|s| s.as_ref().iter().any(|&t| t >= known)) {
            let problem = format!("holds a term beyond the vocabulary of {known}");
            return Err(Error::input(format!("sequence {i}"), problem));
        }
        let mut out = Matrix::zeros(sequences.len(), width);
        out.as_mut_slice().par_chunks_exact_mut(width).zip(sequences).for_each(|(out, terms)| {
            out.copy_from_slice(&self.layer.bias);
            for (term, weight) in self.vocabulary.row(terms.as_ref(), self.weighting) {
                let row = &self.layer.weight[term as usize * width..][..width];
                out.iter_mut().zip(row).for_each(|(o, w)| *o += weight * w);
            }
            if self.relu {
                out.iter_mut().for_each(|o| *o = o.max(0.0));
            }
        });
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Arc<Vocabulary> {
        let terms = ["oil", "price", "wheat"].map(str::to_owned).to_vec();
        Arc::new(Vocabulary::new(terms, vec![1.0, 2.0, 3.0]).unwrap())
    }

    #[test]
    fn words_are_runs_of_two_letters_or_more_in_lower_case() {
        let found: Vec<String> = terms_of("Oil-price, a 3 §: WHEAT_2 Öl\u{2014}x!").collect();
        assert_eq!(found, ["oil", "price", "wheat_2", "öl"]);
    }

    #[test]
    fn sparse_rows_equal_a_hand_computation() {
        let vocabulary = vocabulary();
        let terms = vocabulary.term_numbers("Price of oil, oil and nothing else");
        assert_eq!(terms, [1, 0, 0]);
        let length = 8.0f32.sqrt();
        assert_eq!(vocabulary.row(&terms, Weighting::Tfidf), [(0, 2.0 / length), (1, 2.0 / length)]);
        assert_eq!(vocabulary.row(&terms, Weighting::Presence), [(0, 1.0), (1, 1.0)]);
        assert!(vocabulary.row(&[], Weighting::Tfidf).is_empty());
    }

    #[test]
    fn the_layer_adds_weighted_rows_and_applies_relu_on_request() {
        let layer = Layer { weight: vec![1.0, -1.0, 10.0, -10.0, 100.0, 100.0], bias: vec![0.5, 0.5] };
        let terms = Terms::new(Weighting::Presence, false, vocabulary(), layer.clone()).unwrap();
        let texts = [vec![0, 1, 1], vec![2], vec![]];
        assert_eq!(terms.encode(&texts).unwrap().as_slice(), [11.5, -10.5, 100.5, 100.5, 0.5, 0.5]);
        let cut = Terms::new(Weighting::Presence, true, vocabulary(), layer.clone()).unwrap();
        assert_eq!(cut.encode(&texts).unwrap().as_slice(), [11.5, 0.0, 100.5, 100.5, 0.5, 0.5]);
        assert!(terms.encode(&[vec![3]]).is_err());
        let short = Layer { weight: vec![1.0; 4], bias: vec![0.5, 0.5] };
        assert!(Terms::new(Weighting::Presence, true, vocabulary(), short).is_err());
        assert!(Vocabulary::new(vec!["a".into(), "a".into()], vec![1.0; 2]).is_err());
    }
}
