//! The hot loop of the scan: it finds the blocks in which a document may be a neighbour.

#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm;

use std::ops::Range;

use super::layout::{BLOCK, BlockLanes, Shape};
use crate::Backend;

/// Byte tables and thresholds of a tile of `Q` queries.
pub(super) struct Tile<'a, const Q: usize> {
    /// Byte table of each query: `[rows, 2, 16]`, or `[rows, 256]` with codebooks of 256 codewords.
    pub tables: [&'a [u8]; Q],
    /// A document passes for a query when its byte sum is at most this.
    pub thresholds: [u8; Q],
}

/// An entry in which a document passes for a query, and one bit per passing document for each query.
pub(super) type Match<const Q: usize> = (usize, [u32; Q]);

/// The blocks to scan; an entry is one block.
#[derive(Clone, Copy)]
pub(super) enum BlockList<'a> {
    /// An entry is the number of a block.
    All,
    /// An entry is an index into these.
    Selected(&'a [BlockLanes]),
}

impl BlockList<'_> {
    #[inline(always)]
    pub fn block(self, entry: usize) -> usize {
        match self {
            BlockList::All => entry,
            BlockList::Selected(selected) => selected[entry].block as usize,
        }
    }
}

/// Writes the next entries of `range` in which a document passes for a query into `matches`, until it is full or has room for
/// one more. Returns the number of matches, and the entry to continue from.
///
/// # Panics
/// When a block of the range lies beyond `bytes`, a table has another length, `matches` has room for fewer than two, or the
/// CPU lacks the backend.
pub(super) fn find<const Q: usize>(
    backend: Backend,
    shape: Shape,
    bytes: &[u8],
    tile: &Tile<Q>,
    list: BlockList,
    range: Range<usize>,
    matches: &mut [Match<Q>],
) -> (usize, usize) {
    let rows = shape.code_bytes();
    if range.is_empty() {
        return (0, range.start);
    }
    assert!(matches.len() >= 2, "room for two matches");
    let blocks = bytes.len() / shape.block_bytes();
    match list {
        BlockList::All => assert!(range.end <= blocks, "block {} lies beyond the last", range.end),
        BlockList::Selected(selected) => {
            assert!(
                selected[range.clone()].iter().all(|s| (s.block as usize) < blocks),
                "a block lies beyond the last"
            );
        }
    }
    assert!(
        tile.tables.iter().all(|t| t.len() == rows * shape.table_row()),
        "a table has {} bytes per row",
        shape.table_row()
    );
    backend.check();
    #[cfg(target_arch = "x86_64")]
    if backend != Backend::Reference {
        // SAFETY: the CPU has the backend; the blocks of the range and `rows` rows of every table lie within their slices.
        return unsafe { x86::find(backend, shape, bytes, tile, list, range, matches) };
    }
    #[cfg(target_arch = "aarch64")]
    if backend != Backend::Reference {
        // SAFETY: the blocks of the range and `rows` rows of every table lie within their slices.
        return unsafe { arm::find(shape, bytes, tile, list, range, matches) };
    }
    // WebAssembly knows its instructions when it is compiled, so it has no backends to choose from.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    if shape.table_row() == 32 {
        // SAFETY: the blocks of the range and `rows` rows of every table lie within their slices.
        return unsafe { wasm::find(shape, bytes, tile, list, range, matches) };
    }
    reference(shape, bytes, tile, list, range, matches)
}

fn reference<const Q: usize>(
    shape: Shape,
    bytes: &[u8],
    tile: &Tile<Q>,
    list: BlockList,
    range: Range<usize>,
    matches: &mut [Match<Q>],
) -> (usize, usize) {
    let (rows, size) = (shape.code_bytes(), shape.table_row());
    let mut count = 0;
    let (all, _) = bytes.as_chunks::<BLOCK>();
    for entry in range.clone() {
        let block = list.block(entry);
        let mut masks = [0u32; Q];
        for (q, mask) in masks.iter_mut().enumerate() {
            let mut sums = [0u8; BLOCK];
            for (row, table) in all[block * rows..(block + 1) * rows].iter().zip(tile.tables[q].chunks_exact(size)) {
                for (sum, &byte) in sums.iter_mut().zip(row) {
                    *sum = if size == 256 {
                        sum.saturating_add(table[usize::from(byte)])
                    } else {
                        let (low, high) = (table[usize::from(byte & 15)], table[16 + usize::from(byte >> 4)]);
                        sum.saturating_add(low).saturating_add(high)
                    };
                }
            }
            for (lane, &sum) in sums.iter().enumerate() {
                *mask |= u32::from(sum <= tile.thresholds[q]) << lane;
            }
        }
        if masks.iter().any(|&m| m != 0) {
            matches[count] = (entry, masks);
            count += 1;
            if count == matches.len() {
                return (count, entry + 1);
            }
        }
    }
    (count, range.end)
}

/// For each of `limits`, one bit per value that is at most the limit; no bits for `None`.
pub(super) fn at_most(backend: Backend, values: &[u8; 256], limits: impl Iterator<Item = Option<u8>>) -> Vec<[u64; 4]> {
    backend.check();
    #[cfg(target_arch = "x86_64")]
    if backend != Backend::Reference {
        // SAFETY: the CPU has the backend.
        return unsafe { x86::at_most(values, limits) };
    }
    #[cfg(target_arch = "aarch64")]
    if backend != Backend::Reference {
        return arm::at_most(values, limits);
    }
    let (chunks, _) = values.as_chunks::<64>();
    let masks = |limit: u8| {
        let mask = |i: usize| chunks[i].iter().enumerate().fold(0, |m, (bit, &v)| m | u64::from(v <= limit) << bit);
        std::array::from_fn(mask)
    };
    limits.map(|limit| limit.map_or([0; 4], masks)).collect()
}

#[inline(always)]
pub(super) fn prefetch(bytes: &[u8], from: usize, length: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..length).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint that reads nothing; every address is allowed.
        unsafe { _mm_prefetch(bytes.as_ptr().wrapping_add(from + line).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, from, length);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::{BLOCK, BlockList, Match, Shape, Tile, prefetch};
    use crate::Backend;

    /// # Safety
    /// The CPU has the backend, and it is not [`Backend::Reference`]; `bytes` holds the blocks of the range's entries, the
    /// tables of `tile` have every row; `matches` has room for two.
    pub(super) unsafe fn find<const Q: usize>(
        backend: Backend,
        shape: Shape,
        bytes: &[u8],
        tile: &Tile<Q>,
        list: BlockList,
        range: Range<usize>,
        matches: &mut [Match<Q>],
    ) -> (usize, usize) {
        let rows = shape.code_bytes();
        // SAFETY: the caller vouches for all of it; `R` is the number of rows, or 0.
        unsafe {
            match (shape.table_row(), backend, rows) {
                (256, ..) => avx2_bytes(rows, bytes, tile, list, range, matches),
                (_, Backend::Avx512, 2) => avx512::<Q, 2>(rows, bytes, tile, list, range, matches),
                (_, Backend::Avx512, 4) => avx512::<Q, 4>(rows, bytes, tile, list, range, matches),
                (_, Backend::Avx512, 8) => avx512::<Q, 8>(rows, bytes, tile, list, range, matches),
                (_, Backend::Avx512, 16) => avx512::<Q, 16>(rows, bytes, tile, list, range, matches),
                (_, Backend::Avx512, 3 | 5..) => avx512::<Q, 0>(rows, bytes, tile, list, range, matches),
                (_, _, 1) => avx2::<Q, 1>(rows, bytes, tile, list, range, matches),
                (_, _, 2) => avx2::<Q, 2>(rows, bytes, tile, list, range, matches),
                (_, _, 4) => avx2::<Q, 4>(rows, bytes, tile, list, range, matches),
                (_, _, 8) => avx2::<Q, 8>(rows, bytes, tile, list, range, matches),
                (_, _, 16) => avx2::<Q, 16>(rows, bytes, tile, list, range, matches),
                _ => avx2::<Q, 0>(rows, bytes, tile, list, range, matches),
            }
        }
    }

    /// Byte sums of `B` blocks for `Q` queries. The blocks share the loads of the tables.
    ///
    /// # Safety
    /// AVX2; `rows` rows lie at each block and in every table.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn sums<const Q: usize, const B: usize>(
        rows: usize,
        blocks: [*const u8; B],
        tile: &Tile<Q>,
    ) -> [[__m256i; Q]; B] {
        let nibble = _mm256_set1_epi8(15);
        // One chain of additions per block and query: eight chains take half of the registers, and none waits for another.
        let mut sums = [[_mm256_setzero_si256(); Q]; B];
        for r in 0..rows {
            // SAFETY: r < rows, which the caller vouches for.
            unsafe {
                let mut low = [nibble; B];
                let mut high = [nibble; B];
                for b in 0..B {
                    let codes = _mm256_loadu_si256(blocks[b].add(r * BLOCK).cast());
                    low[b] = _mm256_and_si256(codes, nibble);
                    high[b] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
                }
                #[allow(clippy::needless_range_loop)] // q runs over tables and over the sums of every block at once
                for q in 0..Q {
                    let table = tile.tables[q].as_ptr().add(r * 32);
                    let even = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
                    let odd = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast()));
                    for b in 0..B {
                        sums[b][q] = _mm256_adds_epu8(sums[b][q], _mm256_shuffle_epi8(even, low[b]));
                        sums[b][q] = _mm256_adds_epu8(sums[b][q], _mm256_shuffle_epi8(odd, high[b]));
                    }
                }
            }
        }
        sums
    }

    /// One bit per document whose sum is at most the limit.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn passing(sum: __m256i, limit: __m256i) -> u32 {
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(sum, limit), sum)) as u32
    }

    /// With `R` rows known at compile time the tables of short codes stay in registers; `R = 0` allows any number.
    ///
    /// # Safety
    /// AVX2; else as [`find`]; `R` is `rows` or 0.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2<const Q: usize, const R: usize>(
        rows: usize,
        bytes: &[u8],
        tile: &Tile<Q>,
        list: BlockList,
        range: Range<usize>,
        matches: &mut [Match<Q>],
    ) -> (usize, usize) {
        let rows = if R == 0 { rows } else { R };
        let mut limits = [_mm256_setzero_si256(); Q];
        for (limit, threshold) in limits.iter_mut().zip(tile.thresholds) {
            *limit = _mm256_set1_epi8(threshold as i8);
        }
        let mut count = 0;
        let mut entry = range.start;
        // Two blocks at a time share the loads of the tables: a row of four queries has eight.
        while entry + 2 <= range.end {
            let at = [entry, entry + 1].map(|p| list.block(p) * rows * BLOCK);
            // SAFETY: both entries are in the range, whose blocks the caller vouches for; `matches` has room for two.
            unsafe {
                prefetch_ahead::<2>(rows, bytes, list, entry);
                let sums = sums::<Q, 2>(rows, at.map(|at| bytes.as_ptr().add(at)), tile);
                let mut masks = [[0; Q]; 2];
                let mut any = [0; 2];
                for b in 0..2 {
                    for q in 0..Q {
                        masks[b][q] = passing(sums[b][q], limits[q]);
                        any[b] |= masks[b][q];
                    }
                }
                if any[0] | any[1] != 0 {
                    for b in 0..2 {
                        *matches.get_unchecked_mut(count) = (entry + b, masks[b]);
                        count += usize::from(any[b] != 0);
                    }
                }
            }
            entry += 2;
            if count + 2 > matches.len() {
                return (count, entry);
            }
        }
        while entry < range.end {
            // SAFETY: the entry is in the range, whose blocks the caller vouches for; `matches` has room for one.
            unsafe {
                let at = bytes.as_ptr().add(list.block(entry) * rows * BLOCK);
                let [sums] = sums::<Q, 1>(rows, [at], tile);
                let mut masks = [0; Q];
                let mut any = 0;
                for q in 0..Q {
                    masks[q] = passing(sums[q], limits[q]);
                    any |= masks[q];
                }
                *matches.get_unchecked_mut(count) = (entry, masks);
                count += usize::from(any != 0);
            }
            entry += 1;
            if count == matches.len() {
                return (count, entry);
            }
        }
        (count, range.end)
    }

    /// Prefetches `B` blocks that follow an entry at a distance.
    #[inline(always)]
    fn prefetch_ahead<const B: usize>(rows: usize, bytes: &[u8], list: BlockList, entry: usize) {
        match list {
            // The hardware prefetcher stops at the end of a page.
            BlockList::All => prefetch(bytes, entry * rows * BLOCK + PREFETCH_DISTANCE_BYTES, B * rows * BLOCK),
            // And it does not know which blocks are selected.
            BlockList::Selected(selected) => {
                for ahead in entry + PREFETCH_DISTANCE_BLOCKS..entry + PREFETCH_DISTANCE_BLOCKS + B {
                    if let Some(next) = selected.get(ahead) {
                        prefetch(bytes, next.block as usize * rows * BLOCK, rows * BLOCK);
                    }
                }
            }
        }
    }

    /// Prefetch distance in consecutive blocks.
    const PREFETCH_DISTANCE_BYTES: usize = 4096;

    /// Prefetch distance in selected blocks.
    const PREFETCH_DISTANCE_BLOCKS: usize = 12;

    /// Codebooks of 256 codewords: sixteen shuffles look up the low nibble for every possible high nibble, and four rounds of
    /// blends by a bit of the high nibble select the result. A lookup takes a third of a cycle; single loads take more than
    /// one.
    ///
    /// # Safety
    /// AVX2; else as [`find`], with tables of 256 bytes per row.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2_bytes<const Q: usize>(
        rows: usize,
        bytes: &[u8],
        tile: &Tile<Q>,
        list: BlockList,
        range: Range<usize>,
        matches: &mut [Match<Q>],
    ) -> (usize, usize) {
        let nibble = _mm256_set1_epi8(15);
        let mut count = 0;
        for entry in range.clone() {
            let block = list.block(entry);
            let mut sums = [_mm256_setzero_si256(); Q];
            for r in 0..rows {
                // SAFETY: the block is in the range and r < rows, within the blocks and tables the caller vouches for.
                unsafe {
                    let codes = _mm256_loadu_si256(bytes.as_ptr().add((block * rows + r) * BLOCK).cast());
                    let low = _mm256_and_si256(codes, nibble);
                    // Bits 4 to 7, each at the top of its byte, where a blend reads it.
                    let bits =
                        [_mm256_slli_epi16(codes, 3), _mm256_slli_epi16(codes, 2), _mm256_slli_epi16(codes, 1), codes];
                    for (sum, table) in sums.iter_mut().zip(tile.tables) {
                        let table = table.as_ptr().add(r * 256);
                        let mut values = [low; 16];
                        for (v, value) in values.iter_mut().enumerate() {
                            let part = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16 * v).cast()));
                            *value = _mm256_shuffle_epi8(part, low);
                        }
                        for (round, &bit) in bits.iter().enumerate() {
                            for v in 0..8 >> round {
                                values[v] = _mm256_blendv_epi8(values[2 * v], values[2 * v + 1], bit);
                            }
                        }
                        *sum = _mm256_adds_epu8(*sum, values[0]);
                    }
                }
            }
            let mut masks = [0; Q];
            let mut any = 0;
            for q in 0..Q {
                masks[q] = passing(sums[q], _mm256_set1_epi8(tile.thresholds[q] as i8));
                any |= masks[q];
            }
            // SAFETY: count is below the length, or the loop would have ended.
            unsafe { *matches.get_unchecked_mut(count) = (entry, masks) };
            count += usize::from(any != 0);
            if count == matches.len() {
                return (count, entry + 1);
            }
        }
        (count, range.end)
    }

    /// # Safety
    /// AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn at_most(values: &[u8; 256], limits: impl Iterator<Item = Option<u8>>) -> Vec<[u64; 4]> {
        // SAFETY: eight times 32 values.
        let values: [__m256i; 8] =
            std::array::from_fn(|i| unsafe { _mm256_loadu_si256(values.as_ptr().add(32 * i).cast()) });
        let mut all = Vec::with_capacity(limits.size_hint().0);
        for limit in limits {
            let mut masks = [0; 4];
            if let Some(limit) = limit {
                let limit = _mm256_set1_epi8(limit as i8);
                for (i, mask) in masks.iter_mut().enumerate() {
                    *mask =
                        u64::from(passing(values[2 * i], limit)) | u64::from(passing(values[2 * i + 1], limit)) << 32;
                }
            }
            all.push(masks);
        }
        all
    }

    /// Two rows of a block fill a register; a last addition sums the halves. AVX2 takes an odd last row.
    ///
    /// # Safety
    /// AVX-512 F, BW and VL; else as [`find`].
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
    unsafe fn avx512<const Q: usize, const R: usize>(
        rows: usize,
        bytes: &[u8],
        tile: &Tile<Q>,
        list: BlockList,
        range: Range<usize>,
        matches: &mut [Match<Q>],
    ) -> (usize, usize) {
        let mut count = 0;
        let rows = if R == 0 { rows } else { R };
        let nibble = _mm512_set1_epi8(15);
        let half_nibble = _mm256_set1_epi8(15);
        // Tables of rows 2i and 2i + 1 side by side, each 16 bytes twice: low nibbles, then high nibbles.
        let spread = _mm512_set_epi64(5, 4, 5, 4, 1, 0, 1, 0);
        let spread_odd = _mm512_set_epi64(7, 6, 7, 6, 3, 2, 3, 2);
        for entry in range.clone() {
            let block = list.block(entry);
            prefetch_ahead::<1>(rows, bytes, list, entry);
            let mut low_sums = [_mm512_setzero_si512(); Q];
            let mut high_sums = [_mm512_setzero_si512(); Q];
            for pair in 0..rows / 2 {
                // SAFETY: rows 2 pair and 2 pair + 1 of a block and of every table lie where the caller vouches.
                unsafe {
                    let codes = _mm512_loadu_si512(bytes.as_ptr().add((block * rows + 2 * pair) * BLOCK).cast());
                    let low = _mm512_and_si512(codes, nibble);
                    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibble);
                    for q in 0..Q {
                        let tables = _mm512_loadu_si512(tile.tables[q].as_ptr().add(pair * 64).cast());
                        let even = _mm512_permutexvar_epi64(spread, tables);
                        let odd = _mm512_permutexvar_epi64(spread_odd, tables);
                        low_sums[q] = _mm512_adds_epu8(low_sums[q], _mm512_shuffle_epi8(even, low));
                        high_sums[q] = _mm512_adds_epu8(high_sums[q], _mm512_shuffle_epi8(odd, high));
                    }
                }
            }
            let mut masks = [0; Q];
            let mut any = 0;
            for q in 0..Q {
                let both = _mm512_adds_epu8(low_sums[q], high_sums[q]);
                let mut sum = _mm256_adds_epu8(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64::<1>(both));
                if !rows.is_multiple_of(2) {
                    // SAFETY: the last row of the block and of the table.
                    unsafe {
                        let codes = _mm256_loadu_si256(bytes.as_ptr().add((block * rows + rows - 1) * BLOCK).cast());
                        let low = _mm256_and_si256(codes, half_nibble);
                        let high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), half_nibble);
                        let table = tile.tables[q].as_ptr().add((rows - 1) * 32);
                        let even = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
                        let odd = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast()));
                        sum = _mm256_adds_epu8(sum, _mm256_shuffle_epi8(even, low));
                        sum = _mm256_adds_epu8(sum, _mm256_shuffle_epi8(odd, high));
                    }
                }
                masks[q] = _mm256_cmple_epu8_mask(sum, _mm256_set1_epi8(tile.thresholds[q] as i8));
                any |= masks[q];
            }
            // SAFETY: as in `avx2`.
            unsafe { *matches.get_unchecked_mut(count) = (entry, masks) };
            count += usize::from(any != 0);
            if count == matches.len() {
                return (count, entry + 1);
            }
        }
        (count, range.end)
    }
}
