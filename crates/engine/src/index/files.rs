//! Files of the store. Each is compared with its checksum once before it is used.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tantivy::HasLen;
use tantivy::directory::{FileHandle, OwnedBytes};

use crate::{Error, Result};

pub(super) const RESTORE: &str = "restore the index from a copy or build it again";

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

/// A memory-mapped segment file. It never changes, so one check is enough.
pub(super) struct StoreFile {
    path: PathBuf,
    mapped: Arc<dyn FileHandle>,
    begun: AtomicBool,
    found: OnceLock<std::result::Result<(), String>>,
}

impl StoreFile {
    pub fn new(path: PathBuf, mapped: Arc<dyn FileHandle>) -> StoreFile {
        StoreFile { path, mapped, begun: AtomicBool::new(false), found: OnceLock::new() }
    }

    /// Compares all bytes with the checksum, once, and refuses a damaged file.
    pub fn check(&self) -> Result<()> {
        let compare = || {
            let bytes = self.mapped.read_bytes(0..self.mapped.len()).map_err(|e| e.to_string())?;
            let (footer, end) = read_footer(&bytes)?;
            // Read through the file: what is read through the map stays in the memory of this process.
            let found = checksum(&self.path, bytes.len(), end).unwrap_or_else(|| crc32fast::hash(&bytes[..end]));
            footer.compare(found)
        };
        self.found.get_or_init(compare).clone().map_err(|problem| damaged(&self.path, &problem))
    }

    /// Whether the check has finished.
    pub fn is_compared(&self) -> bool {
        self.found.get().is_some()
    }

    /// Like [`StoreFile::check`], for a file that is about to be read. A large file is checked by its own thread and
    /// counts as sound until that thread ends.
    pub fn check_before_reading(self: &Arc<Self>) -> Result<()> {
        /// One file at a time: they share one disk.
        static AT_WORK: Mutex<()> = Mutex::new(());
        if self.mapped.len() <= MAX_WAITED_FOR || self.is_compared() {
            return self.check();
        }
        if self.begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let file = self.clone();
        let work = move || {
            let _exclusive = AT_WORK.lock();
            let _ = file.check();
        };
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
