//! The engine's only `unsafe`: read-only memory maps.

use std::fs::File;
use std::path::Path;

use crate::{Error, Result};

/// A read-only map of a whole file.
///
/// A mapped file is written under a temporary name, synced, renamed to its final name and never changed afterwards
/// (`docs/format.md`). That makes the map sound. If another program truncates a mapped file, the process gets SIGBUS, as
/// does every program that maps files.
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps `path`. An empty file gives an empty slice.
    pub fn open(path: &Path) -> Result<Map> {
        let file = File::open(path).map_err(Error::io(path))?;
        // SAFETY: see the type: files are immutable once they have their final name.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))?;
        Ok(Map(map))
    }
}

impl std::ops::Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
