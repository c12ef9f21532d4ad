//! Texts and labels of a corpus in memory: the whole corpus, or a uniform sample of one that is too large to train on.

use std::collections::{BinaryHeap, HashMap};

use engine::corpus::{Corpus, Document};
use engine::{Error, Progress, Result};
use kernels::dropout::mix;

use crate::metrics::Labels;

/// Numbers of label names, shared by the corpora of one run.
#[derive(Default)]
pub struct LabelNames(HashMap<String, u32>);

impl LabelNames {
    fn number(&mut self, name: &str) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Texts and labels for training or evaluation.
#[derive(Clone, Default)]
pub struct Dataset {
    pub texts: Vec<String>,
    pub labels: Labels,
    /// Position of each text in the corpus, rising.
    pub positions: Vec<usize>,
    /// Documents in the corpus; more than `texts` when it was sampled.
    pub seen: usize,
}

impl Dataset {
    pub fn read(corpus: &mut Corpus, names: &mut LabelNames, progress: &dyn Progress) -> Result<Self> {
        Self::sample(corpus, usize::MAX, 0, names, progress)
    }

    /// Reads a corpus and samples at most `max_documents`, in the order of the corpus. A document is in the sample when the hash
    /// of its number and the seed is among the smallest. Memory is bounded by the sample.
    pub fn sample(
        corpus: &mut Corpus,
        max_documents: usize,
        seed: u64,
        names: &mut LabelNames,
        progress: &dyn Progress,
    ) -> Result<Self> {
        Self::sample_of(corpus.by_ref(), max_documents, seed, names, progress)
    }

    /// [`Dataset::sample`] of any iterator of documents.
    pub fn sample_of(
        corpus: impl Iterator<Item = Result<Document>>,
        max_documents: usize,
        seed: u64,
        names: &mut LabelNames,
        progress: &dyn Progress,
    ) -> Result<Self> {
        if max_documents == 0 {
            return Err(Error::config("a sample of 0 documents cannot be trained on; sample at least 2"));
        }
        progress.stage("reading", None);
        let mut sampled: BinaryHeap<(u64, usize)> = BinaryHeap::new();
        let mut documents: HashMap<usize, (String, Vec<u32>)> = HashMap::new();
        let mut seen = 0;
        for document in corpus {
            let document = document?;
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let key = (mix(seed, seen as u64), seen);
            let full = sampled.len() == max_documents;
            if !full || sampled.peek().is_some_and(|worst| key < *worst) {
                if full && let Some((_, worst)) = sampled.pop() {
                    documents.remove(&worst);
                }
                sampled.push(key);
                let labels = document.labels.iter().map(|name| names.number(name)).collect();
                documents.insert(seen, (document.text, labels));
            }
            seen += 1;
            progress.advance(1);
        }
        let mut order: Vec<usize> = documents.keys().copied().collect();
        order.sort_unstable();
        let (texts, labels): (Vec<String>, Vec<Vec<u32>>) =
            order.iter().map(|i| documents.remove(i).expect("each number once")).unzip();
        Ok(Dataset { texts, labels: Labels::several(labels), positions: order, seen })
    }

    /// The documents `rows`, in that order.
    pub fn select(&self, rows: &[u32]) -> Self {
        let texts = rows.iter().map(|&i| self.texts[i as usize].clone()).collect();
        let positions = rows.iter().map(|&i| self.positions[i as usize]).collect();
        Dataset { texts, labels: self.labels.select(rows), positions, seen: self.seen }
    }

    /// Whether every document has a label.
    pub fn labelled(&self) -> bool {
        !self.texts.is_empty() && (0..self.labels.len()).all(|i| !self.labels.get(i).is_empty())
    }

    /// Returns an error when a validation or test set is given and a label is missing in it or in this corpus.
    pub fn check_labels(&self, validation: Option<&Dataset>, test: Option<&Dataset>) -> Result<()> {
        for (name, set) in [("validation", validation), ("test", test)] {
            if set.is_some_and(|set| !set.labelled() || !self.labelled()) {
                return Err(Error::input(
                    name,
                    format!(
                        "the corpus and the {name} set need a label on every document; label them, or leave {name} out"
                    ),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::NoProgress;
    use engine::corpus::{CorpusConfig, Format};

    fn corpus(rows: usize) -> Corpus {
        let text: String = (0..rows).map(|i| format!("{{\"text\": \"t{i}\", \"label\": {}}}\n", i % 3)).collect();
        let config = CorpusConfig { format: Some(Format::Jsonl), ..CorpusConfig::default() };
        Corpus::from_reader("rows", std::io::Cursor::new(text.into_bytes()), &config).unwrap()
    }

    #[test]
    fn sample_is_uniform_depends_on_the_seed_and_keeps_the_order() {
        let sample = |seed| {
            let mut names = LabelNames::default();
            Dataset::sample(&mut corpus(1000), 100, seed, &mut names, &NoProgress).unwrap()
        };
        let one = sample(1);
        let numbers: Vec<usize> = one.texts.iter().map(|t| t[1..].parse().unwrap()).collect();
        assert_eq!((one.texts.len(), one.seen), (100, 1000));
        assert!(numbers.is_sorted());
        // Half of a uniform sample of 100 lies in the first half of the corpus: 50 +- 5.
        assert!((30..70).contains(&numbers.iter().filter(|n| **n < 500).count()));
        assert_eq!(one.texts, sample(1).texts);
        assert_ne!(one.texts, sample(2).texts);
        assert!(one.labelled());
    }

    #[test]
    fn read_gives_every_document_in_order() {
        let mut names = LabelNames::default();
        let all = Dataset::read(&mut corpus(10), &mut names, &NoProgress).unwrap();
        assert_eq!(all.texts, (0..10).map(|i| format!("t{i}")).collect::<Vec<_>>());
        assert_eq!(names.len(), 3);
        assert_eq!(all.labels.get(4), all.labels.get(1));
        assert_ne!(all.labels.get(4), all.labels.get(2));
    }
}
