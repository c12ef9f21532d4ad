//! Keyword search: BM25 over the text, and the keywords to mark in snippets.
//!
//! A score is a function of the living documents alone: deleted ones, segments and shards do not change it. tantivy's
//! own collector cannot promise that. Its statistics count deleted documents, it adds the terms of a document in an
//! order that depends on the segment, it prunes by bounds that were computed with the average length at the time a
//! segment was written, and it cuts equal scores by address.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use serde::{Deserialize, Serialize};
use tantivy::fieldnorm::FieldNormReader;
use tantivy::postings::Postings;
use tantivy::query::Bm25Weight;
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::snippet::SnippetGenerator;
use tantivy::tokenizer::{TextAnalyzer, TokenStream};
use tantivy::{DocSet, Searcher, SegmentReader, TERMINATED, Term};

use super::filter::Bitmap;
use crate::language::Language;

/// The keywords of a query as stems, like the terms of the text field.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Keywords {
    stems: Vec<String>,
}

/// Statistics of the living documents for BM25. Those of several shards add up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeywordStatistics {
    pub documents: u64,
    /// Sum of the documents' lengths as the store rounds them.
    pub tokens: u64,
    /// Documents that have a stem.
    pub frequencies: BTreeMap<String, u64>,
}

impl KeywordStatistics {
    pub fn add(&mut self, other: &KeywordStatistics) {
        self.documents += other.documents;
        self.tokens += other.tokens;
        for (stem, frequency) in &other.frequencies {
            *self.frequencies.entry(stem.clone()).or_default() += frequency;
        }
    }

    fn frequency(&self, stem: &str) -> u64 {
        self.frequencies.get(stem).copied().unwrap_or(0)
    }
}

/// Documents scored at a time: their sums stay in the cache.
const WINDOW: u32 = 1 << 14;

impl Keywords {
    /// Splits a text into keywords. A document may match any of them and need not match all. Stop words ("the", "of")
    /// count only if the text has no other keyword. `None` if the text has no keyword at all.
    pub fn new(text: &str, language: Language) -> Option<Keywords> {
        let mut stems = stems(&mut language.analyzer(true), text);
        if stems.is_empty() {
            stems = self::stems(&mut language.analyzer(false), text);
        }
        (!stems.is_empty()).then(|| Keywords { stems: stems.into_iter().collect() })
    }

    /// The keywords as they are looked up: lower case and stemmed, in alphabetical order.
    pub fn stems(&self) -> &[String] {
        &self.stems
    }

    /// A generator of snippets that marks these keywords. A rare keyword weighs more, as in tantivy's own generator.
    pub fn snippets(
        &self,
        searcher: &Searcher,
        field: Field,
        statistics: &KeywordStatistics,
        most_chars: usize,
    ) -> tantivy::Result<SnippetGenerator> {
        let known = self.stems.iter().map(|stem| (stem, statistics.frequency(stem))).filter(|(_, n)| *n > 0);
        let weights = known.map(|(stem, n)| (stem.clone(), 1.0 / (1.0 + n as f32))).collect();
        Ok(SnippetGenerator::new(weights, searcher.index().tokenizer_for_field(field)?, field, most_chars))
    }
}

/// Sum of the lengths of a segment's living documents, as the store rounds them.
pub(super) fn tokens(reader: &SegmentReader, field: Field) -> tantivy::Result<u64> {
    let norms = reader.get_fieldnorms_reader(field)?;
    // Lengths are bytes; counting them first looks each of the 256 up once.
    let mut counts = [0u64; 256];
    for document in reader.doc_ids_alive() {
        counts[usize::from(norms.fieldnorm_id(document))] += 1;
    }
    let length = |id: usize| u64::from(FieldNormReader::id_to_fieldnorm(id as u8));
    Ok(counts.iter().enumerate().map(|(id, count)| count * length(id)).sum())
}

/// Living documents of a segment that have a stem.
pub(super) fn frequency(reader: &SegmentReader, field: Field, stem: &str) -> tantivy::Result<u64> {
    let (terms, term) = (reader.inverted_index(field)?, Term::from_field_text(field, stem));
    if !reader.has_deletes() {
        return Ok(u64::from(terms.doc_freq(&term)?));
    }
    let Some(mut postings) = terms.read_postings(&term, IndexRecordOption::Basic)? else { return Ok(0) };
    let mut living = 0;
    while postings.doc() != TERMINATED {
        living += u64::from(!reader.is_deleted(postings.doc()));
        postings.advance();
    }
    Ok(living)
}

/// A document with its BM25 score. The best is the least: high score first, then early insertion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scored {
    pub score: f32,
    pub sequence: u64,
    pub document: u32,
}

impl Eq for Scored {}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scored {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.sequence.cmp(&other.sequence))
    }
}

/// The best living documents of a segment by BM25, among those of `only`, in any order.
pub(super) fn best(
    reader: &SegmentReader,
    field: Field,
    keywords: &Keywords,
    statistics: &KeywordStatistics,
    only: Option<&Bitmap>,
    limit: usize,
    sequence: impl Fn(u32) -> u64,
) -> tantivy::Result<Vec<Scored>> {
    let norms = reader.get_fieldnorms_reader(field)?;
    let terms = reader.inverted_index(field)?;
    let average = statistics.tokens as f32 / statistics.documents as f32;
    let mut lists = Vec::new();
    // Stems in alphabetical order: a document's score is the same sum everywhere.
    for stem in &keywords.stems {
        let term = Term::from_field_text(field, stem);
        let Some(postings) = terms.read_postings(&term, IndexRecordOption::WithFreqs)? else { continue };
        let weight =
            Bm25Weight::for_one_term_without_explain(statistics.frequency(stem), statistics.documents, average);
        lists.push((postings, weight));
    }
    let mut best: BinaryHeap<Scored> = BinaryHeap::new();
    let mut sums = vec![0.0f32; WINDOW as usize];
    let mut touched: Vec<u32> = Vec::new();
    while let Some(start) = lists.iter().map(|(postings, _)| postings.doc()).filter(|&d| d != TERMINATED).min() {
        let end = start.saturating_add(WINDOW);
        for (postings, weight) in &mut lists {
            while postings.doc() < end && postings.doc() != TERMINATED {
                let document = postings.doc();
                let sum = &mut sums[(document - start) as usize];
                // Scores are above 0, so a 0 was not touched.
                if *sum == 0.0 {
                    touched.push(document);
                }
                *sum += weight.score(norms.fieldnorm_id(document), postings.term_freq());
                postings.advance();
            }
        }
        for document in touched.drain(..) {
            let score = std::mem::take(&mut sums[(document - start) as usize]);
            let full = best.len() == limit;
            if full && best.peek().is_none_or(|worst| score < worst.score)
                || reader.is_deleted(document)
                || only.is_some_and(|only| !only.contains(document))
            {
                continue;
            }
            best.push(Scored { score, sequence: sequence(document), document });
            if full {
                best.pop();
            }
        }
    }
    Ok(best.into_vec())
}

fn stems(analyzer: &mut TextAnalyzer, text: &str) -> BTreeSet<String> {
    let mut stems = BTreeSet::new();
    let mut stream = analyzer.token_stream(text);
    while stream.advance() {
        stems.insert(stream.token().text.clone());
    }
    stems
}
