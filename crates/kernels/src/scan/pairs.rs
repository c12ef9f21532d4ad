//! Prefixes in order of their minimum distance, the most promising first, computed on demand.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::bound::Query;

/// Split of prefixes of `bits` bits into the values of a first byte (or its high bits) and of a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Levels {
    pub bits: u32,
    pub first: usize,
    pub second: usize,
}

impl Levels {
    pub fn of(bits: u32) -> Option<Levels> {
        match bits {
            0 => None,
            1..=8 => Some(Levels { bits, first: 1 << bits, second: 1 }),
            _ => Some(Levels { bits, first: 256, second: 1 << (bits - 8) }),
        }
    }

    /// Minimum over every group of byte values that share their high bits.
    pub fn fold<T: Copy>(values: [T; 256], groups: usize, min: impl Fn(T, T) -> T) -> Vec<T> {
        values
            .chunks_exact(256 / groups)
            .map(|c| c.iter().copied().reduce(&min).expect("chunks of at least one"))
            .collect()
    }
}

/// Values of a byte in rising order, sorted on demand: the first few of 256 take a tenth of the time of sorting all.
struct Ranked {
    // (bits of the sum, value): sums are not negative, so they compare as their bits do.
    values: Vec<(u64, u32)>,
    sorted: usize,
}

impl Ranked {
    fn new(values: &[f64]) -> Ranked {
        Ranked { values: values.iter().enumerate().map(|(i, v)| (v.to_bits(), i as u32)).collect(), sorted: 0 }
    }

    fn get(&mut self, i: usize) -> Option<(f64, usize)> {
        if i >= self.values.len() {
            return None;
        }
        while i >= self.sorted {
            let rest = &mut self.values[self.sorted..];
            let count = (self.sorted * 2).max(16).min(rest.len());
            if count < rest.len() {
                rest.select_nth_unstable(count);
            }
            rest[..count].sort_unstable();
            self.sorted += count;
        }
        let (bits, value) = self.values[i];
        Some((f64::from_bits(bits), value as usize))
    }
}

/// Prefixes with their excess over the smallest distance, in rising order.
pub(super) struct Pairs {
    levels: Levels,
    first: Ranked,
    second: Ranked,
    // For every first value reached so far, its next second value.
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Pairs {
    pub fn new(query: &Query, levels: Levels) -> Pairs {
        let ranked = |row: usize, groups: usize| Ranked::new(&Levels::fold(query.byte_excess(row), groups, f64::min));
        let first = ranked(0, levels.first);
        let second = if levels.second > 1 { ranked(1, levels.second) } else { Ranked::new(&[0.0]) };
        let mut pairs = Pairs { levels, first, second, heap: BinaryHeap::new() };
        pairs.reach(0, 0);
        pairs
    }

    fn reach(&mut self, i: usize, j: usize) {
        if let (Some((a, _)), Some((b, _))) = (self.first.get(i), self.second.get(j)) {
            self.heap.push(Reverse(((a + b).to_bits(), i as u32, j as u32)));
        }
    }
}

impl Iterator for Pairs {
    type Item = (f64, usize);

    fn next(&mut self) -> Option<(f64, usize)> {
        let Reverse((sum, i, j)) = self.heap.pop()?;
        let (i, j) = (i as usize, j as usize);
        self.reach(i, j + 1);
        if j == 0 {
            self.reach(i + 1, 0);
        }
        let (_, first) = self.first.get(i)?;
        let (_, second) = self.second.get(j)?;
        Some((f64::from_bits(sum), first * self.levels.second + second))
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Shape;
    use super::*;

    #[test]
    fn every_prefix_comes_once_in_rising_order() {
        let shape = Shape::new(4, 16);
        let table: Vec<f32> = (0..64).map(|i| (crate::dropout::mix(7, i) % 1000) as f32).collect();
        let query = Query::new(shape, &table);
        for bits in [4, 8, 12, 16] {
            let all: Vec<(f64, usize)> = Pairs::new(&query, Levels::of(bits).unwrap()).collect();
            assert!(all.is_sorted_by(|a, b| a.0 <= b.0));
            let mut prefixes: Vec<usize> = all.iter().map(|p| p.1).collect();
            prefixes.sort_unstable();
            assert!(prefixes.into_iter().eq(0..1 << bits));
        }
    }
}
