//! Cells: a projected vector in the coordinates of its own part of the space.
//!
//! ```text
//! layers -> [head, tail],  head [dim], tail [(codebooks - 1) dim]
//! c = the cell whose head is nearest
//! projected = [head, R_c (tail - centre_c)]
//! ```
//! The heads are the codewords of codebook 0, so a document's code begins with its cell. The other codebooks describe the tail
//! in the cell's own axes. A query is placed in its own cell: it is compared with documents of that cell exactly as local
//! quantization does, and codebook 0 ranks the documents of other cells after them, nearer cells first.

use crate::{Error, Result};
use kernels::squares::squared;

/// Heads, centres and rotations of the cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Cells {
    dim: usize,
    tail: usize,
    heads: Vec<f32>,
    centres: Vec<f32>,
    rotations: Vec<f32>,
}

impl Cells {
    /// Takes `heads [cells, dim]`, `centres [cells, tail]`, `rotations [cells, tail, tail]`.
    pub fn new(dim: usize, tail: usize, heads: Vec<f32>, centres: Vec<f32>, rotations: Vec<f32>) -> Result<Self> {
        let cells = heads.len().checked_div(dim).unwrap_or(0);
        if cells == 0
            || heads.len() != cells * dim
            || centres.len() != cells * tail
            || rotations.len() != cells * tail * tail
        {
            return Err(Error::config(format!(
                "cells of {dim} + {tail} values cannot have {} head, {} centre and {} rotation values",
                heads.len(),
                centres.len(),
                rotations.len()
            )));
        }
        if !heads.iter().chain(&centres).chain(&rotations).all(|v| v.is_finite()) {
            return Err(Error::config("a cell holds a value that is not a finite number"));
        }
        Ok(Cells { dim, tail, heads, centres, rotations })
    }

    pub fn len(&self) -> usize {
        self.heads.len() / self.dim
    }

    /// Never: there is at least one.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Values of a head, and of a tail.
    pub fn sizes(&self) -> (usize, usize) {
        (self.dim, self.tail)
    }

    /// `[cells, dim]`.
    pub fn heads(&self) -> &[f32] {
        &self.heads
    }

    /// `[cells, tail]`.
    pub fn centres(&self) -> &[f32] {
        &self.centres
    }

    /// `[cells, tail, tail]`.
    pub fn rotations(&self) -> &[f32] {
        &self.rotations
    }

    /// The cell a vector lies in; the first of equally near ones, as codes choose their codewords.
    pub fn cell(&self, vector: &[f32]) -> usize {
        let head = &vector[..self.dim];
        let (mut best, mut nearest) = (f32::INFINITY, 0);
        for (c, other) in self.heads.chunks_exact(self.dim).enumerate() {
            let d = squared(head, other);
            if d < best {
                (best, nearest) = (d, c);
            }
        }
        nearest
    }

    /// Describes one vector `[dim + tail]` within its cell.
    pub(super) fn place(&self, vector: &mut [f32]) {
        let (cell, n) = (self.cell(vector), self.tail);
        let tail = &mut vector[self.dim..];
        let centred: Vec<f32> = tail.iter().zip(&self.centres[cell * n..]).map(|(x, c)| x - c).collect();
        let rotation = self.rotations[cell * n * n..(cell + 1) * n * n].chunks_exact(n);
        for (out, row) in tail.iter_mut().zip(rotation) {
            *out = dot(row, &centred);
        }
    }
}

/// Eight running sums, so that the order of additions is stated and the loop vectorises.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (x, y) in a8.iter().zip(b8) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7])) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_rotated_by_its_own_cell() {
        // Two cells told apart by one value; the second exchanges the two values of the tail.
        let rotations = vec![1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0];
        let cells = Cells::new(1, 2, vec![-1.0, 1.0], vec![0.0, 0.0, 10.0, 20.0], rotations).unwrap();
        let place = |mut v: [f32; 3]| {
            cells.place(&mut v);
            v
        };
        assert_eq!(place([-0.5, 3.0, 4.0]), [-0.5, 3.0, 4.0]);
        assert_eq!(place([0.5, 11.0, 22.0]), [0.5, 2.0, 1.0]);
        // Equally near: the first.
        assert_eq!(place([0.0, 3.0, 4.0]), [0.0, 3.0, 4.0]);
        assert!(Cells::new(1, 2, vec![-1.0, 1.0], vec![0.0; 3], vec![0.0; 8]).is_err());
        assert!(Cells::new(1, 1, vec![f32::NAN], vec![0.0], vec![0.0]).is_err());
    }
}
