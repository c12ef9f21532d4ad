//! Tables rounded down to bytes: a lower bound of every document's distance in units of the present limit.

use super::layout::{BLOCK, BlocksRef, Shape};
use super::topk::{Effort, TopK};
use crate::Backend;

/// A query's table, prepared once for any number of scans.
#[derive(Clone, Debug)]
pub struct Query {
    shape: Shape,
    // [books, cells]
    table: Vec<f32>,
    // What each value of a part of the code adds at least, beyond the least of the part: [nibbles, 16] where a byte
    // has two parts, [rows, 256] with books of more than 16 words.
    excess: Vec<f64>,
    // Sum of the least values of all parts.
    base: f64,
    // The code from which differing bits are counted, where the table does no more than that.
    counted: Option<Vec<u8>>,
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
        // Word numbers beyond the last word, which no code has, count as the last.
        let cells = shape.cells();
        let row = |book: &[f32]| -> Vec<f32> { (0..cells).map(|w| book[w.min(words - 1)]).collect() };
        let table: Vec<f32> = table.chunks_exact(words).flat_map(row).collect();
        let part = if cells == 256 { 256 } else { 16 };
        let mut excess = vec![0.0; shape.code_bytes() * shape.table_row()];
        let in_part = if cells == 2 { 4 } else { 1 };
        let bits = shape.word_bits();
        let mut base = 0.0;
        for (part, books) in excess.chunks_exact_mut(part).zip(table.chunks(in_part * cells)) {
            for (w, value) in part.iter_mut().enumerate() {
                let books = books.chunks_exact(cells).enumerate();
                *value = books.map(|(i, book)| f64::from(book[w >> (i * bits) & (cells - 1)])).sum();
            }
            let least = part.iter().copied().fold(f64::INFINITY, f64::min);
            part.iter_mut().for_each(|v| *v -= least);
            base += least;
        }
        let counted = counted(shape, &table);
        Query { shape, table, excess, base, counted }
    }

    /// Shape of the codes it measures.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// `[books, cells]`.
    pub(super) fn table(&self) -> &[f32] {
        &self.table
    }

    /// The code from which differing bits are counted, where that is the distance.
    pub(super) fn counted(&self) -> Option<&[u8]> {
        self.counted.as_deref()
    }

    /// How much the code's byte `row` adds at least, for each value of the byte.
    pub(super) fn byte_excess(&self, row: usize) -> [f64; 256] {
        let size = self.shape.table_row();
        let parts = &self.excess[row * size..(row + 1) * size];
        match parts.try_into() {
            Ok(bytes) => bytes,
            Err(_) => std::array::from_fn(|byte| parts[byte & 15] + parts[16 + (byte >> 4)]),
        }
    }

    /// What the excess of a document may be that is no farther than `limit`; negative where there is none.
    ///
    /// A neighbour's f32 sum D is at most `limit`. Adding M values that are not negative, in f32, loses at most the
    /// share M 2^-24 of the true sum S, so S <= D (1 + M 2^-23) for M <= 1024. Twice that covers the f64 steps here,
    /// whose errors are below M 2^-52 of S.
    pub(super) fn room(&self, limit: f32) -> f64 {
        f64::from(limit) * (1.0 + self.shape.books() as f64 * (2.0 / 8_388_608.0)) - self.base
    }
}

/// The code a table counts differing bits from: books of two words, of which one is 0 away and the other 1. Sums of
/// ones are exact in `f32` in any order.
fn counted(shape: Shape, table: &[f32]) -> Option<Vec<u8>> {
    if shape.words() != 2 {
        return None;
    }
    let mut code = vec![0; shape.code_bytes()];
    for (m, book) in table.chunks_exact(2).enumerate() {
        match book {
            [0.0, 1.0] => {}
            [1.0, 0.0] => code[m / 8] |= 1 << (m % 8),
            _ => return None,
        }
    }
    Some(code)
}

/// The bytes of a query's table at the present limit, and the sum a neighbour's bytes may not exceed.
pub(super) struct Bound {
    /// `[rows, 2, 16]`: low nibble, high nibble; `[rows, 256]` with books of more than 16 words.
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
        let tables = vec![0; query.excess.len()];
        Bound { tables, threshold: 255, scale: 0.0, limit: f32::INFINITY }
    }

    /// Follows a collector's limit.
    pub fn tighten(&mut self, query: &Query, limit: f32) {
        if limit >= self.limit {
            return;
        }
        self.limit = limit;
        let room = query.room(limit);
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
            if query.counted.is_some() && self.scale > 1.0 {
                // Whole numbers of bits times a whole number: nothing is lost in rounding.
                self.scale = self.scale.floor();
            }
            for (byte, excess) in self.tables.iter_mut().zip(&query.excess) {
                // The cast rounds down and stops at 255.
                *byte = (excess * self.scale) as u8;
            }
        }
        self.threshold = ((room * self.scale * (1.0 + 1e-12)) as u8).min(254);
    }

    /// The limit it follows.
    pub fn limit(&self) -> f32 {
        self.limit
    }

    /// Units a distance of one is worth; another one means other tables.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The least sum of codes whose byte `row` has a value, for every value.
    pub fn byte_sums(&self, query: &Query, row: usize) -> [u8; 256] {
        let size = query.shape.table_row();
        let parts = &self.tables[row * size..(row + 1) * size];
        match parts.try_into() {
            Ok(bytes) => bytes,
            Err(_) => std::array::from_fn(|byte| parts[byte & 15].saturating_add(parts[16 + (byte >> 4)])),
        }
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
        bound.tighten(query, best.limit());
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
            if blocks.is_of_one_code(block) {
                self.take_equals(blocks, first, lanes);
                return;
            }
            let sums = self.query.distances(self.backend, blocks.block(block));
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

    /// Documents of one code: one distance serves all, and with the first whose key comes too late they end, since the keys
    /// of equal codes rise. Of ten million documents of a model of 32 bits, tens of thousands may be as near as the last
    /// that is wanted.
    fn take_equals(&mut self, blocks: &BlocksRef, first: usize, mut lanes: u32) {
        let at = first / BLOCK * blocks.shape().block_bytes();
        let [distance] = self.query.distances_at(blocks.bytes(), &[at]);
        self.best.spend(Effort { blocks: 0, measured: 1 });
        while lanes != 0 {
            let position = first + lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            if !self.best.may_keep(super::Neighbour { distance, key: blocks.key(position) }) {
                break;
            }
            self.offer(blocks, position, distance);
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
        let sums = self.query.distances_at(blocks.bytes(), &places);
        for (position, distance) in waiting.into_iter().zip(sums).take(count) {
            self.offer(blocks, position as usize, distance);
        }
    }

    #[inline]
    fn offer(&mut self, blocks: &BlocksRef, position: usize, distance: f32) {
        if distance <= self.best.limit() && self.best.push(super::Neighbour { distance, key: blocks.key(position) }) {
            self.bound.tighten(self.query, self.best.limit());
        }
    }
}
