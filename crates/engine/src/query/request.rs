//! One batch of queries: distance tables, scan, re-ranking, fusion, page.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::answer::{Answer, Explanation, Hit, SegmentPlan, Timings};
use super::ask::{Embedded, Point};
use super::calls::{
    Aim, Along, Example, Fetch, FetchQuery, FilterText, Find, FindKeywords, FindQuery, Found, FoundQuery, Gather,
    Gathered, ShardCandidate,
};
use super::config::SearchConfig;
use super::cursor::{Cursor, Place};
use super::rank::{self, Placed, Ranked};
use super::shard::Shards;
use crate::corpus::DocId;
use crate::index::{KeywordStatistics, Keywords, RerankVectors, Store};
use crate::language::Language;
use crate::model::{CodeShape, DistanceTable, Model};
use crate::search::TopKRequest;
use crate::{Error, Matrix, Result};

/// A hybrid search fuses at least this many of each list. A deeper document adds less than 1 / 1,060.
const MIN_FUSED: usize = 1000;

/// The most hits that come with the candidates: every shard sends as many, and most are not used.
const MAX_ALONG: usize = 50;

/// Properties that all shards of an index share.
#[derive(Clone, Copy)]
pub(crate) struct Common<'a> {
    pub model: &'a Model,
    pub rerank_vectors: RerankVectors,
    pub store: Store,
    pub language: Language,
}

/// A batch of queries with the same options.
pub(super) struct Request<'a> {
    shards: &'a dyn Shards,
    config: &'a SearchConfig,
    asked: Vec<Asked>,
    filter: Option<FilterText>,
    /// Candidates to re-rank; 0 without re-ranking.
    first: usize,
    statistics: KeywordStatistics,
    /// The commit of each shard that was asked before the candidates.
    commits: BTreeMap<usize, u64>,
    timings: Timings,
}

/// One query of the batch.
struct Asked {
    table: DistanceTable,
    /// For re-ranking.
    aims: Vec<Aim>,
    /// Documents of the index that are examples of the query.
    examples: Vec<DocId>,
    keywords: Option<Keywords>,
}

/// The candidates of one query over all shards.
#[derive(Default)]
struct Merged {
    /// In the order of codes.
    near: Vec<Placed>,
    /// In the order of BM25.
    keywords: Vec<Placed>,
    plans: Vec<SegmentPlan>,
}

/// A page before its documents are fetched.
struct Page {
    hits: Vec<Ranked>,
    next: Option<Place>,
    candidates: usize,
    reranked: usize,
    by_keywords: usize,
}

impl<'a> Request<'a> {
    pub fn new(
        common: Common<'a>,
        shards: &'a dyn Shards,
        queries: &[Embedded],
        config: &'a SearchConfig,
    ) -> Result<Self> {
        let begun = Instant::now();
        let first = config.reranked(common.rerank_vectors)?;
        if common.store == Store::Codes && (config.hybrid > 0.0 || config.snippets) {
            return Err(Error::config(
                "this index stores only ids and codes: it has no keywords to search or to mark; build it with store all",
            ));
        }
        if config.kind > 0.0 && common.model.kinds().is_none() {
            return Err(Error::config(format!(
                "this index has a model of method {}, which has no tables by kind; set kind to 0, or train with method distilled",
                common.model.config.method
            )));
        }
        let of_document = |query: &Embedded| query.like.iter().any(|(point, _)| matches!(point, Point::Document(_)));
        if config.kind > 0.0 && common.rerank_vectors == RerankVectors::None && queries.iter().any(of_document) {
            return Err(Error::config(
                "this index stores no rerank vectors, so the kind of one of its documents is not known; set kind to 0",
            ));
        }
        if config.after.is_some() && queries.len() > 1 {
            return Err(Error::config("a cursor belongs to one query; request the next page of one query at a time"));
        }
        let gathered = gather(shards, queries, first, common.language, config)?;
        let filter = FilterText::of(config, gathered.attributes.clone());
        let projecting = Instant::now();
        let mut tables = tables(common.model, queries, config)?.into_iter();
        let project = projecting.elapsed();
        let asked = queries.iter().map(|query| Asked::new(common, query, &mut tables, &gathered.examples, config));
        let asked: Vec<Asked> = asked.collect::<Result<_>>()?;
        if config.hybrid > 0.0
            && let Some(i) = asked.iter().position(|a| a.keywords.is_none())
        {
            return Err(Error::config(format!("query {i} has no keyword; give keywords, or set hybrid to 0")));
        }
        if let Some(cursor) = &config.after {
            cursor.check(asked[0].question(first, config), commit_number(gathered.commits.values()))?;
        }
        let (tokenise, encode) = (queries[0].tokenise, queries[0].encode);
        let timings =
            Timings { tokenise, encode, project, scan: begun.elapsed().saturating_sub(project), ..Timings::default() };
        let Known { statistics, commits, .. } = gathered;
        Ok(Request { shards, config, asked, filter, first, statistics, commits, timings })
    }

    /// One query that is a distance table, answered by code only.
    pub fn of_table(shards: &'a dyn Shards, table: DistanceTable, config: &'a SearchConfig) -> Self {
        let asked = vec![Asked { table, aims: Vec::new(), examples: Vec::new(), keywords: None }];
        let (statistics, commits, timings) = (KeywordStatistics::default(), BTreeMap::new(), Timings::default());
        Request { shards, config, asked, filter: None, first: 0, statistics, commits, timings }
    }

    /// The answers, in the order of the queries.
    pub fn run(mut self) -> Result<Vec<Answer>> {
        let request = self.request();
        let found = self.shards.find(&self.find(request))?;
        // A shard that was opened again between the two calls may have another commit, with other statistics.
        if found.iter().any(|(shard, found)| self.commits.get(shard).is_some_and(|commit| *commit != found.commit)) {
            return Err(Error::Busy("a shard has changed while the request was answered; ask again".into()));
        }
        // Shards work at the same time: the slowest counts.
        let slowest = |time: fn(&Found) -> std::time::Duration| found.values().map(time).max().unwrap_or_default();
        self.timings.scan += slowest(|found| found.scan);
        self.timings.keywords = slowest(|found| found.keywords);

        let begun = Instant::now();
        let commits: BTreeMap<usize, u64> = found.iter().map(|(shard, found)| (*shard, found.commit)).collect();
        let rerank = slowest(|found| found.rerank);
        let commit = commit_number(commits.values());
        let mut found = found;
        let along = along(&mut found);
        let merged = self.merge(found, &request);
        let work = self.asked.iter().zip(&merged);
        let pages: Vec<Page> = work.map(|(_, merged)| self.page(merged, &request, commit)).collect();
        self.timings.rerank = rerank + begun.elapsed();

        let begun = Instant::now();
        let hits = self.hits(&pages, &commits, along)?;
        self.timings.fetch = begun.elapsed();
        let parts = self.asked.iter().zip(pages).zip(hits).zip(merged);
        let answers = parts.map(|(((asked, page), hits), merged)| Answer {
            hits,
            next: page.next.map(|place| Cursor { question: asked.question(self.first, self.config), place }),
            explanation: self.config.explain.then(|| asked.explain(&page, merged.plans)),
            timings: self.timings,
        });
        Ok(answers.collect())
    }

    /// Hits of this list on earlier pages.
    fn given(&self) -> usize {
        match self.config.after.map(|cursor| cursor.place) {
            Some(Place::List { given, .. }) => given as usize,
            _ => 0,
        }
    }

    /// How many of each list are fused. All pages use the depth of the first, so that they come from one list.
    fn depth(&self) -> usize {
        match self.config.after.map(|cursor| cursor.place) {
            Some(Place::List { depth, .. }) => depth as usize,
            _ => MIN_FUSED.max(self.config.k).max(self.first),
        }
    }

    /// The most examples of a query. They are requested too, since they are not among their own hits.
    fn examples(&self) -> usize {
        self.asked.iter().map(|a| a.examples.len()).max().unwrap_or(0)
    }

    /// The request to the scan: one more than the page shows, to know whether there is a next page, and one more for every
    /// example.
    fn request(&self) -> TopKRequest {
        let (examples, radius) = (self.examples(), self.config.radius);
        if self.config.hybrid > 0.0 {
            return TopKRequest { k: self.depth() + examples, radius, after: None };
        }
        match self.config.after.map(|cursor| cursor.place) {
            Some(Place::Code { distance, sequence, .. }) => {
                TopKRequest { k: self.config.k + 1 + examples, radius, after: Some((distance, sequence)) }
            }
            _ => TopKRequest { k: (self.given() + self.config.k + 1).max(self.first) + examples, radius, after: None },
        }
    }

    fn find(&self, request: TopKRequest) -> Find {
        let query = |asked: &Asked| FindQuery {
            table: asked.table.values().to_vec(),
            aims: asked.aims.clone(),
            examples: asked.examples.clone(),
            keywords: asked.keywords.clone(),
        };
        let hybrid = self.config.hybrid > 0.0;
        Find {
            queries: self.asked.iter().map(query).collect(),
            k: request.k,
            radius: request.radius.map(f32::to_bits),
            after: request.after.map(|(distance, sequence)| (distance.to_bits(), sequence)),
            filter: self.filter.clone(),
            group: self.config.group,
            // A page that begins after a code has no re-ranked candidates.
            first: if request.after.is_some() { 0 } else { self.first },
            keywords: hybrid.then(|| FindKeywords { depth: self.depth(), statistics: self.statistics.clone() }),
            explain: self.config.explain,
            along: self.along(),
        }
    }

    /// The hits to come with the candidates. A short first page, or one in the order of codes, is most probably among the best of
    /// the shards; of a fused list no shard knows the best.
    fn along(&self) -> Option<Along> {
        let (count, documents) = (self.config.k, self.config.documents);
        let is_likely = self.config.hybrid == 0.0 && self.given() == 0 && count <= MAX_ALONG;
        let snippets = self.config.snippets.then(|| self.statistics.clone());
        (self.shards.are_remote() && is_likely).then_some(Along { count, documents, snippets })
    }

    /// The candidates of each query over all shards: the lists of one index that has all documents.
    fn merge(&self, found: BTreeMap<usize, Found>, request: &TopKRequest) -> Vec<Merged> {
        let mut all: Vec<Merged> = self.asked.iter().map(|_| Merged::default()).collect();
        let mut by_keywords: Vec<Vec<(f32, Placed)>> = vec![Vec::new(); all.len()];
        for (shard, found) in found {
            for (q, found) in found.queries.into_iter().enumerate() {
                let FoundQuery { near, sums, cosines, passages, .. } = &found;
                let placed = |(i, &near): (usize, &ShardCandidate)| {
                    let passage = passages.get(i).copied().unwrap_or(near);
                    let reranked = cosines.get(i).map(|&score| (score, passage));
                    Placed { shard, near, sum: sums.get(i).copied(), reranked }
                };
                all[q].near.extend(near.iter().enumerate().map(placed));
                let placed = |near| Placed { shard, near, sum: None, reranked: None };
                by_keywords[q].extend(found.scores.into_iter().zip(found.keywords.into_iter().map(placed)));
                all[q].plans.extend(found.plans);
            }
        }
        // Every shard gave `request.k`, less the examples; beyond that many the merged list may have gaps.
        let complete = request.k - self.examples();
        for (merged, mut keywords) in all.iter_mut().zip(by_keywords) {
            merged.near.sort_by(Placed::order);
            merged.near.truncate(complete);
            keywords.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.near.sequence.cmp(&b.1.near.sequence)));
            keywords.truncate(self.depth());
            keywords.retain(|(_, placed)| request.radius.is_none_or(|r| placed.near.distance <= r));
            merged.keywords = keywords.into_iter().map(|(_, placed)| placed).collect();
        }
        all
    }

    fn page(&self, merged: &Merged, request: &TopKRequest, commit: u64) -> Page {
        let (k, given, near) = (self.config.k, self.given(), &merged.near);
        let list = |given: usize, depth: usize| Place::List { commit, given: given as u32, depth: depth as u32 };
        if self.config.hybrid > 0.0 {
            let depth = self.depth();
            let fused = rank::fuse(&self.rank(near, near.len()), &merged.keywords, self.config.hybrid);
            let hits: Vec<Ranked> = fused.iter().skip(given).take(k).copied().collect();
            let next = (fused.len() > given + k).then(|| list(given + k, depth));
            let reranked = self.first.min(near.len());
            return Page { hits, next, candidates: near.len(), reranked, by_keywords: merged.keywords.len() };
        }
        if request.after.is_some() {
            // After the re-ranked candidates, if there are any, the order is that of codes.
            let near_k = &near[..k.min(near.len())];
            let hits: Vec<Ranked> = match self.first {
                0 => rank::by_code(near_k),
                _ => near_k.iter().map(|candidate| candidate.behind()).collect(),
            };
            let next = near_k.last().filter(|_| near.len() > k).map(|last| code_place(last, self.first > 0));
            return Page { hits, next, candidates: near.len(), reranked: 0, by_keywords: 0 };
        }
        let end = given + k;
        let hits: Vec<Ranked> = self.rank(near, end).into_iter().skip(given).collect();
        // After the re-ranked candidates the order is that of codes, which stays exact whatever is committed meanwhile. Sums
        // have no place in that order.
        let by_code = end >= self.first && near.iter().all(|candidate| candidate.sum.is_none());
        let next = (near.len() > end).then(|| match by_code {
            true => code_place(&near[end - 1], self.first > 0),
            false => list(end, 0),
        });
        Page { hits, next, candidates: near.len(), reranked: self.first.min(near.len()), by_keywords: 0 }
    }

    /// The first `most` of the list that the user sees.
    fn rank(&self, near: &[Placed], most: usize) -> Vec<Ranked> {
        match self.first {
            0 => rank::by_code(&near[..most.min(near.len())]),
            first => rank::rerank(near, first, most),
        }
    }

    /// The hits of all pages. Those that did not come along are fetched from their shards.
    fn hits(&self, pages: &[Page], commits: &BTreeMap<usize, u64>, mut along: Hits) -> Result<Vec<Vec<Hit>>> {
        let mut calls: BTreeMap<usize, Fetch> = BTreeMap::new();
        for (q, page) in pages.iter().enumerate() {
            for Ranked { candidate, .. } in page.hits.iter().filter(|hit| !along.contains_key(&key(q, hit))) {
                let new = || self.fetch(commits[&candidate.shard]);
                calls.entry(candidate.shard).or_insert_with(new).queries[q].near.push(candidate.near);
            }
        }
        let fetched = if calls.is_empty() { BTreeMap::new() } else { self.shards.fetch(&calls)? };
        let mut fetched: BTreeMap<usize, Vec<std::vec::IntoIter<Hit>>> = fetched
            .into_iter()
            .map(|(shard, queries)| (shard, queries.into_iter().map(Vec::into_iter).collect()))
            .collect();
        let mut hit = |q: usize, ranked: &Ranked| {
            if let Some(hit) = along.remove(&key(q, ranked)) {
                return Ok(Hit { score: ranked.score, ..hit });
            }
            let hits = fetched.get_mut(&ranked.candidate.shard).and_then(|queries| queries.get_mut(q)?.next());
            let missing = || Error::Busy(format!("shard {} gave no hits; ask again", ranked.candidate.shard));
            Ok(Hit { score: ranked.score, ..hits.ok_or_else(missing)? })
        };
        pages.iter().enumerate().map(|(q, page)| page.hits.iter().map(|r| hit(q, r)).collect()).collect()
    }

    fn fetch(&self, commit: u64) -> Fetch {
        let query = |asked: &Asked| FetchQuery {
            near: Vec::new(),
            keywords: asked.keywords.clone(),
            table: if self.config.explain { asked.table.values().to_vec() } else { Vec::new() },
        };
        Fetch {
            commit,
            queries: self.asked.iter().map(query).collect(),
            documents: self.config.documents,
            snippets: self.config.snippets.then(|| self.statistics.clone()),
            max_bytes: self.config.max_bytes,
        }
    }
}

/// Hits by query, shard, segment and row.
type Hits = HashMap<(usize, usize, u32, u32), Hit>;

fn key(query: usize, Ranked { candidate, .. }: &Ranked) -> (usize, usize, u32, u32) {
    (query, candidate.shard, candidate.near.segment, candidate.near.row)
}

/// Takes the hits that came with the candidates.
fn along(found: &mut BTreeMap<usize, Found>) -> Hits {
    let mut hits = Hits::new();
    for (&shard, found) in found {
        for (q, query) in found.queries.iter_mut().enumerate() {
            let own = query.hits.drain(..).map(|(segment, row, hit)| ((q, shard, segment, row), Hit::from(hit)));
            hits.extend(own);
        }
    }
    hits
}

fn code_place(placed: &Placed, tail: bool) -> Place {
    Place::Code { distance: placed.near.distance, sequence: placed.near.sequence, tail }
}

/// One number for the commits of all shards.
fn commit_number<'a>(commits: impl ExactSizeIterator<Item = &'a u64>) -> u64 {
    let commits: Vec<u64> = commits.copied().collect();
    if let [one] = commits[..] {
        return one;
    }
    let mut hash = Sha256::new();
    commits.iter().for_each(|commit| hash.update(commit.to_le_bytes()));
    u64::from_le_bytes(hash.finalize()[..8].try_into().expect("32 bytes"))
}

/// Facts gathered from all shards.
#[derive(Default)]
struct Known {
    /// By shard.
    commits: BTreeMap<usize, u64>,
    examples: BTreeMap<DocId, Example>,
    statistics: KeywordStatistics,
    /// `None` where there is no document: an empty index knows no attributes, so no name can be refused.
    attributes: Option<BTreeSet<String>>,
}

/// Asks the shards what the request must know. A plain search needs nothing.
fn gather(
    shards: &dyn Shards,
    queries: &[Embedded],
    first: usize,
    language: Language,
    config: &SearchConfig,
) -> Result<Known> {
    let like = queries.iter().flat_map(|query| &query.like);
    let examples = like.filter_map(|(point, _)| if let Point::Document(id) = point { Some(id.clone()) } else { None });
    let keywords = queries.iter().filter(|_| config.hybrid > 0.0 || config.snippets);
    let keywords = keywords.filter_map(|query| Keywords::new(query.keywords.as_deref()?, language));
    let call = Gather {
        examples: examples.collect(),
        vectors: first > 0 || config.kind > 0.0,
        stems: keywords.flat_map(|keywords| keywords.stems().to_vec()).collect(),
        attributes: config.filter.is_some(),
    };
    if call.examples.is_empty() && call.stems.is_empty() && !call.attributes && config.after.is_none() {
        return Ok(Known::default());
    }
    let replies = shards.gather(&call)?;
    let commits = replies.iter().map(|(shard, reply)| (*shard, reply.commit)).collect();
    let mut known = Known { commits, ..Known::default() };
    let documents: u64 = replies.values().map(|reply| reply.documents).sum();
    let mut attributes = BTreeSet::new();
    for Gathered { examples, keywords, attributes: names, .. } in replies.into_values() {
        let found = call.examples.iter().zip(examples);
        known.examples.extend(found.filter_map(|(id, example)| Some((id.clone(), example?))));
        known.statistics.add(&keywords);
        attributes.extend(names);
    }
    known.attributes = (documents > 0).then_some(attributes);
    Ok(known)
}

/// Distance tables of all embeddings of all queries, in order: one product for the whole batch.
fn tables(model: &Model, queries: &[Embedded], config: &SearchConfig) -> Result<Vec<DistanceTable>> {
    let like = queries.iter().flat_map(|query| &query.like);
    let points: Vec<(&[f32], Option<&[f32]>)> = like
        .filter_map(|(point, _)| match point {
            Point::Embedding { embedding, projected } => Some((embedding.as_slice(), projected.as_deref())),
            Point::Document(_) => None,
        })
        .collect();
    let distance = config.distance.unwrap_or(model.config.distance);
    let rows: Vec<f32> =
        points.iter().filter(|(_, projected)| projected.is_none()).flat_map(|p| p.0).copied().collect();
    let mut computed = match rows.is_empty() {
        true => Vec::new(),
        false => model.tables(&Matrix::from_vec(model.inputs(), rows), distance)?,
    }
    .into_iter();
    let table = |(_, projected): &(&[f32], Option<&[f32]>)| match projected {
        Some(projected) => model.codebooks().table(projected, distance),
        None => computed.next().expect("a table for every embedding"),
    };
    let tables: Vec<DistanceTable> = points.iter().map(table).collect();
    let embeddings = || points.iter().flat_map(|(embedding, _)| *embedding).copied().collect();
    by_kind(model, tables, || Matrix::from_vec(model.inputs(), embeddings()), config.kind)
}

/// The tables with those by kind of the same queries, where the request weighs the kind.
fn by_kind(
    model: &Model,
    tables: Vec<DistanceTable>,
    embeddings: impl FnOnce() -> Matrix,
    weight: f32,
) -> Result<Vec<DistanceTable>> {
    match model.kinds().filter(|_| weight > 0.0 && !tables.is_empty()) {
        None => Ok(tables),
        Some(kinds) => {
            let kinds = kinds.tables(&embeddings())?;
            Ok(tables.iter().zip(&kinds).map(|(table, kind)| table.with_kind(kind, weight)).collect())
        }
    }
}

impl Asked {
    /// `built` holds the distance tables of the embeddings of this and later queries.
    fn new(
        common: Common,
        query: &Embedded,
        built: &mut impl Iterator<Item = DistanceTable>,
        known: &BTreeMap<DocId, Example>,
        config: &SearchConfig,
    ) -> Result<Asked> {
        let model = common.model;
        let distance = config.distance.unwrap_or(model.config.distance);
        let total: f32 = query.like.iter().map(|(_, weight)| weight).sum();
        let (mut tables, mut aims, mut examples) = (Vec::new(), Vec::new(), Vec::new());
        for (point, weight) in &query.like {
            let weight = weight / total;
            match point {
                Point::Embedding { embedding, .. } => {
                    tables.push((built.next().expect("a table for every embedding"), weight));
                    aims.push(Aim { embedding: embedding.clone(), weight });
                }
                Point::Document(id) => {
                    let example = known.get(id).ok_or_else(|| unknown(id))?;
                    // Like all its chunks alike.
                    let weight = weight / example.chunks.len() as f32;
                    for chunk in &example.chunks {
                        let table = model.codebooks().symmetric_table(&chunk.code, distance);
                        let embedding = || Matrix::from_vec(model.inputs(), chunk.vector.clone());
                        let table = by_kind(model, vec![table], embedding, config.kind)?.remove(0);
                        tables.push((table, weight));
                        if !chunk.vector.is_empty() {
                            aims.push(Aim { embedding: chunk.vector.clone(), weight });
                        }
                    }
                    examples.push(id.clone());
                }
            }
        }
        let table = fused(model.shape(), tables)?;
        let keywords = match config.hybrid > 0.0 || config.snippets {
            true => query.keywords.as_deref().and_then(|text| Keywords::new(text, common.language)),
            false => None,
        };
        Ok(Asked { table, aims, examples, keywords })
    }

    /// The hash by which a cursor of this query is recognised.
    fn question(&self, first: usize, config: &SearchConfig) -> u64 {
        let stems = self.keywords.as_ref().filter(|_| config.hybrid > 0.0).map(Keywords::stems);
        Cursor::question(&self.table, stems, first, config)
    }

    fn explain(&self, page: &Page, segments: Vec<SegmentPlan>) -> Explanation {
        let size = self.table.values().len() / self.table.shape().num_codebooks();
        Explanation {
            codewords: self.table.values().chunks_exact(size).map(nearest_codeword).collect(),
            segments,
            candidates: page.candidates,
            reranked: page.reranked,
            keywords: self.keywords.as_ref().map_or(Vec::new(), |keywords| keywords.stems().to_vec()),
            by_keywords: page.by_keywords,
            backend: kernels::Backend::active().name().to_owned(),
        }
    }
}

/// The codeword of the least distance, the first of equally near ones.
fn nearest_codeword(distances: &[f32]) -> u8 {
    let least = distances.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
    least.map_or(0, |(codeword, _)| codeword as u8)
}

fn unknown(id: &DocId) -> Error {
    Error::input(format!("document {id}"), "is not in the index; give the id of one that is")
}

/// Several tables as one: each value the weighted sum, so that a document's distance is the weighted sum of its
/// distances. One table stays as it is.
fn fused(shape: CodeShape, tables: Vec<(DistanceTable, f32)>) -> Result<DistanceTable> {
    if tables.len() == 1 {
        return Ok(tables.into_iter().next().expect("one").0);
    }
    let mut sum = vec![0.0; shape.num_codebooks() * shape.codebook_size()];
    for (table, weight) in &tables {
        sum.iter_mut().zip(table.values()).for_each(|(s, v)| *s += weight * v);
    }
    DistanceTable::new(shape, sum)
}
