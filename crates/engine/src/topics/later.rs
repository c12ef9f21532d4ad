//! Topics of documents that were added after the topics were written into an attribute.
//!
//! Nothing is stored about topics but the attribute: a centre is the mean of the documents that have its number. So the numbers
//! stay what they are, also after a migration to another model.

use std::collections::HashMap;

use serde::Serialize;

use super::{Assignment, assign};
use crate::corpus::Value;
use crate::index::Index;
use crate::index::topics::Marked;
use crate::{Progress, Result};

/// The result of [`find_later`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Later {
    pub documents: u64,
    /// Documents that had no topic and get the nearest.
    pub assigned: u64,
    /// Documents that are far from every topic.
    pub outliers: u64,
    /// Documents by topic afterwards.
    pub topics: Vec<u64>,
    /// The topic of every document that has one, by its insertion sequence.
    #[serde(skip)]
    values: HashMap<u64, Value>,
}

/// Finds the nearest topic of each document that has none, where `attribute` has the topics of the others ([`super::mark`]). The
/// rule that tells outliers is that of [`super::find`].
pub fn find_later(index: &Index, attribute: &str, progress: &dyn Progress) -> Result<Later> {
    let walk = index.walk()?;
    let marked = Marked::read(&walk, index.model(), attribute, progress)?;
    let count = marked.count;
    let clusters = marked.clusters();
    let assigned = assign(&clusters, count);
    let Marked { own, sequences, .. } = &marked;
    let topic = |(own, found): (&Option<u16>, &Assignment)| own.or((!found.outlier).then_some(found.topic));
    let topics: Vec<Option<u16>> = own.iter().zip(&assigned).map(topic).collect();
    let mut sizes = vec![0; count];
    topics.iter().flatten().for_each(|&topic| sizes[usize::from(topic)] += 1);
    let values = sequences.iter().zip(&topics).filter_map(|(&s, topic)| Some((s, Value::Int((*topic)?.into()))));
    Ok(Later {
        documents: walk.len() as u64,
        assigned: own.iter().zip(&topics).filter(|(own, topic)| own.is_none() && topic.is_some()).count() as u64,
        outliers: topics.iter().filter(|topic| topic.is_none()).count() as u64,
        topics: sizes,
        values: values.collect(),
    })
}

/// Writes the topics that [`find_later`] found, in one commit. Returns how many documents changed.
pub fn mark_later(index: &Index, found: &Later, attribute: &str, progress: &dyn Progress) -> Result<usize> {
    index.set_attribute(attribute, &found.values, progress)
}
