//! Which directory may be replaced: only one that holds what it should and nothing else.

use std::path::Path;

use tantivy::index::SegmentId;

use crate::{Error, Result};

/// Everything that belongs in an index directory. A directory with any other entry is not replaced.
const INDEX: &[&str] = &["index.json", "store", "model", "codes", SAVED, TOPICS, MAP];
/// The folder of saved queries in an index, and its files.
pub(crate) const SAVED: &str = "saved";
const SAVED_FILES: &[&str] = &["queries.json", "position"];
/// The folder of the topics that later documents get, and its files.
pub(crate) const TOPICS: &str = "topics";
const TOPICS_FILES: &[&str] = &["follow.json"];
/// The folder of the last map of an index, and its file.
pub(crate) const MAP: &str = "map";
const MAP_FILES: &[&str] = &["last"];
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
        // A link was followed above.
        let names = names(&place.canonicalize().map_err(Error::io(place))?)?;
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
            // A user's folder may have an index.json and a store too.
            None if self == Replaces::Index => match not_of_an_index(place)? {
                Some(problem) => refuse(problem),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }
}

/// Whether a file is the `config.json` of a model, of whatever version.
fn is_model_config(path: &Path) -> bool {
    let json = std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    json.is_some_and(|json| json["format"].is_u64() && json["shape"].is_object())
}

/// What in a directory with the names of an index was not written by micpq; `None` if all of it was. The manifest may be of
/// any version, and files may be damaged or missing.
fn not_of_an_index(place: &Path) -> Result<Option<String>> {
    if !is_index_manifest(&place.join("index.json")) {
        return Ok(Some("its index.json is not of a micpq index; if it was one, remove the directory yourself".into()));
    }
    type IsKnown = fn(&str) -> bool;
    let parts: [(&str, IsKnown); 6] = [
        ("store", is_store_file),
        ("model", |name| MODEL.contains(&name)),
        ("codes", |name| name.strip_suffix(".codes").is_some_and(is_segment)),
        (SAVED, |name| SAVED_FILES.contains(&name)),
        (TOPICS, |name| TOPICS_FILES.contains(&name)),
        (MAP, |name| MAP_FILES.contains(&name)),
    ];
    for (part, is_known) in parts {
        let foreign = names(&place.join(part))?.into_iter().filter(|name| !is_known(name) && !is_temporary(name));
        let foreign: Vec<String> = foreign.map(|name| format!("{part}/{name}")).collect();
        if !foreign.is_empty() {
            return Ok(Some(format!("it holds {} beside one", some(&foreign))));
        }
    }
    Ok(None)
}

/// The names in a directory, sorted; none if there is no such directory. A file in its place is its only name.
fn names(dir: &Path) -> Result<Vec<String>> {
    match dir.symlink_metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(dir)(e)),
        Ok(found) if !found.is_dir() => return Ok(vec![String::new()]),
        Ok(_) => {}
    }
    let entry = |entry: std::io::Result<std::fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let names: std::io::Result<Vec<String>> = std::fs::read_dir(dir).and_then(|entries| entries.map(entry).collect());
    let mut names = names.map_err(Error::io(dir))?;
    names.sort();
    Ok(names)
}

/// Whether a file is the `index.json` of an index, of whatever version.
fn is_index_manifest(path: &Path) -> bool {
    let json = std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    json.is_some_and(|json| {
        json["format"].is_u64() && json["store"].is_string() && json["model"].is_string() && json["files"].is_object()
    })
}

/// Whether a name is that of a file in `store/`: tantivy's lists and locks, and files that begin with a segment's id.
fn is_store_file(name: &str) -> bool {
    const LISTS: &[&str] = &["meta.json", ".managed.json", ".tantivy-writer.lock", ".tantivy-meta.lock"];
    LISTS.contains(&name) || name.split_once('.').is_some_and(|(segment, _)| is_segment(segment))
}

fn is_segment(id: &str) -> bool {
    id.len() == 32 && SegmentId::from_uuid_string(id).is_ok()
}

/// Whether a name is that of a file that was being written.
fn is_temporary(name: &str) -> bool {
    name.starts_with(super::TEMPORARY) || name.starts_with(".tmp")
}

/// A few names for a message.
fn some(names: &[String]) -> String {
    const MAX_NAMES: usize = 3;
    let first = names[..names.len().min(MAX_NAMES)].join(", ");
    if names.len() > MAX_NAMES { format!("{first} and {} more", names.len() - MAX_NAMES) } else { first }
}
