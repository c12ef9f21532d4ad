//! Tile of Arm's dot products: `sdot` adds four products of signed bytes to each of four sums.
//!
//! Values of a row are below 128, so they are the same as signed bytes. Nothing saturates: sums have 32 bits from the
//! first product on.

use std::arch::aarch64::*;
use std::arch::asm;

use super::ProductArgs;
use crate::gemm::{Element, PANEL};

/// Rows of a tile: the sums take sixteen registers, the weights four, and the next sixteen bytes of each row one.
const TILE: usize = 4;

/// # Safety
/// The CPU has dot products; the lengths `multiply_panels_on` checks.
#[target_feature(enable = "dotprod")]
pub(super) unsafe fn dot<T: Element>(args: &ProductArgs, y: &mut [T], panel: usize) {
    let scales = args.panel_scales(panel);
    let (rows, stride) = (args.x.rows(), args.x.stride());
    let w = args.weight.panel(panel).as_ptr();
    let mut i = 0;
    while i < rows {
        let n = (rows - i).min(TILE);
        let mut sums = [[0i32; PANEL]; TILE];
        // SAFETY: rows i..i+n exist, each of whole steps, and the panel has as many groups of four inputs.
        unsafe {
            let x = args.x.values().as_ptr().add(i * stride);
            match n {
                4 => dot_tile::<4>(x, w, stride, &mut sums),
                3 => dot_tile::<3>(x, w, stride, &mut sums),
                2 => dot_tile::<2>(x, w, stride, &mut sums),
                _ => dot_tile::<1>(x, w, stride, &mut sums),
            }
        }
        args.finish(y, &scales, i, &sums[..n]);
        i += n;
    }
}

/// # Safety
/// `x` points at R rows of `k` bytes, `w` at `k / 4` groups of sixteen times four; `k` is a multiple of sixteen.
#[target_feature(enable = "dotprod")]
#[inline]
unsafe fn dot_tile<const R: usize>(x: *const u8, w: *const i8, k: usize, sums: &mut [[i32; PANEL]; TILE]) {
    // SAFETY: t + 16 <= k, and the caller's promise; a row of sums holds sixteen numbers.
    unsafe {
        // [four outputs][rows][4]
        let mut all = [[vdupq_n_s32(0); R]; 4];
        for t in (0..k).step_by(16) {
            let mut a = [vdupq_n_s8(0); R];
            for (r, a) in a.iter_mut().enumerate() {
                *a = vld1q_s8(x.add(r * k + t).cast());
            }
            let w = w.add(t * PANEL);
            add::<0, R>(&mut all, &a, w);
            add::<1, R>(&mut all, &a, w.add(4 * PANEL));
            add::<2, R>(&mut all, &a, w.add(8 * PANEL));
            add::<3, R>(&mut all, &a, w.add(12 * PANEL));
        }
        for (c, all) in all.iter().enumerate() {
            for (sum, row) in all.iter().zip(&mut *sums) {
                vst1q_s32(row.as_mut_ptr().add(4 * c), *sum);
            }
        }
    }
}

/// Adds a group's weights times group number `LANE` of four bytes in every row's sixteen.
///
/// # Safety
/// Sixteen times four weights lie at `w`.
#[target_feature(enable = "dotprod")]
#[inline]
unsafe fn add<const LANE: i32, const R: usize>(all: &mut [[int32x4_t; R]; 4], a: &[int8x16_t; R], w: *const i8) {
    for (c, all) in all.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let b = vld1q_s8(w.add(16 * c));
            for (sum, a) in all.iter_mut().zip(a) {
                *sum = sdot::<LANE>(*sum, b, *a);
            }
        }
    }
}

/// `sum[i] += b[4 i..4 i + 4] . a[4 LANE..4 LANE + 4]`, for which Rust has no stable function.
#[target_feature(enable = "dotprod")]
#[inline]
fn sdot<const LANE: i32>(mut sum: int32x4_t, b: int8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: only registers are touched, and the CPU has the instruction.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {b:v}.16b, {a:v}.4b[{lane}]",
            sum = inout(vreg) sum, b = in(vreg) b, a = in(vreg) a, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
