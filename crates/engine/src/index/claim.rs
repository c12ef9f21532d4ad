//! Reserves the path of a new index.

use std::path::{Path, PathBuf};

use tantivy::directory::DirectoryLock;

use super::manifest::Manifest;
use super::{Index, writer};
use crate::disk::{self, Replaces, StagedDirectory};
use crate::{Error, Result};

/// A path reserved for an index that is being built. Either nothing exists there, or an index that will be replaced.
/// Nobody writes to the old index until [`Claim::finish`] puts the new one in its place, or until the claim is dropped
/// and the old one stays.
pub struct Claim {
    place: PathBuf,
    replace: bool,
    staged: StagedDirectory,
    // Dropped after `staged`: the old index is removed before its lock is released.
    lock: Option<DirectoryLock>,
}

impl Claim {
    /// Reserves `place`. Accepts a missing path, an empty directory and, with `replace`, an index. Refuses anything
    /// else, and an index with an open writer ([`Error::Busy`]).
    pub fn new(place: &Path, replace: bool) -> Result<Claim> {
        disk::recover(place)?;
        let lock = lock(place, replace)?;
        let staged = StagedDirectory::begin(place, if replace { Replaces::Index } else { Replaces::Nothing })?;
        Ok(Claim { place: place.to_path_buf(), replace, staged, lock })
    }

    /// Where to build the index; nothing exists there yet.
    pub fn path(&self) -> PathBuf {
        self.staged.path()
    }

    /// A folder for intermediate files, removed with the claim.
    pub fn folder(&self) -> &Path {
        self.staged.folder()
    }

    /// Moves the new index to its final path.
    pub fn finish(mut self) -> Result<()> {
        // An index may have been created since at a path that was empty.
        if self.lock.is_none() && self.replace {
            self.lock = lock(&self.place, true)?;
        }
        self.staged.finish()
    }
}

/// The writer lock of the index at `place`, if there is an index. An index that cannot be opened has no writer.
fn lock(place: &Path, replace: bool) -> Result<Option<DirectoryLock>> {
    if !Manifest::path(place).exists() {
        return Ok(None);
    }
    if !replace {
        return Err(Error::format(place, "already holds an index; add to it, name another place or ask to replace it"));
    }
    Replaces::Index.check(place)?;
    match Index::open_store(place, None) {
        Ok(old) => writer::lock(&old, place).map(Some),
        Err(_) => Ok(None),
    }
}
