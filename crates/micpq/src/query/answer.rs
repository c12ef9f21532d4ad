//! What comes back.

use std::ops::Range;
use std::time::Duration;

use super::Cursor;
use crate::corpus::{DocId, Value};

/// A document found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Its id.
    pub id: DocId,
    /// The distance of its code, as [`crate::model::Table::distance`] gives it.
    pub distance: f32,
    /// What the list is ordered by, falling. By codes alone: minus the distance. Ranked again: the cosine of its kept
    /// feature with the query's (their weighted mean, where there are several); behind the candidates that were
    /// ranked again: -1 minus the distance. Hybrid: the sum of weighted reciprocal ranks.
    pub score: f32,
    /// Its text, where the index keeps it and it was asked for; so with the rest.
    pub text: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
    /// Its attributes.
    pub attributes: Vec<(String, Value)>,
    /// The part of its text that matches best, where snippets were asked for.
    pub snippet: Option<Snippet>,
    /// Each book's share of the distance, where an explanation was asked for.
    pub shares: Option<Vec<f32>>,
}

/// A part of a text with the matching words marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snippet {
    /// The part. Where no word matches, the beginning of the text.
    pub text: String,
    /// Bytes of `text` that match, rising and apart from each other; ends are ends of characters.
    pub marks: Vec<Range<usize>>,
}

impl Snippet {
    /// The marks counted in characters (Unicode scalar values), for those who do not count bytes.
    pub fn marks_in_chars(&self) -> Vec<Range<usize>> {
        let chars = |byte: usize| self.text[..byte].chars().count();
        self.marks.iter().map(|mark| chars(mark.start)..chars(mark.end)).collect()
    }
}

/// One query's hits, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The page.
    pub hits: Vec<Hit>,
    /// Where the next page begins; `None` where this is the last.
    pub next: Option<Cursor>,
    /// How the answer came about, where it was asked for.
    pub explanation: Option<Explanation>,
    /// Where the time went.
    pub timings: Timings,
}

/// Time of each stage, for the whole batch the query was asked in: queries of a batch share every stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Texts to tokens.
    pub tokenise: Duration,
    /// Tokens to features.
    pub encode: Duration,
    /// Features to tables, filters to bitmaps, and the scan of the codes.
    pub scan: Duration,
    /// BM25.
    pub words: Duration,
    /// The second stage.
    pub rerank: Duration,
    /// Documents, snippets and shares.
    pub fetch: Duration,
}

impl Timings {
    /// The stages by name, in the order they run.
    pub fn stages(&self) -> [(&'static str, Duration); 6] {
        [
            ("tokenise", self.tokenise),
            ("encode", self.encode),
            ("scan", self.scan),
            ("words", self.words),
            ("rerank", self.rerank),
            ("fetch", self.fetch),
        ]
    }
}

/// How an answer came about.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Explanation {
    /// How each segment was searched.
    pub segments: Vec<SegmentPlan>,
    /// Candidates the scan gave.
    pub candidates: usize,
    /// Candidates ranked again by kept features.
    pub reranked: usize,
    /// Words that BM25 or the snippets looked for, as the index has them.
    pub words: Vec<String>,
    /// Documents BM25 gave.
    pub by_words: usize,
    /// The SIMD backend of the scan.
    pub backend: String,
}

/// How a segment was searched.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SegmentPlan {
    /// Its number.
    pub segment: String,
    /// Documents in it, deleted ones too.
    pub documents: usize,
    /// Living documents that match the filter.
    pub matching: usize,
    /// What the filter led to, where there is one.
    pub filter: Option<String>,
    /// The way through its codes; `None` where nothing was to be searched.
    pub way: Option<String>,
    /// Blocks of 32 codes on that way.
    pub blocks: usize,
    /// Blocks looked at.
    pub scanned: usize,
    /// Documents whose distance was computed in full.
    pub measured: usize,
}
