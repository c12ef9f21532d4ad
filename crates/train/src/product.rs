//! Matrix products on views of slices: the crate's only `unsafe` code and its only use of `gemm`.
//!
//! A product runs on the calling thread. A caller that uses several threads gives each its own rows of the output, in pieces
//! of fixed size. So the bits do not depend on the number of threads.

use crate::real::Real;

/// A borrowed matrix with strides: element (i, j) is at `i * row + j * column`.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row: usize,
    column: usize,
}

impl<'a, T> View<'a, T> {
    /// Row-major `[rows, cols]`.
    ///
    /// # Panics
    /// When the slice does not hold `rows * cols` values.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "{rows} x {cols} values expected");
        View { data, rows, cols, row: cols, column: 1 }
    }

    /// Rows of `cols` values, one starting every `step` values up to the end of the slice. Rows overlap when `step` is below
    /// `cols`.
    ///
    /// # Panics
    /// When the slice does not end with a whole row.
    pub fn sliding(data: &'a [T], cols: usize, step: usize) -> Self {
        let beyond = data.len().checked_sub(cols).filter(|beyond| beyond % step == 0);
        let rows = beyond.unwrap_or_else(|| panic!("rows of {cols} values every {step} expected")) / step + 1;
        View { data, rows, cols, row: step, column: 1 }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn transposed(self) -> Self {
        View { data: self.data, rows: self.cols, cols: self.rows, row: self.column, column: self.row }
    }

    /// Columns `start .. start + cols`.
    pub fn columns(self, start: usize, cols: usize) -> Self {
        assert!(start + cols <= self.cols);
        let offset = (start * self.column).min(self.data.len());
        View { data: &self.data[offset..], rows: self.rows, cols, row: self.row, column: self.column }
    }

    /// Values from the first to the last element, the minimum length of the slice.
    fn extent(&self) -> usize {
        if self.rows == 0 || self.cols == 0 {
            0
        } else {
            (self.rows - 1) * self.row + (self.cols - 1) * self.column + 1
        }
    }
}

/// `out = scale a b`, `out` row-major `[a.rows, b.cols]`.
pub fn multiply<T: Real>(out: &mut [T], a: View<T>, b: View<T>, scale: T) {
    product(out, a, b, scale, false);
}

/// `out += scale a b`.
pub fn multiply_add<T: Real>(out: &mut [T], a: View<T>, b: View<T>, scale: T) {
    product(out, a, b, scale, true);
}

fn product<T: Real>(out: &mut [T], a: View<T>, b: View<T>, scale: T, add: bool) {
    assert_eq!(a.cols, b.rows, "inner sizes differ");
    assert_eq!(out.len(), a.rows * b.cols, "the output has the wrong size");
    assert!(a.extent() <= a.data.len() && b.extent() <= b.data.len());
    if out.is_empty() {
        return;
    }
    if a.cols == 0 {
        if !add {
            out.fill(T::ZERO);
        }
        return;
    }
    // SAFETY: by the assertions above every element the strides reach lies inside its slice. `out` is dense and borrowed
    // exclusively. `Real` is f32 or f64, types that `gemm` supports.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out.as_mut_ptr(),
            1,
            b.cols as isize,
            add,
            a.data.as_ptr(),
            a.column as isize,
            a.row as isize,
            b.data.as_ptr(),
            b.column as isize,
            b.row as isize,
            T::ONE,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(i: usize) -> f64 {
        ((i * 37 + 11) % 101) as f64 / 50.0 - 1.0
    }

    proptest! {
        #[test]
        fn products_equal_the_plain_sums(m in 0usize..20, k in 0usize..20, n in 0usize..20, flags in 0u8..8) {
            let (ta, tb, add) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
            let a: Vec<f64> = (0..m * k).map(value).collect();
            let b: Vec<f64> = (0..k * n).map(|i| value(i + 7)).collect();
            let at = |i: usize, p: usize| if ta { a[p * m + i] } else { a[i * k + p] };
            let bt = |p: usize, j: usize| if tb { b[j * k + p] } else { b[p * n + j] };
            let left = if ta { View::new(&a, k, m).transposed() } else { View::new(&a, m, k) };
            let right = if tb { View::new(&b, n, k).transposed() } else { View::new(&b, k, n) };
            let mut out = vec![3.0; m * n];
            if add { multiply_add(&mut out, left, right, 0.5) } else { multiply(&mut out, left, right, 0.5) }
            for i in 0..m {
                for j in 0..n {
                    let sum: f64 = (0..k).map(|p| at(i, p) * bt(p, j)).sum();
                    let expected = 0.5 * sum + if add { 3.0 } else { 0.0 };
                    prop_assert!((out[i * n + j] - expected).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn product_of_sliding_rows_equals_the_plain_sums() {
        let a: Vec<f64> = (0..10).map(value).collect();
        let (b, mut out) = ([1.0, 10.0, 100.0, 1000.0], [0.0; 4]);
        multiply(&mut out, View::sliding(&a, 4, 2), View::new(&b, 4, 1), 1.0);
        for (i, sum) in out.iter().enumerate() {
            let expected: f64 = b.iter().zip(&a[2 * i..]).map(|(b, a)| a * b).sum();
            assert!((sum - expected).abs() < 1e-9);
        }
    }

    #[test]
    fn product_with_selected_columns_uses_only_them() {
        let b: Vec<f64> = (0..12).map(value).collect();
        let mut out = vec![0.0; 4];
        let a = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        multiply(&mut out, View::new(&a, 2, 3), View::new(&b, 3, 4).columns(1, 2), 1.0);
        assert_eq!(out, [b[1], b[2], b[9], b[10]]);
    }
}
