//! The map of a served index, as it is kept until the next one.

use std::sync::Arc;

use axum::body::Bytes;
use engine::index::Index;
use engine::map::{self, DocumentMap};
use parking_lot::Mutex;

/// The map of a served index.
pub struct Mapped {
    /// The commit that it was made of.
    pub commit: u64,
    pub map: DocumentMap,
    /// What a page reads.
    pub bytes: Bytes,
}

impl Mapped {
    pub fn new(commit: u64, map: DocumentMap) -> Mapped {
        let bytes = Bytes::from(map.to_bytes());
        Mapped { commit, map, bytes }
    }

    /// The map that is kept with an index. One that cannot be read is told in the log.
    fn kept(index: &Index) -> Option<Mapped> {
        let kept = map::kept(index).unwrap_or_else(|error| {
            tracing::warn!(index = %index.dir().display(), %error, "served without its map");
            None
        });
        kept.map(|(commit, map)| Mapped::new(commit, map))
    }

    pub fn name(&self) -> String {
        format!("{:016x}", self.map.fingerprint)
    }
}

/// The last map of a served index. Its file is read when somebody asks, so that a start does not wait for it.
#[derive(Default)]
pub struct LastMap(Mutex<Option<Option<Arc<Mapped>>>>);

impl LastMap {
    /// The map, if it need not be read; `Some(None)` if there is none.
    pub fn known(&self) -> Option<Option<Arc<Mapped>>> {
        self.0.try_lock()?.clone()
    }

    /// The map. May read it from the file of the index, and then others wait.
    pub fn get(&self, index: impl FnOnce() -> Index) -> Option<Arc<Mapped>> {
        self.0.lock().get_or_insert_with(|| Mapped::kept(&index()).map(Arc::new)).clone()
    }

    pub fn set(&self, mapped: Mapped) {
        *self.0.lock() = Some(Some(Arc::new(mapped)));
    }

    /// Another index has taken the place of the one it belongs to.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }
}
