//! Attention in `bf16`, for encoders whose products are not `f32`. On AMX tiles it takes 1.2 us per token and layer of MiniLM; the
//! loops of `f32` take 2.2 us (a Xeon).
//!
//! Queries, keys, values and the exponentials of the scores are rounded to `bf16`. Sums are `f32` in the order of AMX tiles
//! (`bf16/mod.rs`): steps of 32, each with one chain over the even positions and one over the odd positions. The result
//! is divided by the sum of the exponentials, not the weights. So the plain loops give the tiles' bits.

use crate::Backend;
use crate::aligned::Aligned;
use crate::attention::{Arithmetic, Mask, Operand, QUERY_TILE, Scores, Scratch, Shape, heads_body, narrow};
use crate::bf16::{HalfRows, STEP, Unit};
use crate::dispatch::per_backend;
use crate::dropout::Rate;
use crate::gemm::Element;
use crate::lanes::{LANES, bf16_round as round, bf16_widen as widen};

/// Memory for one head, reused between calls.
#[derive(Default)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct HalfScratch {
    // Of the plain loops, as in `f32`; the tiles store their scores there too.
    plain: Scratch,
    // Panels of sixteen keys for the tiles, [length / 16][width / 2][16]; an element is a pair of `bf16`.
    keys: Aligned<u32>,
    // Panels of sixteen values, [width / 16][length / 2][16]; an element is a pair of `bf16`.
    values: Aligned<u32>,
    // [queries, length rounded up to whole steps]
    weights: Aligned<u16>,
}

/// `out[length, heads * width]` for one sequence. `qkv` is `[length, 3 * heads * width]`, queries, keys and values side
/// by side, and is rounded in place. `dropout`, a rate and a key, applies to the probabilities.
///
/// # Panics
/// When a length is wrong.
pub fn attend_rounded(
    backend: Backend,
    qkv: &mut [f32],
    out: &mut [f32],
    shape: Shape,
    scores: Scores,
    dropout: Option<(Rate, u64)>,
    scratch: &mut HalfScratch,
) {
    let hidden = shape.heads * shape.width;
    assert!(hidden > 0 && qkv.len() == 3 * out.len() && out.len().is_multiple_of(hidden));
    let stride = (out.len() / hidden).next_multiple_of(LANES);
    scores.check(shape.heads, out.len() / hidden);
    scratch.plain.keys.space(shape.width * stride).fill(0.0);
    scratch.plain.scores.space(QUERY_TILE * stride);
    let backend = narrow(backend);
    round_all(backend, qkv);
    heads(backend, qkv, out, shape, scores, dropout, &mut scratch.plain);
}

per_backend! {
    /// Rounds every value to the nearest `bf16`.
    fn round_all(values: &mut [f32]) => round_all_body;
}

#[inline(always)]
fn round_all_body(values: &mut [f32]) {
    for v in values {
        *v = widen(round(*v));
    }
}

per_backend! {
    /// All heads of a sequence of rounded values; `attend_rounded` has checked the lengths.
    fn heads(qkv: &[f32], out: &mut [f32], shape: Shape, scores: Scores, dropout: Option<(Rate, u64)>, scratch: &mut Scratch) => heads_body::<Steps>;
}

/// `bf16`: the order of AMX tiles.
struct Steps;

impl Arithmetic for Steps {
    #[inline(always)]
    fn sums<const Q: usize>(n: usize, a: Operand, b: &[f32], stride: usize) -> [[f32; LANES]; Q] {
        let mut all = [[0.0f32; LANES]; Q];
        for step in (0..n).step_by(STEP) {
            let end = n.min(step + STEP);
            let even = a.chain::<Q, 2>(step, end, b, stride);
            let odd = a.chain::<Q, 2>(step + 1, end, b, stride);
            for r in 0..Q {
                for l in 0..LANES {
                    all[r][l] += even[r][l] + odd[r][l];
                }
            }
        }
        all
    }

    #[inline(always)]
    fn sum(n: usize, product: impl Fn(usize, f32) -> f32) -> f32 {
        let chain = |from: usize, end: usize| (from..end).step_by(2).fold(0.0, |sum, i| product(i, sum));
        (0..n).step_by(STEP).fold(0.0, |all, step| {
            let end = n.min(step + STEP);
            all + (chain(step, end) + chain(step + 1, end))
        })
    }

    #[inline(always)]
    fn weigh(exponentials: &mut [f32], inverse: f32, mask: Option<Mask>, query: usize) -> f32 {
        if let Some(mask) = mask {
            mask.drop(exponentials.as_chunks_mut().0, query);
        }
        round_all_body(exponentials);
        inverse
    }
}

/// Attention on AMX tiles; exists only where the CPU has them.
#[derive(Clone, Copy, Debug)]
pub struct Tiled(());

impl Tiled {
    /// `None` unless the CPU has tiles, the backend may use them, and the width of a head is a multiple of the step.
    pub fn new(backend: Backend, shape: Shape) -> Option<Self> {
        (Unit::of(backend) == Unit::Amx && shape.width.is_multiple_of(STEP)).then_some(Tiled(()))
    }

    /// The bits of [`attend_rounded`] for one sequence: rows `first` to `first + out.len() / hidden` of `qkv`.
    ///
    /// # Panics
    /// When a length is wrong.
    pub fn attend(
        self,
        qkv: &HalfRows,
        first: usize,
        out: &mut [f32],
        shape: Shape,
        dropout: Option<(Rate, u64)>,
        scratch: &mut HalfScratch,
    ) {
        self.attend_as(qkv, first, out, shape, dropout, scratch);
    }

    /// [`Self::attend`] with a result rounded to `bf16`: rows `first` to `first + length` of `out`, which gets the rows of
    /// `qkv`.
    ///
    /// # Panics
    /// When a length is wrong.
    pub fn attend_into(
        self,
        qkv: &HalfRows,
        (first, length): (usize, usize),
        out: &mut HalfRows,
        shape: Shape,
        dropout: Option<(Rate, u64)>,
        scratch: &mut HalfScratch,
    ) {
        let hidden = shape.heads * shape.width;
        out.reshape(qkv.rows(), hidden);
        // The width is a multiple of the step, so rows have no padding.
        let out = &mut out.values_mut()[first * hidden..(first + length) * hidden];
        self.attend_as(qkv, first, out, shape, dropout, scratch);
    }

    fn attend_as<T: Element>(
        self,
        qkv: &HalfRows,
        first: usize,
        out: &mut [T],
        shape: Shape,
        dropout: Option<(Rate, u64)>,
        scratch: &mut HalfScratch,
    ) {
        let hidden = shape.heads * shape.width;
        assert!(shape.width.is_multiple_of(STEP) && hidden > 0 && out.len().is_multiple_of(hidden));
        let length = out.len() / hidden;
        assert!(qkv.stride() == 3 * hidden && first + length <= qkv.rows(), "the sequence is in qkv");
        // SAFETY: `Tiled` exists only where the CPU has tiles; the lengths are checked.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            x86::tiles(qkv, first, out, shape, dropout, scratch);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (dropout, scratch);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::amx::{self, Configured, Product};
    use crate::rows::exponentials;

    /// Queries per block: their scores stay in the second-level cache even for the longest sequences.
    const QUERY_BLOCK: usize = 64;

    /// Transpose of sixteen rows of sixteen: blocks of one are swapped, then of two, four and eight.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn transpose(mut rows: [__m512i; LANES]) -> [__m512i; LANES] {
        for block in [1, 2, 4, 8] {
            let from = |upper: bool| -> [i32; LANES] {
                std::array::from_fn(|l| {
                    let index = if l & block == 0 {
                        l + block * usize::from(upper)
                    } else {
                        LANES + l - block * usize::from(!upper)
                    };
                    index as i32
                })
            };
            // SAFETY: sixteen indices each.
            let [low, high] = [false, true].map(|upper| unsafe { _mm512_loadu_si512(from(upper).as_ptr().cast()) });
            for i in (0..LANES).filter(|i| i & block == 0) {
                let (a, b) = (rows[i], rows[i + block]);
                rows[i] = _mm512_permutex2var_epi32(a, low, b);
                rows[i + block] = _mm512_permutex2var_epi32(a, high, b);
            }
        }
        rows
    }

    /// Keys as pairs of values, transposed: sixteen keys in a panel. Keys beyond the sequence are zero.
    ///
    /// # Safety
    /// AVX-512 F, BW and VL.
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
    #[inline]
    unsafe fn pack_keys<'a>(key: impl Fn(usize) -> &'a [u16], length: usize, width: usize, keys: &mut [u32]) {
        for (p, panel) in keys.chunks_exact_mut(LANES * width / 2).enumerate() {
            for (c, transposed) in panel.chunks_exact_mut(LANES * LANES).enumerate() {
                // SAFETY: sixteen pairs of a key can be read, and there is space for those of sixteen keys.
                unsafe {
                    let pairs = |j: usize| match p * LANES + j {
                        j if j < length => _mm512_loadu_si512(key(j)[2 * c * LANES..][..2 * LANES].as_ptr().cast()),
                        _ => _mm512_setzero_si512(),
                    };
                    for (to, row) in transposed.chunks_exact_mut(LANES).zip(transpose(std::array::from_fn(pairs))) {
                        _mm512_storeu_si512(to.as_mut_ptr().cast(), row);
                    }
                }
            }
        }
    }

    /// Values in pairs of rows, sixteen columns in a panel.
    ///
    /// # Safety
    /// AVX-512 F, BW and VL.
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
    #[inline]
    unsafe fn pack_values<'a>(value: impl Fn(usize) -> &'a [u16], length: usize, padded: usize, values: &mut [u32]) {
        for j in (0..length).step_by(2) {
            // The last value of an odd sequence is paired with zeros, which get a weight of zero.
            let (even, odd) = (value(j), value((j + 1).min(length - 1)));
            let odd_mask = if j + 1 < length { u16::MAX } else { 0 };
            for (c, panel) in values.chunks_exact_mut(padded / 2 * LANES).enumerate() {
                let (even, odd) = (&even[c * LANES..][..LANES], &odd[c * LANES..][..LANES]);
                let to = &mut panel[j / 2 * LANES..][..LANES];
                // SAFETY: sixteen values of each can be read, and there is space for as many pairs.
                unsafe {
                    let even = _mm512_cvtepu16_epi32(_mm256_loadu_si256(even.as_ptr().cast()));
                    let odd = _mm512_maskz_cvtepu16_epi32(odd_mask, _mm256_loadu_si256(odd.as_ptr().cast()));
                    let pairs = _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd));
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs);
                }
            }
        }
    }

    /// # Safety
    /// AMX tiles of `bf16`, AVX-512 F, BW and VL; the lengths `attend_as` checks.
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn tiles<T: Element>(
        qkv: &HalfRows,
        first: usize,
        out: &mut [T],
        shape: Shape,
        dropout: Option<(Rate, u64)>,
        scratch: &mut HalfScratch,
    ) {
        let Shape { heads, width } = shape;
        let hidden = heads * width;
        let length = out.len() / hidden;
        let (lanes, padded) = (length.next_multiple_of(LANES), length.next_multiple_of(STEP));
        let rows = &qkv.values()[first * 3 * hidden..];
        let scale = 1.0 / (width as f32).sqrt();
        let HalfScratch { plain, keys, values, weights } = scratch;
        let scores = plain.scores.space(QUERY_BLOCK * lanes);
        let keys = keys.space(lanes * width / 2);
        // Values and weights beyond the sequence are zero, and stay zero from head to head.
        let values = values.space(padded / 2 * width);
        values.fill(0);
        let weights = weights.space(QUERY_BLOCK * padded);
        weights.fill(0);
        let mut inverse = [0.0f32; QUERY_BLOCK];
        // SAFETY: the CPU has tiles.
        let tiled = unsafe { Configured::new() };
        for head in 0..heads {
            let part = |j: usize, which: usize| &rows[(j * 3 + which) * hidden + head * width..][..width];
            // SAFETY: the CPU has AVX-512.
            unsafe {
                pack_keys(|j| part(j, 1), length, width, keys);
                pack_values(|j| part(j, 2), length, padded, values);
            }
            let mask = dropout.map(|dropout| Mask::new(dropout, head, length));
            for block in (0..length).step_by(QUERY_BLOCK) {
                let n = QUERY_BLOCK.min(length - block);
                let queries = Product {
                    x: rows[block * 3 * hidden + head * width..].as_ptr().cast(),
                    stride: 2 * 3 * hidden,
                    rows: n,
                    w: keys.as_ptr().cast(),
                    steps: width / STEP,
                };
                // SAFETY: a whole tile can be read from any row of the sequence on, and there are as many panels.
                unsafe {
                    amx::halves(&tiled, &queries, 0..lanes / LANES, |i, panel, sums| {
                        // Positions beyond the sequence get no weight. The mask is applied while the scores are in registers:
                        // after single stores, a later load of the whole register would wait for all of them.
                        let inside = u16::MAX >> (LANES - (length - panel * LANES).min(LANES));
                        for (r, sums) in sums.iter().enumerate() {
                            let to = &mut scores[(i + r) * lanes + panel * LANES..][..LANES];
                            let no_weight = _mm512_set1_ps(f32::NEG_INFINITY);
                            let row = _mm512_mask_loadu_ps(no_weight, inside, sums.as_ptr());
                            _mm512_storeu_ps(to.as_mut_ptr(), row);
                        }
                    });
                }
                for (r, row) in scores.chunks_exact_mut(lanes).take(n).enumerate() {
                    inverse[r] = exponentials(row.as_chunks_mut().0, scale);
                    if let Some(mask) = mask {
                        mask.drop(row.as_chunks_mut().0, block + r);
                    }
                    for (to, v) in weights[r * padded..][..lanes].iter_mut().zip(row) {
                        *to = round(*v);
                    }
                }
                let results = Product {
                    x: weights.as_ptr().cast(),
                    stride: 2 * padded,
                    rows: n,
                    w: values.as_ptr().cast(),
                    steps: padded / STEP,
                };
                // SAFETY: the weights have the rows of a whole block, a multiple of a tile's, and there are as many panels.
                unsafe {
                    amx::halves(&tiled, &results, 0..width / LANES, |i, panel, sums| {
                        for (r, sums) in sums.iter().enumerate() {
                            let to = &mut out[(block + i + r) * hidden + head * width + panel * LANES..][..LANES];
                            for l in 0..LANES {
                                to[l] = T::from_f32(sums[l] * inverse[i + r]);
                            }
                        }
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{Scratch, attend};

    fn noise(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 71 % 113) as f32 - 56.0) / 20.0).collect()
    }

    #[test]
    fn every_backend_and_the_tiles_give_the_same_bits() {
        for (heads, width) in [(3, 8), (2, 32), (2, 64), (1, 40)] {
            let (shape, hidden) = (Shape { heads, width }, heads * width);
            for length in [1, 2, 17, 33, 50, 130] {
                let qkv = noise(length * 3 * hidden);
                for dropout in [None, Some((Rate::new(0.3), 5))] {
                    let run = |backend| {
                        let mut out = vec![f32::NAN; length * hidden];
                        attend_rounded(
                            backend,
                            &mut qkv.clone(),
                            &mut out,
                            shape,
                            Scores::Plain,
                            dropout,
                            &mut HalfScratch::default(),
                        );
                        out
                    };
                    let expected = run(Backend::Reference);
                    for backend in Backend::available() {
                        assert_eq!(run(backend), expected, "{} {heads} x {width}, {length}", backend.name());
                        let Some(tiled) = Tiled::new(backend, shape) else { continue };
                        // Behind another sequence, so that it does not begin at a tile.
                        let mut rows = HalfRows::default();
                        let all: Vec<f32> = noise(5 * 3 * hidden).into_iter().chain(qkv.clone()).collect();
                        rows.fill(backend, &all, 3 * hidden);
                        let mut out = vec![f32::NAN; length * hidden];
                        let mut scratch = HalfScratch::default();
                        tiled.attend(&rows, 5, &mut out, shape, dropout, &mut scratch);
                        assert_eq!(out, expected, "tiles {heads} x {width}, {length}");
                        let mut halves = HalfRows::default();
                        tiled.attend_into(&rows, (5, length), &mut halves, shape, dropout, &mut scratch);
                        let got: Vec<u16> = halves.values()[5 * hidden..(5 + length) * hidden].to_vec();
                        assert_eq!(got, expected.iter().map(|v| round(*v)).collect::<Vec<_>>());
                    }
                }
            }
        }
    }

    #[test]
    fn an_infinite_value_reaches_only_its_own_column() {
        let (shape, length, hidden) = (Shape { heads: 1, width: 32 }, 17, 32);
        let mut qkv = noise(length * 3 * hidden);
        qkv[(length - 1) * 3 * hidden + 2 * hidden + 5] = f32::INFINITY;
        let run = |backend| {
            let mut out = vec![f32::NAN; length * hidden];
            attend_rounded(
                backend,
                &mut qkv.clone(),
                &mut out,
                shape,
                Scores::Plain,
                None,
                &mut HalfScratch::default(),
            );
            out
        };
        let expected = run(Backend::Reference);
        assert!(expected.iter().enumerate().all(|(i, v)| if i % hidden == 5 {
            *v == f32::INFINITY
        } else {
            v.is_finite()
        }));
        for backend in Backend::available() {
            assert_eq!(run(backend), expected, "{}", backend.name());
            let Some(tiled) = Tiled::new(backend, shape) else { continue };
            let mut rows = HalfRows::default();
            rows.fill(backend, &qkv, 3 * hidden);
            let mut out = vec![f32::NAN; length * hidden];
            tiled.attend(&rows, 0, &mut out, shape, None, &mut HalfScratch::default());
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn rounded_attention_equals_f32_attention_to_bf16_precision() {
        let (shape, length, hidden) = (Shape { heads: 2, width: 32 }, 45, 64);
        let qkv: Vec<f32> = noise(length * 3 * hidden).iter().map(|v| v / 3.0).collect();
        let (mut exact, mut got) = (vec![0.0; length * hidden], vec![0.0; length * hidden]);
        attend(Backend::active(), &qkv, &mut exact, shape, Scores::Plain, None, &mut Scratch::default());
        let mut scratch = HalfScratch::default();
        attend_rounded(Backend::active(), &mut qkv.clone(), &mut got, shape, Scores::Plain, None, &mut scratch);
        // bf16 has eight bits of mantissa, and scores of about 10 go into an exponential.
        let error = exact.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error > 0.0 && error < 0.02, "{error}");
    }
}
