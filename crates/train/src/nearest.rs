//! The k nearest of many, in a total order: by distance, then by row.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Clone, Copy, Debug)]
struct Found {
    distance: f32,
    row: u32,
}

impl Ord for Found {
    fn cmp(&self, other: &Self) -> Ordering {
        self.distance.total_cmp(&other.distance).then(self.row.cmp(&other.row))
    }
}

impl PartialOrd for Found {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Found {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Found {}

/// Keeps the best `k` of what it is shown.
pub(crate) struct Nearest {
    k: usize,
    // The worst kept is on top.
    heap: BinaryHeap<Found>,
    bound: f32,
}

impl Nearest {
    /// Room for `k`.
    pub fn new(k: usize) -> Self {
        Nearest { k, heap: BinaryHeap::with_capacity(k + 1), bound: f32::INFINITY }
    }

    /// What is farther than this is not kept.
    #[inline]
    pub fn bound(&self) -> f32 {
        self.bound
    }

    /// Shows one more.
    #[inline]
    pub fn push(&mut self, distance: f32, row: u32) {
        if distance > self.bound {
            return;
        }
        self.heap.push(Found { distance, row });
        if self.heap.len() > self.k {
            self.heap.pop();
        }
        if self.heap.len() == self.k {
            self.bound = self.heap.peek().map_or(f32::INFINITY, |worst| worst.distance);
        }
    }

    /// The rows kept, best first.
    pub fn into_rows(self) -> Vec<u32> {
        self.heap.into_sorted_vec().into_iter().map(|found| found.row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_kept_are_the_first_of_the_sorted(values in proptest::collection::vec(0u8..20, 0..80), k in 1usize..12) {
            let mut nearest = Nearest::new(k);
            values.iter().enumerate().for_each(|(row, &v)| nearest.push(f32::from(v), row as u32));
            let mut order: Vec<u32> = (0..values.len() as u32).collect();
            order.sort_by_key(|&row| (values[row as usize], row));
            order.truncate(k);
            prop_assert_eq!(nearest.into_rows(), order);
        }
    }
}
