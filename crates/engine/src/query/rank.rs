//! The stages after the scan: re-ranking, and the fusion with keywords.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::group::BEST_CHUNKS;
use super::shard::{Aim, ShardCandidate};
use crate::Result;
use crate::index::{Candidate, Reader};

/// A candidate and its shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Placed {
    pub shard: usize,
    pub near: ShardCandidate,
    /// The sum over its best chunks, where documents are ordered by it.
    pub sum: Option<f32>,
    /// Its score, and the chunk with the highest cosine, where it was among the first of its shard, which are re-ranked.
    pub reranked: Option<(f32, ShardCandidate)>,
}

impl Placed {
    /// High scores first, then near chunks, then early ones.
    pub fn order(&self, other: &Placed) -> Ordering {
        let sums = match (self.sum, other.sum) {
            (Some(own), Some(other)) => other.total_cmp(&own),
            _ => Ordering::Equal,
        };
        let (near, other) = (&self.near, &other.near);
        sums.then(near.distance.total_cmp(&other.distance)).then(near.sequence.cmp(&other.sequence))
    }

    fn by_code(self) -> Ranked {
        Ranked { candidate: self, score: self.sum.unwrap_or(-self.near.distance) }
    }

    /// By code, and behind the re-ranked candidates: below every cosine, and below every sum of them.
    pub fn behind(self) -> Ranked {
        let most = if self.sum.is_some() { BEST_CHUNKS as f32 } else { 1.0 };
        let ranked = self.by_code();
        Ranked { score: ranked.score - most, ..ranked }
    }
}

/// A candidate with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ranked {
    pub candidate: Placed,
    pub score: f32,
}

/// Candidates in the order of their codes.
pub(super) fn by_code(near: &[Placed]) -> Vec<Ranked> {
    near.iter().map(|candidate| candidate.by_code()).collect()
}

/// The first `first` candidates ordered by cosine, equal ones as they were; the others stay behind them.
pub(super) fn rerank(near: &[Placed], first: usize) -> Vec<Ranked> {
    let (head, tail) = near.split_at(first.min(near.len()));
    let rerank = |candidate: &Placed| {
        let (score, near) = candidate.reranked.expect("the first of all shards are among the first of their own");
        Ranked { candidate: Placed { near, ..*candidate }, score }
    };
    let mut ranked: Vec<Ranked> = head.iter().map(rerank).collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.extend(tail.iter().map(|candidate| candidate.behind()));
    ranked
}

/// The weighted cosines of candidates' rerank vectors with a query's embeddings.
pub(super) fn cosines(reader: &Reader, near: &[Candidate], aims: &[Aim]) -> Result<Vec<f32>> {
    let embeddings: Vec<&[f32]> = aims.iter().map(|aim| aim.embedding.as_slice()).collect();
    let all = reader.cosines(near.iter().map(|n| n.address), &embeddings)?;
    let weighted = |row: &[f32]| row.iter().zip(aims).map(|(cosine, aim)| aim.weight * cosine).sum();
    Ok(all.chunks_exact(aims.len().max(1)).map(weighted).collect())
}

/// The constant of reciprocal rank fusion by Cormack, Clarke and Büttcher (SIGIR 2009): neither list dominates.
const RANK_OFFSET: f32 = 60.0;

/// Two lists as one, by weighted reciprocal rank. Equal scores are ordered by distance, then by insertion.
pub(super) fn fuse(codes: &[Ranked], keywords: &[Placed], hybrid: f32) -> Vec<Ranked> {
    let mut fused: HashMap<(usize, u32, u32), Ranked> = HashMap::with_capacity(codes.len() + keywords.len());
    let codes = codes.iter().map(|r| r.candidate).enumerate().map(|(i, near)| (i, near, 1.0 - hybrid));
    let keywords = keywords.iter().copied().enumerate().map(|(i, near)| (i, near, hybrid));
    for (i, candidate, weight) in codes.chain(keywords).filter(|(_, _, weight)| *weight > 0.0) {
        let document = (candidate.shard, candidate.near.segment, candidate.near.first);
        let entry = fused.entry(document).or_insert(Ranked { candidate, score: 0.0 });
        entry.score += weight / (RANK_OFFSET + 1.0 + i as f32);
    }
    let mut list: Vec<Ranked> = fused.into_values().collect();
    list.sort_by(|a, b| {
        let (near, other) = (a.candidate.near, b.candidate.near);
        let order = b.score.total_cmp(&a.score).then(near.distance.total_cmp(&other.distance));
        order.then(near.sequence.cmp(&other.sequence))
    });
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(document: u32, distance: f32) -> Placed {
        let near =
            ShardCandidate { segment: 0, row: document, first: document, distance, sequence: u64::from(document) };
        Placed { shard: 0, near, sum: None, reranked: None }
    }

    #[test]
    fn fusion_is_the_sum_of_reciprocal_ranks() {
        let codes = by_code(&[near(1, 0.1), near(2, 0.2), near(3, 0.3)]);
        let keywords = [near(3, 0.3), near(9, 5.0)];
        let fused = fuse(&codes, &keywords, 0.25);
        let order: Vec<u32> = fused.iter().map(|r| r.candidate.near.row).collect();
        assert_eq!(order, [3, 1, 2, 9]);
        assert_eq!(fused[0].score, 0.75 / 63.0 + 0.25 / 61.0);
        assert_eq!(fused[3].score, 0.25 / 62.0);
        let alone: Vec<u32> = fuse(&codes, &keywords, 1.0).iter().map(|r| r.candidate.near.row).collect();
        assert_eq!(alone, [3, 9], "only documents with the keywords");
    }
}
