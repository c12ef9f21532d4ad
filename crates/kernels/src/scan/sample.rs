//! A first limit from the most promising documents, so that the scan measures few that it will drop.

use std::ops::Range;

use super::bound::{Query, Scan};
use super::layout::{BLOCK, BlocksRef, lanes, set_down};
use super::nearest::{AT_ONCE, visit};
use super::pairs::{Levels, Pairs};
use super::topk::{Effort, Neighbour, TopK};
use crate::Backend;

/// Documents under the most promising prefixes, looked at in two steps.
///
/// The limit of a scan that begins with the first sample is passed by 5,400 documents of a million (16 books, noise), after
/// the second by 350; 10,900 and 610 with 32 books. Measuring those took as long as passing over all the others.
pub struct Sample<'a> {
    backend: Backend,
    blocks: BlocksRef<'a>,
    query: &'a Query,
    filter: Option<&'a [u64]>,
    levels: Levels,
    pairs: Pairs,
    best: TopK,
    seen: usize,
    /// Of the last prefix, what was not looked at.
    rest: Range<usize>,
}

impl<'a> Sample<'a> {
    /// Measures one document in 1,024, and at least twice as many as `best`, an empty collector, wants. Nothing where
    /// there is no directory or few documents.
    ///
    /// # Panics
    /// When the query has another shape.
    pub fn new(
        backend: Backend,
        blocks: &BlocksRef<'a>,
        query: &'a Query,
        best: TopK,
        filter: Option<&'a [u64]>,
    ) -> Option<Sample<'a>> {
        assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
        let twice = best.k().saturating_mul(2);
        let wanted = (blocks.len() / 1024).clamp(twice, twice.max(1 << 16));
        // Where few documents pass the filter, a sample that holds k of them would cost as much as the scan.
        let most = wanted.saturating_mul(16);
        if best.k() == 0 || most > blocks.len() {
            return None;
        }
        // Two blocks a prefix: a bound costs what a block costs.
        let fine = |bits: &u32| *bits <= blocks.prefix_bits() && blocks.len() >> bits >= 64;
        let levels = Levels::of([16, 12, 8, 4].into_iter().find(fine)?)?;
        let pairs = Pairs::new(query, levels);
        let mut sample = Sample { backend, blocks: *blocks, query, filter, levels, pairs, best, seen: 0, rest: 0..0 };
        sample.measure(wanted, most);
        Some(sample)
    }

    /// The first ones in `f32`, until there are as many as wanted of them; the others through their bounds. Not even a
    /// prefix is measured to its end: of ten million documents of a model of 32 bits, tens of thousands may share one.
    fn measure(&mut self, wanted: usize, most: usize) {
        'prefixes: for (_, prefix) in self.pairs.by_ref() {
            let bucket = self.blocks.bucket(self.levels.bits, prefix);
            for block in bucket.start / BLOCK..bucket.end.div_ceil(BLOCK) {
                let sums = self.query.distances(self.backend, self.blocks.block(block));
                self.best.spend(Effort { blocks: 0, measured: BLOCK });
                let limit = self.best.limit();
                let mut near = sums.iter().enumerate().fold(0, |m, (lane, &sum)| m | u32::from(sum <= limit) << lane);
                let inside = lanes(block, &bucket);
                self.seen += inside.count_ones() as usize;
                near &= inside;
                while near != 0 {
                    let lane = near.trailing_zeros() as usize;
                    near &= near - 1;
                    let key = self.blocks.key(block * BLOCK + lane);
                    if self.filter.is_none_or(|bits| bits[key as usize / 64] >> (key % 64) & 1 == 1) {
                        self.best.push(Neighbour { distance: sums[lane], key });
                    }
                }
                if self.best.is_full() {
                    self.rest = ((block + 1) * BLOCK).min(bucket.end)..bucket.end;
                    break 'prefixes;
                }
            }
            if self.seen > most {
                break;
            }
        }
        self.best.settle();
        if self.best.is_full() {
            self.go_on(wanted);
        }
    }

    /// Goes on through the bounds until one document in 256 was seen, at most 65,536: worth it before a scan of all. Four
    /// times as many spare a tile 8 us of measuring (16 books) and cost 19 us.
    pub fn deepen(&mut self) {
        self.go_on((self.blocks.len() / 256).min(1 << 16));
    }

    fn go_on(&mut self, wanted: usize) {
        let mut scan = Scan::new(self.backend, self.query, &mut self.best);
        let mut spots = Vec::with_capacity(2 * AT_ONCE);
        while self.seen < wanted {
            let mut bucket = std::mem::replace(&mut self.rest, 0..0);
            if bucket.is_empty() {
                let Some((_, prefix)) = self.pairs.next() else { break };
                bucket = self.blocks.bucket(self.levels.bits, prefix);
            }
            self.seen += bucket.len();
            set_down(bucket, &mut spots);
            if spots.len() >= AT_ONCE {
                visit(self.backend, &self.blocks, &spots, &mut scan, self.filter);
                spots.clear();
            }
        }
        visit(self.backend, &self.blocks, &spots, &mut scan, self.filter);
        scan.finish(&self.blocks);
        self.best.settle();
    }

    /// A distance that as many documents as wanted do not exceed, or the collector's own limit.
    pub fn limit(&self) -> f32 {
        self.best.limit()
    }

    /// What it cost.
    pub fn effort(&self) -> Effort {
        self.best.effort()
    }
}
