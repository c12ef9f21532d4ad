//! What is asked of a search over codes, and what cannot be asked.

use crate::model::{CodeShape, Table};
use crate::{Error, Result};

/// Which documents of the order (distance, insertion sequence) are wanted: at most `k`, no farther than `within`, those
/// that come `after` a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Want {
    /// At most so many. More than there are documents brings all of them.
    pub k: usize,
    /// Only documents at this distance or nearer: range search.
    pub within: Option<f32>,
    /// Only documents behind this distance and insertion sequence, the last of the page before: the next page begins
    /// exactly there, whatever ties lie across the border.
    pub after: Option<(f32, u64)>,
}

impl From<usize> for Want {
    fn from(k: usize) -> Self {
        Want { k, within: None, after: None }
    }
}

impl Want {
    /// Refuses what cannot be asked for.
    pub fn validate(&self) -> Result<()> {
        if self.k == 0 {
            return Err(Error::config("k is 0; ask for at least one neighbour"));
        }
        match self.within {
            Some(r) if r.is_nan() || r < 0.0 => {
                return Err(Error::config(format!(
                    "no document lies within a distance of {r}; give a number from 0 up"
                )));
            }
            _ => {}
        }
        match self.after {
            Some((d, _)) if !d.is_finite() || d < 0.0 => Err(Error::config(format!(
                "a page cannot begin after a distance of {d}; give the distance and sequence of a document found before"
            ))),
            _ => Ok(()),
        }
    }
}

/// Refuses queries that do not fit the codes.
pub(crate) fn check(shape: CodeShape, tables: &[Table], want: impl Into<Want>) -> Result<()> {
    want.into().validate()?;
    for (i, table) in tables.iter().enumerate() {
        if table.shape() != shape {
            return Err(Error::config(format!(
                "query {i} measures codes of {:?}, these are of {shape:?}; make it with the model of these codes",
                table.shape()
            )));
        }
        if let Some(v) = table.values().iter().find(|v| !v.is_finite() || **v < 0.0) {
            return Err(Error::config(format!(
                "query {i} has a distance of {v} to a codeword: its vector holds a value that is not a finite number"
            )));
        }
    }
    Ok(())
}
