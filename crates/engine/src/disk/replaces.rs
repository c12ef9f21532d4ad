//! Which directory may be replaced: only one that holds what it should and nothing else.

use std::path::Path;

use crate::{Error, Result};

/// Everything that belongs in an index directory. A directory with any other entry is not replaced.
const INDEX: &[&str] =
    &["index.json", "store", "model", "codes", crate::saved::file::FOLDER, crate::topics::follow::FOLDER];
/// The same for a model directory.
const MODEL: &[&str] = &["config.json", "model.safetensors", "metrics.json", "README.md", "query_encoder.safetensors"];

/// The contents of a path that a new directory may replace. Anything else at its path belongs to the user and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// Nothing, or an empty directory.
    Nothing,
    /// An index and nothing beside its parts.
    Index,
    /// A model directory and nothing beside its files.
    Model,
    /// An encoder under the directory of encoders.
    Encoder,
}

impl Replaces {
    /// Refuses a path that holds anything else; the error names what it holds.
    pub fn check(self, place: &Path) -> Result<()> {
        // A link is followed: its target is replaced.
        let found = match std::fs::metadata(place) {
            Ok(found) => found,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && place.symlink_metadata().is_err() => return Ok(()),
            Err(e) => return Err(Error::io(place)(e)),
        };
        let refuse = |found: String| {
            let what = match self {
                Replaces::Nothing => {
                    return Err(Error::format(place, format!("is taken: {found}; name a new or empty place")));
                }
                Replaces::Index => "an index",
                Replaces::Model => "a model",
                Replaces::Encoder => "an encoder",
            };
            Err(Error::format(
                place,
                format!(
                    "exists and is not {what}: {found}; only {what} or an empty directory is replaced, name another place"
                ),
            ))
        };
        if !found.is_dir() {
            return refuse("it is a file".into());
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(place).map_err(Error::io(place))? {
            names.push(entry.map_err(Error::io(place))?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        if names.is_empty() {
            return Ok(());
        }
        let (signs, parts) = match self {
            Replaces::Nothing => return refuse(format!("it holds {}", some(&names))),
            Replaces::Index => (&["index.json", "store"][..], INDEX),
            Replaces::Model => (&["config.json", "model.safetensors"][..], MODEL),
            // A directory of static embeddings has no config.json.
            Replaces::Encoder if names.iter().any(|name| name == "modules.json") => (&[][..], &[][..]),
            Replaces::Encoder => (&["config.json"][..], &[][..]),
        };
        let lacks = signs.iter().find(|sign| !names.iter().any(|name| name == *sign));
        let foreign: Vec<String> = names.iter().filter(|name| !parts.contains(&name.as_str())).cloned().collect();
        match lacks {
            Some(sign) => refuse(format!("it holds {} and no {sign}", some(&names))),
            None if self != Replaces::Encoder && !foreign.is_empty() => {
                refuse(format!("it holds {} beside one", some(&foreign)))
            }
            // An encoder's directory has a config.json and a model.safetensors too.
            None if self == Replaces::Model && !is_model_config(&place.join("config.json")) => {
                refuse("its config.json is not of a micpq model".into())
            }
            None => Ok(()),
        }
    }
}

/// Whether a file is the `config.json` of a model, of whatever version.
fn is_model_config(path: &Path) -> bool {
    let json = std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    json.is_some_and(|json| json["format"].is_u64() && json["shape"].is_object())
}

/// A few names for a message.
fn some(names: &[String]) -> String {
    const MAX_NAMES: usize = 3;
    let first = names[..names.len().min(MAX_NAMES)].join(", ");
    if names.len() > MAX_NAMES { format!("{first} and {} more", names.len() - MAX_NAMES) } else { first }
}
