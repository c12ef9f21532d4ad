//! From questions to answers.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::answer::{Answer, Hit};
use super::ask::{Embedded, Like, Point, Query};
use super::config::{Rerank, SearchConfig};
use super::request::{Request, each};
use super::{fetch, rank};
use crate::encoder::Features;
use crate::index::{Index, Reader};
use crate::model::{FeatureConfig, Table};
use crate::search::Want;
use crate::{Error, Matrix, Result, Watch};

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
        Request::new(self.index.reader()?, queries, config)?.run()
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
    let pages: Vec<_> = tables.iter().zip(found).collect();
    each(&pages, |(table, (near, _))| {
        let ranked = rank::by_code(near);
        ranked.iter().map(|ranked| fetch::hit(reader, ranked, table, None, config)).collect()
    })
}
