//! The map of a served index, as it is kept until the next one.

use axum::body::Bytes;
use engine::map::DocumentMap;

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

    pub fn name(&self) -> String {
        format!("{:016x}", self.map.fingerprint)
    }
}
