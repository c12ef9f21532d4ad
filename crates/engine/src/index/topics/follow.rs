//! Topics of documents as they are added: the nearest centre of the topics that an attribute has. Centres are kept with the
//! index, because the documents that make them up may change.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::{Index, Store};
use super::Marked;
use crate::clusters::Fences;
use crate::clusters::points::{Centres, Points};
use crate::corpus::{Document, Value};
use crate::error::Remedy;
use crate::model::Model;
use crate::{Error, Progress, Result, disk};

const FORMAT: u32 = 1;

const FOLDER: &str = disk::TOPICS;

/// Content of `topics/follow.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    attribute: String,
    /// Fingerprint of the model whose codes the centres are of.
    model: String,
    /// Little-endian floats in hex: `[topics, width]`, and how far from its centre a document of each topic may be.
    centres: String,
    reaches: String,
    /// CRC-32 of the other fields as compact JSON, in hex.
    crc32: String,
}

/// Gives documents that are added later the number of the nearest topic, in this attribute that [`crate::topics::mark`] wrote before, until
/// [`unfollow`]. A document that comes with the attribute keeps its own. Writers that are open already do not see it.
pub fn follow(index: &Index, attribute: &str, progress: &dyn Progress) -> Result<()> {
    if index.store() != Store::All {
        return Err(Error::config("the index stores no attributes; build it with store all"));
    }
    let marked = Marked::read(&index.walk()?, index.model(), attribute, progress)?;
    let clusters = marked.clusters();
    let stored = Stored {
        format: FORMAT,
        attribute: attribute.to_owned(),
        model: index.model().fingerprint().to_owned(),
        centres: hex_of(&clusters.centres.values),
        reaches: hex_of(&Fences::of(&clusters, clusters.centres.len()).0),
        crc32: String::new(),
    };
    let stored = Stored { crc32: stored.checksum(), ..stored };
    disk::create_directories(&index.dir().join(FOLDER))?;
    let text = serde_json::to_string_pretty(&stored).expect("plain data has a JSON form") + "\n";
    disk::replace(&path(index.dir()), text.as_bytes())
}

/// Ends [`follow`]. Returns whether anything was followed.
pub fn unfollow(index: &Index) -> Result<bool> {
    let path = path(index.dir());
    match std::fs::remove_file(&path) {
        Ok(()) => disk::sync_directory(&index.dir().join(FOLDER)).map(|()| true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io(path)(e)),
    }
}

/// The attribute whose topics new documents get; `None` if they get none.
pub fn followed(index: &Index) -> Result<Option<String>> {
    Ok(Stored::read(index.dir())?.map(|stored| stored.attribute))
}

/// Goes on with the topics of an index in the one that replaces it, whose model may be another.
pub fn carry(old: &Index, new: &Index, progress: &dyn Progress) -> Result<()> {
    let Some(attribute) = followed(old)? else { return Ok(()) };
    match follow(new, &attribute, progress) {
        Err(problem @ Error::Config { .. }) => {
            progress.warn(&format!("new documents get no topics any more: {problem}"));
            Ok(())
        }
        done => done,
    }
}

/// A problem of the file, for `verify`.
pub(crate) fn problem(dir: &Path) -> Option<Error> {
    Stored::read(dir).err()
}

fn path(dir: &Path) -> PathBuf {
    dir.join(FOLDER).join("follow.json")
}

fn hex_of(values: &[f32]) -> String {
    hex::encode(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

fn floats(text: &str) -> Option<Vec<f32>> {
    let bytes = hex::decode(text).ok()?;
    let (values, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| values.iter().map(|value| f32::from_le_bytes(*value)).collect())
}

impl Stored {
    /// `None` if nothing is followed.
    fn read(dir: &Path) -> Result<Option<Stored>> {
        let path = path(dir);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(path)(e)),
        };
        let damaged = |problem: String| {
            Error::format(&path, format!("{problem}; remove it, and follow the topics again"))
                .remedied(Remedy::FollowTopics)
        };
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|e| damaged(format!("cannot be read: {e}")))?;
        if stored.format != FORMAT {
            return Err(damaged(format!("has format {}, this program reads {FORMAT}", stored.format)));
        }
        let found = stored.checksum();
        if found != stored.crc32 {
            return Err(damaged(format!("is damaged: its checksum is {found}, it says {}", stored.crc32)));
        }
        Ok(Some(stored))
    }

    fn checksum(&self) -> String {
        let parts = (&self.attribute, &self.model, &self.centres, &self.reaches);
        let text = serde_json::to_string(&parts).expect("plain data has a JSON form");
        format!("{:08x}", crc32fast::hash(text.as_bytes()))
    }
}

/// Topics that a writer gives to new documents.
pub(crate) struct Follower {
    attribute: String,
    centres: Centres,
    reaches: Fences,
}

impl Follower {
    /// `None` if nothing is followed. Centres of another model are an error: they would name wrong topics.
    pub fn read(dir: &Path, model: &Model) -> Result<Option<Follower>> {
        let Some(stored) = Stored::read(dir)? else { return Ok(None) };
        let width = model.shape().width();
        let (centres, reaches) = (floats(&stored.centres), floats(&stored.reaches));
        match (centres, reaches) {
            (Some(values), Some(reaches))
                if stored.model == model.fingerprint() && values.len() == reaches.len() * width =>
            {
                Ok(Some(Follower {
                    attribute: stored.attribute,
                    centres: Centres { width, values },
                    reaches: Fences(reaches),
                }))
            }
            _ => Err(Error::format(path(dir), "has topics of another model; remove it, and follow the topics again")
                .remedied(Remedy::FollowTopics)),
        }
    }

    /// The document with its topic. `None` if it has one already, or is far from all.
    pub fn with_topic(&self, model: &Model, document: &Document, code: &[u8]) -> Option<Document> {
        if document.attributes.iter().any(|(name, _)| *name == self.attribute) {
            return None;
        }
        let points = Points::new(model.codebooks(), code);
        let near = points.nearest_one(points.point(0), &self.centres);
        if self.reaches.0.is_empty() || self.reaches.is_outlier(&near) {
            return None;
        }
        let mut document = document.clone();
        document.attributes.push((self.attribute.clone(), Value::Int(near.centre.into())));
        Some(document)
    }
}
