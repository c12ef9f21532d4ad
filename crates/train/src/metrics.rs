//! Quality of rankings (precision, mean average precision, recall 10@100) and usage of codewords.

use std::collections::HashMap;

use engine::model::CodeShape;
use engine::{Error, Result};
use serde::{Deserialize, Serialize};

/// Results that count, per query: the deepest precision, and the cut-off of average precision.
pub const DEPTH: usize = 100;

/// Labels of documents or queries; each may have none, one or several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Labels {
    // Sorted within each document.
    ids: Vec<u32>,
    ends: Vec<usize>,
}

impl Labels {
    /// One label each.
    pub fn single(labels: Vec<u32>) -> Self {
        Labels { ends: (1..=labels.len()).collect(), ids: labels }
    }

    /// Any number of labels each.
    pub fn several(labels: impl IntoIterator<Item = Vec<u32>>) -> Self {
        let mut all = Labels::default();
        for mut set in labels {
            set.sort_unstable();
            set.dedup();
            all.ids.extend(set);
            all.ends.push(all.ids.len());
        }
        all
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The labels of document `i`, sorted.
    pub fn get(&self, i: usize) -> &[u32] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.ids[start..self.ends[i]]
    }

    /// Labels of the documents `order`, in that order.
    pub fn select(&self, order: &[u32]) -> Self {
        Labels::several(order.iter().map(|&i| self.get(i as usize).to_vec()))
    }

    pub(crate) fn checksum(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        self.ids.iter().for_each(|id| hash.update(&id.to_le_bytes()));
        self.ends.iter().for_each(|end| hash.update(&(*end as u64).to_le_bytes()));
        hash.finalize()
    }
}

/// Whether two sorted label sets share a label.
pub fn relevant(a: &[u32], b: &[u32]) -> bool {
    a.iter().any(|label| b.binary_search(label).is_ok())
}

/// Share of relevant documents among the first 1, 10 and 100, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Precision {
    #[serde(rename = "1")]
    pub at_1: f64,
    #[serde(rename = "10")]
    pub at_10: f64,
    #[serde(rename = "100")]
    pub at_100: f64,
}

/// Quality of rankings against labels, in percent, mean over queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// In a database smaller than the cut-off, the share among all its documents.
    pub precision: Precision,
    /// Mean average precision of the first 100. The average precision of a query is the sum of the precisions at the ranks of
    /// its relevant hits, divided by the number of relevant documents, at most 100.
    pub map: f64,
}

impl Scores {
    /// Scores `results`: document numbers, best first, one list per query. A document is relevant when it shares a label with
    /// the query.
    pub fn of(results: &[Vec<u32>], queries: &Labels, documents: &Labels) -> Result<Scores> {
        if results.len() != queries.len() {
            return Err(Error::config(format!(
                "there are {} rankings for {} labelled queries; give one per query",
                results.len(),
                queries.len()
            )));
        }
        if results.is_empty() || documents.is_empty() {
            return Err(Error::input(
                "evaluation",
                "there are no queries or no documents to score; give at least one of each",
            ));
        }
        let mut postings: HashMap<u32, Vec<u32>> = HashMap::new();
        for i in 0..documents.len() {
            documents.get(i).iter().for_each(|&label| postings.entry(label).or_default().push(i as u32));
        }
        let mut counts: HashMap<&[u32], usize> = HashMap::new();
        let (mut first, mut ten, mut hundred, mut average) = (0.0, 0.0, 0.0, 0.0);
        for (i, result) in results.iter().enumerate() {
            let query_labels = queries.get(i);
            let possible = *counts.entry(query_labels).or_insert_with(|| {
                let mut all: Vec<u32> =
                    query_labels.iter().filter_map(|label| postings.get(label)).flatten().copied().collect();
                all.sort_unstable();
                all.dedup();
                all.len()
            });
            let (mut found, mut sum) = (0usize, 0.0);
            for (rank, &document) in result.iter().take(DEPTH).enumerate() {
                if relevant(query_labels, documents.get(document as usize)) {
                    found += 1;
                    sum += found as f64 / (rank + 1) as f64;
                }
                match rank + 1 {
                    1 => first += found as f64,
                    10 => ten += found as f64 / 10.0,
                    _ => {}
                }
            }
            let listed = result.len().min(DEPTH);
            if listed < 10 && listed > 0 {
                ten += found as f64 / listed as f64;
            }
            hundred += if listed > 0 { found as f64 / listed as f64 } else { 0.0 };
            average += if possible > 0 { sum / possible.min(DEPTH) as f64 } else { 0.0 };
        }
        let percent = 100.0 / results.len() as f64;
        let precision = Precision { at_1: first * percent, at_10: ten * percent, at_100: hundred * percent };
        Ok(Scores { precision, map: average * percent })
    }
}

/// Share, in percent, of the first 10 of one ranking that are among the first 100 of another; mean over queries.
pub fn recall_10_at_100(exact: &[Vec<u32>], approximate: &[Vec<u32>]) -> f64 {
    assert_eq!(exact.len(), approximate.len());
    let shares = exact.iter().zip(approximate).map(|(exact, approximate)| {
        let found = &approximate[..approximate.len().min(DEPTH)];
        let wanted = &exact[..exact.len().min(10)];
        wanted.iter().filter(|row| found.contains(row)).count() as f64 / wanted.len().max(1) as f64
    });
    100.0 * shares.sum::<f64>() / exact.len().max(1) as f64
}

/// How codes use the codewords of their codebooks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Codewords per codebook.
    pub codebook_size: usize,
    /// Codewords in use, per codebook.
    pub used: Vec<usize>,
    /// Entropy of the codeword numbers in bits, per codebook.
    pub entropy: Vec<f64>,
    /// Number of distinct codes.
    pub distinct: usize,
}

impl Usage {
    /// Usage by packed codes.
    pub fn of(shape: CodeShape, codes: &[u8]) -> Usage {
        let bytes = shape.code_bytes();
        let mut counts = vec![0usize; shape.num_codebooks() * shape.codebook_size()];
        for code in codes.chunks_exact(bytes) {
            for m in 0..shape.num_codebooks() {
                counts[m * shape.codebook_size() + shape.codeword(code, m)] += 1;
            }
        }
        let total = (codes.len() / bytes) as f64;
        let codebooks = || counts.chunks_exact(shape.codebook_size());
        let entropy = |codebook: &[usize]| {
            let shares = codebook.iter().filter(|&&c| c > 0).map(|&c| c as f64 / total);
            // Not a negated sum: a codebook with one codeword in use has entropy 0, not -0.
            shares.map(|p| p * (1.0 / p).log2()).sum()
        };
        let mut all: Vec<&[u8]> = codes.chunks_exact(bytes).collect();
        all.sort_unstable();
        all.dedup();
        Usage {
            codebook_size: shape.codebook_size(),
            used: codebooks().map(|codebook| codebook.iter().filter(|&&c| c > 0).count()).collect(),
            entropy: codebooks().map(entropy).collect(),
            distinct: all.len(),
        }
    }

    /// Codewords in use, mean over codebooks.
    pub fn mean_used(&self) -> f64 {
        self.used.iter().sum::<usize>() as f64 / self.used.len().max(1) as f64
    }

    /// Whether most codebooks assign the same codeword to every document.
    pub fn collapsed(&self) -> bool {
        2 * self.used.iter().filter(|&&used| used < 2).count() > self.used.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_equal_hand_calculation() {
        // Query 0 has label 1; documents 0 and 2 carry it. Query 1 has labels 2 and 3; documents 1, 2 and 3 share one.
        let queries = Labels::several([vec![1], vec![3, 2]]);
        let documents = Labels::several([vec![1], vec![2], vec![1, 3], vec![3], vec![]]);
        let results = vec![vec![0, 1, 2, 3, 4], vec![4, 3, 0, 2, 1]];
        let scores = Scores::of(&results, &queries, &documents).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(scores.precision.at_1, 50.0);
        close(scores.precision.at_10, 100.0 * (2.0 / 5.0 + 3.0 / 5.0) / 2.0);
        close(scores.precision.at_100, scores.precision.at_10);
        let first = (1.0 + 2.0 / 3.0) / 2.0;
        let second = (1.0 / 2.0 + 2.0 / 4.0 + 3.0 / 5.0) / 3.0;
        close(scores.map, 100.0 * (first + second) / 2.0);
        let text = serde_json::to_string(&scores).unwrap();
        assert!(text.starts_with("{\"precision\":{\"1\":50.0,\"10\":"), "{text}");
    }

    #[test]
    fn precision_at_10_counts_only_the_first_ten() {
        let queries = Labels::single(vec![7]);
        let documents = Labels::single((0..200).map(|i| if i < 5 { 7 } else { 0 }).collect());
        let results = vec![(0..150).collect()];
        let scores = Scores::of(&results, &queries, &documents).unwrap();
        assert_eq!((scores.precision.at_1, scores.precision.at_10, scores.precision.at_100), (100.0, 50.0, 5.0));
        assert!((scores.map - 100.0).abs() < 1e-9);
        assert!(Scores::of(&[], &Labels::default(), &documents).is_err());
        assert!(Scores::of(&results, &Labels::single(vec![1, 2]), &documents).is_err());
    }

    #[test]
    fn recall_10_at_100_counts_the_first_ten_by_float_among_the_first_hundred_by_code() {
        let exact = vec![(0..10).collect::<Vec<u32>>(), vec![5, 6]];
        let approximate = vec![(5..200).collect::<Vec<u32>>(), vec![6, 9]];
        assert!((recall_10_at_100(&exact, &approximate) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn usage_equals_hand_calculation() {
        let shape = CodeShape::new(2, 16, 1).unwrap();
        // Codebook 0 (low nibble): 1, 1, 2, 2. Codebook 1: always 3.
        let usage = Usage::of(shape, &[0x31, 0x31, 0x32, 0x32]);
        assert_eq!(usage, Usage { codebook_size: 16, used: vec![2, 1], entropy: vec![1.0, 0.0], distinct: 2 });
        assert!(!usage.collapsed());
        assert!(Usage::of(shape, &[0x31, 0x31]).collapsed());
        assert_eq!(usage.mean_used(), 1.5);
    }

    #[test]
    fn select_gives_the_labels_of_the_selected_documents() {
        let labels = Labels::several([vec![1], vec![], vec![9, 2]]);
        let selected = labels.select(&[2, 0, 1]);
        assert_eq!((selected.get(0), selected.get(1), selected.get(2)), (&[2, 9][..], &[1][..], &[][..]));
    }
}
