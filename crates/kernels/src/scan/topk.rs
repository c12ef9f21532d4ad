//! The best `k` under one total order, so that every way of scanning gives the same answer.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A document the scan kept: its distance, and the key by which equal distances are ordered.
#[derive(Clone, Copy, Debug)]
pub struct Neighbour {
    /// Sum of the query's table over the document's code, in book order, in `f32`.
    pub distance: f32,
    /// The document's key: its position, or what the blocks' owner gave for it.
    pub key: u32,
}

impl Ord for Neighbour {
    fn cmp(&self, other: &Self) -> Ordering {
        self.distance.total_cmp(&other.distance).then(self.key.cmp(&other.key))
    }
}

impl PartialOrd for Neighbour {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Neighbour {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Neighbour {}

/// Collects the `k` least neighbours in the order (distance, key), whatever the order they come in.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    ceiling: f32,
    // The worst kept neighbour on top.
    heap: BinaryHeap<Neighbour>,
}

impl TopK {
    /// Room for `k`; nothing is kept when `k` is zero.
    pub fn new(k: usize) -> Self {
        TopK::below(k, f32::INFINITY)
    }

    /// Room for `k` of which none is farther than `ceiling`: what is known from elsewhere (another part of the
    /// documents, a sample) spares this scan the documents that cannot matter. A distance equal to the ceiling stays.
    pub fn below(k: usize, ceiling: f32) -> Self {
        // A user may ask for "all" with a number far above the index: memory follows what is found.
        TopK { k, ceiling, heap: BinaryHeap::with_capacity(k.min(1024)) }
    }

    /// Takes a neighbour if it is among the best so far; tells whether it was taken.
    pub fn push(&mut self, neighbour: Neighbour) -> bool {
        if neighbour.distance > self.ceiling {
            return false;
        }
        if self.heap.len() < self.k {
            self.heap.push(neighbour);
            return true;
        }
        match self.heap.peek_mut() {
            Some(mut worst) if neighbour < *worst => {
                *worst = neighbour;
                true
            }
            _ => false,
        }
    }

    /// The distance a newcomer must not exceed: the worst of `k`, or the ceiling until `k` are there.
    pub fn limit(&self) -> f32 {
        match self.heap.peek() {
            Some(worst) if self.heap.len() == self.k => worst.distance,
            _ => self.ceiling,
        }
    }

    /// Whether `k` are there.
    pub fn is_full(&self) -> bool {
        self.heap.len() >= self.k
    }

    /// How many were asked for.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Neighbours kept so far.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The neighbours, best first.
    pub fn into_sorted(self) -> Vec<Neighbour> {
        self.heap.into_sorted_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_distances_go_by_key_whatever_the_order_of_arrival() {
        let all: Vec<Neighbour> =
            (0..200u32).map(|i| Neighbour { distance: (i % 5) as f32, key: (i * 77) % 200 }).collect();
        let mut sorted = all.clone();
        sorted.sort();
        for k in [0, 1, 39, 40, 41, 200, 1000] {
            let mut forward = TopK::new(k);
            let mut backward = TopK::new(k);
            for &n in &all {
                forward.push(n);
            }
            for &n in all.iter().rev() {
                backward.push(n);
            }
            assert_eq!(forward.into_sorted(), sorted[..k.min(200)]);
            assert_eq!(backward.into_sorted(), sorted[..k.min(200)]);
        }
    }
}
