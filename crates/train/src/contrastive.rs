//! The contrastive loss (NT-Xent): the other view of a document is its positive, the rest of the batch are its negatives.

use rayon::prelude::*;

use crate::product::{View, multiply};
use crate::real::Real;

/// Rows of the similarity matrix per task.
const ROWS: usize = 32;
/// Lower bound of a norm before division, as in `torch.nn.functional.normalize`.
pub const MIN_NORM: f64 = 1e-12;

/// The contrastive loss of unit vectors `unit [width, n]`, one per column, and its derivative by their similarities.
///
/// `similar [n, n]` receives `D + D'`, `D_ij = weight (softmax_{j != i}(s_i)_j - [j is i's other view]) / n`, with
/// `s = unit' unit / temperature`. The returned loss is not weighted.
pub fn contrast<T: Real>(unit: &[T], n: usize, temperature: f64, weight: f64, similar: &mut Vec<T>) -> f64 {
    similar.resize(n * n, T::ZERO);
    let width = unit.len() / n;
    let all = View::new(unit, width, n);
    let losses: Vec<f64> = similar
        .par_chunks_mut(ROWS * n)
        .enumerate()
        .map(|(chunk, rows)| {
            let first = chunk * ROWS;
            multiply(rows, all.columns(first, rows.len() / n).transposed(), all, T::of(1.0 / temperature));
            rows.chunks_exact_mut(n).enumerate().map(|(i, row)| contrast_row(row, first + i, weight)).sum()
        })
        .collect();
    // D + D', in place.
    for i in 0..n {
        for j in 0..i {
            let both = similar[i * n + j] + similar[j * n + i];
            similar[i * n + j] = both;
            similar[j * n + i] = both;
        }
    }
    losses.iter().sum::<f64>() / n as f64
}

/// Replaces one row of similarities by one row of `D`; returns `ln sum_{j != i} e^s_ij - s_i,pos`.
fn contrast_row<T: Real>(row: &mut [T], own: usize, weight: f64) -> f64 {
    let n = row.len();
    let positive = (own + n / 2) % n;
    let matched = row[positive];
    // A vector is not its own negative. This value is so low that its exponential is exactly 0.
    row[own] = T::of(-1e9);
    let mut max = row[0];
    for v in row.iter() {
        max = if *v > max { *v } else { max };
    }
    row.iter_mut().for_each(|v| *v -= max);
    T::exp_all(row);
    let sum = row.iter().fold(T::ZERO, |sum, v| sum + *v);
    let scale = T::of(weight / n as f64);
    let factor = scale / sum;
    row.iter_mut().for_each(|v| *v *= factor);
    row[positive] -= scale;
    row[own] = T::ZERO;
    sum.wide().ln() + (max - matched).wide()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_derivative_of_two_documents_equal_hand_calculation() {
        // Unit vectors of two documents in two dimensions; the views of each are equal.
        let unit = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
        let mut d = Vec::new();
        let loss = contrast(&unit, 4, 0.5, 1.0, &mut d);
        // s = 2 for the positive, 0 for the two negatives.
        let expected = (2.0f64.exp() + 2.0).ln() - 2.0;
        assert!((loss - expected).abs() < 1e-12);
        let p = 2.0f64.exp() / (2.0f64.exp() + 2.0);
        assert!((d[2] - 2.0 * (p - 1.0) / 4.0).abs() < 1e-12, "{d:?}");
        assert!((d[1] - 2.0 * (1.0 - p) / 2.0 / 4.0).abs() < 1e-12);
        assert_eq!(d[0], 0.0);
    }

    #[test]
    fn loss_of_one_document_is_zero() {
        let mut d = Vec::new();
        assert_eq!(contrast(&[0.6f32, 1.0, 0.8, 0.0], 2, 0.3, 1.0, &mut d), 0.0);
        assert_eq!(d, [0.0; 4]);
    }
}
