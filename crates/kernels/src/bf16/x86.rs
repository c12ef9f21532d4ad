//! The tiles of AVX2.

use std::arch::x86_64::*;

use super::{STEP, Tiles};
use crate::gemm::PANEL;

/// Rows of an AVX2 tile: even and odd chains of three rows and two registers of outputs fill twelve.
const TILE: usize = 3;

/// # Safety
/// AVX2 and FMA; the lengths `multiply_panels_on` checks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2(tiles: &mut Tiles, panel: usize) {
    let bias = tiles.bias(panel);
    let (rows, stride) = (tiles.x.rows, tiles.x.stride());
    let w = tiles.weight.panel(panel).as_ptr();
    let mut i = 0;
    while i < rows {
        let n = (rows - i).min(TILE);
        let mut sums = [[0.0f32; PANEL]; TILE];
        // SAFETY: rows i..i+n exist, each of whole steps, and the panel has as many pairs of inputs.
        unsafe {
            let x = tiles.x.values.as_ptr().add(i * stride);
            match n {
                3 => avx2_tile::<3>(x, w, stride, &mut sums),
                2 => avx2_tile::<2>(x, w, stride, &mut sums),
                _ => avx2_tile::<1>(x, w, stride, &mut sums),
            }
        }
        for (r, row) in sums[..n].iter().enumerate() {
            tiles.finish(panel, &bias, i + r, row);
        }
        i += n;
    }
}

/// # Safety
/// `x` points at R rows of `k` values, `w` at `k / 2` pairs of sixteen; `k` is a multiple of the step.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn avx2_tile<const R: usize>(x: *const u16, w: *const u16, k: usize, sums: &mut [[f32; PANEL]; TILE]) {
    let odd_half = _mm256_set1_epi32(0xffff_0000u32 as i32);
    let even_of = |pair: __m256i| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pair));
    let odd_of = |pair: __m256i| _mm256_castsi256_ps(_mm256_and_si256(pair, odd_half));
    for step in (0..k).step_by(STEP) {
        let mut even = [[_mm256_setzero_ps(); 2]; R];
        let mut odd = [[_mm256_setzero_ps(); 2]; R];
        for t in (step..step + STEP).step_by(2) {
            // SAFETY: t + 2 <= k, and the caller's promise.
            unsafe {
                let at = w.add(t * PANEL).cast::<__m256i>();
                let weights = [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))];
                for r in 0..R {
                    let pair = _mm256_set1_epi32(x.add(r * k + t).cast::<i32>().read_unaligned());
                    for side in 0..2 {
                        even[r][side] = _mm256_fmadd_ps(even_of(pair), even_of(weights[side]), even[r][side]);
                        odd[r][side] = _mm256_fmadd_ps(odd_of(pair), odd_of(weights[side]), odd[r][side]);
                    }
                }
            }
        }
        for r in 0..R {
            for side in 0..2 {
                // SAFETY: a row of sums holds sixteen values.
                unsafe {
                    let to = sums[r].as_mut_ptr().add(8 * side);
                    let both = _mm256_add_ps(even[r][side], odd[r][side]);
                    _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), both));
                }
            }
        }
    }
}
