//! AVX2, AVX-512 VNNI and AMX tiles.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{ProductArgs, STEP};
use crate::amx::{self, Configured, Product};
use crate::gemm::{Element, PANEL};
use crate::prefetch::Prefetch;

/// Rows of an AVX2 tile.
const TILE: usize = 4;

/// Prefetch of the panel after `panel` by tiles of `tile` rows.
fn prefetch<'a>(args: &'a ProductArgs, panel: usize, tile: usize) -> Prefetch<'a, i8> {
    let next = if panel + 1 < args.weight.panels() { args.weight.panel(panel + 1) } else { &[] };
    Prefetch::new(next, args.x.rows().div_ceil(tile), args.x.stride() / STEP)
}

/// # Safety
/// AVX2 and FMA; the lengths `multiply_panels_on` checks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2<T: Element>(args: &ProductArgs, y: &mut [T], panel: usize) {
    let scales = args.panel_scales(panel);
    let (rows, stride) = (args.x.rows(), args.x.stride());
    let w = args.weight.panel(panel).as_ptr();
    let prefetch = prefetch(args, panel, TILE);
    let mut i = 0;
    while i < rows {
        let n = (rows - i).min(TILE);
        let mut sums = [[0i32; PANEL]; TILE];
        let prefetch = prefetch.for_tile(i / TILE);
        // SAFETY: rows i..i+n exist, each of whole steps, and the panel has as many groups of four inputs.
        unsafe {
            let x = args.x.values().as_ptr().add(i * stride);
            match n {
                4 => avx2_tile::<4>(x, w, stride, prefetch, &mut sums),
                3 => avx2_tile::<3>(x, w, stride, prefetch, &mut sums),
                2 => avx2_tile::<2>(x, w, stride, prefetch, &mut sums),
                _ => avx2_tile::<1>(x, w, stride, prefetch, &mut sums),
            }
        }
        args.finish(y, &scales, i, &sums[..n]);
        i += n;
    }
}

/// # Safety
/// `x` points at R rows of `k` bytes, `w` at `k / 4` groups of sixteen times four; `k` is a multiple of the step.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn avx2_tile<const R: usize>(
    x: *const u8,
    w: *const i8,
    k: usize,
    prefetch: Prefetch<i8>,
    sums: &mut [[i32; PANEL]; TILE],
) {
    let ones = _mm256_set1_epi16(1);
    let mut low = [_mm256_setzero_si256(); R];
    let mut high = [_mm256_setzero_si256(); R];
    for step in 0..k / STEP {
        prefetch.step(step);
        for t in (step * STEP..(step + 1) * STEP).step_by(8) {
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

/// Rows of a VNNI tile. The registers would hold sixteen sums, a weight and a row's bytes; twelve sums hide the latency.
const VNNI_TILE: usize = 12;

/// # Safety
/// AVX-512 F, BW, VL and VNNI; the lengths `multiply_panels_on` checks.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn vnni<T: Element>(args: &ProductArgs, y: &mut [T], panel: usize) {
    let scales = args.panel_scales(panel);
    let (rows, stride) = (args.x.rows(), args.x.stride());
    let w = args.weight.panel(panel).as_ptr();
    let prefetch = prefetch(args, panel, VNNI_TILE);
    let mut i = 0;
    while i < rows {
        let n = if rows - i >= VNNI_TILE { VNNI_TILE } else { (rows - i).min(4) };
        let mut sums = [[0i32; PANEL]; VNNI_TILE];
        let prefetch = prefetch.for_tile(i / VNNI_TILE);
        // SAFETY: rows i..i+n exist, each of whole steps, and the panel has as many groups of four inputs.
        unsafe {
            let x = args.x.values().as_ptr().add(i * stride);
            match n {
                12 => vnni_tile::<12>(x, w, stride, prefetch, &mut sums),
                4 => vnni_tile::<4>(x, w, stride, prefetch, &mut sums),
                3 => vnni_tile::<3>(x, w, stride, prefetch, &mut sums),
                2 => vnni_tile::<2>(x, w, stride, prefetch, &mut sums),
                _ => vnni_tile::<1>(x, w, stride, prefetch, &mut sums),
            }
        }
        args.finish(y, &scales, i, &sums[..n]);
        i += n;
    }
}

/// # Safety
/// `x` points at R rows of `k` bytes, `w` at `k / 4` groups of sixteen times four; `k` is a multiple of the step.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn vnni_tile<const R: usize>(
    x: *const u8,
    w: *const i8,
    k: usize,
    prefetch: Prefetch<i8>,
    sums: &mut [[i32; PANEL]; VNNI_TILE],
) {
    let mut all = [_mm512_setzero_si512(); R];
    for step in 0..k / STEP {
        prefetch.step(step);
        for t in (step * STEP..(step + 1) * STEP).step_by(4) {
            // SAFETY: t + 4 <= k, and the caller's promise.
            unsafe {
                let b = _mm512_loadu_si512(w.add(t * PANEL).cast());
                for (r, sum) in all.iter_mut().enumerate() {
                    let a = _mm512_set1_epi32(x.add(r * k + t).cast::<i32>().read_unaligned());
                    *sum = _mm512_dpbusd_epi32(*sum, a, b);
                }
            }
        }
    }
    for r in 0..R {
        // SAFETY: a row of sums holds sixteen numbers.
        unsafe { _mm512_storeu_si512(sums[r].as_mut_ptr().cast(), all[r]) };
    }
}

/// # Safety
/// AMX tiles of bytes, AVX-512 F, BW and VL; the lengths `multiply_panels_on` checks; rows have space up to whole tiles.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn amx<T: Element>(args: &ProductArgs, y: &mut [T], panels: Range<usize>) {
    let (rows, stride) = (args.x.rows(), args.x.stride());
    if rows == 0 {
        return;
    }
    // SAFETY: the CPU has tiles.
    let tiled = unsafe { Configured::new() };
    let product = Product {
        x: args.x.values().as_ptr(),
        stride,
        rows,
        w: args.weight.panels.as_ptr().cast(),
        steps: stride / STEP,
    };
    // SAFETY: rows have space up to whole tiles and panels are whole, by construction; the panels are this weight's.
    unsafe {
        amx::bytes(&tiled, &product, panels, |i, panel, sums| {
            args.finish(y, &args.panel_scales(panel), i, sums);
        });
    }
}
