//! Distances in `f32`: for every document the sum over its codebooks, in their order, on every path.

use super::bound::Query;
use super::layout::BLOCK;
use crate::Backend;

impl Query {
    /// Distances of the documents whose first bytes lie at `offsets` in the blocks, each summed in codebook order. The sums run
    /// side by side, since a single sum waits for each of its additions.
    #[inline]
    pub(super) fn distances_at<const N: usize>(&self, bytes: &[u8], offsets: &[usize; N]) -> [f32; N] {
        let (mut sums, table) = ([0.0; N], self.table());
        if let Some(code) = self.hamming() {
            return offsets.map(|at| {
                let differing = |(r, byte): (usize, &u8)| (bytes[at + r * BLOCK] ^ byte).count_ones();
                code.iter().enumerate().map(differing).sum::<u32>() as f32
            });
        }
        match self.shape().cells() {
            16 => {
                // [codebooks, 16] in pairs, one pair per row; an odd last codebook has no partner.
                for (r, pair) in table.chunks(32).enumerate() {
                    let row = offsets.map(|at| bytes[at + r * BLOCK]);
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
                for (r, codebook) in table.chunks_exact(256).enumerate() {
                    for n in 0..N {
                        sums[n] += codebook[usize::from(bytes[offsets[n] + r * BLOCK])];
                    }
                }
            }
            _ => {
                for (r, eight) in table.chunks(16).enumerate() {
                    for (i, codebook) in eight.chunks_exact(2).enumerate() {
                        for n in 0..N {
                            sums[n] += codebook[usize::from(bytes[offsets[n] + r * BLOCK] >> i & 1)];
                        }
                    }
                }
            }
        }
        sums
    }

    /// Distances of all documents of a block, each summed in codebook order: faster than [`Query::distances_at`] for many.
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
            return unsafe { avx2(shape.num_codebooks(), table, block) };
        }
        let mut sums = [0.0; BLOCK];
        let (rows, _) = block.as_chunks::<BLOCK>();
        if let Some(code) = self.hamming() {
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
                    let even: &[f32; 16] = pair[..16].try_into().expect("a codebook has 16 codewords");
                    for (sum, byte) in sums.iter_mut().zip(row) {
                        *sum += even[usize::from(byte & 15)];
                    }
                    if let Some(odd) = pair.get(16..32) {
                        let odd: &[f32; 16] = odd.try_into().expect("a codebook has 16 codewords");
                        for (sum, byte) in sums.iter_mut().zip(row) {
                            *sum += odd[usize::from(byte >> 4)];
                        }
                    }
                }
            }
            256 => {
                let (codebooks, _) = table.as_chunks::<256>();
                for (codebook, row) in codebooks.iter().zip(rows) {
                    for (sum, byte) in sums.iter_mut().zip(row) {
                        *sum += codebook[usize::from(*byte)];
                    }
                }
            }
            _ => {
                for (eight, row) in table.chunks(16).zip(rows) {
                    for (i, codebook) in eight.chunks_exact(2).enumerate() {
                        for (sum, byte) in sums.iter_mut().zip(row) {
                            *sum += codebook[usize::from(byte >> i & 1)];
                        }
                    }
                }
            }
        }
        sums
    }
}

/// The distances of sixteen codewords fill two registers. Each is permuted by the low three bits of the codeword number, and the
/// fourth bit selects one of them.
///
/// # Safety
/// AVX2; a table of `codebooks` codebooks of 16 codewords, and a block of their codes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(codebooks: usize, table: &[f32], block: &[u8]) -> [f32; BLOCK] {
    use std::arch::x86_64::*;
    let nibble = _mm256_set1_epi8(15);
    let mut sums = [_mm256_setzero_ps(); 4];
    let mut numbers = [0u8; BLOCK];
    for codebook in 0..codebooks {
        // SAFETY: codebook < codebooks, so its row lies in the block and its codewords in the table; `numbers` and the result
        // hold 32.
        unsafe {
            let codes = _mm256_loadu_si256(block.as_ptr().add(codebook / 2 * BLOCK).cast());
            let codes = if codebook % 2 == 0 { codes } else { _mm256_srli_epi16(codes, 4) };
            _mm256_storeu_si256(numbers.as_mut_ptr().cast(), _mm256_and_si256(codes, nibble));
            let low = _mm256_loadu_ps(table.as_ptr().add(codebook * 16));
            let high = _mm256_loadu_ps(table.as_ptr().add(codebook * 16 + 8));
            for (g, sum) in sums.iter_mut().enumerate() {
                let number = _mm256_cvtepu8_epi32(_mm_loadl_epi64(numbers.as_ptr().add(8 * g).cast()));
                let fourth = _mm256_castsi256_ps(_mm256_slli_epi32(number, 28));
                let value = _mm256_blendv_ps(
                    _mm256_permutevar8x32_ps(low, number),
                    _mm256_permutevar8x32_ps(high, number),
                    fourth,
                );
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
