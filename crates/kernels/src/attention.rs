//! Attention of one sequence, head by head, without padding.

use crate::Backend;
use crate::dispatch::per_backend;
use crate::dropout::{Rate, drop_row_body, mix};
use crate::lanes::LANES;
use crate::rows::softmax;

/// What attention needs to know besides its input.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Heads.
    pub heads: usize,
    /// Values of a head.
    pub width: usize,
}

/// Space for one head, kept between calls.
#[derive(Default)]
pub struct Scratch {
    // [width, length to whole lanes]: keys turned so that scores are summed along the sequence, zeros at the end.
    keys: Vec<f32>,
    // [length to whole lanes]
    scores: Vec<f32>,
}

/// `out[length, heads * width] = softmax(Q K^T / sqrt(width)) V` for one sequence, with `qkv` as
/// `[length, 3 * heads * width]` (queries, keys, values side by side) and dropout on the probabilities where given.
///
/// # Panics
/// When a length is wrong.
pub fn attend(
    backend: Backend,
    qkv: &[f32],
    out: &mut [f32],
    shape: Shape,
    dropout: Option<(Rate, u64)>,
    scratch: &mut Scratch,
) {
    let hidden = shape.heads * shape.width;
    assert!(hidden > 0 && qkv.len() == 3 * out.len() && out.len().is_multiple_of(hidden));
    let length = out.len() / hidden;
    let stride = length.next_multiple_of(LANES);
    scratch.keys.clear();
    scratch.keys.resize(shape.width * stride, 0.0);
    scratch.scores.resize(stride, 0.0);
    heads(backend, qkv, out, shape, dropout, scratch);
}

per_backend! {
    /// All heads of a sequence whose lengths `attend` has checked.
    pub fn heads(qkv: &[f32], out: &mut [f32], shape: Shape, dropout: Option<(Rate, u64)>, scratch: &mut Scratch) => heads_body;
}

#[inline(always)]
fn heads_body(qkv: &[f32], out: &mut [f32], shape: Shape, dropout: Option<(Rate, u64)>, scratch: &mut Scratch) {
    let Shape { heads, width } = shape;
    let hidden = heads * width;
    let length = out.len() / hidden;
    let scale = 1.0 / (width as f32).sqrt();
    let stride = length.next_multiple_of(LANES);
    let (keys, scores) = (&mut scratch.keys[..width * stride], &mut scratch.scores[..stride]);
    for head in 0..heads {
        for j in 0..length {
            let from = j * 3 * hidden + hidden + head * width;
            for (d, &v) in qkv[from..from + width].iter().enumerate() {
                keys[d * stride + j] = v;
            }
        }
        for i in 0..length {
            let from = i * 3 * hidden + head * width;
            let query = &qkv[from..from + width];
            // Sixteen scores at a time stay in registers over all of the head's width.
            for (c, chunk) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let mut sums = [0.0f32; LANES];
                for (&q, row) in query.iter().zip(keys.chunks_exact(stride)) {
                    let k = &row.as_chunks::<LANES>().0[c];
                    for l in 0..LANES {
                        sums[l] = q.mul_add(k[l], sums[l]);
                    }
                }
                *chunk = sums;
            }
            // What lies beyond the sequence weighs nothing, and the softmax runs over whole lanes.
            scores[length..].fill(f32::NEG_INFINITY);
            softmax(scores, scale);
            if let Some((rate, key)) = dropout {
                drop_row_body(&mut scores[..length], mix(key, (head * length + i) as u64), rate);
            }
            let row = &mut out[i * hidden + head * width..i * hidden + (head + 1) * width];
            let first = 2 * hidden + head * width;
            let (whole, rest) = row.as_chunks_mut::<LANES>();
            let tail = whole.len() * LANES;
            for (c, chunk) in whole.iter_mut().enumerate() {
                let mut sums = [0.0f32; LANES];
                for (&p, token) in scores[..length].iter().zip(qkv.chunks_exact(3 * hidden)) {
                    let v = &token[first + c * LANES..first + (c + 1) * LANES];
                    for l in 0..LANES {
                        sums[l] = p.mul_add(v[l], sums[l]);
                    }
                }
                *chunk = sums;
            }
            for (d, o) in rest.iter_mut().enumerate() {
                let values = qkv.chunks_exact(3 * hidden).map(|token| token[first + tail + d]);
                *o = scores[..length].iter().zip(values).fold(0.0, |sum, (&p, v)| p.mul_add(v, sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_is_its_formula_on_every_backend() {
        let shape = Shape { heads: 3, width: 8 };
        for length in [1, 2, 17, 50] {
            let hidden = 24;
            let qkv: Vec<f32> = (0..length * 72).map(|i| ((i * 71 % 113) as f32 - 56.0) / 20.0).collect();
            let run = |backend, dropout| {
                let mut out = vec![f32::NAN; length * hidden];
                attend(backend, &qkv, &mut out, shape, dropout, &mut Scratch::default());
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
}
