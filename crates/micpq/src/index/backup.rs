//! A commit copied to another directory, and back.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use tantivy::Directory;
use tantivy::directory::META_LOCK;

use super::directory::segment_of;
use super::manifest::Manifest;
use super::{Index, SEGMENTS, STORE, free_place, tantivy_error, verify};
use crate::disk::{Making, sync_directory, write_synced};
use crate::{Error, Result, Watch};

/// How an index is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyConfig {
    /// Whether an index already at the other place is replaced.
    pub replace: bool,
    /// Whether the copy has files of its own. Otherwise both share them by hard links where the file system allows it:
    /// no file of an index changes once it is written, so neither sees what becomes of the other.
    pub own_files: bool,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Documents that can be found.
    pub documents: u64,
    /// Files.
    pub files: usize,
    /// Those of them shared by hard links.
    pub linked: usize,
    /// Their bytes, shared or not.
    pub bytes: u64,
}

/// Copies the last commit of the index at `index` to `to`, which is then an index too. A writer may be at work meanwhile:
/// what it commits later is not in the copy. The copy is there whole or not at all, and on disk when this returns.
pub fn snapshot(index: &Path, to: &Path, config: CopyConfig, watch: &dyn Watch) -> Result<Copied> {
    Manifest::read(index)?;
    put(index, to, config, watch)
}

/// Puts the snapshot at `from` to `to` as an index to work with, after looking at every byte of it.
pub fn restore(from: &Path, to: &Path, config: CopyConfig, watch: &dyn Watch) -> Result<Copied> {
    let problems = verify(from, watch)?;
    if let Some(first) = problems.first() {
        return Err(Error::format(
            from,
            format!("is damaged in {} places, so it is not restored; the first: {first}", problems.len()),
        ));
    }
    put(from, to, config, watch)
}

fn put(from: &Path, to: &Path, config: CopyConfig, watch: &dyn Watch) -> Result<Copied> {
    let source = std::fs::canonicalize(from).map_err(Error::io(from))?;
    let inside = std::path::absolute(to).map_err(Error::io(to))?;
    if std::fs::canonicalize(to).is_ok_and(|to| to == source) || inside.starts_with(&source) {
        return Err(Error::config(format!(
            "{} is or lies in {}; name a place outside of it",
            to.display(),
            from.display()
        )));
    }
    // Held until the old index is out of the way: nobody may be writing to it.
    let _lock = free_place(to, config.replace)?;
    let making = Making::begin(to)?;
    let copied = copy_commit(&source, &making.path(), config.own_files, watch)?;
    making.finish()?;
    Ok(copied)
}

/// Tries again where a file went while it was looked for, which a reader without the right to lock may meet.
fn copy_commit(from: &Path, to: &Path, own_files: bool, watch: &dyn Watch) -> Result<Copied> {
    let mut tries = 0;
    loop {
        match copy_once(from, to, own_files, watch) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && tries < 5 => {
                std::fs::remove_dir_all(to).map_err(Error::io(to))?;
                tries += 1;
            }
            other => return other,
        }
    }
}

fn copy_once(from: &Path, to: &Path, own_files: bool, watch: &dyn Watch) -> Result<Copied> {
    let store = from.join(STORE);
    let index = Index::open_store(from, None)?;
    std::fs::create_dir_all(to.join(STORE)).map_err(Error::io(to))?;

    // tantivy takes this lock before it decides what to remove: what the commit names stays until it is linked or opened.
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
            // Another file system, or one without links, or no right to link: an open file can be read to its end even
            // when its name is gone.
            Err(_) => opened.push((File::open(&old).map_err(Error::io(&old))?, new.clone())),
        }
    }
    drop(lock);

    watch.stage("copying files", Some(opened.len() as u64));
    for (mut old, new) in opened {
        if watch.interrupted() {
            return Err(Error::Interrupted);
        }
        let mut file = File::create(&new).map_err(Error::io(&new))?;
        std::io::copy(&mut old, &mut file).map_err(Error::io(&new))?;
        watch.advance(1);
    }
    write_synced(&to.join(STORE).join(SEGMENTS), &commit.bytes)?;
    let mut managed: Vec<String> = vec![SEGMENTS.into()];
    for name in files(to)? {
        let path = to.join(&name);
        let file = File::open(&path).map_err(Error::io(&path))?;
        file.sync_all().map_err(Error::io(&path))?;
        copied.bytes += file.metadata().map_err(Error::io(&path))?.len();
        if let Ok(name) = name.strip_prefix(STORE)
            && name != Path::new(SEGMENTS)
        {
            managed.push(name.to_string_lossy().into_owned());
        }
    }
    // The names of files tantivy may remove one day, in its own form.
    managed.sort();
    let managed = serde_json::to_string(&managed).expect("names have a JSON form") + "\n";
    write_synced(&to.join(STORE).join(".managed.json"), managed.as_bytes())?;
    copied.files += 2;
    folders.iter().rev().try_for_each(|folder| sync_directory(folder))?;
    Ok(copied)
}

/// One commit, as `meta.json` names it.
struct Commit {
    /// The very bytes of that file.
    bytes: Vec<u8>,
    documents: u64,
    segments: HashSet<String>,
    /// Files tantivy would look for, not all of which need be there.
    names: HashSet<PathBuf>,
}

impl Commit {
    fn read(index: &tantivy::Index, store: &Path) -> Result<Commit> {
        let path = store.join(SEGMENTS);
        let read = || std::fs::read(&path).map_err(Error::io(&path));
        loop {
            let bytes = read()?;
            let metas = super::guarded(store, || index.load_metas())?;
            // A writer may have put another there between the two looks.
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

    /// Whether a file, by its path in the index, is of this commit. What is named after a segment belongs to it, in
    /// whatever folder; what is hidden is a lock or being written; all else is of the index as a whole.
    fn owns(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || path == Path::new(STORE).join(SEGMENTS) {
            return false;
        }
        let Some(segment) = segment_of(path) else { return true };
        // Deletes of an earlier or later commit have the segment's name too, and so has what is not finished.
        let exact = name.ends_with(".del") && !self.names.contains(Path::new(&*name)) || name.ends_with(".temp");
        self.segments.contains(&segment.uuid_string()) && !exact
    }
}

/// All files below `dir`, by their paths in it, sorted.
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
