//! One step: from queries and the codes of documents to the loss and the gradient of every parameter.
//!
//! A sum over the codewords of a document is a product with its row of ones and zeros, `[pool, codebooks * codewords]`: sixteen
//! times as many multiplications as there are codewords to add, and still three times as fast as fetching each of them.
//!
//! Gradients are written by hand and tested against autograd in double precision. Queries are cut into tasks of fixed size and
//! sums run in a fixed order, so the bits do not depend on the number of threads.

use rayon::prelude::*;

use super::head::{Head, Part};
use crate::distillation::step::cross_entropy;
use crate::product::{View, multiply};
use crate::real::Real;

/// Queries per task.
const QUERIES: usize = 64;
/// Rows of a weight per task of its gradient.
const ROWS: usize = 64;

/// Queries and the documents they are compared with.
#[derive(Clone, Copy)]
pub struct Batch<'a, T> {
    /// Embeddings of the queries `[queries, inputs]`.
    pub x: &'a [T],
    /// The queries in the space of the teacher `[queries, any]`, of unit length.
    pub queries: &'a [T],
    /// The documents in the space of the teacher `[pool, any]`, of unit length.
    pub documents: &'a [T],
    /// Their codeword numbers `[pool, codebooks]`.
    pub codes: &'a [u32],
    /// The row of `codes` that is the query's own document. A query never meets itself.
    pub own: &'a [u32],
}

/// Buffers of a step, reused by the next.
#[derive(Default)]
pub struct Workspace<T> {
    // [queries, H]
    hidden: Vec<T>,
    dhidden: Vec<T>,
    // [queries, codebooks * codewords]: the tables, then the derivative by them.
    tables: Vec<T>,
    // [pool, codebooks * codewords]: 1 at the codewords of a document.
    ones: Vec<T>,
}

impl<T: Real> Workspace<T> {
    /// Computes the mean cross entropy of a batch in nats and writes its derivative by every parameter to `gradient`.
    ///
    /// # Panics
    /// When a length or a row number does not fit.
    pub fn step(&mut self, head: &Head<T>, temperature: f64, batch: &Batch<T>, gradient: &mut Head<T>) -> f64 {
        let sizes = head.sizes;
        let (d, h, outputs) = (sizes.inputs, sizes.hidden, sizes.outputs());
        let (queries, pool) = (batch.own.len(), batch.codes.len() / sizes.codebooks);
        assert!(gradient.sizes == sizes && batch.x.len() == queries * d && batch.codes.len() == pool * sizes.codebooks);
        assert!(pool >= 2 && queries > 0, "a query is compared with other documents");
        let e = batch.documents.len() / pool;
        assert!(batch.documents.len() == pool * e && batch.queries.len() == queries * e);
        assert!(batch.own.iter().all(|&row| (row as usize) < pool));
        assert!(batch.codes.iter().all(|&word| (word as usize) < sizes.codewords));
        for (buffer, width) in [(&mut self.hidden, h), (&mut self.dhidden, h), (&mut self.tables, outputs)] {
            buffer.resize(queries * width, T::ZERO);
        }
        self.ones.clear();
        self.ones.resize(pool * outputs, T::ZERO);
        for (ones, code) in self.ones.chunks_exact_mut(outputs).zip(batch.codes.chunks_exact(sizes.codebooks)) {
            code.iter().enumerate().for_each(|(m, &word)| ones[m * sizes.codewords + word as usize] = T::ONE);
        }
        let ones = View::new(&self.ones, pool, outputs);
        let inner = View::new(head.part(Part::Inner), h, d).transposed();
        let outer = View::new(head.part(Part::Outer), outputs, h);
        let documents = View::new(batch.documents, pool, e).transposed();
        let share = T::of(1.0 / queries as f64);
        let tasks = self.hidden.par_chunks_mut(QUERIES * h).zip(self.dhidden.par_chunks_mut(QUERIES * h));
        let tasks = tasks.zip(self.tables.par_chunks_mut(QUERIES * outputs)).zip(batch.own.par_chunks(QUERIES));
        let inputs = batch.x.par_chunks(QUERIES * d).zip(batch.queries.par_chunks(QUERIES * e));
        let losses: Vec<f64> = tasks
            .zip(inputs)
            .map(|((((hidden, dhidden), tables), own), (x, y))| {
                let count = own.len();
                multiply(hidden, View::new(x, count, d), inner, T::ONE);
                add_bias(hidden, head.part(Part::InnerBias));
                // NaN must pass through, so that the loss shows it: `max` would turn it into 0.
                hidden.iter_mut().filter(|v| **v < T::ZERO).for_each(|v| *v = T::ZERO);
                multiply(tables, View::new(hidden, count, h), outer.transposed(), T::ONE);
                add_bias(tables, head.part(Part::OuterBias));
                let mut teacher = vec![T::ZERO; count * pool];
                multiply(&mut teacher, View::new(y, count, e), documents, T::of(1.0 / temperature));
                let mut scores = vec![T::ZERO; count * pool];
                multiply(&mut scores, View::new(tables, count, outputs), ones.transposed(), -T::ONE);
                let mut scratch = vec![T::ZERO; pool];
                let rows = scores.chunks_exact_mut(pool).zip(teacher.chunks_exact_mut(pool)).zip(own);
                let losses = rows.map(|((scores, teacher), &own)| {
                    // The own document would be the largest of its row and hide the others from the softmax.
                    for row in [&mut *scores, &mut *teacher] {
                        row[own as usize] = row[usize::from(own == 0)];
                    }
                    cross_entropy(teacher, scores, T::ONE, own as usize, &mut scratch).0
                });
                let loss = losses.sum();
                multiply(tables, View::new(&teacher, count, pool), ones, -share);
                multiply(dhidden, View::new(tables, count, outputs), outer, T::ONE);
                let dead = dhidden.iter_mut().zip(&*hidden).filter(|(_, u)| **u <= T::ZERO);
                dead.for_each(|(g, _)| *g = T::ZERO);
                loss
            })
            .collect();
        self.gradients(batch.x, gradient);
        losses.into_iter().sum::<f64>() / queries as f64
    }

    fn gradients(&self, x: &[T], gradient: &mut Head<T>) {
        let (d, h, outputs) = (gradient.sizes.inputs, gradient.sizes.hidden, gradient.sizes.outputs());
        let queries = x.len() / d;
        let by_hidden = View::new(&self.dhidden, queries, h);
        let by_tables = View::new(&self.tables, queries, outputs);
        let layers = [
            (Part::Inner, by_hidden, View::new(x, queries, d), d),
            (Part::Outer, by_tables, View::new(&self.hidden, queries, h), h),
        ];
        for (part, left, right, cols) in layers {
            gradient.part_mut(part).par_chunks_mut(ROWS * cols).enumerate().for_each(|(chunk, out)| {
                let rows = out.len() / cols;
                multiply(out, left.columns(chunk * ROWS, rows).transposed(), right, T::ONE);
            });
        }
        for (part, from) in [(Part::InnerBias, &self.dhidden), (Part::OuterBias, &self.tables)] {
            let to = gradient.part_mut(part);
            to.fill(T::ZERO);
            for row in from.chunks_exact(to.len()) {
                to.iter_mut().zip(row).for_each(|(to, from)| *to += *from);
            }
        }
    }
}

fn add_bias<T: Real>(rows: &mut [T], bias: &[T]) {
    rows.chunks_exact_mut(bias.len()).for_each(|row| row.iter_mut().zip(bias).for_each(|(v, b)| *v += *b));
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
