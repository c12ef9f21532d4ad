//! tantivy's directory. It also works with read permission only, and packs the codes of a segment as soon as its
//! columns are written.

use std::collections::{HashMap, HashSet};
#[cfg(unix)]
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, INDEX_WRITER_LOCK, Lock, META_LOCK, ManagedDirectory,
    MmapDirectory, TerminatingWrite, WatchCallback, WatchHandle, WritePtr,
};
use tantivy::index::SegmentId;

use super::SEGMENTS;
use super::files::{Part, StoreFile};
use super::segment::pack_file;
use crate::disk::{self, Durable};
use crate::model::CodeShape;

/// A memory-mapped directory whose readers work without a lock when they cannot take one.
///
/// tantivy takes a lock file while it opens segments, so that no writer removes them meanwhile, and fails if it cannot
/// write that file. Without the lock, the worst case is a segment that disappears before it is opened; that is an
/// error, and a retry succeeds.
///
/// The thread that writes a segment, an indexing thread or a merge, also packs its codes, before any commit names the
/// segment. Readers find the codes ready.
///
/// When a writer ends or rolls back, tantivy signals its merge thread to stop but does not wait for it. That thread may
/// be about to overwrite the list of segments that another writer has committed meanwhile, or to remove files that
/// writer still needs. Therefore the list never goes back to an earlier commit, and neither the list nor any file is
/// changed after the writer lock is released.
#[derive(Clone, Debug)]
pub(super) struct StoreDirectory {
    root: Arc<Path>,
    // Kept open, so that no other directory gets the same inode number.
    #[cfg(unix)]
    opened: Arc<File>,
    mapped: MmapDirectory,
    known: Arc<Mutex<Known>>,
    packing: Option<Packing>,
    writing: Arc<Mutex<Writing>>,
}

/// State of segment files, shared within this process.
#[derive(Debug, Default)]
struct Known {
    files: HashMap<PathBuf, Arc<StoreFile>>,
    /// Segments excluded from merges.
    damaged: HashSet<SegmentId>,
    warnings: Vec<String>,
}

/// State of this process as a writer.
#[derive(Debug, Default)]
struct Writing {
    /// A writer existed and released its lock.
    ended: bool,
    /// Opstamp of the last commit since the writer started.
    commit: u64,
    /// Documents of that commit.
    documents: u64,
}

const FORK_TRIES: usize = 5;
const FORK_PAUSE: Duration = Duration::from_millis(10);

/// The writer lock. Releasing it also revokes the permission to write.
struct WriterLock {
    file: Option<DirectoryLock>,
    writing: Arc<Mutex<Writing>>,
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        let mut writing = hold(&self.writing);
        writing.ended = true;
        // Released while `writing` is locked, so that nobody can write in between.
        self.file = None;
    }
}

fn hold(writing: &Mutex<Writing>) -> MutexGuard<'_, Writing> {
    writing.lock()
}

/// Wraps our error so that tantivy can pass it on; `tantivy_error` unwraps it.
fn to_io(error: crate::Error) -> io::Error {
    let kind = if let crate::Error::Io { source, .. } = &error { source.kind() } else { io::ErrorKind::Other };
    io::Error::new(kind, error)
}

fn too_late(what: &str) -> io::Error {
    io::Error::other(format!("{what}, and came from one that has ended"))
}

/// Where packed codes are written, and their shape.
#[derive(Clone, Debug)]
struct Packing {
    index: Arc<Path>,
    shape: CodeShape,
}

impl StoreDirectory {
    /// Opens the store inside the index directory `index`. Codes are packed only if `shape` is given.
    pub fn open(index: &Path, shape: Option<CodeShape>) -> tantivy::Result<StoreDirectory> {
        let root: Arc<Path> = index.join(super::STORE).into();
        let mapped = MmapDirectory::open(&root)?;
        #[cfg(unix)]
        let opened = Arc::new(File::open(&root)?);
        let packing = shape.map(|shape| Packing { index: index.into(), shape });
        Ok(StoreDirectory {
            root,
            #[cfg(unix)]
            opened,
            mapped,
            known: Arc::default(),
            packing,
            writing: Arc::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Documents of the last commit by this process's writer.
    pub fn committed_documents(&self) -> u64 {
        hold(&self.writing).documents
    }

    /// Whether a segment may be merged: every file of it still matches its checksum. A large file is compared in the background
    /// from now on; until that ends, the answer is no.
    pub fn is_sound(&self, segment: SegmentId) -> bool {
        let files: tantivy::Result<Vec<_>> = Part::ALL.into_iter().map(|part| self.files(segment, part)).collect();
        let Ok(files) = files else { return false };
        let mut ready = true;
        for file in files.iter().flatten() {
            match file.check_for_merge() {
                Ok(now) => ready &= now,
                Err(damage) => {
                    let mut known = self.known();
                    if known.damaged.insert(segment) {
                        known.warnings.push(format!("{damage}. Its segment is not merged until then"));
                    }
                    return false;
                }
            }
        }
        ready
    }

    /// Damage found since the last call.
    pub fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.known().warnings)
    }

    /// The existing files of one part of a segment.
    pub fn files(&self, segment: SegmentId, part: Part) -> tantivy::Result<Vec<Arc<StoreFile>>> {
        let mut files = Vec::new();
        for ending in part.endings() {
            match self.file(Path::new(&format!("{}.{ending}", segment.uuid_string()))) {
                Ok(file) => files.push(file),
                Err(OpenReadError::FileDoesNotExist(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(files)
    }

    /// Drops files that nobody reads any more.
    pub fn forget_unused(&self) {
        self.known().files.retain(|_, file| Arc::strong_count(file) > 1);
    }

    fn file(&self, path: &Path) -> Result<Arc<StoreFile>, OpenReadError> {
        let mut known = self.known();
        if let Some(file) = known.files.get(path) {
            return Ok(file.clone());
        }
        let file = Arc::new(StoreFile::new(self.root.join(path), self.mapped.get_file_handle(path)?));
        known.files.insert(path.to_path_buf(), file.clone());
        Ok(file)
    }

    /// Whether a file of deletes belongs to a commit that never came: its writer was killed or failed. The next writer
    /// gives its own file the same name, because it counts on from the last commit.
    fn is_leftover(&self, path: &Path) -> bool {
        #[derive(serde::Deserialize)]
        struct Commit {
            opstamp: u64,
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let opstamp = name.strip_suffix(".del").and_then(|name| name.rsplit('.').next()?.parse::<u64>().ok());
        let commit = self.mapped.atomic_read(Path::new(SEGMENTS)).ok();
        let commit = commit.and_then(|list| serde_json::from_slice::<Commit>(&list).ok());
        matches!((opstamp, commit), (Some(opstamp), Some(commit)) if opstamp > commit.opstamp)
    }

    /// Refuses to write if another directory replaced the one that was opened.
    fn check_place(&self) -> io::Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let (then, now) = (self.opened.metadata()?, std::fs::metadata(&self.root));
            if !now.is_ok_and(|now| (now.dev(), now.ino()) == (then.dev(), then.ino())) {
                let problem = "the index directory was replaced; open it again";
                return Err(to_io(crate::Error::format(&self.root, problem)));
            }
        }
        Ok(())
    }
}

/// A segment file being written.
struct SegmentFile {
    file: WritePtr,
    store: StoreDirectory,
    path: PathBuf,
}

impl Write for SegmentFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl TerminatingWrite for SegmentFile {
    /// Syncs the content. The commit that needs the file syncs its name.
    fn terminate_ref(&mut self, token: AntiCallToken) -> io::Result<()> {
        self.file.flush()?;
        disk::before_sync(&self.store.root.join(&self.path));
        self.file.terminate_ref(token)?;
        self.store.pack(&self.path);
        Ok(())
    }
}

impl StoreDirectory {
    /// Packs the codes of a segment whose column file is complete. Errors are ignored because codes are derived: the
    /// first reader packs them instead and reports the problem.
    fn pack(&self, path: &Path) {
        let Some(packing) = self.packing.as_ref().filter(|_| path.extension().is_some_and(|e| e == "fast")) else {
            return;
        };
        let columns = ManagedDirectory::wrap(Box::new(self.mapped.clone())).ok();
        let columns = columns.and_then(|directory| directory.open_read(path).ok());
        if let (Some(columns), Some(segment)) = (columns, segment_of(path)) {
            let _ = pack_file(&packing.index, packing.shape, segment, columns);
        }
    }
}

/// The segment a store file belongs to: the file name begins with the segment id.
pub(super) fn segment_of(path: &Path) -> Option<SegmentId> {
    let name = path.file_name()?.to_str()?;
    SegmentId::from_uuid_string(name.get(..32)?).ok().filter(|_| name.as_bytes().get(32) == Some(&b'.'))
}

impl Directory for StoreDirectory {
    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let mut found = self.mapped.acquire_lock(lock);
        // A child that another thread has just forked holds a copy of every lock until it runs its program.
        for _ in 0..FORK_TRIES {
            if !matches!(found, Err(LockError::LockBusy)) {
                break;
            }
            std::thread::sleep(FORK_PAUSE);
            found = self.mapped.acquire_lock(lock);
        }
        match found {
            Err(LockError::IoError(e))
                if lock.filepath == META_LOCK.filepath && matches!(e.kind(), PermissionDenied | ReadOnlyFilesystem) =>
            {
                Ok(DirectoryLock::from(Box::new(())))
            }
            Ok(file) if lock.filepath == INDEX_WRITER_LOCK.filepath => {
                *hold(&self.writing) = Writing::default();
                let lock = WriterLock { file: Some(file), writing: self.writing.clone() };
                Ok(DirectoryLock::from(Box::new(lock)))
            }
            other => other,
        }
    }

    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        if segment_of(path).is_none() {
            return self.mapped.get_file_handle(path);
        }
        let file = self.file(path)?;
        // Delete files are small and always read whole. They are checked here because a commit would write damaged ones
        // anew.
        if path.extension().is_some_and(|e| e == "del") {
            file.check().map_err(|damage| OpenReadError::IoError {
                io_error: Arc::new(io::Error::new(io::ErrorKind::InvalidData, damage)),
                filepath: path.to_path_buf(),
            })?;
        }
        Ok(file)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        let writing = hold(&self.writing);
        if writing.ended {
            let io_error = Arc::new(too_late("removing files is a writer's"));
            return Err(DeleteError::IoError { io_error, filepath: path.to_path_buf() });
        }
        self.check_place().map_err(|e| DeleteError::IoError { io_error: Arc::new(e), filepath: path.to_path_buf() })?;
        self.known().files.remove(path);
        self.mapped.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.mapped.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        self.check_place().map_err(|e| OpenWriteError::wrap_io_error(e, path.to_path_buf()))?;
        // An uncommitted file may have had the same name before.
        self.known().files.remove(path);
        let file = match self.mapped.open_write(path) {
            Err(OpenWriteError::FileAlreadyExists(_)) if self.is_leftover(path) => {
                let failed = |e| OpenWriteError::wrap_io_error(e, path.to_path_buf());
                std::fs::remove_file(self.root.join(path)).map_err(failed)?;
                self.mapped.open_write(path)?
            }
            file => file?,
        };
        let store = self.clone();
        Ok(WritePtr::new(Box::new(SegmentFile { file, store, path: path.to_path_buf() })))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.mapped.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.check_place()?;
        // The directory may be replaced between the check and the write; then report that as the reason.
        let refused = |error| self.check_place().err().unwrap_or_else(|| to_io(error));
        let put = |durable| disk::put(&self.root.join(path), data, durable).map_err(refused);
        if path != Path::new(SEGMENTS) {
            // The list of managed files. It need not be durable before the commit that needs its files, and that commit
            // begins by syncing the directory.
            return put(Durable::Bytes);
        }
        #[derive(serde::Deserialize)]
        struct Commit {
            opstamp: u64,
            segments: Vec<Segment>,
        }
        #[derive(serde::Deserialize)]
        struct Segment {
            max_doc: u64,
            deletes: Option<Deletes>,
        }
        #[derive(serde::Deserialize)]
        struct Deletes {
            num_deleted_docs: u64,
        }
        let Commit { opstamp: commit, segments } = serde_json::from_slice(data)?;
        let deleted = |s: &Segment| s.deletes.as_ref().map_or(0, |d| d.num_deleted_docs);
        let documents = segments.iter().map(|s| s.max_doc.saturating_sub(deleted(s))).sum();
        let mut writing = hold(&self.writing);
        if writing.ended || commit < writing.commit {
            return Err(too_late("the list of segments is a writer's"));
        }
        // When this returns, the commit is acknowledged and tantivy removes the files it no longer needs. So it must be
        // durable.
        put(Durable::Name)?;
        (writing.commit, writing.documents) = (commit, documents);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        disk::sync_directory(&self.root).map_err(to_io)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.mapped.watch(callback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_refused_after_the_writer_lock_is_released() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(super::super::STORE)).unwrap();
        let store = StoreDirectory::open(dir.path(), None).unwrap();
        let list = |commit: u64, mark: &str| format!(r#"{{"segments": [], "mark": "{mark}", "opstamp": {commit}}}"#);
        let write = |commit: u64, mark: &str| store.atomic_write(Path::new(SEGMENTS), list(commit, mark).as_bytes());
        let found = || String::from_utf8(store.atomic_read(Path::new(SEGMENTS)).unwrap()).unwrap();
        // Creating an index needs no writer.
        write(0, "made").unwrap();

        let lock = store.acquire_lock(&INDEX_WRITER_LOCK).unwrap();
        assert!(store.clone().acquire_lock(&INDEX_WRITER_LOCK).is_err());
        write(7, "commit").unwrap();
        write(7, "merge").unwrap();
        assert!(write(6, "a merge from before a rollback").is_err());
        assert_eq!(found(), list(7, "merge"));
        store.atomic_write(Path::new("file"), b"1").unwrap();
        store.delete(Path::new("file")).unwrap();

        store.atomic_write(Path::new("file"), b"2").unwrap();
        drop(lock);
        assert!(write(8, "too late").is_err());
        assert!(store.delete(Path::new("file")).is_err());
        assert!(store.exists(Path::new("file")).unwrap());
        assert_eq!(found(), list(7, "merge"));

        // The next writer finds the lock free. Its opstamps may be lower if a backup was restored meanwhile.
        let lock = store.acquire_lock(&INDEX_WRITER_LOCK).unwrap();
        write(3, "next").unwrap();
        store.delete(Path::new("file")).unwrap();
        assert_eq!(found(), list(3, "next"));
        drop(lock);
    }
}
