//! What a codeword stands for: its typical documents and the terms that characterise them.

use std::collections::{HashMap, HashSet};

use engine::Result;
use engine::index::{Index, Walk};
use engine::model::DistanceTable;
use engine::query::Rerank;
use engine::query::{Hit, SearchConfig};
use serde::Serialize;
use utoipa::ToSchema;

/// The documents that match a filter; all without one.
pub fn walk(index: &Index, filter: Option<&str>) -> Result<Walk> {
    filter.map_or_else(|| index.walk(), |filter| index.walk_within(filter))
}

/// Documents that match a filter and whose code has `codeword` in `codebook`, the most typical first: those nearest to the mean of
/// them all, by code.
pub fn members(
    index: &Index,
    codebook: usize,
    codeword: usize,
    filter: Option<&str>,
    max_documents: usize,
) -> Result<Vec<Hit>> {
    let (shape, codebooks) = (index.model().shape(), index.model().codebooks());
    let size = shape.codebook_size();
    let mut counts = vec![0u64; shape.num_codebooks() * size];
    for code in walk(index, filter)?.codes()?.chunks_exact(shape.code_bytes()) {
        if shape.codeword(code, codebook) == codeword {
            (0..shape.num_codebooks()).for_each(|m| counts[m * size + shape.codeword(code, m)] += 1);
        }
    }
    let mut values: Vec<f32> = (0..shape.num_codebooks())
        .flat_map(|m| {
            let codewords: Vec<&[f32]> = codebooks.codebook(m).collect();
            let centre = mean(&codewords, &counts[m * size..][..size]);
            codewords.into_iter().map(move |codeword| squared(codeword, &centre)).collect::<Vec<_>>()
        })
        .collect();
    // Documents with other codewords are farther than any that has this one.
    let farthest: f32 = values.chunks_exact(size).map(|row| row.iter().copied().fold(0.0, f32::max)).sum();
    let row = &mut values[codebook * size..][..size];
    row.iter_mut().enumerate().for_each(|(k, value)| *value = if k == codeword { 0.0 } else { 4.0 * farthest + 1.0 });
    let radius = Some(2.0 * farthest);
    let filter = filter.map(str::to_owned);
    let config = SearchConfig { k: max_documents, filter, radius, rerank: Rerank::Off, ..SearchConfig::default() };
    Ok(index.search(&[DistanceTable::new(shape, values)?], &config)?.pop().unwrap_or_default())
}

/// The mean of codewords, each as often as it is counted.
fn mean(codewords: &[&[f32]], counts: &[u64]) -> Vec<f64> {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    let mut mean = vec![0.0; codewords.first().map_or(0, |codeword| codeword.len())];
    for (codeword, &count) in codewords.iter().zip(counts) {
        mean.iter_mut().zip(*codeword).for_each(|(sum, &v)| *sum += count as f64 / total * f64::from(v));
    }
    mean
}

fn squared(codeword: &[f32], centre: &[f64]) -> f32 {
    codeword.iter().zip(centre).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>() as f32
}

/// A term that characterises a codeword.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Mark {
    pub term: String,
    /// Share of the codeword's documents that have it, in a sample.
    pub inside: f64,
    /// Share of the other documents that have it, in a sample.
    pub outside: f64,
}

/// Terms that distinguish the texts inside from those outside, most distinctive first.
pub fn marks<'a>(
    inside: impl Iterator<Item = &'a str>,
    outside: impl Iterator<Item = &'a str>,
    max_marks: usize,
) -> Vec<Mark> {
    /// The number of texts that have each term, and the number of texts.
    fn count_terms<'a>(texts: impl Iterator<Item = &'a str>) -> (HashMap<String, u32>, u32) {
        let (mut counts, mut texts_seen) = (HashMap::new(), 0);
        for text in texts {
            texts_seen += 1;
            let terms = text.split(|c: char| !c.is_alphanumeric()).filter(|term| term.chars().count() > 2);
            let terms: HashSet<String> =
                terms.filter(|term| term.chars().any(char::is_alphabetic)).map(str::to_lowercase).collect();
            terms.into_iter().for_each(|term| *counts.entry(term).or_insert(0) += 1);
        }
        (counts, texts_seen)
    }
    let (inside, members) = count_terms(inside);
    let (outside, others) = count_terms(outside);
    let share = |count: u32, of: u32| (f64::from(count) + 0.5) / (f64::from(of) + 1.0);
    let mut scored: Vec<(f64, Mark)> = inside
        .into_iter()
        // A term of one document says nothing about the codeword.
        .filter(|(_, count)| *count > 1 || members <= 2)
        .map(|(term, count)| {
            let (here, there) = (share(count, members), share(outside.get(&term).copied().unwrap_or(0), others));
            // The log-likelihood ratio of the term, weighted by its frequency inside.
            (here * (here / there).ln(), Mark { term, inside: here.min(1.0), outside: there.min(1.0) })
        })
        .filter(|(score, _)| *score > 0.0)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.term.cmp(&b.1.term)));
    scored.truncate(max_marks);
    scored.into_iter().map(|(_, mark)| mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_distinctive_terms_without_common_ones() {
        let inside = ["The oil price rises", "oil of the north", "crude oil and the price"];
        let outside = ["the bank and the price", "the dollar", "the wheat of the north", "a loan and the rate"];
        let marks = marks(inside.into_iter(), outside.into_iter(), 5);
        assert_eq!(marks[0].term, "oil");
        assert!(marks[0].inside > 0.8 && marks[0].outside < 0.2);
        assert!(marks.iter().all(|m| m.term != "the"), "{marks:?}");
    }
}
