//! Row-wise pieces of the encoder: residual, LayerNorm, softmax.

use crate::dispatch::per_backend;
use crate::lanes::{LANES, exp_of_negative, fold};

per_backend! {
    /// `x = LayerNorm(x + y)` for every row; `scale` and `shift` have one value per column.
    pub fn add_layer_norm(x: &mut [f32], y: &[f32], scale: &[f32], shift: &[f32], epsilon: f32) => add_layer_norm_body;
}

per_backend! {
    /// `x = LayerNorm(x)` for every row.
    pub fn layer_norm(x: &mut [f32], scale: &[f32], shift: &[f32], epsilon: f32) => layer_norm_body;
}

#[inline(always)]
fn add_layer_norm_body(x: &mut [f32], y: &[f32], scale: &[f32], shift: &[f32], epsilon: f32) {
    assert_eq!(x.len(), y.len());
    for (a, b) in x.iter_mut().zip(y) {
        *a += b;
    }
    layer_norm_body(x, scale, shift, epsilon);
}

#[inline(always)]
fn layer_norm_body(x: &mut [f32], scale: &[f32], shift: &[f32], epsilon: f32) {
    let width = scale.len();
    assert!(width > 0 && shift.len() == width && x.len().is_multiple_of(width));
    for row in x.chunks_exact_mut(width) {
        let mean = sum(row) / width as f32;
        for v in row.iter_mut() {
            *v -= mean;
        }
        let inverse = 1.0 / (sum_of_squares(row) / width as f32 + epsilon).sqrt();
        for ((v, s), b) in row.iter_mut().zip(scale).zip(shift) {
            *v = (*v * inverse).mul_add(*s, *b);
        }
    }
}

#[inline(always)]
fn sum(row: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for c in chunks {
        for i in 0..LANES {
            lanes[i] += c[i];
        }
    }
    for (l, v) in lanes.iter_mut().zip(rest) {
        *l += v;
    }
    fold(lanes, |a, b| a + b)
}

#[inline(always)]
fn sum_of_squares(row: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for c in chunks {
        for i in 0..LANES {
            lanes[i] = c[i].mul_add(c[i], lanes[i]);
        }
    }
    for (l, v) in lanes.iter_mut().zip(rest) {
        *l = v.mul_add(*v, *l);
    }
    fold(lanes, |a, b| a + b)
}

/// `row = e^(scale (row - max(row)))` of whole lanes; returns one over the sum of the result.
#[inline(always)]
pub(crate) fn exponentials(row: &mut [[f32; LANES]], scale: f32) -> f32 {
    // A comparison: `max` would also test for NaN.
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for c in row.iter() {
        for i in 0..LANES {
            lanes[i] = larger(c[i], lanes[i]);
        }
    }
    let top = fold(lanes, larger);
    let mut sums = [0.0f32; LANES];
    for c in row.iter_mut() {
        for i in 0..LANES {
            c[i] = exp_of_negative((c[i] - top) * scale);
            sums[i] += c[i];
        }
    }
    1.0 / fold(sums, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    #[test]
    fn layer_norm_equals_its_formula_on_every_backend() {
        for width in [1, 7, 16, 33, 384] {
            let x: Vec<f32> = (0..3 * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 9.0).collect();
            let y: Vec<f32> = (0..3 * width).map(|i| ((i * 53 % 89) as f32 - 44.0) / 7.0).collect();
            let scale: Vec<f32> = (0..width).map(|i| 0.5 + i as f32 / width as f32).collect();
            let shift: Vec<f32> = (0..width).map(|i| i as f32 / 10.0).collect();
            let mut expected = x.clone();
            add_layer_norm(Backend::Reference, &mut expected, &y, &scale, &shift, 1e-12);
            for backend in Backend::available() {
                let mut got = x.clone();
                add_layer_norm(backend, &mut got, &y, &scale, &shift, 1e-12);
                assert_eq!(got, expected, "{} width {width}", backend.name());
            }
            if width > 1 {
                let row: Vec<f64> = (0..width).map(|i| f64::from(x[i]) + f64::from(y[i])).collect();
                let mean = row.iter().sum::<f64>() / width as f64;
                let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
                for i in 0..width {
                    let exact = (row[i] - mean) / (var + 1e-12).sqrt() * f64::from(scale[i]) + f64::from(shift[i]);
                    assert!((f64::from(expected[i]) - exact).abs() < 1e-5 * (1.0 + exact.abs()));
                }
            }
        }
    }
}
