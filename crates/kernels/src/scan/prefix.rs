//! What the sorted order is good for: the first two bytes of a code bound its distance, so that whole prefixes are
//! passed over unseen, and the most promising ones are looked at first.

use std::ops::Range;

use super::bound::{Bound, Query, Scan};
use super::find::{ask, at_most};
use super::layout::{BLOCK, BlocksRef, Spot, lanes};
use super::nearest::{AT_ONCE, sweep, visit};
use super::pairs::Levels;
use super::topk::TopK;
use crate::Backend;

/// The least sums of bytes under each value of the two levels, at the present scale.
struct Sums {
    levels: Levels,
    first: Vec<u8>,
    // Values beyond the level's last are never asked for.
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

    /// For each of the first values, the second ones under it whose sum is at most the threshold, a bit each.
    fn passing(&self, backend: Backend, firsts: Range<usize>, threshold: u8) -> Vec<[u64; 4]> {
        let rooms = self.first[firsts].iter().map(|&first| threshold.checked_sub(first));
        let mut masks = at_most(backend, &self.second, rooms);
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

/// Of the prefixes under one first byte, the share from which all its blocks are looked at in order. Measured with 8 books:
/// a block in order costs 3.6 ns, one chosen 16 to 22 with finding out that it is, and two prefixes share a block.
const DENSE: f64 = 0.15;

/// Prefixes that pass under a first byte, as a share.
fn share(masks: &[u64; 4], levels: Levels) -> f64 {
    f64::from(masks.iter().map(|mask| mask.count_ones()).sum::<u32>()) / levels.second as f64
}

/// The documents of one first byte (or its high bits).
struct Group {
    /// Bits of what the byte adds at least.
    excess: u64,
    first: usize,
    /// The second values under it that pass.
    masks: [u64; 4],
}

/// The prefixes a limit does not rule out.
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
    /// Those under which a document may lie no farther than `limit`; `None` where there is no directory.
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
                prefixes.cost += documents as f64 * (share(&masks, levels) / DENSE).min(1.0);
                prefixes.groups.push(Group { excess: excess.to_bits(), first, masks });
            }
        }
        Some(prefixes)
    }

    /// What looking at them would cost, in documents looked at one after the other: by this a caller chooses between that
    /// and [`nearest`](super::nearest). Documents of one first byte are taken to be spread evenly.
    pub fn cost(&self) -> usize {
        self.cost as usize
    }

    /// Offers their documents, those with the best first byte first, to a collector whose limit is no farther than the
    /// one they were made for. Of `shares` callers that divide them, this is number `number`.
    ///
    /// # Panics
    /// When there is no such share, the limit is farther, or the filter ends before a key.
    pub fn nearest(&self, (number, shares): (usize, usize), best: &mut TopK, filter: Option<&[u64]>) {
        assert!(number < shares, "share {number} of {shares}");
        assert!(best.limit() <= self.bound.limit(), "prefixes of a limit of {}", self.bound.limit());
        let Prefixes { backend, ref blocks, query, levels, .. } = *self;
        let mut scan = Scan::new(backend, query, best);
        // The sums of another scale, once there is one.
        let mut other: Option<(f64, Sums)> = None;
        let mut order: Vec<&Group> = self.groups.iter().skip(number).step_by(shares).collect();
        order.sort_unstable_by_key(|group| (group.excess, group.first));
        let mut marks = Vec::new();
        let mut spots = Vec::with_capacity(4 * AT_ONCE);
        for group in order {
            let (scale, threshold) = (scan.bound.scale(), scan.bound.threshold);
            let masks = if (scale, threshold) == (self.bound.scale(), self.bound.threshold) {
                group.masks
            } else {
                if other.as_ref().is_none_or(|(of, _)| *of != scale) {
                    other = Some((scale, Sums::of(&scan.bound, query, levels)));
                }
                let sums = other.as_ref().map_or(&self.sums, |(_, sums)| sums);
                sums.passing(backend, group.first..group.first + 1, threshold)[0]
            };
            let positions = blocks.bucket(levels.bits.min(8), group.first);
            if masks == [0; 4] || positions.is_empty() {
                continue;
            }
            if share(&masks, levels) >= DENSE {
                sweep(backend, blocks, positions, &mut scan, filter);
                continue;
            }
            // Every block once, and whole: what else lies in it is ruled out as fast as it would be left out.
            let base = positions.start / BLOCK / 64;
            marks.clear();
            marks.resize((positions.end - 1) / BLOCK / 64 - base + 1, 0u64);
            let mut mark = |block: usize| marks[block / 64 - base] |= 1 << (block % 64);
            for (word, mask) in masks.into_iter().enumerate() {
                let mut left = mask;
                while left != 0 {
                    let prefix = group.first * levels.second + word * 64 + left.trailing_zeros() as usize;
                    left &= left - 1;
                    let bucket = blocks.bucket(levels.bits, prefix);
                    if !bucket.is_empty() {
                        mark(bucket.start / BLOCK);
                        (bucket.start / BLOCK + 1..=(bucket.end - 1) / BLOCK).for_each(&mut mark);
                    }
                }
            }
            let inside = (positions.start.div_ceil(BLOCK), positions.end / BLOCK);
            for (word, &mark) in marks.iter().enumerate() {
                let mut left = mark;
                while left != 0 {
                    let block = (base + word) * 64 + left.trailing_zeros() as usize;
                    left &= left - 1;
                    ask(blocks.bytes(), block * blocks.shape().block_bytes(), blocks.shape().block_bytes());
                    let whole = (inside.0..inside.1).contains(&block);
                    let lanes = if whole { u32::MAX } else { lanes(block, &positions) };
                    spots.push(Spot { block: block as u32, lanes });
                }
            }
            if spots.len() >= 2 * AT_ONCE {
                visit(backend, blocks, &spots, &mut scan, filter);
                spots.clear();
            }
        }
        visit(backend, blocks, &spots, &mut scan, filter);
        scan.finish(blocks);
    }
}
