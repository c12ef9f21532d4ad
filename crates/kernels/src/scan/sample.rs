//! A first limit from the most promising documents, so that the scan computes few distances in vain.

use std::ops::Range;

use super::bound::{Query, Scan};
use super::layout::{BLOCK, BlocksRef, lanes, select_positions};
use super::nearest::{SELECTED_BLOCKS, scan_selected};
use super::pairs::{Levels, Pairs};
use super::topk::{Effort, Neighbour, TopK};
use crate::Backend;

/// Documents of the most promising prefixes, scanned in two steps.
///
/// With the limit of the first step, 5,400 documents of a million pass the byte bound (16 codebooks, noise), with that of the
/// second step 350; with 32 codebooks 10,900 and 610. Computing the distances of the former took as long as rejecting all the
/// others.
pub struct Sample<'a> {
    backend: Backend,
    blocks: BlocksRef<'a>,
    query: &'a Query,
    filter: Option<&'a [u64]>,
    levels: Levels,
    pairs: Pairs,
    best: TopK,
    seen: usize,
    /// Positions of the last prefix that were not scanned.
    rest: Range<usize>,
}

impl<'a> Sample<'a> {
    /// Samples one document in 1,024, and at least `2 k` for the `k` of `best`, an empty collector. `None` without a directory
    /// or with few documents.
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
        // Where few documents pass the filter, a sample with k of them would cost as much as the scan.
        let max_docs = wanted.saturating_mul(16);
        if best.k() == 0 || max_docs > blocks.len() {
            return None;
        }
        // At least two blocks per prefix: the bound of a prefix costs as much as a block.
        let fine = |bits: &u32| *bits <= blocks.prefix_bits() && blocks.len() >> bits >= 64;
        let levels = Levels::of([16, 12, 8, 4].into_iter().find(fine)?)?;
        let pairs = Pairs::new(query, levels);
        let mut sample = Sample { backend, blocks: *blocks, query, filter, levels, pairs, best, seen: 0, rest: 0..0 };
        sample.fill(wanted, max_docs);
        Some(sample)
    }

    /// Computes distances in `f32` until the collector is full, then scans with byte bounds. It may stop inside a prefix: among
    /// ten million documents with codes of 32 bits, tens of thousands may share one.
    fn fill(&mut self, wanted: usize, max_docs: usize) {
        'prefixes: for (_, prefix) in self.pairs.by_ref() {
            let bucket = self.blocks.bucket(self.levels.bits, prefix);
            for block in bucket.start / BLOCK..bucket.end.div_ceil(BLOCK) {
                let sums = self.query.distances(self.backend, self.blocks.block(block));
                self.best.add_effort(Effort { blocks: 0, measured: BLOCK });
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
            if self.seen > max_docs {
                break;
            }
        }
        self.best.settle();
        if self.best.is_full() {
            self.extend(wanted);
        }
    }

    /// Extends the sample to one document in 256, at most 65,536, which is worth it before a full scan. Four times as many would
    /// save a tile 8 us of distances (16 codebooks) and cost 19 us.
    pub fn deepen(&mut self) {
        self.extend((self.blocks.len() / 256).min(1 << 16));
    }

    fn extend(&mut self, wanted: usize) {
        let mut scan = Scan::new(self.backend, self.query, &mut self.best);
        let mut selected = Vec::with_capacity(2 * SELECTED_BLOCKS);
        while self.seen < wanted {
            let mut bucket = std::mem::replace(&mut self.rest, 0..0);
            if bucket.is_empty() {
                let Some((_, prefix)) = self.pairs.next() else { break };
                bucket = self.blocks.bucket(self.levels.bits, prefix);
            }
            self.seen += bucket.len();
            select_positions(bucket, &mut selected);
            if selected.len() >= SELECTED_BLOCKS {
                scan_selected(self.backend, &self.blocks, &selected, &mut scan, self.filter);
                selected.clear();
            }
        }
        scan_selected(self.backend, &self.blocks, &selected, &mut scan, self.filter);
        scan.finish(&self.blocks);
        self.best.settle();
    }

    /// A distance that at least `k` documents do not exceed, or the collector's initial limit.
    pub fn limit(&self) -> f32 {
        self.best.limit()
    }

    pub fn effort(&self) -> Effort {
        self.best.effort()
    }
}
