//! The engine's only `unsafe`: read-only memory maps.

use std::fs::File;
use std::path::Path;

use crate::{Error, Result};

/// A read-only map of a whole file.
///
/// The files we map are written under a temporary name, synced, renamed into place and never changed afterwards
/// (`docs/format.md`), which is what makes the map sound; a file truncated by a foreign hand while mapped raises SIGBUS,
/// as it does for every program that maps files.
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps `path`; an empty file gives an empty slice.
    pub fn open(path: &Path) -> Result<Map> {
        let file = File::open(path).map_err(Error::io(path))?;
        // SAFETY: see the type: files are immutable once they carry their final name.
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
