//! Texts and labels of a corpus in memory: all of it, or an even sample of one too large to train on.

use std::collections::{BinaryHeap, HashMap};

use kernels::dropout::mix;
use micpq::corpus::{Corpus, Document};
use micpq::{Error, Result, Watch};

use crate::metrics::Labels;

/// Numbers for label names, shared by the corpora of one evaluation.
#[derive(Default)]
pub struct LabelNames(HashMap<String, u32>);

impl LabelNames {
    fn number(&mut self, name: &str) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no label was seen.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What training and evaluation need of a corpus.
#[derive(Clone, Default)]
pub struct Dataset {
    /// One a document.
    pub texts: Vec<String>,
    /// One set a document.
    pub labels: Labels,
    /// Documents the corpus had; more than `texts` when it was sampled.
    pub seen: usize,
}

impl Dataset {
    /// Reads every document.
    pub fn read(corpus: &mut Corpus, names: &mut LabelNames, watch: &dyn Watch) -> Result<Self> {
        Self::sample(corpus, usize::MAX, 0, names, watch)
    }

    /// Reads a corpus and keeps at most `most` documents, in their order: those whose number, mixed with the seed, is
    /// smallest. Memory is bounded by what is kept.
    pub fn sample(
        corpus: &mut Corpus,
        most: usize,
        seed: u64,
        names: &mut LabelNames,
        watch: &dyn Watch,
    ) -> Result<Self> {
        Self::sample_of(corpus.by_ref(), most, seed, names, watch)
    }

    /// The same of documents from anywhere.
    pub fn sample_of(
        corpus: impl Iterator<Item = Result<Document>>,
        most: usize,
        seed: u64,
        names: &mut LabelNames,
        watch: &dyn Watch,
    ) -> Result<Self> {
        if most == 0 {
            return Err(Error::config("a sample of 0 documents cannot be trained on"));
        }
        watch.stage("reading", None);
        let mut kept: BinaryHeap<(u64, usize)> = BinaryHeap::new();
        let mut documents: HashMap<usize, (String, Vec<u32>)> = HashMap::new();
        let mut seen = 0;
        for document in corpus {
            let document = document?;
            if watch.interrupted() {
                return Err(Error::Interrupted);
            }
            let key = (mix(seed, seen as u64), seen);
            let full = kept.len() == most;
            if !full || kept.peek().is_some_and(|worst| key < *worst) {
                if full && let Some((_, out)) = kept.pop() {
                    documents.remove(&out);
                }
                kept.push(key);
                let labels = document.labels.iter().map(|name| names.number(name)).collect();
                documents.insert(seen, (document.text, labels));
            }
            seen += 1;
            watch.advance(1);
        }
        let mut order: Vec<usize> = documents.keys().copied().collect();
        order.sort_unstable();
        let (texts, labels): (Vec<String>, Vec<Vec<u32>>) =
            order.iter().map(|i| documents.remove(i).expect("each number once")).unzip();
        Ok(Dataset { texts, labels: Labels::several(labels), seen })
    }

    /// Some of the documents, in the order they are named.
    pub fn select(&self, chosen: &[u32]) -> Self {
        let texts = chosen.iter().map(|&i| self.texts[i as usize].clone()).collect();
        Dataset { texts, labels: self.labels.select(chosen), seen: self.seen }
    }

    /// Whether every document has a label.
    pub fn labelled(&self) -> bool {
        !self.texts.is_empty() && (0..self.labels.len()).all(|i| !self.labels.get(i).is_empty())
    }

    /// Refuses queries of a run on this corpus that cannot be scored: a label is missing on either side.
    pub fn check_labels(&self, validation: Option<&Dataset>, test: Option<&Dataset>) -> Result<()> {
        for (name, set) in [("validation", validation), ("test", test)] {
            if set.is_some_and(|set| !set.labelled() || !self.labelled()) {
                return Err(Error::input(
                    name,
                    format!(
                        "both the corpus and the {name} set need a label on every document; leave --{name} out to do without labels"
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
    use micpq::Silent;
    use micpq::corpus::{CorpusConfig, Format};

    fn corpus(rows: usize) -> Corpus {
        let text: String = (0..rows).map(|i| format!("{{\"text\": \"t{i}\", \"label\": {}}}\n", i % 3)).collect();
        let config = CorpusConfig { format: Some(Format::Jsonl), ..CorpusConfig::default() };
        Corpus::from_reader("rows", std::io::Cursor::new(text.into_bytes()), &config).unwrap()
    }

    #[test]
    fn a_sample_is_even_seeded_and_in_order() {
        let sample = |seed| {
            let mut names = LabelNames::default();
            Dataset::sample(&mut corpus(1000), 100, seed, &mut names, &Silent).unwrap()
        };
        let one = sample(1);
        let numbers: Vec<usize> = one.texts.iter().map(|t| t[1..].parse().unwrap()).collect();
        assert_eq!((one.texts.len(), one.seen), (100, 1000));
        assert!(numbers.is_sorted());
        // Half of an even sample of 100 lies in the first half of the corpus: 50 +- 5.
        assert!((30..70).contains(&numbers.iter().filter(|n| **n < 500).count()));
        assert_eq!(one.texts, sample(1).texts);
        assert_ne!(one.texts, sample(2).texts);
        assert!(one.labelled());
    }

    #[test]
    fn all_of_it_without_a_limit() {
        let mut names = LabelNames::default();
        let all = Dataset::read(&mut corpus(10), &mut names, &Silent).unwrap();
        assert_eq!(all.texts, (0..10).map(|i| format!("t{i}")).collect::<Vec<_>>());
        assert_eq!(names.len(), 3);
        assert_eq!(all.labels.get(4), all.labels.get(1));
        assert_ne!(all.labels.get(4), all.labels.get(2));
    }
}
