//! What the sorted order is good for: the first two bytes of a code bound its distance, so that whole prefixes are
//! passed over unseen, and the most promising ones are looked at first.

use std::ops::Range;

use super::bound::{Query, Scan};
use super::layout::{BLOCK, BlocksRef};
use super::nearest::{lanes, sweep};
use super::topk::{Effort, Neighbour, TopK};
use crate::Backend;

/// How the directory's prefixes split into the values of a first byte (or its high nibble) and of a second.
#[derive(Clone, Copy)]
struct Levels {
    first: usize,
    second: usize,
}

impl Levels {
    fn of(blocks: &BlocksRef) -> Option<Levels> {
        match blocks.prefix_bits() {
            0 => None,
            bits @ 1..=8 => Some(Levels { first: 1 << bits, second: 1 }),
            bits => Some(Levels { first: 256, second: 1 << (bits - 8) }),
        }
    }

    /// Least of a byte's values for every group of bytes that share their high bits.
    fn fold<T: Copy>(values: [T; 256], groups: usize, least: impl Fn(T, T) -> T) -> Vec<T> {
        values.chunks_exact(256 / groups).map(|c| c.iter().copied().reduce(&least).expect("chunks of one up")).collect()
    }
}

/// A distance that at least `k` documents of the filter do not exceed, found among the most promising prefixes;
/// infinity where there is no directory or no such distance was found cheaply.
///
/// Starting a scan below it spares the rescoring of most documents that a scan from nothing would take and drop.
///
/// `best` is an empty collector, which says how many are wanted and from where on; it is left with what the sample cost.
pub fn ceiling(backend: Backend, blocks: &BlocksRef, query: &Query, best: &mut TopK, filter: Option<&[u64]>) -> f32 {
    let k = best.k();
    assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
    let Some(levels) = Levels::of(blocks) else { return f32::INFINITY };
    // One document in 1,024: twice as many rescored in the scan as after a sample sixteen times as large, which cost
    // more than it saved (16 books, noise, 1M documents; with fewer books much more).
    let twice = k.saturating_mul(2);
    let sample = (blocks.len() / 1024).clamp(twice, twice.max(1 << 16));
    // Where few documents pass the filter, a sample that holds k of them would cost as much as the scan.
    let most = sample.saturating_mul(16);
    if k == 0 || most > blocks.len() {
        return f32::INFINITY;
    }
    // The best few values of each byte: their pairs hold all the sample needs.
    const FEW: usize = 24;
    let order = |row: usize, groups: usize| -> Vec<(f64, usize)> {
        let values = Levels::fold(query.byte_excess(row), groups, f64::min);
        let mut order: Vec<(u64, usize)> = values.iter().enumerate().map(|(i, v)| (v.to_bits(), i)).collect();
        if order.len() > FEW {
            order.select_nth_unstable(FEW);
            order.truncate(FEW);
        }
        order.sort_unstable();
        order.into_iter().map(|(_, i)| (values[i], i)).collect()
    };
    let first = order(0, levels.first);
    let second = if levels.second > 1 { order(1, levels.second) } else { vec![(0.0, 0)] };
    // Pairs in order of their bound: each first value keeps its next second value in a heap.
    let mut heap = std::collections::BinaryHeap::new();
    let entry = |i: usize, j: usize| std::cmp::Reverse((Bits::of(first[i].0 + second[j].0), i, j));
    heap.push(entry(0, 0));
    let mut seen = 0;
    while let Some(std::cmp::Reverse((_, i, j))) = heap.pop() {
        let bucket = blocks.bucket(first[i].1 * levels.second + second[j].1);
        seen += bucket.len();
        for block in bucket.start / BLOCK..bucket.end.div_ceil(BLOCK) {
            let sums = blocks.shape().distances(backend, query.table(), blocks.block(block));
            best.spend(Effort { blocks: 0, measured: BLOCK });
            let limit = best.limit();
            let mut near = sums.iter().enumerate().fold(0, |m, (lane, &sum)| m | u32::from(sum <= limit) << lane);
            near &= lanes(block, &bucket);
            while near != 0 {
                let lane = near.trailing_zeros() as usize;
                near &= near - 1;
                let key = blocks.key(block * BLOCK + lane);
                if filter.is_none_or(|bits| bits[key as usize / 64] >> (key % 64) & 1 == 1) {
                    best.push(Neighbour { distance: sums[lane], key });
                }
            }
        }
        if best.is_full() && seen >= sample || seen > most {
            break;
        }
        if j + 1 < second.len() {
            heap.push(entry(i, j + 1));
        }
        if j == 0 && i + 1 < first.len() {
            heap.push(entry(i + 1, 0));
        }
    }
    best.settle();
    best.limit()
}

/// Sums that are not negative compare as their bits do.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Bits(u64);

impl Bits {
    fn of(sum: f64) -> Bits {
        Bits(sum.to_bits())
    }
}

/// Documents between two runs that are looked at too, since beginning anew costs as much: two blocks.
const GAP: usize = 64;

/// The least sums of bytes under each value of the two levels, at the present scale.
struct Sums {
    first: Vec<u8>,
    second: Vec<u8>,
}

impl Sums {
    fn of(scan: &Scan, levels: Levels) -> Sums {
        let second =
            if levels.second > 1 { Levels::fold(scan.bound.byte_sums(1), levels.second, u8::min) } else { vec![0] };
        Sums { first: Levels::fold(scan.bound.byte_sums(0), levels.first, u8::min), second }
    }

    /// The next run of neighbouring prefixes under `first`, from its second value `from` on, that pass the threshold:
    /// their documents, and where to go on.
    fn run(&self, blocks: &BlocksRef, first: usize, from: usize, threshold: u8) -> Option<(Range<usize>, usize)> {
        let room = threshold.checked_sub(self.first[first])?;
        let begin = from + self.second[from..].iter().position(|&sum| sum <= room)?;
        let prefix = first * self.second.len();
        let mut end = begin + 1;
        let mut positions = blocks.bucket(prefix + begin);
        for (second, &sum) in self.second.iter().enumerate().skip(end) {
            if sum <= room {
                end = second + 1;
                positions.end = blocks.bucket(prefix + second).end;
            } else if blocks.bucket(prefix + second).end.saturating_sub(positions.end) > GAP {
                break;
            }
        }
        Some((positions, end))
    }
}

fn clip(run: Range<usize>, positions: &Range<usize>) -> Range<usize> {
    run.start.max(positions.start)..run.end.min(positions.end)
}

/// How many documents lie under prefixes that a collector's limit does not rule out: the share by which a caller
/// chooses between [`nearest_by_prefix`] and [`super::nearest`].
pub fn passing(blocks: &BlocksRef, query: &Query, limit: f32) -> usize {
    assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
    let Some(levels) = Levels::of(blocks) else { return blocks.len() };
    let mut best = TopK::below(1, limit);
    let scan = Scan::new(Backend::Reference, query, &mut best);
    let sums = Sums::of(&scan, levels);
    let mut documents = 0;
    for first in 0..levels.first {
        let mut second = 0;
        while let Some((run, next)) = sums.run(blocks, first, second, scan.bound.threshold) {
            documents += run.len();
            second = next;
        }
    }
    documents
}

/// As [`super::nearest`] for one query, but only prefixes the limit does not rule out are looked at, those with the
/// best first byte first.
///
/// # Panics
/// As [`super::nearest`].
pub fn nearest_by_prefix(
    backend: Backend,
    blocks: &BlocksRef,
    positions: Range<usize>,
    query: &Query,
    best: &mut TopK,
    filter: Option<&[u64]>,
) {
    assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
    assert!(positions.end <= blocks.len(), "positions {positions:?} of {} documents", blocks.len());
    let Some(levels) = Levels::of(blocks) else {
        return super::nearest(backend, blocks, positions, &[query], std::slice::from_mut(best), filter);
    };
    let scan = &mut [Scan::new(backend, query, best)];
    let exact = Levels::fold(scan[0].query.byte_excess(0), levels.first, f64::min);
    let mut order: Vec<usize> = (0..levels.first).collect();
    order.sort_unstable_by(|&a, &b| exact[a].total_cmp(&exact[b]).then(a.cmp(&b)));
    let mut sums = Sums::of(&scan[0], levels);
    for first in order {
        let mut second = 0;
        while let Some((run, next)) = sums.run(blocks, first, second, scan[0].bound.threshold) {
            let run = clip(run, &positions);
            if !run.is_empty() {
                let scale = scan[0].bound.scale();
                sweep(backend, blocks, run, scan, filter);
                if scan[0].bound.scale() != scale {
                    sums = Sums::of(&scan[0], levels);
                }
            }
            second = next;
        }
    }
    scan[0].finish(blocks);
}
