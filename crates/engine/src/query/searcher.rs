//! From queries to answers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::answer::{Answer, Hit};
use super::ask::{Embedded, Query};
use super::calls::FilterText;
use super::config::{Rerank, SearchConfig};
use super::embed::LazyEmbedder;
use super::fetch::{self, Room};
use super::group::{self, Grouped, Grouping};
use super::recall::RecallReport;
use super::request::{Common, Request};
use super::shard::{Delivery, LocalShards, RemoteShards, Replies, ShardView, Shards, each};
use super::survey::Survey;
use crate::encoder::Embedder;
use crate::index::{Index, Reader, RerankVectors, Store};
use crate::language::Language;
use crate::model::{DistanceTable, FastEncoder, Model};
use crate::search::TopKRequest;
use crate::shards::ShardManifest;
use crate::{Error, Progress, Result};
use parking_lot::Mutex;

/// An index, or the shards of one, with its encoder. Any number of threads may search.
///
/// ```
/// use engine::NoProgress;
/// use engine::corpus::{DocId, Document, Value};
/// use engine::index::{Index, IndexConfig, RerankVectors};
/// use engine::model::Model;
/// use engine::query::{Query, SearchConfig, Searcher};
///
/// let model = Model::load("tests/data/index-3/model".as_ref())?;
/// let dir = tempfile::tempdir()?;
/// // The candidates by code are ordered by the vectors stored for it.
/// let config = IndexConfig { rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() };
/// let index = Index::create(&dir.path().join("news.micpq"), &model, config)?;
/// let year = |i: u64| vec![("year".to_owned(), Value::Int(1980 + i as i64))];
/// let documents: Vec<Document> =
///     (0..8).map(|i| Document { attributes: year(i), ..Document::new(i, format!("story {i}")) }).collect();
/// // The vector of document i is 1 at place i.
/// let vectors = engine::Matrix::from_vec(8, (0..64).map(|i| f32::from(u8::from(i % 9 == 0))).collect());
/// let mut writer = index.writer()?;
/// writer.add_embeddings(&documents, &vectors)?;
/// writer.commit(&NoProgress)?;
///
/// let searcher = Searcher::new(index, None)?;
/// let config = SearchConfig { k: 3, filter: Some("year:[1984 TO *]".into()), ..SearchConfig::default() };
/// let answers = searcher.search(&[Query::vector(vectors.row(5).to_vec())], &config, &NoProgress)?;
/// assert_eq!(answers[0].hits.len(), 3);
/// assert_eq!(answers[0].hits[0].id, DocId::Int(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Searcher {
    // At least one, all with the same model.
    indexes: Vec<Index>,
    embedder: LazyEmbedder,
    measured: Measured,
}

/// The last recall that was measured, with its commit and number of hits.
pub(super) type Measured = Mutex<Option<((u64, usize), Arc<RecallReport>)>>;

impl Searcher {
    /// Takes an open index, and its encoder if it is loaded. Otherwise the first text loads it.
    pub fn new(index: Index, embedder: Option<Arc<Embedder>>) -> Result<Self> {
        let embedder = LazyEmbedder::new(index.model(), &index.model_dir(), embedder)?;
        Ok(Searcher { indexes: vec![index], embedder, measured: Measured::default() })
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
        Ok(Searcher { indexes, embedder, measured: Measured::default() })
    }

    /// The index; of several shards the first.
    pub fn index(&self) -> &Index {
        &self.indexes[0]
    }

    /// The shards, one for an index that has none.
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }

    pub(super) fn measured(&self) -> &Measured {
        &self.measured
    }

    /// Number of documents of all shards.
    pub fn documents(&self) -> usize {
        self.indexes.iter().map(Index::len).sum()
    }

    /// Questions about all documents of the shards, at their commits of now.
    pub fn survey(&self) -> Result<Survey<'_, impl Fn(Vec<Delivery>) -> Result<Replies> + Sync>> {
        let views: Vec<ShardView> = self.indexes.iter().map(ShardView::new).collect::<Result<_>>()?;
        let deliver = move |calls: Vec<Delivery>| {
            let mut replies = BTreeMap::new();
            for (shard, call) in calls {
                for number in shard.map_or(0..views.len(), |shard| shard..shard + 1) {
                    replies.insert(number, views[number].answer(&call)?);
                }
            }
            Ok(replies)
        };
        Ok(Survey::new(self.index().model(), deliver))
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

    /// Wakes the threads that will encode a text that is about to come.
    pub fn wake(&self) {
        self.embedder.wake();
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
        let views = self.indexes.iter().map(ShardView::new).collect::<Result<_>>()?;
        let shards = LocalShards { views, progress };
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

    /// The language of keyword search.
    pub fn language(&self) -> Language {
        self.language
    }

    /// The encoder the model was trained with. The first call loads it.
    pub fn embedder(&self, progress: &dyn Progress) -> Result<&Arc<Embedder>> {
        self.embedder.get(&self.model, progress)
    }

    /// Questions about all documents of the shards.
    pub fn survey<F: Fn(Vec<Delivery>) -> Result<Replies> + Sync>(&self, deliver: F) -> Survey<'_, F> {
        Survey::new(&self.model, deliver)
    }

    /// Answers queries as one index with the documents of all shards does. `deliver` hands calls to shards and returns
    /// their replies.
    pub fn search<F: Fn(Vec<Delivery>) -> Result<Replies> + Sync>(
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

impl Index {
    /// The nearest documents of every table by their codes, best first. Equal distances are ordered by insertion.
    ///
    /// Keywords, re-ranking and cursors need more than a distance table: use [`Searcher`].
    pub fn search(&self, tables: &[DistanceTable], config: &SearchConfig) -> Result<Vec<Vec<Hit>>> {
        by_tables(&self.reader()?, tables, config)
    }
}

/// Answers distance tables, by code only.
fn by_tables(reader: &Reader, tables: &[DistanceTable], config: &SearchConfig) -> Result<Vec<Vec<Hit>>> {
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
    let room = Room::new(config.max_bytes);
    each(&pages, |(table, (near, _))| {
        let table = config.explain.then_some(*table);
        let hit = |document: &Grouped| -> Result<Hit> {
            let hit = fetch::hit(reader, document.chunk, table, None, config.documents)?;
            room.take(&hit)?;
            Ok(Hit { score: document.sum.unwrap_or(hit.score), ..hit })
        };
        near.iter().map(hit).collect()
    })
}
