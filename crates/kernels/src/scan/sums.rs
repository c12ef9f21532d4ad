//! Distances in `f32`: for every document the sum over its books, in their order. Only the documents differ in where
//! they are summed.

use super::bound::Query;
use super::layout::BLOCK;
use crate::Backend;

impl Query {
    /// Distances of the documents whose first bytes lie at `places` in the blocks, each summed in book order. Side by
    /// side, since a sum alone waits for each of its additions.
    #[inline]
    pub(super) fn distances_at<const N: usize>(&self, bytes: &[u8], places: &[usize; N]) -> [f32; N] {
        let (mut sums, table) = ([0.0; N], self.table());
        if let Some(code) = self.counted() {
            return places.map(|at| {
                let differing = |(r, byte): (usize, &u8)| (bytes[at + r * BLOCK] ^ byte).count_ones();
                code.iter().enumerate().map(differing).sum::<u32>() as f32
            });
        }
        match self.shape().cells() {
            16 => {
                // [books, 16] in pairs, one pair a row; an odd last book has no partner.
                for (r, pair) in table.chunks(32).enumerate() {
                    let row = places.map(|at| bytes[at + r * BLOCK]);
                    for n in 0..N {
                        sums[n] += pair[usize::from(row[n] & 15)];
                    }
                    if pair.len() == 32 {
                        for n in 0..N {
                            sums[n] += pair[16 + usize::from(row[n] >> 4)];
                        }
                    }
                }
            }
            256 => {
                for (r, book) in table.chunks_exact(256).enumerate() {
                    for n in 0..N {
                        sums[n] += book[usize::from(bytes[places[n] + r * BLOCK])];
                    }
                }
            }
            _ => {
                for (r, eight) in table.chunks(16).enumerate() {
                    for (i, book) in eight.chunks_exact(2).enumerate() {
                        for n in 0..N {
                            sums[n] += book[usize::from(bytes[places[n] + r * BLOCK] >> i & 1)];
                        }
                    }
                }
            }
        }
        sums
    }

    /// Distances of all documents of a block, each summed in book order: faster than one by one when many are wanted.
    ///
    /// # Panics
    /// When the block is not of the query's shape, or the CPU lacks the backend.
    pub(super) fn distances(&self, backend: Backend, block: &[u8]) -> [f32; BLOCK] {
        let (shape, table) = (self.shape(), self.table());
        assert_eq!(block.len(), shape.block_bytes(), "a block of {shape:?}");
        backend.check();
        #[cfg(target_arch = "x86_64")]
        if backend != Backend::Reference && shape.cells() == 16 {
            // SAFETY: the CPU has the backend, and the lengths are the shape's.
            return unsafe { avx2(shape.books(), table, block) };
        }
        let mut sums = [0.0; BLOCK];
        let (rows, _) = block.as_chunks::<BLOCK>();
        if let Some(code) = self.counted() {
            let mut counts = [0u16; BLOCK];
            for (row, own) in rows.iter().zip(code) {
                for (count, byte) in counts.iter_mut().zip(row) {
                    *count += (byte ^ own).count_ones() as u16;
                }
            }
            return counts.map(f32::from);
        }
        match shape.cells() {
            16 => {
                for (pair, row) in table.chunks(32).zip(rows) {
                    let even: &[f32; 16] = pair[..16].try_into().expect("a book has 16 words");
                    for (sum, byte) in sums.iter_mut().zip(row) {
                        *sum += even[usize::from(byte & 15)];
                    }
                    if let Some(odd) = pair.get(16..32) {
                        let odd: &[f32; 16] = odd.try_into().expect("a book has 16 words");
                        for (sum, byte) in sums.iter_mut().zip(row) {
                            *sum += odd[usize::from(byte >> 4)];
                        }
                    }
                }
            }
            256 => {
                let (books, _) = table.as_chunks::<256>();
                for (book, row) in books.iter().zip(rows) {
                    for (sum, byte) in sums.iter_mut().zip(row) {
                        *sum += book[usize::from(*byte)];
                    }
                }
            }
            _ => {
                for (eight, row) in table.chunks(16).zip(rows) {
                    for (i, book) in eight.chunks_exact(2).enumerate() {
                        for (sum, byte) in sums.iter_mut().zip(row) {
                            *sum += book[usize::from(byte >> i & 1)];
                        }
                    }
                }
            }
        }
        sums
    }
}

/// Sixteen words are two registers; each is permuted by the low three bits of the word number, and the fourth bit
/// chooses between them.
///
/// # Safety
/// AVX2; a table of `books` books of 16 words, and a block of their codes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(books: usize, table: &[f32], block: &[u8]) -> [f32; BLOCK] {
    use std::arch::x86_64::*;
    let nibble = _mm256_set1_epi8(15);
    let mut sums = [_mm256_setzero_ps(); 4];
    let mut words = [0u8; BLOCK];
    for book in 0..books {
        // SAFETY: book < books, so its row lies in the block and its words in the table; `words` and the result hold 32.
        unsafe {
            let codes = _mm256_loadu_si256(block.as_ptr().add(book / 2 * BLOCK).cast());
            let codes = if book % 2 == 0 { codes } else { _mm256_srli_epi16(codes, 4) };
            _mm256_storeu_si256(words.as_mut_ptr().cast(), _mm256_and_si256(codes, nibble));
            let low = _mm256_loadu_ps(table.as_ptr().add(book * 16));
            let high = _mm256_loadu_ps(table.as_ptr().add(book * 16 + 8));
            for (g, sum) in sums.iter_mut().enumerate() {
                let word = _mm256_cvtepu8_epi32(_mm_loadl_epi64(words.as_ptr().add(8 * g).cast()));
                let fourth = _mm256_castsi256_ps(_mm256_slli_epi32(word, 28));
                let value =
                    _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, word), _mm256_permutevar8x32_ps(high, word), fourth);
                *sum = _mm256_add_ps(*sum, value);
            }
        }
    }
    let mut out = [0.0; BLOCK];
    for (g, sum) in sums.into_iter().enumerate() {
        // SAFETY: four times eight values.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(8 * g), sum) };
    }
    out
}
