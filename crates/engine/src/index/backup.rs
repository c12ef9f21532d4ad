//! Backup and restore: copies one commit of an index to another directory.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use tantivy::Directory;
use tantivy::directory::META_LOCK;

use super::directory::segment_of;
use super::files::{damaged, footer};
use super::manifest::Manifest;
use super::{CODES, Claim, Index, SEGMENTS, STORE, tantivy_error, verify};
use crate::disk::{open_to_sync, sync_directory, sync_file, write_synced};
use crate::mmap::Map;
use crate::{Error, Progress, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyConfig {
    /// Replaces an index that already exists at the target.
    pub replace: bool,
    /// Gives the copy its own files. Otherwise both indexes share files by hard links where the file system allows it.
    /// This is safe: a file of an index never changes once written, so neither index sees changes of the other.
    pub own_files: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Documents that are not deleted.
    pub documents: u64,
    pub files: usize,
    /// Files shared by hard links; included in `files`.
    pub linked: usize,
    /// Total size of the files, shared or not.
    pub bytes: u64,
}

/// Copies the last commit of the index at `index` to `to`, which becomes an index too. A writer may be open meanwhile;
/// its later commits are not in the copy. The copy appears whole or not at all, and is synced to disk when this
/// returns.
pub fn backup(index: &Path, to: &Path, config: CopyConfig, progress: &dyn Progress) -> Result<Copied> {
    Manifest::read(index)?;
    put(index, to, config, progress)
}

/// Copies the backup at `from` to `to` as a working index, after verifying every byte of it.
pub fn restore(from: &Path, to: &Path, config: CopyConfig, progress: &dyn Progress) -> Result<Copied> {
    let problems = verify(from, progress)?;
    if let Some(first) = problems.first() {
        return Err(Error::format(
            from,
            format!("is damaged in {} places, so it is not restored; the first: {first}", problems.len()),
        ));
    }
    put(from, to, config, progress)
}

fn put(from: &Path, to: &Path, config: CopyConfig, progress: &dyn Progress) -> Result<Copied> {
    let source = std::fs::canonicalize(from).map_err(Error::io(from))?;
    let target = std::path::absolute(to).map_err(Error::io(to))?;
    if std::fs::canonicalize(to).is_ok_and(|to| to == source) || target.starts_with(&source) {
        return Err(Error::config(format!(
            "{} is or lies in {}; name a place outside of it",
            to.display(),
            from.display()
        )));
    }
    let claim = Claim::new(to, config.replace)?;
    let copied = copy_commit(&source, &claim.path(), config.own_files, progress)?;
    claim.finish()?;
    Ok(copied)
}

/// Retries when a file disappears during the copy. This can happen to a reader that lacks the permission to lock.
fn copy_commit(from: &Path, to: &Path, own_files: bool, progress: &dyn Progress) -> Result<Copied> {
    let mut tries = 0;
    loop {
        match copy_once(from, to, own_files, progress) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && tries < 5 => {
                std::fs::remove_dir_all(to).map_err(Error::io(to))?;
                tries += 1;
            }
            other => return other,
        }
    }
}

fn copy_once(from: &Path, to: &Path, own_files: bool, progress: &dyn Progress) -> Result<Copied> {
    let store = from.join(STORE);
    let manifest = Manifest::read(from)?;
    let index = Index::open_store(from, None)?;
    for name in [STORE, CODES] {
        std::fs::create_dir_all(to.join(name)).map_err(Error::io(to))?;
    }

    // tantivy takes this lock before it removes files, so the files of the commit stay until they are linked or opened.
    let locked = index.directory().acquire_lock(&META_LOCK);
    let lock = locked.map_err(|e| tantivy_error(&store, tantivy::TantivyError::LockFailure(e, None)))?;
    let commit = Commit::read(&index, &store)?;
    let mut copied = Copied { documents: commit.documents, ..Copied::default() };
    let mut folders = vec![to.to_path_buf()];
    let mut opened = Vec::new();
    for name in files(from)? {
        if !commit.owns(&name) {
            continue;
        }
        let (old, new) = (from.join(&name), to.join(&name));
        let folder = new.parent().expect("a file in the copy").to_path_buf();
        if !folders.contains(&folder) {
            std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
            folders.push(folder);
        }
        copied.files += 1;
        match if own_files { Err(std::io::ErrorKind::Unsupported.into()) } else { std::fs::hard_link(&old, &new) } {
            Ok(()) => copied.linked += 1,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Error::io(&old)(e)),
            // Another file system, one without hard links, or no permission to link. An open file can be read to its
            // end even after its name is removed.
            Err(_) => opened.push((File::open(&old).map_err(Error::io(&old))?, new.clone())),
        }
    }
    drop(lock);

    progress.stage("copying files", Some(opened.len() as u64));
    for (mut old, new) in opened {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let mut file = File::create(&new).map_err(Error::io(&new))?;
        std::io::copy(&mut old, &mut file).map_err(Error::io(&new))?;
        progress.advance(1);
    }
    write_synced(&to.join(STORE).join(SEGMENTS), &commit.bytes)?;
    write_synced(&Manifest::path(to), manifest.of_copy().to_json().as_bytes())?;
    manifest.check_model_files(to).map_err(|e| not_copied(from, to, e))?;
    let mut managed: Vec<String> = vec![SEGMENTS.into()];
    for name in files(to)? {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let path = to.join(&name);
        let file = open_to_sync(&path)?;
        sync_file(&file, &path)?;
        // A copy of a damaged file would look like a good backup.
        if name.starts_with(STORE) && segment_of(&name).is_some() {
            footer(&Map::open(&path)?).map_err(|problem| not_copied(from, to, damaged(&path, &problem)))?;
        }
        copied.bytes += file.metadata().map_err(Error::io(&path))?.len();
        if let Ok(name) = name.strip_prefix(STORE)
            && name != Path::new(SEGMENTS)
        {
            managed.push(name.to_string_lossy().into_owned());
        }
    }
    // tantivy's list of the files it manages and may remove later, in its own format.
    managed.sort();
    let managed = serde_json::to_string(&managed).expect("names have a JSON form") + "\n";
    write_synced(&to.join(STORE).join(".managed.json"), managed.as_bytes())?;
    copied.files += 3;
    folders.iter().rev().try_for_each(|folder| sync_directory(folder))?;
    Ok(copied)
}

/// Reports damage found in the copy with the path of the source file.
fn not_copied(from: &Path, to: &Path, error: Error) -> Error {
    match error {
        Error::Format { path, problem, .. } => {
            let path = path.strip_prefix(to).map_or(path.clone(), |name| from.join(name));
            Error::format(path, format!("{problem}. Nothing was copied"))
        }
        other => other,
    }
}

/// One commit, as `meta.json` describes it.
struct Commit {
    /// Exact content of `meta.json`.
    bytes: Vec<u8>,
    documents: u64,
    segments: HashSet<String>,
    /// Files tantivy looks for; some of them may not exist.
    names: HashSet<PathBuf>,
}

impl Commit {
    fn read(index: &tantivy::Index, store: &Path) -> Result<Commit> {
        let path = store.join(SEGMENTS);
        let read = || std::fs::read(&path).map_err(Error::io(&path));
        loop {
            let bytes = read()?;
            let metas = super::guarded(store, || index.load_metas())?;
            // A writer may have committed between the two reads.
            if read()? == bytes {
                return Ok(Commit {
                    bytes,
                    documents: metas.segments.iter().map(|s| u64::from(s.num_docs())).sum(),
                    segments: metas.segments.iter().map(|s| s.id().uuid_string()).collect(),
                    names: metas.list_segment_files(),
                });
            }
        }
    }

    /// Whether a file, given by its path inside the index, belongs to this commit. A file named after a segment belongs
    /// to that segment, in any folder. Hidden files are locks or unfinished. Every other file belongs to the index as a
    /// whole.
    fn owns(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The copy writes its own list of segments and its own manifest.
        let own = path == Path::new(STORE).join(SEGMENTS) || path == Manifest::path(Path::new(""));
        // A map names documents by numbers of this index. It is made again.
        if name.starts_with('.') || own || path.starts_with(crate::disk::MAP) {
            return false;
        }
        let Some(segment) = segment_of(path) else { return true };
        // Delete files of other commits and unfinished files start with the segment's name too.
        let exact = name.ends_with(".del") && !self.names.contains(Path::new(&*name)) || name.ends_with(".temp");
        self.segments.contains(&segment.uuid_string()) && !exact
    }
}

/// All files below `dir` by their relative paths, sorted.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(folder) = left.pop() {
        let path = dir.join(&folder);
        for entry in std::fs::read_dir(&path).map_err(Error::io(&path))? {
            let entry = entry.map_err(Error::io(&path))?;
            let name = folder.join(entry.file_name());
            let kind = entry.file_type().map_err(Error::io(dir.join(&name)))?;
            if kind.is_dir() { left.push(name) } else { found.push(name) }
        }
    }
    found.sort();
    Ok(found)
}
