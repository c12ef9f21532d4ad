//! The file of the map that is kept with an index: `docs/format.md` has the bytes. What is in it is `crate::map`'s.

use std::path::{Path, PathBuf};

use crate::{Error, Result, disk};

const MAGIC: [u8; 8] = *b"MICPQMPK";
const FORMAT: u32 = 1;
/// Bytes of magic, format and checksum.
const HEAD: usize = 16;

/// Replaces the file of an index.
pub(crate) fn write(dir: &Path, content: &[u8]) -> Result<()> {
    let mut bytes = Vec::with_capacity(HEAD + content.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
    bytes.extend_from_slice(content);
    disk::create_directories(&dir.join(disk::MAP))?;
    disk::replace(&path(dir), &bytes)
}

/// The content; `None` if the index has no map.
pub(crate) fn read(dir: &Path) -> Result<Option<Vec<u8>>> {
    let path = path(dir);
    let mut bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path)(e)),
    };
    let Some((head, content)) = bytes.split_at_checked(HEAD) else {
        return Err(damaged(dir, &format!("is damaged: it has {} bytes, and {HEAD} before the map", bytes.len())));
    };
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    if !head.starts_with(&MAGIC) || number(8) != FORMAT {
        return Err(damaged(dir, &format!("is no map of format {FORMAT}, which this program reads")));
    }
    let (found, said) = (crc32fast::hash(content), number(12));
    if found != said {
        return Err(damaged(dir, &format!("is damaged: its checksum is {found:08x}, it says {said:08x}")));
    }
    Ok(Some(bytes.split_off(HEAD)))
}

/// What is wrong with the file of an index, if it has one.
pub(super) fn problem(dir: &Path) -> Option<Error> {
    read(dir).err()
}

pub(crate) fn damaged(dir: &Path, problem: &str) -> Error {
    Error::format(path(dir), format!("{problem}; remove it, and make the map anew"))
}

fn path(dir: &Path) -> PathBuf {
    dir.join(disk::MAP).join("last")
}
