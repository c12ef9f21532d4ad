//! The manifest `index.json`: format, model and options of an index.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantNames};

use super::files::RESTORE;
use super::schema::Layout;
use super::{MODEL, RerankVectors};
use crate::chunk::ChunkSizes;
use crate::error::Remedy;
use crate::language::Language;
use crate::model::{FastEncoder, Model};
use crate::{Error, Result};

/// The list of shards, in a folder of them ([`crate::shards`]).
pub(crate) const SHARDS: &str = "manifest.json";

/// Format version of the index directory. 2: `keep` says how rerank vectors are stored. 3: `keep`
/// is renamed to `rerank_vectors`, and a unique `id` is added. 4: `language` says how texts become terms, and `chunk` how
/// they are split, if they are.
pub const FORMAT: u32 = 4;
/// Oldest format that can be read: the oldest of which a test has an index.
pub const OLDEST_FORMAT: u32 = 2;

/// Which parts of a document an index stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Display, EnumString, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_store)]
pub enum Store {
    /// Id, code, text, labels and attributes, with the inverted index that filters use.
    #[default]
    All,
    /// Only id and code, for users who store their documents elsewhere.
    Codes,
}

fn unknown_store(name: &str) -> Error {
    Error::unknown("store", name, Store::VARIANTS)
}

/// Content of `index.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    /// Since format 3. Unique: an index that later replaces this one in the same directory has another id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    store: Store,
    #[serde(alias = "keep")]
    rerank_vectors: RerankVectors,
    /// Since format 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    language: Option<Language>,
    /// Since format 4, where texts are split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chunk: Option<ChunkSizes>,
    /// Fingerprint of the model that produced the codes.
    model: String,
    /// CRC-32 of each file in the model directory, in hex.
    files: BTreeMap<String, String>,
}

impl Manifest {
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("index.json")
    }

    /// The manifest of a new index whose model is already written into `dir`.
    pub fn new(model: &Model, layout: Layout, dir: &Path) -> Result<Manifest> {
        let Layout { store, rerank_vectors, language, chunk } = layout;
        Ok(Manifest {
            format: FORMAT,
            id: Some(new_id()),
            store,
            rerank_vectors,
            language: Some(language),
            chunk,
            model: model.fingerprint().to_string(),
            files: model_files(dir)?,
        })
    }

    /// The beginning of the id, or of the model's fingerprint where there is none.
    pub fn short_id(&self) -> String {
        self.id.as_ref().unwrap_or(&self.model).chars().take(16).collect()
    }

    pub fn layout(&self) -> Layout {
        Layout {
            store: self.store,
            rerank_vectors: self.rerank_vectors(),
            language: self.language.unwrap_or_default(),
            chunk: self.chunk,
        }
    }

    /// The manifest of a copy. A copy is a separate index, so it gets its own id.
    pub fn of_copy(&self) -> Manifest {
        Manifest { id: self.id.as_ref().map(|_| new_id()), ..self.clone() }
    }

    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("plain data has a JSON form") + "\n";
        // Format 2 uses another name. The text must be reproduced exactly.
        if self.format < 3 { text.replacen("\"rerank_vectors\"", "\"keep\"", 1) } else { text }
    }

    pub fn store(&self) -> Store {
        self.store
    }

    pub fn format(&self) -> u32 {
        self.format
    }

    pub fn rerank_vectors(&self) -> RerankVectors {
        self.rerank_vectors
    }

    pub fn read(dir: &Path) -> Result<Manifest> {
        let path = Manifest::path(dir);
        let text = std::fs::read_to_string(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound if dir.join(SHARDS).is_file() => Error::format(
                dir,
                "is a folder of shards, not one index; search reads it as one index, everything else takes one shard",
            ),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Error::format(dir, "is not an index: it has no index.json; build an index, or give the path of one")
                    .remedied(Remedy::BuildIndex)
            }
            std::io::ErrorKind::InvalidData => {
                Error::format(&path, "is not UTF-8 text; restore it from a copy or build the index again")
            }
            _ => Error::io(&path)(source),
        })?;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| {
            Error::format(&path, format!("is not valid JSON: {e}; restore it from a copy or build the index again"))
        })?;
        let format = value.get("format").and_then(serde_json::Value::as_u64);
        match format {
            Some(format) if (u64::from(OLDEST_FORMAT)..=u64::from(FORMAT)).contains(&format) => {}
            Some(format) => {
                return Err(Error::format(
                    &path,
                    format!(
                        "has format {format}, this program reads {OLDEST_FORMAT} to {FORMAT}; use the micpq that wrote it, build the index again, or read docs/upgrade.md"
                    ),
                ));
            }
            None => return Err(Error::format(&path, "has no \"format\" number: it is not of a micpq index")),
        }
        let manifest: Manifest = serde_json::from_value(value)
            .map_err(|e| Error::format(&path, format!("{e}; restore it from a copy or build the index again")))?;
        let (has_id, has_language) = (manifest.format > 2, manifest.format > 3);
        if manifest.to_json() != text
            || manifest.id.is_some() != has_id
            || manifest.language.is_some() != has_language
            || manifest.chunk.is_some_and(|chunk| !has_language || chunk.validate().is_err())
            || !manifest.id.as_deref().is_none_or(is_id)
        {
            return Err(Error::format(&path, "is not as micpq wrote it; restore it from a copy"));
        }
        Ok(manifest)
    }

    /// Refuses a model directory that does not hold the model of the codes.
    pub fn check_model(&self, dir: &Path, model: &Model) -> Result<()> {
        if model.fingerprint() != self.model {
            return Err(Error::format(
                dir.join(MODEL),
                format!(
                    "is model {}, but the codes of this index come from model {}; restore the directory from a copy, or build the index again",
                    model.fingerprint(),
                    self.model
                ),
            ));
        }
        Ok(())
    }

    /// Model files that are missing or differ from those of this index, each with the problem.
    pub fn model_problems(&self, dir: &Path) -> Result<Vec<(PathBuf, String)>> {
        let found = model_files(dir)?;
        let problem = |(name, crc): (&String, &String)| {
            let problem = match found.get(name) {
                None => format!("is missing; {RESTORE}"),
                Some(now) if now != crc => {
                    format!("is damaged: its checksum is {now}, index.json says {crc}; {RESTORE}")
                }
                Some(_) => return None,
            };
            Some((dir.join(MODEL).join(name), problem))
        };
        Ok(self.files.iter().filter_map(problem).collect())
    }

    /// Refuses model files that are missing or differ from those of this index.
    pub fn check_model_files(&self, dir: &Path) -> Result<()> {
        match self.model_problems(dir)?.into_iter().next() {
            Some((path, problem)) => Err(Error::format(path, problem)),
            None => Ok(()),
        }
    }

    /// Refuses a model given by the user that is not the model of this index.
    pub fn expect_model(&self, dir: &Path, fingerprint: &str) -> Result<()> {
        if fingerprint != self.model {
            return Err(Error::format(
                dir,
                format!(
                    "was built with model {}, not with model {fingerprint}; leave the model out (the index brings its own) or build another index with this one",
                    self.model
                ),
            ));
        }
        Ok(())
    }
}

/// 128 random bits in hex, and the CRC-32 of those digits, so that a flipped bit does not make another valid id.
fn new_id() -> String {
    // Each `RandomState` has new random keys.
    let random = || RandomState::new().hash_one(std::process::id());
    let digits = format!("{:016x}{:016x}", random(), random());
    format!("{digits}-{:08x}", crc32fast::hash(digits.as_bytes()))
}

fn is_id(text: &str) -> bool {
    let parts = text.split_once('-').filter(|(digits, _)| digits.len() == 32);
    parts.is_some_and(|(digits, crc)| format!("{:08x}", crc32fast::hash(digits.as_bytes())) == crc)
}

/// CRC-32 in hex of every file in `model/`, by file name. A query encoder has a checksum of its own, and may come later.
fn model_files(dir: &Path) -> Result<BTreeMap<String, String>> {
    let model = dir.join(MODEL);
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(&model).map_err(Error::io(&model))? {
        let path = entry.map_err(Error::io(&model))?.path();
        if path.ends_with(FastEncoder::FILE) {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        files.insert(name, format!("{:08x}", crc32fast::hash(&bytes)));
    }
    Ok(files)
}
