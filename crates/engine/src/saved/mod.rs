//! Saved queries: which new documents match a query that was asked once.
//!
//! A saved query lies with its index, encoded. A document that is added later matches if it is near enough, by the cosine of
//! its stored vector or by its code, and passes the filter. Nothing is stored about matches: the order of insertion says which
//! documents are new, so an answer is a function of the index and a place in that order.

mod matching;

use crate::index::saved::{File, read_position, write_position};
pub use crate::index::saved::{SavedQuery, Threshold, carry};
use crate::index::{IndexWriter, RerankVectors};
use crate::query::{Query, Searcher};
use crate::{Error, Progress, Result};
pub use matching::{Match, MatchRequest, Matches, Place, Start, matches};

/// Saved queries of one index.
pub const MAX_QUERIES: usize = 10_000;
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
    read_position(index.dir())
}

/// Remembers a place. The last program that does so is right.
pub fn set_position(index: &crate::index::Index, place: &Place) -> Result<()> {
    place.check(index)?;
    write_position(index.dir(), place.sequence())
}

#[cfg(test)]
mod tests;
