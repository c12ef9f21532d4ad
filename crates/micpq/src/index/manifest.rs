//! `index.json`: what kind of index a directory holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Keep, MODEL};
use crate::model::Model;
use crate::{Error, Result};

/// Version of the index directory. 1: first release. 2: features may be kept for the second stage (`keep`).
pub const FORMAT: u32 = 2;
/// The oldest version that is read: an index of format 1 keeps no features.
pub const OLDEST_FORMAT: u32 = 1;

/// What an index keeps of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// Id, code, text, labels and attributes, with the inverted index that filters use.
    #[default]
    All,
    /// Only id and code: for those who have their documents elsewhere.
    Codes,
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Store::All => "all",
            Store::Codes => "codes",
        })
    }
}

impl std::str::FromStr for Store {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "all" => Ok(Store::All),
            "codes" => Ok(Store::Codes),
            _ => Err(Error::config(format!("unknown store '{name}'; known: all, codes"))),
        }
    }
}

/// The file's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    store: Store,
    /// From format 2 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep: Option<Keep>,
    /// Fingerprint of the model the codes come from.
    model: String,
    /// CRC-32 of the files of the model directory.
    files: BTreeMap<String, String>,
}

impl Manifest {
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("index.json")
    }

    /// Of the model already written into `dir`.
    pub fn new(model: &Model, store: Store, keep: Keep, dir: &Path) -> Result<Manifest> {
        let files = model_files(dir)?;
        Ok(Manifest { format: FORMAT, store, keep: Some(keep), model: model.fingerprint().to_string(), files })
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data has a JSON form") + "\n"
    }

    pub fn store(&self) -> Store {
        self.store
    }

    pub fn format(&self) -> u32 {
        self.format
    }

    pub fn keep(&self) -> Keep {
        self.keep.unwrap_or(Keep::None)
    }

    pub fn files(&self) -> &BTreeMap<String, String> {
        &self.files
    }

    pub fn read(dir: &Path) -> Result<Manifest> {
        let path = Manifest::path(dir);
        let text = std::fs::read_to_string(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Error::format(dir, "is not an index: it has no index.json; \"micpq build\" makes one")
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
                        "has format {format}, this program reads {OLDEST_FORMAT} to {FORMAT}; use the micpq that wrote it or build the index again"
                    ),
                ));
            }
            None => return Err(Error::format(&path, "has no \"format\" number: it is not of a micpq index")),
        }
        let manifest: Manifest = serde_json::from_value(value)
            .map_err(|e| Error::format(&path, format!("{e}; restore it from a copy or build the index again")))?;
        let keeps = manifest.format > 1;
        if manifest.to_json() != text || manifest.keep.is_some() != keeps {
            return Err(Error::format(&path, "is not as micpq wrote it; restore it from a copy"));
        }
        Ok(manifest)
    }

    /// That the model inside is the one the codes come from.
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

    /// That a model given from outside is the same.
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

/// CRC-32 of every file in `model/`, by its name there.
pub(super) fn model_files(dir: &Path) -> Result<BTreeMap<String, String>> {
    let model = dir.join(MODEL);
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(&model).map_err(Error::io(&model))? {
        let path = entry.map_err(Error::io(&model))?.path();
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        files.insert(name, format!("{:08x}", crc32fast::hash(&bytes)));
    }
    Ok(files)
}
