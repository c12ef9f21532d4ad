//! Looks at every byte of an index and says what is not as it was written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tantivy::index::SegmentMeta;
use tantivy::{IndexMeta, SegmentReader};

use super::manifest::{Manifest, model_files};
use super::segment::{Columns, codes_path, owner, read_blocks};
use super::writer::Payload;
use super::{MODEL, SEGMENTS, STORE, kinship, schema};
use crate::mmap::Map;
use crate::model::{CodeShape, Model};
use crate::{Error, Result, Watch};

/// Something wrong with an index.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong with it, and what to do.
    pub problem: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

const RESTORE: &str = "restore the index from a copy or build it again";
const REMAKE: &str = "remove the file; it is made again from the store";

/// Looks again at most, while a writer works.
const LOOKS: usize = 20;

/// Checks an index without changing it. An empty list means that all is well; errors are for what could not be looked at.
pub fn verify(dir: &Path, watch: &dyn Watch) -> Result<Vec<Problem>> {
    let commit = || std::fs::read(dir.join(STORE).join(SEGMENTS)).ok();
    for _ in 1..LOOKS {
        let before = commit();
        let problems = look(dir, watch)?;
        // A commit or merge in between takes files away that the commit looked at names: not damage, but yesterday.
        if problems.is_empty() || commit() == before {
            return Ok(problems);
        }
    }
    look(dir, watch)
}

fn look(dir: &Path, watch: &dyn Watch) -> Result<Vec<Problem>> {
    let mut check = Check { dir, watch, problems: Vec::new() };
    match check.all() {
        Ok(()) => {}
        Err(Error::Format { path, problem }) => check.problems.push(Problem { path, problem }),
        // Text that is no text any more.
        Err(Error::Io { path, source }) if source.kind() == std::io::ErrorKind::InvalidData => {
            check.report(path, format!("is damaged: {source}; {RESTORE}"))
        }
        Err(e) => return Err(e),
    }
    Ok(check.problems)
}

struct Check<'a> {
    dir: &'a Path,
    watch: &'a dyn Watch,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn report(&mut self, path: impl AsRef<Path>, problem: impl Into<String>) {
        self.problems.push(Problem { path: path.as_ref().to_path_buf(), problem: problem.into() });
    }

    /// What stops here makes everything behind it meaningless.
    fn all(&mut self) -> Result<()> {
        let manifest = Manifest::read(self.dir)?;
        let found = model_files(self.dir)?;
        for (name, crc) in manifest.files() {
            let path = self.dir.join(MODEL).join(name);
            match found.get(name) {
                None => self.report(path, format!("is missing; {RESTORE}")),
                Some(now) if now != crc => {
                    self.report(path, format!("is damaged: its checksum is {now}, index.json says {crc}; {RESTORE}"))
                }
                Some(_) => {}
            }
        }
        let model = Model::load(&self.dir.join(MODEL))?;
        manifest.check_model(self.dir, &model)?;

        let store = self.dir.join(STORE);
        let index = super::guarded(&store, || tantivy::Index::open_in_dir(&store))?;
        let metas = super::guarded(&store, || index.load_metas())?;
        let (schema, fields) = schema::build(model.shape(), manifest.store(), manifest.keep());
        let next = self.metas(&metas, &schema)?;
        self.managed(&metas)?;

        self.watch.stage("verifying segments", Some(metas.segments.len() as u64));
        for segment in &metas.segments {
            if self.watch.interrupted() {
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
                    }
                    Err(e) => self.report(&store, e.to_string()),
                }
            }
            self.watch.advance(1);
        }
        Ok(())
    }

    /// `meta.json` has no checksum, but nothing in it is free: it must be as tantivy writes it, and each number in it
    /// stands elsewhere too. Returns the next sequence number.
    fn metas(&mut self, metas: &IndexMeta, schema: &tantivy::schema::Schema) -> Result<u64> {
        let path = self.dir.join(STORE).join(SEGMENTS);
        let text = std::fs::read(&path).map_err(Error::io(&path))?;
        let mut expected = serde_json::to_vec_pretty(metas).expect("tantivy writes it so");
        expected.push(b'\n');
        if text != expected {
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

    /// `.managed.json` names the files tantivy may remove: a living one that is missing there would never be.
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
        let mut again = serde_json::to_vec(&listed).expect("names have a JSON form");
        again.push(b'\n');
        if again != text {
            self.report(&path, format!("is not as it was written; {RESTORE}"));
        }
        let store = self.dir.join(STORE);
        for name in metas.list_segment_files() {
            let (exists, named) = (store.join(&name).exists(), listed.contains(&name));
            if exists && !named {
                self.report(&path, format!("is damaged: it does not name {}; {RESTORE}", name.display()));
            }
            // A store's temporary half is named until the next tidying.
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

    /// Every file of a segment ends in a footer with its checksum. Returns whether all are whole.
    fn files(&mut self, names: Vec<PathBuf>) -> Result<bool> {
        let before = self.problems.len();
        let store = self.dir.join(STORE);
        let mut versions: Vec<(PathBuf, Version)> = Vec::new();
        for name in names {
            let path = store.join(&name);
            if !path.exists() {
                continue;
            }
            if self.watch.interrupted() {
                return Err(Error::Interrupted);
            }
            match footer(&Map::open(&path)?) {
                Ok(version) => versions.push((path, version)),
                Err(problem) => self.report(path, format!("is damaged: {problem}; {RESTORE}")),
            }
        }
        // One process wrote a segment at one time; deletes came later, perhaps from a newer one.
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

    /// A file of another segment, whole as it may be, is none of this one's.
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
            // Not made yet.
            Ok(None) => {}
            Err(problem) => self.report(path, format!("{problem}; {REMAKE}")),
            Ok(Some(blocks)) if blocks.check().is_err() => {
                self.report(path, format!("{}; {REMAKE}", blocks.check().expect_err("just seen")))
            }
            Ok(Some(blocks)) => {
                let made = super::guarded_ours(&store, || Ok(columns.pack()))?;
                if blocks.as_bytes() != made.as_bytes() {
                    let of = |b: &crate::search::CodeBlocks| b.iter().collect::<BTreeSet<_>>();
                    let differing = of(&blocks).difference(&of(&made)).count();
                    self.report(path, format!("differs from the store in {differing} documents; {REMAKE}"));
                }
            }
        }
        Ok(())
    }
}

/// Whether a name is a segment's: 32 hex digits, perhaps a commit's number, and an extension.
fn is_segment_file(name: &str) -> bool {
    let mut parts = name.split('.');
    let id = parts.next().is_some_and(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    let rest: Vec<&str> = parts.collect();
    let known = |e: &&str| ["fast", "store", "term", "idx", "pos", "fieldnorm", "del", "temp"].contains(e);
    id && rest.last().is_some_and(known)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    major: u32,
    minor: u32,
    patch: u32,
    index_format_version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Footer {
    version: Version,
    crc: u32,
}

/// The version in a store file's footer, where the footer and the bytes before it are whole: the bytes, then JSON, its
/// length, and the number 1337, both four bytes little-endian.
fn footer(bytes: &[u8]) -> std::result::Result<Version, String> {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if bytes.len() < 8 || number(bytes.len() - 4) != 1337 {
        return Err("it does not end in a footer; it may be cut short".into());
    }
    let end = bytes.len() - 8;
    let begin = end.checked_sub(number(end) as usize).ok_or("its footer is longer than the file")?;
    let json = &bytes[begin..end];
    let footer: Footer = serde_json::from_slice(json).map_err(|e| format!("its footer cannot be read: {e}"))?;
    if serde_json::to_vec(&footer).is_ok_and(|again| again != json) {
        return Err("its footer is not as it was written".into());
    }
    let crc = crc32fast::hash(&bytes[..begin]);
    if crc != footer.crc {
        return Err(format!("its checksum is {crc:08x}, its footer says {:08x}", footer.crc));
    }
    Ok(footer.version)
}
