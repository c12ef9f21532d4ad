//! Tables rounded down to bytes: a lower bound of every document's distance in units of the present limit.

use super::layout::{BLOCK, BlocksRef, Shape};
use super::topk::{Effort, TopK};
use crate::Backend;

/// A query's table, prepared once for any number of scans.
#[derive(Clone, Debug)]
pub struct Query {
    shape: Shape,
    // [books, words]
    table: Vec<f32>,
    // [nibbles, 16]: the sum of the books of a nibble, less the least of them. Empty for books of 256 words.
    excess: Vec<f64>,
    // Sum of the least values of all nibbles.
    base: f64,
}

impl Query {
    /// Takes `[books, words]` distances.
    ///
    /// # Panics
    /// When the length is another, or a value is negative or not finite.
    pub fn new(shape: Shape, table: &[f32]) -> Self {
        let (books, words) = (shape.books(), shape.words());
        assert_eq!(table.len(), books * words, "a table of {books} books of {words} words");
        assert!(table.iter().all(|v| v.is_finite() && *v >= 0.0), "distances are finite and not negative");
        let mut excess = Vec::new();
        if words < 256 {
            excess.resize(shape.code_bytes() * 32, 0.0);
            let in_nibble = if words == 2 { 4 } else { 1 };
            let bits = words.ilog2() as usize;
            for (nibble, part) in excess.chunks_exact_mut(16).zip(table.chunks(in_nibble * words)) {
                for (w, value) in nibble.iter_mut().enumerate() {
                    let books = part.chunks_exact(words).enumerate();
                    *value = books.map(|(i, book)| f64::from(book[w >> (i * bits) & (words - 1)])).sum();
                }
            }
        }
        let mut base = 0.0;
        for nibble in excess.chunks_exact_mut(16) {
            let least = nibble.iter().copied().fold(f64::INFINITY, f64::min);
            nibble.iter_mut().for_each(|v| *v -= least);
            base += least;
        }
        Query { shape, table: table.to_vec(), excess, base }
    }

    /// Shape of the codes it measures.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// `[books, words]`.
    pub(super) fn table(&self) -> &[f32] {
        &self.table
    }

    /// How much the code's byte `row` adds at least, for each value of the byte.
    pub(super) fn byte_excess(&self, row: usize) -> [f64; 256] {
        let nibbles = &self.excess[row * 32..row * 32 + 32];
        std::array::from_fn(|byte| nibbles[byte & 15] + nibbles[16 + (byte >> 4)])
    }
}

/// The bytes of a query's table at the present limit, and the sum a neighbour's bytes may not exceed.
pub(super) struct Bound {
    /// `[rows, 2, 16]`: low nibble, high nibble.
    pub tables: Vec<u8>,
    /// The greatest sum of a document that may still be a neighbour; 255 lets all pass.
    pub threshold: u8,
    scale: f64,
    limit: f32,
}

/// Sums of the full scale. One below the byte's greatest value, which a saturated sum has.
const FULL: f64 = 254.5;

impl Bound {
    /// A bound that lets everything pass.
    pub fn open(query: &Query) -> Self {
        let tables = vec![0; query.shape.code_bytes() * 32];
        Bound { tables, threshold: 255, scale: 0.0, limit: f32::INFINITY }
    }

    /// Follows the collector's limit.
    pub fn tighten(&mut self, query: &Query, best: &TopK) {
        let limit = best.limit();
        if limit >= self.limit {
            return;
        }
        self.limit = limit;
        // A neighbour's f32 sum D is at most `limit`. Adding M values that are not negative, in f32, loses at most the
        // share M 2^-24 of the true sum S, so S <= D (1 + M 2^-23) for M <= 1024. Twice that covers the f64 steps here,
        // whose errors are below M 2^-52 of S.
        let slack = 1.0 + query.shape.books() as f64 * (2.0 / 8_388_608.0);
        let room = f64::from(limit) * slack - query.base;
        if room < 0.0 {
            // Not even the least sum is a neighbour.
            self.tables.fill(255);
            self.threshold = 0;
            self.scale = f64::MAX;
            return;
        }
        // Below three quarters of the scale the bound has lost half a bit: worth the rounding of 32 values a row.
        if self.scale == 0.0 || room * self.scale < 0.75 * FULL {
            self.scale = (FULL / room).min(f64::MAX);
            for (byte, excess) in self.tables.iter_mut().zip(&query.excess) {
                // The cast rounds down and stops at 255.
                *byte = (excess * self.scale) as u8;
            }
        }
        self.threshold = ((room * self.scale * (1.0 + 1e-12)) as u8).min(254);
    }

    /// Units a distance of one is worth; another one means other tables.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The least sum of codes whose byte `row` has a value, for every value.
    pub fn byte_sums(&self, row: usize) -> [u8; 256] {
        let nibbles = &self.tables[row * 32..row * 32 + 32];
        std::array::from_fn(|byte| nibbles[byte & 15].saturating_add(nibbles[16 + (byte >> 4)]))
    }
}

/// Documents that wait to be summed in `f32` together.
const WAITING: usize = 8;

/// One query on its way through blocks.
pub(super) struct Scan<'a> {
    backend: Backend,
    pub query: &'a Query,
    pub best: &'a mut TopK,
    pub bound: Bound,
    waiting: [u32; WAITING],
    count: usize,
}

impl<'a> Scan<'a> {
    pub fn new(backend: Backend, query: &'a Query, best: &'a mut TopK) -> Self {
        let mut bound = Bound::open(query);
        bound.tighten(query, best);
        Scan { backend, query, best, bound, waiting: [0; WAITING], count: 0 }
    }

    /// Takes the documents of a block named by `lanes` that the filter lets pass. They are offered now or later, at
    /// the latest by [`Scan::finish`].
    pub fn take(&mut self, blocks: &BlocksRef, block: usize, mut lanes: u32, filter: Option<&[u64]>) {
        let first = block * BLOCK;
        if let Some(bits) = filter {
            let mut left = lanes;
            while left != 0 {
                let lane = left.trailing_zeros();
                left &= left - 1;
                let key = blocks.key(first + lane as usize) as usize;
                if bits[key / 64] >> (key % 64) & 1 == 0 {
                    lanes &= !(1 << lane);
                }
            }
        }
        // Measured: all 32 together cost what eight in waiting cost.
        if lanes.count_ones() > 8 {
            let sums = blocks.shape().distances(self.backend, self.query.table(), blocks.block(block));
            self.best.spend(Effort { blocks: 0, measured: BLOCK });
            let limit = self.best.limit();
            lanes &= sums.iter().enumerate().fold(0, |mask, (lane, &sum)| mask | u32::from(sum <= limit) << lane);
            while lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                self.offer(blocks, first + lane, sums[lane]);
            }
            return;
        }
        while lanes != 0 {
            self.waiting[self.count] = (first + lanes.trailing_zeros() as usize) as u32;
            self.count += 1;
            lanes &= lanes - 1;
            if self.count == WAITING {
                self.finish(blocks);
            }
        }
    }

    /// Offers all that wait.
    pub fn finish(&mut self, blocks: &BlocksRef) {
        let (shape, count) = (blocks.shape(), std::mem::take(&mut self.count));
        if count == 0 {
            return;
        }
        self.best.spend(Effort { blocks: 0, measured: count });
        // Places that hold nobody repeat the first.
        let waiting: [u32; WAITING] = std::array::from_fn(|i| self.waiting[if i < count { i } else { 0 }]);
        let places = waiting.map(|p| p as usize / BLOCK * shape.block_bytes() + p as usize % BLOCK);
        let sums = shape.distances_at(self.query.table(), blocks.bytes(), &places);
        for (position, distance) in waiting.into_iter().zip(sums).take(count) {
            self.offer(blocks, position as usize, distance);
        }
    }

    #[inline]
    fn offer(&mut self, blocks: &BlocksRef, position: usize, distance: f32) {
        if distance <= self.best.limit() && self.best.push(super::Neighbour { distance, key: blocks.key(position) }) {
            self.bound.tighten(self.query, self.best);
        }
    }
}
