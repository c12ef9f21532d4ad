//! The folder of saved queries in an index directory.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::SavedQuery;
use crate::{Error, Result, disk};

const FORMAT: u32 = 1;
const RESTORE: &str = "restore it from a backup, or remove it and save the queries again";

/// The folder, a part of the index directory.
const FOLDER: &str = disk::SAVED;

/// Content of `queries.json`, in the order of names.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub queries: Vec<SavedQuery>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    queries: Vec<SavedQuery>,
    /// CRC-32 of the queries as compact JSON, in hex.
    crc32: String,
}

impl File {
    fn path(dir: &Path) -> PathBuf {
        dir.join(FOLDER).join("queries.json")
    }

    /// Empty if nothing was saved.
    pub fn read(dir: &Path) -> Result<File> {
        let path = File::path(dir);
        let Some(bytes) = read(&path)? else { return Ok(File::default()) };
        let damaged = |problem: String| Error::format(&path, format!("{problem}; {RESTORE}"));
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|e| damaged(format!("cannot be read: {e}")))?;
        if stored.format != FORMAT {
            return Err(Error::format(
                &path,
                format!("has format {}, this program reads {FORMAT}; use the micpq that wrote it", stored.format),
            ));
        }
        let found = crc32(&stored.queries);
        if found != stored.crc32 {
            return Err(damaged(format!("is damaged: its checksum is {found}, it says {}", stored.crc32)));
        }
        Ok(File { queries: stored.queries })
    }

    /// On disk when it returns.
    pub fn write(self, dir: &Path) -> Result<()> {
        let crc32 = crc32(&self.queries);
        let stored = Stored { format: FORMAT, queries: self.queries, crc32 };
        prepare(dir)?;
        let text = serde_json::to_string_pretty(&stored).expect("plain data has a JSON form") + "\n";
        disk::replace(&File::path(dir), text.as_bytes())
    }
}

fn crc32(queries: &[SavedQuery]) -> String {
    let text = serde_json::to_string(queries).expect("plain data has a JSON form");
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}

fn position_path(dir: &Path) -> PathBuf {
    dir.join(FOLDER).join("position")
}

pub(crate) fn read_position(dir: &Path) -> Result<Option<u64>> {
    let path = position_path(dir);
    let Some(bytes) = read(&path)? else { return Ok(None) };
    let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim_end().parse().ok());
    let problem =
        "is not a number; remove it, and the next run tells the matches of all documents since each query was saved";
    number.map(Some).ok_or_else(|| Error::format(&path, problem))
}

pub(crate) fn write_position(dir: &Path, sequence: u64) -> Result<()> {
    prepare(dir)?;
    disk::replace(&position_path(dir), format!("{sequence}\n").as_bytes())
}

/// Makes the folder, and removes unfinished files of killed processes.
fn prepare(dir: &Path) -> Result<()> {
    let folder = &dir.join(FOLDER);
    disk::create_directories(folder)?;
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let entry = entry.map_err(Error::io(folder))?;
        if entry.file_name().to_string_lossy().starts_with(disk::TEMPORARY) {
            disk::clear_temporary(&entry.path())?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path)(e)),
    }
}

/// Floats as the hex digits of their bytes: JSON numbers would be rounded twice.
pub(super) mod hex_floats {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(vector: &Option<Vec<f32>>, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = vector.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        serializer.serialize_str(&hex::encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<f32>>, D::Error> {
        let bytes = hex::decode(String::deserialize(deserializer)?).map_err(D::Error::custom)?;
        let (values, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(D::Error::custom(format!("a vector of {} bytes", bytes.len())));
        }
        Ok(Some(values.iter().map(|value| f32::from_le_bytes(*value)).collect()))
    }
}
