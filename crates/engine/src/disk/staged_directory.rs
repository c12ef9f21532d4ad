//! Directories that appear whole or not at all.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Replaces, beside, create_directories, parent, sync_directory, sync_tree};
use crate::{Error, Result};

/// A directory that is written beside its path and put there in one step when it is complete.
///
/// It is written in a hidden, locked folder beside its path. The folder of a killed process has a free lock: the next process
/// that writes the same directory removes it.
#[derive(Debug)]
pub struct StagedDirectory {
    folder: PathBuf,
    place: PathBuf,
    replaces: Replaces,
    // Released after the folder is removed, or another process would take the folder for litter.
    lock: Option<File>,
    kept: bool,
}

impl StagedDirectory {
    /// Begins a directory for the path `place`, and removes the folders of killed processes. A path that holds anything but
    /// what `replaces` allows is refused, here and in [`StagedDirectory::finish`].
    pub fn begin(place: &Path, replaces: Replaces) -> Result<StagedDirectory> {
        let place = &resolved(place)?;
        let (parent, prefix) = (parent(place), prefix(place)?);
        create_directories(parent)?;
        recover(place)?;
        replaces.check(place)?;
        clear_folders(place, None)?;
        loop {
            let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent).map_err(Error::io(parent))?.keep();
            // Another process may have taken the folder for litter before the lock was ours.
            if let Some(lock) = locked(&folder)? {
                return Ok(StagedDirectory { folder, place: place.clone(), replaces, lock: Some(lock), kept: false });
            }
        }
    }

    /// Continues the directory that an interrupted process left under `name`, or begins one. Only one process at a time can.
    pub fn resume(place: &Path, name: &str, replaces: Replaces) -> Result<StagedDirectory> {
        let place = &resolved(place)?;
        let (parent, prefix) = (parent(place), prefix(place)?);
        recover(place)?;
        replaces.check(place)?;
        let folder = parent.join(format!("{prefix}{name}"));
        loop {
            create_directories(&folder)?;
            match locked(&folder)? {
                Some(lock) => {
                    return Ok(StagedDirectory {
                        folder,
                        place: place.clone(),
                        replaces,
                        lock: Some(lock),
                        kept: false,
                    });
                }
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

    /// The path to write to: inside the folder, with nothing there yet.
    pub fn path(&self) -> PathBuf {
        self.folder.join("new")
    }

    /// The folder, for files beside the directory itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Leaves it for [`StagedDirectory::resume`].
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Puts the directory at its path and removes the old one after. On Linux and macOS the path is never empty. If something
    /// else has come to the path meanwhile, the new directory is put beside it. After an error the old directory is at the path
    /// again.
    pub fn finish(mut self) -> Result<()> {
        let (new, place) = (self.path(), &self.place.clone());
        if let Err(taken) = self.replaces.check(place) {
            let beside =
                (1..).map(|n| beside(place, &format!(".new{n}"))).find(|path| path.symlink_metadata().is_err());
            let beside = beside.expect("a name that is free");
            std::fs::rename(&new, &beside).map_err(Error::io(&beside))?;
            return Err(Error::format(&beside, format!("was made, but could not be put in its place: {taken}")));
        }
        // Before the name is: a name that survives a power cut must not lead to half a directory.
        sync_tree(&new)?;
        let put = Put::at(&new, place)?;
        if let Err(error) = sync_directory(parent(place)).and_then(|()| sync_directory(&self.folder)) {
            // The disk has either directory at the path, and nobody knows which. So neither is removed: the next process that
            // writes there clears the folder, after a sync that succeeds.
            self.kept = true;
            put.undo(&new, place);
            return Err(error);
        }
        if let Put::Beside(old) = put {
            let _ = std::fs::remove_dir_all(&old);
        }
        Ok(())
    }
}

/// How a new directory came to its path.
enum Put {
    /// Nothing was there, or an empty directory.
    Renamed { was_empty: bool },
    /// Exchanged with what was there.
    Exchanged,
    /// What was there has this name now, on systems without an exchange.
    Beside(PathBuf),
}

impl Put {
    fn at(new: &Path, place: &Path) -> Result<Put> {
        // An empty directory is removed and renamed over; anything else is exchanged.
        let was_empty = std::fs::remove_dir(place).is_ok();
        if was_empty || place.symlink_metadata().is_err() {
            std::fs::rename(new, place).map_err(Error::io(place))?;
            return Ok(Put::Renamed { was_empty });
        }
        match exchange(new, place) {
            Ok(()) => Ok(Put::Exchanged),
            Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {
                let old = old_name(place, &prefix(place)?);
                std::fs::rename(place, &old).map_err(Error::io(place))?;
                if let Err(e) = std::fs::rename(new, place) {
                    let _ = std::fs::rename(&old, place);
                    return Err(Error::io(place)(e));
                }
                Ok(Put::Beside(old))
            }
            Err(e) => Err(Error::io(place)(e)),
        }
    }

    /// Puts the old directory back. If this fails too, the new one stays; both are complete.
    fn undo(&self, new: &Path, place: &Path) {
        let _ = match self {
            Put::Renamed { was_empty: false } => std::fs::rename(place, new),
            Put::Renamed { was_empty: true } => std::fs::rename(place, new).and_then(|()| std::fs::create_dir(place)),
            Put::Exchanged => exchange(new, place),
            Put::Beside(old) => std::fs::rename(place, new).and_then(|()| std::fs::rename(old, place)),
        };
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
        self.lock.take();
    }
}

/// Follows a link. [`Replaces::check`] refuses a link to nothing.
fn resolved(place: &Path) -> Result<PathBuf> {
    match std::fs::canonicalize(place) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(place.to_path_buf()),
        other => other.map_err(Error::io(place)),
    }
}

/// Prefix of the names of the staged folders of `place`.
fn prefix(place: &Path) -> Result<String> {
    let name = place
        .file_name()
        .ok_or_else(|| Error::config(format!("{} has no name of its own; name a new directory", place.display())))?;
    Ok(format!(".{}.micpq-", name.to_string_lossy()))
}

/// Path of the old directory for the moment in which systems without an exchange have neither at its path. No staged
/// directory has such a name, so it is never removed as litter.
fn old_name(place: &Path, prefix: &str) -> PathBuf {
    parent(place).join(format!("{}.old", prefix.trim_end_matches('-')))
}

/// Restores the old directory when its successor never came. Callers that look at a path before replacing it call this first.
pub fn recover(place: &Path) -> Result<()> {
    let place = &resolved(place)?;
    let old = old_name(place, &prefix(place)?);
    if !old.exists() {
        return Ok(());
    }
    if place.exists() {
        std::fs::remove_dir_all(&old).map_err(Error::io(&old))
    } else {
        std::fs::rename(&old, place).map_err(Error::io(place))?;
        sync_directory(parent(place))
    }
}

/// Removes the folders in which killed processes were making what should be at `place`, but for the one of this `name`,
/// which can be resumed.
pub fn clear_folders(place: &Path, name: Option<&str>) -> Result<()> {
    let place = &resolved(place)?;
    let (parent, prefix) = (parent(place), prefix(place)?);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(parent).map_err(Error::io(parent))? {
        let entry = entry.map_err(Error::io(parent))?;
        let rest = entry.file_name().to_str().and_then(|found| found.strip_prefix(&prefix).map(str::to_owned));
        if rest.is_some_and(|rest| Some(rest.as_str()) != name) {
            found.push(entry.path());
        }
    }
    if !found.is_empty() {
        // A folder may hold the directory that the disk still has at the path (see `StagedDirectory::finish`).
        sync_directory(parent)?;
    }
    found.iter().for_each(|folder| remove_if_free(folder));
    Ok(())
}

/// The lock of a folder; `None` where another process has it or has removed the folder.
fn locked(folder: &Path) -> Result<Option<File>> {
    let file = match open_to_lock(folder) {
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

/// What the lock of a folder is held on: the folder itself.
#[cfg(not(windows))]
fn open_to_lock(folder: &Path) -> std::io::Result<File> {
    File::open(folder)
}

/// What the lock of a folder is held on. Windows has no locks on directories, so a file inside has it.
#[cfg(windows)]
fn open_to_lock(folder: &Path) -> std::io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(folder.join("lock"))
}

fn remove_if_free(folder: &Path) {
    if let Ok(file) = open_to_lock(folder)
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

    /// A directory that looks like an index, with a text in it.
    fn lay(dir: &Path, word: &str) {
        std::fs::create_dir_all(dir.join("store")).unwrap();
        let manifest = serde_json::json!({ "format": 4, "store": "all", "model": word, "files": {} });
        std::fs::write(dir.join("index.json"), manifest.to_string()).unwrap();
    }

    fn word(dir: &Path) -> String {
        let manifest = std::fs::read_to_string(dir.join("index.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&manifest).unwrap()["model"].as_str().unwrap().to_owned()
    }

    fn make(place: &Path, text: &str) {
        let staged = StagedDirectory::begin(place, Replaces::Index).unwrap();
        lay(&staged.path(), text);
        staged.finish().unwrap();
        assert_eq!(word(place), text);
    }

    #[test]
    fn finish_replaces_the_old_directory_and_leaves_no_litter() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/er/index");
        make(&place, "first");
        make(&place, "second");
        assert_eq!(names(place.parent().unwrap()), ["index"]);
        // Given up: nothing happened.
        let staged = StagedDirectory::begin(&place, Replaces::Index).unwrap();
        std::fs::create_dir(staged.path()).unwrap();
        drop(staged);
        assert_eq!(names(place.parent().unwrap()), ["index"]);
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        make(&empty, "third");
        assert!(StagedDirectory::begin(Path::new("/"), Replaces::Index).is_err());
    }

    #[test]
    fn after_a_failed_sync_the_old_directory_is_back_and_both_are_kept() {
        for old in ["an index", "an empty directory", "nothing"] {
            let dir = tempfile::tempdir().unwrap();
            let place = dir.path().join("index");
            match old {
                "an index" => make(&place, "old"),
                "an empty directory" => std::fs::create_dir(&place).unwrap(),
                _ => {}
            }
            let staged = StagedDirectory::begin(&place, Replaces::Index).unwrap();
            lay(&staged.path(), "new");
            let folder = staged.folder().to_path_buf();
            crate::disk::failing::syncs_of(dir.path());
            let said = staged.finish().unwrap_err().to_string();
            assert!(said.contains("no sync of this directory"), "{said}");
            match old {
                "an index" => assert_eq!(word(&place), "old"),
                "an empty directory" => assert!(names(&place).is_empty()),
                _ => assert!(!place.exists()),
            }
            // A power cut may bring the new directory back, so it is kept until a sync succeeds.
            assert_eq!(word(&folder.join("new")), "new");
            assert!(StagedDirectory::begin(&place, Replaces::Index).is_err());
            assert_eq!(word(&folder.join("new")), "new");
            crate::disk::failing::none_of(dir.path());
            make(&place, "newer");
            assert_eq!(names(dir.path()), ["index"]);
        }
    }

    #[test]
    fn begin_removes_the_folders_of_dead_processes_only() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("index");
        let litter = dir.path().join(".index.micpq-abc");
        std::fs::create_dir_all(litter.join("new")).unwrap();
        let other = dir.path().join(".another.micpq-abc");
        std::fs::create_dir(&other).unwrap();
        let alive = StagedDirectory::begin(&place, Replaces::Index).unwrap();
        assert!(!litter.exists() && other.exists());
        make(&place, "beside it");
        assert!(alive.folder().exists());
        drop(alive);
        assert_eq!(names(dir.path()), [".another.micpq-abc", "index"]);
    }

    #[test]
    fn recover_restores_the_old_directory_without_a_successor() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("index");
        let old = dir.path().join(".index.micpq.old");
        lay(&old, "kept");
        drop(StagedDirectory::begin(&place, Replaces::Index).unwrap());
        assert_eq!(word(&place), "kept");
        std::fs::create_dir(&old).unwrap();
        drop(StagedDirectory::begin(&place, Replaces::Index).unwrap());
        assert_eq!(names(dir.path()), ["index"]);
    }

    #[test]
    fn a_kept_directory_is_resumed_by_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("index");
        make(&place, "old");
        let staged = StagedDirectory::resume(&place, "migration", Replaces::Index).unwrap();
        std::fs::create_dir(staged.path()).unwrap();
        assert!(matches!(StagedDirectory::resume(&place, "migration", Replaces::Index), Err(Error::Busy(_))));
        staged.keep();
        let staged = StagedDirectory::resume(&place, "migration", Replaces::Index).unwrap();
        assert!(staged.path().exists());
        lay(&staged.path(), "new");
        staged.finish().unwrap();
        assert_eq!(word(&place), "new");
        assert_eq!(names(dir.path()), ["index"]);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_allowed_kind_or_nothing_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        let refused = |name: &str, replaces: Replaces| {
            let before = names(dir.path());
            let said = StagedDirectory::begin(&place(name), replaces).unwrap_err().to_string();
            assert_eq!(names(dir.path()), before, "{name}");
            said
        };
        lay(&place("index"), "mine");
        lay(&place("mixed"), "mine");
        std::fs::write(place("mixed/corpus.jsonl"), "{}").unwrap();
        std::fs::write(place("file"), "letter").unwrap();
        std::fs::create_dir(place("letters")).unwrap();
        ["a", "b", "c", "d"].iter().for_each(|name| std::fs::write(place("letters").join(name), "letter").unwrap());
        std::fs::create_dir(place("encoder")).unwrap();
        std::fs::write(place("encoder/config.json"), "{\"hidden_size\": 384}").unwrap();
        std::fs::write(place("encoder/model.safetensors"), "").unwrap();
        std::os::unix::fs::symlink(place("letters"), place("link")).unwrap();
        std::os::unix::fs::symlink(place("nowhere"), place("dangling")).unwrap();

        for replaces in [Replaces::Nothing, Replaces::Index, Replaces::Model, Replaces::Encoder] {
            assert!(refused("file", replaces).contains("it is a file"));
            assert!(refused("letters", replaces).contains("it holds a, b, c and 1 more"));
            assert!(refused("link", replaces).contains("it holds a, b, c and 1 more"));
            refused("dangling", replaces);
        }
        assert!(refused("index", Replaces::Nothing).contains("is taken: it holds index.json, store"));
        assert!(refused("mixed", Replaces::Index).contains("it holds corpus.jsonl beside one"));
        assert!(refused("encoder", Replaces::Model).contains("is not of a micpq model"));
        assert!(
            refused("index", Replaces::Model).contains("is not a model: it holds index.json, store and no config.json")
        );
    }

    #[test]
    fn a_folder_with_the_names_of_an_index_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("mine");
        let refused = || {
            let said = StagedDirectory::begin(&place, Replaces::Index).unwrap_err().to_string();
            assert!(said.contains("only an index or an empty directory is replaced"), "{said}");
            said
        };
        // A web page's index and a folder of letters.
        lay(&place, "x");
        for text in ["", "mine", "{}", "{\"format\": 4}", "{\"format\": \"4\", \"store\": {}, \"files\": []}"] {
            std::fs::write(place.join("index.json"), text).unwrap();
            assert!(refused().contains("its index.json is not of a micpq index"));
        }
        // An index to which somebody has added files of his own, in any of its folders.
        lay(&place, "x");
        let id = "0123456789abcdef0123456789abcdef";
        std::fs::write(place.join("store").join(format!("{id}.7.del")), "").unwrap();
        for name in ["meta.json", ".managed.json", ".tantivy-writer.lock", ".making-AbC", ".tmpAbC"] {
            std::fs::write(place.join("store").join(name), "").unwrap();
        }
        for (folder, names) in [
            ("store", vec!["letter.txt".to_owned(), "letter".into(), format!("{id}0.store")]),
            ("model", vec!["weights.bin".into()]),
            ("codes", vec![format!("{id}.txt"), "mine.codes".into()]),
            ("saved", vec!["letter.txt".into()]),
        ] {
            std::fs::create_dir_all(place.join(folder)).unwrap();
            for name in names {
                std::fs::write(place.join(folder).join(&name), "letter").unwrap();
                assert!(refused().contains(&format!("it holds {folder}/{name} beside one")));
                std::fs::remove_file(place.join(folder).join(&name)).unwrap();
            }
        }
        std::fs::remove_dir(place.join("codes")).unwrap();
        std::fs::write(place.join("codes"), "a file").unwrap();
        assert!(refused().contains("it holds codes/ beside one"));
        std::fs::remove_file(place.join("codes")).unwrap();
        make(&place, "new");
    }

    #[test]
    fn a_file_that_came_to_the_path_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("index");
        for round in 1..3 {
            let staged = StagedDirectory::begin(&dir.path().join(format!("index{round}")), Replaces::Index).unwrap();
            lay(&staged.path(), "new");
            let place = dir.path().join(format!("index{round}"));
            std::fs::write(&place, "letter").unwrap();
            let said = staged.finish().unwrap_err().to_string();
            assert!(said.contains(".new1: was made") && said.contains("it is a file"), "{said}");
            assert_eq!(std::fs::read_to_string(&place).unwrap(), "letter");
            assert_eq!(word(&beside(&place, ".new1")), "new");
        }
        assert!(!place.exists());
    }
}
