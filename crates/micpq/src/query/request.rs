//! One request on its way: tables, scan, second stage, fusion, page.

use std::time::Instant;

use rayon::prelude::*;
use tantivy::DocAddress;

use super::answer::{Answer, Explanation, Hit, Timings};
use super::ask::{Embedded, Point};
use super::config::{Rerank, SearchConfig};
use super::cursor::{Cursor, Place};
use super::fetch;
use super::rank::{self, Aims, Ranked};
use crate::corpus::DocId;
use crate::index::{Filter, Keep, Near, Reader, Scanned, Store, Words};
use crate::model::{CodeShape, Table};
use crate::search::Want;
use crate::{Error, Matrix, Result};

/// How many of each list a hybrid search fuses at least. What lies deeper in both would add less than 1 / 1,060.
const FUSED: usize = 1000;

/// One request on its way.
pub(super) struct Request<'a> {
    reader: Reader,
    config: &'a SearchConfig,
    asked: Vec<Asked>,
    filter: Option<Filter>,
    /// Candidates ranked again; 0 where there is no second stage.
    first: usize,
    timings: Timings,
}

/// One query of it.
struct Asked {
    table: Table,
    /// For the second stage.
    aims: Aims,
    /// Documents that are themselves examples.
    examples: Vec<DocAddress>,
    words: Option<Words>,
}

/// A page before its documents are fetched.
struct Page {
    hits: Vec<Ranked>,
    next: Option<Place>,
    candidates: usize,
    reranked: usize,
    by_words: usize,
}

impl<'a> Request<'a> {
    pub fn new(reader: Reader, queries: &[Embedded], config: &'a SearchConfig) -> Result<Self> {
        let begun = Instant::now();
        let first = match config.rerank {
            Rerank::Off => 0,
            Rerank::Auto if reader.keep() == Keep::None => 0,
            Rerank::Auto => Rerank::DEFAULT,
            Rerank::First(_) if reader.keep() == Keep::None => {
                return Err(Error::config(
                    "this index keeps no features to rank again by; leave rerank out, or build it with --keep int8",
                ));
            }
            Rerank::First(n) => n,
        };
        if reader.store() == Store::Codes && (config.hybrid > 0.0 || config.snippets) {
            return Err(Error::config(
                "this index keeps only ids and codes: it has no words to search or to mark; build it with --store all",
            ));
        }
        if config.after.is_some() && queries.len() > 1 {
            return Err(Error::config("a cursor belongs to one query; ask for the next page of one query at a time"));
        }
        let filter = config.filter.as_deref().map(|text| reader.filter(text)).transpose()?;
        let mut tables = tables(&reader, queries, config)?.into_iter();
        let asked = queries.iter().map(|query| Asked::new(&reader, query, &mut tables, first, config));
        let asked: Vec<Asked> = asked.collect::<Result<_>>()?;
        if config.hybrid > 0.0
            && let Some(i) = asked.iter().position(|a| a.words.is_none())
        {
            return Err(Error::config(format!("query {i} has no word to look for; give words, or set hybrid to 0")));
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
        let want = self.want();
        let tables: Vec<Table> = self.asked.iter().map(|a| a.table.clone()).collect();
        let (found, scanned): (Vec<_>, Vec<_>) =
            self.reader.nearest(&tables, &want, self.filter.as_ref())?.into_iter().unzip();
        self.timings.scan += begun.elapsed();

        let begun = Instant::now();
        let by_words: Vec<Vec<Near>> = if self.config.hybrid > 0.0 {
            each(&self.asked, |asked| self.by_words(asked, self.depth()))?
        } else {
            vec![Vec::new(); self.asked.len()]
        };
        self.timings.words = begun.elapsed();

        let begun = Instant::now();
        let work: Vec<_> = self.asked.iter().zip(found.into_iter().zip(by_words)).collect();
        let pages = each(&work, |(asked, (near, words))| self.page(asked, near, words, &want))?;
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

    /// Hits of this list that earlier pages gave.
    fn given(&self) -> usize {
        match self.config.after.map(|cursor| cursor.place) {
            Some(Place::List { given, .. }) => given as usize,
            _ => 0,
        }
    }

    /// How many of each list are fused, so that page after page comes from one list.
    fn depth(&self) -> usize {
        match self.config.after.map(|cursor| cursor.place) {
            Some(Place::List { depth, .. }) => depth as usize,
            _ => FUSED.max(self.config.k).max(self.first),
        }
    }

    /// What the scan is asked for: one more than is shown, which tells whether there is a next page, and one more for
    /// every example that is not to be among its own hits.
    fn want(&self) -> Want {
        let examples = self.asked.iter().map(|a| a.examples.len()).max().unwrap_or(0);
        let within = self.config.within;
        if self.config.hybrid > 0.0 {
            return Want { k: self.depth() + examples, within, after: None };
        }
        match self.config.after.map(|cursor| cursor.place) {
            Some(Place::Code { distance, sequence, .. }) => {
                Want { k: self.config.k + 1 + examples, within, after: Some((distance, sequence)) }
            }
            _ => Want { k: (self.given() + self.config.k + 1).max(self.first) + examples, within, after: None },
        }
    }

    fn by_words(&self, asked: &Asked, depth: usize) -> Result<Vec<Near>> {
        let Some(words) = &asked.words else { return Ok(Vec::new()) };
        let limit = depth + asked.examples.len();
        let mut near = self.reader.by_words(words, &asked.table, self.filter.as_ref(), limit)?;
        near.retain(|n| !asked.examples.contains(&n.address) && self.config.within.is_none_or(|r| n.distance <= r));
        near.truncate(depth);
        Ok(near)
    }

    fn page(&self, asked: &Asked, near: &[Near], words: &[Near], want: &Want) -> Result<Page> {
        let (k, given) = (self.config.k, self.given());
        let near: Vec<Near> = near.iter().filter(|n| !asked.examples.contains(&n.address)).copied().collect();
        let list = |given: usize, depth: usize| Place::List {
            commit: self.reader.number(),
            given: given as u32,
            depth: depth as u32,
        };
        if self.config.hybrid > 0.0 {
            let depth = self.depth();
            let near = &near[..near.len().min(depth)];
            let codes = self.rank(asked, near)?;
            let fused = rank::fuse(&codes, words, self.config.hybrid);
            let hits: Vec<Ranked> = fused.iter().skip(given).take(k).copied().collect();
            let next = (fused.len() > given + k).then(|| list(given + k, depth));
            let reranked = self.first.min(near.len());
            return Ok(Page { hits, next, candidates: near.len(), reranked, by_words: words.len() });
        }
        if want.after.is_some() {
            // Behind what was ranked again, if anything was: only codes order here.
            let shift = if self.first > 0 { 1.0 } else { 0.0 };
            let hits: Vec<Ranked> =
                near.iter().take(k).map(|&near| Ranked { near, score: -near.distance - shift }).collect();
            let next = (near.len() > k).then(|| hits.last().map(|last| code_place(&last.near, shift > 0.0))).flatten();
            return Ok(Page { hits, next, candidates: near.len(), reranked: 0, by_words: 0 });
        }
        let ranked = self.rank(asked, &near)?;
        let hits: Vec<Ranked> = ranked.iter().skip(given).take(k).copied().collect();
        let end = given + k;
        let next = (ranked.len() > end).then(|| {
            // From the end of the head on the order is that of codes, which goes on whatever is committed meanwhile.
            if end >= self.first { code_place(&near[end - 1], self.first > 0) } else { list(end, 0) }
        });
        Ok(Page { hits, next, candidates: near.len(), reranked: self.first.min(near.len()), by_words: 0 })
    }

    fn rank(&self, asked: &Asked, near: &[Near]) -> Result<Vec<Ranked>> {
        match self.first {
            0 => Ok(rank::by_code(near)),
            first => rank::again(&self.reader, near, first, &asked.aims),
        }
    }

    fn hits(&self, asked: &Asked, page: &Page) -> Result<Vec<Hit>> {
        let words = asked.words.as_ref().filter(|_| self.config.snippets);
        let snippets = words.map(|words| self.reader.snippets(words, fetch::SNIPPET)).transpose()?;
        page.hits
            .iter()
            .map(|ranked| fetch::hit(&self.reader, ranked, &asked.table, snippets.as_ref(), self.config))
            .collect()
    }
}

fn code_place(near: &Near, tail: bool) -> Place {
    Place::Code { distance: near.distance, sequence: near.sequence, tail }
}

/// Tables of all features of all queries, in their order: one product for the whole batch.
fn tables(reader: &Reader, queries: &[Embedded], config: &SearchConfig) -> Result<Vec<Table>> {
    let model = reader.model();
    let like = queries.iter().flat_map(|query| &query.like);
    let features = like.filter_map(|(point, _)| if let Point::Feature(f) = point { Some(f) } else { None });
    let rows: Vec<f32> = features.flatten().copied().collect();
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    model.tables(&Matrix::from_vec(model.inputs(), rows), config.distance.unwrap_or(model.config.distance))
}

impl Asked {
    /// `made` are the tables of the features still to come.
    fn new(
        reader: &Reader,
        query: &Embedded,
        made: &mut impl Iterator<Item = Table>,
        first: usize,
        config: &SearchConfig,
    ) -> Result<Asked> {
        let model = reader.model();
        let distance = config.distance.unwrap_or(model.config.distance);
        let total: f32 = query.like.iter().map(|(_, weight)| weight).sum();
        let (mut tables, mut aims, mut examples) = (Vec::new(), Aims::new(), Vec::new());
        for (point, weight) in &query.like {
            let weight = weight / total;
            match point {
                Point::Feature(feature) => {
                    tables.push((made.next().expect("a table for every feature"), weight));
                    aims.push((feature.clone(), weight));
                }
                Point::Document(id) => {
                    let address = reader.find(id)?.ok_or_else(|| unknown(id))?;
                    tables.push((model.codebooks().symmetric_table(&reader.code(address), distance), weight));
                    if first > 0 {
                        reader.features([address].into_iter(), |feature| aims.push((feature.to_vec(), weight)))?;
                    }
                    examples.push(address);
                }
            }
        }
        let table = fused(model.shape(), tables)?;
        let words = match config.hybrid > 0.0 || config.snippets {
            true => query.words.as_deref().and_then(|text| reader.words(text)),
            false => None,
        };
        Ok(Asked { table, aims, examples, words })
    }

    /// What a cursor of this query is known by.
    fn question(&self, first: usize, config: &SearchConfig) -> u64 {
        let stems = self.words.as_ref().filter(|_| config.hybrid > 0.0).map(Words::stems);
        Cursor::question(&self.table, stems, first, config)
    }

    fn explain(&self, page: &Page, scanned: &[Scanned]) -> Explanation {
        Explanation {
            segments: fetch::plans(scanned),
            candidates: page.candidates,
            reranked: page.reranked,
            words: self.words.as_ref().map_or(Vec::new(), |words| words.stems().to_vec()),
            by_words: page.by_words,
            backend: kernels::Backend::active().name().to_owned(),
        }
    }
}

fn unknown(id: &DocId) -> Error {
    Error::input(format!("document {id}"), "is not in the index; give the id of one that is")
}

/// Several tables as one: each value the weighted sum, so that a document's distance is the weighted sum of its
/// distances. One table stays as it is.
fn fused(shape: CodeShape, tables: Vec<(Table, f32)>) -> Result<Table> {
    if tables.len() == 1 {
        return Ok(tables.into_iter().next().expect("one").0);
    }
    let mut sum = vec![0.0; shape.books() * shape.words()];
    for (table, weight) in &tables {
        sum.iter_mut().zip(table.values()).for_each(|(s, v)| *s += weight * v);
    }
    Table::new(shape, sum)
}

/// In parallel where there are several.
pub(super) fn each<T: Sync, U: Send>(items: &[T], work: impl Fn(&T) -> Result<U> + Sync + Send) -> Result<Vec<U>> {
    if items.len() > 1 { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}
