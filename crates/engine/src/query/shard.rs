//! One shard's part of a request.
//!
//! A request asks its shards three things: what it must know before it can be stated ([`Gather`]), the candidates of each
//! ([`Find`]), and the hits of the page ([`Fetch`]). An index is one shard. Calls and replies have a JSON form, so that a
//! shard may be in another process; floating-point numbers travel as their bits.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tantivy::DocAddress;

use super::answer::{Hit, SegmentPlan};
use super::config::{Group, SearchConfig};
use super::fetch;
use super::group::{self, Grouped, Grouping};
use super::rank;
use super::wire::{WireHit, all_bits, bits};
use crate::corpus::DocId;
use crate::index::{ALL, Candidate, Filter, Index, KeywordStatistics, Keywords, Reader, Subset};
use crate::model::DistanceTable;
use crate::search::TopKRequest;
use crate::{Error, Result};

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
    fn request(&self) -> TopKRequest {
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
}

/// A candidate of a shard: a document, or the chunk by which it was found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardCandidate {
    pub segment: u32,
    pub row: u32,
    /// The first row of its document.
    pub first: u32,
    #[serde(with = "bits")]
    pub distance: f32,
    pub sequence: u64,
}

impl ShardCandidate {
    fn new(reader: &Reader, candidate: Candidate) -> ShardCandidate {
        let Candidate { address, distance, sequence } = candidate;
        let first = reader.first(address).doc_id;
        ShardCandidate { segment: address.segment_ord, row: address.doc_id, first, distance, sequence }
    }

    fn candidate(self) -> Candidate {
        let address = DocAddress::new(self.segment, self.row);
        Candidate { address, distance: self.distance, sequence: self.sequence }
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
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FetchQuery {
    pub near: Vec<ShardCandidate>,
    pub keywords: Option<Keywords>,
    /// The distance table where hits have codebook distances, otherwise empty.
    #[serde(with = "all_bits")]
    pub table: Vec<f32>,
}

/// One commit of a shard. A request asks the same view for all its steps, so that it sees no two commits.
pub struct ShardView {
    reader: Reader,
}

/// A call in its JSON form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    Gather(Gather),
    Find(Box<Find>),
    Fetch(Fetch),
}

impl ShardView {
    /// The last commit the index has loaded.
    pub fn new(index: &Index) -> Result<ShardView> {
        Ok(ShardView { reader: index.reader()? })
    }

    /// Changes with every commit and merge.
    pub fn commit(&self) -> u64 {
        self.reader.number()
    }

    /// Answers a call in its JSON form with a reply in its JSON form.
    pub fn answer(&self, call: &str) -> Result<String> {
        let json = |problem: serde_json::Error| Error::config(format!("the call to a shard cannot be read: {problem}"));
        let reply = match serde_json::from_str(call).map_err(json)? {
            Call::Gather(call) => serde_json::to_string(&self.gather(&call)?),
            Call::Find(call) => serde_json::to_string(&self.find(&call)?),
            Call::Fetch(call) => {
                let wire = |hits: Vec<Hit>| hits.into_iter().map(WireHit::from).collect::<Vec<_>>();
                serde_json::to_string(&self.fetch(&call)?.into_iter().map(wire).collect::<Vec<_>>())
            }
        };
        Ok(reply.expect("plain data has a JSON form"))
    }

    pub(super) fn gather(&self, call: &Gather) -> Result<Gathered> {
        let reader = &self.reader;
        let example = |id: &DocId| -> Result<Option<Example>> {
            let Some(address) = reader.find(id)? else { return Ok(None) };
            let chunk = |address: DocAddress| -> Result<ExampleChunk> {
                let mut vector = Vec::new();
                if call.vectors {
                    reader.read_rerank_vectors([address].into_iter(), |values| vector = values.to_vec())?;
                }
                Ok(ExampleChunk { code: reader.code(address)?, vector })
            };
            let chunks = reader.chunks(reader.first(address)).map(chunk).collect::<Result<_>>()?;
            Ok(Some(Example { chunks }))
        };
        Ok(Gathered {
            commit: reader.number(),
            documents: reader.documents(),
            examples: call.examples.iter().map(example).collect::<Result<_>>()?,
            keywords: match call.stems.is_empty() {
                true => KeywordStatistics::default(),
                false => reader.statistics(call.stems.iter())?,
            },
            attributes: if call.attributes { reader.attributes()?.clone() } else { BTreeSet::new() },
        })
    }

    pub(super) fn find(&self, call: &Find) -> Result<Found> {
        let reader = &self.reader;
        let begun = Instant::now();
        let (request, filter) = (call.request(), call.filter.as_ref());
        let filter = filter.map(|filter| filter.parse(reader)).transpose()?;
        let table = |query: &FindQuery| DistanceTable::new(reader.model().shape(), query.table.clone());
        let tables: Vec<DistanceTable> = call.queries.iter().map(table).collect::<Result<_>>()?;
        let grouping = Grouping::new(reader, call.group, filter.as_ref(), request.radius, call.first > 0)?;
        let found = group::nearest(reader, grouping.as_ref(), &tables, &request, filter.as_ref())?;
        let scan = begun.elapsed();

        let begun = Instant::now();
        let work: Vec<_> = call.queries.iter().zip(&tables).collect();
        let keywords = each(&work, |(query, table)| self.by_keywords(call, query, table, filter.as_ref()))?;
        let keyword_time = begun.elapsed();

        let begun = Instant::now();
        let work: Vec<_> = work.into_iter().zip(found).zip(keywords).collect();
        let queries = each(&work, |(((query, table), (near, scanned)), (scores, keywords))| {
            let examples = self.examples(query)?;
            let is_example = |document: &Grouped| examples.contains(&reader.first(document.chunk.address));
            let near: Vec<Grouped> = near.iter().filter(|document| !is_example(document)).copied().collect();
            let (cosines, passages) = self.rerank(call, query, table, grouping.as_ref(), &near)?;
            Ok(FoundQuery {
                near: near.iter().map(|document| ShardCandidate::new(reader, document.chunk)).collect(),
                sums: near.iter().filter_map(|document| document.sum).collect(),
                cosines,
                passages,
                keywords: keywords.clone(),
                scores: scores.clone(),
                plans: if call.explain { fetch::plans(scanned) } else { Vec::new() },
            })
        })?;
        Ok(Found { commit: reader.number(), queries, scan, keywords: keyword_time, rerank: begun.elapsed() })
    }

    /// The documents of this shard that are examples of a query, each as its first row.
    fn examples(&self, query: &FindQuery) -> Result<Vec<DocAddress>> {
        let found = query.examples.iter().filter_map(|id| self.reader.find(id).transpose());
        found.map(|address| Ok(self.reader.first(address?))).collect()
    }

    /// The best documents of a query by BM25 with their scores. A document is its best chunk.
    fn by_keywords(
        &self,
        call: &Find,
        query: &FindQuery,
        table: &DistanceTable,
        filter: Option<&Filter>,
    ) -> Result<(Vec<f32>, Vec<ShardCandidate>)> {
        let (Some(FindKeywords { depth, statistics }), Some(keywords)) = (&call.keywords, &query.keywords) else {
            return Ok((Vec::new(), Vec::new()));
        };
        let (reader, examples) = (&self.reader, self.examples(query)?);
        let radius = call.request().radius.filter(|_| reader.has_chunks());
        let mut limit = depth + query.examples.len();
        loop {
            let found = reader.by_keywords(keywords, statistics, table, filter, limit)?;
            let is_all = found.len() < limit;
            let mut seen = HashSet::new();
            let mut is_new = |near: &Candidate| {
                let document = reader.first(near.address);
                let is_near = radius.is_none_or(|radius| near.distance <= radius);
                is_near && !examples.contains(&document) && seen.insert(document)
            };
            let found = found.into_iter().filter(|(_, near)| is_new(near)).take(*depth);
            let (scores, near): (Vec<f32>, Vec<ShardCandidate>) =
                found.map(|(score, near)| (score, ShardCandidate::new(reader, near))).unzip();
            if is_all || near.len() == *depth {
                return Ok((scores, near));
            }
            // Several chunks were of one document.
            limit = limit.saturating_mul(2);
        }
    }

    /// The cosines of the first candidates, and in an index with chunks the passages that have them.
    fn rerank(
        &self,
        call: &Find,
        query: &FindQuery,
        table: &DistanceTable,
        grouping: Option<&Grouping>,
        near: &[Grouped],
    ) -> Result<(Vec<f32>, Vec<ShardCandidate>)> {
        let head = &near[..call.first.min(near.len())];
        match grouping {
            Some(grouping) => {
                let ranked = grouping.rerank(table, head, &query.aims)?.into_iter();
                Ok(ranked.map(|(score, chunk)| (score, ShardCandidate::new(&self.reader, chunk))).unzip())
            }
            None => {
                let head = head.iter().map(|document| &document.chunk);
                Ok((rank::cosines(&self.reader, head, &query.aims)?, Vec::new()))
            }
        }
    }

    /// The hits of each query, in order. Their scores are the merger's to fill in.
    pub(super) fn fetch(&self, call: &Fetch) -> Result<Vec<Vec<Hit>>> {
        if call.commit != self.reader.number() {
            return Err(Error::Busy("the shard has changed while the request was answered; ask again".into()));
        }
        each(&call.queries, |query| {
            let shape = self.reader.model().shape();
            let explained = !query.table.is_empty();
            let table = explained.then(|| DistanceTable::new(shape, query.table.clone())).transpose()?;
            let snippets = match (&query.keywords, &call.snippets) {
                (Some(keywords), Some(statistics)) => self.reader.snippets(keywords, statistics, fetch::SNIPPET)?,
                _ => None,
            };
            let hit = |near: &ShardCandidate| {
                fetch::hit(&self.reader, near.candidate(), table.as_ref(), snippets.as_ref(), call.documents)
            };
            query.near.iter().map(hit).collect()
        })
    }
}

/// The shards of a request, in this process or elsewhere. Replies name their shard; a shard that may be missing has none.
pub(crate) trait Shards: Sync {
    fn gather(&self, call: &Gather) -> Result<BTreeMap<usize, Gathered>>;
    fn find(&self, call: &Find) -> Result<BTreeMap<usize, Found>>;
    fn fetch(&self, calls: &BTreeMap<usize, Fetch>) -> Result<BTreeMap<usize, Vec<Vec<Hit>>>>;
}

/// Shards of this process.
pub(crate) struct LocalShards(pub Vec<ShardView>);

impl LocalShards {
    fn all<T: Send>(&self, ask: impl Fn(&ShardView) -> Result<T> + Sync + Send) -> Result<BTreeMap<usize, T>> {
        Ok(each(&self.0, ask)?.into_iter().enumerate().collect())
    }
}

impl Shards for LocalShards {
    fn gather(&self, call: &Gather) -> Result<BTreeMap<usize, Gathered>> {
        self.all(|shard| shard.gather(call))
    }

    fn find(&self, call: &Find) -> Result<BTreeMap<usize, Found>> {
        self.all(|shard| shard.find(call))
    }

    fn fetch(&self, calls: &BTreeMap<usize, Fetch>) -> Result<BTreeMap<usize, Vec<Vec<Hit>>>> {
        let calls: Vec<_> = calls.iter().collect();
        Ok(each(&calls, |(shard, call)| Ok((**shard, self.0[**shard].fetch(call)?)))?.into_iter().collect())
    }
}

/// Shards elsewhere, behind a function that delivers calls in their JSON form and returns the replies, both by shard.
/// A call without a shard goes to all of them.
pub(crate) struct RemoteShards<F> {
    deliver: F,
}

/// A call to one shard, or to all of them where there is no number.
pub type Delivery = (Option<usize>, String);

impl<F: Fn(Vec<Delivery>) -> Result<BTreeMap<usize, String>> + Sync> RemoteShards<F> {
    pub fn new(deliver: F) -> Self {
        RemoteShards { deliver }
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, calls: Vec<(Option<usize>, Call)>) -> Result<BTreeMap<usize, T>> {
        let json = |call: &Call| serde_json::to_string(call).expect("plain data has a JSON form");
        let replies = (self.deliver)(calls.iter().map(|(shard, call)| (*shard, json(call))).collect())?;
        let read = |(shard, reply): (usize, String)| match serde_json::from_str(&reply) {
            Ok(reply) => Ok((shard, reply)),
            Err(problem) => Err(Error::input(format!("shard {shard}"), format!("its reply cannot be read: {problem}"))),
        };
        replies.into_iter().map(read).collect()
    }
}

impl<F: Fn(Vec<Delivery>) -> Result<BTreeMap<usize, String>> + Sync> Shards for RemoteShards<F> {
    fn gather(&self, call: &Gather) -> Result<BTreeMap<usize, Gathered>> {
        self.ask(vec![(None, Call::Gather(call.clone()))])
    }

    fn find(&self, call: &Find) -> Result<BTreeMap<usize, Found>> {
        self.ask(vec![(None, Call::Find(Box::new(call.clone())))])
    }

    fn fetch(&self, calls: &BTreeMap<usize, Fetch>) -> Result<BTreeMap<usize, Vec<Vec<Hit>>>> {
        let calls = calls.iter().map(|(shard, call)| (Some(*shard), Call::Fetch(call.clone())));
        let replies: BTreeMap<usize, Vec<Vec<WireHit>>> = self.ask(calls.collect())?;
        let hits = |hits: Vec<WireHit>| hits.into_iter().map(Hit::from).collect();
        Ok(replies.into_iter().map(|(shard, queries)| (shard, queries.into_iter().map(hits).collect())).collect())
    }
}

/// In parallel where there are several.
pub(super) fn each<T: Sync, U: Send>(items: &[T], work: impl Fn(&T) -> Result<U> + Sync + Send) -> Result<Vec<U>> {
    if items.len() > 1 { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}
