//! The stages after the scan: re-ranking, and the fusion with keywords.

use std::collections::HashMap;

use tantivy::DocAddress;

use crate::Result;
use crate::index::{Candidate, Reader};

/// A candidate with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ranked {
    pub candidate: Candidate,
    pub score: f32,
}

/// A query's embeddings with their weights, which add up to 1.
pub(super) type WeightedEmbeddings = Vec<(Vec<f32>, f32)>;

/// Candidates in the order of their codes.
pub(super) fn by_code(near: &[Candidate]) -> Vec<Ranked> {
    near.iter().map(|&candidate| Ranked { candidate, score: -candidate.distance }).collect()
}

/// The first `first` candidates ordered by cosine, equal ones as they were; the others stay behind them, their scores
/// shifted below every cosine.
pub(super) fn rerank(
    reader: &Reader,
    near: &[Candidate],
    first: usize,
    aims: &WeightedEmbeddings,
) -> Result<Vec<Ranked>> {
    let (head, tail) = near.split_at(first.min(near.len()));
    let lengths: Vec<f32> = aims.iter().map(|(aim, _)| dot(aim, aim).sqrt()).collect();
    let mut ranked = Vec::with_capacity(near.len());
    let mut next = head.iter();
    reader.read_rerank_vectors(head.iter().map(|n| n.address), |embedding| {
        let length = dot(embedding, embedding).sqrt();
        let cosines =
            aims.iter().zip(&lengths).map(|((aim, weight), own)| weight * cosine(aim, embedding, own * length));
        let candidate = *next.next().expect("a rerank vector for every candidate");
        ranked.push(Ranked { candidate, score: cosines.sum() });
    })?;
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.extend(tail.iter().map(|&candidate| Ranked { candidate, score: -1.0 - candidate.distance }));
    Ok(ranked)
}

/// 0 where a vector is zero.
fn cosine(a: &[f32], b: &[f32], lengths: f32) -> f32 {
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0) } else { 0.0 }
}

/// Sixteen running sums: the order of additions is fixed, so the result is the same on every CPU, and the loop vectorises.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a16, a_rest) = a.as_chunks::<16>();
    let (b16, b_rest) = b.as_chunks::<16>();
    for (x, y) in a16.iter().zip(b16) {
        for i in 0..16 {
            sums[i] += x[i] * y[i];
        }
    }
    for (i, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += x * y;
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// The constant of reciprocal rank fusion by Cormack, Clarke and Büttcher (SIGIR 2009): neither list dominates.
const RANK_OFFSET: f32 = 60.0;

/// Two lists as one, by weighted reciprocal rank. Equal scores are ordered by distance, then by insertion.
pub(super) fn fuse(codes: &[Ranked], keywords: &[Candidate], hybrid: f32) -> Vec<Ranked> {
    let mut fused: HashMap<DocAddress, Ranked> = HashMap::with_capacity(codes.len() + keywords.len());
    let codes = codes.iter().map(|r| r.candidate).enumerate().map(|(i, near)| (i, near, 1.0 - hybrid));
    let keywords = keywords.iter().copied().enumerate().map(|(i, near)| (i, near, hybrid));
    for (i, near, weight) in codes.chain(keywords).filter(|(_, _, weight)| *weight > 0.0) {
        let entry = fused.entry(near.address).or_insert(Ranked { candidate: near, score: 0.0 });
        entry.score += weight / (RANK_OFFSET + 1.0 + i as f32);
    }
    let mut list: Vec<Ranked> = fused.into_values().collect();
    list.sort_by(|a, b| {
        let order = b.score.total_cmp(&a.score).then(a.candidate.distance.total_cmp(&b.candidate.distance));
        order.then(a.candidate.sequence.cmp(&b.candidate.sequence))
    });
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(document: u32, distance: f32) -> Candidate {
        Candidate { address: DocAddress::new(0, document), distance, sequence: u64::from(document) }
    }

    #[test]
    fn fusion_is_the_sum_of_reciprocal_ranks() {
        let codes = by_code(&[near(1, 0.1), near(2, 0.2), near(3, 0.3)]);
        let keywords = [near(3, 0.3), near(9, 5.0)];
        let fused = fuse(&codes, &keywords, 0.25);
        let order: Vec<u32> = fused.iter().map(|r| r.candidate.address.doc_id).collect();
        assert_eq!(order, [3, 1, 2, 9]);
        assert_eq!(fused[0].score, 0.75 / 63.0 + 0.25 / 61.0);
        assert_eq!(fused[3].score, 0.25 / 62.0);
        let alone: Vec<u32> = fuse(&codes, &keywords, 1.0).iter().map(|r| r.candidate.address.doc_id).collect();
        assert_eq!(alone, [3, 9], "only documents with the keywords");
    }

    #[test]
    fn dot_equals_a_plain_loop() {
        for n in [0, 1, 15, 16, 17, 384] {
            let a: Vec<f32> = (0..n).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..n).map(|i| ((i * 5) % 11) as f32 - 5.0).collect();
            // Small whole numbers: every order of additions gives the same.
            assert_eq!(dot(&a, &b), a.iter().zip(&b).map(|(x, y)| x * y).sum::<f32>());
        }
    }
}
