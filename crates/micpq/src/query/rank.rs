//! The stages behind the scan: the second look at candidates, and the fusion with words.

use std::collections::HashMap;

use tantivy::DocAddress;

use crate::Result;
use crate::index::{Near, Reader};

/// A candidate with what it is ranked by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ranked {
    pub near: Near,
    pub score: f32,
}

/// A query's features with their weights, which add up to 1.
pub(super) type Aims = Vec<(Vec<f32>, f32)>;

/// Candidates in the order of their codes.
pub(super) fn by_code(near: &[Near]) -> Vec<Ranked> {
    near.iter().map(|&near| Ranked { near, score: -near.distance }).collect()
}

/// The first `first` candidates ordered by cosine, equal ones as they were; the others stay behind them, their scores
/// shifted below every cosine.
pub(super) fn again(reader: &Reader, near: &[Near], first: usize, aims: &Aims) -> Result<Vec<Ranked>> {
    let (head, tail) = near.split_at(first.min(near.len()));
    let lengths: Vec<f32> = aims.iter().map(|(aim, _)| dot(aim, aim).sqrt()).collect();
    let mut ranked = Vec::with_capacity(near.len());
    let mut next = head.iter();
    reader.features(head.iter().map(|n| n.address), |feature| {
        let length = dot(feature, feature).sqrt();
        let cosines = aims.iter().zip(&lengths).map(|((aim, weight), own)| weight * cosine(aim, feature, own * length));
        let near = *next.next().expect("a feature for every candidate");
        ranked.push(Ranked { near, score: cosines.sum() });
    })?;
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.extend(tail.iter().map(|&near| Ranked { near, score: -1.0 - near.distance }));
    Ok(ranked)
}

/// Vectors without a direction are like nothing.
fn cosine(a: &[f32], b: &[f32], lengths: f32) -> f32 {
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0) } else { 0.0 }
}

/// A product in sixteen running sums: the order of additions is stated, so the result is the same on every CPU, and the
/// loop vectorises.
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

/// What a rank counts: the constant of Cormack, Clarke and Büttcher (SIGIR 2009), with which no single list rules.
const RANK: f32 = 60.0;

/// Two lists as one, by weighted reciprocal rank. Equal scores are ordered by distance, then by insertion.
pub(super) fn fuse(codes: &[Ranked], words: &[Near], hybrid: f32) -> Vec<Ranked> {
    let mut fused: HashMap<DocAddress, Ranked> = HashMap::with_capacity(codes.len() + words.len());
    let codes = codes.iter().map(|r| r.near).enumerate().map(|(i, near)| (i, near, 1.0 - hybrid));
    let words = words.iter().copied().enumerate().map(|(i, near)| (i, near, hybrid));
    for (i, near, weight) in codes.chain(words).filter(|(_, _, weight)| *weight > 0.0) {
        let entry = fused.entry(near.address).or_insert(Ranked { near, score: 0.0 });
        entry.score += weight / (RANK + 1.0 + i as f32);
    }
    let mut list: Vec<Ranked> = fused.into_values().collect();
    list.sort_by(|a, b| {
        let order = b.score.total_cmp(&a.score).then(a.near.distance.total_cmp(&b.near.distance));
        order.then(a.near.sequence.cmp(&b.near.sequence))
    });
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(document: u32, distance: f32) -> Near {
        Near { address: DocAddress::new(0, document), distance, sequence: u64::from(document) }
    }

    #[test]
    fn fusion_is_the_sum_of_reciprocal_ranks() {
        let codes = by_code(&[near(1, 0.1), near(2, 0.2), near(3, 0.3)]);
        let words = [near(3, 0.3), near(9, 5.0)];
        let fused = fuse(&codes, &words, 0.25);
        let order: Vec<u32> = fused.iter().map(|r| r.near.address.doc_id).collect();
        assert_eq!(order, [3, 1, 2, 9]);
        assert_eq!(fused[0].score, 0.75 / 63.0 + 0.25 / 61.0);
        assert_eq!(fused[3].score, 0.25 / 62.0);
        let alone: Vec<u32> = fuse(&codes, &words, 1.0).iter().map(|r| r.near.address.doc_id).collect();
        assert_eq!(alone, [3, 9], "words alone bring only what has the words");
    }

    #[test]
    fn the_product_is_that_of_a_plain_loop() {
        for n in [0, 1, 15, 16, 17, 384] {
            let a: Vec<f32> = (0..n).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..n).map(|i| ((i * 5) % 11) as f32 - 5.0).collect();
            // Small whole numbers: every order of additions gives the same.
            assert_eq!(dot(&a, &b), a.iter().zip(&b).map(|(x, y)| x * y).sum::<f32>());
        }
    }
}
