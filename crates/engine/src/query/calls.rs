//! What a request asks a shard, and what a shard answers. Both have a JSON form; floating-point numbers travel as their bits.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::answer::SegmentPlan;
use super::config::{Group, SearchConfig};
use super::wire::{WireHit, all_bits, bits};
use crate::Result;
use crate::corpus::DocId;
use crate::index::{ALL, Filter, KeywordStatistics, Keywords, Reader, Subset};
use crate::search::TopKRequest;

/// Facts of all shards that a request depends on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gather {
    /// Documents that are examples of a query.
    pub examples: Vec<DocId>,
    /// Whether examples come with their rerank vectors.
    pub vectors: bool,
    pub stems: BTreeSet<String>,
    /// Whether the names of the attributes are needed.
    pub attributes: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Gathered {
    /// Changes with every commit and merge.
    pub commit: u64,
    pub documents: u64,
    // [examples], `None` where the document is not in this shard
    pub examples: Vec<Option<Example>>,
    pub keywords: KeywordStatistics,
    pub attributes: BTreeSet<String>,
}

/// A document of the index as an example: all its chunks, one where the index has none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Example {
    pub chunks: Vec<ExampleChunk>,
}

/// The rerank vector is empty where none was requested.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExampleChunk {
    pub code: Vec<u8>,
    #[serde(with = "all_bits")]
    pub vector: Vec<f32>,
}

/// A request for candidates, the same to every shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Find {
    pub queries: Vec<FindQuery>,
    pub k: usize,
    /// Bits of the radius, and of the distance that a page begins after, with the sequence.
    pub radius: Option<u32>,
    pub after: Option<(u32, u64)>,
    pub filter: Option<FilterText>,
    /// How chunks make the place of their document.
    pub group: Group,
    /// Candidates to re-rank; 0 without re-ranking.
    pub first: usize,
    pub keywords: Option<FindKeywords>,
    pub explain: bool,
    /// The hits that come with the candidates; `None` where they are fetched afterwards.
    pub along: Option<Along>,
}

/// Hits that a shard sends with its candidates, so that a page needs no second call: those that are best among its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Along {
    pub count: usize,
    pub documents: bool,
    pub snippets: Option<KeywordStatistics>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FindQuery {
    // [codebooks, codewords]
    #[serde(with = "all_bits")]
    pub table: Vec<f32>,
    pub aims: Vec<Aim>,
    /// They are not among their own hits.
    pub examples: Vec<DocId>,
    pub keywords: Option<Keywords>,
}

/// An embedding of the query and its weight; the weights of a query add up to 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Aim {
    #[serde(with = "all_bits")]
    pub embedding: Vec<f32>,
    #[serde(with = "bits")]
    pub weight: f32,
}

impl Find {
    pub fn request(&self) -> TopKRequest {
        TopKRequest {
            k: self.k,
            radius: self.radius.map(f32::from_bits),
            after: self.after.map(|(distance, sequence)| (f32::from_bits(distance), sequence)),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FilterText {
    pub text: String,
    /// Attributes of all shards; `None` where no shard has a document.
    pub known: Option<BTreeSet<String>>,
    #[serde(default)]
    pub within: Option<Subset>,
}

impl FilterText {
    /// The filter of a search; `None` if it wants every document.
    pub fn of(config: &SearchConfig, known: Option<BTreeSet<String>>) -> Option<FilterText> {
        let within = config.within.clone();
        let all = || within.is_some().then(|| ALL.to_owned());
        let text = config.filter.clone().or_else(all)?;
        Some(FilterText { text, known, within })
    }

    pub fn parse(&self, reader: &Reader) -> Result<Filter> {
        Ok(reader.filter(&self.text, self.known.as_ref())?.within(self.within.as_ref()))
    }
}

/// The keyword list of a hybrid search.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FindKeywords {
    pub depth: usize,
    /// Of all shards together.
    pub statistics: KeywordStatistics,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    pub commit: u64,
    // [queries]
    pub queries: Vec<FoundQuery>,
    pub scan: Duration,
    pub keywords: Duration,
    pub rerank: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FoundQuery {
    /// In the order of codes.
    pub near: Vec<ShardCandidate>,
    /// The sums of `near`, where they decide the order.
    #[serde(with = "all_bits")]
    pub sums: Vec<f32>,
    /// The cosines of the first of `near`; in an index with chunks, scores from cosines.
    #[serde(with = "all_bits")]
    pub cosines: Vec<f32>,
    /// In an index with chunks, the chunk with the highest cosine of each of the first of `near`.
    pub passages: Vec<ShardCandidate>,
    /// In the order of BM25. The radius is applied to the merged list, in an index with chunks to every chunk.
    pub keywords: Vec<ShardCandidate>,
    /// The scores of `keywords`.
    #[serde(with = "all_bits")]
    pub scores: Vec<f32>,
    /// Where an explanation was requested.
    pub plans: Vec<SegmentPlan>,
    /// The hits that came along, with the segment and the row of each.
    pub(super) hits: Vec<(u32, u32, WireHit)>,
}

/// A candidate of a shard: a document, or the chunk by which it was found. Many of them travel, so each is a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "WireCandidate", into = "WireCandidate")]
pub(crate) struct ShardCandidate {
    pub segment: u32,
    pub row: u32,
    /// The first row of its document.
    pub first: u32,
    pub distance: f32,
    pub sequence: u64,
}

/// Segment, row, first row, bits of the distance, sequence.
type WireCandidate = (u32, u32, u32, u32, u64);

impl From<WireCandidate> for ShardCandidate {
    fn from((segment, row, first, distance, sequence): WireCandidate) -> Self {
        ShardCandidate { segment, row, first, distance: f32::from_bits(distance), sequence }
    }
}

impl From<ShardCandidate> for WireCandidate {
    fn from(candidate: ShardCandidate) -> Self {
        let ShardCandidate { segment, row, first, distance, sequence } = candidate;
        (segment, row, first, distance.to_bits(), sequence)
    }
}

/// A request for the hits of a page.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fetch {
    /// The commit in which they were found.
    pub commit: u64,
    pub queries: Vec<FetchQuery>,
    /// Whether hits have text, labels and attributes.
    pub documents: bool,
    /// Whether hits have a snippet; with the statistics of all shards.
    pub snippets: Option<KeywordStatistics>,
    /// Bytes that the hits of all queries may have together.
    #[serde(default)]
    pub max_bytes: Option<usize>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FetchQuery {
    pub near: Vec<ShardCandidate>,
    pub keywords: Option<Keywords>,
    /// The distance table where hits have codebook distances, otherwise empty.
    #[serde(with = "all_bits")]
    pub table: Vec<f32>,
}

/// What a shard is asked about all its documents.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    /// How many documents there are.
    Documents,
    /// The values of attributes.
    Facets(Option<FilterText>),
    /// Documents per codeword.
    Usage,
    /// Documents per codeword among those that have one codeword.
    Members { codebook: usize, codeword: usize },
    /// How many documents were inserted before each of these sequences.
    Before(Vec<u64>),
    /// Codes and texts of the documents at these places in the order of insertion of a commit.
    Texts { commit: u64, places: Vec<usize> },
    /// Rerank vectors and codes of the documents at these places.
    Vectors { commit: u64, places: Vec<usize> },
    /// The nearest documents of each query by their rerank vectors.
    Nearest { queries: Vec<WireVector>, k: usize },
    /// How many documents are before some others, by code.
    Ranks(Vec<RankQuery>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WireVector(#[serde(with = "all_bits")] pub Vec<f32>);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredVector {
    pub vector: WireVector,
    pub code: Vec<u8>,
}

/// A document among the nearest of a query by rerank vectors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NearVector {
    /// 1 minus the cosine.
    #[serde(with = "bits")]
    pub distance: f32,
    pub sequence: u64,
    pub code: Vec<u8>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankQuery {
    // [codebooks, codewords]
    pub table: WireVector,
    /// Bits of the distance by code, and the sequence.
    pub documents: Vec<(u32, u64)>,
}

/// A call in its JSON form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    Gather(Gather),
    Find(Box<Find>),
    Fetch(Fetch),
    Question(Question),
}
