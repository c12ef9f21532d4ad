//! Reserves the path of a new index.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tantivy::directory::DirectoryLock;

use super::directory::StoreDirectory;
use super::manifest::Manifest;
use super::{STORE, writer};
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

/// The writer lock of the index at `place`, if there is an index. Only a store that is missing has no lock: any other failure
/// may hide a living writer.
fn lock(place: &Path, replace: bool) -> Result<Option<DirectoryLock>> {
    if !exists(&Manifest::path(place))? {
        return Ok(None);
    }
    if !replace {
        return Err(Error::format(place, "already holds an index; add to it, name another place or ask to replace it"));
    }
    Replaces::Index.check(place)?;
    if !exists(&place.join(STORE))? {
        return Ok(None);
    }
    // The lock file alone: a damaged list of segments must not hide who holds the lock.
    let store = super::guarded(&place.join(STORE), || StoreDirectory::open(place, None))?;
    writer::lock(&store, place).map(Some)
}

fn exists(path: &Path) -> Result<bool> {
    match path.metadata() {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(e) => Err(Error::io(path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{model, scratch};
    use super::super::{Index, IndexConfig, SEGMENTS};
    use super::*;
    use crate::model::CodeShape;

    #[test]
    fn no_damage_hides_a_living_writer() {
        let dir = scratch();
        let path = dir.path().join("index");
        let index = Index::create(&path, &model(CodeShape::micpq(32).unwrap(), 1), IndexConfig::default()).unwrap();
        let writer = index.writer().unwrap();
        let list = path.join(STORE).join(SEGMENTS);
        let whole = std::fs::read(&list).unwrap();
        for damage in ["", "{ not a list of segments"] {
            std::fs::write(&list, damage).unwrap();
            assert!(matches!(Claim::new(&path, true), Err(Error::Busy(_))), "{damage:?}");
        }
        std::fs::remove_file(&list).unwrap();
        assert!(matches!(Claim::new(&path, true), Err(Error::Busy(_))));
        // The lock file cannot be opened: nobody knows whether it is held.
        drop(writer);
        std::fs::write(&list, whole).unwrap();
        let file = path.join(STORE).join(".tantivy-writer.lock");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(matches!(Claim::new(&path, true), Err(Error::Io { .. })));
        std::fs::remove_dir(&file).unwrap();
        // Without a writer, a damaged index is replaced.
        std::fs::write(&list, "{ not a list of segments").unwrap();
        Claim::new(&path, true).unwrap();
    }
}
