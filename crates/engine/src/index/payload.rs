//! micpq's own record of a commit, beside tantivy's.

use std::path::Path;

use super::SEGMENTS;
use crate::{Error, Result};

/// Data that micpq adds to each commit.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Payload {
    /// Sequence number of the next document.
    pub next: u64,
    /// tantivy's number of the commit, which `meta.json` also stores itself.
    pub opstamp: u64,
}

impl Payload {
    pub fn to_json(self) -> String {
        let text = serde_json::to_string(&self).expect("plain data has a JSON form");
        format!("{text} {:08x}", crc32fast::hash(text.as_bytes()))
    }

    pub fn read(store: &Path, text: &str) -> Result<Payload> {
        let parsed =
            text.rsplit_once(' ').filter(|(json, crc)| format!("{:08x}", crc32fast::hash(json.as_bytes())) == *crc);
        parsed.and_then(|(json, _)| serde_json::from_str(json).ok()).ok_or_else(|| {
            Error::format(
                store.join(SEGMENTS),
                "is damaged: the commit's own record does not fit its checksum; restore the index from a copy",
            )
        })
    }
}
