//! Attention of one sequence, head by head, without padding.

mod halves;

pub use halves::{HalfScratch, Tiled, attend_rounded};

use crate::Backend;
use crate::aligned::Aligned;
use crate::dispatch::per_backend;
use crate::dropout::{Rate, drop_row_body, mix};
use crate::lanes::LANES;
use crate::rows::exponentials;

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub heads: usize,
    /// Values per head.
    pub width: usize,
}

/// Changes of an architecture to the scores of a sequence.
#[derive(Clone, Copy, Debug, Default)]
pub enum Scores<'a> {
    #[default]
    Plain,
    /// A token sees only those that are at most this many tokens away.
    Window(usize),
    /// `[heads, 2 * reach + 1]`, added to scaled scores: the bias of a key `d` tokens after its query is at `reach + d`.
    ByDistance { bias: &'a [f32], reach: usize },
}

impl Scores<'_> {
    fn check(self, heads: usize, length: usize) {
        if let Scores::ByDistance { bias, reach } = self {
            assert!(bias.len() == heads * (2 * reach + 1) && length <= reach + 1, "a bias for every distance");
        }
    }

    /// Changes the scores of one query, before they are scaled by `1 / sqrt(width)`.
    #[inline(always)]
    fn apply(self, scores: &mut [f32], head: usize, query: usize, width: usize) {
        match self {
            Scores::Plain => {}
            Scores::Window(window) => {
                scores[..query.saturating_sub(window)].fill(f32::NEG_INFINITY);
                let end = (query + window + 1).min(scores.len());
                scores[end..].fill(f32::NEG_INFINITY);
            }
            Scores::ByDistance { bias, reach } => {
                let from = head * (2 * reach + 1) + reach - query;
                let scale = (width as f32).sqrt();
                for (score, bias) in scores.iter_mut().zip(&bias[from..]) {
                    *score = bias.mul_add(scale, *score);
                }
            }
        }
    }
}

/// Memory for one head, reused between calls.
#[derive(Default)]
pub struct Scratch {
    // [width, length rounded up to whole lanes]: transposed keys, so that a lane is a position of the sequence; zeros at
    // the end.
    keys: Aligned<f32>,
    // [QUERY_TILE, length rounded up to whole lanes]
    scores: Aligned<f32>,
}

/// `out[length, heads * width] = softmax(Q K^T / sqrt(width)) V` for one sequence, with `qkv` as
/// `[length, 3 * heads * width]` (queries, keys, values side by side). `scores` changes what is in the softmax; `dropout`, a rate and a key, applies to the
/// probabilities.
///
/// # Panics
/// When a length is wrong.
pub fn attend(
    backend: Backend,
    qkv: &[f32],
    out: &mut [f32],
    shape: Shape,
    scores: Scores,
    dropout: Option<(Rate, u64)>,
    scratch: &mut Scratch,
) {
    let hidden = shape.heads * shape.width;
    assert!(hidden > 0 && qkv.len() == 3 * out.len() && out.len().is_multiple_of(hidden));
    let length = out.len() / hidden;
    let stride = length.next_multiple_of(LANES);
    scratch.keys.space(shape.width * stride).fill(0.0);
    scratch.scores.space(QUERY_TILE * stride);
    scores.check(shape.heads, length);
    heads(narrow(backend), qkv, out, shape, scores, dropout, scratch);
}

/// Replaces AVX-512 by AVX2. With AVX-512 the compiler gathers and scatters across queries, which took 16 us per token and
/// layer of MiniLM on a Xeon; the AVX2 loops take 1.9 us. The bits are the same.
fn narrow(backend: Backend) -> Backend {
    backend.min(Backend::Avx2)
}

per_backend! {
    /// All heads of a sequence; `attend` has checked the lengths.
    fn heads(qkv: &[f32], out: &mut [f32], shape: Shape, scores: Scores, dropout: Option<(Rate, u64)>, scratch: &mut Scratch) => heads_body::<Single>;
}

/// The difference between attention in `f32` and in `bf16`: the order of sums, and the weights of the values.
trait Arithmetic {
    /// `a[Q, n] b[n, 16]`; `stride` is the distance between the rows of `b` in values.
    fn sums<const Q: usize>(n: usize, a: Operand, b: &[f32], stride: usize) -> [[f32; LANES]; Q];

    /// The sum of `n` products; `product(i, sum)` adds product `i` to `sum`.
    fn sum(n: usize, product: impl Fn(usize, f32) -> f32) -> f32;

    /// Turns the exponentials of scores into the weights of the values; `inverse` is one over their sum. Returns the factor of
    /// the weighted sum.
    fn weigh(exponentials: &mut [f32], inverse: f32, mask: Option<Mask>, query: usize) -> f32;
}

/// Rows of values, `stride` values apart.
#[derive(Clone, Copy)]
struct Operand<'a> {
    values: &'a [f32],
    stride: usize,
}

impl Operand<'_> {
    /// The products of positions `from`, `from + EVERY` and so on before `end`, in chains of multiply-adds that begin at
    /// zero.
    #[inline(always)]
    fn chain<const Q: usize, const EVERY: usize>(
        self,
        from: usize,
        end: usize,
        b: &[f32],
        stride: usize,
    ) -> [[f32; LANES]; Q] {
        assert!(end == 0 || self.values.len() >= (Q - 1) * self.stride + end);
        let mut sums = [[0.0f32; LANES]; Q];
        for i in (from..end).step_by(EVERY) {
            let b: &[f32; LANES] = b[i * stride..][..LANES].try_into().expect("a whole lane");
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: i < end, and the assertion above shows that the values reach that far. One base address with equal
                // distances: with a slice per row, every row's address was loaded again for every product.
                let a = unsafe { *self.values.get_unchecked(r * self.stride + i) };
                for l in 0..LANES {
                    sums[l] = a.mul_add(b[l], sums[l]);
                }
            }
        }
        sums
    }
}

/// `f32`: one chain over all positions.
struct Single;

impl Arithmetic for Single {
    #[inline(always)]
    fn sums<const Q: usize>(n: usize, a: Operand, b: &[f32], stride: usize) -> [[f32; LANES]; Q] {
        a.chain::<Q, 1>(0, n, b, stride)
    }

    #[inline(always)]
    fn sum(n: usize, product: impl Fn(usize, f32) -> f32) -> f32 {
        (0..n).fold(0.0, |sum, i| product(i, sum))
    }

    #[inline(always)]
    fn weigh(exponentials: &mut [f32], inverse: f32, mask: Option<Mask>, query: usize) -> f32 {
        for v in exponentials.iter_mut() {
            *v *= inverse;
        }
        if let Some(mask) = mask {
            mask.drop(exponentials.as_chunks_mut().0, query);
        }
        1.0
    }
}

/// Dropout mask of a head's probabilities.
#[derive(Clone, Copy)]
struct Mask {
    rate: Rate,
    key: u64,
    // Number of the head's first row of probabilities.
    first_row: usize,
}

impl Mask {
    fn new((rate, key): (Rate, u64), head: usize, length: usize) -> Self {
        Mask { rate, key, first_row: head * length }
    }

    /// `row` is whole lanes: zeros beyond the sequence stay zero, and a rest of fewer than sixteen would not be vectorised.
    #[inline(always)]
    fn drop(self, row: &mut [[f32; LANES]], query: usize) {
        drop_row_body(row.as_flattened_mut(), mix(self.key, (self.first_row + query) as u64), self.rate);
    }
}

/// Queries per tile: each key and value is read once for all of them, and their sums hide each other's latency. The sixteen
/// lanes of a query take two of the sixteen registers of AVX2.
const QUERY_TILE: usize = 4;

#[inline(always)]
fn heads_body<A: Arithmetic>(
    qkv: &[f32],
    out: &mut [f32],
    shape: Shape,
    change: Scores,
    dropout: Option<(Rate, u64)>,
    scratch: &mut Scratch,
) {
    let Shape { heads, width } = shape;
    let hidden = heads * width;
    let length = out.len() / hidden;
    let stride = length.next_multiple_of(LANES);
    let Scratch { keys, scores } = scratch;
    let (keys, scores) = (&mut keys[..width * stride], &mut scores[..QUERY_TILE * stride]);
    for head in 0..heads {
        for (j, token) in qkv.chunks_exact(3 * hidden).enumerate() {
            let from = hidden + head * width;
            for (row, &v) in keys.chunks_exact_mut(stride).zip(&token[from..from + width]) {
                row[j] = v;
            }
        }
        let mask = dropout.map(|dropout| Mask::new(dropout, head, length));
        let head = Head { qkv, keys, shape, change, head, length, mask };
        let whole = length / QUERY_TILE * QUERY_TILE;
        for i in (0..whole).step_by(QUERY_TILE) {
            head.queries::<A, QUERY_TILE>(i, scores, out);
        }
        for i in whole..length {
            head.queries::<A, 1>(i, scores, out);
        }
    }
}

/// One head of a sequence.
struct Head<'a> {
    qkv: &'a [f32],
    // [width, length rounded up to whole lanes]
    keys: &'a [f32],
    shape: Shape,
    change: Scores<'a>,
    head: usize,
    length: usize,
    mask: Option<Mask>,
}

impl Head<'_> {
    /// Results of queries `first` to `first + Q`. `scores` is at least `[Q, length rounded up to whole lanes]`.
    #[inline(always)]
    fn queries<A: Arithmetic, const Q: usize>(&self, first: usize, scores: &mut [f32], out: &mut [f32]) {
        let Shape { heads, width } = self.shape;
        let (hidden, length) = (heads * width, self.length);
        let stride = length.next_multiple_of(LANES);
        let step = 3 * hidden;
        let queries = &self.qkv[first * step + self.head * width..][..(Q - 1) * step + width];
        // Sixteen scores per query stay in registers over the width of the head.
        for c in (0..stride).step_by(LANES) {
            let sums = A::sums::<Q>(width, Operand { values: queries, stride: step }, &self.keys[c..], stride);
            for r in 0..Q {
                scores[r * stride + c..r * stride + c + LANES].copy_from_slice(&sums[r]);
            }
        }
        let mut factors = [0.0f32; Q];
        for (r, scores) in scores.chunks_exact_mut(stride).take(Q).enumerate() {
            // Positions beyond the sequence get no weight, so that the softmax runs over whole lanes.
            scores[length..].fill(f32::NEG_INFINITY);
            self.change.apply(&mut scores[..length], self.head, first + r, width);
            let inverse = exponentials(scores.as_chunks_mut().0, 1.0 / (width as f32).sqrt());
            factors[r] = A::weigh(scores, inverse, self.mask, first + r);
        }
        let weights = &scores[..Q * stride];
        let from = 2 * hidden + self.head * width;
        let whole = width / LANES * LANES;
        for c in (0..whole).step_by(LANES) {
            let sums = A::sums::<Q>(length, Operand { values: weights, stride }, &self.qkv[from + c..], step);
            for r in 0..Q {
                let to = &mut out[(first + r) * hidden + self.head * width + c..][..LANES];
                for l in 0..LANES {
                    to[l] = sums[r][l] * factors[r];
                }
            }
        }
        for c in whole..width {
            for r in 0..Q {
                let product = |j: usize, sum: f32| weights[r * stride + j].mul_add(self.qkv[j * step + from + c], sum);
                out[(first + r) * hidden + self.head * width + c] = A::sum(length, product) * factors[r];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_equals_its_formula_on_every_backend() {
        let shape = Shape { heads: 3, width: 8 };
        for length in [1, 2, 17, 50] {
            let hidden = 24;
            let qkv: Vec<f32> = (0..length * 72).map(|i| ((i * 71 % 113) as f32 - 56.0) / 20.0).collect();
            let run = |backend, dropout| {
                let mut out = vec![f32::NAN; length * hidden];
                attend(backend, &qkv, &mut out, shape, Scores::Plain, dropout, &mut Scratch::default());
                out
            };
            let expected = run(Backend::Reference, None);
            let dropped = run(Backend::Reference, Some((Rate::new(0.3), 5)));
            for backend in Backend::available() {
                assert_eq!(run(backend, None), expected);
                assert_eq!(run(backend, Some((Rate::new(0.3), 5))), dropped);
            }
            assert_ne!(expected, dropped);
            for i in 0..length {
                for h in 0..3 {
                    let at = |j: usize, part: usize, d: usize| f64::from(qkv[j * 72 + part * 24 + h * 8 + d]);
                    let scores: Vec<f64> = (0..length)
                        .map(|j| ((0..8).map(|d| at(i, 0, d) * at(j, 1, d)).sum::<f64>() / 8f64.sqrt()).exp())
                        .collect();
                    let total: f64 = scores.iter().sum();
                    for d in 0..8 {
                        let exact = (0..length).map(|j| scores[j] * at(j, 2, d)).sum::<f64>() / total;
                        assert!((f64::from(expected[i * 24 + h * 8 + d]) - exact).abs() < 2e-5);
                    }
                }
            }
        }
    }

    /// The change of scores equals its formula, in `f32` and rounded, on every backend.
    #[test]
    fn windows_and_biases_equal_their_formulas_on_every_backend() {
        let shape = Shape { heads: 2, width: 8 };
        let (length, hidden, reach) = (21, 16, 24);
        let qkv: Vec<f32> = (0..length * 48).map(|i| ((i * 71 % 113) as f32 - 56.0) / 32.0).collect();
        let bias: Vec<f32> = (0..2 * (2 * reach + 1)).map(|i| ((i * 37 % 41) as f32 - 20.0) / 8.0).collect();
        for scores in [Scores::Window(3), Scores::Window(40), Scores::ByDistance { bias: &bias, reach }] {
            let run = |backend| {
                let (mut exact, mut rounded) = (vec![f32::NAN; length * hidden], vec![f32::NAN; length * hidden]);
                attend(backend, &qkv, &mut exact, shape, scores, None, &mut Scratch::default());
                let mut halves = HalfScratch::default();
                attend_rounded(backend, &mut qkv.clone(), &mut rounded, shape, scores, None, &mut halves);
                (exact, rounded)
            };
            let expected = run(Backend::Reference);
            for backend in Backend::available() {
                assert_eq!(run(backend), expected, "{}", backend.name());
            }
            for (i, h) in (0..length).flat_map(|i| [(i, 0), (i, 1)]) {
                let at = |j: usize, part: usize, d: usize| f64::from(qkv[j * 48 + part * 16 + h * 8 + d]);
                let weight = |j: usize| {
                    let score = (0..8).map(|d| at(i, 0, d) * at(j, 1, d)).sum::<f64>() / 8f64.sqrt();
                    match scores {
                        Scores::Window(window) if i.abs_diff(j) > window => 0.0,
                        Scores::ByDistance { bias, .. } => {
                            (score + f64::from(bias[h * (2 * reach + 1) + reach + j - i])).exp()
                        }
                        _ => score.exp(),
                    }
                };
                let total: f64 = (0..length).map(weight).sum();
                for d in 0..8 {
                    let exact = (0..length).map(|j| weight(j) * at(j, 2, d)).sum::<f64>() / total;
                    assert!((f64::from(expected.0[i * hidden + h * 8 + d]) - exact).abs() < 2e-5, "{scores:?}");
                    assert!((f64::from(expected.1[i * hidden + h * 8 + d]) - exact).abs() < 2e-2, "{scores:?}");
                }
            }
        }
    }
}
