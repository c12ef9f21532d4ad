//! The index writer: many changes, one commit.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tantivy::directory::{Directory, DirectoryLock, INDEX_WRITER_LOCK};
use tantivy::indexer::UserOperation;

use super::directory::segment_of;
use super::filter::Filter;
use super::merges::{SoundMerges, groups, most_documents};
use super::payload::Payload;
use super::reader::Reader;
use super::schema::id_text;
use super::segment::codes_path;
use super::snapshot::Snapshot;
use super::topics::Follower;
use super::walk::StoredChunk;
use super::{CODES, Index, Inner, RerankVectors, SEGMENTS, STORE, guarded_ours, tantivy_error};
use crate::corpus::{DocId, Document};
use crate::disk::{self, TEMPORARY};
use crate::{Error, Matrix, Progress, Result};

/// Bytes per indexing thread before it writes a segment.
const MAX_BUFFER_BYTES: usize = 64 << 20;

/// The one writer of an index. Changes become visible with [`IndexWriter::commit`]; without it they are discarded.
///
/// ```
/// use engine::corpus::{DocId, Document, Value};
/// use engine::index::{Index, IndexConfig};
/// use engine::model::Model;
/// use engine::{Matrix, NoProgress};
///
/// let model = Model::load("tests/data/index-3/model".as_ref())?;
/// let dir = tempfile::tempdir()?;
/// let index = Index::create(&dir.path().join("news.micpq"), &model, IndexConfig::default())?;
/// let document = |id: u64, year| Document {
///     attributes: vec![("year".into(), Value::Int(year))],
///     ..Document::new(id, "Oil rises")
/// };
///
/// let mut writer = index.writer()?;
/// let vectors = Matrix::from_vec(8, vec![0.5; 16]);
/// writer.add_embeddings(&[document(1, 1987), document(2, 1987)], &vectors)?;
/// assert_eq!(index.len(), 0);
/// writer.commit(&NoProgress)?;
/// assert_eq!(index.len(), 2);
///
/// // A document with a known id replaces the old one.
/// writer.add_embeddings(&[document(2, 1988)], &Matrix::from_vec(8, vec![0.25; 8]))?;
/// writer.delete(&DocId::Int(1))?;
/// writer.commit(&NoProgress)?;
/// assert_eq!((index.len(), index.count("year:1988")?), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct IndexWriter {
    inner: Arc<Inner>,
    // None if tantivy's writer ended and a new one could not be started. The next change tries again.
    tantivy: Option<tantivy::IndexWriter>,
    next: u64,
    committed: u64,
    changed: bool,
    hasher: RandomState,
    // Hashes of the ids added and deleted since the last commit. For a new id this saves a delete, which tantivy would
    // look up in every segment.
    added: HashSet<u64>,
    gone: HashSet<u64>,
    base: Arc<Snapshot>,
    // Topics that new documents get.
    follower: Option<Follower>,
    // Whether the store may have a commit newer than `base`. If so, `base` is updated before ids are looked up.
    behind: bool,
}

/// A document with the byte ranges of its chunks.
pub type SplitDocument<'a> = (&'a Document, Vec<Range<usize>>);

/// Documents of one chunk each.
fn whole(documents: &[Document]) -> Vec<SplitDocument<'_>> {
    documents.iter().map(|document| (document, std::iter::once(0..document.text.len()).collect())).collect()
}

/// A chunk to store: its bytes of the text, its code and its packed rerank vector.
struct Row<'a> {
    range: Range<usize>,
    code: Cow<'a, [u8]>,
    vector: Vec<u64>,
}

impl From<StoredChunk> for Row<'_> {
    fn from(StoredChunk { range, code, vector }: StoredChunk) -> Self {
        Row { range, code: code.into(), vector }
    }
}

impl IndexWriter {
    pub(super) fn open(inner: Arc<Inner>) -> Result<IndexWriter> {
        let tantivy = start(&inner)?;
        let base = inner.snapshot();
        let follower = Follower::read(&inner.dir, &inner.model)?;
        let mut writer = IndexWriter {
            inner,
            tantivy: Some(tantivy),
            next: 0,
            committed: 0,
            changed: false,
            hasher: RandomState::new(),
            added: HashSet::new(),
            gone: HashSet::new(),
            base,
            follower,
            behind: true,
        };
        // The lock is held: the last commit stays the last until this writer commits.
        writer.follow(&crate::NoProgress)?;
        writer.clear_litter()?;
        writer.tidy()?;
        Ok(writer)
    }

    /// The index it writes to.
    pub fn index(&self) -> Index {
        Index { inner: self.inner.clone() }
    }

    fn tantivy(&mut self) -> Result<&mut tantivy::IndexWriter> {
        if self.tantivy.is_none() {
            self.tantivy = Some(start(&self.inner)?);
            // Another process may have written while no lock was held.
            self.behind = true;
            self.follower = Follower::read(&self.inner.dir, &self.inner.model)?;
        }
        Ok(self.tantivy.as_mut().expect("just started"))
    }

    /// Called before every change: ids must be looked up in the last commit.
    fn ready(&mut self) -> Result<()> {
        self.tantivy()?;
        if self.behind {
            self.follow(&crate::NoProgress)?;
        }
        Ok(())
    }

    /// Adds a document with its packed code, or replaces the one with the same id. The ids `5` and `"5"` are the same.
    ///
    /// For an index without rerank vectors; otherwise use [`IndexWriter::add_embeddings`].
    pub fn add(&mut self, document: &Document, code: &[u8]) -> Result<()> {
        if self.inner.manifest.rerank_vectors() != RerankVectors::None {
            return Err(Error::input(
                id_text(&document.id),
                "comes as a code alone, but this index stores rerank vectors; give its embedding, or create an index without them",
            ));
        }
        let rows = [Row { range: 0..document.text.len(), code: code.into(), vector: Vec::new() }];
        self.insert_new(document, &rows)
    }

    /// Adds documents by their embeddings `[documents, inputs]`, or replaces those with the same ids. The index's own
    /// model computes the codes, and the embeddings are stored as the index is configured. In an index with chunks, each
    /// document is one chunk.
    pub fn add_embeddings(&mut self, documents: &[Document], embeddings: &Matrix) -> Result<()> {
        self.add_numbered(&whole(documents), embeddings, None)
    }

    /// The same with the insertion sequence of each document, for a shard, whose sequences are those of all shards
    /// together. They must rise, and begin no lower than [`IndexWriter::next_sequence`].
    pub fn add_embeddings_at(&mut self, documents: &[Document], embeddings: &Matrix, sequences: &[u64]) -> Result<()> {
        self.add_chunks_at(&whole(documents), embeddings, sequences)
    }

    /// [`IndexWriter::add_chunks`] with the insertion sequence of each document's first chunk. Its other chunks take the
    /// sequences after it.
    pub fn add_chunks_at(&mut self, documents: &[SplitDocument], embeddings: &Matrix, sequences: &[u64]) -> Result<()> {
        let next = self.next_sequence()?;
        let ends = documents.iter().zip(sequences).map(|((_, chunks), first)| first + chunks.len() as u64);
        let starts = sequences.iter().skip(1).copied().chain([u64::MAX]);
        let rise = ends.zip(starts).all(|(end, start)| end <= start);
        if sequences.len() != documents.len() || sequences.first().is_some_and(|first| *first < next) || !rise {
            return Err(Error::config(format!(
                "{} documents came with {} insertion sequences; give one for each, rising, from {next} up",
                documents.len(),
                sequences.len()
            )));
        }
        self.add_numbered(documents, embeddings, Some(sequences))
    }

    /// The insertion sequence of the next document.
    pub fn next_sequence(&mut self) -> Result<u64> {
        self.ready()?;
        Ok(self.next)
    }

    /// The last commit, which no other writer changes.
    pub(crate) fn reader(&mut self) -> Result<Reader> {
        self.ready()?;
        Ok(Reader::new(self.inner.clone(), self.inner.sound()?))
    }

    /// Adds documents with the byte ranges of their chunks, and embeddings `[chunks of all documents, inputs]`.
    pub fn add_chunks(&mut self, documents: &[SplitDocument], embeddings: &Matrix) -> Result<()> {
        self.add_numbered(documents, embeddings, None)
    }

    fn add_numbered(
        &mut self,
        documents: &[SplitDocument],
        embeddings: &Matrix,
        sequences: Option<&[u64]>,
    ) -> Result<()> {
        let (rerank_vectors, inputs) = (self.inner.manifest.rerank_vectors(), self.inner.model.inputs());
        let chunks: usize = documents.iter().map(|(_, chunks)| chunks.len()).sum();
        if embeddings.rows() != chunks || embeddings.rows() > 0 && embeddings.cols() != inputs {
            let kind = if self.inner.fields.chunk.is_some() { "chunks" } else { "documents" };
            return Err(Error::config(format!(
                "{chunks} {kind} came with {} embeddings of {} values; this index takes one of {inputs} values for each",
                embeddings.rows(),
                embeddings.cols()
            )));
        }
        if documents.is_empty() {
            return Ok(());
        }
        let codes = self.inner.model.encode(embeddings)?;
        let width = self.inner.model.shape().code_bytes();
        let mut encoded = embeddings.iter().zip(codes.chunks_exact(width));
        for (i, (document, chunks)) in documents.iter().enumerate() {
            let refuse = |problem: &str| Error::input(id_text(&document.id), problem);
            if chunks.is_empty() || chunks.len() > 1 && self.inner.fields.chunk.is_none() {
                return Err(refuse("has chunks, but the index was created without; create one with chunk"));
            }
            let mut rows = Vec::with_capacity(chunks.len());
            for (range, (embedding, code)) in chunks.iter().zip(encoded.by_ref()) {
                if document.text.get(range.clone()).is_none() {
                    return Err(refuse("has a chunk that is no part of its text"));
                }
                let vector = rerank_vectors.pack(embedding).map_err(|problem| refuse(&problem))?;
                rows.push(Row { range: range.clone(), code: code.into(), vector });
            }
            if let Some(sequences) = sequences {
                self.ready()?;
                self.next = sequences[i];
            }
            self.insert_new(document, &rows)?;
        }
        Ok(())
    }

    /// Adds the documents of another index of the same model whose ids `keep` accepts, with their codes, rerank vectors
    /// and insertion sequences as they are. Returns their number.
    pub fn copy_from(&mut self, from: &Index, keep: impl Fn(&DocId) -> bool, progress: &dyn Progress) -> Result<usize> {
        from.expect_model(&self.inner.model)?;
        if from.inner.manifest.layout() != self.inner.manifest.layout() {
            return Err(Error::config(format!(
                "{} stores other parts of documents, other rerank vectors, another language or other chunks than {}",
                from.dir().display(),
                self.inner.dir.display()
            )));
        }
        self.ready()?;
        let walk = from.walk()?;
        walk.check_files()?;
        let mut copied = 0;
        let mut next = self.next;
        for i in 0..walk.len() {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            if !keep(&walk.id(i)?) {
                continue;
            }
            let record = walk.get(i)?;
            let document = Document {
                id: record.id,
                text: record.text.unwrap_or_default(),
                labels: record.labels,
                attributes: record.attributes,
            };
            let rows: Vec<Row> = walk.chunks(i)?.into_iter().map(Row::from).collect();
            self.next = record.sequence;
            let inserted = self.insert(&document, &rows);
            // Several indexes may follow each other whose sequences interleave.
            next = next.max(record.sequence + rows.len() as u64);
            self.next = next;
            inserted?;
            copied += 1;
            progress.advance(1);
        }
        Ok(copied)
    }

    /// Replaces a document by one with the same id, chunks, codes and rerank vectors, at the same place in the order of
    /// insertion.
    pub(super) fn rewrite(&mut self, document: &Document, chunks: Vec<StoredChunk>, sequence: u64) -> Result<()> {
        self.ready()?;
        let rows: Vec<Row> = chunks.into_iter().map(Row::from).collect();
        let next = std::mem::replace(&mut self.next, sequence);
        let inserted = self.insert(document, &rows);
        self.next = next;
        inserted
    }

    /// Inserts a document that comes from outside, with its topic if topics are followed.
    fn insert_new(&mut self, document: &Document, rows: &[Row]) -> Result<()> {
        let right = |code: &[u8]| code.len() == self.inner.model.shape().code_bytes();
        let first = rows.first().filter(|row| right(&row.code));
        let with_topic = self.follower.as_ref().zip(first);
        let with_topic = with_topic.and_then(|(f, row)| f.with_topic(&self.inner.model, document, &row.code));
        self.insert(with_topic.as_ref().unwrap_or(document), rows)
    }

    fn insert(&mut self, document: &Document, rows: &[Row]) -> Result<()> {
        let shape = self.inner.model.shape();
        let spare = shape.code_bytes() * 8 - shape.bits();
        let wrong =
            |code: &[u8]| code.len() != shape.code_bytes() || spare > 0 && code[code.len() - 1] >> (8 - spare) != 0;
        if let Some(row) = rows.iter().find(|row| wrong(&row.code)) {
            return Err(Error::input(
                id_text(&document.id),
                format!(
                    "its code has {} bytes, expected {} bits; encode it with the model of this index",
                    row.code.len(),
                    shape.bits()
                ),
            ));
        }
        self.ready()?;
        let fields = &self.inner.fields;
        let entry = |(number, row): (usize, &Row)| {
            let sequence = self.next + number as u64;
            let entry = fields.document(document, (number, row.range.clone()), &row.code, &row.vector, sequence);
            entry.map(UserOperation::Add)
        };
        let entries: Vec<UserOperation> = rows.iter().enumerate().map(entry).collect::<Result<_>>()?;
        let hash = self.hasher.hash_one(id_text(&document.id));
        if self.knows(&document.id, hash)? {
            let term = self.inner.fields.id_term(&document.id);
            self.tantivy()?.delete_term(term);
        }
        let store = self.inner.dir.join(STORE);
        // One group: tantivy writes it to one segment, side by side (see `chunks.rs`).
        self.tantivy()?.run(entries).map_err(|e| tantivy_error(&store, e))?;
        self.added.insert(hash);
        self.next += rows.len() as u64;
        self.changed = true;
        Ok(())
    }

    /// Whether a document with this id exists, committed or not.
    pub fn contains(&self, id: &DocId) -> Result<bool> {
        self.knows(id, self.hasher.hash_one(id_text(id)))
    }

    fn knows(&self, id: &DocId, hash: u64) -> Result<bool> {
        if self.added.contains(&hash) {
            return Ok(true);
        }
        let base = if self.behind {
            self.inner.reload(&crate::NoProgress)?;
            self.inner.snapshot()
        } else {
            self.base.clone()
        };
        let find = || base.find(&self.inner.fields, id);
        Ok(!self.gone.contains(&hash) && guarded_ours(&self.inner.dir.join(STORE), find)?.is_some())
    }

    /// Deletes a document. Returns whether it existed.
    pub fn delete(&mut self, id: &DocId) -> Result<bool> {
        self.ready()?;
        let hash = self.hasher.hash_one(id_text(id));
        if !self.knows(id, hash)? {
            return Ok(false);
        }
        let term = self.inner.fields.id_term(id);
        self.tantivy()?.delete_term(term);
        self.added.remove(&hash);
        self.gone.insert(hash);
        self.changed = true;
        Ok(true)
    }

    /// Deletes every document that matches a filter, committed or not. Returns the number of committed ones.
    ///
    /// In an index with chunks, a document is deleted whole if one of its chunks matches; changes before this one are
    /// committed first.
    pub fn delete_where(&mut self, filter: &str) -> Result<usize> {
        if self.inner.fields.chunk.is_some() {
            return self.delete_chunks_matching(|inner, base| inner.parse_filter(filter, Some(base)));
        }
        self.ready()?;
        // An attribute that no committed document has may belong to an uncommitted one.
        let known = self.added.is_empty().then(|| self.base.clone());
        let query = self.inner.parse_filter(filter, known.as_deref())?;
        self.delete_matching(query)
    }

    /// [`IndexWriter::delete_where`] in a shard. `known` are the attributes of all shards; any other name is refused.
    pub fn delete_where_in_shard(&mut self, filter: &str, known: Option<&BTreeSet<String>>) -> Result<usize> {
        if self.inner.fields.chunk.is_some() {
            return self.delete_chunks_matching(|inner, _| inner.parse_filter_of(filter, known));
        }
        self.ready()?;
        let query = self.inner.parse_filter_of(filter, known)?;
        self.delete_matching(query)
    }

    fn delete_matching(&mut self, query: Filter) -> Result<usize> {
        let store = self.inner.dir.join(STORE);
        let count = guarded_ours(&store, || self.base.count(&query, &crate::NoProgress))?;
        self.tantivy()?.delete_query(query.into_query()).map_err(|e| tantivy_error(&store, e))?;
        self.changed = true;
        Ok(count)
    }

    fn delete_chunks_matching(&mut self, parse: impl Fn(&Inner, &Snapshot) -> Result<Filter>) -> Result<usize> {
        if self.changed {
            self.commit(&crate::NoProgress)?;
        }
        self.ready()?;
        let base = self.base.clone();
        let query = parse(&self.inner, &base)?;
        let store = self.inner.dir.join(STORE);
        let ids = guarded_ours(&store, || base.ids_where(&query))?;
        for id in &ids {
            self.delete(id)?;
        }
        Ok(ids.len())
    }

    /// Makes all changes since the last commit visible and durable at once, and packs the codes of new segments.
    /// Returns the number of documents.
    ///
    /// A commit that is on disk is acknowledged even if it cannot be opened yet. That gives a warning
    /// ([`super::Index::warnings`]), and the next change opens it first.
    pub fn commit(&mut self, progress: &dyn Progress) -> Result<usize> {
        if !self.changed {
            self.follow(progress)?;
            self.tidy()?;
            return Ok(self.base.documents());
        }
        self.write_commit()?;
        (self.committed, self.changed, self.behind) = (self.next, false, true);
        self.added.clear();
        self.gone.clear();
        match self.follow(progress).and_then(|()| self.tidy()) {
            Ok(()) | Err(Error::Interrupted) => {}
            Err(e) => self.inner.warn(format!("the commit is on disk, but is not yet searched: {e}")),
        }
        // Chunks are counted by reading them, so the number is that of the last commit that could be opened.
        match self.inner.fields.chunk {
            None => Ok(self.inner.directory.committed_documents() as usize),
            Some(_) => Ok(self.base.documents()),
        }
    }

    fn write_commit(&mut self) -> Result<()> {
        let (store, next) = (self.inner.dir.join(STORE), self.next);
        let work = |writer: &mut tantivy::IndexWriter| {
            let mut prepared = writer.prepare_commit()?;
            let payload = Payload { next, opstamp: prepared.opstamp() };
            prepared.set_payload(&payload.to_json());
            prepared.commit()
        };
        if let Err(e) = work(self.tantivy()?) {
            let error = tantivy_error(&store, e);
            // Back to the last commit, so that the writer stays usable. If that fails too, the first error is the
            // informative one.
            let _ = self.rollback();
            return Err(error);
        }
        Ok(())
    }

    /// Loads the last commit of the store, by any writer. There must be no uncommitted changes.
    fn follow(&mut self, progress: &dyn Progress) -> Result<()> {
        self.inner.reload(progress)?;
        self.next = next_sequence(&self.inner)?;
        self.base = self.inner.snapshot();
        (self.committed, self.behind) = (self.next, false);
        Ok(())
    }

    /// Discards all changes since the last commit.
    pub fn rollback(&mut self) -> Result<()> {
        (self.next, self.changed, self.behind) = (self.committed, false, true);
        self.added.clear();
        self.gone.clear();
        let Some(writer) = self.tantivy.as_mut() else { return Ok(()) };
        let store = self.inner.dir.join(STORE);
        // tantivy's rollback replaces its writer by a new one.
        let rolled = writer.rollback().map_err(|e| tantivy_error(&store, e)).and_then(|_| prepare(&self.inner, writer));
        if rolled.is_err() {
            self.tantivy = None;
        }
        rolled
    }

    /// Commits, then rewrites everything as one segment without deleted documents.
    pub fn compact(&mut self, progress: &dyn Progress) -> Result<()> {
        self.commit(progress)?;
        let store = self.inner.dir.join(STORE);
        // Running merges would hold segments that the full merge needs.
        self.settle()?;
        self.follow(progress)?;
        // tantivy keeps the files of every segment whose metadata is still referenced, so `metas` is dropped at once.
        let groups = {
            let metas = self.inner.tantivy.searchable_segment_metas().map_err(|e| tantivy_error(&store, e))?;
            let needed = metas.len() > 1 || metas.iter().any(|m| m.has_deletes());
            if needed { groups(&metas, most_documents(&self.inner)) } else { Vec::new() }
        };
        if !groups.is_empty() {
            // A merge gives its output a new checksum, which would hide damage from then on.
            progress.stage("comparing checksums", None);
            self.base.check_files()?;
            progress.stage("merging segments", None);
        }
        for ids in groups {
            self.tantivy()?.merge(&ids).wait().map_err(|e| tantivy_error(&store, e))?;
        }
        self.follow(progress)?;
        self.tantivy()?.garbage_collect_files().wait().map_err(|e| tantivy_error(&store, e))?;
        self.tidy()
    }

    /// Waits for running merges. Discards uncommitted changes.
    fn settle(&mut self) -> Result<()> {
        let store = self.inner.dir.join(STORE);
        let Some(old) = self.tantivy.take() else { return Ok(()) };
        let waited = old.wait_merging_threads().map_err(|e| tantivy_error(&store, e));
        self.tantivy = Some(start_again(&self.inner)?);
        waited
    }

    /// Waits for running merges and loads their result. Call [`IndexWriter::commit`] before.
    pub fn close(mut self, progress: &dyn Progress) -> Result<()> {
        let store = self.inner.dir.join(STORE);
        if let Some(writer) = self.tantivy.take() {
            writer.wait_merging_threads().map_err(|e| tantivy_error(&store, e))?;
        }
        self.follow(progress)?;
        self.tidy()
    }

    /// Removes leftovers of killed writers in the store and beside the index: unfinished files, and files that no list
    /// of the store names. Call this only while no other thread writes.
    fn clear_litter(&self) -> Result<()> {
        let store = self.inner.dir.join(STORE);
        let managed = self.inner.tantivy.directory().list_managed_files();
        for entry in std::fs::read_dir(&store).map_err(Error::io(&store))? {
            let path = entry.map_err(Error::io(&store))?.path();
            let name = PathBuf::from(path.file_name().unwrap_or_default());
            let temporary = name.to_str().is_some_and(|n| n.starts_with(TEMPORARY) || n.starts_with(".tmp"));
            // A power cut can lose the list that names a file and keep the file. No commit names it either.
            let unnamed = segment_of(&name).is_some_and(|id| self.base.segments().iter().all(|s| s.id != id))
                && !managed.contains(&name);
            if temporary || unnamed {
                disk::clear_temporary(&path)?;
            }
        }
        disk::clear_folders(&self.inner.dir, Some(super::migrate::FOLDER))
    }

    /// Removes packed codes of segments that no longer exist. A reader of an older commit keeps the ones it has mapped;
    /// one that opens them later builds them again.
    fn tidy(&self) -> Result<()> {
        let dir = self.inner.dir.join(CODES);
        // Packed codes are derived: their directory may be missing.
        disk::create_directories(&dir)?;
        let living: HashSet<_> = self.base.segments().iter().map(|s| codes_path(&self.inner.dir, s.id)).collect();
        for entry in std::fs::read_dir(&dir).map_err(Error::io(&dir))? {
            let path = entry.map_err(Error::io(&dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(TEMPORARY) {
                disk::clear_temporary(&path)?;
            }
            // Codes are packed before their segment is committed. While its columns exist, the segment may still be
            // committed.
            let columns = self.inner.dir.join(STORE).join(&name).with_extension("fast");
            let dead = name.ends_with(".codes") && !living.contains(&path) && !columns.exists();
            if dead {
                match std::fs::remove_file(&path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io(&path)(e)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Index {
    /// The insertion sequence after those of the last commit of any process.
    pub fn next_sequence(&self) -> Result<u64> {
        next_sequence(&self.inner)
    }
}

/// Starts a writer to replace one that has just ended. The old lock can persist for a moment: a process started by
/// another thread holds a copy of every open file until it runs its own program.
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
    let writer = inner
        .tantivy
        .writer_with_num_threads(threads, threads * MAX_BUFFER_BYTES)
        .map_err(|e| tantivy_error(&store, e))?;
    prepare(inner, &writer)?;
    Ok(writer)
}

/// The insertion sequence after those of the last commit of an index, which is not opened for it: only its list of segments is
/// read.
pub fn next_sequence_at(dir: &Path) -> Result<u64> {
    let store = dir.join(STORE);
    let tantivy = super::guarded(&store, || tantivy::Index::open_in_dir(&store))?;
    next_of(&store, &tantivy)
}

/// Sequence number of the next document according to the last commit.
fn next_sequence(inner: &Inner) -> Result<u64> {
    next_of(&inner.dir.join(STORE), &inner.tantivy)
}

fn next_of(store: &Path, tantivy: &tantivy::Index) -> Result<u64> {
    let metas = tantivy.load_metas().map_err(|e| tantivy_error(store, e))?;
    match &metas.payload {
        Some(payload) => Ok(Payload::read(store, payload)?.next),
        None if metas.segments.is_empty() => Ok(0),
        None => Err(Error::format(
            store.join(SEGMENTS),
            "was not written by micpq: it has segments and no sequence number; build the index again",
        )),
    }
}

/// Configures a tantivy writer that was just started.
fn prepare(inner: &Inner, writer: &tantivy::IndexWriter) -> Result<()> {
    writer.set_merge_policy(Box::new(SoundMerges::new(inner)));
    // tantivy numbers changes and commits, and a new writer starts with the number of the last commit. A merge would
    // take a change with that number for committed, and apply it to some segments only. This empty run uses the number
    // up.
    writer.run([]).map_err(|e| tantivy_error(&inner.dir.join(STORE), e))?;
    Ok(())
}

/// The writer lock of an index, without a writer.
pub(super) fn lock(store: &dyn Directory, dir: &Path) -> Result<DirectoryLock> {
    store
        .acquire_lock(&INDEX_WRITER_LOCK)
        .map_err(|e| tantivy_error(&dir.join(STORE), tantivy::TantivyError::LockFailure(e, None)))
}

#[cfg(test)]
mod tests {
    use tantivy::merge_policy::NoMergePolicy;

    use super::super::tests::{Twin, clean, code, document, model, scratch};
    use super::super::{Index, IndexConfig, verify};
    use crate::NoProgress;
    use crate::model::CodeShape;

    #[test]
    fn verify_reports_duplicate_ids() {
        let dir = scratch();
        let path = dir.path().join("index");
        let model = model(CodeShape::micpq(32).unwrap(), 3);
        let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
        let mut writer = index.writer().unwrap();
        // Simulates a writer that does not know its last commit.
        for commit in 0..2 {
            for i in 5 * commit..5 * commit + 8 {
                let entry = {
                    let document = document(i);
                    let chunk = (0, 0..document.text.len());
                    index.inner.fields.document(&document, chunk, &code(&model, i), &[], writer.next).unwrap()
                };
                writer.tantivy().unwrap().add_document(entry).unwrap();
                (writer.next, writer.changed) = (writer.next + 1, true);
            }
            writer.commit(&NoProgress).unwrap();
        }
        let mut problems = verify(&path, &NoProgress).unwrap();
        assert_eq!(problems.len(), 3, "{problems:?}");
        problems.sort_by_key(|p| (!p.problem.contains("doc-5"), p.problem.contains("doc-7")));
        for (problem, i) in problems.iter().zip(5..8) {
            let expected = format!("holds the id \"{}\" 2 times", document(i).id);
            assert!(problem.problem.contains(&expected), "{problem}");
            // The remedy that the message gives.
            writer.add(&document(i), &code(&model, i)).unwrap();
        }
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        clean(&path);
        assert_eq!(index.len(), 13);
    }

    #[test]
    fn the_first_change_of_a_writer_has_a_higher_number_than_the_last_commit() {
        for first in ["another writer's", "after a rollback"] {
            let dir = scratch();
            let path = dir.path().join("index");
            let model = model(CodeShape::micpq(32).unwrap(), 3);
            let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
            let mut twin = Twin::default();
            let mut writer = index.writer().unwrap();
            let before = writer.tantivy().unwrap().get_merge_policy();
            writer.tantivy().unwrap().set_merge_policy(Box::new(NoMergePolicy));
            // Nine commits, the first is the largest. The last one deletes in all segments but the first.
            for i in 0..500 {
                writer.add(&document(i), &code(&model, i)).unwrap();
                twin.add(document(i), code(&model, i));
                for gone in (101..450).step_by(3).filter(|_| i == 499) {
                    writer.delete(&document(gone).id).unwrap();
                    twin.delete(&document(gone).id);
                }
                if i >= 99 && i % 50 == 49 {
                    writer.commit(&NoProgress).unwrap();
                }
            }
            if first == "after a rollback" {
                writer.rollback().unwrap();
            } else {
                drop(writer);
                writer = index.writer().unwrap();
            }
            assert_eq!(format!("{:?}", writer.tantivy().unwrap().get_merge_policy()), format!("{before:?}"));
            // Changes a segment in which the last commit deleted. Merging begins before this commit. When the change
            // had the number of the last commit, the document existed twice in ten runs of twelve.
            let changed = document(300);
            writer.add(&changed, &code(&model, 301)).unwrap();
            twin.add(changed, code(&model, 301));
            writer.commit(&NoProgress).unwrap();
            twin.check(&index, 500, None, |_| true);
            writer.close(&NoProgress).unwrap();
            twin.check(&index, 500, None, |_| true);
            clean(&path);

            let mut writer = index.writer().unwrap();
            if first == "after a rollback" {
                writer.rollback().unwrap();
            }
            let committed = index.inner.tantivy.load_metas().unwrap().opstamp;
            let change = writer.tantivy().unwrap().delete_term(index.inner.fields.id_term(&document(7).id));
            assert!(change > committed, "{first}: change {change}, commit {committed}");
        }
    }
}
