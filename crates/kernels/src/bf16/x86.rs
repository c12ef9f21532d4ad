//! AVX2, AVX-512 BF16 and AMX tiles.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{ProductArgs, STEP};
use crate::amx::{self, Configured, Product};
use crate::gemm::{Element, PANEL};
use crate::prefetch::Prefetch;

/// Rows of an AVX2 tile: the even and odd chains of three rows, with two registers of outputs each, take twelve registers.
const TILE: usize = 3;

/// # Safety
/// AVX2 and FMA; the lengths `multiply_panels_on` checks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2<T: Element>(args: &ProductArgs, y: &mut [T], panel: usize) {
    let output = args.output(panel);
    let (rows, stride) = (args.x.rows, args.x.stride());
    let w = args.weight.panel(panel).as_ptr();
    let mut i = 0;
    while i < rows {
        let n = (rows - i).min(TILE);
        let mut sums = [[0.0f32; PANEL]; TILE];
        // SAFETY: rows i..i+n exist, each of whole steps, and the panel has as many pairs of inputs.
        unsafe {
            let x = args.x.values.as_ptr().add(i * stride);
            match n {
                3 => avx2_tile::<3>(x, w, stride, &mut sums),
                2 => avx2_tile::<2>(x, w, stride, &mut sums),
                _ => avx2_tile::<1>(x, w, stride, &mut sums),
            }
        }
        output.store(y, i, n, |r: usize| sums[r]);
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

/// Rows of a tile of `vdpbf16ps`, which takes two panels: every broadcast of a row's value is used in two products. With one
/// panel the broadcasts took a third of the time of the products (an AMD EPYC).
const PAIRS_TILE: usize = 12;

/// # Safety
/// AVX-512 F, BW, VL and BF16; the lengths `multiply_panels_on` checks.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn pairs<T: Element>(args: &ProductArgs, y: &mut [T], panels: Range<usize>) {
    for first in panels.clone().step_by(2) {
        // SAFETY: the caller's promise.
        unsafe {
            if first + 1 < panels.end {
                pairs_of_panels(args, y, [first, first + 1]);
            } else {
                pairs_of_panels(args, y, [first]);
            }
        }
    }
}

/// # Safety
/// As above; the panels are the weight's.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512bf16")]
#[inline]
unsafe fn pairs_of_panels<T: Element, const P: usize>(args: &ProductArgs, y: &mut [T], panels: [usize; P]) {
    let outputs = panels.map(|panel| args.output(panel));
    let (rows, stride) = (args.x.rows, args.x.stride());
    let w = panels.map(|panel| args.weight.panel(panel).as_ptr());
    let next = args.weight.panels_from(panels[P - 1] + 1, P);
    let prefetch = Prefetch::new(next, rows.div_ceil(PAIRS_TILE), stride / STEP);
    let mut i = 0;
    while i < rows {
        let n = if rows - i >= PAIRS_TILE { PAIRS_TILE } else { (rows - i).min(4) };
        let mut sums = [[[0.0f32; PANEL]; PAIRS_TILE]; P];
        let prefetch = prefetch.for_tile(i / PAIRS_TILE);
        // SAFETY: rows i..i+n exist, each of whole steps, and the panels have as many pairs of inputs.
        unsafe {
            let x = args.x.values.as_ptr().add(i * stride);
            match n {
                12 => pairs_tile::<12, P>(x, w, stride, prefetch, &mut sums),
                4 => pairs_tile::<4, P>(x, w, stride, prefetch, &mut sums),
                3 => pairs_tile::<3, P>(x, w, stride, prefetch, &mut sums),
                2 => pairs_tile::<2, P>(x, w, stride, prefetch, &mut sums),
                _ => pairs_tile::<1, P>(x, w, stride, prefetch, &mut sums),
            }
        }
        for (output, sums) in outputs.iter().zip(&sums) {
            output.store(y, i, n, |r: usize| sums[r]);
        }
        i += n;
    }
}

/// # Safety
/// `x` points at R rows of `k` values, each `w` at `k / 2` pairs of sixteen; `k` is a multiple of the step.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
unsafe fn pairs_tile<const R: usize, const P: usize>(
    x: *const u16,
    w: [*const u16; P],
    k: usize,
    prefetch: Prefetch<u16>,
    sums: &mut [[[f32; PANEL]; PAIRS_TILE]; P],
) {
    // SAFETY: both are 64 bytes, and any bits are values of either.
    let halves = |v: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(v) };
    let mut all = [[_mm512_setzero_ps(); P]; R];
    for step in 0..k / STEP {
        prefetch.step(step);
        for t in (step * STEP..(step + 1) * STEP).step_by(2) {
            // SAFETY: t + 2 <= k, and the caller's promise.
            unsafe {
                let b = w.map(|w| halves(_mm512_loadu_si512(w.add(t * PANEL).cast())));
                for (r, sums) in all.iter_mut().enumerate() {
                    let a = halves(_mm512_set1_epi32(x.add(r * k + t).cast::<i32>().read_unaligned()));
                    for p in 0..P {
                        sums[p] = _mm512_dpbf16_ps(sums[p], a, b[p]);
                    }
                }
            }
        }
    }
    for r in 0..R {
        for p in 0..P {
            // SAFETY: a row of sums holds sixteen values.
            unsafe { _mm512_storeu_ps(sums[p][r].as_mut_ptr(), all[r][p]) };
        }
    }
}

/// # Safety
/// AMX tiles of `bf16`, AVX-512 F, BW and VL; the lengths `multiply_panels_on` checks; rows have space up to whole tiles.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn amx<T: Element>(args: &ProductArgs, y: &mut [T], panels: Range<usize>) {
    let (rows, stride) = (args.x.rows, args.x.stride());
    if rows == 0 {
        return;
    }
    // SAFETY: the CPU has tiles.
    let tiled = unsafe { Configured::new() };
    let x = args.x.values.as_ptr().cast();
    let w = args.weight.panels.as_ptr().cast();
    let product = Product { x, stride: 2 * stride, rows, w, steps: stride / STEP };
    // SAFETY: rows have space up to whole tiles and panels are whole, by construction; the panels are this weight's.
    unsafe {
        amx::halves(&tiled, &product, panels, |i, panel, sums| {
            args.output(panel).store(y, i, sums.len(), |r: usize| sums[r]);
        });
    }
}
