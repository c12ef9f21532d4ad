//! One batch of queries: distance tables, scan, re-ranking, fusion, page.

use std::time::Instant;

use rayon::prelude::*;
use tantivy::DocAddress;

use super::answer::{Answer, Explanation, Hit, Timings};
use super::ask::{Embedded, Point};
use super::config::{Rerank, SearchConfig};
use super::cursor::{Cursor, Place};
use super::fetch;
use super::rank::{self, Ranked, WeightedEmbeddings};
use crate::corpus::DocId;
use crate::index::{Candidate, Filter, Keywords, Reader, RerankVectors, Scanned, Store};
use crate::model::{CodeShape, DistanceTable};
use crate::search::TopKRequest;
use crate::{Error, Matrix, Result};

/// A hybrid search fuses at least this many of each list. A deeper document adds less than 1 / 1,060.
const MIN_FUSED: usize = 1000;

/// A batch of queries with the same options.
pub(super) struct Request<'a> {
    reader: Reader,
    config: &'a SearchConfig,
    asked: Vec<Asked>,
    filter: Option<Filter>,
    /// Candidates to re-rank; 0 without re-ranking.
    first: usize,
    timings: Timings,
}

/// One query of the batch.
struct Asked {
    table: DistanceTable,
    /// For re-ranking.
    aims: WeightedEmbeddings,
    /// Documents of the index that are examples of the query.
    examples: Vec<DocAddress>,
    keywords: Option<Keywords>,
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
    pub fn new(reader: Reader, queries: &[Embedded], config: &'a SearchConfig) -> Result<Self> {
        let begun = Instant::now();
        let first = match config.rerank {
            Rerank::Off => 0,
            Rerank::Auto if reader.rerank_vectors() == RerankVectors::None => 0,
            Rerank::Auto => Rerank::DEFAULT,
            Rerank::First(_) if reader.rerank_vectors() == RerankVectors::None => {
                return Err(Error::config(
                    "this index stores no rerank vectors; leave rerank out, or build the index with rerank_vectors int8",
                ));
            }
            Rerank::First(n) => n,
        };
        if reader.store() == Store::Codes && (config.hybrid > 0.0 || config.snippets) {
            return Err(Error::config(
                "this index stores only ids and codes: it has no keywords to search or to mark; build it with store all",
            ));
        }
        if config.after.is_some() && queries.len() > 1 {
            return Err(Error::config("a cursor belongs to one query; request the next page of one query at a time"));
        }
        let filter = config.filter.as_deref().map(|text| reader.filter(text)).transpose()?;
        let mut tables = tables(&reader, queries, config)?.into_iter();
        let asked = queries.iter().map(|query| Asked::new(&reader, query, &mut tables, first, config));
        let asked: Vec<Asked> = asked.collect::<Result<_>>()?;
        if config.hybrid > 0.0
            && let Some(i) = asked.iter().position(|a| a.keywords.is_none())
        {
            return Err(Error::config(format!("query {i} has no keyword; give keywords, or set hybrid to 0")));
        }
        if let Some(cursor) = &config.after {
            cursor.check(asked[0].question(first, config), reader.number())?;
        }
        let (tokenise, encode) = (queries[0].tokenise, queries[0].encode);
        let timings = Timings { tokenise, encode, scan: begun.elapsed(), ..Timings::default() };
        Ok(Request { reader, config, asked, filter, first, timings })
    }

    /// The answers, in the order of the queries.
    pub fn run(mut self) -> Result<Vec<Answer>> {
        let begun = Instant::now();
        let request = self.request();
        let tables: Vec<DistanceTable> = self.asked.iter().map(|a| a.table.clone()).collect();
        let (found, scanned): (Vec<_>, Vec<_>) =
            self.reader.nearest(&tables, &request, self.filter.as_ref())?.into_iter().unzip();
        self.timings.scan += begun.elapsed();

        let begun = Instant::now();
        let by_keywords: Vec<Vec<Candidate>> = if self.config.hybrid > 0.0 {
            each(&self.asked, |asked| self.by_keywords(asked, self.depth()))?
        } else {
            vec![Vec::new(); self.asked.len()]
        };
        self.timings.keywords = begun.elapsed();

        let begun = Instant::now();
        let work: Vec<_> = self.asked.iter().zip(found.into_iter().zip(by_keywords)).collect();
        let pages = each(&work, |(asked, (near, keywords))| self.page(asked, near, keywords, &request))?;
        self.timings.rerank = begun.elapsed();

        let begun = Instant::now();
        let work: Vec<(&Asked, Page)> = self.asked.iter().zip(pages).collect();
        let hits = each(&work, |(asked, page)| self.hits(asked, page))?;
        self.timings.fetch = begun.elapsed();
        let answers = work.iter().zip(hits).zip(&scanned).map(|(((asked, page), hits), scanned)| Answer {
            hits,
            next: page.next.map(|place| Cursor { question: asked.question(self.first, self.config), place }),
            explanation: self.config.explain.then(|| asked.explain(page, scanned)),
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

    /// The request to the scan: one more than the page shows, to know whether there is a next page, and one more for every
    /// example, which is not among its own hits.
    fn request(&self) -> TopKRequest {
        let examples = self.asked.iter().map(|a| a.examples.len()).max().unwrap_or(0);
        let radius = self.config.radius;
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

    fn by_keywords(&self, asked: &Asked, depth: usize) -> Result<Vec<Candidate>> {
        let Some(keywords) = &asked.keywords else { return Ok(Vec::new()) };
        let limit = depth + asked.examples.len();
        let mut near = self.reader.by_keywords(keywords, &asked.table, self.filter.as_ref(), limit)?;
        near.retain(|n| !asked.examples.contains(&n.address) && self.config.radius.is_none_or(|r| n.distance <= r));
        near.truncate(depth);
        Ok(near)
    }

    fn page(&self, asked: &Asked, near: &[Candidate], keywords: &[Candidate], request: &TopKRequest) -> Result<Page> {
        let (k, given) = (self.config.k, self.given());
        let near: Vec<Candidate> = near.iter().filter(|n| !asked.examples.contains(&n.address)).copied().collect();
        let list = |given: usize, depth: usize| Place::List {
            commit: self.reader.number(),
            given: given as u32,
            depth: depth as u32,
        };
        if self.config.hybrid > 0.0 {
            let depth = self.depth();
            let near = &near[..near.len().min(depth)];
            let codes = self.rank(asked, near)?;
            let fused = rank::fuse(&codes, keywords, self.config.hybrid);
            let hits: Vec<Ranked> = fused.iter().skip(given).take(k).copied().collect();
            let next = (fused.len() > given + k).then(|| list(given + k, depth));
            let reranked = self.first.min(near.len());
            return Ok(Page { hits, next, candidates: near.len(), reranked, by_keywords: keywords.len() });
        }
        if request.after.is_some() {
            // After the re-ranked candidates, if there are any, the order is that of codes.
            let shift = if self.first > 0 { 1.0 } else { 0.0 };
            let hits: Vec<Ranked> =
                near.iter().take(k).map(|&near| Ranked { candidate: near, score: -near.distance - shift }).collect();
            let next =
                (near.len() > k).then(|| hits.last().map(|last| code_place(&last.candidate, shift > 0.0))).flatten();
            return Ok(Page { hits, next, candidates: near.len(), reranked: 0, by_keywords: 0 });
        }
        let ranked = self.rank(asked, &near)?;
        let hits: Vec<Ranked> = ranked.iter().skip(given).take(k).copied().collect();
        let end = given + k;
        let next = (ranked.len() > end).then(|| {
            // After the re-ranked candidates the order is that of codes, which stays exact whatever is committed meanwhile.
            if end >= self.first { code_place(&near[end - 1], self.first > 0) } else { list(end, 0) }
        });
        Ok(Page { hits, next, candidates: near.len(), reranked: self.first.min(near.len()), by_keywords: 0 })
    }

    fn rank(&self, asked: &Asked, near: &[Candidate]) -> Result<Vec<Ranked>> {
        match self.first {
            0 => Ok(rank::by_code(near)),
            first => rank::rerank(&self.reader, near, first, &asked.aims),
        }
    }

    fn hits(&self, asked: &Asked, page: &Page) -> Result<Vec<Hit>> {
        let keywords = asked.keywords.as_ref().filter(|_| self.config.snippets);
        let snippets = keywords.map(|keywords| self.reader.snippets(keywords, fetch::SNIPPET)).transpose()?;
        page.hits
            .iter()
            .map(|ranked| fetch::hit(&self.reader, ranked, &asked.table, snippets.as_ref(), self.config))
            .collect()
    }
}

fn code_place(near: &Candidate, tail: bool) -> Place {
    Place::Code { distance: near.distance, sequence: near.sequence, tail }
}

/// Distance tables of all embeddings of all queries, in order: one product for the whole batch.
fn tables(reader: &Reader, queries: &[Embedded], config: &SearchConfig) -> Result<Vec<DistanceTable>> {
    let model = reader.model();
    let like = queries.iter().flat_map(|query| &query.like);
    let embeddings = like.filter_map(|(point, _)| if let Point::Embedding(f) = point { Some(f) } else { None });
    let rows: Vec<f32> = embeddings.flatten().copied().collect();
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    model.tables(&Matrix::from_vec(model.inputs(), rows), config.distance.unwrap_or(model.config.distance))
}

impl Asked {
    /// `built` holds the distance tables of the embeddings of this and later queries.
    fn new(
        reader: &Reader,
        query: &Embedded,
        built: &mut impl Iterator<Item = DistanceTable>,
        first: usize,
        config: &SearchConfig,
    ) -> Result<Asked> {
        let model = reader.model();
        let distance = config.distance.unwrap_or(model.config.distance);
        let total: f32 = query.like.iter().map(|(_, weight)| weight).sum();
        let (mut tables, mut aims, mut examples) = (Vec::new(), WeightedEmbeddings::new(), Vec::new());
        for (point, weight) in &query.like {
            let weight = weight / total;
            match point {
                Point::Embedding(embedding) => {
                    tables.push((built.next().expect("a table for every embedding"), weight));
                    aims.push((embedding.clone(), weight));
                }
                Point::Document(id) => {
                    let address = reader.find(id)?.ok_or_else(|| unknown(id))?;
                    tables.push((model.codebooks().symmetric_table(&reader.code(address)?, distance), weight));
                    if first > 0 {
                        reader.read_rerank_vectors([address].into_iter(), |embedding| {
                            aims.push((embedding.to_vec(), weight))
                        })?;
                    }
                    examples.push(address);
                }
            }
        }
        let table = fused(model.shape(), tables)?;
        let keywords = match config.hybrid > 0.0 || config.snippets {
            true => query.keywords.as_deref().and_then(|text| reader.keywords(text)),
            false => None,
        };
        Ok(Asked { table, aims, examples, keywords })
    }

    /// The hash by which a cursor of this query is recognised.
    fn question(&self, first: usize, config: &SearchConfig) -> u64 {
        let stems = self.keywords.as_ref().filter(|_| config.hybrid > 0.0).map(Keywords::stems);
        Cursor::question(&self.table, stems, first, config)
    }

    fn explain(&self, page: &Page, scanned: &[Scanned]) -> Explanation {
        Explanation {
            segments: fetch::plans(scanned),
            candidates: page.candidates,
            reranked: page.reranked,
            keywords: self.keywords.as_ref().map_or(Vec::new(), |keywords| keywords.stems().to_vec()),
            by_keywords: page.by_keywords,
            backend: kernels::Backend::active().name().to_owned(),
        }
    }
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

/// In parallel where there are several.
pub(super) fn each<T: Sync, U: Send>(items: &[T], work: impl Fn(&T) -> Result<U> + Sync + Send) -> Result<Vec<U>> {
    if items.len() > 1 { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}
