//! The last map, as it is kept with the index.

use serde::{Deserialize, Serialize};

use super::{DocumentMap, MapLabel, MapTopic};
use crate::index::{Index, map_file};
use crate::{Error, Result};

/// Bytes of a document: its insertion sequence, `x`, `y` and topic.
const DOCUMENT: usize = 14;

/// What a map has beside its documents.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    /// The index that numbered the documents. A copy, and an index that took its place, have another name.
    index: String,
    /// The model whose codes it was made of.
    model: String,
    commit: u64,
    documents: u32,
    topics: Vec<MapTopic>,
    labels: Vec<MapLabel>,
}

/// Keeps a map with its index, instead of the last one. `commit` is the one it was made of.
pub fn keep(index: &Index, map: &DocumentMap, commit: u64) -> Result<()> {
    if index.is_replaced()? {
        return Err(Error::Busy(format!("another index is at {} now; make its map anew", index.dir().display())));
    }
    let about = About {
        index: index.short_id(),
        model: index.model().fingerprint().to_owned(),
        commit,
        documents: map.len() as u32,
        topics: map.topics.clone(),
        labels: map.labels.clone(),
    };
    let about = serde_json::to_vec(&about).expect("plain data has a JSON form");
    let mut bytes = Vec::with_capacity(4 + about.len() + DOCUMENT * map.len());
    bytes.extend_from_slice(&(about.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&about);
    map.sequences.iter().for_each(|sequence| bytes.extend_from_slice(&sequence.to_le_bytes()));
    for values in [&map.x, &map.y, &map.topic] {
        map.points.iter().for_each(|&point| bytes.extend_from_slice(&values[point as usize].to_le_bytes()));
    }
    map_file::write(index.dir(), &bytes)
}

/// The map that is kept with an index, and the commit it was made of. `None` if there is none of this index and its model.
pub fn kept(index: &Index) -> Result<Option<(u64, DocumentMap)>> {
    let Some(bytes) = map_file::read(index.dir())? else { return Ok(None) };
    let damaged = || map_file::damaged(index.dir(), "is damaged: its parts do not fit");
    let (about, map) = parts(&bytes).ok_or_else(damaged)?;
    let is_own = about.index == index.short_id() && about.model == index.model().fingerprint();
    Ok(is_own.then_some((about.commit, map)))
}

/// `None` if the lengths do not fit.
fn parts(bytes: &[u8]) -> Option<(About, DocumentMap)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (about, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let about: About = serde_json::from_slice(about).ok()?;
    let count = about.documents as usize;
    if rest.len() != count.checked_mul(DOCUMENT)? {
        return None;
    }
    let (sequences, values) = rest.split_at(8 * count);
    let sequences: Vec<u64> = sequences.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let values: Vec<u16> = values.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
    let places = (0..count).map(|i| [values[i], values[count + i]]).collect();
    let classes = values[2 * count..].to_vec();
    let map = DocumentMap::new(places, classes, sequences, about.topics.clone(), about.labels.clone());
    Some((about, map))
}
