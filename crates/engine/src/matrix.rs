//! A dense row-major matrix of `f32`: embeddings, projected vectors, tables.

use rayon::prelude::*;

/// Row-major `[rows, cols]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Matrix { cols, data: vec![0.0; rows * cols] }
    }

    /// Takes `data` as `[data.len() / cols, cols]`.
    ///
    /// # Panics
    /// If the length is not a multiple of `cols`.
    pub fn from_vec(cols: usize, data: Vec<f32>) -> Self {
        assert!(cols > 0 && data.len().is_multiple_of(cols), "{} values do not fill rows of {cols}", data.len());
        Matrix { cols, data }
    }

    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.cols).unwrap_or(0)
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.data.chunks_exact(self.cols.max(1))
    }

    /// The values in row-major order.
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Appends the rows of `other`.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn extend(&mut self, other: &Matrix) {
        if self.data.is_empty() {
            self.cols = other.cols;
        }
        assert_eq!(self.cols, other.cols, "rows of different width");
        self.data.extend_from_slice(&other.data);
    }

    /// The rows at `indices`, in that order.
    pub fn select(&self, indices: &[usize]) -> Matrix {
        let mut data = Vec::with_capacity(indices.len() * self.cols);
        for &i in indices {
            data.extend_from_slice(self.row(i));
        }
        Matrix { cols: self.cols, data }
    }

    /// Scales every row to unit length. A row of zeros is unchanged.
    pub fn normalize_rows(&mut self) {
        if self.cols == 0 {
            return;
        }
        let normalize = |row: &mut [f32]| {
            let norm = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
            if norm > 0.0 {
                let scale = (1.0 / norm) as f32;
                row.iter_mut().for_each(|x| *x *= scale);
            }
        };
        // A few rows take less time than a thread takes to wake up.
        const MAX_SERIAL_ROWS: usize = 64;
        if self.rows() <= MAX_SERIAL_ROWS {
            self.data.chunks_exact_mut(self.cols).for_each(normalize);
        } else {
            self.data.par_chunks_exact_mut(self.cols).for_each(normalize);
        }
    }
}
