//! Answers: hits, cursor, explanation, timings.

use std::ops::Range;
use std::time::Duration;

use super::Cursor;
use crate::corpus::{DocId, Value};

/// A document found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    pub id: DocId,
    /// The distance of its code, as [`crate::model::DistanceTable::distance`] gives it.
    pub distance: f32,
    /// Hits are ordered by it, falling. By code it is minus the distance. Re-ranked, it is the cosine of the rerank vector
    /// with the query's embedding (the weighted mean, where there are several); after the re-ranked candidates it is -1 minus
    /// the distance. In a hybrid search it is the sum of weighted reciprocal ranks.
    pub score: f32,
    /// Text, labels and attributes are filled where the index stores them and the search requests them. In an index with
    /// chunks, `text` is that of the chunk; [`crate::index::Index::get`] gives the whole.
    pub text: Option<String>,
    pub labels: Vec<String>,
    pub attributes: Vec<(String, Value)>,
    /// Where snippets were requested.
    pub snippet: Option<Snippet>,
    /// The chunk by which the document was found, in an index with chunks.
    pub chunk: Option<HitChunk>,
    /// The distance by codebook, where an explanation was requested.
    pub codebook_distances: Option<Vec<f32>>,
    /// Its codeword in every codebook, where an explanation was requested.
    pub codewords: Option<Vec<u8>>,
}

impl Hit {
    /// Its size in memory, approximately.
    pub fn bytes(&self) -> usize {
        let value = |value: &Value| match value {
            Value::Text(text) => text.len(),
            Value::Texts(texts) => texts.iter().map(|text| size_of::<String>() + text.len()).sum(),
            _ => 0,
        };
        let attribute = |(name, own): &(String, Value)| size_of::<(String, Value)>() + name.len() + value(own);
        size_of::<Hit>()
            + self.text.as_ref().map_or(0, String::len)
            + self.labels.iter().map(|label| size_of::<String>() + label.len()).sum::<usize>()
            + self.attributes.iter().map(attribute).sum::<usize>()
            + self.snippet.as_ref().map_or(0, |snippet| snippet.text.len())
            + self.codebook_distances.as_ref().map_or(0, |distances| size_of_val(&distances[..]))
    }
}

/// The chunk by which a document was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HitChunk {
    /// Which of the document's chunks, counted from 0.
    pub number: u32,
    /// How many chunks the document has.
    pub of: u32,
    /// Where it begins in the document's text, in bytes.
    pub start: u64,
}

/// A part of a text with the matching keywords marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snippet {
    /// The beginning of the text where no keyword matches.
    pub text: String,
    /// Byte ranges of `text` that match, rising and disjoint, at character boundaries.
    pub marks: Vec<Range<usize>>,
}

impl Snippet {
    /// The marks in characters (Unicode scalar values) instead of bytes.
    pub fn marks_in_chars(&self) -> Vec<Range<usize>> {
        let chars = |byte: usize| self.text[..byte].chars().count();
        self.marks.iter().map(|mark| chars(mark.start)..chars(mark.end)).collect()
    }
}

/// One query's hits, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub hits: Vec<Hit>,
    /// The beginning of the next page; `None` after the last.
    pub next: Option<Cursor>,
    pub explanation: Option<Explanation>,
    pub timings: Timings,
}

/// Time of each stage for the whole batch of the query: queries of a batch share every stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Texts to tokens.
    pub tokenise: Duration,
    /// Tokens to embeddings.
    pub encode: Duration,
    /// Embeddings to distance tables, by the model's projection.
    pub project: Duration,
    /// Filters to bitmaps, and the scan of the codes.
    pub scan: Duration,
    /// BM25.
    pub keywords: Duration,
    pub rerank: Duration,
    /// Documents, snippets and codebook distances.
    pub fetch: Duration,
}

impl Timings {
    /// The stages by name, in the order they run.
    pub fn stages(&self) -> [(&'static str, Duration); 7] {
        [
            ("tokenise", self.tokenise),
            ("encode", self.encode),
            ("project", self.project),
            ("scan", self.scan),
            ("keywords", self.keywords),
            ("rerank", self.rerank),
            ("fetch", self.fetch),
        ]
    }
}

/// How an answer was computed.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Explanation {
    pub segments: Vec<SegmentPlan>,
    /// The codeword in every codebook that is nearest to the query.
    pub codewords: Vec<u8>,
    /// Candidates of the scan.
    pub candidates: usize,
    /// Candidates re-ranked by their rerank vectors.
    pub reranked: usize,
    /// Stems that BM25 or the snippets searched.
    pub keywords: Vec<String>,
    /// Documents of BM25.
    pub by_keywords: usize,
    /// The SIMD backend of the scan.
    pub backend: String,
}

/// How a segment was searched.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SegmentPlan {
    pub segment: String,
    /// Deleted ones included.
    pub documents: usize,
    /// Living documents that match the filter.
    pub matching: usize,
    /// How the filter was applied.
    pub filter: Option<String>,
    /// The scan strategy; `None` where nothing was scanned.
    pub strategy: Option<String>,
    /// Blocks of 32 codes.
    pub blocks: usize,
    pub scanned: usize,
    /// Documents whose distance was computed in full.
    pub measured: usize,
}
