//! The loop everything else waits for: the next block in which some document may be a neighbour.

use std::ops::Range;

use super::layout::{BLOCK, Shape, Spot};
use crate::Backend;

/// What a tile of `Q` queries is looked for with.
pub(super) struct Tile<'a, const Q: usize> {
    /// A query's rounded table: `[rows, 2, 16]`, or `[rows, 256]` with books of 256 words.
    pub tables: [&'a [u8]; Q],
    /// A document passes for a query when its sum is at most this.
    pub thresholds: [u8; Q],
}

/// A place in which a document passes for a query, and for each query the documents that pass.
pub(super) type Found<const Q: usize> = (usize, [u32; Q]);

/// Where to look: the blocks of a range one after the other, or chosen ones.
#[derive(Clone, Copy)]
pub(super) enum Places<'a> {
    /// A place is the number of a block.
    All,
    /// A place is an index into these.
    Chosen(&'a [Spot]),
}

impl Places<'_> {
    /// The block of a place.
    #[inline(always)]
    pub fn block(self, place: usize) -> usize {
        match self {
            Places::All => place,
            Places::Chosen(spots) => spots[place].block as usize,
        }
    }
}

/// Writes the next places of `range` in which a document passes for a query into `found`, as many as it holds, or one
/// fewer. Returns their number, and the place to go on from.
///
/// # Panics
/// When blocks, places or a table are shorter than the others say, `found` holds fewer than two, or the CPU lacks the
/// backend.
pub(super) fn find<const Q: usize>(
    backend: Backend,
    shape: Shape,
    bytes: &[u8],
    tile: &Tile<Q>,
    places: Places,
    range: Range<usize>,
    found: &mut [Found<Q>],
) -> (usize, usize) {
    let rows = shape.code_bytes();
    if range.is_empty() {
        return (0, range.start);
    }
    assert!(found.len() >= 2, "room for two blocks");
    let blocks = bytes.len() / shape.block_bytes();
    match places {
        Places::All => assert!(range.end <= blocks, "block {} lies beyond the last", range.end),
        Places::Chosen(spots) => {
            assert!(spots[range.clone()].iter().all(|s| (s.block as usize) < blocks), "a block lies beyond the last");
        }
    }
    assert!(tile.tables.iter().all(|t| t.len() == rows * shape.table_row()), "a table has its bytes in every row");
    backend.check();
    #[cfg(target_arch = "x86_64")]
    if backend != Backend::Reference {
        // SAFETY: the CPU has the backend; the blocks of the range and `rows` rows of every table lie within their slices.
        return unsafe { x86::find(backend, shape, bytes, tile, places, range, found) };
    }
    reference(shape, bytes, tile, places, range, found)
}

fn reference<const Q: usize>(
    shape: Shape,
    bytes: &[u8],
    tile: &Tile<Q>,
    places: Places,
    range: Range<usize>,
    found: &mut [Found<Q>],
) -> (usize, usize) {
    let (rows, size) = (shape.code_bytes(), shape.table_row());
    let mut count = 0;
    let (all, _) = bytes.as_chunks::<BLOCK>();
    for place in range.clone() {
        let block = places.block(place);
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
            found[count] = (place, masks);
            count += 1;
            if count == found.len() {
                return (count, place + 1);
            }
        }
    }
    (count, range.end)
}

/// For each of `rooms`, which of 256 values are at most that, a bit each; none where there is no room.
pub(super) fn at_most(backend: Backend, values: &[u8; 256], rooms: impl Iterator<Item = Option<u8>>) -> Vec<[u64; 4]> {
    backend.check();
    #[cfg(target_arch = "x86_64")]
    if backend != Backend::Reference {
        // SAFETY: the CPU has the backend.
        return unsafe { x86::at_most(values, rooms) };
    }
    let (words, _) = values.as_chunks::<64>();
    let bits = |most: u8| {
        let word = |i: usize| words[i].iter().enumerate().fold(0, |w, (bit, &v)| w | u64::from(v <= most) << bit);
        std::array::from_fn(word)
    };
    rooms.map(|room| room.map_or([0; 4], bits)).collect()
}

/// Asks for memory that will be looked at soon.
#[inline(always)]
pub(super) fn ask(bytes: &[u8], from: usize, length: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..length).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: asking for memory is no access, wherever the address lies.
        unsafe { _mm_prefetch(bytes.as_ptr().wrapping_add(from + line).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, from, length);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::{BLOCK, Found, Places, Shape, Tile, ask};
    use crate::Backend;

    /// # Safety
    /// The CPU has the backend, and it is none of plain Rust; `bytes` holds the blocks of the range's places, `tile` a
    /// table of every row; `found` holds two.
    pub(super) unsafe fn find<const Q: usize>(
        backend: Backend,
        shape: Shape,
        bytes: &[u8],
        tile: &Tile<Q>,
        places: Places,
        range: Range<usize>,
        found: &mut [Found<Q>],
    ) -> (usize, usize) {
        let rows = shape.code_bytes();
        // SAFETY: the caller vouches for all of it; `R` is the number of rows, or 0.
        unsafe {
            match (shape.table_row(), backend, rows) {
                (256, ..) => avx2_bytes(rows, bytes, tile, places, range, found),
                (_, Backend::Avx512, 2) => avx512::<Q, 2>(rows, bytes, tile, places, range, found),
                (_, Backend::Avx512, 4) => avx512::<Q, 4>(rows, bytes, tile, places, range, found),
                (_, Backend::Avx512, 8) => avx512::<Q, 8>(rows, bytes, tile, places, range, found),
                (_, Backend::Avx512, 16) => avx512::<Q, 16>(rows, bytes, tile, places, range, found),
                (_, Backend::Avx512, 3 | 5..) => avx512::<Q, 0>(rows, bytes, tile, places, range, found),
                (_, _, 1) => avx2::<Q, 1>(rows, bytes, tile, places, range, found),
                (_, _, 2) => avx2::<Q, 2>(rows, bytes, tile, places, range, found),
                (_, _, 4) => avx2::<Q, 4>(rows, bytes, tile, places, range, found),
                (_, _, 8) => avx2::<Q, 8>(rows, bytes, tile, places, range, found),
                (_, _, 16) => avx2::<Q, 16>(rows, bytes, tile, places, range, found),
                _ => avx2::<Q, 0>(rows, bytes, tile, places, range, found),
            }
        }
    }

    /// Sums of `B` blocks for `Q` queries. Several blocks at once share the loading of tables.
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
        // One chain of additions a block and query: eight of them fill half the registers, and none waits for another.
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

    /// Documents whose sum is at most the limit.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn passing(sum: __m256i, limit: __m256i) -> u32 {
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(sum, limit), sum)) as u32
    }

    /// With `R` rows known at compile time the tables of short codes stay in registers; `R = 0` takes any number.
    ///
    /// # Safety
    /// AVX2; else as [`find`]; `R` is `rows` or 0.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2<const Q: usize, const R: usize>(
        rows: usize,
        bytes: &[u8],
        tile: &Tile<Q>,
        places: Places,
        range: Range<usize>,
        found: &mut [Found<Q>],
    ) -> (usize, usize) {
        let rows = if R == 0 { rows } else { R };
        let mut limits = [_mm256_setzero_si256(); Q];
        for (limit, threshold) in limits.iter_mut().zip(tile.thresholds) {
            *limit = _mm256_set1_epi8(threshold as i8);
        }
        let mut count = 0;
        let mut place = range.start;
        // Two blocks at a time share the loading of tables, of which a row of four queries has eight.
        while place + 2 <= range.end {
            let at = [place, place + 1].map(|p| places.block(p) * rows * BLOCK);
            // SAFETY: both places are of the range, whose blocks the caller vouches for; `found` has room for two.
            unsafe {
                ask_ahead::<2>(rows, bytes, places, place);
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
                        *found.get_unchecked_mut(count) = (place + b, masks[b]);
                        count += usize::from(any[b] != 0);
                    }
                }
            }
            place += 2;
            if count + 2 > found.len() {
                return (count, place);
            }
        }
        while place < range.end {
            // SAFETY: the place is of the range, whose blocks the caller vouches for; `found` has room for one.
            unsafe {
                let at = bytes.as_ptr().add(places.block(place) * rows * BLOCK);
                let [sums] = sums::<Q, 1>(rows, [at], tile);
                let mut masks = [0; Q];
                let mut any = 0;
                for q in 0..Q {
                    masks[q] = passing(sums[q], limits[q]);
                    any |= masks[q];
                }
                *found.get_unchecked_mut(count) = (place, masks);
                count += usize::from(any != 0);
            }
            place += 1;
            if count == found.len() {
                return (count, place);
            }
        }
        (count, range.end)
    }

    /// Asks for the memory of `B` blocks that come some time after a place's.
    #[inline(always)]
    fn ask_ahead<const B: usize>(rows: usize, bytes: &[u8], places: Places, place: usize) {
        match places {
            // The hardware's own prefetcher stops at the end of a page.
            Places::All => ask(bytes, place * rows * BLOCK + AHEAD, B * rows * BLOCK),
            // And does not know which blocks were chosen.
            Places::Chosen(spots) => {
                for soon in place + SOON..place + SOON + B {
                    if let Some(spot) = spots.get(soon) {
                        ask(bytes, spot.block as usize * rows * BLOCK, rows * BLOCK);
                    }
                }
            }
        }
    }

    /// How many bytes ahead of the blocks in work memory is asked for.
    const AHEAD: usize = 4096;

    /// The same in chosen blocks.
    const SOON: usize = 12;

    /// Books of 256 words: sixteen shuffles give what each high nibble would make of the low one, and four rounds of
    /// choosing by a bit of the high nibble leave the one that counts. A third of a cycle a look-up, where loads one by
    /// one take more than one.
    ///
    /// # Safety
    /// AVX2; else as [`find`], with tables of 256 bytes a row.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2_bytes<const Q: usize>(
        rows: usize,
        bytes: &[u8],
        tile: &Tile<Q>,
        places: Places,
        range: Range<usize>,
        found: &mut [Found<Q>],
    ) -> (usize, usize) {
        let nibble = _mm256_set1_epi8(15);
        let mut count = 0;
        for place in range.clone() {
            let block = places.block(place);
            let mut sums = [_mm256_setzero_si256(); Q];
            for r in 0..rows {
                // SAFETY: the block is of the range and r < rows, within the blocks and tables the caller vouches for.
                unsafe {
                    let codes = _mm256_loadu_si256(bytes.as_ptr().add((block * rows + r) * BLOCK).cast());
                    let low = _mm256_and_si256(codes, nibble);
                    // Bits 4 to 7, each at the top of its byte, where a choice looks.
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
            unsafe { *found.get_unchecked_mut(count) = (place, masks) };
            count += usize::from(any != 0);
            if count == found.len() {
                return (count, place + 1);
            }
        }
        (count, range.end)
    }

    /// # Safety
    /// AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn at_most(values: &[u8; 256], rooms: impl Iterator<Item = Option<u8>>) -> Vec<[u64; 4]> {
        // SAFETY: eight times 32 values.
        let values: [__m256i; 8] =
            std::array::from_fn(|i| unsafe { _mm256_loadu_si256(values.as_ptr().add(32 * i).cast()) });
        let mut masks = Vec::with_capacity(rooms.size_hint().0);
        for room in rooms {
            let mut words = [0; 4];
            if let Some(room) = room {
                let limit = _mm256_set1_epi8(room as i8);
                for (i, word) in words.iter_mut().enumerate() {
                    *word =
                        u64::from(passing(values[2 * i], limit)) | u64::from(passing(values[2 * i + 1], limit)) << 32;
                }
            }
            masks.push(words);
        }
        masks
    }

    /// Two rows of a block fill a register; the halves meet in a last addition. An odd row goes through AVX2.
    ///
    /// # Safety
    /// AVX-512 F, BW and VL; else as [`find`].
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
    unsafe fn avx512<const Q: usize, const R: usize>(
        rows: usize,
        bytes: &[u8],
        tile: &Tile<Q>,
        places: Places,
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
        for place in range.clone() {
            let block = places.block(place);
            ask_ahead::<1>(rows, bytes, places, place);
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
            unsafe { *found.get_unchecked_mut(count) = (place, masks) };
            count += usize::from(any != 0);
            if count == found.len() {
                return (count, place + 1);
            }
        }
        (count, range.end)
    }
}
