//! AVX2 and AVX-512 tiles.

use std::arch::x86_64::*;

use super::{PANEL, PanelRange};
use crate::prefetch::Prefetch;

/// Rows whose inputs stay in the second-level cache together while all panels pass over them.
fn row_chunk(inputs: usize, tile: usize) -> usize {
    const MAX_ROW_BYTES: usize = 256 << 10;
    (MAX_ROW_BYTES / (4 * inputs)).max(tile) / tile * tile
}

/// Rows of weights per prefetch step.
const PREFETCH_ROWS: usize = 32;

/// Inputs per pass: 48 rows of them stay in a second-level cache of half a megabyte beside a panel and the result.
const MAX_PASS_INPUTS: usize = 1536;

/// # Safety
/// AVX2 and FMA; the lengths `multiply_on` checks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2(range: &PanelRange, x: &[f32], y: &mut [f32], rows: usize) {
    const TILE: usize = 6;
    /// Cache budget of the inputs of a chunk of rows. Weights are read once per chunk, so small chunks make the product
    /// wait for memory (with chunks of 18 rows bert-base ran at two thirds of its speed).
    const MAX_ROW_BYTES: usize = 320 << 10;
    let k = range.weight.inputs;
    let chunk = (MAX_ROW_BYTES / (4 * k.clamp(1, MAX_PASS_INPUTS))).max(TILE) / TILE * TILE;
    for start in (0..rows).step_by(chunk) {
        let end = rows.min(start + chunk);
        let mut from = 0;
        loop {
            let to = k.min(from + MAX_PASS_INPUTS);
            for (p, panel) in range.panels.chunks_exact((PANEL * k).max(1)).enumerate() {
                let output = range.output(p);
                let weights = &panel[from * PANEL..to * PANEL];
                let next = (p + 1) * PANEL * k;
                let next = range.panels.get(next + from * PANEL..next + to * PANEL).unwrap_or_default();
                let prefetch = Prefetch::new(next, (end - start).div_ceil(TILE), (to - from).div_ceil(PREFETCH_ROWS));
                let mut i = start;
                while i < end {
                    let n = (end - i).min(TILE);
                    let mut tile = [[0.0f32; PANEL]; TILE];
                    if from > 0 {
                        output.load_partial(y, i, &mut tile[..n]);
                    }
                    let prefetch = prefetch.for_tile((i - start) / TILE);
                    // SAFETY: rows i..i+n exist in x, and the panel holds `to - from` rows of sixteen weights.
                    unsafe {
                        let x = x.as_ptr().add(i * k + from);
                        match n {
                            6 => avx2_tile::<6>(x, k, weights, prefetch, &mut tile),
                            5 => avx2_tile::<5>(x, k, weights, prefetch, &mut tile),
                            4 => avx2_tile::<4>(x, k, weights, prefetch, &mut tile),
                            3 => avx2_tile::<3>(x, k, weights, prefetch, &mut tile),
                            2 => avx2_tile::<2>(x, k, weights, prefetch, &mut tile),
                            _ => avx2_tile::<1>(x, k, weights, prefetch, &mut tile),
                        }
                    }
                    if to == k {
                        output.store(y, i, n, |r: usize| tile[r]);
                    } else {
                        output.store_partial(y, i, &tile[..n]);
                    }
                    i += n;
                }
            }
            if to == k {
                break;
            }
            from = to;
        }
    }
}

/// Adds the products of R rows and the inputs of `weights` to the sums in `tile`.
///
/// # Safety
/// `x` points at R rows, `stride` apart, of as many values as `weights` has rows of sixteen.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn avx2_tile<const R: usize>(
    x: *const f32,
    stride: usize,
    weights: &[f32],
    prefetch: Prefetch<f32>,
    tile: &mut [[f32; PANEL]; 6],
) {
    let mut low = [_mm256_setzero_ps(); R];
    let mut high = [_mm256_setzero_ps(); R];
    for r in 0..R {
        // SAFETY: a tile row holds sixteen values.
        unsafe {
            low[r] = _mm256_loadu_ps(tile[r].as_ptr());
            high[r] = _mm256_loadu_ps(tile[r].as_ptr().add(8));
        }
    }
    let mut t = 0;
    for (step, chunk) in weights.chunks(PREFETCH_ROWS * PANEL).enumerate() {
        prefetch.step(step);
        for b in chunk.as_chunks::<PANEL>().0 {
            // SAFETY: t stays below the number of rows of weights, and the caller's promise.
            unsafe {
                let b0 = _mm256_loadu_ps(b.as_ptr());
                let b1 = _mm256_loadu_ps(b.as_ptr().add(8));
                for r in 0..R {
                    let a = _mm256_broadcast_ss(&*x.add(r * stride + t));
                    low[r] = _mm256_fmadd_ps(a, b0, low[r]);
                    high[r] = _mm256_fmadd_ps(a, b1, high[r]);
                }
            }
            t += 1;
        }
    }
    for r in 0..R {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(tile[r].as_mut_ptr(), low[r]);
            _mm256_storeu_ps(tile[r].as_mut_ptr().add(8), high[r]);
        }
    }
}

/// # Safety
/// AVX-512 F; the lengths `multiply_on` checks.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn avx512(range: &PanelRange, x: &[f32], y: &mut [f32], rows: usize) {
    const TILE: usize = 12;
    let k = range.weight.inputs;
    let chunk = row_chunk(k, TILE);
    for start in (0..rows).step_by(chunk) {
        let end = rows.min(start + chunk);
        for (pair, panels) in range.panels.chunks(2 * PANEL * k).enumerate() {
            let both = panels.len() == 2 * PANEL * k;
            let next = &range.panels[((pair + 1) * 2 * PANEL * k).min(range.panels.len())..];
            let next = &next[..next.len().min(2 * PANEL * k)];
            let prefetch = Prefetch::new(next, (end - start).div_ceil(TILE), k.div_ceil(PREFETCH_ROWS));
            let outputs = [range.output(2 * pair), range.output(2 * pair + usize::from(both))];
            let mut i = start;
            while i < end {
                let mut tile = [[[0.0f32; PANEL]; 2]; TILE];
                let n = if end - i >= TILE { TILE } else { (end - i).min(4) };
                // SAFETY: rows i..i+n exist in x; each panel holds k rows of sixteen weights; a lone last panel is
                // read twice and its second result thrown away.
                unsafe {
                    let x = x.as_ptr().add(i * k);
                    let prefetch = prefetch.for_tile((i - start) / TILE);
                    let first = panels.as_ptr();
                    let second = if both { first.add(PANEL * k) } else { first };
                    match n {
                        12 => avx512_tile::<12>(x, first, second, k, prefetch, &mut tile),
                        4 => avx512_tile::<4>(x, first, second, k, prefetch, &mut tile),
                        3 => avx512_tile::<3>(x, first, second, k, prefetch, &mut tile),
                        2 => avx512_tile::<2>(x, first, second, k, prefetch, &mut tile),
                        _ => avx512_tile::<1>(x, first, second, k, prefetch, &mut tile),
                    }
                }
                for (half, output) in outputs.iter().take(1 + usize::from(both)).enumerate() {
                    output.store(y, i, n, |r: usize| tile[r][half]);
                }
                i += n;
            }
        }
    }
}

/// # Safety
/// `x` points at R rows of `k` values, both panels at `k` rows of sixteen.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn avx512_tile<const R: usize>(
    x: *const f32,
    first: *const f32,
    second: *const f32,
    k: usize,
    prefetch: Prefetch<f32>,
    tile: &mut [[[f32; PANEL]; 2]; 12],
) {
    let mut low = [_mm512_setzero_ps(); R];
    let mut high = [_mm512_setzero_ps(); R];
    for t in 0..k {
        if t % PREFETCH_ROWS == 0 {
            prefetch.step(t / PREFETCH_ROWS);
        }
        // SAFETY: t < k, and the caller's promise.
        unsafe {
            let b0 = _mm512_loadu_ps(first.add(t * PANEL));
            let b1 = _mm512_loadu_ps(second.add(t * PANEL));
            for r in 0..R {
                let a = _mm512_set1_ps(*x.add(r * k + t));
                low[r] = _mm512_fmadd_ps(a, b0, low[r]);
                high[r] = _mm512_fmadd_ps(a, b1, high[r]);
            }
        }
    }
    for r in 0..R {
        // SAFETY: each half of a tile row holds sixteen values.
        unsafe {
            _mm512_storeu_ps(tile[r][0].as_mut_ptr(), low[r]);
            _mm512_storeu_ps(tile[r][1].as_mut_ptr(), high[r]);
        }
    }
}
