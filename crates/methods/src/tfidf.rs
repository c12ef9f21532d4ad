//! The vocabulary of a corpus: which terms count, and their inverse document frequencies.

use std::collections::{HashMap, HashSet};

use engine::encoder::{Vocabulary, terms_of};
use engine::text::Clean;
use engine::{Error, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// English stop words, one per line.
const STOP_WORDS: &str = include_str!("stop_words.txt");
/// Texts per task.
const CHUNK: usize = 4096;

/// Which terms make the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LexiconConfig {
    /// Limit of terms: the most frequent of those that pass the other limits.
    pub vocabulary: usize,
    /// Whether English stop words are left out.
    pub stop_words: bool,
    /// Largest share of documents a term may be in.
    pub max_share: f64,
    /// Smallest number of documents a term must be in.
    pub min_documents: usize,
}

impl Default for LexiconConfig {
    fn default() -> Self {
        LexiconConfig { vocabulary: 10_000, stop_words: true, max_share: 0.9, min_documents: 3 }
    }
}

impl LexiconConfig {
    pub fn validate(&self) -> Result<()> {
        if self.vocabulary == 0 || self.vocabulary > 10_000_000 {
            return Err(Error::option(
                "vocabulary",
                format!("is {}; it must lie between 1 and 10000000", self.vocabulary),
            ));
        }
        if !(self.max_share > 0.0 && self.max_share <= 1.0) {
            return Err(Error::option("max_share", format!("is {}; a share lies above 0 and up to 1", self.max_share)));
        }
        Ok(())
    }

    /// The vocabulary of some texts, in alphabetical order. Inverse document frequencies are those of scikit-learn:
    /// `ln((1 + n) / (1 + df)) + 1`.
    pub fn fit(&self, texts: &[impl AsRef<str> + Sync], clean: Clean) -> Result<Vocabulary> {
        self.validate()?;
        let stop: HashSet<&str> = if self.stop_words { STOP_WORDS.lines().collect() } else { HashSet::new() };
        // Per term: occurrences, documents.
        let parts: Vec<HashMap<String, (u64, u64)>> = texts
            .par_chunks(CHUNK)
            .map(|texts| {
                let mut counts: HashMap<String, (u64, u64)> = HashMap::new();
                for text in texts {
                    let mut seen = HashSet::new();
                    for term in terms_of(&clean.apply(text.as_ref(), None)).filter(|w| !stop.contains(w.as_str())) {
                        let first = seen.insert(term.clone());
                        let count = counts.entry(term).or_default();
                        count.0 += 1;
                        count.1 += u64::from(first);
                    }
                }
                counts
            })
            .collect();
        let mut counts: HashMap<String, (u64, u64)> = HashMap::new();
        for (term, (occurrences, documents)) in parts.into_iter().flatten() {
            let count = counts.entry(term).or_default();
            count.0 += occurrences;
            count.1 += documents;
        }
        let n = texts.len() as f64;
        let (different, max) = (counts.len(), self.max_share * n);
        let fits = |documents: u64| documents >= self.min_documents as u64 && documents as f64 <= max;
        let mut terms: Vec<(String, u64, u64)> =
            counts.into_iter().filter(|(_, c)| fits(c.1)).map(|(term, c)| (term, c.0, c.1)).collect();
        if terms.is_empty() {
            return Err(Error::input(
                "corpus",
                format!(
                    "none of its {different} terms is in at least {} and at most {:.0} documents; lower min_documents or raise max_share",
                    self.min_documents, max
                ),
            ));
        }
        terms.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        terms.truncate(self.vocabulary);
        terms.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let frequencies = terms.iter().map(|(_, _, df)| (((1.0 + n) / (1.0 + *df as f64)).ln() + 1.0) as f32).collect();
        Vocabulary::new(terms.into_iter().map(|(term, _, _)| term).collect(), frequencies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 5] =
        ["The oil price", "oil and wheat, oil!", "Wheat is the wheat", "the price of oil", "nothing oil"];

    #[test]
    fn vocabulary_and_frequencies_equal_values_computed_by_hand() {
        let config = LexiconConfig { min_documents: 2, ..LexiconConfig::default() };
        let found = config.fit(&TEXTS, Clean::None).unwrap();
        assert_eq!(found.terms(), ["oil", "price", "wheat"]);
        // oil in 4 of 5, price and wheat in 2.
        let expected = [(6.0f64 / 5.0).ln() + 1.0, 2.0f64.ln() + 1.0, 2.0f64.ln() + 1.0];
        assert!(found.frequencies().iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6));
    }

    #[test]
    fn limits_leave_terms_out() {
        let terms = |config: LexiconConfig| config.fit(&TEXTS, Clean::None).unwrap().terms().to_vec();
        let base = LexiconConfig { min_documents: 1, ..LexiconConfig::default() };
        assert_eq!(terms(LexiconConfig { max_share: 0.5, ..base }), ["price", "wheat"]);
        assert!(terms(LexiconConfig { stop_words: false, ..base }).contains(&"the".to_owned()));
        // The most frequent: oil 5 times, wheat 3.
        assert_eq!(terms(LexiconConfig { vocabulary: 2, ..base }), ["oil", "wheat"]);
        let none = LexiconConfig { min_documents: 9, ..base }.fit(&TEXTS, Clean::None).unwrap_err().to_string();
        assert!(none.contains("lower min_documents"), "{none}");
        assert!(LexiconConfig { max_share: 0.0, ..base }.validate().is_err());
    }
}
