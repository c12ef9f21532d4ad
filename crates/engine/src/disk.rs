//! Writing so that a crash leaves the old or the new, never a half.
//!
//! A file is on disk when its bytes are synced, its name when the directory it stands in is. Every sync of the engine
//! goes through [`sync_file`] and [`sync_directory`], so that tests know what a power cut leaves (`power.rs`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Result};

mod replaces;
mod staged_directory;
mod staged_file;

pub use replaces::Replaces;
pub(crate) use replaces::{MAP, SAVED, TOPICS};
pub use staged_directory::{StagedDirectory, clear_folders, recover};
pub use staged_file::StagedFile;

/// Writes a whole file and syncs it. Not atomic: for files inside a directory that is itself renamed into place.
pub fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io(path))?;
    file.write_all(bytes).map_err(Error::io(path))?;
    sync_file(&file, path)
}

/// Opens a file that a user names, to be read to its end. A device like `/dev/zero` is refused: it may have none.
pub fn open_to_end(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(Error::io(path))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = file.metadata().map_err(Error::io(path))?.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            return Err(Error::format(
                path,
                "is a device and may never end; give a file, a named pipe, or - for standard input",
            ));
        }
    }
    Ok(file)
}

/// Makes the bytes of a file durable, not its name.
pub fn sync_file(file: &File, path: &Path) -> Result<()> {
    before_sync(path);
    #[cfg(test)]
    failing::check(path).map_err(Error::io(path))?;
    file.sync_all().map_err(Error::io(path))
}

/// Opens a file or a directory in such a way that it can be synced.
pub fn open_to_sync(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    // For a directory on Unix, reading is all that is allowed.
    options.read(true);
    #[cfg(windows)]
    {
        use std::os::windows::fs::OpenOptionsExt;
        // Windows syncs only what is open for writing, and opens a directory only with this flag.
        const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;
        options.write(true).custom_flags(FILE_FLAG_BACKUP_SEMANTICS);
    }
    options.open(path).map_err(Error::io(path))
}

/// The parts of a file that are on disk when [`put`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Nothing: what a crash leaves of it must be told by a checksum.
    No,
    /// Its bytes; its name once the directory is synced. Until then the old file may come back.
    Bytes,
    /// All of it.
    Name,
}

/// Writes a whole file beside its place and renames it: readers see the old bytes or the new.
pub fn put(path: &Path, bytes: &[u8], durable: Durable) -> Result<()> {
    let dir = parent(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY);
    // As any other new file, so that whoever may read the directory may read this too.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(dir).map_err(Error::io(dir))?;
    // The lock tells `clear_temporary` that this process is at work. Where there are no locks, age does.
    let _ = file.as_file().try_lock();
    file.write_all(bytes).map_err(Error::io(path))?;
    if durable != Durable::No {
        sync_file(file.as_file(), file.path())?;
    }
    file.persist(path).map_err(|e| Error::io(path)(e.error))?;
    if durable == Durable::Name {
        sync_directory(dir)?;
    }
    Ok(())
}

/// As [`put`], with all of it on disk.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    put(path, bytes, Durable::Name)
}

/// How the names of files begin that are still being written.
pub const TEMPORARY: &str = ".making-";

/// A process at work writes a temporary file of an index in less time than this, or holds its lock.
const AT_WORK: Duration = Duration::from_secs(10);

/// Removes a temporary file that a killed process has left. One that a process is at work on stays.
pub fn clear_temporary(path: &Path) -> Result<()> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let age = file.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
    if age.is_none_or(|age| age < AT_WORK) || matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)) {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(e)),
        _ => Ok(()),
    }
}

/// The path with `suffix` after its whole name: `news.micpq` and `.partial` give `news.micpq.partial`. So do `news.micpq/`,
/// as a shell completes it, and `.` in that directory.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let named = path.file_name().map(|name| path.with_file_name(name));
    let named = named.or_else(|| std::fs::canonicalize(path).ok()).unwrap_or_else(|| path.to_path_buf());
    let mut name = named.into_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes renames and removals in a directory durable.
pub fn sync_directory(dir: &Path) -> Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    sync_file(&open_to_sync(dir)?, dir)
}

/// Makes a file, or a directory and everything below it, durable: bytes and names, but for its own name.
pub fn sync_tree(path: &Path) -> Result<()> {
    let kind = path.symlink_metadata().map_err(Error::io(path))?.file_type();
    if kind.is_dir() {
        for entry in std::fs::read_dir(path).map_err(Error::io(path))? {
            sync_tree(&entry.map_err(Error::io(path))?.path())?;
        }
    }
    if kind.is_dir() || kind.is_file() {
        sync_file(&open_to_sync(path)?, path)?;
    }
    Ok(())
}

/// Makes a directory and those above it that are missing, all of them durable.
pub fn create_directories(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    create_directories(parent(dir))?;
    match std::fs::create_dir(dir) {
        Err(e) if !dir.is_dir() => return Err(Error::io(dir)(e)),
        _ => {}
    }
    sync_directory(parent(dir))
}

/// Called before everything that is synced, with its path: for the tests' model of a disk.
pub(crate) fn before_sync(_path: &Path) {
    #[cfg(all(test, unix))]
    crate::power::before_sync(_path);
}

/// The directory a path lies in; `.` for a bare name.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs that fail, for tests.
#[cfg(test)]
pub(crate) mod failing {
    use std::path::{Path, PathBuf};

    use parking_lot::Mutex;

    static PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    /// From now on no sync of this file or directory succeeds.
    pub fn syncs_of(path: &Path) {
        PATHS.lock().push(path.to_path_buf());
    }

    pub fn none_of(path: &Path) {
        PATHS.lock().retain(|failing| failing != path);
    }

    pub(super) fn check(path: &Path) -> std::io::Result<()> {
        match PATHS.lock().iter().any(|failing| failing == path) {
            true => Err(std::io::Error::other("no sync of this directory succeeds")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beside_a_directory_is_never_inside_it() {
        for (path, expected) in [
            ("news.micpq", "news.micpq-backup"),
            ("news.micpq/", "news.micpq-backup"),
            ("news.micpq//", "news.micpq-backup"),
            ("news.micpq/.", "news.micpq-backup"),
            ("./news.micpq/", "./news.micpq-backup"),
            ("/data/news.micpq/", "/data/news.micpq-backup"),
            ("../x", "../x-backup"),
        ] {
            assert_eq!(beside(Path::new(path), "-backup"), Path::new(expected), "{path}");
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(beside(Path::new("."), "-x").parent(), here.parent());
        assert_eq!(beside(Path::new(".."), "-x").parent(), here.parent().and_then(Path::parent));
    }
}
