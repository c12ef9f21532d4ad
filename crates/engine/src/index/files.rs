//! Files of the store. Each is compared with its checksum once before it is read, and again before what is in it is written
//! somewhere else.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tantivy::HasLen;
use tantivy::directory::{FileHandle, OwnedBytes};

use crate::{Error, Result};

pub(super) const RESTORE: &str = "restore the index from a copy or build it again";

/// A comparison in the background that is younger than this is good enough for a merge.
const RECENT: Duration = Duration::from_secs(3600);

/// Bytes above which a file is checked in the background, so that the first search does not wait for gigabytes.
const MAX_WAITED_FOR: usize = 64 << 20;

/// A group of segment files that is read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Ids, codes, insertion order, rerank vectors and attribute values.
    Columns,
    /// The inverted index: finds documents by id, keyword or attribute.
    Terms,
    /// Original texts, labels and attributes.
    Documents,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Columns, Part::Terms, Part::Documents];

    /// File extensions. Delete files are not included: they are checked whenever they are opened.
    pub fn endings(self) -> &'static [&'static str] {
        match self {
            Part::Columns => &["fast"],
            Part::Terms => &["term", "idx", "pos", "fieldnorm"],
            Part::Documents => &["store"],
        }
    }
}

/// A memory-mapped segment file. Nobody writes to it, so one comparison is enough to read from it. The medium may fail later:
/// whoever gives its content a new checksum compares it again.
pub(super) struct StoreFile {
    path: PathBuf,
    mapped: Arc<dyn FileHandle>,
    begun: AtomicBool,
    /// The first comparison.
    found: OnceLock<std::result::Result<(), String>>,
    /// Damage that a later comparison found.
    later: OnceLock<String>,
    merge: Mutex<MergeCheck>,
}

/// The last comparison for a merge of a large file.
#[derive(Default)]
struct MergeCheck {
    running: bool,
    /// Its end, unless a merge has used it or it is too old.
    ended: Option<Instant>,
}

impl StoreFile {
    pub fn new(path: PathBuf, mapped: Arc<dyn FileHandle>) -> StoreFile {
        let (found, later) = (OnceLock::new(), OnceLock::new());
        StoreFile { path, mapped, begun: AtomicBool::new(false), found, later, merge: Mutex::default() }
    }

    fn compare(&self) -> std::result::Result<(), String> {
        let bytes = self.mapped.read_bytes(0..self.mapped.len()).map_err(|e| e.to_string())?;
        let (footer, end) = read_footer(&bytes)?;
        // Read through the file: what is read through the map stays in the memory of this process.
        let found = checksum(&self.path, bytes.len(), end).unwrap_or_else(|| crc32fast::hash(&bytes[..end]));
        footer.compare(found)
    }

    /// Compares all bytes with the checksum, once, and refuses a damaged file.
    pub fn check(&self) -> Result<()> {
        let found = self.found.get_or_init(|| self.compare()).as_ref().err();
        match found.or(self.later.get()) {
            None => Ok(()),
            Some(problem) => Err(damaged(&self.path, problem)),
        }
    }

    /// Compares all bytes with the checksum now, and refuses a damaged file. A file that is damaged now is not read again.
    pub fn check_again(&self) -> Result<()> {
        if let Err(problem) = self.compare() {
            let _ = self.later.set(problem);
        }
        self.check()
    }

    /// Whether the first check has finished.
    #[cfg(test)]
    pub fn is_compared(&self) -> bool {
        self.found.get().is_some()
    }

    /// Like [`StoreFile::check_again`], for a file that is about to be merged. Returns whether it may be merged now: a large
    /// file is compared by its own thread, and the next commit that has a merge to do asks again.
    pub fn check_for_merge(self: &Arc<Self>) -> Result<bool> {
        if self.mapped.len() <= MAX_WAITED_FOR {
            return self.check_again().map(|()| true);
        }
        // A comparison whose result nobody used for so long may be outdated.
        let mut state = self.merge.lock();
        if state.running {
            return Ok(false);
        }
        if let Some(ended) = state.ended.take() {
            // Commits are rarer than that: a short wait hinders nobody.
            return if ended.elapsed() < RECENT { self.check() } else { self.check_again() }.map(|()| true);
        }
        state.running = true;
        drop(state);
        let file = self.clone();
        let work = move || {
            let _ = file.in_turn(|| file.check_again());
            *file.merge.lock() = MergeCheck { running: false, ended: Some(Instant::now()) };
        };
        match std::thread::Builder::new().name("checksums".into()).spawn(work) {
            Ok(_) => Ok(false),
            Err(_) => {
                self.merge.lock().running = false;
                self.check_again().map(|()| true)
            }
        }
    }

    /// One large file at a time: they share one disk.
    fn in_turn<T>(&self, work: impl FnOnce() -> T) -> T {
        static AT_WORK: Mutex<()> = Mutex::new(());
        let _exclusive = AT_WORK.lock();
        work()
    }

    /// Like [`StoreFile::check`], for a file that is about to be read. A large file is checked by its own thread and
    /// counts as sound until that thread ends.
    pub fn check_before_reading(self: &Arc<Self>) -> Result<()> {
        if self.mapped.len() <= MAX_WAITED_FOR || self.found.get().is_some() {
            return self.check();
        }
        if self.begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let file = self.clone();
        let work = move || drop(file.in_turn(|| file.check()));
        match std::thread::Builder::new().name("checksums".into()).spawn(work) {
            Ok(_) => Ok(()),
            Err(_) => self.check(),
        }
    }
}

impl std::fmt::Debug for StoreFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreFile({})", self.path.display())
    }
}

impl HasLen for StoreFile {
    fn len(&self) -> usize {
        self.mapped.len()
    }
}

impl FileHandle for StoreFile {
    fn read_bytes(&self, range: Range<usize>) -> std::io::Result<OwnedBytes> {
        self.mapped.read_bytes(range)
    }
}

pub(super) fn damaged(path: &Path, problem: &str) -> Error {
    Error::format(path, format!("is damaged: {problem}; {RESTORE}"))
}

/// The tantivy version that wrote a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
    index_format_version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Footer {
    version: Version,
    crc: u32,
}

/// Checks the footer and the checksum of a store file and returns the version in the footer. Layout: content, footer as
/// JSON, length of the JSON, the number 1337. Both numbers are four bytes, little-endian.
pub(super) fn footer(bytes: &[u8]) -> std::result::Result<Version, String> {
    let (footer, end) = read_footer(bytes)?;
    footer.compare(crc32fast::hash(&bytes[..end]))?;
    Ok(footer.version)
}

impl Footer {
    fn compare(&self, crc: u32) -> std::result::Result<(), String> {
        if crc != self.crc {
            return Err(format!("its checksum is {crc:08x}, its footer says {:08x}", self.crc));
        }
        Ok(())
    }
}

/// The checksum of the first `end` bytes of a file of `len` bytes; `None` where it cannot be read, or is another.
fn checksum(path: &Path, len: usize, end: usize) -> Option<u32> {
    let mut file = std::fs::File::open(path).ok()?;
    if file.metadata().ok()?.len() != len as u64 {
        return None;
    }
    let (mut hash, mut buffer) = (crc32fast::Hasher::new(), vec![0; end.min(1 << 20)]);
    let mut left = end;
    while left > 0 {
        let piece = &mut buffer[..left.min(1 << 20)];
        file.read_exact(piece).ok()?;
        hash.update(piece);
        left -= piece.len();
    }
    Some(hash.finalize())
}

/// The footer of a store file, and where the content ends.
fn read_footer(bytes: &[u8]) -> std::result::Result<(Footer, usize), String> {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if bytes.len() < 8 || number(bytes.len() - 4) != 1337 {
        return Err("it does not end in a footer; it may be cut short".into());
    }
    let end = bytes.len() - 8;
    let begin = end.checked_sub(number(end) as usize).ok_or("its footer is longer than the file")?;
    let json = &bytes[begin..end];
    let footer: Footer = serde_json::from_slice(json).map_err(|e| format!("its footer cannot be read: {e}"))?;
    if serde_json::to_vec(&footer).is_ok_and(|rewritten| rewritten != json) {
        return Err("its footer is not as it was written".into());
    }
    Ok((footer, begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: usize, harm: bool) -> Arc<StoreFile> {
        let mut bytes = vec![7u8; len];
        let version = serde_json::to_value(tantivy::version()).unwrap();
        let footer = Footer { version: serde_json::from_value(version).unwrap(), crc: crc32fast::hash(&bytes) };
        let json = serde_json::to_vec(&footer).unwrap();
        bytes.extend_from_slice(&json);
        bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&1337u32.to_le_bytes());
        bytes[len / 2] ^= u8::from(harm);
        Arc::new(StoreFile::new("file.store".into(), Arc::new(OwnedBytes::new(bytes))))
    }

    /// A file whose bytes can be damaged while it is open.
    #[derive(Debug)]
    struct Failing(Mutex<Vec<u8>>);

    impl HasLen for Failing {
        fn len(&self) -> usize {
            self.0.lock().len()
        }
    }

    impl FileHandle for Failing {
        fn read_bytes(&self, range: Range<usize>) -> std::io::Result<OwnedBytes> {
            Ok(OwnedBytes::new(self.0.lock()[range].to_vec()))
        }
    }

    #[test]
    fn a_file_that_is_damaged_after_its_first_check_is_not_merged_and_not_read_again() {
        for len in [1000, MAX_WAITED_FOR + 1] {
            let whole = file(len, false);
            let bytes = whole.mapped.read_bytes(0..whole.mapped.len()).unwrap().to_vec();
            let failing = Arc::new(Failing(Mutex::new(bytes)));
            let file = Arc::new(StoreFile::new("file.store".into(), failing.clone()));
            let merged = || loop {
                match file.check_for_merge() {
                    Ok(false) => std::thread::sleep(std::time::Duration::from_millis(1)),
                    other => break other.map(|_| ()),
                }
            };
            file.check().unwrap();
            merged().unwrap();
            merged().unwrap();
            failing.0.lock()[len / 3] ^= 4;
            file.check().unwrap();
            assert!(merged().is_err() && file.check().is_err() && file.check_before_reading().is_err());
            failing.0.lock()[len / 3] ^= 4;
            assert!(file.check_again().is_err(), "what failed once is not trusted again");
        }
    }

    #[test]
    fn a_damaged_large_file_is_refused_once_its_background_check_ends() {
        assert!(file(1000, false).check_before_reading().is_ok());
        assert!(file(1000, true).check_before_reading().is_err());
        let (sound, harmed) = (file(MAX_WAITED_FOR + 1, false), file(MAX_WAITED_FOR + 1, true));
        for file in [&sound, &harmed] {
            assert!(file.check_before_reading().is_ok());
            while !file.is_compared() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        assert!(sound.check_before_reading().is_ok());
        let said = harmed.check_before_reading().unwrap_err().to_string();
        assert!(said.contains("file.store: is damaged") && said.contains("restore the index"), "{said}");
        // `check` waits for the result, whatever the size.
        assert!(file(MAX_WAITED_FOR + 1, true).check().is_err());
    }
}
