//! tantivy's directory, for those too who may only read it; and where a segment's codes are packed as soon as its
//! columns are written.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, Lock, META_LOCK, ManagedDirectory, MmapDirectory,
    TerminatingWrite, WatchCallback, WatchHandle, WritePtr,
};
use tantivy::index::SegmentId;

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
#[derive(Clone, Debug)]
pub(super) struct StoreDirectory {
    mapped: MmapDirectory,
    packing: Option<Packing>,
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
        Ok(StoreDirectory { mapped, packing: shape.map(|shape| Packing { index: index.into(), shape }) })
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
            other => other,
        }
    }

    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.mapped.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
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
        self.mapped.atomic_write(path, data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.mapped.sync_directory()
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.mapped.watch(callback)
    }
}
