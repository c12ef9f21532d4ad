//! The map of a served index, as it is kept until the next one.

use axum::body::Bytes;
use engine::index::Index;
use engine::map::{self, DocumentMap};

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
    pub fn kept(index: &Index) -> Option<Mapped> {
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
