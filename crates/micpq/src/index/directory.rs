//! tantivy's directory, for those too who may only read it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    Directory, DirectoryLock, FileHandle, Lock, META_LOCK, MmapDirectory, WatchCallback, WatchHandle, WritePtr,
};

/// A mapped directory whose readers do without a lock where they cannot have one.
///
/// tantivy takes a lock file while it opens segments, so that a writer removes none of them meanwhile, and fails where
/// the file cannot be written. Without the lock the worst is that a segment is gone when it is opened, which is an
/// error the next try does not meet.
#[derive(Clone, Debug)]
pub(super) struct StoreDirectory(MmapDirectory);

impl StoreDirectory {
    pub fn open(path: &Path) -> tantivy::Result<StoreDirectory> {
        Ok(StoreDirectory(MmapDirectory::open(path)?))
    }
}

impl Directory for StoreDirectory {
    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        match self.0.acquire_lock(lock) {
            Err(LockError::IoError(e))
                if lock.filepath == META_LOCK.filepath && matches!(e.kind(), PermissionDenied | ReadOnlyFilesystem) =>
            {
                Ok(DirectoryLock::from(Box::new(())))
            }
            other => other,
        }
    }

    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.0.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.0.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.0.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        self.0.open_write(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.0.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.0.atomic_write(path, data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.0.sync_directory()
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.0.watch(callback)
    }
}
