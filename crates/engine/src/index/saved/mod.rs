//! Saved queries as a part of the index directory: what is stored of them, and how they go over to an index that replaces it.

mod carry;
mod file;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use carry::carry;
pub(crate) use file::{File, read_position, write_position};

use crate::{Error, Result};

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

pub(crate) fn shown(name: &str) -> String {
    name.chars().take(40).collect()
}

/// Problems of the file with saved queries, for `verify`.
pub(crate) fn problem(dir: &Path) -> Option<Error> {
    File::read(dir).err().or_else(|| read_position(dir).err())
}
