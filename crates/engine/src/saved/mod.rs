//! Saved queries: which new documents match a query that was asked once.
//!
//! A saved query lies with its index, encoded. A document that is added later matches if it is near enough, by the cosine of
//! its stored vector or by its code, and passes the filter. Nothing is stored about matches: the order of insertion says which
//! documents are new, so an answer is a function of the index and a place in that order.

mod carry;
pub(crate) mod file;
mod matching;

use serde::{Deserialize, Serialize};

use crate::index::{IndexWriter, RerankVectors};
use crate::query::{Query, Searcher};
use crate::{Error, Progress, Result};
pub use carry::carry;
use file::File;
pub use matching::{Match, MatchRequest, Matches, Place, Start, matches};

/// Saved queries of one index.
pub const MAX_QUERIES: usize = 10_000;
/// Bytes of a name.
const MAX_NAME_BYTES: usize = 100;
/// Bytes of a text.
const MAX_TEXT_BYTES: usize = 1 << 16;

/// How near a document must be to match.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Threshold {
    /// The least cosine of the query and the document's stored vector.
    Cosine(f32),
    /// The greatest distance of the document's code.
    Distance(f32),
}

impl Threshold {
    /// The one of both that is given, if any.
    pub fn of(cosine: Option<f32>, distance: Option<f32>) -> Result<Option<Threshold>> {
        match (cosine, distance) {
            (Some(_), Some(_)) => Err(Error::config("give either cosine or distance")),
            (least, most) => Ok(least.map(Threshold::Cosine).or(most.map(Threshold::Distance))),
        }
    }
}

/// A query as it is saved. It has a text or a vector with a threshold, or a filter, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedQuery {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", flatten)]
    pub threshold: Option<Threshold>,
    /// The embedding. `None` for a filter alone, and for a text that was encoded with an encoder the index no longer has.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "file::hex_floats")]
    pub vector: Option<Vec<f32>>,
    /// Only documents from this insertion sequence on are new to it.
    #[serde(default)]
    pub since: u64,
}

impl SavedQuery {
    /// The least cosine and the greatest distance, of which at most one is set.
    pub fn limits(&self) -> (Option<f32>, Option<f32>) {
        match self.threshold {
            Some(Threshold::Cosine(least)) => (Some(least), None),
            Some(Threshold::Distance(most)) => (None, Some(most)),
            None => (None, None),
        }
    }

    /// The query as people read it, without its vector.
    pub fn to_json(&self) -> serde_json::Value {
        let (cosine, distance) = self.limits();
        serde_json::json!({
            "name": self.name, "text": self.text, "filter": self.filter, "cosine": cosine, "distance": distance,
            "since": self.since,
        })
    }

    /// Checks what does not depend on the index.
    pub fn validate(&self) -> Result<()> {
        let refuse = |problem: &str| Err(Error::config(format!("saved query \"{}\" {problem}", shown(&self.name))));
        let first = self.name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if !first
            || self.name.len() > MAX_NAME_BYTES
            || !self.name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
        {
            return refuse(
                "has a name that cannot be used; give 1 to 100 letters, digits, dots, hyphens or underscores, a letter or \
                 digit first",
            );
        }
        let near = self.text.is_some() || self.vector.is_some();
        match self.threshold {
            None if near => {
                return refuse(
                    "has no threshold; give the least cosine (cosine) or the greatest distance of the code (distance)",
                );
            }
            Some(_) if !near => {
                return refuse("has a threshold, but neither a text nor a vector to compare with; give one");
            }
            Some(Threshold::Cosine(x)) if !(x > -1.0 && x <= 1.0) => {
                return refuse(&format!("has a cosine of {x}; give a number above -1 and at most 1"));
            }
            Some(Threshold::Distance(x)) if !(x.is_finite() && x >= 0.0) => {
                return refuse(&format!("has a distance of {x}; give a finite number from 0 up"));
            }
            _ => {}
        }
        if !near && self.filter.is_none() {
            return refuse("asks for nothing; give it a text with a threshold, a filter, or both");
        }
        match &self.text {
            Some(text) if text.trim().is_empty() => {
                refuse("has an empty text; leave it out, or write what you look for")
            }
            Some(text) if text.len() > MAX_TEXT_BYTES => {
                refuse(&format!("has a text of {} bytes; at most {MAX_TEXT_BYTES} are taken", text.len()))
            }
            _ => Ok(()),
        }
    }
}

fn shown(name: &str) -> String {
    name.chars().take(40).collect()
}

/// The saved queries of an index, by name.
pub fn list(index: &crate::index::Index) -> Result<Vec<SavedQuery>> {
    Ok(File::read(index.dir())?.queries)
}

/// Saves a query for the documents that are added from now on; a query with the same name is replaced. Its text is encoded
/// now. Returns it, and whether there was one. The writer, which must have no uncommitted changes, keeps other programs from
/// saving at the same time.
pub fn save(
    searcher: &Searcher,
    writer: &mut IndexWriter,
    mut query: SavedQuery,
    progress: &dyn Progress,
) -> Result<(SavedQuery, bool)> {
    query.validate()?;
    let index = one_index(searcher)?;
    if matches!(query.threshold, Some(Threshold::Cosine(_))) && index.rerank_vectors() == RerankVectors::None {
        return Err(Error::config(
            "the index stores no rerank vectors, so it has no cosines; give the greatest distance of the code (distance), or \
             build it with rerank_vectors int8 or f16",
        ));
    }
    if let Some(filter) = &query.filter {
        // Its attributes may come with later documents.
        index.reader()?.filter(filter, None)?;
    }
    query.vector = embedding(searcher, &query, progress)?;
    query.since = writer.next_sequence()?;
    let mut file = File::read(index.dir())?;
    let old = file.queries.iter().position(|other| other.name == query.name);
    if old.is_none() && file.queries.len() == MAX_QUERIES {
        return Err(Error::config(format!("the index has {MAX_QUERIES} saved queries already; remove one first")));
    }
    match old {
        Some(place) => file.queries[place] = query.clone(),
        None => file.queries.push(query.clone()),
    }
    file.queries.sort_by(|a, b| a.name.cmp(&b.name));
    file.write(index.dir())?;
    Ok((query, old.is_some()))
}

/// Removes a saved query. Returns whether there was one.
pub fn remove(writer: &mut IndexWriter, index: &crate::index::Index, name: &str) -> Result<bool> {
    writer.next_sequence()?;
    let mut file = File::read(index.dir())?;
    let before = file.queries.len();
    file.queries.retain(|query| query.name != name);
    if file.queries.len() == before {
        return Ok(false);
    }
    file.write(index.dir())?;
    Ok(true)
}

/// The embedding of a query's vector or text.
fn embedding(searcher: &Searcher, query: &SavedQuery, progress: &dyn Progress) -> Result<Option<Vec<f32>>> {
    let asked = match (&query.vector, &query.text) {
        (Some(vector), _) => Query::vector(vector.clone()),
        (None, Some(text)) => Query::text(text.clone()),
        (None, None) => return Ok(None),
    };
    Ok(searcher.embed(&[asked], progress)?.remove(0).into_embedding())
}

fn one_index(searcher: &Searcher) -> Result<&crate::index::Index> {
    match searcher.indexes() {
        [index] => Ok(index),
        shards => Err(Error::config(format!(
            "saved queries lie with one index, and this is a folder of {} shards; save them in a shard",
            shards.len()
        ))),
    }
}

/// The place until which `matches` were told by a program that lets the index remember it.
pub fn position(index: &crate::index::Index) -> Result<Option<u64>> {
    file::read_position(index.dir())
}

/// Remembers a place. The last program that does so is right.
pub fn set_position(index: &crate::index::Index, place: &Place) -> Result<()> {
    place.check(index)?;
    file::write_position(index.dir(), place.sequence())
}

/// Problems of the file with saved queries, for `verify`.
pub(crate) fn problem(dir: &std::path::Path) -> Option<Error> {
    File::read(dir).err().or_else(|| file::read_position(dir).err())
}

#[cfg(test)]
mod tests;
