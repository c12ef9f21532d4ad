//! The tiles of AVX2.

use std::arch::x86_64::*;

use super::Tiles;
use crate::gemm::PANEL;

/// Rows of an AVX2 tile.
const TILE: usize = 4;

/// # Safety
/// AVX2 and FMA; the lengths `multiply_panels_on` checks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2(tiles: &mut Tiles, panel: usize) {
    let edge = tiles.edge(panel);
    let (rows, stride) = (tiles.x.rows(), tiles.x.stride());
    let w = tiles.weight.panel(panel).as_ptr();
    let mut i = 0;
    while i < rows {
        let n = (rows - i).min(TILE);
        let mut sums = [[0i32; PANEL]; TILE];
        // SAFETY: rows i..i+n exist, each of whole steps, and the panel has as many groups of four inputs.
        unsafe {
            let x = tiles.x.values().as_ptr().add(i * stride);
            match n {
                4 => avx2_tile::<4>(x, w, stride, &mut sums),
                3 => avx2_tile::<3>(x, w, stride, &mut sums),
                2 => avx2_tile::<2>(x, w, stride, &mut sums),
                _ => avx2_tile::<1>(x, w, stride, &mut sums),
            }
        }
        for (r, row) in sums[..n].iter().enumerate() {
            tiles.finish(&edge, i + r, row);
        }
        i += n;
    }
}

/// # Safety
/// `x` points at R rows of `k` bytes, `w` at `k / 4` groups of sixteen times four; `k` is a multiple of eight.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn avx2_tile<const R: usize>(x: *const u8, w: *const i8, k: usize, sums: &mut [[i32; PANEL]; TILE]) {
    let ones = _mm256_set1_epi16(1);
    let mut low = [_mm256_setzero_si256(); R];
    let mut high = [_mm256_setzero_si256(); R];
    for t in (0..k).step_by(8) {
        // SAFETY: t + 8 <= k, and the caller's promise.
        unsafe {
            let at = w.add(t * PANEL).cast::<__m256i>();
            let (b0, b1) = (_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1)));
            let (c0, c1) = (_mm256_loadu_si256(at.add(2)), _mm256_loadu_si256(at.add(3)));
            for r in 0..R {
                let from = x.add(r * k + t).cast::<i32>();
                let first = _mm256_set1_epi32(from.read_unaligned());
                let second = _mm256_set1_epi32(from.add(1).read_unaligned());
                let l = _mm256_add_epi16(_mm256_maddubs_epi16(first, b0), _mm256_maddubs_epi16(second, c0));
                let h = _mm256_add_epi16(_mm256_maddubs_epi16(first, b1), _mm256_maddubs_epi16(second, c1));
                low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(l, ones));
                high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(h, ones));
            }
        }
    }
    for r in 0..R {
        // SAFETY: a row of sums holds sixteen numbers.
        unsafe {
            let to = sums[r].as_mut_ptr().cast::<__m256i>();
            _mm256_storeu_si256(to, low[r]);
            _mm256_storeu_si256(to.add(1), high[r]);
        }
    }
}
