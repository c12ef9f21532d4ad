//! From queries to answers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::answer::{Answer, Hit};
use super::ask::{Embedded, Query};
use super::config::{Rerank, SearchConfig};
use super::embed::LazyEmbedder;
use super::fetch;
use super::group::{self, Grouped, Grouping};
use super::request::{Common, Request};
use super::shard::{Delivery, FilterText, LocalShards, RemoteShards, ShardView, Shards, each};
use crate::encoder::Embedder;
use crate::index::{Index, Reader, RerankVectors, Store};
use crate::language::Language;
use crate::model::{DistanceTable, FastEncoder, Model};
use crate::search::TopKRequest;
use crate::shards::ShardManifest;
use crate::{Error, Progress, Result};

/// An index, or the shards of one, with its encoder. Any number of threads may search.
pub struct Searcher {
    // At least one, all with the same model.
    indexes: Vec<Index>,
    embedder: LazyEmbedder,
}

impl Searcher {
    /// Takes an open index, and its encoder if it is loaded. Otherwise the first text loads it.
    pub fn new(index: Index, embedder: Option<Arc<Embedder>>) -> Result<Self> {
        let embedder = LazyEmbedder::new(index.model(), &index.model_dir(), embedder)?;
        Ok(Searcher { indexes: vec![index], embedder })
    }

    /// Opens an index, or a folder of shards. The first text loads the encoder.
    pub fn open(dir: &Path, progress: &dyn Progress) -> Result<Self> {
        Searcher::open_with(dir, |_| Ok(None), progress)
    }

    /// Opens an index, or a folder of shards, with an encoder for its model.
    pub fn open_with(
        dir: &Path,
        embedder: impl FnOnce(&Model) -> Result<Option<Arc<Embedder>>>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let indexes = match ShardManifest::is_at(dir) {
            true => ShardManifest::read(dir)?.open(dir, progress)?,
            false => vec![Index::open(dir, progress)?],
        };
        let first = &indexes[0];
        let embedder = LazyEmbedder::new(first.model(), &first.model_dir(), embedder(first.model())?)?;
        Ok(Searcher { indexes, embedder })
    }

    /// The index; of several shards the first.
    pub fn index(&self) -> &Index {
        &self.indexes[0]
    }

    /// The shards, one for an index that has none.
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }

    /// Number of documents of all shards.
    pub fn documents(&self) -> usize {
        self.indexes.iter().map(Index::len).sum()
    }

    pub fn warnings(&self) -> Vec<String> {
        self.indexes.iter().flat_map(Index::warnings).collect()
    }

    /// The encoder the index's model was trained with. The first call loads it.
    pub fn embedder(&self, progress: &dyn Progress) -> Result<&Arc<Embedder>> {
        self.embedder.get(self.index().model(), progress)
    }

    /// The distilled copy of that encoder, where the index has one. The first call loads it.
    pub fn fast_encoder(&self) -> Result<&Arc<FastEncoder>> {
        self.embedder.fast(self.index().model())
    }

    /// Whether the encoder is loaded.
    pub fn has_embedder(&self) -> bool {
        self.embedder.is_loaded()
    }

    /// Encodes the texts of many queries in one pass.
    pub fn embed(&self, queries: &[Query], progress: &dyn Progress) -> Result<Vec<Embedded>> {
        self.embedder.embed(self.index().model(), queries, progress)
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
        let index = self.index();
        let common = Common {
            model: index.model(),
            rerank_vectors: index.rerank_vectors(),
            store: index.store(),
            language: index.language(),
        };
        let shards = LocalShards(self.indexes.iter().map(ShardView::new).collect::<Result<_>>()?);
        Request::new(common, &shards, queries, config)?.run()
    }
}

/// A model with its encoder, for shards that other processes have open.
pub struct RemoteSearcher {
    model: Model,
    rerank_vectors: RerankVectors,
    store: Store,
    language: Language,
    embedder: LazyEmbedder,
}

impl RemoteSearcher {
    /// Takes what all shards have in common.
    pub fn new(model: Model, rerank_vectors: RerankVectors, store: Store, language: Language) -> RemoteSearcher {
        RemoteSearcher { model, rerank_vectors, store, language, embedder: LazyEmbedder::default() }
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn rerank_vectors(&self) -> RerankVectors {
        self.rerank_vectors
    }

    /// Answers queries as one index with the documents of all shards does. `deliver` hands calls to shards and returns
    /// their replies.
    pub fn search<F: Fn(Vec<Delivery>) -> Result<BTreeMap<usize, String>> + Sync>(
        &self,
        deliver: F,
        queries: &[Query],
        config: &SearchConfig,
        progress: &dyn Progress,
    ) -> Result<Vec<Answer>> {
        config.validate()?;
        if queries.is_empty() {
            return Ok(Vec::new());
        }
        let embedded = self.embedder.embed(&self.model, queries, progress)?;
        let RemoteSearcher { model, rerank_vectors, store, language, .. } = self;
        let common = Common { model, rerank_vectors: *rerank_vectors, store: *store, language: *language };
        let shards = RemoteShards::new(deliver);
        Request::new(common, &shards as &dyn Shards, &embedded, config)?.run()
    }
}

/// Answers distance tables, by code only.
pub(crate) fn by_tables(reader: &Reader, tables: &[DistanceTable], config: &SearchConfig) -> Result<Vec<Vec<Hit>>> {
    config.validate()?;
    let needs_query = config.hybrid > 0.0 || config.kind > 0.0 || config.after.is_some() || config.snippets;
    if needs_query || matches!(config.rerank, Rerank::First(_)) {
        return Err(Error::config(
            "a distance table has no keywords, no embedding and no page; search with a query for hybrid, kind, rerank, snippets or a cursor",
        ));
    }
    let known = match (&config.filter, reader.documents()) {
        (Some(_), 1..) => Some(reader.attributes()?.clone()),
        _ => None,
    };
    let filter = FilterText::of(config, known).map(|filter| filter.parse(reader)).transpose()?;
    let request = TopKRequest { k: config.k, radius: config.radius, after: None };
    let grouping = Grouping::new(reader, config.group, filter.as_ref(), config.radius, false)?;
    let found = group::nearest(reader, grouping.as_ref(), tables, &request, filter.as_ref())?;
    let pages: Vec<_> = tables.iter().zip(found).collect();
    each(&pages, |(table, (near, _))| {
        let table = config.explain.then_some(*table);
        let hit = |document: &Grouped| -> Result<Hit> {
            let hit = fetch::hit(reader, document.chunk, table, None, config.documents)?;
            Ok(Hit { score: document.sum.unwrap_or(hit.score), ..hit })
        };
        near.iter().map(hit).collect()
    })
}
