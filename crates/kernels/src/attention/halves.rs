//! Attention in `bf16`, for encoders whose products are not `f32`: on AMX tiles 1.2 us a token and layer of MiniLM, where the loops
//! of `f32` take 2.2 (a Xeon).
//!
//! Queries, keys, values and the exponentials of the scores are rounded to `bf16`; sums are `f32` in the order of AMX tiles
//! (`bf16/mod.rs`): steps of 32, in each the even places one chain and the odd ones another. The exponentials' sum
//! divides the answer and not its weights. So the plain loops give the tiles' bits.

use crate::Backend;
use crate::aligned::Aligned;
use crate::attention::{Shape, TOGETHER, narrow};
use crate::bf16::{HalfRows, STEP, Unit, round, widen};
use crate::dispatch::per_backend;
use crate::dropout::{Rate, drop_row_body, mix};
use crate::gemm::Stored;
use crate::lanes::{LANES, exp_of_negative, fold};

/// Space for one head, kept between calls.
#[derive(Default)]
pub struct HalfScratch {
    // Plain: [width, length to whole lanes], turned as in `f32`.
    turned: Aligned<f32>,
    // [queries, length to whole lanes]
    scores: Aligned<f32>,
    // Tiles: panels of sixteen keys, [length / 16][width / 2][16], and of sixteen values, [width / 16][length / 2][16]; each a pair.
    keys: Aligned<u32>,
    values: Aligned<u32>,
    // [queries, length to whole steps]
    weights: Aligned<u16>,
}

/// `out[length, heads * width]` for one sequence. `qkv` is `[length, 3 * heads * width]`, queries, keys and values side
/// by side, and is rounded in its place; dropout falls on the probabilities where given.
///
/// # Panics
/// When a length is wrong.
pub fn attend_rounded(
    backend: Backend,
    qkv: &mut [f32],
    out: &mut [f32],
    shape: Shape,
    dropout: Option<(Rate, u64)>,
    scratch: &mut HalfScratch,
) {
    let hidden = shape.heads * shape.width;
    assert!(hidden > 0 && qkv.len() == 3 * out.len() && out.len().is_multiple_of(hidden));
    let stride = (out.len() / hidden).next_multiple_of(LANES);
    scratch.turned.space(shape.width * stride).fill(0.0);
    scratch.scores.space(TOGETHER * stride);
    heads(narrow(backend), qkv, out, shape, dropout, scratch);
}

per_backend! {
    /// All heads of a sequence whose lengths `attend_rounded` has checked.
    fn heads(qkv: &mut [f32], out: &mut [f32], shape: Shape, dropout: Option<(Rate, u64)>, scratch: &mut HalfScratch) => heads_body;
}

#[inline(always)]
fn heads_body(qkv: &mut [f32], out: &mut [f32], shape: Shape, dropout: Option<(Rate, u64)>, scratch: &mut HalfScratch) {
    let Shape { heads, width } = shape;
    let hidden = heads * width;
    let length = out.len() / hidden;
    let stride = length.next_multiple_of(LANES);
    for v in qkv.iter_mut() {
        *v = widen(round(*v));
    }
    let HalfScratch { turned, scores, .. } = scratch;
    let (keys, scores) = (&mut turned[..width * stride], &mut scores[..TOGETHER * stride]);
    for head in 0..heads {
        for (j, token) in qkv.chunks_exact(3 * hidden).enumerate() {
            let from = hidden + head * width;
            for (row, &v) in keys.chunks_exact_mut(stride).zip(&token[from..from + width]) {
                row[j] = v;
            }
        }
        let mask = dropout.map(|(rate, key)| Mask { rate, key, first: head * length });
        let head = Head { qkv, keys, shape, head, length, mask };
        let whole = length / TOGETHER * TOGETHER;
        for i in (0..whole).step_by(TOGETHER) {
            head.queries::<TOGETHER>(i, scores, out);
        }
        for i in whole..length {
            head.queries::<1>(i, scores, out);
        }
    }
}

/// Which probabilities of a head fall.
#[derive(Clone, Copy)]
struct Mask {
    rate: Rate,
    key: u64,
    // Number of the head's first row of probabilities.
    first: usize,
}

/// Scores of one query to what its values are weighed by, not rounded yet; returns what the weighed sum is to be
/// multiplied by. What lies beyond `length` weighs nothing.
#[inline(always)]
fn weigh(row: &mut [f32], length: usize, scale: f32, mask: Option<Mask>, query: usize) -> f32 {
    row[length..].fill(f32::NEG_INFINITY);
    // A comparison and not `max`, which asks whether a value is one at all.
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for c in row.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            lanes[i] = larger(c[i], lanes[i]);
        }
    }
    let top = fold(lanes, larger);
    let mut sums = [0.0f32; LANES];
    for c in row.as_chunks_mut::<LANES>().0 {
        for i in 0..LANES {
            c[i] = exp_of_negative((c[i] - top) * scale);
            sums[i] += c[i];
        }
    }
    if let Some(Mask { rate, key, first }) = mask {
        drop_row_body(&mut row[..length], mix(key, (first + query) as u64), rate);
    }
    1.0 / fold(sums, |a, b| a + b)
}

/// One head of a sequence whose values are rounded.
struct Head<'a> {
    qkv: &'a [f32],
    // [width, length to whole lanes]
    keys: &'a [f32],
    shape: Shape,
    head: usize,
    length: usize,
    mask: Option<Mask>,
}

impl Head<'_> {
    /// The answers to queries `first` to `first + Q`. `scores` is `[Q, length to whole lanes]` at least.
    #[inline(always)]
    fn queries<const Q: usize>(&self, first: usize, scores: &mut [f32], out: &mut [f32]) {
        let Shape { heads, width } = self.shape;
        let (hidden, length) = (heads * width, self.length);
        let stride = length.next_multiple_of(LANES);
        let step = 3 * hidden;
        let queries = &self.qkv[first * step + self.head * width..][..(Q - 1) * step + width];
        assert!(self.keys.len() == width * stride && scores.len() >= Q * stride);
        for c in (0..stride).step_by(LANES) {
            // Of every query a value, of every row of keys sixteen.
            let sums = chains::<Q>(width, Operand { values: queries, stride: step }, &self.keys[c..], stride);
            for r in 0..Q {
                scores[r * stride + c..r * stride + c + LANES].copy_from_slice(&sums[r]);
            }
        }
        let mut inverse = [0.0f32; Q];
        let scale = 1.0 / (width as f32).sqrt();
        for (r, scores) in scores.chunks_exact_mut(stride).take(Q).enumerate() {
            inverse[r] = weigh(scores, length, scale, self.mask, first + r);
            for v in scores {
                *v = widen(round(*v));
            }
        }
        let weights = &scores[..Q * stride];
        let from = 2 * hidden + self.head * width;
        let whole = width / LANES * LANES;
        for c in (0..whole).step_by(LANES) {
            let sums = chains::<Q>(length, Operand { values: weights, stride }, &self.qkv[from + c..], step);
            for r in 0..Q {
                let to = &mut out[(first + r) * hidden + self.head * width + c..][..LANES];
                for l in 0..LANES {
                    to[l] = sums[r][l] * inverse[r];
                }
            }
        }
        for c in whole..width {
            for r in 0..Q {
                // Beside it lie others' values or the end: one at a time.
                let values: Vec<f32> = (0..length).flat_map(|j| [self.qkv[j * step + from + c]; LANES]).collect();
                let sums = chains::<1>(length, Operand { values: &weights[r * stride..], stride }, &values, LANES);
                out[(first + r) * hidden + self.head * width + c] = sums[0][0] * inverse[r];
            }
        }
    }
}

/// A value of each of some rows, `stride` apart.
#[derive(Clone, Copy)]
struct Operand<'a> {
    values: &'a [f32],
    stride: usize,
}

/// `a[Q, n] b[n, 16]`, summed in the order of tiles.
#[inline(always)]
fn chains<const Q: usize>(n: usize, a: Operand, b: &[f32], stride: usize) -> [[f32; LANES]; Q] {
    let mut all = [[0.0f32; LANES]; Q];
    for step in (0..n).step_by(STEP) {
        let end = n.min(step + STEP);
        let even = chain::<Q>(step, end, a, b, stride);
        let odd = chain::<Q>(step + 1, end, a, b, stride);
        for r in 0..Q {
            for l in 0..LANES {
                all[r][l] += even[r][l] + odd[r][l];
            }
        }
    }
    all
}

/// Every other place of a step.
#[inline(always)]
fn chain<const Q: usize>(from: usize, end: usize, a: Operand, b: &[f32], stride: usize) -> [[f32; LANES]; Q] {
    assert!(end == 0 || a.values.len() >= (Q - 1) * a.stride + end);
    let mut sums = [[0.0f32; LANES]; Q];
    for i in (from..end).step_by(2) {
        let b: &[f32; LANES] = b[i * stride..][..LANES].try_into().expect("a whole lane");
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: i < end, and so far the values reach, as was asserted.
            let a = unsafe { *a.values.get_unchecked(r * a.stride + i) };
            for l in 0..LANES {
                sums[l] = a.mul_add(b[l], sums[l]);
            }
        }
    }
    sums
}

/// Leave to attend on AMX tiles.
#[derive(Clone, Copy, Debug)]
pub struct Tiled(());

impl Tiled {
    /// Where the CPU has tiles, the backend may use them, and heads are whole steps wide.
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

    /// The same rounded to `bf16`: rows `first` to `first + length` of `out`, which is given the shape of all.
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
        out.shape(qkv.rows(), hidden);
        // Heads are whole steps wide, so rows lie as close as they can.
        let out = &mut out.values_mut()[first * hidden..(first + length) * hidden];
        self.attend_as(qkv, first, out, shape, dropout, scratch);
    }

    fn attend_as<T: Stored>(
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
        // SAFETY: tiles are there, or there were no `Tiled`; the lengths are checked.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            x86::tiles(qkv, first, out, shape, dropout, scratch)
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (dropout, scratch);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::amx::{self, Configured, Product, ROWS};

    /// Queries that go together: their scores stay in the second-level cache up to the longest sequences.
    const BLOCK: usize = 64;

    /// # Safety
    /// AMX tiles of `bf16`, AVX-512 F, BW and VL; the lengths `attend_as` checks.
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn tiles<T: Stored>(
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
        let HalfScratch { scores, keys, values, weights, .. } = scratch;
        let scores = scores.space(BLOCK * lanes);
        // Beyond the sequence all is zero, and stays so from head to head.
        let keys = keys.space(lanes * width / 2);
        keys.fill(0);
        let values = values.space(padded / 2 * width);
        values.fill(0);
        let weights = weights.space(BLOCK * padded);
        weights.fill(0);
        let mut inverse = [0.0f32; BLOCK];
        // SAFETY: the CPU has tiles.
        let tiled = unsafe { Configured::new() };
        for head in 0..heads {
            let part = |j: usize, which: usize| &rows[(j * 3 + which) * hidden + head * width..][..width];
            for j in 0..length {
                let panel = &mut keys[j / LANES * LANES * width / 2..][..LANES * width / 2];
                // SAFETY: a row of keys has `width` values, half as many pairs.
                let pair = |t: usize| unsafe { part(j, 1).as_ptr().cast::<u32>().add(t).read_unaligned() };
                for (t, to) in panel.chunks_exact_mut(LANES).enumerate() {
                    to[j % LANES] = pair(t);
                }
            }
            for j in (0..length).step_by(2) {
                // An odd sequence's last value meets a weight of zero; itself is a number.
                let (even, odd) = (part(j, 2), part((j + 1).min(length - 1), 2));
                for (c, panel) in values.chunks_exact_mut(padded / 2 * LANES).enumerate() {
                    let (even, odd) = (&even[c * LANES..][..LANES], &odd[c * LANES..][..LANES]);
                    let to = &mut panel[j / 2 * LANES..][..LANES];
                    // SAFETY: sixteen values of each are there, and space for as many pairs.
                    unsafe {
                        let even = _mm512_cvtepu16_epi32(_mm256_loadu_si256(even.as_ptr().cast()));
                        let odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256(odd.as_ptr().cast()));
                        let pairs = _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd));
                        _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs);
                    }
                }
            }
            let mask = dropout.map(|(rate, key)| Mask { rate, key, first: head * length });
            for block in (0..length).step_by(BLOCK) {
                let n = BLOCK.min(length - block);
                let queries = Product {
                    x: rows[block * 3 * hidden + head * width..].as_ptr().cast(),
                    stride: 2 * 3 * hidden,
                    rows: n,
                    w: keys.as_ptr().cast(),
                    steps: width / STEP,
                };
                // SAFETY: from any row of the sequence on a whole tile can be read, and there are as many panels.
                unsafe {
                    amx::halves(&tiled, &queries, 0..lanes / LANES, |i, panel, sums| {
                        for (r, sums) in sums.iter().enumerate() {
                            scores[(i + r) * lanes + panel * LANES..][..LANES].copy_from_slice(sums);
                        }
                    });
                }
                for (r, row) in scores.chunks_exact_mut(lanes).take(n).enumerate() {
                    inverse[r] = weigh(row, length, scale, mask, block + r);
                    for (to, v) in weights[r * padded..][..lanes].iter_mut().zip(row) {
                        *to = round(*v);
                    }
                }
                let answers = Product {
                    x: weights.as_ptr().cast(),
                    stride: 2 * padded,
                    rows: n,
                    w: values.as_ptr().cast(),
                    steps: padded / STEP,
                };
                // SAFETY: there are as many rows as a block has, whole tiles of them, and as many panels.
                unsafe {
                    amx::halves(&tiled, &answers, 0..width / LANES, |i, panel, sums| {
                        for (r, sums) in sums.iter().take((n - i).min(ROWS)).enumerate() {
                            let to = &mut out[(block + i + r) * hidden + head * width + panel * LANES..][..LANES];
                            for l in 0..LANES {
                                to[l] = T::of(sums[l] * inverse[i + r]);
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
                            dropout,
                            &mut HalfScratch::default(),
                        );
                        out
                    };
                    let expected = run(Backend::Reference);
                    for backend in Backend::available() {
                        assert_eq!(run(backend), expected, "{} {heads} x {width}, {length}", backend.name());
                        let Some(tiled) = Tiled::new(backend, shape) else { continue };
                        // Behind another sequence, so that it begins nowhere in particular.
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
    fn it_is_attention_to_the_precision_of_its_numbers() {
        let (shape, length, hidden) = (Shape { heads: 2, width: 32 }, 45, 64);
        let qkv: Vec<f32> = noise(length * 3 * hidden).iter().map(|v| v / 3.0).collect();
        let (mut exact, mut got) = (vec![0.0; length * hidden], vec![0.0; length * hidden]);
        attend(Backend::active(), &qkv, &mut exact, shape, None, &mut Scratch::default());
        attend_rounded(Backend::active(), &mut qkv.clone(), &mut got, shape, None, &mut HalfScratch::default());
        // Eight bits of a number, and scores of about 10 into an exponential.
        let far = exact.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far > 0.0 && far < 0.02, "{far}");
    }
}
