//! Writing so that a crash leaves the old or the new, never a half.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Writes a whole file and syncs it. Not atomic: for files inside a directory that is itself renamed into place.
pub fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io(path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(path))
}

/// Writes a whole file beside its place, syncs it and renames it: readers see the old bytes or the new.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_name(path);
    write_synced(&temporary, bytes)?;
    std::fs::rename(&temporary, path).map_err(Error::io(path))?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// A name beside `path` that no other process uses.
pub fn temporary_name(path: &Path) -> PathBuf {
    beside(path, &format!(".{}.tmp", std::process::id()))
}

/// The path with `suffix` after its whole name: `news.micpq` and `.partial` give `news.micpq.partial`.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes renames and removals in a directory durable.
pub fn sync_directory(dir: &Path) -> Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir).and_then(|d| d.sync_all()).map_err(Error::io(dir))
}
