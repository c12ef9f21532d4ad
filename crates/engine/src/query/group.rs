//! From chunks to documents, exactly.
//!
//! The scan gives chunks in their order (distance, insertion). A document takes the place of its best chunk: the list of
//! documents is the list of chunks with every later chunk of a document left out. So the scan goes on, in growing steps, until
//! enough documents are found. The sum of the best chunks orders documents otherwise, and the scan goes on until no document
//! that it has not met can be among the first.
//!
//! All chunks of a document are in one segment, so every shard groups its own, and lists of documents are merged like others.

use std::collections::HashSet;

use tantivy::DocAddress;

use super::calls::Aim;
use super::config::Group;
use super::rank;
use super::shard::each;
use crate::Result;
use crate::index::{Bitmap, Candidate, Filter, Reader, Scanned};
use crate::model::DistanceTable;
use crate::search::TopKRequest;

/// Chunks of a document that its score counts at most.
pub(super) const BEST_CHUNKS: usize = 3;

/// A document as its best chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grouped {
    pub chunk: Candidate,
    /// Over its best chunks, where documents are ordered by it.
    pub sum: Option<f32>,
}

/// Finds the documents of a request.
pub(super) struct Grouping<'a> {
    reader: &'a Reader,
    group: Group,
    filter: Option<&'a Filter>,
    /// The chunks that match the filter, by segment.
    matching: Option<Vec<Bitmap>>,
    radius: Option<f32>,
}

impl<'a> Grouping<'a> {
    /// `None` in an index without chunks. `reranks`: whether candidates will be re-ranked, which reads their chunks.
    pub fn new(
        reader: &'a Reader,
        group: Group,
        filter: Option<&'a Filter>,
        radius: Option<f32>,
        reranks: bool,
    ) -> Result<Option<Self>> {
        if !reader.has_chunks() {
            return Ok(None);
        }
        let needed = reranks || group == Group::Sum;
        let matching = filter.filter(|_| needed).map(|filter| reader.matching(filter)).transpose()?;
        Ok(Some(Grouping { reader, group, filter, matching, radius }))
    }

    /// The best documents of every query, best first: `request.k` of them, after `request.after`.
    fn nearest(&self, tables: &[DistanceTable], request: &TopKRequest) -> Result<Vec<(Vec<Grouped>, Vec<Scanned>)>> {
        let k = request.k.saturating_mul(self.reader.chunks_per_document()).saturating_add(1);
        let first = TopKRequest { k, radius: request.radius, after: None };
        let scans: Vec<_> = tables.iter().zip(self.reader.nearest(tables, &first, self.filter)?).collect();
        let documents = each(&scans, |(table, (chunks, _))| self.documents(table, request, chunks.clone(), first))?;
        Ok(documents.into_iter().zip(scans).map(|(documents, (_, (_, scanned)))| (documents, scanned)).collect())
    }

    /// The documents of one query, from the `first` chunks on.
    fn documents(
        &self,
        table: &DistanceTable,
        request: &TopKRequest,
        mut chunks: Vec<Candidate>,
        first: TopKRequest,
    ) -> Result<Vec<Grouped>> {
        let mut seen: HashSet<DocAddress> = HashSet::new();
        let mut found: Vec<Grouped> = Vec::new();
        let mut step = first;
        loop {
            let last = chunks.last().copied().filter(|_| chunks.len() == step.k);
            for chunk in chunks {
                if seen.insert(self.reader.first(chunk.address)) && is_after(&chunk, request.after) {
                    found.push(Grouped { chunk, sum: self.sum(table, &chunk) });
                }
            }
            let Some(last) = last.filter(|last| !self.is_enough(&found, request.k, last)) else { break };
            // A page may end inside a large tie, so the scan goes on by position, not by distance.
            step = TopKRequest { k: step.k.saturating_mul(2), after: Some((last.distance, last.sequence)), ..step };
            let next = self.reader.nearest(std::slice::from_ref(table), &step, self.filter)?.pop();
            chunks = next.map(|(chunks, _)| chunks).unwrap_or_default();
        }
        if self.group == Group::Sum {
            // Stable: equal sums stay ordered by their best chunks.
            found.sort_by(|a, b| b.sum.unwrap_or(0.0).total_cmp(&a.sum.unwrap_or(0.0)));
        }
        found.truncate(request.k);
        Ok(found)
    }

    /// Whether the first `k` documents are certain once every chunk up to `last` was seen.
    fn is_enough(&self, found: &[Grouped], k: usize, last: &Candidate) -> bool {
        if found.len() < k {
            return false;
        }
        match self.group {
            Group::Best => true,
            Group::Sum => {
                // All chunks of a document not met are as far as the last chunk or farther. Rounding is monotonic, so this
                // bounds the rounded sums too.
                let bound = sum([weight(last.distance); BEST_CHUNKS].into_iter());
                found.iter().filter(|document| document.sum.is_some_and(|sum| sum > bound)).count() >= k
            }
        }
    }

    fn sum(&self, table: &DistanceTable, best: &Candidate) -> Option<f32> {
        let sum = || sum(self.best_chunks(table, best.address).iter().map(|chunk| weight(chunk.distance)));
        (self.group == Group::Sum).then(sum)
    }

    /// The best chunks of a row's document by code, at most [`BEST_CHUNKS`], of those that match filter and radius.
    fn best_chunks(&self, table: &DistanceTable, address: DocAddress) -> Vec<Candidate> {
        let chunks = self.reader.chunks(self.reader.first(address));
        let matches =
            |a: &DocAddress| self.matching.as_ref().is_none_or(|all| all[a.segment_ord as usize].contains(a.doc_id));
        let mut near: Vec<Candidate> = chunks.filter(matches).map(|a| self.reader.near(table, a)).collect();
        near.retain(|chunk| self.radius.is_none_or(|radius| chunk.distance <= radius));
        near.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.sequence.cmp(&b.sequence)));
        near.truncate(BEST_CHUNKS);
        near
    }

    /// The scores of documents by the cosines of their best chunks, each with the chunk that has the highest.
    pub fn rerank(&self, table: &DistanceTable, head: &[Grouped], aims: &[Aim]) -> Result<Vec<(f32, Candidate)>> {
        let chunks: Vec<Vec<Candidate>> = head.iter().map(|d| self.best_chunks(table, d.chunk.address)).collect();
        let mut cosines = rank::cosines(self.reader, chunks.iter().flatten(), aims)?.into_iter();
        let score = |(document, chunks): (&Grouped, &Vec<Candidate>)| {
            let own: Vec<f32> = cosines.by_ref().take(chunks.len()).collect();
            // Of equal cosines the first, which is the nearest by code.
            let best = (0..own.len()).rev().max_by(|&a, &b| own[a].total_cmp(&own[b])).unwrap_or(0);
            let score = match self.group {
                Group::Best => own.get(best).copied().unwrap_or(-1.0),
                Group::Sum => sum(own.iter().map(|cosine| (1.0 + cosine) / 2.0)),
            };
            (score, chunks.get(best).copied().unwrap_or(document.chunk))
        };
        Ok(head.iter().zip(&chunks).map(score).collect())
    }
}

/// The best documents of every query, best first, and how each segment was scanned. Without chunks a row is a document.
pub(super) fn nearest(
    reader: &Reader,
    grouping: Option<&Grouping>,
    tables: &[DistanceTable],
    request: &TopKRequest,
    filter: Option<&Filter>,
) -> Result<Vec<(Vec<Grouped>, Vec<Scanned>)>> {
    if let Some(grouping) = grouping {
        return grouping.nearest(tables, request);
    }
    let found = reader.nearest(tables, request, filter)?.into_iter();
    let alone = |chunk: Candidate| Grouped { chunk, sum: None };
    Ok(found.map(|(near, scanned)| (near.into_iter().map(alone).collect(), scanned)).collect())
}

fn is_after(chunk: &Candidate, after: Option<(f32, u64)>) -> bool {
    after.is_none_or(|(distance, sequence)| {
        chunk.distance.total_cmp(&(distance + 0.0)).then(chunk.sequence.cmp(&sequence)).is_gt()
    })
}

/// The part of a chunk at this distance in its document's sum.
fn weight(distance: f32) -> f32 {
    1.0 / (1.0 + distance)
}

fn sum(parts: impl Iterator<Item = f32>) -> f32 {
    parts.fold(0.0, |sum, part| sum + part)
}
