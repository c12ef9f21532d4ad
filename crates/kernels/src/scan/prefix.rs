//! Pruning by prefix: the first two bytes of a code bound its distance, so the scan skips whole prefixes and begins with the
//! most promising ones.

use std::ops::Range;

use super::bound::{Bound, Query, Scan};
use super::find::{at_most, prefetch};
use super::layout::{BLOCK, BlockLanes, BlocksRef, lanes};
use super::nearest::{SELECTED_BLOCKS, scan_range, scan_selected};
use super::pairs::Levels;
use super::topk::TopK;
use crate::Backend;

/// The smallest byte sums of each value of the two levels, at the current scale.
struct Sums {
    levels: Levels,
    first: Vec<u8>,
    // Entries beyond the level's last value are unused.
    second: [u8; 256],
}

impl Sums {
    fn of(bound: &Bound, query: &Query, levels: Levels) -> Sums {
        let mut second = [0; 256];
        if levels.second > 1 {
            let sums = Levels::fold(bound.byte_sums(query, 1), levels.second, u8::min);
            second[..levels.second].copy_from_slice(&sums);
        }
        Sums { levels, first: Levels::fold(bound.byte_sums(query, 0), levels.first, u8::min), second }
    }

    /// For each of the first values, one bit per second value whose sum is at most the threshold.
    fn passing(&self, backend: Backend, firsts: Range<usize>, threshold: u8) -> Vec<[u64; 4]> {
        let limits = self.first[firsts].iter().map(|&first| threshold.checked_sub(first));
        let mut masks = at_most(backend, &self.second, limits);
        if self.levels.second < 256 {
            let inside = |i: usize| match self.levels.second.saturating_sub(64 * i) {
                64.. => u64::MAX,
                values => (1 << values) - 1,
            };
            masks.iter_mut().for_each(|masks| masks.iter_mut().enumerate().for_each(|(i, mask)| *mask &= inside(i)));
        }
        masks
    }
}

/// Share of a first byte's prefixes from which on all its blocks are scanned in order. Measured with 8 codebooks: a block in
/// order costs 3.6 ns, a selected block 16 to 22 ns including the selection, and two prefixes share a block.
const MIN_DENSE_SHARE: f64 = 0.15;

/// Share of a first byte's prefixes that pass.
fn share(masks: &[u64; 4], levels: Levels) -> f64 {
    f64::from(masks.iter().map(|mask| mask.count_ones()).sum::<u32>()) / levels.second as f64
}

/// Documents with the same first byte (or its high bits).
struct Group {
    /// Bits of the smallest excess of the byte.
    excess: u64,
    first: usize,
    /// One bit per second value that passes.
    masks: [u64; 4],
}

/// The prefixes that a limit does not exclude.
pub struct Prefixes<'a> {
    backend: Backend,
    blocks: BlocksRef<'a>,
    query: &'a Query,
    levels: Levels,
    bound: Bound,
    sums: Sums,
    groups: Vec<Group>,
    cost: f64,
}

impl<'a> Prefixes<'a> {
    /// The prefixes with documents that may be no farther than `limit`; `None` without a directory.
    ///
    /// # Panics
    /// When the query has another shape.
    pub fn new(backend: Backend, blocks: &BlocksRef<'a>, query: &'a Query, limit: f32) -> Option<Prefixes<'a>> {
        assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
        let levels = Levels::of(blocks.prefix_bits())?;
        let mut bound = Bound::open(query);
        bound.tighten(query, limit);
        let sums = Sums::of(&bound, query, levels);
        let excess = Levels::fold(query.byte_excess(0), levels.first, f64::min);
        let mut prefixes =
            Prefixes { backend, blocks: *blocks, query, levels, bound, sums, groups: Vec::new(), cost: 0.0 };
        let passing = prefixes.sums.passing(backend, 0..levels.first, prefixes.bound.threshold);
        for (first, (excess, masks)) in excess.into_iter().zip(passing).enumerate() {
            if masks != [0; 4] {
                let documents = blocks.bucket(levels.bits.min(8), first).len();
                prefixes.cost += documents as f64 * (share(&masks, levels) / MIN_DENSE_SHARE).min(1.0);
                prefixes.groups.push(Group { excess: excess.to_bits(), first, masks });
            }
        }
        Some(prefixes)
    }

    /// Estimated cost of scanning them, in documents scanned in order. A caller compares it with the cost of
    /// [`nearest`](super::nearest). The estimate assumes that documents of one first byte are spread evenly.
    pub fn cost(&self) -> usize {
        self.cost as usize
    }

    /// Offers their documents to a collector, those with the best first byte first. The collector's limit must not exceed the
    /// limit given to [`Prefixes::new`]. `shares` callers can divide the work; this is number `number`.
    ///
    /// # Panics
    /// When `number` is not below `shares`, the collector's limit is larger, or the filter ends before a key.
    pub fn nearest(&self, (number, shares): (usize, usize), best: &mut TopK, filter: Option<&[u64]>) {
        assert!(number < shares, "share {number} of {shares}");
        assert!(best.limit() <= self.bound.limit(), "prefixes of a limit of {}", self.bound.limit());
        let Prefixes { backend, ref blocks, query, levels, .. } = *self;
        let mut scan = Scan::new(backend, query, best);
        // The sums at the scan's scale, once it differs.
        let mut rescaled: Option<(f64, Sums)> = None;
        let mut order: Vec<&Group> = self.groups.iter().skip(number).step_by(shares).collect();
        order.sort_unstable_by_key(|group| (group.excess, group.first));
        let mut marks = Vec::new();
        let mut selected = Vec::with_capacity(4 * SELECTED_BLOCKS);
        for group in order {
            let (scale, threshold) = (scan.bound.scale(), scan.bound.threshold);
            let masks = if (scale, threshold) == (self.bound.scale(), self.bound.threshold) {
                group.masks
            } else {
                if rescaled.as_ref().is_none_or(|(of, _)| *of != scale) {
                    rescaled = Some((scale, Sums::of(&scan.bound, query, levels)));
                }
                let sums = rescaled.as_ref().map_or(&self.sums, |(_, sums)| sums);
                sums.passing(backend, group.first..group.first + 1, threshold)[0]
            };
            let positions = blocks.bucket(levels.bits.min(8), group.first);
            if masks == [0; 4] || positions.is_empty() {
                continue;
            }
            if share(&masks, levels) >= MIN_DENSE_SHARE {
                scan_range(backend, blocks, positions, &mut scan, filter);
                continue;
            }
            // Every block once, and whole: rejecting its other documents is as fast as excluding them.
            let base = positions.start / BLOCK / 64;
            marks.clear();
            marks.resize((positions.end - 1) / BLOCK / 64 - base + 1, 0u64);
            let mut mark = |block: usize| marks[block / 64 - base] |= 1 << (block % 64);
            for (limb, mask) in masks.into_iter().enumerate() {
                let mut left = mask;
                while left != 0 {
                    let prefix = group.first * levels.second + limb * 64 + left.trailing_zeros() as usize;
                    left &= left - 1;
                    let bucket = blocks.bucket(levels.bits, prefix);
                    if !bucket.is_empty() {
                        mark(bucket.start / BLOCK);
                        (bucket.start / BLOCK + 1..=(bucket.end - 1) / BLOCK).for_each(&mut mark);
                    }
                }
            }
            let inside = (positions.start.div_ceil(BLOCK), positions.end / BLOCK);
            for (limb, &mark) in marks.iter().enumerate() {
                let mut left = mark;
                while left != 0 {
                    let block = (base + limb) * 64 + left.trailing_zeros() as usize;
                    left &= left - 1;
                    prefetch(blocks.bytes(), block * blocks.shape().block_bytes(), blocks.shape().block_bytes());
                    let whole = (inside.0..inside.1).contains(&block);
                    let lanes = if whole { u32::MAX } else { lanes(block, &positions) };
                    selected.push(BlockLanes { block: block as u32, lanes });
                }
            }
            if selected.len() >= 2 * SELECTED_BLOCKS {
                scan_selected(backend, blocks, &selected, &mut scan, filter);
                selected.clear();
            }
        }
        scan_selected(backend, blocks, &selected, &mut scan, filter);
        scan.finish(blocks);
    }
}
