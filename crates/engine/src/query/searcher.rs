//! From queries to answers.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::answer::{Answer, Hit};
use super::ask::{Embedded, Like, Point, Query};
use super::config::{Rerank, SearchConfig};
use super::request::{Request, each};
use super::{fetch, rank};
use crate::encoder::{Embedder, Role};
use crate::index::{Index, Reader};
use crate::model::{DistanceTable, EmbeddingConfig};
use crate::search::TopKRequest;
use crate::{Error, Matrix, Progress, Result};
use parking_lot::Mutex;

/// An index with its encoder. Any number of threads may search.
pub struct Searcher {
    index: Index,
    embedder: OnceLock<Arc<Embedder>>,
    // Held while the encoder is loaded, so that two queries at once load it once.
    loading: Mutex<()>,
}

impl Searcher {
    /// Takes an open index, and its encoder if it is loaded. Otherwise the first text loads it.
    pub fn new(index: Index, embedder: Option<Arc<Embedder>>) -> Result<Self> {
        let searcher = Searcher { index, embedder: OnceLock::new(), loading: Mutex::new(()) };
        if let Some(embedder) = embedder {
            expect_embedder(&searcher.index, &embedder)?;
            let _ = searcher.embedder.set(embedder);
        }
        Ok(searcher)
    }

    /// Opens an index. The first text loads the encoder.
    pub fn open(dir: &Path, progress: &dyn Progress) -> Result<Self> {
        Searcher::new(Index::open(dir, progress)?, None)
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The encoder the index's model was trained with. The first call loads it.
    pub fn embedder(&self, progress: &dyn Progress) -> Result<&Arc<Embedder>> {
        if self.embedder.get().is_none() {
            let _exclusive = self.loading.lock();
            if self.embedder.get().is_none() {
                let _ = self.embedder.set(Arc::new(Embedder::for_model(self.index.model(), None, progress)?));
            }
        }
        Ok(self.embedder.get().expect("set above"))
    }

    /// Encodes the texts of many queries in one pass.
    pub fn embed(&self, queries: &[Query], progress: &dyn Progress) -> Result<Vec<Embedded>> {
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
            let embedder = self.embedder(progress)?;
            let begun = Instant::now();
            let tokens = embedder.tokens_of(Role::Query, &texts)?;
            tokenise = begun.elapsed();
            let vectors = embedder.encode_tokens_of(Role::Query, &tokens, progress)?;
            encode = begun.elapsed() - tokenise;
            vectors
        };
        let mut encoded = vectors.iter();
        let mut point = |like: &Like| match like {
            Like::Text(_) => Point::Embedding(encoded.next().expect("a vector for every text").to_vec()),
            Like::Vector(vector) => Point::Embedding(vector.clone()),
            Like::Document(id) => Point::Document(id.clone()),
        };
        let embedded = queries.iter().map(|query| Embedded {
            like: query.like.iter().map(|(like, weight)| (point(like), *weight)).collect(),
            keywords: query.all_keywords(),
            tokenise,
            encode,
        });
        Ok(embedded.collect())
    }

    /// Answers queries, in their order.
    pub fn search(&self, queries: &[Query], config: &SearchConfig, progress: &dyn Progress) -> Result<Vec<Answer>> {
        config.validate()?;
        self.search_embedded(&self.embed(queries, progress)?, config, progress)
    }

    /// Answers queries that are encoded already, with one scan for all of them.
    pub fn search_embedded(
        &self,
        queries: &[Embedded],
        config: &SearchConfig,
        progress: &dyn Progress,
    ) -> Result<Vec<Answer>> {
        config.validate()?;
        if queries.is_empty() {
            return Ok(Vec::new());
        }
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        Request::new(self.index.reader()?, queries, config)?.run()
    }
}

/// Refuses another encoder than the one the model was trained with, or the same with other settings.
fn expect_embedder(index: &Index, embedder: &Embedder) -> Result<()> {
    let Some(expected) = &index.model().config.embedding else {
        return Err(Error::config("the model of this index was trained on user vectors; it has no encoder"));
    };
    let given = embedder.config();
    // The hash decides, not the name. The user may choose another precision.
    let same = EmbeddingConfig { encoder: expected.encoder.clone(), precision: expected.precision, ..given.clone() };
    if same != *expected {
        return Err(Error::config(format!(
            "the encoder given is {} ({given:?}), the model of this index was trained with {} ({expected:?})",
            given.encoder, expected.encoder
        )));
    }
    Ok(())
}

/// Answers distance tables, by code only.
pub(crate) fn by_tables(reader: &Reader, tables: &[DistanceTable], config: &SearchConfig) -> Result<Vec<Vec<Hit>>> {
    config.validate()?;
    if config.hybrid > 0.0 || config.after.is_some() || config.snippets || matches!(config.rerank, Rerank::First(_)) {
        return Err(Error::config(
            "a distance table has no keywords, no embedding and no page; search with a query for hybrid, rerank, snippets or a cursor",
        ));
    }
    let filter = config.filter.as_deref().map(|text| reader.filter(text)).transpose()?;
    let request = TopKRequest { k: config.k, radius: config.radius, after: None };
    let found = reader.nearest(tables, &request, filter.as_ref())?;
    let pages: Vec<_> = tables.iter().zip(found).collect();
    each(&pages, |(table, (near, _))| {
        let ranked = rank::by_code(near);
        ranked.iter().map(|ranked| fetch::hit(reader, ranked, table, None, config)).collect()
    })
}
