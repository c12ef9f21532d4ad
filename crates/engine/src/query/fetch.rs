//! The contents of a page: documents, snippets, explanations.

use std::sync::atomic::{AtomicUsize, Ordering};

use tantivy::snippet::{SnippetGenerator, collapse_overlapped_ranges};

use super::answer::{Hit, HitChunk, SegmentPlan, Snippet};
use crate::index::{Candidate, Reader, Scanned, Stored};
use crate::model::DistanceTable;
use crate::{Error, Result};

/// Characters of a snippet.
pub(super) const SNIPPET: usize = 240;

/// The hit of a candidate, scored by its distance. It has codebook distances if a table is given.
pub(super) fn hit(
    reader: &Reader,
    candidate: Candidate,
    table: Option<&DistanceTable>,
    snippets: Option<&SnippetGenerator>,
    documents: bool,
) -> Result<Hit> {
    let Candidate { address, distance, .. } = candidate;
    let mut stored = Stored::default();
    if documents || snippets.is_some() {
        stored = reader.stored(address)?;
    }
    let snippet = match (snippets, stored.text.as_deref()) {
        (Some(generator), Some(text)) => Some(snippet(generator, text)),
        _ => None,
    };
    let first = reader.first(address);
    if !documents {
        stored = Stored::default();
    } else if first != address {
        // Only the first chunk has them.
        let Stored { labels, attributes, .. } = reader.stored(first)?;
        stored = Stored { labels, attributes, ..stored };
    }
    let chunk = reader.chunk_place(address);
    let chunk = chunk.map(|(number, start)| HitChunk { number, of: reader.chunks(first).count() as u32, start });
    let code = table.map(|_| reader.code(address)).transpose()?;
    let shape = reader.model().shape();
    let codewords = |code: &Vec<u8>| (0..shape.num_codebooks()).map(|m| shape.codeword(code, m) as u8).collect();
    Ok(Hit {
        id: reader.id(address)?,
        distance,
        score: -distance,
        text: stored.text,
        labels: stored.labels,
        attributes: stored.attributes,
        snippet,
        chunk,
        codebook_distances: table.zip(code.as_ref()).map(|(table, code)| table.codebook_distances(code)),
        codewords: code.as_ref().map(codewords),
    })
}

/// The bytes that hits may still have. Hits are counted as they are fetched, so that an answer that nobody can take is not
/// built whole.
pub(super) struct Room {
    max: Option<usize>,
    taken: AtomicUsize,
}

impl Room {
    pub fn new(max: Option<usize>) -> Room {
        Room { max, taken: AtomicUsize::new(0) }
    }

    /// Counts a hit. Refuses one that exceeds the room.
    pub fn take(&self, hit: &Hit) -> Result<()> {
        let Some(max) = self.max else { return Ok(()) };
        let bytes = hit.bytes();
        if self.taken.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > max {
            return Err(Error::TooLarge(format!(
                "the texts and attributes of the hits have more than {max} bytes; ask for fewer hits, or for hits without documents"
            )));
        }
        Ok(())
    }
}

fn snippet(generator: &SnippetGenerator, text: &str) -> Snippet {
    let found = generator.snippet(text);
    if found.fragment().is_empty() {
        let end = text.char_indices().nth(SNIPPET).map_or(text.len(), |(at, _)| at);
        return Snippet { text: text[..end].to_owned(), marks: Vec::new() };
    }
    let marks = collapse_overlapped_ranges(found.highlighted());
    Snippet { text: found.fragment().to_owned(), marks }
}

/// How the segments were searched for one query.
pub(super) fn plans(scanned: &[Scanned]) -> Vec<SegmentPlan> {
    let plan = |s: &Scanned| SegmentPlan {
        segment: s.segment.clone(),
        documents: s.documents,
        matching: s.matching,
        filter: s.filter.map(str::to_owned),
        strategy: s.plan.map(|plan| plan.strategy.to_string()),
        blocks: s.plan.map_or(0, |plan| plan.blocks),
        scanned: s.plan.map_or(0, |plan| plan.scanned),
        measured: s.plan.map_or(0, |plan| plan.measured),
    };
    scanned.iter().map(plan).collect()
}
