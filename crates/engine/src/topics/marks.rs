//! The documents of one codeword, and the terms that tell them from others.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::index::Index;
use crate::query::{Delivery, Hit, Replies, Survey, members, walk};
use crate::{Error, Progress, Result};

/// Documents sampled for marks, inside and outside of the codeword.
const SAMPLE: usize = 300;
const MARKS: usize = 20;

/// What a codeword stands for.
pub struct CodewordDocuments {
    /// The most typical first.
    pub documents: Vec<Hit>,
    /// Terms that characterise them, most distinctive first.
    pub marks: Vec<Mark>,
}

/// A term that characterises a codeword.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    pub term: String,
    /// Share of the codeword's documents that have it, in a sample.
    pub inside: f64,
    /// Share of the other documents that have it, in a sample.
    pub outside: f64,
}

impl CodewordDocuments {
    /// At most `most` documents among those that match a filter.
    pub fn of(
        index: &Index,
        (codebook, codeword): (usize, usize),
        filter: Option<&str>,
        most: usize,
        progress: &dyn Progress,
    ) -> Result<CodewordDocuments> {
        let shape = index.model().shape();
        let inside = members(index, codebook, codeword, filter, most.max(SAMPLE))?;
        let walk = walk(index, filter)?;
        let mut others = Vec::new();
        for place in places(walk.len()) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let record = walk.get(place)?;
            if shape.codeword(&record.code, codebook) != codeword {
                others.extend(record.text);
            }
        }
        Ok(CodewordDocuments::new(inside, &others, most))
    }

    /// The same over all documents of some shards.
    pub fn of_shards<F: Fn(Vec<Delivery>) -> Result<Replies> + Sync>(
        survey: &Survey<F>,
        (codebook, codeword): (usize, usize),
        most: usize,
    ) -> Result<CodewordDocuments> {
        let shape = survey.model().shape();
        let inside = survey.members(codebook, codeword, most.max(SAMPLE))?;
        let mut others = Vec::new();
        survey.texts(places, |texts| {
            let outside = texts.into_iter().filter(|(code, _)| shape.codeword(code, codebook) != codeword);
            others.extend(outside.filter_map(|(_, text)| text));
        })?;
        Ok(CodewordDocuments::new(inside, &others, most))
    }

    fn new(mut documents: Vec<Hit>, others: &[String], most: usize) -> CodewordDocuments {
        let inside = documents.iter().filter_map(|hit| hit.text.as_deref());
        let marks = marks(inside, others.iter().map(String::as_str), MARKS);
        documents.truncate(most);
        CodewordDocuments { documents, marks }
    }
}

/// The places of the sample in the order of insertion.
fn places(documents: usize) -> Vec<usize> {
    (0..documents).step_by((documents / SAMPLE).max(1)).collect()
}

/// Terms that distinguish the texts inside from those outside, most distinctive first.
fn marks<'a>(
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
