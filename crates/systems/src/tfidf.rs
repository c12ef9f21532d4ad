//! Words as features: which of them count, and how rare each is.

use std::collections::{HashMap, HashSet};

use micpq::encoder::{Vocabulary, words};
use micpq::text::Clean;
use micpq::{Error, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Words that say nothing of what a text is about.
const STOP_WORDS: &str = include_str!("stop_words.txt");
/// Texts counted by one task.
const CHUNK: usize = 4096;

/// Which words make the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LexiconConfig {
    /// Most words: the most frequent of those that are left.
    pub vocabulary: usize,
    /// Whether English stop words are left out.
    pub stop_words: bool,
    /// Largest share of documents a word may be in.
    pub max_share: f64,
    /// Least number of documents a word must be in.
    pub min_documents: usize,
}

impl Default for LexiconConfig {
    fn default() -> Self {
        LexiconConfig { vocabulary: 10_000, stop_words: true, max_share: 0.9, min_documents: 3 }
    }
}

impl LexiconConfig {
    /// Refuses what cannot be honoured.
    pub fn validate(&self) -> Result<()> {
        if self.vocabulary == 0 || self.vocabulary > 10_000_000 {
            return Err(Error::config(format!(
                "vocabulary is {}; it must lie between 1 and 10000000",
                self.vocabulary
            )));
        }
        if !(self.max_share > 0.0 && self.max_share <= 1.0) {
            return Err(Error::config(format!("max_share is {}; a share lies above 0 and up to 1", self.max_share)));
        }
        Ok(())
    }

    /// The vocabulary of some texts, in alphabetical order. Inverse document frequencies are
    /// `ln((1 + n) / (1 + df)) + 1`: those of scikit-learn.
    pub fn fit(&self, texts: &[impl AsRef<str> + Sync], clean: Clean) -> Result<Vocabulary> {
        self.validate()?;
        let stop: HashSet<&str> = if self.stop_words { STOP_WORDS.lines().collect() } else { HashSet::new() };
        // Per word: occurrences, documents.
        let parts: Vec<HashMap<String, (u64, u64)>> = texts
            .par_chunks(CHUNK)
            .map(|texts| {
                let mut counts: HashMap<String, (u64, u64)> = HashMap::new();
                for text in texts {
                    let mut seen = HashSet::new();
                    for word in words(&clean.apply(text.as_ref(), None)).filter(|w| !stop.contains(w.as_str())) {
                        let first = seen.insert(word.clone());
                        let count = counts.entry(word).or_default();
                        count.0 += 1;
                        count.1 += u64::from(first);
                    }
                }
                counts
            })
            .collect();
        let mut counts: HashMap<String, (u64, u64)> = HashMap::new();
        for (word, (occurrences, documents)) in parts.into_iter().flatten() {
            let count = counts.entry(word).or_default();
            count.0 += occurrences;
            count.1 += documents;
        }
        let n = texts.len() as f64;
        let (different, most) = (counts.len(), self.max_share * n);
        let fits = |documents: u64| documents >= self.min_documents as u64 && documents as f64 <= most;
        let mut kept: Vec<(String, u64, u64)> =
            counts.into_iter().filter(|(_, c)| fits(c.1)).map(|(word, c)| (word, c.0, c.1)).collect();
        if kept.is_empty() {
            return Err(Error::input(
                "corpus",
                format!(
                    "none of its {different} different words is in at least {} documents and at most {:.0}; lower min_documents or raise max_share",
                    self.min_documents, most
                ),
            ));
        }
        kept.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        kept.truncate(self.vocabulary);
        kept.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let frequencies = kept.iter().map(|(_, _, df)| (((1.0 + n) / (1.0 + *df as f64)).ln() + 1.0) as f32).collect();
        Vocabulary::new(kept.into_iter().map(|(word, _, _)| word).collect(), frequencies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 5] =
        ["The oil price", "oil and wheat, oil!", "Wheat is the wheat", "the price of oil", "nothing oil"];

    #[test]
    fn words_and_frequencies_by_hand() {
        let config = LexiconConfig { min_documents: 2, ..LexiconConfig::default() };
        let found = config.fit(&TEXTS, Clean::None).unwrap();
        assert_eq!(found.words(), ["oil", "price", "wheat"]);
        // oil in 4 of 5, price and wheat in 2.
        let expected = [(6.0f64 / 5.0).ln() + 1.0, 2.0f64.ln() + 1.0, 2.0f64.ln() + 1.0];
        assert!(found.frequencies().iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6));
    }

    #[test]
    fn limits_leave_words_out() {
        let words = |config: LexiconConfig| config.fit(&TEXTS, Clean::None).unwrap().words().to_vec();
        let base = LexiconConfig { min_documents: 1, ..LexiconConfig::default() };
        assert_eq!(words(LexiconConfig { max_share: 0.5, ..base }), ["price", "wheat"]);
        assert!(words(LexiconConfig { stop_words: false, ..base }).contains(&"the".to_owned()));
        // The most frequent: oil 5 times, wheat 3.
        assert_eq!(words(LexiconConfig { vocabulary: 2, ..base }), ["oil", "wheat"]);
        let none = LexiconConfig { min_documents: 9, ..base }.fit(&TEXTS, Clean::None).unwrap_err().to_string();
        assert!(none.contains("lower min_documents"), "{none}");
        assert!(LexiconConfig { max_share: 0.0, ..base }.validate().is_err());
    }
}
