//! New documents against saved queries.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use kernels::squares::squared;
use rayon::prelude::*;
use serde::Serialize;
use tantivy::DocAddress;

use super::{SavedQuery, Threshold, embedding, one_index};
use crate::corpus::DocId;
use crate::index::saved::File;
use crate::index::{Bitmap, Index, Reader, RerankVectors, filter_within};
use crate::model::DistanceTable;
use crate::query::Searcher;
use crate::{Error, Matrix, Progress, Result};

/// Documents compared at a time. Their vectors are in memory together.
const PART: usize = 512;

/// A place in the order of insertion of one index. As text it also names the index, so that it is not taken for one of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    index: String,
    sequence: u64,
}

impl Place {
    fn new(index: &Index, sequence: u64) -> Place {
        Place { index: index.short_id(), sequence }
    }

    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Refuses a place of another index: numbers of insertion are its own.
    pub(super) fn check(&self, index: &Index) -> Result<u64> {
        if self.index != index.short_id() {
            return Err(Error::config(format!(
                "the place \"{self}\" is of another index, or the index was restored, migrated or trained since; ask without a \
                 place for all matches since each query was saved"
            )));
        }
        Ok(self.sequence)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.sequence)
    }
}

impl Serialize for Place {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Place> {
        let parts = text.split_once('.').and_then(|(index, sequence)| Some((index, sequence.parse().ok()?)));
        match parts {
            Some((index, sequence)) if !index.is_empty() => Ok(Place { index: index.to_owned(), sequence }),
            _ => Err(Error::config(format!(
                "\"{}\" is no place; give \"next\" of the answer before",
                text.chars().take(60).collect::<String>()
            ))),
        }
    }
}

/// The documents that are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Start {
    /// Those added since each query was saved.
    #[default]
    Saved,
    /// Those added since the index remembered a place, and since each query was saved; without a place, as `Saved`.
    Remembered,
    /// Those added since this place, and since each query was saved.
    After(Place),
    /// All, to try a query.
    All,
}

/// Which matches to find.
#[derive(Clone, Debug, PartialEq)]
pub struct MatchRequest {
    pub start: Start,
    /// About how many matches: all of a document are told together.
    pub limit: usize,
    /// Of one query only.
    pub name: Option<String>,
    /// Of queries whose names begin so.
    pub prefix: Option<String>,
    /// Documents that match this filter too.
    pub within: Option<String>,
}

impl Default for MatchRequest {
    fn default() -> Self {
        MatchRequest { start: Start::Saved, limit: 1000, name: None, prefix: None, within: None }
    }
}

/// A document that matches a saved query.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Match {
    /// Name of the query.
    pub query: String,
    pub id: DocId,
    /// The cosine of the stored vector; of the best chunk in an index with chunks. `None` without vectors, and for a filter alone.
    pub cosine: Option<f32>,
    /// The distance of the code; of the nearest chunk. `None` for a filter alone.
    pub distance: Option<f32>,
}

/// The result of [`matches()`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Matches {
    /// In the order of insertion of their documents, then of the names of queries.
    pub matches: Vec<Match>,
    /// Where the next call begins.
    pub next: Place,
    /// Whether the limit left documents out.
    pub more: bool,
}

/// Finds the documents that match saved queries, by comparing every pair.
pub fn matches(searcher: &Searcher, request: &MatchRequest, progress: &dyn Progress) -> Result<Matches> {
    if request.limit == 0 {
        return Err(Error::option("limit", "is 0; ask for at least one match"));
    }
    let index = one_index(searcher)?;
    let reader = index.reader()?;
    let work = Work::new(searcher, reader, request, progress)?;
    work.run(index, request.limit, progress)
}

struct Work {
    reader: Reader,
    queries: Vec<SavedQuery>,
    /// Unit vectors and distance tables of the queries that have a vector, and the row of each query among them.
    vectors: Matrix,
    tables: Vec<DistanceTable>,
    rows: Vec<Option<usize>>,
    has_vectors: bool,
    from: u64,
    all: bool,
}

/// The rows of a document, and the sequence of the first.
struct Rows {
    sequence: u64,
    addresses: Vec<DocAddress>,
}

/// How near a document is to a query.
struct Near {
    query: usize,
    cosine: Option<f32>,
    distance: Option<f32>,
}

impl Work {
    fn new(searcher: &Searcher, reader: Reader, request: &MatchRequest, progress: &dyn Progress) -> Result<Work> {
        let index = searcher.index();
        let mut queries = File::read(index.dir())?.queries;
        if let Some(prefix) = &request.prefix {
            queries.retain(|query| query.name.starts_with(prefix.as_str()));
        }
        if let Some(within) = &request.within {
            queries.iter_mut().for_each(|query| query.filter = Some(filter_within(query.filter.as_deref(), within)));
        }
        if let Some(name) = &request.name {
            queries.retain(|query| query.name == *name);
            if queries.is_empty() {
                return Err(Error::config(format!("no saved query is named \"{}\"", crate::index::saved::shown(name))));
            }
        }
        let (mut rows, mut values) = (Vec::new(), Vec::new());
        for query in &mut queries {
            query.vector = embedding(searcher, query, progress)?;
            let width = index.model().inputs();
            if query.threshold.is_some() && query.vector.as_ref().is_none_or(|vector| vector.len() != width) {
                return Err(Error::config(format!(
                    "saved query \"{}\" has a vector of an encoder that the index no longer has; save it again",
                    query.name
                )));
            }
            rows.push(query.vector.as_ref().map(|_| values.len() / width));
            values.extend(query.vector.iter().flatten());
        }
        let model = index.model();
        let mut vectors = if values.is_empty() { Matrix::default() } else { Matrix::from_vec(model.inputs(), values) };
        let tables = match vectors.rows() {
            0 => Vec::new(),
            _ => model.tables(&vectors, model.config.distance)?,
        };
        vectors.normalize_rows();
        let saved = queries.iter().map(|query| query.since).min().unwrap_or_else(|| reader.end());
        let from = match &request.start {
            Start::Saved => saved,
            Start::Remembered => super::position(index)?.unwrap_or(0).max(saved),
            Start::After(place) => place.check(index)?.max(saved),
            Start::All => 0,
        };
        let has_vectors = index.rerank_vectors() != RerankVectors::None;
        let all = request.start == Start::All;
        Ok(Work { reader, queries, vectors, tables, rows, has_vectors, from, all })
    }

    fn run(self, index: &Index, limit: usize, progress: &dyn Progress) -> Result<Matches> {
        let rows = self.reader.rows_since(self.from)?;
        let end = rows.last().map_or(self.from, |(sequence, _)| sequence + 1);
        let documents = self.documents(rows);
        let mut filters: HashMap<usize, Vec<Bitmap>> = HashMap::new();
        let mut found = Vec::new();
        progress.stage("comparing documents with saved queries", Some(documents.len() as u64));
        for part in documents.chunks(PART) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            for (document, near) in part.iter().zip(self.compare(part)?) {
                if found.len() >= limit {
                    let next = Place::new(index, document.sequence);
                    return Ok(Matches { matches: found, next, more: true });
                }
                for near in near {
                    if self.passes(&near, document, &mut filters)? {
                        let query = self.queries[near.query].name.clone();
                        let id = self.reader.id(document.addresses[0])?;
                        found.push(Match { query, id, cosine: near.cosine, distance: near.distance });
                    }
                }
            }
            progress.advance(part.len() as u64);
        }
        Ok(Matches { matches: found, next: Place::new(index, end), more: false })
    }

    /// Rows grouped by their documents, whose chunks follow each other.
    fn documents(&self, rows: Vec<(u64, DocAddress)>) -> Vec<Rows> {
        let mut documents: Vec<Rows> = Vec::new();
        for (sequence, address) in rows {
            match documents.last_mut() {
                Some(last) if self.reader.first(address) == last.addresses[0] => last.addresses.push(address),
                _ => documents.push(Rows { sequence, addresses: vec![address] }),
            }
        }
        documents
    }

    /// The queries that each document is near enough to, before their filters.
    fn compare(&self, part: &[Rows]) -> Result<Vec<Vec<Near>>> {
        let near = |document: &Rows| -> Result<Vec<Near>> {
            let vectors = self.stored(document)?;
            let codes = document.addresses.iter().map(|&address| self.reader.code(address));
            let codes = codes.collect::<Result<Vec<_>>>()?;
            let one = |(query, saved): (usize, &SavedQuery)| -> Option<Near> {
                if saved.since > document.sequence && !self.all {
                    return None;
                }
                let Some(row) = self.rows[query] else { return Some(Near { query, cosine: None, distance: None }) };
                let cosines = vectors.iter().map(|vector| cosine(self.vectors.row(row), vector));
                let best = cosines.reduce(f32::max);
                if matches!(saved.threshold, Some(Threshold::Cosine(least)) if best.is_none_or(|best| best < least)) {
                    return None;
                }
                let nearest = codes.iter().map(|code| self.tables[row].distance(code)).reduce(f32::min);
                if matches!(saved.threshold, Some(Threshold::Distance(most)) if nearest.is_none_or(|near| near > most))
                {
                    return None;
                }
                Some(Near { query, cosine: best, distance: nearest })
            };
            Ok(self.queries.iter().enumerate().filter_map(one).collect())
        };
        part.par_iter().map(near).collect()
    }

    /// Unit vectors of a document's rows; none if the index stores none, or no query needs them.
    fn stored(&self, document: &Rows) -> Result<Matrix> {
        if !self.has_vectors || self.tables.is_empty() {
            return Ok(Matrix::default());
        }
        let mut values = Vec::new();
        let addresses = document.addresses.iter().copied();
        self.reader.read_rerank_vectors(addresses, |vector| values.extend_from_slice(vector))?;
        let mut vectors = Matrix::from_vec(self.vectors.cols(), values);
        vectors.normalize_rows();
        Ok(vectors)
    }

    /// Whether a chunk of the document passes the query's filter. The rows of a filter are looked up when it is first needed.
    fn passes(&self, near: &Near, document: &Rows, filters: &mut HashMap<usize, Vec<Bitmap>>) -> Result<bool> {
        let Some(filter) = &self.queries[near.query].filter else { return Ok(true) };
        if let std::collections::hash_map::Entry::Vacant(vacant) = filters.entry(near.query) {
            vacant.insert(self.reader.matching(&self.reader.filter(filter, None)?)?);
        }
        let rows = &filters[&near.query];
        Ok(document.addresses.iter().any(|address| rows[address.segment_ord as usize].contains(address.doc_id)))
    }
}

/// The cosine of unit vectors, exactly 1 for equal ones; 0 if one is not a direction.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let is_zero = |vector: &[f32]| vector.iter().all(|value| *value == 0.0);
    if is_zero(a) || is_zero(b) { 0.0 } else { 1.0 - squared(a, b) / 2.0 }
}
