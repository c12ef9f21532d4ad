//! Saved queries of an index that another one replaces, with the same documents and other numbers of insertion.

use std::collections::HashMap;

use super::super::{Index, migrate::same_vectors};
use super::file::{self, File};
use crate::Result;

/// Gives the saved queries of an index to the one that replaces it. No document that is new to a query there is lost; one that
/// was added again meanwhile may be told twice. Texts keep their embeddings if the encoder is the same; otherwise they are
/// encoded when they are needed.
pub fn carry(old: &Index, new: &Index) -> Result<()> {
    let mut file = File::read(old.dir())?;
    let position = file::read_position(old.dir())?;
    if file.queries.is_empty() && position.is_none() {
        return Ok(());
    }
    let places = Places::new(old, new)?;
    for query in &mut file.queries {
        query.since = places.of(query.since);
        if query.text.is_some() && !same_vectors(old.model(), new.model()) {
            query.vector = None;
        }
    }
    if !file.queries.is_empty() {
        file.write(new.dir())?;
    }
    position.map_or(Ok(()), |position| file::write_position(new.dir(), places.of(position)))
}

/// Places in the order of insertion of the new index.
struct Places {
    /// Sequences of the old index, rising.
    old: Vec<u64>,
    /// The least new sequence of this document and all after it, and that of a document to come.
    new: Vec<u64>,
}

impl Places {
    fn new(old: &Index, new: &Index) -> Result<Places> {
        let walk = new.walk()?;
        let mut sequences = HashMap::with_capacity(walk.len());
        for i in 0..walk.len() {
            let (id, sequence) = walk.id_and_sequence(i)?;
            sequences.insert(id.to_string(), sequence);
        }
        let walk = old.walk()?;
        let mut places = Places { old: Vec::with_capacity(walk.len()), new: Vec::with_capacity(walk.len() + 1) };
        for i in 0..walk.len() {
            let (id, sequence) = walk.id_and_sequence(i)?;
            places.old.push(sequence);
            places.new.push(sequences.get(&id.to_string()).copied().unwrap_or(u64::MAX));
        }
        places.new.push(new.next_sequence()?);
        for i in (0..walk.len()).rev() {
            places.new[i] = places.new[i].min(places.new[i + 1]);
        }
        Ok(places)
    }

    /// The place before everything that an old place is before.
    fn of(&self, old: u64) -> u64 {
        self.new[self.old.partition_point(|&sequence| sequence < old)]
    }
}
