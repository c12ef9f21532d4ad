//! Verifies every byte of an index and reports what is not as it was written.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use tantivy::index::SegmentMeta;
use tantivy::schema::IndexRecordOption;
use tantivy::{DocSet, IndexMeta, SegmentReader, TERMINATED, Term};

use super::chunks::ChunkColumns;
use super::files::{RESTORE, Version, damaged, footer};
use super::manifest::Manifest;
use super::payload::Payload;
use super::schema::id_text;
use super::segment::{Columns, codes_path, owner, read_blocks};
use super::snapshot::Ids;
use super::{MODEL, SEGMENTS, STORE, kinship, schema, tantivy_error};
use crate::mmap::Map;
use crate::model::{CodeShape, Model};
use crate::{Error, Progress, Result};

#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The file or directory.
    pub path: PathBuf,
    /// The problem, and what to do.
    pub problem: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

const REMAKE: &str = "remove the file; it is made again from the store";

/// Max duplicate ids reported.
const TOLD: usize = 10;

/// Max attempts while a writer commits.
const LOOKS: usize = 20;

/// Checks an index without changing it. An empty list means that the index is sound. An error means that something
/// could not be read.
pub fn verify(dir: &Path, progress: &dyn Progress) -> Result<Vec<Problem>> {
    let commit = || std::fs::read(dir.join(STORE).join(SEGMENTS)).ok();
    for _ in 1..LOOKS {
        let before = commit();
        let problems = look(dir, progress)?;
        // A commit or merge in between removes files that the checked commit names. That is not damage; check the new
        // commit.
        if problems.is_empty() || commit() == before {
            return Ok(problems);
        }
    }
    look(dir, progress)
}

fn look(dir: &Path, progress: &dyn Progress) -> Result<Vec<Problem>> {
    let mut check = Check { dir, progress, problems: Vec::new() };
    match check.all() {
        Ok(()) => {}
        Err(Error::Format { path, problem, .. }) => check.problems.push(Problem { path, problem }),
        // Text that is no longer valid UTF-8.
        Err(Error::Io { path, source }) if source.kind() == std::io::ErrorKind::InvalidData => {
            check.report(path, format!("is damaged: {source}; {RESTORE}"));
        }
        Err(e) => return Err(e),
    }
    Ok(check.problems)
}

struct Check<'a> {
    dir: &'a Path,
    progress: &'a dyn Progress,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn report(&mut self, path: impl AsRef<Path>, problem: impl Into<String>) {
        self.problems.push(Problem { path: path.as_ref().to_path_buf(), problem: problem.into() });
    }

    /// Reports damage that does not end the check; another error does.
    fn report_error(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Format { path, problem, .. } => {
                self.report(path, problem);
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Reports a problem that the next search repairs.
    fn note(&self, path: &Path, problem: &str) {
        self.progress
            .note(&format!("{}: {problem}; it is made again from the store by the next search", path.display()));
    }

    /// An error ends the check: later checks would be meaningless.
    fn all(&mut self) -> Result<()> {
        let manifest = Manifest::read(self.dir)?;
        for (path, problem) in manifest.model_problems(self.dir)? {
            self.report(path, problem);
        }
        let model = Model::load(&self.dir.join(MODEL))?;
        manifest.check_model(self.dir, &model)?;

        let beside = [super::saved::problem, super::topics::problem, super::map_file::problem];
        for problem in beside.into_iter().filter_map(|problem| problem(self.dir)) {
            self.report_error(problem)?;
        }
        let store = self.dir.join(STORE);
        let index = super::guarded(&store, || tantivy::Index::open_in_dir(&store))?;
        let metas = super::guarded(&store, || index.load_metas())?;
        let layout = manifest.layout();
        layout.language.register(&index);
        let (schema, fields) = schema::build(model.shape(), layout);
        let next = self.metas(&metas, &schema)?;
        self.managed(&metas)?;

        self.progress.stage("verifying segments", Some(metas.segments.len() as u64));
        let mut readers = Vec::new();
        for segment in &metas.segments {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let id = segment.id().uuid_string();
            let mut names: Vec<PathBuf> = metas.list_segment_files().into_iter().collect();
            names.retain(|name| name.to_str().is_some_and(|n| n.starts_with(&id)));
            names.sort();
            if self.files(names)? {
                let reader = super::guarded(&store, || SegmentReader::open(&index.segment(segment.clone())));
                match reader {
                    Ok(reader) => {
                        self.segment(&reader, segment, model.shape(), next)?;
                        self.kinship(&reader, &fields)?;
                        super::guarded_ours(&store, || self.chunk_order(&reader, &fields))?;
                        readers.push(reader);
                    }
                    Err(e) => self.report(&store, e.to_string()),
                }
            }
            self.progress.advance(1);
        }
        super::guarded_ours(&store, || self.duplicates(&readers, &fields))
    }

    /// Reports ids that several documents share.
    fn duplicates(&mut self, readers: &[SegmentReader], fields: &schema::Fields) -> Result<()> {
        let store = self.dir.join(STORE);
        let hasher = RandomState::new();
        let (mut seen, mut reported) = (HashSet::new(), BTreeSet::new());
        for reader in readers {
            let ids = Ids::open(reader).map_err(|e| tantivy_error(&store, e))?;
            let chunks = chunks(reader, fields).map_err(|e| tantivy_error(&store, e))?;
            for document in reader.doc_ids_alive().filter(|&row| is_first(chunks.as_ref(), row)) {
                let id = ids.get(document).map_err(|problem| Error::format(&store, problem))?;
                if seen.insert(hasher.hash_one(id_text(&id)))
                    || reported.len() == TOLD
                    || !reported.insert(id_text(&id))
                {
                    continue;
                }
                // Counted, because two ids may have the same hash.
                let count = living(readers, fields, &fields.id_term(&id)).map_err(|e| tantivy_error(&store, e))?;
                if count > 1 {
                    let problem = format!(
                        "holds the id \"{id}\" {count} times; add its document again, which replaces all of them, or delete it"
                    );
                    self.report(&store, problem);
                }
            }
        }
        Ok(())
    }

    /// `meta.json` has no checksum, but it must be exactly as tantivy writes it, and every number in it is also stored
    /// elsewhere. Returns the next sequence number.
    fn metas(&mut self, metas: &IndexMeta, schema: &tantivy::schema::Schema) -> Result<u64> {
        let path = self.dir.join(STORE).join(SEGMENTS);
        let text = std::fs::read(&path).map_err(Error::io(&path))?;
        if !is_as_written(&text, metas) {
            self.report(&path, format!("is not as it was written; {RESTORE}"));
        }
        if metas.schema != *schema || metas.index_settings != tantivy::IndexSettings::default() {
            self.report(&path, format!("has another schema or other settings than this index; {RESTORE}"));
        }
        let Some(payload) = &metas.payload else {
            if !metas.segments.is_empty() || metas.opstamp != 0 {
                self.report(&path, format!("lacks the commit's own record; {RESTORE}"));
            }
            return Ok(u64::MAX);
        };
        let payload = Payload::read(&self.dir.join(STORE), payload)?;
        if payload.opstamp != metas.opstamp {
            let (a, b) = (metas.opstamp, payload.opstamp);
            self.report(&path, format!("is damaged: it says commit {a}, the commit's own record {b}; {RESTORE}"));
        }
        Ok(payload.next)
    }

    /// `.managed.json` names the files tantivy may remove. A segment file missing from it would never be removed.
    fn managed(&mut self, metas: &IndexMeta) -> Result<()> {
        let path = self.dir.join(STORE).join(".managed.json");
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::io(&path)(e)),
        };
        let listed: Vec<PathBuf> = match serde_json::from_slice(&text) {
            Ok(listed) => listed,
            Err(_) if text.is_empty() && metas.segments.is_empty() => return Ok(()),
            Err(e) => {
                self.report(&path, format!("is damaged: {e}; {RESTORE}"));
                return Ok(());
            }
        };
        let mut rewritten = serde_json::to_vec(&listed).expect("names have a JSON form");
        rewritten.push(b'\n');
        if rewritten != text {
            self.report(&path, format!("is not as it was written; {RESTORE}"));
        }
        let store = self.dir.join(STORE);
        for name in metas.list_segment_files() {
            let (exists, named) = (store.join(&name).exists(), listed.contains(&name));
            if exists && !named {
                self.report(&path, format!("is damaged: it does not name {}; {RESTORE}", name.display()));
            }
            // A temporary store file stays in the list until the next cleanup.
            if named && !exists && name.extension().is_some_and(|e| e != "temp") {
                self.report(store.join(name), format!("is missing; {RESTORE}"));
            }
        }
        for name in &listed {
            let known = name.to_str() == Some(SEGMENTS) || name.to_str().is_some_and(is_segment_file);
            if !known {
                self.report(
                    &path,
                    format!("is damaged: it names {}, which is no file of a store; {RESTORE}", name.display()),
                );
            }
        }
        Ok(())
    }

    /// Every segment file ends in a footer with its checksum. Returns whether all files are sound.
    fn files(&mut self, names: Vec<PathBuf>) -> Result<bool> {
        let before = self.problems.len();
        let store = self.dir.join(STORE);
        let mut versions: Vec<(PathBuf, Version)> = Vec::new();
        for name in names {
            let path = store.join(&name);
            if !path.exists() {
                continue;
            }
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            match footer(&Map::open(&path)?) {
                Ok(version) => versions.push((path, version)),
                Err(problem) => self.report(path, format!("is damaged: {problem}; {RESTORE}")),
            }
        }
        // One process wrote a segment at one time. Deletes came later, perhaps from a newer version.
        let this = serde_json::to_value(tantivy::version()).ok().and_then(|v| serde_json::from_value(v).ok());
        let agreed = versions.iter().map(|(_, v)| v).max_by_key(|v| versions.iter().filter(|(_, w)| w == *v).count());
        let agreed = agreed.cloned();
        for (path, version) in versions {
            let deletes = path.extension().is_some_and(|e| e == "del");
            if Some(&version) != agreed.as_ref() && !(deletes && Some(&version) == this.as_ref()) {
                self.report(
                    path,
                    format!("is damaged: its footer names another version than its neighbours; {RESTORE}"),
                );
            }
        }
        Ok(self.problems.len() == before)
    }

    /// Reports a file that is sound but belongs to another segment.
    fn kinship(&mut self, reader: &SegmentReader, fields: &schema::Fields) -> Result<()> {
        let store = self.dir.join(STORE);
        let id = reader.segment_id().uuid_string();
        match super::guarded(&store, || kinship::check(reader, fields)) {
            Ok(None) => {}
            Ok(Some((ending, problem))) => self.report(
                store.join(format!("{id}.{ending}")),
                format!("does not belong to the other files of segment {id}: {problem}; {RESTORE}"),
            ),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(e) => self.report(&store, format!("the files of segment {id} do not belong together: {e}; {RESTORE}")),
        }
        Ok(())
    }

    /// Reports chunks that do not lie side by side in their order.
    fn chunk_order(&mut self, reader: &SegmentReader, fields: &schema::Fields) -> Result<()> {
        let store = self.dir.join(STORE);
        let Some(chunks) = chunks(reader, fields).map_err(|e| tantivy_error(&store, e))? else { return Ok(()) };
        let wrong = (0..reader.max_doc()).find(|&row| {
            let before = row.checked_sub(1).map(|before| chunks.number(before));
            let number = chunks.number(row);
            number != 0 && before.is_none_or(|before| before + 1 != number)
        });
        if let Some(row) = wrong {
            let id = reader.segment_id().uuid_string();
            self.report(&store, format!("row {row} of segment {id} is a chunk without the one before; {RESTORE}"));
        }
        Ok(())
    }

    fn segment(&mut self, reader: &SegmentReader, meta: &SegmentMeta, shape: CodeShape, next: u64) -> Result<()> {
        let store = self.dir.join(STORE);
        let columns = super::guarded(&store, || Columns::open(reader, shape))?;
        let path = store.join(SEGMENTS);
        let id = meta.id().uuid_string();
        if columns.sequence.num_vals() != meta.max_doc() {
            let (found, said) = (columns.sequence.num_vals(), meta.max_doc());
            self.report(path, format!("is damaged: segment {id} has {found} documents, not {said}; {RESTORE}"));
            return Ok(());
        }
        let deleted = reader.alive_bitset().map_or(0, |set| meta.max_doc() as usize - set.num_alive_docs());
        if deleted != meta.num_deleted_docs() as usize {
            let said = meta.num_deleted_docs();
            self.report(
                &path,
                format!("is damaged: segment {id} has {deleted} deleted documents, not {said}; {RESTORE}"),
            );
        }
        if columns.sequences().iter().any(|&s| s >= next) {
            self.report(&path, format!("is damaged: segment {id} has a sequence number from {next} on; {RESTORE}"));
        }

        let path = codes_path(self.dir, meta.id());
        match read_blocks(&path, shape, owner(meta.id()), meta.max_doc() as usize) {
            // Not built yet.
            Ok(None) => {}
            // Derived and not synced: a power cut can cause this, and the next search builds the file again.
            Err(problem) => self.note(&path, &problem),
            Ok(Some(blocks)) if blocks.check().is_err() => {
                self.note(&path, &blocks.check().expect_err("just seen"));
            }
            Ok(Some(blocks)) => {
                let repacked = super::guarded_ours(&store, || Ok(columns.pack()))?;
                if blocks.as_bytes() != repacked.as_bytes() {
                    let of = |b: &crate::search::CodeBlocks| b.iter().collect::<BTreeSet<_>>();
                    let differing = of(&blocks).difference(&of(&repacked)).count();
                    self.report(path, format!("differs from the store in {differing} documents; {REMAKE}"));
                }
            }
        }
        Ok(())
    }
}

fn chunks(reader: &SegmentReader, fields: &schema::Fields) -> tantivy::Result<Option<ChunkColumns>> {
    fields.chunk.map(|_| ChunkColumns::open(reader)).transpose()
}

fn is_first(chunks: Option<&ChunkColumns>, row: u32) -> bool {
    chunks.is_none_or(|chunks| chunks.number(row) == 0)
}

/// Number of documents with a term that are not deleted.
fn living(readers: &[SegmentReader], fields: &schema::Fields, term: &Term) -> tantivy::Result<usize> {
    let mut count = 0;
    for reader in readers {
        let chunks = chunks(reader, fields)?;
        let postings = reader.inverted_index(term.field())?.read_postings(term, IndexRecordOption::Basic)?;
        let Some(mut postings) = postings else { continue };
        while postings.doc() != TERMINATED {
            let row = postings.doc();
            count += usize::from(!reader.is_deleted(row) && is_first(chunks.as_ref(), row));
            postings.advance();
        }
    }
    Ok(count)
}

/// Whether `meta.json` is byte for byte what tantivy writes for its content.
fn is_as_written(text: &[u8], metas: &IndexMeta) -> bool {
    let mut expected = serde_json::to_vec_pretty(metas).expect("tantivy writes it so");
    expected.push(b'\n');
    text == expected
}

/// Refuses a list of segments that is not as it was written; it has no checksum of its own. The numbers of deleted documents
/// in it are compared with those of `opened`.
pub(super) fn check_list(index: &tantivy::Index, store: &Path, opened: Option<&tantivy::Searcher>) -> Result<()> {
    let path = store.join(SEGMENTS);
    let read = || std::fs::read(&path).map_err(Error::io(&path));
    let (text, metas) = loop {
        let text = read()?;
        let metas = super::guarded(store, || index.load_metas())?;
        // A writer may have committed between the two reads.
        if read()? == text {
            break (text, metas);
        }
    };
    let payload = metas.payload.as_deref().map(|text| Payload::read(store, text)).transpose()?;
    let is_sound = is_as_written(&text, &metas) && metas.index_settings == tantivy::IndexSettings::default();
    if !is_sound || payload.is_some_and(|payload| payload.opstamp != metas.opstamp) {
        return Err(damaged(&path, "it is not as it was written"));
    }
    // tantivy reads the file of deletions only if the list counts some, and writes none without.
    let is_forgotten = |meta: &&SegmentMeta| meta.delete_opstamp().is_some() && !meta.has_deletes();
    if let Some(meta) = metas.segments.iter().find(is_forgotten) {
        let problem = format!("segment {} has a file of deletions, and the list counts none", meta.id().uuid_string());
        return Err(damaged(&path, &problem));
    }
    for reader in opened.map_or(&[][..], |opened| opened.segment_readers()) {
        // A segment that is in another state there was committed since.
        let is_same =
            |meta: &&SegmentMeta| meta.id() == reader.segment_id() && meta.delete_opstamp() == reader.delete_opstamp();
        let Some(meta) = metas.segments.iter().find(is_same) else { continue };
        // Living documents are counted in the segment's file of deletions. With a wrong list they are more than all, and tantivy's
        // own subtraction panics.
        let (id, living) = (meta.id().uuid_string(), reader.num_docs());
        let (of, deleted) = (meta.max_doc(), meta.num_deleted_docs());
        if of != reader.max_doc() || of.checked_sub(deleted) != Some(living) {
            let problem = format!(
                "segment {id} has {living} living documents, {} with deleted ones, not {deleted} deleted of {of}",
                reader.max_doc()
            );
            return Err(damaged(&path, &problem));
        }
    }
    Ok(())
}

/// Finds the cause of a failed read: names the first file with a wrong checksum, or returns the error unchanged.
pub(super) fn blame(dir: &Path, error: Error) -> Error {
    let Error::Format { .. } = error else { return error };
    let store = dir.join(STORE);
    let Ok(entries) = std::fs::read_dir(&store) else { return error };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(is_segment_file));
    paths.sort();
    let found = paths.into_iter().find_map(|path| {
        let problem = footer(&Map::open(&path).ok()?).err()?;
        Some(damaged(&path, &problem))
    });
    found.unwrap_or(error)
}

/// Whether a name is that of a segment file: 32 hex digits, an optional commit number, and a known extension.
fn is_segment_file(name: &str) -> bool {
    let mut parts = name.split('.');
    let id = parts.next().is_some_and(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    let rest: Vec<&str> = parts.collect();
    let known = |e: &&str| ["fast", "store", "term", "idx", "pos", "fieldnorm", "del", "temp"].contains(e);
    id && rest.last().is_some_and(known)
}
