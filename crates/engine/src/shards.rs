//! A folder of shards: one index in several directories, for more documents than one machine encodes or holds.
//!
//! `manifest.json` lists the shards. Each is an ordinary index of the same model, with the documents whose id it owns by
//! [`ShardManifest::route`]. Insertion sequences are shared: the sequence of a document says when it was inserted among the
//! documents of all shards, so that a merged answer breaks ties as one index does.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::corpus::DocId;
use crate::index::{Index, SHARDS};
use crate::{Error, Progress, Result, disk};

/// Format version of `manifest.json`.
pub const FORMAT: u32 = 1;

/// Content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardManifest {
    pub format: u32,
    pub routing: Routing,
    /// Fingerprint of the model of all shards.
    pub model: String,
    pub shards: Vec<Shard>,
}

/// How an id finds its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Routing {
    /// CRC-32 of the id as text, modulo the number of shards.
    #[serde(rename = "crc32")]
    Crc32,
}

/// One shard as it was built. Later changes are recorded in its own directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Directory beside `manifest.json`.
    pub name: String,
    pub documents: u64,
    /// Of the files as built: SHA-256 over their names, sizes and CRC-32s.
    pub checksum: String,
}

impl ShardManifest {
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(SHARDS)
    }

    /// Whether a directory is a folder of shards.
    pub fn is_at(dir: &Path) -> bool {
        ShardManifest::path(dir).is_file()
    }

    pub fn read(dir: &Path) -> Result<ShardManifest> {
        let path = ShardManifest::path(dir);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        ShardManifest::parse(&text).map_err(|problem| Error::format(&path, problem))
    }

    fn parse(text: &str) -> std::result::Result<ShardManifest, String> {
        let json = |e| format!("is not a manifest of shards: {e}; restore it from a copy or build the shards again");
        let value: serde_json::Value = serde_json::from_str(text).map_err(json)?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            format => {
                let found = format.map_or("none".into(), |format| format.to_string());
                return Err(format!("has format {found}, this program reads {FORMAT}; use the program that wrote it"));
            }
        }
        let manifest: ShardManifest = serde_json::from_value(value).map_err(json)?;
        if manifest.shards.is_empty() {
            return Err("lists no shard; build the shards again".into());
        }
        let is_name = |name: &str| {
            let mut parts = Path::new(name).components();
            matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        };
        match manifest.shards.iter().find(|shard| !is_name(&shard.name)) {
            Some(shard) => Err(format!("lists a shard \"{}\", which is not a name beside it", shard.name)),
            None => Ok(manifest),
        }
    }

    /// Writes `manifest.json`, whole or not at all.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("plain data has a JSON form") + "\n";
        ShardManifest::parse(&text).map_err(|problem| Error::format(ShardManifest::path(dir), problem))?;
        disk::replace(&ShardManifest::path(dir), text.as_bytes())
    }

    /// Number of the shard that owns an id, of so many shards. `5` and `"5"` are the same id.
    pub fn route(id: &DocId, shards: usize) -> usize {
        crc32fast::hash(id.to_string().as_bytes()) as usize % shards
    }

    /// Opens every shard, in order.
    pub fn open(&self, dir: &Path, progress: &dyn Progress) -> Result<Vec<Index>> {
        let open = |shard: &Shard| {
            let index = Index::open(&dir.join(&shard.name), progress)?;
            if index.model().fingerprint() != self.model {
                return Err(Error::format(
                    index.dir(),
                    format!(
                        "has another model than the other shards ({}, expected {}); restore it from a copy or build the shards again",
                        index.model().fingerprint(),
                        self.model
                    ),
                ));
            }
            Ok(index)
        };
        let indexes: Vec<Index> = self.shards.iter().map(open).collect::<Result<_>>()?;
        let kind = |index: &Index| (index.store(), index.rerank_vectors(), index.language(), index.chunk());
        match indexes.iter().find(|index| kind(index) != kind(&indexes[0])) {
            Some(other) => Err(Error::format(
                other.dir(),
                "stores other parts of documents, other rerank vectors, another language or other chunks than the other shards; build the shards again",
            )),
            None => Ok(indexes),
        }
    }
}
