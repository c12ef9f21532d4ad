//! tantivy's directory, for those too who may only read it; and where a segment's codes are packed as soon as its
//! columns are written.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, INDEX_WRITER_LOCK, Lock, META_LOCK, ManagedDirectory,
    MmapDirectory, TerminatingWrite, WatchCallback, WatchHandle, WritePtr,
};
use tantivy::index::SegmentId;

use super::SEGMENTS;
use super::segment::pack_file;
use crate::model::CodeShape;

/// A mapped directory whose readers do without a lock where they cannot have one.
///
/// tantivy takes a lock file while it opens segments, so that a writer removes none of them meanwhile, and fails where
/// the file cannot be written. Without the lock the worst is that a segment is gone when it is opened, which is an
/// error the next try does not meet.
///
/// Whoever writes a segment, an indexing thread or a merge, packs its codes there and then, before any commit names the
/// segment: readers find them made.
///
/// When a writer ends or rolls back, tantivy tells the thread that ends its merges to stop and does not wait for it: that thread may
/// be about to put its list of segments in the place of a commit another writer has made meanwhile, or to remove files
/// that one still needs. So the list never goes back to an earlier commit, and once a writer's lock is given up neither it nor any file is touched.
#[derive(Clone, Debug)]
pub(super) struct StoreDirectory {
    mapped: MmapDirectory,
    packing: Option<Packing>,
    writing: Arc<Mutex<Writing>>,
}

/// What this process has done to a store.
#[derive(Debug, Default)]
struct Writing {
    /// A writer was here and gave up its lock.
    ended: bool,
    /// The number of the last commit since a writer began.
    commit: u64,
}

/// A writer's lock. Given up, it takes the leave to write with it.
struct WriterLock {
    file: Option<DirectoryLock>,
    writing: Arc<Mutex<Writing>>,
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        let mut writing = hold(&self.writing);
        writing.ended = true;
        // While nobody can write.
        self.file = None;
    }
}

fn hold(writing: &Mutex<Writing>) -> MutexGuard<'_, Writing> {
    writing.lock().unwrap_or_else(PoisonError::into_inner)
}

fn too_late(what: &str) -> io::Error {
    io::Error::other(format!("{what}, and came from one that has ended"))
}

/// Where the packed codes go, and how long a code is.
#[derive(Clone, Debug)]
struct Packing {
    index: Arc<Path>,
    shape: CodeShape,
}

impl StoreDirectory {
    /// The store inside the index directory `index`; of codes of `shape`, if codes are to be packed.
    pub fn open(index: &Path, shape: Option<CodeShape>) -> tantivy::Result<StoreDirectory> {
        let mapped = MmapDirectory::open(index.join(super::STORE))?;
        let packing = shape.map(|shape| Packing { index: index.into(), shape });
        Ok(StoreDirectory { mapped, packing, writing: Arc::default() })
    }
}

/// A segment's file of columns on its way to disk.
struct ColumnFile {
    file: WritePtr,
    directory: MmapDirectory,
    path: PathBuf,
    packing: Packing,
}

impl Write for ColumnFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl TerminatingWrite for ColumnFile {
    fn terminate_ref(&mut self, token: AntiCallToken) -> io::Result<()> {
        self.file.terminate_ref(token)?;
        // Codes are derived: where they cannot be packed now, the first reader packs them and says what is wrong.
        let columns = ManagedDirectory::wrap(Box::new(self.directory.clone())).ok();
        let columns = columns.and_then(|directory| directory.open_read(&self.path).ok());
        let segment = segment_of(&self.path);
        if let (Some(columns), Some(segment)) = (columns, segment) {
            let _ = pack_file(&self.packing.index, self.packing.shape, segment, columns);
        }
        Ok(())
    }
}

/// The segment a file of the store belongs to: its name begins with the segment's number.
pub(super) fn segment_of(path: &Path) -> Option<SegmentId> {
    let name = path.file_name()?.to_str()?;
    SegmentId::from_uuid_string(name.get(..32)?).ok().filter(|_| name.as_bytes().get(32) == Some(&b'.'))
}

impl Directory for StoreDirectory {
    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        match self.mapped.acquire_lock(lock) {
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
        self.mapped.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        let writing = hold(&self.writing);
        if writing.ended {
            let io_error = Arc::new(too_late("removing files is a writer's"));
            return Err(DeleteError::IoError { io_error, filepath: path.to_path_buf() });
        }
        self.mapped.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.mapped.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        let file = self.mapped.open_write(path)?;
        let Some(packing) = self.packing.clone().filter(|_| path.extension().is_some_and(|e| e == "fast")) else {
            return Ok(file);
        };
        let (directory, path) = (self.mapped.clone(), path.to_path_buf());
        Ok(WritePtr::new(Box::new(ColumnFile { file, directory, path, packing })))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.mapped.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        if path != Path::new(SEGMENTS) {
            return self.mapped.atomic_write(path, data);
        }
        #[derive(serde::Deserialize)]
        struct Commit {
            opstamp: u64,
        }
        let commit = serde_json::from_slice::<Commit>(data)?.opstamp;
        let mut writing = hold(&self.writing);
        if writing.ended || commit < writing.commit {
            return Err(too_late("the list of segments is a writer's"));
        }
        self.mapped.atomic_write(path, data)?;
        writing.commit = commit;
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.mapped.sync_directory()
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.mapped.watch(callback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_a_writer_has_ended_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(super::super::STORE)).unwrap();
        let store = StoreDirectory::open(dir.path(), None).unwrap();
        let list = |commit: u64, mark: &str| format!(r#"{{"segments": ["{mark}"], "opstamp": {commit}}}"#);
        let write = |commit: u64, mark: &str| store.atomic_write(Path::new(SEGMENTS), list(commit, mark).as_bytes());
        let found = || String::from_utf8(store.atomic_read(Path::new(SEGMENTS)).unwrap()).unwrap();
        // An index is made without a writer.
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

        // The next writer finds the lock free, also where the commits of a copy that was put in place count from below.
        let lock = store.acquire_lock(&INDEX_WRITER_LOCK).unwrap();
        write(3, "next").unwrap();
        store.delete(Path::new("file")).unwrap();
        assert_eq!(found(), list(3, "next"));
        drop(lock);
    }
}
