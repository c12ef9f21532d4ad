//! The first layer, by hand: it meets the vocabulary or the encoder's vectors, and is nearly all of a system's work.
//!
//! With words a batch touches some rows of the weight only, and only those are read, differentiated and moved.

use micpq::Matrix;
use train::product::{View, multiply};

use crate::graph::{Init, Weight};
use crate::yardstick::Row;

/// The inputs of one batch.
pub enum Rows<'a> {
    /// Vectors `[n, inputs]`.
    Dense(Matrix),
    /// Sparse rows.
    Words(Vec<&'a Row>),
}

impl Rows<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Rows::Dense(rows) => rows.rows(),
            Rows::Words(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// `a = x W + b`, `W [inputs, outputs]`.
#[derive(Clone)]
pub struct Entry {
    /// A row for every input.
    pub weight: Weight,
    /// `[1, outputs]`.
    pub bias: Weight,
    // 0 where a weight stays zero.
    mask: Option<Vec<f32>>,
}

impl Entry {
    /// First values.
    pub fn new(inputs: usize, outputs: usize, init: Init, seed: u64) -> Self {
        let [weight, bias] = Weight::layer(inputs, outputs, init, seed, 900);
        Entry { weight, bias, mask: None }
    }

    /// Scales first values by `mask [inputs, outputs]`; where it is zero, weights stay zero.
    pub fn masked(mut self, mask: Option<Vec<f32>>) -> Self {
        if let Some(mask) = &mask {
            self.weight.values.iter_mut().zip(mask).for_each(|(w, m)| *w *= m);
        }
        self.mask = mask;
        self
    }

    /// `[n, outputs]`.
    pub fn forward(&self, rows: &Rows) -> Vec<f32> {
        let [inputs, outputs] = self.weight.shape;
        let mut out = vec![0.0; rows.len() * outputs];
        match rows {
            Rows::Dense(x) => {
                let (x, w) =
                    (View::new(x.as_slice(), x.rows(), inputs), View::new(&self.weight.values, inputs, outputs));
                multiply(&mut out, x, w, 1.0);
            }
            Rows::Words(rows) => {
                for (out, row) in out.chunks_exact_mut(outputs).zip(rows) {
                    for &(term, weight) in row.iter() {
                        let from = &self.weight.values[term as usize * outputs..][..outputs];
                        out.iter_mut().zip(from).for_each(|(o, w)| *o += weight * w);
                    }
                }
            }
        }
        for row in out.chunks_exact_mut(outputs) {
            row.iter_mut().zip(&self.bias.values).for_each(|(o, b)| *o += b);
        }
        out
    }

    /// Moves the layer against `slope [n, outputs]`, the gradient at its output.
    pub fn update(&mut self, rows: &Rows, slope: &[f32], rate: f64, number: u64) {
        let [inputs, outputs] = self.weight.shape;
        let mut of_bias = vec![0.0; outputs];
        for row in slope.chunks_exact(outputs) {
            of_bias.iter_mut().zip(row).for_each(|(b, s)| *b += s);
        }
        self.bias.update(&of_bias, rate, number);
        match rows {
            Rows::Dense(x) => {
                let mut gradient = vec![0.0; inputs * outputs];
                let x = View::new(x.as_slice(), x.rows(), inputs).transposed();
                multiply(&mut gradient, x, View::new(slope, rows.len(), outputs), 1.0);
                if let Some(mask) = &self.mask {
                    gradient.iter_mut().zip(mask).filter(|(_, m)| **m == 0.0).for_each(|(g, _)| *g = 0.0);
                }
                self.weight.update(&gradient, rate, number);
            }
            Rows::Words(rows) => {
                let mut touched: Vec<u32> = rows.iter().flat_map(|row| row.iter().map(|&(term, _)| term)).collect();
                touched.sort_unstable();
                touched.dedup();
                let mut gradient = vec![0.0; touched.len() * outputs];
                for (row, slope) in rows.iter().zip(slope.chunks_exact(outputs)) {
                    for (term, weight) in row.iter() {
                        let at = touched.binary_search(term).expect("it was put there");
                        let to = &mut gradient[at * outputs..(at + 1) * outputs];
                        to.iter_mut().zip(slope).for_each(|(g, s)| *g += weight * s);
                    }
                }
                self.weight.update_rows(&touched, &gradient, rate, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_rows_are_the_dense_ones_with_their_zeros() {
        let sparse = [vec![(0, 0.5), (3, 2.0)], vec![(1, -1.0)], vec![]];
        let mut dense = Matrix::zeros(3, 4);
        for (i, row) in sparse.iter().enumerate() {
            row.iter().for_each(|&(t, w)| dense.row_mut(i)[t as usize] = w);
        }
        let entry = Entry::new(4, 5, Init::Linear, 3);
        let (words, vectors) = (Rows::Words(sparse.iter().collect()), Rows::Dense(dense));
        let (a, b) = (entry.forward(&words), entry.forward(&vectors));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_eq!(a[10..], entry.bias.values[..]);
        let slope: Vec<f32> = (0..15).map(|i| (i as f32).sin()).collect();
        let (mut one, mut other) = (entry.clone(), entry.clone());
        one.update(&words, &slope, 0.01, 1);
        other.update(&vectors, &slope, 0.01, 1);
        assert!(one.weight.values.iter().zip(&other.weight.values).all(|(a, b)| (a - b).abs() < 1e-5));
        // No text has word 2.
        assert_eq!(one.weight.values[10..15], entry.weight.values[10..15]);
    }
}
