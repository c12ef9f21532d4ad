//! A model of power cuts, for tests. A disk keeps a file's bytes once the file was synced, and a name once its directory was.
//! Before every sync the model looks at the real files, so everything that is not synced counts as lost.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::dropout::mix;
use parking_lot::Mutex;

/// The disks that are being modelled.
static WATCHED: Mutex<Vec<Arc<Inner>>> = Mutex::new(Vec::new());

/// Everything below a directory, as the disk has it.
pub(crate) struct Disk {
    inner: Arc<Inner>,
}

struct Inner {
    root: PathBuf,
    // Hard links to every file seen: the system would otherwise reuse the inode number of a deleted file.
    links: tempfile::TempDir,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    now: Cut,
    cuts: Vec<Cut>,
    directories: HashMap<u64, File>,
}

type Listing = Arc<BTreeMap<OsString, Entry>>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    File(u64),
    Directory(u64),
}

/// The contents of the disk at one moment, by inode, and the unsynced contents in memory.
#[derive(Clone, Default)]
pub(crate) struct Cut {
    root: u64,
    bytes: HashMap<u64, Arc<[u8]>>,
    names: HashMap<u64, Listing>,
    unsynced_bytes: HashMap<u64, Arc<[u8]>>,
    unsynced_names: HashMap<u64, Listing>,
}

/// Called before a file or directory is synced.
pub(crate) fn before_sync(path: &Path) {
    let watched = WATCHED.lock().clone();
    if watched.is_empty() {
        return;
    }
    let Ok(path) = std::fs::canonicalize(path) else { return };
    for disk in watched.iter().filter(|disk| path.starts_with(&disk.root)) {
        disk.sync(&path);
    }
}

impl Disk {
    /// Begins to model `root`. Its present contents count as synced.
    pub fn watch(root: &Path) -> Disk {
        let root = std::fs::canonicalize(root).unwrap();
        let links = tempfile::tempdir_in(root.parent().unwrap()).unwrap();
        let inner = Arc::new(Inner { root: root.clone(), links, state: Mutex::default() });
        inner.state.lock().now.root = std::fs::metadata(&root).unwrap().ino();
        inner.sync(&root);
        WATCHED.lock().push(inner.clone());
        Disk { inner }
    }

    /// Syncs seen so far. Only a sync changes the modelled disk.
    pub fn syncs(&self) -> usize {
        self.inner.state.lock().cuts.len()
    }

    /// The disk after each sync.
    pub fn cuts(&self) -> Vec<Cut> {
        self.inner.state.lock().cuts.clone()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut watched = WATCHED.lock();
        watched.retain(|inner| !Arc::ptr_eq(inner, &self.inner));
    }
}

impl Inner {
    fn sync(&self, path: &Path) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let (now, directories) = (&mut state.now, &mut state.directories);
        (now.unsynced_bytes, now.unsynced_names) = (HashMap::new(), HashMap::new());
        self.look(&self.root, now, directories);
        let Ok(data) = std::fs::metadata(path) else { return };
        if data.is_dir() {
            let listing = now.unsynced_names.get(&data.ino()).cloned().unwrap_or_default();
            now.names.insert(data.ino(), listing);
        } else if let Some(bytes) = now.unsynced_bytes.get(&data.ino()).cloned() {
            now.bytes.insert(data.ino(), bytes);
        }
        state.cuts.push(state.now.clone());
    }

    /// Records what a reader would find below `dir`. Files that disappear meanwhile are left out.
    fn look(&self, dir: &Path, now: &mut Cut, directories: &mut HashMap<u64, File>) {
        let (Ok(open), Ok(entries)) = (File::open(dir), std::fs::read_dir(dir)) else { return };
        let number = open.metadata().unwrap().ino();
        directories.entry(number).or_insert(open);
        let mut listing = BTreeMap::new();
        for entry in entries.flatten() {
            let Ok(data) = entry.metadata() else { continue };
            let number = data.ino();
            if data.is_dir() {
                listing.insert(entry.file_name(), Entry::Directory(number));
                self.look(&entry.path(), now, directories);
                continue;
            }
            let link = self.links.path().join(number.to_string());
            let linked = link.exists() || std::fs::hard_link(entry.path(), &link).is_ok();
            // Another file may have taken the name since its metadata was read.
            if !linked || std::fs::metadata(&link).unwrap().ino() != number {
                let _ = std::fs::remove_file(&link);
                continue;
            }
            listing.insert(entry.file_name(), Entry::File(number));
            let bytes: Vec<u8> = std::fs::read(&link).unwrap();
            // A file is written once: the same length means the same bytes.
            let known = now.bytes.get(&number).filter(|known| known.len() == bytes.len());
            let bytes = known.cloned().unwrap_or_else(|| bytes.into());
            now.unsynced_bytes.insert(number, bytes);
        }
        now.unsynced_names.insert(number, Arc::new(listing));
    }
}

impl Cut {
    /// Writes the contents after the cut to `to`. With a `seed`, each unsynced name and file may have reached the disk anyway,
    /// a file also in part.
    pub fn rebuild(&self, to: &Path, seed: Option<u64>) {
        self.directory(self.root, to, seed.unwrap_or_default(), seed.is_some());
    }

    fn directory(&self, number: u64, to: &Path, seed: u64, luck: bool) {
        std::fs::create_dir_all(to).unwrap();
        let none = Listing::default();
        let synced = self.names.get(&number).unwrap_or(&none);
        let seen = self.unsynced_names.get(&number).unwrap_or(&none);
        for (i, name) in synced.keys().chain(seen.keys().filter(|n| !synced.contains_key(*n))).enumerate() {
            let seed = mix(seed, i as u64 + 1);
            let listing = if luck && seed.is_multiple_of(2) { seen } else { synced };
            match listing.get(name) {
                None => {}
                Some(Entry::Directory(number)) => self.directory(*number, &to.join(name), mix(seed, 7), luck),
                Some(Entry::File(number)) => {
                    let synced = self.bytes.get(number).cloned();
                    let bytes = synced.unwrap_or_else(|| match self.unsynced_bytes.get(number) {
                        Some(bytes) if luck => torn(bytes, mix(seed, 8)),
                        _ => Arc::default(),
                    });
                    std::fs::write(to.join(name), &bytes).unwrap();
                }
            }
        }
    }
}

/// All bytes, a prefix of them, or a prefix followed by zeros.
fn torn(bytes: &Arc<[u8]>, seed: u64) -> Arc<[u8]> {
    let len = mix(seed, 1) as usize % (bytes.len() + 1);
    match seed % 3 {
        0 => bytes.clone(),
        1 => bytes[..len].into(),
        _ => bytes[..len].iter().copied().chain(std::iter::repeat_n(0, bytes.len() - len)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_keeps_only_synced_files_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("disk");
        std::fs::create_dir(&root).unwrap();
        let disk = Disk::watch(&root);
        let left = |n: usize| {
            let to = tempfile::tempdir().unwrap();
            disk.cuts()[n].rebuild(to.path(), None);
            let mut left: Vec<(String, String)> = std::fs::read_dir(to.path())
                .unwrap()
                .map(|e| e.unwrap())
                .map(|e| (e.file_name().into_string().unwrap(), std::fs::read_to_string(e.path()).unwrap()))
                .collect();
            left.sort();
            left
        };
        let is = |n: usize, expected: &[(&str, &str)]| {
            let expected: Vec<_> = expected.iter().map(|(n, b)| (n.to_string(), b.to_string())).collect();
            assert_eq!(left(n), expected, "after sync {n}");
        };
        std::fs::write(root.join("lost"), "never synced").unwrap();
        crate::disk::write_synced(&root.join("a"), b"one").unwrap();
        is(1, &[]);
        crate::disk::sync_directory(&root).unwrap();
        is(2, &[("a", "one"), ("lost", "")]);
        crate::disk::replace(&root.join("a"), b"two").unwrap();
        is(disk.syncs() - 2, &[("a", "one"), ("lost", "")]);
        is(disk.syncs() - 1, &[("a", "two"), ("lost", "")]);
        std::fs::remove_file(root.join("a")).unwrap();
        is(disk.syncs() - 1, &[("a", "two"), ("lost", "")]);
    }
}
