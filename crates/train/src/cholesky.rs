//! The Cholesky factor of a symmetric positive definite matrix, in `f64`.
//!
//! Written here and not taken from `faer`: the noise model built from this factor decides every bit of a trained model, and
//! its checksum finds the checkpoints of a run, so the order of additions must not change with threads, CPU or library version.

use rayon::prelude::*;

/// `S = L L'`, `L` lower triangular.
pub struct Cholesky {
    n: usize,
    // [n, n] row-major, zeros above the diagonal.
    lower: Vec<f64>,
}

/// Eight running sums fix the order of additions and let the loop vectorise.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (x, y) in a8.iter().zip(b8) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7])) + rest
}

impl Cholesky {
    /// Factors `square [n, n]`, of which only the lower half is read; `None` when it is not positive definite.
    pub fn new(mut square: Vec<f64>, n: usize) -> Option<Self> {
        assert_eq!(square.len(), n * n);
        for j in 0..n {
            let (above, below) = square.split_at_mut((j + 1) * n);
            let pivot_row = &mut above[j * n..];
            let rest = pivot_row[j] - dot(&pivot_row[..j], &pivot_row[..j]);
            // Not `rest <= 0`: NaN must fail too.
            if !(rest > 0.0 && rest.is_finite()) {
                return None;
            }
            let diagonal = rest.sqrt();
            pivot_row[j] = diagonal;
            pivot_row[j + 1..].fill(0.0);
            let pivot_row = &pivot_row[..j];
            below.par_chunks_exact_mut(n).with_min_len(64).for_each(|row| {
                row[j] = (row[j] - dot(&row[..j], pivot_row)) / diagonal;
            });
        }
        Some(Cholesky { n, lower: square })
    }

    /// `L [n, n]`.
    pub fn lower(&self) -> &[f64] {
        &self.lower
    }

    /// Replaces `right [n, columns]` by `S^-1 right`.
    pub fn solve(&self, right: &mut [f64], columns: usize) {
        assert_eq!(right.len(), self.n * columns);
        let subtract = |to: &mut [f64], from: &[f64], by: f64| to.iter_mut().zip(from).for_each(|(t, f)| *t -= by * f);
        for i in 0..self.n {
            let (done, rest) = right.split_at_mut(i * columns);
            let row = &mut rest[..columns];
            for (j, earlier) in done.chunks_exact(columns).enumerate() {
                subtract(row, earlier, self.lower[i * self.n + j]);
            }
            row.iter_mut().for_each(|v| *v /= self.lower[i * self.n + i]);
        }
        for i in (0..self.n).rev() {
            let (rest, done) = right.split_at_mut((i + 1) * columns);
            let row = &mut rest[i * columns..];
            for (j, later) in done.chunks_exact(columns).enumerate() {
                subtract(row, later, self.lower[(i + 1 + j) * self.n + i]);
            }
            row.iter_mut().for_each(|v| *v /= self.lower[i * self.n + i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::{View, multiply};

    fn positive_definite(n: usize) -> Vec<f64> {
        let a: Vec<f64> = (0..n * n).map(|i| ((i * 29 + 3) % 41) as f64 / 20.0 - 1.0).collect();
        let mut s = vec![0.0; n * n];
        multiply(&mut s, View::new(&a, n, n), View::new(&a, n, n).transposed(), 1.0);
        (0..n).for_each(|i| s[i * n + i] += 0.5);
        s
    }

    #[test]
    fn factor_times_its_transpose_is_the_matrix_and_solve_inverts_it() {
        for n in [1, 2, 9, 33, 130] {
            let s = positive_definite(n);
            let factor = Cholesky::new(s.clone(), n).unwrap();
            let lower = View::new(factor.lower(), n, n);
            let mut back = vec![0.0; n * n];
            multiply(&mut back, lower, lower.transposed(), 1.0);
            assert!(back.iter().zip(&s).all(|(a, b)| (a - b).abs() < 1e-9 * n as f64));
            let x: Vec<f64> = (0..n * 3).map(|i| (i % 7) as f64 - 3.0).collect();
            let mut right = vec![0.0; n * 3];
            multiply(&mut right, View::new(&s, n, n), View::new(&x, n, 3), 1.0);
            factor.solve(&mut right, 3);
            assert!(right.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-7), "{n}");
        }
    }

    #[test]
    fn matrices_that_are_not_positive_definite_are_refused() {
        assert!(Cholesky::new(vec![1.0, 2.0, 2.0, 1.0], 2).is_none());
        assert!(Cholesky::new(vec![f64::NAN], 1).is_none());
        assert!(Cholesky::new(vec![0.0], 1).is_none());
    }
}
