//! A folder of shards: one index in several directories, for more documents than one machine encodes or holds.
//!
//! `manifest.json` lists the shards. Each is an ordinary index of the same model, with the documents whose id it owns by
//! [`ShardManifest::route`]. Insertion sequences are shared: the sequence of a document says when it was inserted among the
//! documents of all shards, so that a merged answer breaks ties as one index does.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::corpus::DocId;
use crate::index::{self, Index, Problem, SHARDS};
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

/// Misplaced documents that are named.
const TOLD: usize = 10;

/// Checks all shards of a folder without changing them: each as an index ([`index::verify`]), its model, and that it owns the ids of
/// its documents. An empty list means that all are sound. A shard whose files are not those of the build was changed since, which is
/// noted and no problem.
pub fn verify(dir: &Path, progress: &dyn Progress) -> Result<Vec<Problem>> {
    let manifest = match ShardManifest::read(dir) {
        Ok(manifest) => manifest,
        Err(Error::Format { path, problem, .. }) => return Ok(vec![Problem { path, problem }]),
        Err(error) => return Err(error),
    };
    let mut problems = Vec::new();
    for number in 0..manifest.shards.len() {
        problems.extend(manifest.verify_shard(dir, number, progress)?);
    }
    Ok(problems)
}

impl ShardManifest {
    /// Checks one shard, as [`verify`] does.
    pub fn verify_shard(&self, dir: &Path, number: usize, progress: &dyn Progress) -> Result<Vec<Problem>> {
        let shard = &self.shards[number];
        let path = dir.join(&shard.name);
        if !path.is_dir() {
            let problem = "is missing; restore it from a copy, or build the shards again".into();
            return Ok(vec![Problem { path, problem }]);
        }
        let mut problems = index::verify(&path, progress)?;
        if !problems.is_empty() {
            return Ok(problems);
        }
        let opened = Index::open(&path, progress)?;
        if opened.model().fingerprint() != self.model {
            let problem = "has another model than the manifest names; restore it from a copy".into();
            problems.push(Problem { path: path.clone(), problem });
        }
        problems.extend(self.misplaced(number, &opened)?.map(|problem| Problem { path: path.clone(), problem }));
        if checksum(&path)? != shard.checksum {
            progress.note(&format!("{}: sound, and changed since it was built", path.display()));
        }
        Ok(problems)
    }

    /// What is wrong with the places of documents, or `None`.
    fn misplaced(&self, number: usize, index: &Index) -> Result<Option<String>> {
        let (walk, mut found, mut count) = (index.walk()?, Vec::new(), 0);
        for i in 0..walk.len() {
            let id = walk.id(i)?;
            if ShardManifest::route(&id, self.shards.len()) != number {
                count += 1;
                if found.len() < TOLD {
                    found.push(id.to_string());
                }
            }
        }
        let names = found.join(", ");
        Ok((count > 0).then(|| {
            format!(
                "has {count} documents that belong to other shards ({names}); delete them here and add them by micpq.ray.Searcher"
            )
        }))
    }
}

/// One checksum for all files below a directory, by which two copies of a shard are compared: SHA-256 over their names, sizes and
/// CRC-32s. Lock files do not count.
pub fn checksum(dir: &Path) -> Result<String> {
    let mut files = Vec::new();
    files_below(dir, "", &mut files)?;
    files.sort();
    let mut digest = Sha256::new();
    for name in files {
        let (size, crc) = size_and_crc(&dir.join(&name))?;
        digest.update(format!("{name} {size} {crc:08x}\n"));
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn files_below(dir: &Path, prefix: &str, files: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let entry = entry.map_err(Error::io(dir))?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            files_below(&entry.path(), &format!("{name}/"), files)?;
        } else if !name.ends_with(".lock") {
            files.push(name);
        }
    }
    Ok(())
}

fn size_and_crc(path: &Path) -> Result<(u64, u32)> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(Error::io(path))?);
    let (mut size, mut crc) = (0, crc32fast::Hasher::new());
    loop {
        let bytes = file.fill_buf().map_err(Error::io(path))?;
        if bytes.is_empty() {
            return Ok((size, crc.finalize()));
        }
        crc.update(bytes);
        let count = bytes.len();
        size += count as u64;
        file.consume(count);
    }
}
