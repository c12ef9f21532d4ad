//! A directory of documents that are codes.
//!
//! tantivy is the store of record: ids, insertion sequence, codes, texts, labels and attributes are one tantivy index
//! in `store/`, whose commits, deletes, merges, lock and checksums are ours. Beside it lie the model in `model/`, and in
//! `codes/` one file of packed codes for every segment. Those are derived: whoever opens a segment first makes them,
//! and a missing or damaged one is made again.
//!
//! Any number of processes read; one writes. A reader sees the commit it opened or last [`Index::reload`]ed.

mod backup;
mod directory;
mod facets;
mod filter;
mod info;
mod kept;
mod kinship;
mod manifest;
mod migrate;
mod reader;
mod schema;
mod segment;
mod selections;
mod snapshot;
mod stats;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upkeep_tests;
mod verify;
mod walk;
mod words;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use backup::{Copied, CopyConfig, restore, snapshot};
pub use facets::Facet;
pub(crate) use filter::Filter;
pub use info::{Bytes, Info};
pub use kept::Keep;
pub use manifest::{FORMAT, OLDEST_FORMAT, Store};
pub use migrate::{MigrateConfig, Migrated, migrate};
pub(crate) use reader::Reader;
pub(crate) use schema::Stored;
pub use snapshot::Record;
pub(crate) use snapshot::{Near, Scanned};
pub use stats::{AttributeStats, BookStats, CodeStats, SegmentStats, Stats};
pub use verify::{Problem, verify};
pub use walk::{Records, Walk};
pub(crate) use words::Words;
pub use writer::IndexWriter;

use crate::corpus::DocId;
use crate::disk::Making;
use crate::model::{CodeShape, Model, Table};
pub use crate::query::{Hit, SearchConfig};
use crate::{Error, Result, Watch};
use manifest::Manifest;
use schema::Fields;
use selections::Selections;
use snapshot::Snapshot;
use tantivy::directory::DirectoryLock;

/// How an index is made.
#[derive(Clone, Debug, Default)]
pub struct IndexConfig {
    /// What is kept of a document.
    pub store: Store,
    /// How features are kept for the second stage of a search.
    pub keep: Keep,
    /// Whether an index already there is replaced.
    pub replace: bool,
    /// What is known of the model, kept beside it.
    pub metrics: serde_json::Value,
}

/// An open index. Clones share everything, and any number of threads may search.
#[derive(Clone)]
pub struct Index {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    dir: PathBuf,
    manifest: Manifest,
    model: Model,
    fields: Fields,
    tantivy: tantivy::Index,
    reader: tantivy::IndexReader,
    snapshot: RwLock<Arc<Snapshot>>,
    selections: Selections,
    // Held while a newer snapshot is made: of two reloads at once, the slower would bring back the older commit.
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
/// In the store: tantivy's list of segments, written anew by every commit and every merge.
pub(crate) const SEGMENTS: &str = "meta.json";
/// The model inside an index directory.
pub(crate) const MODEL: &str = "model";
/// The packed codes inside an index directory.
pub(crate) const CODES: &str = "codes";

impl Index {
    /// Makes an empty index. It appears whole or not at all.
    pub fn create(dir: &Path, model: &Model, config: IndexConfig) -> Result<Index> {
        // Held until the old index is out of the way: nobody may be writing to it.
        let _lock = free_place(dir, config.replace)?;
        let making = Making::begin(dir)?;
        let place = &making.path();
        std::fs::create_dir(place).map_err(Error::io(place))?;
        for name in [STORE, MODEL, CODES] {
            std::fs::create_dir(place.join(name)).map_err(Error::io(place))?;
        }
        model.write_into(&place.join(MODEL), &config.metrics)?;
        let (schema, _) = schema::build(model.shape(), config.store, config.keep);
        let store = place.join(STORE);
        tantivy::Index::create_in_dir(&store, schema).map_err(|e| tantivy_error(&store, e))?;
        let manifest = Manifest::new(model, config.store, config.keep, place)?;
        crate::disk::write_synced(&Manifest::path(place), manifest.to_json().as_bytes())?;

        making.finish()?;
        Index::open(dir, &crate::Silent)
    }

    /// Opens an index for reading, without reading more of it than where things lie. A file of packed codes that cannot
    /// be used is made again, with a note to `watch`; damage inside one is found when it is first searched (see
    /// [`Index::warnings`]).
    pub fn open(dir: &Path, watch: &dyn Watch) -> Result<Index> {
        loop {
            let opened = Index::open_once(dir, watch);
            // Another index may have been put in this place between the looks at its parts.
            match (&opened, Manifest::read(dir)) {
                (Ok(index), Ok(now)) if index.inner.manifest == now => return opened,
                (Ok(_), Ok(_)) => {}
                _ => return opened,
            }
        }
    }

    fn open_once(dir: &Path, watch: &dyn Watch) -> Result<Index> {
        let manifest = Manifest::read(dir)?;
        let model = Model::load(&dir.join(MODEL))?;
        manifest.check_model(dir, &model)?;
        let tantivy = Index::open_store(dir, Some(model.shape()))?;
        let (expected, fields) = schema::build(model.shape(), manifest.store(), manifest.keep());
        if tantivy.schema() != expected {
            return Err(Error::format(
                dir.join(STORE),
                "has another schema than index.json and the model call for; restore the directory from a copy",
            ));
        }
        let store = dir.join(STORE);
        let reader =
            guarded(&store, || tantivy.reader_builder().reload_policy(tantivy::ReloadPolicy::Manual).try_into())?;
        let snapshot = Snapshot::open(dir, &model, manifest.keep(), reader.searcher(), None, watch)?;
        let inner = Inner {
            dir: dir.to_path_buf(),
            manifest,
            model,
            fields,
            tantivy,
            reader,
            snapshot: RwLock::new(Arc::new(snapshot)),
            selections: Selections::default(),
            reloading: Mutex::new(()),
            warnings: Mutex::default(),
        };
        Ok(Index { inner: Arc::new(inner) })
    }

    fn open_store(dir: &Path, shape: Option<CodeShape>) -> Result<tantivy::Index> {
        guarded(&dir.join(STORE), || tantivy::Index::open(directory::StoreDirectory::open(dir, shape)?))
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// The model its codes come from.
    pub fn model(&self) -> &Model {
        &self.inner.model
    }

    /// What it keeps of a document.
    pub fn store(&self) -> Store {
        self.inner.manifest.store()
    }

    /// How it keeps features.
    pub fn keep(&self) -> Keep {
        self.inner.manifest.keep()
    }

    /// Names of the attributes that some document has.
    pub fn attributes(&self) -> Result<Vec<String>> {
        let snapshot = self.inner.snapshot();
        guarded_ours(&self.inner.dir.join(STORE), || Ok(snapshot.attributes()?.iter().cloned().collect()))
    }

    /// Refuses a model other than the one the codes come from.
    pub fn expect_model(&self, model: &Model) -> Result<()> {
        self.inner.manifest.expect_model(&self.inner.dir, model.fingerprint())
    }

    /// Documents that can be found.
    pub fn len(&self) -> usize {
        self.inner.snapshot().searcher().num_docs() as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Turns to the latest commit, of whatever process. Returns whether anything changed.
    pub fn reload(&self, watch: &dyn Watch) -> Result<bool> {
        self.inner.reload(watch)
    }

    /// The writer. There is one at a time over all processes: a second one gets [`Error::Busy`].
    pub fn writer(&self) -> Result<IndexWriter> {
        IndexWriter::open(self.inner.clone())
    }

    /// The nearest documents of every table by their codes, best first. Equal distances are ordered by insertion.
    ///
    /// Words, kept features and cursors need more than a table: those are [`crate::query::Searcher`]'s.
    pub fn search(&self, tables: &[Table], config: &SearchConfig) -> Result<Vec<Vec<Hit>>> {
        crate::query::by_tables(&self.reader()?, tables, config)
    }

    /// A document by its id, with its code.
    pub fn get(&self, id: &DocId) -> Result<Option<Record>> {
        let snapshot = self.inner.snapshot();
        guarded_ours(&self.inner.dir.join(STORE), || match snapshot.find(&self.inner.fields, id)? {
            Some(address) => snapshot.record(&self.inner.fields, address).map(Some),
            None => Ok(None),
        })
    }

    /// How many documents match a filter.
    pub fn count(&self, filter: &str) -> Result<usize> {
        let snapshot = self.inner.snapshot();
        let query = self.inner.parse_filter(filter, Some(&snapshot))?;
        snapshot.count(query.query())
    }

    /// What searches have found damaged since the last call, and made again.
    pub fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.inner.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at every document: how codes are spread, what attributes there are.
    pub fn stats(&self, watch: &dyn Watch) -> Result<Stats> {
        stats::of(&self.inner, watch)
    }

    /// Counts and sizes.
    pub fn info(&self) -> Result<Info> {
        info::of(&self.inner)
    }
}

impl Inner {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.read().expect("no thread panics while it holds this").clone()
    }

    /// The present commit, every byte of its packed codes looked at once. Damaged ones are made again from the store.
    fn sound(&self) -> Result<Arc<Snapshot>> {
        let snapshot = self.snapshot();
        if snapshot.check().is_empty() {
            return Ok(snapshot);
        }
        let _alone = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.snapshot();
        let damaged = snapshot.check();
        if damaged.is_empty() {
            return Ok(snapshot);
        }
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        for (segment, problem) in damaged {
            let path = segment::codes_path(&self.dir, segment);
            warnings.push(format!("{}: {problem}; made again from the store", path.display()));
        }
        drop(warnings);
        let searcher = snapshot.searcher().clone();
        let new =
            Snapshot::open(&self.dir, &self.model, self.manifest.keep(), searcher, Some(&snapshot), &crate::Silent)?;
        let new = Arc::new(new);
        *self.snapshot.write().expect("no thread panics while it holds this") = new.clone();
        // Written and mapped again a moment ago: should that be damaged too, there is nothing left to search.
        match new.check().into_iter().next() {
            None => Ok(new),
            Some((segment, problem)) => Err(Error::format(segment::codes_path(&self.dir, segment), problem)),
        }
    }

    /// A document of a snapshot of this index.
    fn record(&self, snapshot: &Snapshot, address: tantivy::DocAddress) -> Result<Record> {
        guarded_ours(&self.dir.join(STORE), || snapshot.record(&self.fields, address))
    }

    fn reload(&self, watch: &dyn Watch) -> Result<bool> {
        let _alone = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let store = self.dir.join(STORE);
        guarded(&store, || self.reader.reload())?;
        let searcher = self.reader.searcher();
        // Behind the reload: what it has brought is of the directory that is there now, or of an older one.
        if Manifest::read(&self.dir)? != self.manifest {
            return Err(Error::format(
                &self.dir,
                "is another index now: it was replaced or migrated to another model; open it again",
            ));
        }
        let old = self.snapshot();
        if searcher.generation().segments() == old.searcher().generation().segments() {
            return Ok(false);
        }
        let new = Snapshot::open(&self.dir, &self.model, self.manifest.keep(), searcher, Some(&old), watch)?;
        *self.snapshot.write().expect("no thread panics while it holds this") = Arc::new(new);
        Ok(true)
    }

    /// Understands a filter. With a snapshot, one that names an attribute no document there has is refused.
    fn parse_filter(&self, text: &str, snapshot: Option<&Snapshot>) -> Result<Filter> {
        // An index that is still empty knows no attributes, and nothing can be said of a name.
        let filled = snapshot.filter(|snapshot| snapshot.searcher().num_docs() > 0);
        let known = filled.map(Snapshot::attributes).transpose()?;
        filter::parse(&self.tantivy, &self.fields, self.manifest.store(), text, known)
    }
}

/// That an index may be put at `dir`: nothing is there, or an index that may be replaced, whose writer's lock is
/// returned. One that cannot be opened has no writer.
fn free_place(dir: &Path, replace: bool) -> Result<Option<DirectoryLock>> {
    crate::disk::recover(dir)?;
    let occupied = match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_some(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
        Err(e) => return Err(Error::io(dir)(e)),
    };
    if !occupied {
        return Ok(None);
    }
    if !Manifest::path(dir).exists() {
        return Err(Error::format(dir, "exists and is not an index; name another place"));
    }
    if !replace {
        return Err(Error::format(dir, "already holds an index; add to it, name another place or ask to replace it"));
    }
    match Index::open_store(dir, None) {
        Ok(old) => writer::lock(&old, dir).map(Some),
        Err(_) => Ok(None),
    }
}

/// What a user should make of tantivy's word.
pub(crate) fn tantivy_error(path: &Path, error: tantivy::TantivyError) -> Error {
    use tantivy::TantivyError;
    use tantivy::directory::error::{LockError, OpenReadError};
    match error {
        TantivyError::LockFailure(LockError::LockBusy, _) => Error::Busy(format!(
            "{}: another writer has this index open; wait for it to finish, or stop it (readers need not stop)",
            path.display()
        )),
        TantivyError::LockFailure(LockError::IoError(e), _) | TantivyError::IoError(e) => {
            Error::io(path)(std::io::Error::new(e.kind(), e.to_string()))
        }
        TantivyError::OpenReadError(OpenReadError::FileDoesNotExist(file)) => {
            Error::format(path.join(file), "is missing; restore the index from a copy or build it again")
        }
        other => Error::format(path, format!("{other}; \"micpq index verify\" tells what is damaged")),
    }
}

/// Runs tantivy, which panics on some damaged files, and turns that into an error with a way out.
fn guarded<T>(path: &Path, work: impl FnOnce() -> tantivy::Result<T>) -> Result<T> {
    guarded_ours(path, || work().map_err(|e| tantivy_error(path, e)))
}

fn guarded_ours<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let word = panic.downcast_ref::<String>().map(String::as_str);
        let word = word.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(Error::format(path, format!("cannot be read ({word}); \"micpq index verify\" tells what is damaged")))
    })
}
