//! Changes to duplicates: they are deleted, or marked by an attribute.

use std::collections::HashMap;

use serde::Serialize;

use super::Duplicates;
use crate::corpus::{DocId, Value};
use crate::index::Index;
use crate::{Error, Progress, Result};

/// The result of [`delete`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Deleted {
    pub deleted: usize,
    /// Duplicates that stay, because they or their representatives were replaced or deleted since they were found.
    pub stale: usize,
    /// Documents of the index afterwards.
    pub documents: usize,
}

/// Deletes duplicates; representatives stay. It is one commit: when it is interrupted, nothing is deleted.
///
/// Other programs may have written since the duplicates were found. The writer is open now, so that what holds at this
/// point holds at the commit: a duplicate is deleted only if it and its representative are still the documents that were
/// compared.
pub fn delete(index: &Index, found: &Duplicates, progress: &dyn Progress) -> Result<Deleted> {
    let mut writer = index.writer()?;
    progress.stage("deleting duplicates", Some((found.exact + found.near) as u64));
    let unchanged = |id: &DocId, sequence: u64| -> Result<bool> {
        Ok(index.get(id)?.is_some_and(|record| record.sequence == sequence))
    };
    let mut done = Deleted::default();
    for group in &found.groups {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let represented = unchanged(&group.representative, group.sequence)?;
        for duplicate in &group.duplicates {
            if represented && unchanged(&duplicate.id, duplicate.sequence)? {
                done.deleted += usize::from(writer.delete(&duplicate.id)?);
            } else {
                done.stale += 1;
            }
        }
        progress.advance(group.duplicates.len() as u64);
    }
    done.documents = writer.commit(progress)?;
    writer.close(progress)?;
    index.reload(progress)?;
    Ok(done)
}

/// Gives every duplicate an attribute with the id of its representative, as text, and takes the attribute from all other
/// documents. Returns how many documents changed.
pub fn mark(index: &Index, found: &Duplicates, attribute: &str, progress: &dyn Progress) -> Result<usize> {
    let mut values = HashMap::new();
    for group in &found.groups {
        let id = Value::Text(group.representative.to_string());
        values.extend(group.duplicates.iter().map(|duplicate| (duplicate.sequence, id.clone())));
    }
    index.set_attribute(attribute, &values, progress)
}
