//! The stages after the scan: re-ranking, and the fusion with keywords.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::calls::{Aim, ShardCandidate};
use super::group::BEST_CHUNKS;
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

/// The first `first` candidates ordered by cosine, equal ones as they were; the others stay behind them. Of that list the
/// first `most`.
pub(super) fn rerank(near: &[Placed], first: usize, most: usize) -> Vec<Ranked> {
    let (head, tail) = near.split_at(first.min(near.len()));
    let reranked = |i: usize| head[i].reranked.expect("the first of all shards are among the first of their own");
    let mut order: Vec<(f32, usize)> = (0..head.len()).map(|i| (reranked(i).0, i)).collect();
    let by_score = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if most < order.len() {
        // A page is ten of a thousand.
        order.select_nth_unstable_by(most, by_score);
        order.truncate(most);
    }
    order.sort_unstable_by(by_score);
    let ranked = |(score, i): (f32, usize)| Ranked { candidate: Placed { near: reranked(i).1, ..head[i] }, score };
    let tail = tail.iter().map(|candidate| candidate.behind());
    order.into_iter().map(ranked).chain(tail).take(most).collect()
}

/// The weighted cosines of candidates' rerank vectors with a query's embeddings.
pub(super) fn cosines<'a>(
    reader: &Reader,
    near: impl Iterator<Item = &'a Candidate> + Clone,
    aims: &[Aim],
) -> Result<Vec<f32>> {
    let embeddings: Vec<&[f32]> = aims.iter().map(|aim| aim.embedding.as_slice()).collect();
    let all = reader.cosines(near.map(|n| n.address), &embeddings)?;
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
    fn the_first_of_a_reranked_list_are_those_of_the_whole() {
        let placed = |i: u32| {
            let near = near(i, i as f32);
            // Many equal scores: their order is that of the codes.
            Placed { reranked: Some((((i * 7919) % 13) as f32, ShardCandidate { row: i + 1, ..near.near })), ..near }
        };
        let near: Vec<Placed> = (0..200).map(placed).collect();
        for first in [0, 1, 50, 200, 300] {
            let mut expected: Vec<Ranked> = near[..first.min(200)]
                .iter()
                .map(|p| Ranked {
                    candidate: Placed { near: p.reranked.unwrap().1, ..*p },
                    score: p.reranked.unwrap().0,
                })
                .collect();
            expected.sort_by(|a, b| b.score.total_cmp(&a.score));
            expected.extend(near[first.min(200)..].iter().map(|p| p.behind()));
            for most in [0, 1, 10, 49, 50, 51, 199, 200, 1000] {
                assert_eq!(rerank(&near, first, most), expected[..most.min(200)], "{most} of {first}");
            }
        }
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
