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

/// The directory a path lies in; `.` for a bare name.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A directory in the making, which takes its place in one step when it is whole.
///
/// It is made in a hidden folder beside its place, called after it, and that folder is locked: whoever makes the same
/// directory later knows the folders of processes that were killed by their lock being free, and removes them.
#[derive(Debug)]
pub struct Making {
    folder: PathBuf,
    place: PathBuf,
    // Before the lock goes the folder must be gone, or another process would think it left behind.
    lock: Option<File>,
    kept: bool,
}

impl Making {
    /// Begins to make what will be `place`, and clears away what interrupted ones have left.
    pub fn begin(place: &Path) -> Result<Making> {
        let place = &resolved(place);
        let (parent, prefix) = (parent(place), prefix(place)?);
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
        recover(place)?;
        for entry in std::fs::read_dir(parent).map_err(Error::io(parent))?.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
                remove_if_free(&entry.path());
            }
        }
        loop {
            let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent).map_err(Error::io(parent))?.keep();
            // Another process may have taken the folder for litter before the lock was ours.
            if let Some(lock) = locked(&folder)? {
                return Ok(Making { folder, place: place.to_path_buf(), lock: Some(lock), kept: false });
            }
        }
    }

    /// Goes on with what an interrupted process has kept under `name`, or begins. One process at a time can.
    pub fn resume(place: &Path, name: &str) -> Result<Making> {
        let place = &resolved(place);
        let (parent, prefix) = (parent(place), prefix(place)?);
        recover(place)?;
        let folder = parent.join(format!("{prefix}{name}"));
        loop {
            std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
            match locked(&folder)? {
                Some(lock) => return Ok(Making { folder, place: place.to_path_buf(), lock: Some(lock), kept: false }),
                None if folder.exists() => {
                    return Err(Error::Busy(format!(
                        "{}: another process is at work there; wait for it to finish, or stop it",
                        folder.display()
                    )));
                }
                None => {}
            }
        }
    }

    /// Where to make it: a path in the folder, with nothing there yet.
    pub fn path(&self) -> PathBuf {
        self.folder.join("new")
    }

    /// The folder, for notes on what is being made.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Leaves it for [`Making::resume`].
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Puts what was made in its place. What was there is removed after; on Linux and macOS there is no moment at which
    /// nothing is.
    pub fn finish(self) -> Result<()> {
        let (new, place) = (self.path(), &self.place);
        let there = place.symlink_metadata().is_ok();
        // An empty directory may be renamed over; anything else must be exchanged.
        if there && std::fs::remove_dir(place).is_err() {
            match exchange(&new, place) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {
                    let old = old_name(place, &prefix(place)?);
                    std::fs::rename(place, &old).map_err(Error::io(place))?;
                    if let Err(e) = std::fs::rename(&new, place) {
                        let _ = std::fs::rename(&old, place);
                        return Err(Error::io(place)(e));
                    }
                    sync_directory(parent(place))?;
                    let _ = std::fs::remove_dir_all(&old);
                }
                Err(e) => return Err(Error::io(place)(e)),
            }
        } else {
            std::fs::rename(&new, place).map_err(Error::io(place))?;
        }
        sync_directory(parent(place))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
        self.lock.take();
    }
}

/// Behind a link lies what is to be replaced.
fn resolved(place: &Path) -> PathBuf {
    std::fs::canonicalize(place).unwrap_or_else(|_| place.to_path_buf())
}

/// How the names of the folders begin in which `place` is made.
fn prefix(place: &Path) -> Result<String> {
    let name = place
        .file_name()
        .ok_or_else(|| Error::config(format!("{} has no name of its own; name a new directory", place.display())))?;
    Ok(format!(".{}.micpq-", name.to_string_lossy()))
}

/// Where the old one lies for the moment in which systems without an exchange have neither in place. No folder of the
/// making begins so, that it is never taken for litter.
fn old_name(place: &Path, prefix: &str) -> PathBuf {
    parent(place).join(format!("{}.old", prefix.trim_end_matches('-')))
}

/// Brings back what was in a place when its successor never came. Whoever looks at what is there before replacing it
/// calls this first.
pub fn recover(place: &Path) -> Result<()> {
    let old = old_name(place, &prefix(place)?);
    if !old.exists() {
        return Ok(());
    }
    if place.exists() {
        std::fs::remove_dir_all(&old).map_err(Error::io(&old))
    } else {
        std::fs::rename(&old, place).map_err(Error::io(place))
    }
}

/// The lock of a folder that is there; none where another process has it or has removed the folder.
fn locked(folder: &Path) -> Result<Option<File>> {
    let file = match File::open(folder) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(folder)(e)),
    };
    match file.try_lock() {
        Ok(()) => Ok(folder.exists().then_some(file)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        // A file system without locks: nothing can be told of others there, and nothing of theirs is removed.
        Err(std::fs::TryLockError::Error(_)) => Ok(Some(file)),
    }
}

fn remove_if_free(folder: &Path) {
    if let Ok(file) = File::open(folder)
        && file.try_lock().is_ok()
    {
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn exchange(a: &Path, b: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).map_err(|e| match e {
        Errno::INVAL | Errno::NOSYS | Errno::NOTSUP => std::io::ErrorKind::Unsupported.into(),
        e => e.into(),
    })
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn exchange(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn make(place: &Path, word: &str) {
        let making = Making::begin(place).unwrap();
        std::fs::create_dir(making.path()).unwrap();
        std::fs::write(making.path().join("word"), word).unwrap();
        making.finish().unwrap();
        assert_eq!(std::fs::read_to_string(place.join("word")).unwrap(), word);
    }

    #[test]
    fn the_new_takes_the_place_of_the_old_and_nothing_is_left_beside() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/er/index");
        make(&place, "first");
        make(&place, "second");
        assert_eq!(names(place.parent().unwrap()), ["index"]);
        // Given up: nothing happened.
        let making = Making::begin(&place).unwrap();
        std::fs::create_dir(making.path()).unwrap();
        drop(making);
        assert_eq!(names(place.parent().unwrap()), ["index"]);
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        make(&empty, "third");
        assert!(Making::begin(Path::new("/")).is_err());
    }

    #[test]
    fn litter_of_the_dead_is_cleared_and_that_of_the_living_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("index");
        let litter = dir.path().join(".index.micpq-abc");
        std::fs::create_dir_all(litter.join("new")).unwrap();
        let other = dir.path().join(".another.micpq-abc");
        std::fs::create_dir(&other).unwrap();
        let alive = Making::begin(&place).unwrap();
        assert!(!litter.exists() && other.exists());
        make(&place, "beside it");
        assert!(alive.folder().exists());
        drop(alive);
        assert_eq!(names(dir.path()), [".another.micpq-abc", "index"]);
    }

    #[test]
    fn an_old_one_without_its_successor_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("index");
        let old = dir.path().join(".index.micpq.old");
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("word"), "kept").unwrap();
        drop(Making::begin(&place).unwrap());
        assert_eq!(std::fs::read_to_string(place.join("word")).unwrap(), "kept");
        std::fs::create_dir(&old).unwrap();
        drop(Making::begin(&place).unwrap());
        assert_eq!(names(dir.path()), ["index"]);
    }

    #[test]
    fn what_is_kept_is_resumed_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("index");
        make(&place, "old");
        let making = Making::resume(&place, "migration").unwrap();
        std::fs::create_dir(making.path()).unwrap();
        assert!(matches!(Making::resume(&place, "migration"), Err(Error::Busy(_))));
        making.keep();
        let making = Making::resume(&place, "migration").unwrap();
        assert!(making.path().exists());
        std::fs::write(making.path().join("word"), "new").unwrap();
        making.finish().unwrap();
        assert_eq!(std::fs::read_to_string(place.join("word")).unwrap(), "new");
        assert_eq!(names(dir.path()), ["index"]);
    }
}
