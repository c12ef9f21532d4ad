//! A file that appears when it is complete.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{parent, sync_directory, sync_file};
use crate::{Error, Result};

/// A file that is written beside its path and renamed there when it is complete. Given up, it leaves nothing.
///
/// It is locked while it is written. What a killed process left has a free lock: the next process that writes the same path
/// removes it.
#[derive(Debug)]
pub struct StagedFile {
    path: PathBuf,
    file: tempfile::NamedTempFile,
}

impl StagedFile {
    pub fn create(path: &Path) -> Result<StagedFile> {
        let name = path.file_name().ok_or_else(|| Error::config(format!("{} names no file", path.display())))?;
        let (dir, prefix) = (parent(path), format!(".{}.making-", name.to_string_lossy()));
        clear(dir, &prefix).map_err(Error::io(path))?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        loop {
            let file = builder.tempfile_in(dir).map_err(Error::io(path))?;
            // Another process may have taken it for a leftover before the lock was ours.
            let _ = file.as_file().try_lock();
            if file.path().exists() {
                return Ok(StagedFile { path: path.to_path_buf(), file });
            }
        }
    }

    /// The file to write to.
    pub fn file(&self) -> Result<File> {
        self.file.as_file().try_clone().map_err(Error::io(&self.path))
    }

    /// Syncs the bytes that were written, and gives the file its name.
    pub fn finish(self) -> Result<()> {
        sync_file(self.file.as_file(), self.file.path())?;
        let path = self.path;
        self.file.persist(&path).map_err(|e| Error::io(&path)(e.error))?;
        sync_directory(parent(&path))
    }
}

/// Removes files of killed processes.
fn clear(dir: &Path, prefix: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)?.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        if ours && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_appears_when_it_is_finished_and_leaves_nothing_when_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.parquet");
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        let staged = StagedFile::create(&path).unwrap();
        staged.file().unwrap().write_all(b"half").unwrap();
        assert_eq!((path.exists(), names()), (false, 1));
        drop(staged);
        assert_eq!(names(), 0);
        // One of a killed process is removed, one of a process at work and one of another path stay.
        let (dead, other) = (dir.path().join(".out.parquet.making-dead"), dir.path().join(".other.making-dead"));
        std::fs::write(&dead, "half").unwrap();
        std::fs::write(&other, "half").unwrap();
        let first = StagedFile::create(&path).unwrap();
        assert!(!dead.exists() && other.exists());
        let second = StagedFile::create(&path).unwrap();
        first.file().unwrap().write_all(b"first").unwrap();
        second.file().unwrap().write_all(b"second").unwrap();
        first.finish().unwrap();
        second.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names()), (b"second".to_vec(), 2));
        assert!(StagedFile::create(Path::new("/")).is_err());
    }
}
