//! NEON tile: four rows by sixteen outputs.

use std::arch::aarch64::*;

use super::{PANEL, PanelRange};

/// Rows of a tile. The sums take sixteen registers, the weights four, and the next four inputs of each row one: eight of the
/// 32 stay free.
const TILE: usize = 4;

/// Budget of the inputs of a chunk of rows in the second-level cache.
const MAX_ROW_BYTES: usize = 256 << 10;

/// # Safety
/// The lengths `multiply_panels_on` checks. NEON itself is part of every 64-bit Arm this compiles for.
pub(super) unsafe fn neon(range: &PanelRange, x: &[f32], y: &mut [f32], rows: usize) {
    let k = range.weight.inputs;
    let chunk = (MAX_ROW_BYTES / (4 * k.max(1))).max(TILE) / TILE * TILE;
    for start in (0..rows).step_by(chunk) {
        let end = rows.min(start + chunk);
        for (p, panel) in range.panels.chunks_exact((PANEL * k).max(1)).enumerate() {
            let output = range.output(p);
            let mut i = start;
            while i < end {
                let n = (end - i).min(TILE);
                let mut tile = [[0.0f32; PANEL]; TILE];
                // SAFETY: rows i..i+n exist in x, and the panel holds k rows of sixteen weights.
                unsafe {
                    let x = x.as_ptr().add(i * k);
                    match n {
                        4 => neon_tile::<4>(x, k, panel, &mut tile),
                        3 => neon_tile::<3>(x, k, panel, &mut tile),
                        2 => neon_tile::<2>(x, k, panel, &mut tile),
                        _ => neon_tile::<1>(x, k, panel, &mut tile),
                    }
                }
                output.store(y, i, n, |r: usize| tile[r]);
                i += n;
            }
        }
    }
}

/// Products of R rows and a panel.
///
/// # Safety
/// `x` points at R rows of `k` values, one behind the other; the panel holds `k` rows of sixteen.
#[inline]
unsafe fn neon_tile<const R: usize>(x: *const f32, k: usize, panel: &[f32], tile: &mut [[f32; PANEL]; TILE]) {
    let (fours, rest) = panel.as_chunks::<{ 4 * PANEL }>();
    // SAFETY: loads stay within the four rows of weights of the chunk and, as the caller promises, within R rows of k inputs;
    // a row of the tile holds sixteen values.
    unsafe {
        // [four outputs][rows][4]
        let mut sums = [[vdupq_n_f32(0.0); R]; 4];
        for (t, weights) in fours.iter().enumerate() {
            let mut a = [vdupq_n_f32(0.0); R];
            for (r, a) in a.iter_mut().enumerate() {
                *a = vld1q_f32(x.add(r * k + 4 * t));
            }
            // Inputs in order: one chain of multiply-adds per element, in every tile.
            add::<0, R>(&mut sums, &a, weights.as_ptr());
            add::<1, R>(&mut sums, &a, weights.as_ptr().add(PANEL));
            add::<2, R>(&mut sums, &a, weights.as_ptr().add(2 * PANEL));
            add::<3, R>(&mut sums, &a, weights.as_ptr().add(3 * PANEL));
        }
        for (t, weights) in rest.as_chunks::<PANEL>().0.iter().enumerate() {
            let mut a = [vdupq_n_f32(0.0); R];
            for (r, a) in a.iter_mut().enumerate() {
                *a = vdupq_n_f32(*x.add(r * k + 4 * fours.len() + t));
            }
            add::<0, R>(&mut sums, &a, weights.as_ptr());
        }
        for (c, sums) in sums.iter().enumerate() {
            for (sum, row) in sums.iter().zip(&mut *tile) {
                vst1q_f32(row.as_mut_ptr().add(4 * c), *sum);
            }
        }
    }
}

/// Adds the sixteen weights times input `LANE` of the four inputs of every row.
///
/// # Safety
/// Sixteen values lie at `weights`.
#[inline(always)]
unsafe fn add<const LANE: i32, const R: usize>(
    sums: &mut [[float32x4_t; R]; 4],
    a: &[float32x4_t; R],
    weights: *const f32,
) {
    for (c, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let b = vld1q_f32(weights.add(4 * c));
            for (sum, a) in sums.iter_mut().zip(a) {
                *sum = vfmaq_laneq_f32::<LANE>(*sum, b, *a);
            }
        }
    }
}
