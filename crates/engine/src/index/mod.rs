//! The index: a directory of documents and their codes.
//!
//! tantivy is the store of record. One tantivy index in `store/` holds ids, insertion sequence, codes, texts, labels
//! and attributes, and provides commits, deletes, merges, the writer lock and checksums. The model lies in `model/`.
//! `codes/` has one file of packed codes per segment. Those are derived: whoever opens a segment first builds them, and
//! a missing or damaged file is built again.
//!
//! Any number of processes read; one writes. A reader sees the commit it opened or last [`Index::reload`]ed.

mod manifest;
mod claim;

mod errors;
mod schema;
mod chunks;
mod rerank_rows;
mod rerank_vectors;
mod payload;

mod directory;
mod files;
mod segment;
mod sequences;
mod kinship;

mod writer;
mod attributes;
mod merges;

mod snapshot;
mod reader;
mod walk;
mod within;

mod nesting;
mod subset;
mod filter;
mod selections;
mod phrases;
mod keywords;

mod facets;
mod terms;
mod stats;
mod info;

mod backup;
pub(crate) mod map_file;
pub(crate) mod saved;
pub(crate) mod topics;
mod migrate;
mod upgrade;
mod verify;

#[cfg(test)]
mod damage_tests;
#[cfg(all(test, unix))]
mod power_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upkeep_tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

pub use backup::{Copied, CopyConfig, backup, restore};
pub use claim::Claim;
pub use facets::Facet;
pub(crate) use facets::FacetCounts;
pub(crate) use filter::{ALL, Bitmap, Filter};
pub use filter::{check_filter, filter_within};
pub use info::{Bytes, Info};
pub(crate) use keywords::{KeywordStatistics, Keywords};
pub(crate) use manifest::SHARDS;
pub use manifest::{FORMAT, OLDEST_FORMAT, Store};
pub use migrate::{MigrateConfig, Migrated, migrate};
pub use nesting::{MAX_FILTER_BYTES, MAX_FILTER_DEPTH};
pub(crate) use reader::Reader;
pub use rerank_vectors::RerankVectors;
pub(crate) use schema::Stored;
pub use snapshot::Record;
pub(crate) use snapshot::{Candidate, Scanned};
pub use stats::{AttributeStats, CodeStats, CodebookStats, SegmentStats, Stats};
pub use subset::Subset;
pub use upgrade::{Upgraded, upgrade};
pub use verify::{Problem, verify};
pub use walk::{Records, Walk};
pub use within::Membership;
pub use writer::{IndexWriter, SplitDocument, next_sequence_at};

use crate::chunk::ChunkSizes;
use crate::corpus::DocId;
use crate::language::Language;
use crate::model::{CodeShape, Model};
use crate::{Error, NoProgress, Progress, Result};
use directory::StoreDirectory;
pub(crate) use errors::tantivy_error;
use errors::{guarded, guarded_ours};
use files::Part;
use manifest::Manifest;
use schema::{Fields, Layout};
use selections::Selections;
use snapshot::Snapshot;

/// Blocks of 16 KiB of texts that are kept unpacked, per segment. A page of ten hits unpacked ten of them.
const TEXT_BLOCKS: usize = 1024;

#[derive(Clone, Debug, Default)]
pub struct IndexConfig {
    /// Which parts of a document are stored.
    pub store: Store,
    /// How embeddings are stored for re-ranking.
    pub rerank_vectors: RerankVectors,
    /// How texts become terms.
    pub language: Language,
    /// How long texts are split. `None`: a document has one code, and what the encoder does not take is cut.
    pub chunk: Option<ChunkSizes>,
    /// Replaces an existing index.
    pub replace: bool,
    /// Metrics of the model, stored beside it.
    pub metrics: serde_json::Value,
}

impl IndexConfig {
    fn layout(&self) -> Layout {
        let IndexConfig { store, rerank_vectors, language, chunk, .. } = *self;
        Layout { store, rerank_vectors, language, chunk }
    }
}

/// An open index. Clones share all state, and any number of threads may search.
///
/// ```
/// use engine::corpus::{DocId, Document};
/// use engine::index::{Index, IndexConfig};
/// use engine::model::Model;
/// use engine::{Matrix, NoProgress};
///
/// // A model of user vectors with eight values.
/// let model = Model::load("tests/data/index-3/model".as_ref())?;
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("news.micpq");
/// let index = Index::create(&path, &model, IndexConfig::default())?;
///
/// let mut writer = index.writer()?;
/// writer.add_embeddings(&[Document::new(1u64, "Oil rises")], &Matrix::from_vec(8, vec![0.5; 8]))?;
/// writer.commit(&NoProgress)?;
///
/// // Any process may open it meanwhile; only one writes.
/// let again = Index::open(&path, &NoProgress)?;
/// assert_eq!(again.get(&DocId::Int(1))?.unwrap().text.as_deref(), Some("Oil rises"));
/// assert!(again.writer().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Index {
    inner: Arc<Inner>,
}

/// The writer lock of an index, without a writer.
pub struct IndexLock {
    _lock: tantivy::directory::DirectoryLock,
}

pub(crate) struct Inner {
    dir: PathBuf,
    manifest: Manifest,
    model: Model,
    fields: Fields,
    tantivy: tantivy::Index,
    directory: StoreDirectory,
    reader: tantivy::IndexReader,
    snapshot: RwLock<Arc<Snapshot>>,
    selections: Selections,
    // Held while a newer snapshot is opened. Otherwise the slower of two concurrent reloads could restore the older
    // commit.
    reloading: Mutex<()>,
    warnings: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({})", self.inner.dir.display())
    }
}

/// The tantivy index inside an index directory.
pub(crate) const STORE: &str = "store";
/// tantivy's list of segments inside the store, written anew by every commit and every merge.
pub(crate) const SEGMENTS: &str = "meta.json";
pub(crate) const MODEL: &str = "model";
pub(crate) const CODES: &str = "codes";

impl Index {
    /// Creates an empty index. It appears whole or not at all.
    pub fn create(dir: &Path, model: &Model, config: IndexConfig) -> Result<Index> {
        Index::create_unopened(dir, model, config)?;
        Index::open(dir, &NoProgress)
    }

    /// Creates an empty index without opening it. After an error nothing of it is at `dir`.
    pub fn create_unopened(dir: &Path, model: &Model, config: IndexConfig) -> Result<()> {
        let claim = Claim::new(dir, config.replace)?;
        let staged = &claim.path();
        std::fs::create_dir(staged).map_err(Error::io(staged))?;
        for name in [STORE, MODEL, CODES] {
            std::fs::create_dir(staged.join(name)).map_err(Error::io(staged))?;
        }
        model.write_into(&staged.join(MODEL), &config.metrics)?;
        let layout = config.layout();
        layout.chunk.map_or(Ok(()), |chunk| chunk.validate())?;
        let (schema, _) = schema::build(model.shape(), layout);
        let store = staged.join(STORE);
        tantivy::Index::create_in_dir(&store, schema).map_err(|e| tantivy_error(&store, e))?;
        let manifest = Manifest::new(model, layout, staged)?;
        crate::disk::write_synced(&Manifest::path(staged), manifest.to_json().as_bytes())?;

        claim.finish()
    }

    /// Opens an index for reading; reads only metadata. A file of packed codes that cannot be used is built again, with
    /// a note to `progress`. Damage inside such a file is found by the first search (see [`Index::warnings`]).
    pub fn open(dir: &Path, progress: &dyn Progress) -> Result<Index> {
        loop {
            let opened = Index::open_once(dir, progress).map_err(|e| verify::blame(dir, e));
            // Another index may have replaced this one while its parts were read.
            match (&opened, Manifest::read(dir)) {
                (Ok(index), Ok(now)) if index.inner.manifest == now => return opened,
                (Ok(_), Ok(_)) => {}
                _ => return opened,
            }
        }
    }

    fn open_once(dir: &Path, progress: &dyn Progress) -> Result<Index> {
        let manifest = Manifest::read(dir)?;
        let model = Model::load(&dir.join(MODEL))?;
        manifest.check_model(dir, &model)?;
        manifest.check_model_files(dir)?;
        let store = dir.join(STORE);
        let directory = guarded(&store, || StoreDirectory::open(dir, Some(model.shape())))?;
        let tantivy = guarded(&store, || tantivy::Index::open(directory.clone()))?;
        let layout = manifest.layout();
        layout.language.register(&tantivy);
        let (expected, fields) = schema::build(model.shape(), layout);
        if tantivy.schema() != expected {
            return Err(Error::format(
                dir.join(STORE),
                "has another schema than index.json and the model call for; restore the directory from a copy",
            ));
        }
        verify::check_list(&tantivy, &store, None)?;
        let reader = guarded(&store, || {
            let reader = tantivy.reader_builder().reload_policy(tantivy::ReloadPolicy::Manual);
            reader.doc_store_cache_num_blocks(TEXT_BLOCKS).try_into()
        })?;
        verify::check_list(&tantivy, &store, Some(&reader.searcher()))?;
        let snapshot = Snapshot::open(dir, &directory, &model, layout, reader.searcher(), None, progress)?;
        let inner = Inner {
            dir: dir.to_path_buf(),
            manifest,
            model,
            fields,
            tantivy,
            directory,
            reader,
            snapshot: RwLock::new(Arc::new(snapshot)),
            selections: Selections::default(),
            reloading: Mutex::new(()),
            warnings: Mutex::default(),
        };
        Ok(Index { inner: Arc::new(inner) })
    }

    fn open_store(dir: &Path, shape: Option<CodeShape>) -> Result<tantivy::Index> {
        guarded(&dir.join(STORE), || tantivy::Index::open(StoreDirectory::open(dir, shape)?))
    }

    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    pub fn model(&self) -> &Model {
        &self.inner.model
    }

    /// The directory of the model.
    pub fn model_dir(&self) -> PathBuf {
        self.inner.dir.join(MODEL)
    }

    /// Which parts of a document are stored.
    pub fn store(&self) -> Store {
        self.inner.manifest.store()
    }

    /// How rerank vectors are stored.
    pub fn rerank_vectors(&self) -> RerankVectors {
        self.inner.manifest.rerank_vectors()
    }

    /// How texts become terms.
    pub fn language(&self) -> Language {
        self.inner.manifest.layout().language
    }

    /// How texts are split; `None` if they are not.
    pub fn chunk(&self) -> Option<ChunkSizes> {
        self.inner.manifest.layout().chunk
    }

    /// Refuses an index with chunks, for work that needs one code per document.
    pub fn expect_one_code_per_document(&self, work: &str) -> Result<()> {
        match self.chunk() {
            None => Ok(()),
            Some(_) => Err(Error::config(format!(
                "{work} needs one code per document, and this index has one per chunk; build it without chunk"
            ))),
        }
    }

    /// Names of the attributes that some document has.
    pub fn attributes(&self) -> Result<Vec<String>> {
        let snapshot = self.inner.snapshot();
        guarded_ours(&self.inner.dir.join(STORE), || Ok(snapshot.attributes()?.iter().cloned().collect()))
    }

    /// Refuses a model other than the one that produced the codes.
    pub fn expect_model(&self, model: &Model) -> Result<()> {
        self.inner.manifest.expect_model(&self.inner.dir, model.fingerprint())
    }

    /// Number of documents that are not deleted.
    pub fn len(&self) -> usize {
        self.inner.snapshot().documents()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Switches to the latest commit of any process. Returns whether anything changed.
    pub fn reload(&self, progress: &dyn Progress) -> Result<bool> {
        self.inner.reload(progress)
    }

    /// Whether another index has taken the place of this one in its directory.
    pub fn is_replaced(&self) -> Result<bool> {
        Ok(Manifest::read(&self.inner.dir)? != self.inner.manifest)
    }

    /// Whether both are the same open index.
    pub fn is_same(&self, other: &Index) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Keeps every writer out, of any process, until the lock is dropped. An open writer is [`Error::Busy`].
    pub fn lock(&self) -> Result<IndexLock> {
        writer::lock(&self.inner.directory, &self.inner.dir).map(|lock| IndexLock { _lock: lock })
    }

    /// Opens the writer. Only one may be open over all processes: a second one gets [`Error::Busy`].
    pub fn writer(&self) -> Result<IndexWriter> {
        IndexWriter::open(self.inner.clone())
    }

    /// Returns `None` if no document has this id.
    pub fn get(&self, id: &DocId) -> Result<Option<Record>> {
        let snapshot = self.inner.snapshot();
        guarded_ours(&self.inner.dir.join(STORE), || match snapshot.find(&self.inner.fields, id)? {
            Some(address) => snapshot.record(&self.inner.fields, address).map(Some),
            None => Ok(None),
        })
    }

    /// Number of documents that match a filter.
    pub fn count(&self, filter: &str) -> Result<usize> {
        self.count_within(Some(filter), None, &NoProgress)
    }

    /// Number of documents that match a filter and are in a subset, where given.
    pub fn count_within(
        &self,
        filter: Option<&str>,
        subset: Option<&Subset>,
        progress: &dyn Progress,
    ) -> Result<usize> {
        let snapshot = self.inner.snapshot();
        guarded_ours(&self.inner.dir.join(STORE), || {
            let query = self.inner.parse_filter(filter.unwrap_or(ALL), Some(&snapshot))?;
            snapshot.count(&query.within(subset), progress)
        })
    }

    /// [`Index::count`] in a shard. `known` are the attributes of all shards; any other name is refused.
    pub fn count_in_shard(&self, filter: &str, known: Option<&BTreeSet<String>>) -> Result<usize> {
        let snapshot = self.inner.snapshot();
        guarded_ours(&self.inner.dir.join(STORE), || {
            snapshot.count(&self.inner.parse_filter_of(filter, known)?, &NoProgress)
        })
    }

    /// Problems found since the last call: packed codes that were damaged and built again, damaged segments excluded
    /// from merges, and commits that are on disk but could not be opened yet.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut *self.inner.warnings.lock());
        warnings.extend(self.inner.directory.warnings());
        warnings
    }

    /// Reads every document: the distribution of codes, and the attributes.
    pub fn stats(&self, progress: &dyn Progress) -> Result<Stats> {
        stats::of(&self.inner, progress)
    }

    /// Tells this index from a copy of it and from one that takes its place. Indexes of the first formats have the model's name.
    pub(crate) fn short_id(&self) -> String {
        self.inner.manifest.short_id()
    }

    /// Counts and sizes.
    pub fn info(&self) -> Result<Info> {
        info::of(&self.inner)
    }
}

impl Inner {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.read().clone()
    }

    /// The current snapshot, with every byte of its packed codes checked once. Damaged codes are built again from the
    /// store.
    fn sound(&self) -> Result<Arc<Snapshot>> {
        let snapshot = self.snapshot();
        snapshot.require(Part::Columns)?;
        if snapshot.check().is_empty() {
            return Ok(snapshot);
        }
        let _exclusive = self.reloading.lock();
        let snapshot = self.snapshot();
        let damaged = snapshot.check();
        if damaged.is_empty() {
            return Ok(snapshot);
        }
        let mut warnings = self.warnings.lock();
        for (segment, problem) in damaged {
            let path = segment::codes_path(&self.dir, segment);
            warnings.push(format!("{}: {problem}; made again from the store", path.display()));
        }
        drop(warnings);
        let searcher = snapshot.searcher().clone();
        let new = Arc::new(self.open_snapshot(searcher, &snapshot, &NoProgress)?);
        *self.snapshot.write() = new.clone();
        // These files were just written and mapped. If they are damaged too, there is nothing left to search.
        match new.check().into_iter().next() {
            None => Ok(new),
            Some((segment, problem)) => Err(Error::format(segment::codes_path(&self.dir, segment), problem)),
        }
    }

    /// The document of a row; its first chunk in an index with chunks.
    fn record(&self, snapshot: &Snapshot, address: tantivy::DocAddress) -> Result<Record> {
        guarded_ours(&self.dir.join(STORE), || snapshot.record(&self.fields, address))
    }

    fn reload(&self, progress: &dyn Progress) -> Result<bool> {
        let _exclusive = self.reloading.lock();
        let store = self.dir.join(STORE);
        guarded(&store, || self.reader.reload())?;
        let searcher = self.reader.searcher();
        // Checked after the reload: the segments just loaded are of the directory that exists now, or of an older one.
        if Manifest::read(&self.dir)? != self.manifest {
            return Err(Error::format(
                &self.dir,
                "is another index now: it was replaced or migrated to another model; open it again",
            ));
        }
        let old = self.snapshot();
        verify::check_list(&self.tantivy, &store, Some(&searcher))?;
        if searcher.generation().segments() == old.searcher().generation().segments() {
            old.expect_rows(&searcher)?;
            return Ok(false);
        }
        let new = self.open_snapshot(searcher, &old, progress)?;
        *self.snapshot.write() = Arc::new(new);
        Ok(true)
    }

    fn open_snapshot(
        &self,
        searcher: tantivy::Searcher,
        earlier: &Snapshot,
        progress: &dyn Progress,
    ) -> Result<Snapshot> {
        let layout = self.manifest.layout();
        Snapshot::open(&self.dir, &self.directory, &self.model, layout, searcher, Some(earlier), progress)
    }

    fn warn(&self, warning: String) {
        self.warnings.lock().push(warning);
    }

    /// Parses a filter. If a snapshot is given, refuses an attribute that no document there has.
    fn parse_filter(&self, text: &str, snapshot: Option<&Snapshot>) -> Result<Filter> {
        // An empty index knows no attributes, so no name can be refused.
        let filled = snapshot.filter(|snapshot| snapshot.searcher().num_docs() > 0);
        self.parse_filter_of(text, filled.map(Snapshot::attributes).transpose()?)
    }

    /// Parses a filter. If the known attributes are given, refuses any other.
    fn parse_filter_of(&self, text: &str, known: Option<&BTreeSet<String>>) -> Result<Filter> {
        filter::parse(&self.tantivy, &self.fields, self.manifest.store(), text, known)
    }
}
