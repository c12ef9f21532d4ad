//! Distance tables rounded down to bytes: a lower bound of every document's distance, in units of the current limit.

use super::layout::{BLOCK, BlocksRef, Shape};
use super::topk::{Effort, TopK};
use crate::Backend;

/// A query's distance table, prepared once for any number of scans.
#[derive(Clone, Debug)]
pub struct Query {
    shape: Shape,
    // [codebooks, cells]
    table: Vec<f32>,
    // What each value of a part of the code adds beyond the minimum of that part: [nibbles, 16], or [rows, 256] with codebooks
    // of more than 16 codewords.
    excess: Vec<f64>,
    // Sum of the minima of all parts.
    base: f64,
    // The query's code, where the table only counts differing bits.
    hamming: Option<Vec<u8>>,
}

impl Query {
    /// `table` is `[codebooks, codewords]` distances.
    ///
    /// # Panics
    /// When the table has another length, or a value is negative or not finite.
    pub fn new(shape: Shape, table: &[f32]) -> Self {
        let (codebooks, codewords) = (shape.num_codebooks(), shape.codebook_size());
        assert_eq!(table.len(), codebooks * codewords, "a table of {codebooks} codebooks of {codewords} codewords");
        assert!(table.iter().all(|v| v.is_finite() && *v >= 0.0), "distances are finite and not negative");
        // Codeword numbers beyond the last, which no code has, get the distance of the last.
        let cells = shape.cells();
        let row = |codebook: &[f32]| -> Vec<f32> { (0..cells).map(|w| codebook[w.min(codewords - 1)]).collect() };
        let table: Vec<f32> = table.chunks_exact(codewords).flat_map(row).collect();
        let part = if cells == 256 { 256 } else { 16 };
        let mut excess = vec![0.0; shape.code_bytes() * shape.table_row()];
        let codebooks_per_part = if cells == 2 { 4 } else { 1 };
        let bits = shape.codeword_bits();
        let mut base = 0.0;
        for (part, codebooks) in excess.chunks_exact_mut(part).zip(table.chunks(codebooks_per_part * cells)) {
            for (w, value) in part.iter_mut().enumerate() {
                let codebooks = codebooks.chunks_exact(cells).enumerate();
                *value = codebooks.map(|(i, codebook)| f64::from(codebook[w >> (i * bits) & (cells - 1)])).sum();
            }
            let min = part.iter().copied().fold(f64::INFINITY, f64::min);
            part.iter_mut().for_each(|v| *v -= min);
            base += min;
        }
        let hamming = hamming_code(shape, &table);
        Query { shape, table, excess, base, hamming }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// `[codebooks, cells]`.
    pub(super) fn table(&self) -> &[f32] {
        &self.table
    }

    /// The query's code, where the distance is the number of differing bits.
    pub(super) fn hamming(&self) -> Option<&[u8]> {
        self.hamming.as_deref()
    }

    /// The excess of byte `row` of the code over its minimum, for each value of the byte.
    pub(super) fn byte_excess(&self, row: usize) -> [f64; 256] {
        let size = self.shape.table_row();
        let parts = &self.excess[row * size..(row + 1) * size];
        match parts.try_into() {
            Ok(bytes) => bytes,
            Err(_) => std::array::from_fn(|byte| parts[byte & 15] + parts[16 + (byte >> 4)]),
        }
    }

    /// The largest excess of a document no farther than `limit`; negative where no document can be that near.
    ///
    /// A neighbour's f32 sum D is at most `limit`. Adding M values that are not negative, in f32, loses at most the
    /// share M 2^-24 of the true sum S, so S <= D (1 + M 2^-23) for M <= 1024. Twice that covers the f64 steps here,
    /// whose errors are below M 2^-52 of S.
    pub(super) fn max_excess(&self, limit: f32) -> f64 {
        f64::from(limit) * (1.0 + self.shape.num_codebooks() as f64 * (2.0 / 8_388_608.0)) - self.base
    }
}

/// The code from which a table counts differing bits: codebooks of two codewords, one at distance 0 and the other at 1. Sums of
/// ones are exact in `f32` in any order.
fn hamming_code(shape: Shape, table: &[f32]) -> Option<Vec<u8>> {
    if shape.codebook_size() != 2 {
        return None;
    }
    let mut code = vec![0; shape.code_bytes()];
    for (m, codebook) in table.chunks_exact(2).enumerate() {
        match codebook {
            [0.0, 1.0] => {}
            [1.0, 0.0] => code[m / 8] |= 1 << (m % 8),
            _ => return None,
        }
    }
    Some(code)
}

/// A query's byte table at the current limit, and the largest byte sum of a neighbour.
pub(super) struct Bound {
    /// `[rows, 2, 16]`: low nibble, high nibble; `[rows, 256]` with codebooks of more than 16 codewords.
    pub tables: Vec<u8>,
    /// The largest sum of a document that may still be a neighbour; 255 accepts all.
    pub threshold: u8,
    scale: f64,
    limit: f32,
}

/// Byte sum of a distance at the limit. Below 255, the value of a saturated sum.
const FULL_SCALE: f64 = 254.5;

impl Bound {
    /// A bound that accepts every document.
    pub fn open(query: &Query) -> Self {
        let tables = vec![0; query.excess.len()];
        Bound { tables, threshold: 255, scale: 0.0, limit: f32::INFINITY }
    }

    /// Lowers the bound to a collector's limit.
    pub fn tighten(&mut self, query: &Query, limit: f32) {
        if limit >= self.limit {
            return;
        }
        self.limit = limit;
        let max_excess = query.max_excess(limit);
        if max_excess < 0.0 {
            // Not even the smallest sum is a neighbour.
            self.tables.fill(255);
            self.threshold = 0;
            self.scale = f64::MAX;
            return;
        }
        // Below three quarters of the scale the bound has lost half a bit, which is worth rounding 32 values per row again.
        if self.scale == 0.0 || max_excess * self.scale < 0.75 * FULL_SCALE {
            self.scale = (FULL_SCALE / max_excess).min(f64::MAX);
            if query.hamming.is_some() && self.scale > 1.0 {
                // Bit counts times an integer are integers: rounding loses nothing.
                self.scale = self.scale.floor();
            }
            for (byte, excess) in self.tables.iter_mut().zip(&query.excess) {
                // The cast rounds down and saturates at 255.
                *byte = (excess * self.scale) as u8;
            }
        }
        self.threshold = ((max_excess * self.scale * (1.0 + 1e-12)) as u8).min(254);
    }

    pub fn limit(&self) -> f32 {
        self.limit
    }

    /// Byte units per unit of distance. The tables change with it.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The smallest sum of codes whose byte `row` has a value, for every value.
    pub fn byte_sums(&self, query: &Query, row: usize) -> [u8; 256] {
        let size = query.shape.table_row();
        let parts = &self.tables[row * size..(row + 1) * size];
        match parts.try_into() {
            Ok(bytes) => bytes,
            Err(_) => std::array::from_fn(|byte| parts[byte & 15].saturating_add(parts[16 + (byte >> 4)])),
        }
    }
}

/// Documents that are summed in `f32` together.
const MAX_PENDING_DOCS: usize = 8;

/// State of one query's scan over blocks.
pub(super) struct Scan<'a> {
    backend: Backend,
    pub query: &'a Query,
    pub best: &'a mut TopK,
    pub bound: Bound,
    // Positions of documents to sum; the first `pending_count` are valid.
    pending: [u32; MAX_PENDING_DOCS],
    pending_count: usize,
}

impl<'a> Scan<'a> {
    pub fn new(backend: Backend, query: &'a Query, best: &'a mut TopK) -> Self {
        let mut bound = Bound::open(query);
        bound.tighten(query, best.limit());
        Scan { backend, query, best, bound, pending: [0; MAX_PENDING_DOCS], pending_count: 0 }
    }

    /// Takes the documents of a block in `lanes` that pass the filter. The collector gets them now or later, at the latest in
    /// [`Scan::finish`].
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
        // Measured: summing all 32 documents of a block costs as much as summing eight pending ones.
        if lanes.count_ones() > 8 {
            if blocks.has_one_code(block) {
                self.take_equal_codes(blocks, first, lanes);
                return;
            }
            let sums = self.query.distances(self.backend, blocks.block(block));
            self.best.add_effort(Effort { blocks: 0, measured: BLOCK });
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
            self.pending[self.pending_count] = (first + lanes.trailing_zeros() as usize) as u32;
            self.pending_count += 1;
            lanes &= lanes - 1;
            if self.pending_count == MAX_PENDING_DOCS {
                self.finish(blocks);
            }
        }
    }

    /// Documents of one code: one distance serves all. The keys of equal codes rise, so the loop ends at the first key that the
    /// collector rejects. Among ten million documents with codes of 32 bits, tens of thousands may be as near as the last
    /// requested one.
    fn take_equal_codes(&mut self, blocks: &BlocksRef, first: usize, mut lanes: u32) {
        let at = first / BLOCK * blocks.shape().block_bytes();
        let [distance] = self.query.distances_at(blocks.bytes(), &[at]);
        self.best.add_effort(Effort { blocks: 0, measured: 1 });
        while lanes != 0 {
            let position = first + lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            if !self.best.may_keep(super::Neighbour { distance, key: blocks.key(position) }) {
                break;
            }
            self.offer(blocks, position, distance);
        }
    }

    /// Sums the pending documents and offers them to the collector.
    pub fn finish(&mut self, blocks: &BlocksRef) {
        let (shape, count) = (blocks.shape(), std::mem::take(&mut self.pending_count));
        if count == 0 {
            return;
        }
        self.best.add_effort(Effort { blocks: 0, measured: count });
        // Unused entries repeat the first.
        let pending: [u32; MAX_PENDING_DOCS] = std::array::from_fn(|i| self.pending[if i < count { i } else { 0 }]);
        let offsets = pending.map(|p| p as usize / BLOCK * shape.block_bytes() + p as usize % BLOCK);
        let sums = self.query.distances_at(blocks.bytes(), &offsets);
        for (position, distance) in pending.into_iter().zip(sums).take(count) {
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
