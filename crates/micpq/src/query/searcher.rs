//! From questions to answers.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use tantivy::DocAddress;

use super::answer::{Answer, Explanation, Hit, SegmentPlan, Snippet, Timings};
use super::ask::{Embedded, Like, Point, Query};
use super::config::{Rerank, SearchConfig};
use super::cursor::{Cursor, Place};
use super::rank::{self, Aims, Ranked};
use crate::corpus::DocId;
use crate::encoder::Features;
use crate::index::{Filter, Index, Keep, Near, Reader, Scanned, Store, Stored, Words};
use crate::model::{CodeShape, FeatureConfig, Table};
use crate::search::Want;
use crate::{Error, Matrix, Result, Watch};

/// How many of each list a hybrid search fuses at least. What lies deeper in both would add less than 1 / 1,060.
const FUSED: usize = 1000;

/// Characters of a snippet.
const SNIPPET: usize = 240;

/// An index with what is needed to ask it: any number of threads may.
pub struct Searcher {
    index: Index,
    features: OnceLock<Arc<Features>>,
    // Held while the encoder is loaded, so that two texts at once load it once.
    loading: Mutex<()>,
}

impl Searcher {
    /// Takes an open index, and its encoder where it is at hand; otherwise it is loaded when the first text comes.
    pub fn new(index: Index, features: Option<Arc<Features>>) -> Result<Self> {
        let searcher = Searcher { index, features: OnceLock::new(), loading: Mutex::new(()) };
        if let Some(features) = features {
            expect_features(&searcher.index, &features)?;
            let _ = searcher.features.set(features);
        }
        Ok(searcher)
    }

    /// Opens an index. The encoder is loaded when the first text comes.
    pub fn open(dir: &Path, watch: &dyn Watch) -> Result<Self> {
        Searcher::new(Index::open(dir, watch)?, None)
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The encoder the index's model was trained with, loaded where it is not yet.
    pub fn features(&self, watch: &dyn Watch) -> Result<&Arc<Features>> {
        if self.features.get().is_none() {
            let _alone = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
            if self.features.get().is_none() {
                let _ = self.features.set(Arc::new(Features::for_model(self.index.model(), None, watch)?));
            }
        }
        Ok(self.features.get().expect("set above"))
    }

    /// Encodes the texts of many queries in one pass.
    pub fn embed(&self, queries: &[Query], watch: &dyn Watch) -> Result<Vec<Embedded>> {
        for (number, query) in queries.iter().enumerate() {
            query.validate(number, self.index.model().inputs())?;
        }
        let like = || queries.iter().flat_map(|q| q.like.iter().map(|(like, _)| like));
        let texts: Vec<&str> =
            like().filter_map(|l| if let Like::Text(t) = l { Some(t.as_str()) } else { None }).collect();
        let (mut tokenise, mut encode) = (Duration::ZERO, Duration::ZERO);
        let vectors = if texts.is_empty() {
            Matrix::default()
        } else {
            let features = self.features(watch)?;
            let begun = Instant::now();
            let tokens = features.tokens(&texts)?;
            tokenise = begun.elapsed();
            let vectors = features.encode_tokens(&tokens, None, watch)?;
            encode = begun.elapsed() - tokenise;
            vectors
        };
        let mut encoded = vectors.iter();
        let mut point = |like: &Like| match like {
            Like::Text(_) => Point::Feature(encoded.next().expect("a vector for every text").to_vec()),
            Like::Vector(vector) => Point::Feature(vector.clone()),
            Like::Document(id) => Point::Document(id.clone()),
        };
        let embedded = queries.iter().map(|query| Embedded {
            like: query.like.iter().map(|(like, weight)| (point(like), *weight)).collect(),
            words: query.all_words(),
            tokenise,
            encode,
        });
        Ok(embedded.collect())
    }

    /// Answers queries, in their order.
    pub fn search(&self, queries: &[Query], config: &SearchConfig, watch: &dyn Watch) -> Result<Vec<Answer>> {
        config.validate()?;
        self.search_embedded(&self.embed(queries, watch)?, config, watch)
    }

    /// Answers queries that are encoded already, with one scan for all of them.
    pub fn search_embedded(
        &self,
        queries: &[Embedded],
        config: &SearchConfig,
        watch: &dyn Watch,
    ) -> Result<Vec<Answer>> {
        config.validate()?;
        if queries.is_empty() {
            return Ok(Vec::new());
        }
        if watch.interrupted() {
            return Err(Error::Interrupted);
        }
        Search::new(self.index.reader()?, queries, config)?.run()
    }
}

/// Refuses another encoder than the one the model was trained with, or the same with other settings.
fn expect_features(index: &Index, features: &Features) -> Result<()> {
    let Some(expected) = &index.model().config.features else {
        return Err(Error::config(
            "the model of this index was trained on vectors the user brought; it has no encoder",
        ));
    };
    let given = features.config();
    // The name is how a user calls it, the hash is what it is; a precision of another choice is the user's own wish.
    let same = FeatureConfig { encoder: expected.encoder.clone(), precision: expected.precision, ..given.clone() };
    if same != *expected {
        return Err(Error::config(format!(
            "the encoder given is {} ({given:?}), the model of this index was trained with {} ({expected:?})",
            given.encoder, expected.encoder
        )));
    }
    Ok(())
}

/// Answers tables, by codes alone.
pub(crate) fn by_tables(reader: &Reader, tables: &[Table], config: &SearchConfig) -> Result<Vec<Vec<Hit>>> {
    config.validate()?;
    if config.hybrid > 0.0 || config.after.is_some() || config.snippets || matches!(config.rerank, Rerank::First(_)) {
        return Err(Error::config(
            "a table alone has no words, no feature and no page; ask with a query for hybrid, rerank, snippets or a cursor",
        ));
    }
    let filter = config.filter.as_deref().map(|text| reader.filter(text)).transpose()?;
    let want = Want { k: config.k, within: config.within, after: None };
    let found = reader.nearest(tables, &want, filter.as_ref())?;
    let pages: Vec<(&Table, Vec<Ranked>)> =
        tables.iter().zip(found.iter().map(|(near, _)| rank::by_code(near))).collect();
    let hits = |(table, page): &(&Table, Vec<Ranked>)| {
        page.iter().map(|ranked| hit(reader, ranked, table, None, config)).collect()
    };
    if pages.len() > 1 { pages.par_iter().map(hits).collect() } else { pages.iter().map(hits).collect() }
}

/// One request on its way.
struct Search<'a> {
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
    question: u64,
}

/// A page before its documents are fetched.
struct Page {
    hits: Vec<Ranked>,
    next: Option<Place>,
    candidates: usize,
    reranked: usize,
    by_words: usize,
}

impl<'a> Search<'a> {
    fn new(reader: Reader, queries: &[Embedded], config: &'a SearchConfig) -> Result<Self> {
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
        let asked =
            queries.iter().map(|query| Asked::new(&reader, query, first, config)).collect::<Result<Vec<_>>>()?;
        if config.hybrid > 0.0
            && let Some(i) = asked.iter().position(|a| a.words.is_none())
        {
            return Err(Error::config(format!("query {i} has no word to look for; give words, or set hybrid to 0")));
        }
        if let Some(cursor) = &config.after {
            cursor.check(asked[0].question, reader.number())?;
        }
        let (tokenise, encode) = (queries[0].tokenise, queries[0].encode);
        let timings = Timings { tokenise, encode, scan: begun.elapsed(), ..Timings::default() };
        Ok(Search { reader, config, asked, filter, first, timings })
    }

    fn run(mut self) -> Result<Vec<Answer>> {
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
            next: page.next.map(|place| Cursor { question: asked.question, place }),
            explanation: self.config.explain.then(|| explain(asked, page, scanned)),
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
        let snippets = words.map(|words| self.reader.snippets(words, SNIPPET)).transpose()?;
        page.hits.iter().map(|ranked| hit(&self.reader, ranked, &asked.table, snippets.as_ref(), self.config)).collect()
    }
}

fn code_place(near: &Near, tail: bool) -> Place {
    Place::Code { distance: near.distance, sequence: near.sequence, tail }
}

impl Asked {
    fn new(reader: &Reader, query: &Embedded, first: usize, config: &SearchConfig) -> Result<Asked> {
        let model = reader.model();
        let distance = config.distance.unwrap_or(model.config.distance);
        let total: f32 = query.like.iter().map(|(_, weight)| weight).sum();
        let (mut tables, mut aims, mut examples) = (Vec::new(), Aims::new(), Vec::new());
        for (point, weight) in &query.like {
            let weight = weight / total;
            match point {
                Point::Feature(feature) => {
                    let row = Matrix::from_vec(feature.len(), feature.clone());
                    let table = model.tables(&row, distance)?.pop().expect("a table for a row");
                    tables.push((table, weight));
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
        let stems = words.as_ref().filter(|_| config.hybrid > 0.0).map(Words::stems);
        let question = Cursor::question(&table, stems, first, config);
        Ok(Asked { table, aims, examples, words, question })
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

fn hit(
    reader: &Reader,
    ranked: &Ranked,
    table: &Table,
    snippets: Option<&tantivy::snippet::SnippetGenerator>,
    config: &SearchConfig,
) -> Result<Hit> {
    let Near { address, distance, .. } = ranked.near;
    let mut stored = Stored::default();
    if config.documents || snippets.is_some() {
        stored = reader.stored(address)?;
    }
    let snippet = match (snippets, stored.text.as_deref()) {
        (Some(generator), Some(text)) => Some(snippet(generator, text)),
        _ => None,
    };
    if !config.documents {
        stored = Stored::default();
    }
    Ok(Hit {
        id: reader.id(address)?,
        distance,
        score: ranked.score,
        text: stored.text,
        labels: stored.labels,
        attributes: stored.attributes,
        snippet,
        shares: config.explain.then(|| table.shares(&reader.code(address))),
    })
}

fn snippet(generator: &tantivy::snippet::SnippetGenerator, text: &str) -> Snippet {
    let found = generator.snippet(text);
    if found.fragment().is_empty() {
        let end = text.char_indices().nth(SNIPPET).map_or(text.len(), |(at, _)| at);
        return Snippet { text: text[..end].to_owned(), marks: Vec::new() };
    }
    let marks = tantivy::snippet::collapse_overlapped_ranges(found.highlighted());
    Snippet { text: found.fragment().to_owned(), marks }
}

fn explain(asked: &Asked, page: &Page, scanned: &[Scanned]) -> Explanation {
    let plan = |s: &Scanned| SegmentPlan {
        segment: s.segment.clone(),
        documents: s.documents,
        matching: s.matching,
        filter: s.filter.map(str::to_owned),
        way: s.plan.map(|plan| plan.way.to_string()),
        blocks: s.plan.map_or(0, |plan| plan.blocks),
        scanned: s.plan.map_or(0, |plan| plan.scanned),
        measured: s.plan.map_or(0, |plan| plan.measured),
    };
    Explanation {
        segments: scanned.iter().map(plan).collect(),
        candidates: page.candidates,
        reranked: page.reranked,
        words: asked.words.as_ref().map_or(Vec::new(), |words| words.stems().to_vec()),
        by_words: page.by_words,
        backend: kernels::Backend::active().name().to_owned(),
    }
}

/// In parallel where there are several.
fn each<T: Sync, U: Send>(items: &[T], work: impl Fn(&T) -> Result<U> + Sync + Send) -> Result<Vec<U>> {
    if items.len() > 1 { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}
