//! Writing: many changes, one commit.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tantivy::directory::{Directory, DirectoryLock, INDEX_WRITER_LOCK};
use tantivy::index::{SegmentId, SegmentMeta};
use tantivy::merge_policy::LogMergePolicy;

use super::schema::id_text;
use super::segment::{TEMPORARY, codes_path};
use super::snapshot::Snapshot;
use super::{CODES, Inner, Keep, SEGMENTS, STORE, tantivy_error};
use crate::corpus::{DocId, Document};
use crate::{Error, Matrix, Result, Watch};

/// Memory of one indexing thread before it writes a segment.
const MEMORY: usize = 64 << 20;

/// Share of deleted documents above which a segment is rewritten.
const DELETED: f32 = 0.3;

/// The one writer of an index. Changes are seen after [`IndexWriter::commit`]; dropped without it, they never were.
pub struct IndexWriter {
    inner: Arc<Inner>,
    // Taken only while the writer is being replaced.
    tantivy: Option<tantivy::IndexWriter>,
    next: u64,
    committed: u64,
    changed: bool,
    hasher: RandomState,
    // Hashes of the ids added and deleted since the last commit. Knowing which ids are new spares a delete for each,
    // which tantivy would look up in every segment.
    added: HashSet<u64>,
    gone: HashSet<u64>,
    base: Arc<Snapshot>,
}

impl IndexWriter {
    pub(super) fn open(inner: Arc<Inner>) -> Result<IndexWriter> {
        let store = inner.dir.join(STORE);
        let tantivy = start(&inner)?;
        // Behind the lock: what is committed now stays so until we commit.
        inner.reload(&crate::Silent)?;
        let metas = inner.tantivy.load_metas().map_err(|e| tantivy_error(&store, e))?;
        let next = match &metas.payload {
            Some(payload) => Payload::read(&store, payload)?.next,
            None if metas.segments.is_empty() => 0,
            None => {
                return Err(Error::format(
                    store.join(SEGMENTS),
                    "was not written by micpq: it has segments and no sequence number; build the index again",
                ));
            }
        };
        let base = inner.snapshot();
        let writer = IndexWriter {
            inner,
            tantivy: Some(tantivy),
            next,
            committed: next,
            changed: false,
            hasher: RandomState::new(),
            added: HashSet::new(),
            gone: HashSet::new(),
            base,
        };
        writer.tidy()?;
        Ok(writer)
    }

    fn tantivy(&mut self) -> &mut tantivy::IndexWriter {
        self.tantivy.as_mut().expect("taken only inside one function")
    }

    /// Adds a document with its packed code, or puts it in the place of the one with the same id. The ids `5` and `"5"`
    /// are the same.
    ///
    /// For an index that keeps no features; one that does takes [`IndexWriter::add_features`].
    pub fn add(&mut self, document: &Document, code: &[u8]) -> Result<()> {
        if self.inner.manifest.keep() != Keep::None {
            return Err(Error::input(
                id_text(&document.id),
                "comes as a code alone, but this index keeps features; give its feature, or make an index that keeps none",
            ));
        }
        self.insert(document, code, &[])
    }

    /// Adds documents by their features `[documents, inputs]`, or puts them in the place of those with the same ids:
    /// codes are made by the index's own model, and the features are kept as the index keeps them.
    pub fn add_features(&mut self, documents: &[Document], features: &Matrix) -> Result<()> {
        let (keep, inputs) = (self.inner.manifest.keep(), self.inner.model.inputs());
        if features.rows() != documents.len() || features.rows() > 0 && features.cols() != inputs {
            return Err(Error::config(format!(
                "{} documents came with {} features of {} values; this index takes one of {inputs} values for each",
                documents.len(),
                features.rows(),
                features.cols()
            )));
        }
        if documents.is_empty() {
            return Ok(());
        }
        let codes = self.inner.model.encode(features)?;
        let width = self.inner.model.shape().code_bytes();
        for ((document, feature), code) in documents.iter().zip(features.iter()).zip(codes.chunks_exact(width)) {
            let packed = keep.pack(feature).map_err(|problem| Error::input(id_text(&document.id), problem))?;
            self.insert(document, code, &packed)?;
        }
        Ok(())
    }

    fn insert(&mut self, document: &Document, code: &[u8], feature: &[u64]) -> Result<()> {
        let shape = self.inner.model.shape();
        let spare = shape.code_bytes() * 8 - shape.bits();
        if code.len() != shape.code_bytes() || spare > 0 && code[code.len() - 1] >> (8 - spare) != 0 {
            return Err(Error::input(
                id_text(&document.id),
                format!(
                    "its code has {} bytes, expected {} bits; encode it with the model of this index",
                    code.len(),
                    shape.bits()
                ),
            ));
        }
        let entry = self.inner.fields.document(document, code, feature, self.next)?;
        let hash = self.hasher.hash_one(id_text(&document.id));
        if self.knows(&document.id, hash)? {
            let term = self.inner.fields.id_term(&document.id);
            self.tantivy().delete_term(term);
        }
        let store = self.inner.dir.join(STORE);
        self.tantivy().add_document(entry).map_err(|e| tantivy_error(&store, e))?;
        self.added.insert(hash);
        self.next += 1;
        self.changed = true;
        Ok(())
    }

    /// Whether a document of this id is there, the uncommitted among them.
    pub fn contains(&self, id: &DocId) -> Result<bool> {
        self.knows(id, self.hasher.hash_one(id_text(id)))
    }

    fn knows(&self, id: &DocId, hash: u64) -> Result<bool> {
        if self.added.contains(&hash) {
            return Ok(true);
        }
        Ok(!self.gone.contains(&hash) && self.base.find(&self.inner.fields, id)?.is_some())
    }

    /// Deletes a document. Returns whether there was one.
    pub fn delete(&mut self, id: &DocId) -> Result<bool> {
        let hash = self.hasher.hash_one(id_text(id));
        if !self.knows(id, hash)? {
            return Ok(false);
        }
        let term = self.inner.fields.id_term(id);
        self.tantivy().delete_term(term);
        self.added.remove(&hash);
        self.gone.insert(hash);
        self.changed = true;
        Ok(true)
    }

    /// Deletes every document that matches a filter, the uncommitted among them. Returns how many committed ones do.
    pub fn delete_where(&mut self, filter: &str) -> Result<usize> {
        // An attribute that no committed document has may be one of a document not yet committed.
        let known = self.added.is_empty().then(|| self.base.clone());
        let query = self.inner.parse_filter(filter, known.as_deref())?;
        let count = self.base.count(query.query())?;
        let store = self.inner.dir.join(STORE);
        self.tantivy().delete_query(query.into_query()).map_err(|e| tantivy_error(&store, e))?;
        self.changed = true;
        Ok(count)
    }

    /// Makes all changes since the last commit visible and durable, all at once, and packs the codes of new segments.
    /// Returns the number of documents.
    pub fn commit(&mut self, watch: &dyn Watch) -> Result<usize> {
        if self.changed {
            let store = self.inner.dir.join(STORE);
            let next = self.next;
            let work = |writer: &mut tantivy::IndexWriter| {
                let mut prepared = writer.prepare_commit()?;
                let payload = Payload { next, opstamp: prepared.opstamp() };
                prepared.set_payload(&payload.to_json());
                prepared.commit()
            };
            if let Err(e) = work(self.tantivy()) {
                let error = tantivy_error(&store, e);
                // Back to the last commit, so that the writer can still be used; if that fails too, the first word
                // is the one that tells.
                let _ = self.rollback();
                return Err(error);
            }
        }
        self.turn(watch)?;
        self.tidy()?;
        Ok(self.base.searcher().num_docs() as usize)
    }

    /// Follows the store after a commit.
    fn turn(&mut self, watch: &dyn Watch) -> Result<()> {
        self.inner.reload(watch)?;
        self.base = self.inner.snapshot();
        self.committed = self.next;
        self.changed = false;
        self.added.clear();
        self.gone.clear();
        Ok(())
    }

    /// Forgets all changes since the last commit.
    pub fn rollback(&mut self) -> Result<()> {
        let store = self.inner.dir.join(STORE);
        self.tantivy().rollback().map_err(|e| tantivy_error(&store, e))?;
        // tantivy has put a new writer in its place.
        prepare(&self.inner.clone(), self.tantivy())?;
        self.next = self.committed;
        self.changed = false;
        self.added.clear();
        self.gone.clear();
        Ok(())
    }

    /// Commits, then rewrites everything as one segment without the deleted documents.
    pub fn compact(&mut self, watch: &dyn Watch) -> Result<()> {
        self.commit(watch)?;
        let store = self.inner.dir.join(STORE);
        // Merges under way would hold segments that the great merge needs.
        self.settle()?;
        // tantivy keeps the files of every segment whose description is held somewhere, so this one goes at once.
        let groups = {
            let metas = self.inner.tantivy.searchable_segment_metas().map_err(|e| tantivy_error(&store, e))?;
            let needed = metas.len() > 1 || metas.iter().any(|m| m.has_deletes());
            if needed { groups(&metas, most_documents(&self.inner)) } else { Vec::new() }
        };
        if !groups.is_empty() {
            watch.stage("merging segments", None);
        }
        for ids in groups {
            self.tantivy().merge(&ids).wait().map_err(|e| tantivy_error(&store, e))?;
        }
        self.turn(watch)?;
        self.tantivy().garbage_collect_files().wait().map_err(|e| tantivy_error(&store, e))?;
        self.tidy()
    }

    /// Waits for merges under way. What is not committed is lost.
    fn settle(&mut self) -> Result<()> {
        let store = self.inner.dir.join(STORE);
        let old = self.tantivy.take().expect("taken only inside one function");
        let waited = old.wait_merging_threads().map_err(|e| tantivy_error(&store, e));
        self.tantivy = Some(start_again(&self.inner)?);
        waited
    }

    /// Waits for merges under way and packs what they made. Call [`IndexWriter::commit`] before.
    pub fn close(mut self, watch: &dyn Watch) -> Result<()> {
        let store = self.inner.dir.join(STORE);
        let writer = self.tantivy.take().expect("taken only inside one function");
        writer.wait_merging_threads().map_err(|e| tantivy_error(&store, e))?;
        self.turn(watch)?;
        self.tidy()
    }

    /// Removes packed codes of segments that are no more. A reader of an older commit that has them mapped keeps them;
    /// one that comes too late makes them again.
    fn tidy(&self) -> Result<()> {
        let dir = self.inner.dir.join(CODES);
        let living: HashSet<_> = self.base.segments().iter().map(|s| codes_path(&self.inner.dir, s.id)).collect();
        for entry in std::fs::read_dir(&dir).map_err(Error::io(&dir))? {
            let path = entry.map_err(Error::io(&dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // A process that was killed leaves its half; one at work needs less than this.
            let stale = name.starts_with(TEMPORARY) && age(&path).is_some_and(|age| age > Duration::from_secs(600));
            // Codes are packed before their segment is committed: while it has columns, it may come to be.
            let columns = self.inner.dir.join(STORE).join(&name).with_extension("fast");
            let dead = name.ends_with(".codes") && !living.contains(&path) && !columns.exists();
            if stale || dead {
                match std::fs::remove_file(&path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io(&path)(e)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn age(path: &Path) -> Option<Duration> {
    std::fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

/// Starts a writer in the place of one that has just ended. Its lock can outlive it for a moment: a process that another thread
/// starts holds a copy of every open file until it runs its own program.
fn start_again(inner: &Inner) -> Result<tantivy::IndexWriter> {
    const TRIES: usize = 200;
    for _ in 1..TRIES {
        match start(inner) {
            Err(Error::Busy(_)) => std::thread::sleep(std::time::Duration::from_millis(10)),
            other => return other,
        }
    }
    start(inner)
}

fn start(inner: &Inner) -> Result<tantivy::IndexWriter> {
    let store = inner.dir.join(STORE);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let writer =
        inner.tantivy.writer_with_num_threads(threads, threads * MEMORY).map_err(|e| tantivy_error(&store, e))?;
    prepare(inner, &writer)?;
    Ok(writer)
}

/// Makes one of tantivy's writers that has just begun ours.
fn prepare(inner: &Inner, writer: &tantivy::IndexWriter) -> Result<()> {
    let mut policy = merge_policy();
    // A merge takes eight segments or more of like size; what it makes must not outgrow the column of features.
    policy.set_max_docs_before_merge((most_documents(inner) / 16).min(10_000_000));
    writer.set_merge_policy(Box::new(policy));
    // tantivy numbers changes and commits, and a new writer begins with the number of the last commit. A merge would take a
    // change of that number for committed, and apply it to some segments and not to others: so the number is used up.
    writer.run([]).map_err(|e| tantivy_error(&inner.dir.join(STORE), e))?;
    Ok(())
}

/// Documents a segment may have.
fn most_documents(inner: &Inner) -> usize {
    inner.manifest.keep().most_documents(inner.model.inputs())
}

/// Segments to be merged with each other, so that none becomes larger than `most`: one group, unless they are huge.
fn groups(metas: &[SegmentMeta], most: usize) -> Vec<Vec<SegmentId>> {
    let (mut groups, mut documents) = (vec![Vec::new()], 0);
    for meta in metas {
        let more = meta.num_docs() as usize;
        if documents + more > most && documents > 0 {
            groups.push(Vec::new());
            documents = 0;
        }
        documents += more;
        groups.last_mut().expect("begun with one").push(meta.id());
    }
    groups
}

/// When segments become one. A level holds segments up to eight times as large as its smallest, beginning with all up to
/// a thousand documents, and is merged when it has eight: at most seven stay in each, so that 10 million documents lie in
/// about 30 segments however small the commits were, and each document is rewritten once a level.
fn merge_policy() -> LogMergePolicy {
    let mut policy = LogMergePolicy::default();
    policy.set_min_num_segments(8);
    policy.set_min_layer_size(1000);
    policy.set_level_log_size(3.0);
    policy.set_del_docs_ratio_before_merge(DELETED);
    policy
}

/// The writer's lock of an index, without a writer.
pub(super) fn lock(index: &tantivy::Index, dir: &Path) -> Result<DirectoryLock> {
    index
        .directory()
        .acquire_lock(&INDEX_WRITER_LOCK)
        .map_err(|e| tantivy_error(&dir.join(STORE), tantivy::TantivyError::LockFailure(e, None)))
}

/// What we write into each commit.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Payload {
    /// The sequence number of the next document.
    pub next: u64,
    /// tantivy's number of the commit, which stands beside it too.
    pub opstamp: u64,
}

impl Payload {
    fn to_json(self) -> String {
        let text = serde_json::to_string(&self).expect("plain data has a JSON form");
        format!("{text} {:08x}", crc32fast::hash(text.as_bytes()))
    }

    pub fn read(store: &Path, text: &str) -> Result<Payload> {
        let parsed =
            text.rsplit_once(' ').filter(|(json, crc)| format!("{:08x}", crc32fast::hash(json.as_bytes())) == *crc);
        parsed.and_then(|(json, _)| serde_json::from_str(json).ok()).ok_or_else(|| {
            Error::format(
                store.join(SEGMENTS),
                "is damaged: the commit's own record does not fit its checksum; restore the index from a copy",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use tantivy::merge_policy::NoMergePolicy;

    use super::super::tests::{Twin, clean, code, document, model, scratch};
    use super::super::{Index, IndexConfig};
    use crate::Silent;
    use crate::model::CodeShape;

    #[test]
    fn the_first_change_of_a_writer_is_numbered_behind_the_last_commit() {
        for first in ["another writer's", "after a rollback"] {
            let dir = scratch();
            let path = dir.path().join("index");
            let model = model(CodeShape::micpq(32).unwrap(), 3);
            let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
            let mut twin = Twin::default();
            let mut writer = index.writer().unwrap();
            let before = writer.tantivy().get_merge_policy();
            writer.tantivy().set_merge_policy(Box::new(NoMergePolicy));
            // Nine commits, the first the largest; the last deletes in all but the first.
            for i in 0..500 {
                writer.add(&document(i), &code(&model, i)).unwrap();
                twin.add(document(i), code(&model, i));
                for gone in (101..450).step_by(3).filter(|_| i == 499) {
                    writer.delete(&document(gone).id).unwrap();
                    twin.delete(&document(gone).id);
                }
                if i >= 99 && i % 50 == 49 {
                    writer.commit(&Silent).unwrap();
                }
            }
            if first == "after a rollback" {
                writer.rollback().unwrap();
            } else {
                drop(writer);
                writer = index.writer().unwrap();
            }
            assert_eq!(format!("{:?}", writer.tantivy().get_merge_policy()), format!("{before:?}"));
            // In a segment in which the last commit deleted. Merging begins before this commit: when the change had the number of
            // the last one, the document was there twice in ten runs of twelve.
            let changed = document(300);
            writer.add(&changed, &code(&model, 301)).unwrap();
            twin.add(changed, code(&model, 301));
            writer.commit(&Silent).unwrap();
            twin.check(&index, 500, None, |_| true);
            writer.close(&Silent).unwrap();
            twin.check(&index, 500, None, |_| true);
            clean(&path);

            let mut writer = index.writer().unwrap();
            if first == "after a rollback" {
                writer.rollback().unwrap();
            }
            let committed = index.inner.tantivy.load_metas().unwrap().opstamp;
            let change = writer.tantivy().delete_term(index.inner.fields.id_term(&document(7).id));
            assert!(change > committed, "{first}: change {change}, commit {committed}");
        }
    }
}
