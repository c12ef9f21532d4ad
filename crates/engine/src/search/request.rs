//! The top-k request of a search over codes, and its check.

use crate::model::{CodeShape, DistanceTable};
use crate::{Error, Result};

/// Which documents of the order (distance, insertion sequence) to find: at most `k`, no farther than `radius`, and only
/// those that come `after` a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopKRequest {
    /// With more than there are documents, all of them are found.
    pub k: usize,
    /// Only documents at this distance or nearer: range search.
    pub radius: Option<f32>,
    /// Only documents after this distance and insertion sequence, those of the last hit of the page before. The next page
    /// begins exactly there, even within ties.
    pub after: Option<(f32, u64)>,
}

impl From<usize> for TopKRequest {
    fn from(k: usize) -> Self {
        TopKRequest { k, radius: None, after: None }
    }
}

impl TopKRequest {
    pub fn validate(&self) -> Result<()> {
        if self.k == 0 {
            return Err(Error::option("k", "is 0; request at least one neighbour"));
        }
        match self.radius {
            Some(r) if r.is_nan() || r < 0.0 => {
                return Err(Error::option("radius", format!("is {r}; give a number from 0 up")));
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
pub(crate) fn check(shape: CodeShape, tables: &[DistanceTable], request: impl Into<TopKRequest>) -> Result<()> {
    request.into().validate()?;
    for (i, table) in tables.iter().enumerate() {
        if table.shape() != shape {
            return Err(Error::config(format!(
                "query {i} measures codes of {:?}, these are of {shape:?}; make its distance table with the model of these codes",
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
