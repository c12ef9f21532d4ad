//! One shard's part of a request.
//!
//! A request asks its shards three things: what it must know before it can be stated ([`Gather`]), the candidates of each
//! ([`Find`]), and the hits of the page ([`Fetch`]). An index is one shard. Calls and replies have a JSON form, so that a
//! shard may be in another process.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::OnceLock;
use std::time::Instant;

use rayon::prelude::*;
use tantivy::DocAddress;
use tantivy::snippet::SnippetGenerator;

use super::answer::Hit;
use super::calls::{
    Along, Call, Example, ExampleChunk, Fetch, Find, FindKeywords, FindQuery, Found, FoundQuery, Gather, Gathered,
    ShardCandidate,
};
use super::fetch::{self, Room};
use super::group::{self, Grouped, Grouping};
use super::rank;
use super::wire::WireHit;
use crate::corpus::DocId;
use crate::index::{Candidate, Filter, Index, KeywordStatistics, Keywords, Reader, Walk};
use crate::model::DistanceTable;
use crate::{Error, NoProgress, Progress, Result};

/// One commit of a shard. A request asks the same view for all its steps, so that it sees no two commits.
pub struct ShardView {
    pub(super) reader: Reader,
    // Of the questions about the order of insertion.
    walk: OnceLock<Walk>,
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

impl ShardView {
    /// The last commit the index has loaded.
    pub fn new(index: &Index) -> Result<ShardView> {
        Ok(ShardView { reader: index.reader()?, walk: OnceLock::new() })
    }

    /// All documents. The first call takes 8 bytes for each.
    pub(super) fn walk(&self) -> Result<&Walk> {
        if self.walk.get().is_none() {
            let _ = self.walk.set(self.reader.walk()?);
        }
        Ok(self.walk.get().expect("set above"))
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
            Call::Find(call) => serde_json::to_string(&self.find(&call, &NoProgress)?),
            Call::Fetch(call) => {
                let wire = |hits: Vec<Hit>| hits.into_iter().map(WireHit::from).collect::<Vec<_>>();
                serde_json::to_string(&self.fetch(&call, &NoProgress)?.into_iter().map(wire).collect::<Vec<_>>())
            }
            Call::Question(question) => serde_json::to_string(&self.answer_question(&question, &NoProgress)?),
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

    pub(super) fn find(&self, call: &Find, progress: &dyn Progress) -> Result<Found> {
        let reader = &self.reader;
        let begun = Instant::now();
        let (request, filter) = (call.request(), call.filter.as_ref());
        let filter = filter.map(|filter| filter.parse(reader)).transpose()?;
        let table = |query: &FindQuery| DistanceTable::new(reader.model().shape(), query.table.clone());
        let tables: Vec<DistanceTable> = call.queries.iter().map(table).collect::<Result<_>>()?;
        let grouping = Grouping::new(reader, call.group, filter.as_ref(), request.radius, call.first > 0)?;
        let found = group::nearest(reader, grouping.as_ref(), &tables, &request, filter.as_ref())?;
        let scan = begun.elapsed();
        progress.go_on()?;

        let begun = Instant::now();
        let work: Vec<_> = call.queries.iter().zip(&tables).collect();
        let keywords = each(&work, |(query, table)| {
            progress.go_on()?;
            self.by_keywords(call, query, table, filter.as_ref())
        })?;
        let keyword_time = begun.elapsed();

        let begun = Instant::now();
        let work: Vec<_> = work.into_iter().zip(found).zip(keywords).collect();
        let queries = each(&work, |(((query, table), (near, scanned)), (scores, keywords))| {
            progress.go_on()?;
            let examples = self.examples(query)?;
            let is_example = |document: &Grouped| examples.contains(&reader.first(document.chunk.address));
            let near: Vec<Grouped> = near.iter().filter(|document| !is_example(document)).copied().collect();
            let (cosines, passages) = self.rerank(call, query, table, grouping.as_ref(), &near)?;
            let candidates: Vec<ShardCandidate> =
                near.iter().map(|document| ShardCandidate::new(reader, document.chunk)).collect();
            Ok(FoundQuery {
                hits: self.along(call, query, table, &best(&candidates, &cosines, &passages))?,
                near: candidates,
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

    /// The hits that go with the candidates of a query. `best` are its candidates in the order of this shard.
    fn along(
        &self,
        call: &Find,
        query: &FindQuery,
        table: &DistanceTable,
        best: &[ShardCandidate],
    ) -> Result<Vec<(u32, u32, WireHit)>> {
        let Some(Along { count, documents, snippets }) = &call.along else { return Ok(Vec::new()) };
        let snippets = self.snippets(query.keywords.as_ref(), snippets.as_ref())?;
        let table = call.explain.then_some(table);
        let hit = |near: &ShardCandidate| {
            let hit = fetch::hit(&self.reader, near.candidate(), table, snippets.as_ref(), *documents)?;
            Ok((near.segment, near.row, WireHit::from(hit)))
        };
        best.iter().take(*count).map(hit).collect()
    }

    fn snippets(
        &self,
        keywords: Option<&Keywords>,
        statistics: Option<&KeywordStatistics>,
    ) -> Result<Option<SnippetGenerator>> {
        match (keywords, statistics) {
            (Some(keywords), Some(statistics)) => self.reader.snippets(keywords, statistics, fetch::SNIPPET),
            _ => Ok(None),
        }
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
    pub(super) fn fetch(&self, call: &Fetch, progress: &dyn Progress) -> Result<Vec<Vec<Hit>>> {
        if call.commit != self.reader.number() {
            return Err(Error::Busy("the shard has changed while the request was answered; ask again".into()));
        }
        let room = Room::new(call.max_bytes);
        each(&call.queries, |query| {
            let shape = self.reader.model().shape();
            let explained = !query.table.is_empty();
            let table = explained.then(|| DistanceTable::new(shape, query.table.clone())).transpose()?;
            let snippets = self.snippets(query.keywords.as_ref(), call.snippets.as_ref())?;
            let hit = |near: &ShardCandidate| {
                progress.go_on()?;
                let hit =
                    fetch::hit(&self.reader, near.candidate(), table.as_ref(), snippets.as_ref(), call.documents)?;
                room.take(&hit)?;
                Ok(hit)
            };
            query.near.iter().map(hit).collect()
        })
    }
}

/// The candidates of a shard in its own order: the re-ranked ones by cosine, or all by code.
fn best(near: &[ShardCandidate], cosines: &[f32], passages: &[ShardCandidate]) -> Vec<ShardCandidate> {
    if cosines.is_empty() {
        return near.to_vec();
    }
    let mut order: Vec<usize> = (0..cosines.len()).collect();
    order.sort_by(|&a, &b| cosines[b].total_cmp(&cosines[a]));
    order.into_iter().map(|i| passages.get(i).copied().unwrap_or(near[i])).collect()
}

/// The shards of a request, in this process or elsewhere. Replies name their shard; a shard that may be missing has none.
pub(crate) trait Shards: Sync {
    /// Whether a call takes so long that it is worth it to get hits along with the candidates.
    fn are_remote(&self) -> bool;
    fn gather(&self, call: &Gather) -> Result<BTreeMap<usize, Gathered>>;
    fn find(&self, call: &Find) -> Result<BTreeMap<usize, Found>>;
    fn fetch(&self, calls: &BTreeMap<usize, Fetch>) -> Result<BTreeMap<usize, Vec<Vec<Hit>>>>;
}

/// Shards of this process. Work ends when `progress` is interrupted.
pub(crate) struct LocalShards<'a> {
    pub views: Vec<ShardView>,
    pub progress: &'a dyn Progress,
}

impl LocalShards<'_> {
    fn all<T: Send>(&self, ask: impl Fn(&ShardView) -> Result<T> + Sync + Send) -> Result<BTreeMap<usize, T>> {
        self.progress.go_on()?;
        Ok(each(&self.views, ask)?.into_iter().enumerate().collect())
    }
}

impl Shards for LocalShards<'_> {
    fn are_remote(&self) -> bool {
        false
    }

    fn gather(&self, call: &Gather) -> Result<BTreeMap<usize, Gathered>> {
        self.all(|shard| shard.gather(call))
    }

    fn find(&self, call: &Find) -> Result<BTreeMap<usize, Found>> {
        self.all(|shard| shard.find(call, self.progress))
    }

    fn fetch(&self, calls: &BTreeMap<usize, Fetch>) -> Result<BTreeMap<usize, Vec<Vec<Hit>>>> {
        let calls: Vec<_> = calls.iter().collect();
        Ok(each(&calls, |(shard, call)| Ok((**shard, self.views[**shard].fetch(call, self.progress)?)))?
            .into_iter()
            .collect())
    }
}

/// Shards elsewhere, behind a function that delivers calls in their JSON form and returns the replies, both by shard.
/// A call without a shard goes to all of them.
pub(crate) struct RemoteShards<F> {
    deliver: F,
}

/// A call to one shard, or to all of them where there is no number.
pub type Delivery = (Option<usize>, String);

/// Replies by shard.
pub type Replies = BTreeMap<usize, String>;

impl<F: Fn(Vec<Delivery>) -> Result<Replies> + Sync> RemoteShards<F> {
    pub fn new(deliver: F) -> Self {
        RemoteShards { deliver }
    }

    pub(super) fn ask<T: serde::de::DeserializeOwned>(
        &self,
        calls: Vec<(Option<usize>, Call)>,
    ) -> Result<BTreeMap<usize, T>> {
        let json = |call: &Call| serde_json::to_string(call).expect("plain data has a JSON form");
        let replies = (self.deliver)(calls.iter().map(|(shard, call)| (*shard, json(call))).collect())?;
        let read = |(shard, reply): (usize, String)| match serde_json::from_str(&reply) {
            Ok(reply) => Ok((shard, reply)),
            Err(problem) => Err(Error::input(format!("shard {shard}"), format!("its reply cannot be read: {problem}"))),
        };
        replies.into_iter().map(read).collect()
    }
}

impl<F: Fn(Vec<Delivery>) -> Result<Replies> + Sync> Shards for RemoteShards<F> {
    fn are_remote(&self) -> bool {
        true
    }

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
