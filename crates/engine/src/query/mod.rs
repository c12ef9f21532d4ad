//! Queries over an index, and their answers.
//!
//! A [`Query`] says what hits should be like: a text, an embedding, a document of the index, or several of them with
//! weights. [`SearchConfig`] says how many, which and how they are ranked. A [`Searcher`] answers:
//!
//! 1. Every query becomes one distance table. Several examples are fused by adding their tables, weighted: the sum of
//!    distances is again a distance over codes, so the answer stays exact at any depth, costs one scan, and can be cut by
//!    distance and continued page by page, which a fusion of truncated lists cannot.
//! 2. The scan gives the nearest codes ([`crate::search`]); in an index with chunks, documents by their chunks ([`Group`]).
//! 3. Where the index stores rerank vectors, the first candidates are re-ranked by cosine ([`Rerank`]).
//! 4. A hybrid search fuses that list with BM25's by reciprocal rank.
//! 5. Documents, snippets and explanations are fetched for the page only.

mod ask;
mod calls;
mod config;
mod cursor;
mod embed;

mod request;
mod shard;
mod group;
mod rank;

mod fetch;
mod answer;
mod wire;

mod survey;

mod searcher;

mod recall;
mod recall_of_shards;
mod judged;

#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod shard_tests;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Explanation, Hit, HitChunk, SegmentPlan, Snippet, Timings};
pub use ask::{Embedded, Like, Query};
pub use config::{Group, MAX_HITS, Rerank, SearchConfig};
pub use cursor::Cursor;
pub use judged::{JudgedConfig, JudgedReport, JudgedWay};
pub use recall::{DepthRecall, RecallConfig, RecallReport, WindowRecall};
pub use searcher::{RemoteSearcher, Searcher};
pub use shard::{Delivery, Replies, ShardView};
pub use survey::{CodeAndText, Survey, entropy, members, walk};
