//! The loop everything else waits for: the next block in which some document may be a neighbour.

use std::ops::Range;

use super::layout::BLOCK;
use crate::Backend;

/// What a tile of `Q` queries is looked for with.
pub(super) struct Tile<'a, const Q: usize> {
    /// `[rows, 2, 16]` bytes a query.
    pub tables: [&'a [u8]; Q],
    /// A document passes for a query when its sum is at most this.
    pub thresholds: [u8; Q],
}

/// A block in which a document passes for a query, and for each query the documents that pass.
pub(super) type Found<const Q: usize> = (usize, [u32; Q]);

/// Writes the next blocks of `range` in which a document passes for a query into `found`, as many as it holds. Returns
/// their number, and the block to go on from.
///
/// # Panics
/// When the blocks or a table are shorter than `rows` says, or the CPU lacks the backend.
pub(super) fn find<const Q: usize>(
    backend: Backend,
    rows: usize,
    bytes: &[u8],
    tile: &Tile<Q>,
    range: Range<usize>,
    found: &mut [Found<Q>],
) -> (usize, usize) {
    let to = range.end;
    if range.is_empty() || found.is_empty() {
        return (0, range.start);
    }
    assert!(to <= bytes.len() / (rows * BLOCK), "block {to} lies beyond the last");
    assert!(tile.tables.iter().all(|t| t.len() == rows * 32), "a table has 32 bytes a row");
    backend.check();
    match backend {
        Backend::Reference => reference(rows, bytes, tile, range, found),
        // SAFETY: the CPU has the backend; the blocks of the range and `rows` rows of every table lie within their slices.
        #[cfg(target_arch = "x86_64")]
        Backend::Avx2 => unsafe {
            match rows {
                1 => x86::avx2::<Q, 1>(rows, bytes, tile, range, found),
                2 => x86::avx2::<Q, 2>(rows, bytes, tile, range, found),
                4 => x86::avx2::<Q, 4>(rows, bytes, tile, range, found),
                8 => x86::avx2::<Q, 8>(rows, bytes, tile, range, found),
                16 => x86::avx2::<Q, 16>(rows, bytes, tile, range, found),
                _ => x86::avx2::<Q, 0>(rows, bytes, tile, range, found),
            }
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Backend::Avx512 => unsafe {
            match rows {
                1 => x86::avx2::<Q, 1>(rows, bytes, tile, range, found),
                2 => x86::avx512::<Q, 2>(rows, bytes, tile, range, found),
                4 => x86::avx512::<Q, 4>(rows, bytes, tile, range, found),
                8 => x86::avx512::<Q, 8>(rows, bytes, tile, range, found),
                16 => x86::avx512::<Q, 16>(rows, bytes, tile, range, found),
                _ => x86::avx512::<Q, 0>(rows, bytes, tile, range, found),
            }
        },
        #[cfg(not(target_arch = "x86_64"))]
        Backend::Avx2 | Backend::Avx512 => unreachable!("check refuses them here"),
    }
}

fn reference<const Q: usize>(
    rows: usize,
    bytes: &[u8],
    tile: &Tile<Q>,
    range: Range<usize>,
    found: &mut [Found<Q>],
) -> (usize, usize) {
    let mut count = 0;
    let (all, _) = bytes.as_chunks::<BLOCK>();
    for (block, codes) in all.chunks_exact(rows).enumerate().take(range.end).skip(range.start) {
        let mut masks = [0u32; Q];
        for q in 0..Q {
            let mut sums = [0u8; BLOCK];
            for (row, table) in codes.iter().zip(tile.tables[q].chunks_exact(32)) {
                for (sum, byte) in sums.iter_mut().zip(row) {
                    let (low, high) = (table[usize::from(byte & 15)], table[16 + usize::from(byte >> 4)]);
                    *sum = sum.saturating_add(low).saturating_add(high);
                }
            }
            for (lane, &sum) in sums.iter().enumerate() {
                masks[q] |= u32::from(sum <= tile.thresholds[q]) << lane;
            }
        }
        if masks.iter().any(|&m| m != 0) {
            found[count] = (block, masks);
            count += 1;
            if count == found.len() {
                return (count, block + 1);
            }
        }
    }
    (count, range.end)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::{BLOCK, Found, Tile};

    /// With `R` rows known at compile time the tables of short codes stay in registers; `R = 0` takes any number.
    ///
    /// # Safety
    /// AVX2; `bytes` holds the blocks of the range, of `rows` rows, every table `rows` rows; `R` is `rows` or 0;
    /// `found` is not empty.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2<const Q: usize, const R: usize>(
        rows: usize,
        bytes: &[u8],
        tile: &Tile<Q>,
        range: Range<usize>,
        found: &mut [Found<Q>],
    ) -> (usize, usize) {
        let mut count = 0;
        let rows = if R == 0 { rows } else { R };
        let nibble = _mm256_set1_epi8(15);
        let mut limits = [_mm256_setzero_si256(); Q];
        for q in 0..Q {
            limits[q] = _mm256_set1_epi8(tile.thresholds[q] as i8);
        }
        for block in range.clone() {
            // Two chains of additions a query: the halves of a byte are summed apart and joined at the end.
            let mut low_sums = [_mm256_setzero_si256(); Q];
            let mut high_sums = [_mm256_setzero_si256(); Q];
            for r in 0..rows {
                // SAFETY: the block is of the range and r < rows, within the blocks and tables the caller vouches for.
                unsafe {
                    let codes = _mm256_loadu_si256(bytes.as_ptr().add((block * rows + r) * BLOCK).cast());
                    let low = _mm256_and_si256(codes, nibble);
                    let high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
                    for q in 0..Q {
                        let table = tile.tables[q].as_ptr().add(r * 32);
                        let even = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
                        let odd = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast()));
                        low_sums[q] = _mm256_adds_epu8(low_sums[q], _mm256_shuffle_epi8(even, low));
                        high_sums[q] = _mm256_adds_epu8(high_sums[q], _mm256_shuffle_epi8(odd, high));
                    }
                }
            }
            let mut masks = [0; Q];
            let mut any = 0;
            for q in 0..Q {
                let sum = _mm256_adds_epu8(low_sums[q], high_sums[q]);
                masks[q] = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(sum, limits[q]), sum)) as u32;
                any |= masks[q];
            }
            // Long work a block: written whether or not a document passes, since a branch on that is mispredicted at
            // every block found. Short work: the stores would cost more than the branch.
            if Q * rows >= 16 || any != 0 {
                // SAFETY: count is below the length, or the loop would have ended.
                unsafe { *found.get_unchecked_mut(count) = (block, masks) };
                count += usize::from(any != 0);
            }
            if count == found.len() {
                return (count, block + 1);
            }
        }
        (count, range.end)
    }

    /// Two rows of a block fill a register; the halves meet in a last addition. An odd row goes through AVX2.
    ///
    /// # Safety
    /// AVX-512 F, BW and VL; else as [`avx2`].
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn avx512<const Q: usize, const R: usize>(
        rows: usize,
        bytes: &[u8],
        tile: &Tile<Q>,
        range: Range<usize>,
        found: &mut [Found<Q>],
    ) -> (usize, usize) {
        let mut count = 0;
        let rows = if R == 0 { rows } else { R };
        let nibble = _mm512_set1_epi8(15);
        let half_nibble = _mm256_set1_epi8(15);
        // Tables of rows 2i and 2i + 1 side by side, each 16 bytes twice: even books, then odd books.
        let spread = _mm512_set_epi64(5, 4, 5, 4, 1, 0, 1, 0);
        let spread_odd = _mm512_set_epi64(7, 6, 7, 6, 3, 2, 3, 2);
        for block in range.clone() {
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
            unsafe { *found.get_unchecked_mut(count) = (block, masks) };
            count += usize::from(any != 0);
            if count == found.len() {
                return (count, block + 1);
            }
        }
        (count, range.end)
    }
}
