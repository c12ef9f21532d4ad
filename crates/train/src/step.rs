//! One training step: from two views of a batch to the loss and the gradient of every parameter.
//!
//! The gradients are hand-written (`quantizer` and `contrastive` hold the two hard parts) and tested against autograd in
//! double precision. Activations are `[units, n]`, one row per unit and one column per view of a document. So a piece of any
//! layer's output is one contiguous slice, every task writes its own slice, and sums across tasks run in a fixed order. The
//! bits do not depend on the number of threads.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::contrastive::{MIN_NORM, contrast};
use crate::objective::Objective;
use crate::parameters::Parameters;
use crate::product::{View, multiply};
use crate::quantizer::{Codebook, SoftCode, Uniform};
use crate::random::{Purpose, Stream};
use crate::real::Real;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// `code_weight * contrastive - prob_weight * information`.
    pub loss: f64,
    /// NT-Xent, in nats.
    pub contrastive: f64,
    /// Mutual information summed over codebooks, in nats.
    pub information: f64,
}

/// The uniform draws behind the Gumbel noise of a step.
#[derive(Clone, Copy)]
pub enum Noise<'a, T> {
    Drawn {
        seed: u64,
        /// Number of the step, counted over the whole run.
        step: u64,
    },
    /// `[codebooks, codewords, n]`.
    Given(&'a [T]),
}

/// Buffers of a step, reused by the next.
#[derive(Default)]
pub struct Workspace<T> {
    // [hidden, n]
    hidden: Vec<T>,
    dhidden: Vec<T>,
    // [width, n]
    projected: Vec<T>,
    decoded: Vec<T>,
    unit: Vec<T>,
    slope: Vec<T>,
    dprojected: Vec<T>,
    // [n, n]
    similar: Vec<T>,
    // One per codebook.
    codes: Vec<SoftCode<T>>,
    // [tasks, n], summed over tasks in order.
    partial: Vec<T>,
    // [n]
    scale: Vec<T>,
    dots: Vec<T>,
}

/// Output rows of a large product per task: enough that packing the other operand again costs little.
const ROWS: usize = 96;

/// Adds the rows of `partial [tasks, n]` into `column [n]`, first to last.
fn fold_columns<T: Real>(column: &mut Vec<T>, partial: &[T], n: usize) {
    column.clear();
    column.resize(n, T::ZERO);
    for row in partial.chunks_exact(n) {
        column.iter_mut().zip(row).for_each(|(sum, v)| *sum += *v);
    }
}

/// `sums = sum over rows of a * b`, all `[rows, n]`.
fn dot_columns<T: Real>(sums: &mut [T], a: &[T], b: &[T]) {
    sums.fill(T::ZERO);
    for (a, b) in a.chunks_exact(sums.len()).zip(b.chunks_exact(sums.len())) {
        sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += *a * *b);
    }
}

fn sum<T: Real>(row: &[T]) -> T {
    row.iter().fold(T::ZERO, |sum, v| sum + *v)
}

impl<T: Real> Workspace<T> {
    /// Projected vectors of the last step, `[width, n]`.
    pub fn projected(&self) -> &[T] {
        &self.projected
    }

    /// Vectors decoded from the soft codes of the last step, `[width, n]`.
    pub fn decoded(&self) -> &[T] {
        &self.decoded
    }

    /// Soft codes of the last step, one `[codewords, n]` per codebook.
    pub fn codes(&self) -> impl ExactSizeIterator<Item = &[T]> {
        self.codes.iter().map(|c| &c.code[..])
    }

    /// Computes the loss of a batch and writes its derivative by every parameter to `gradient`.
    ///
    /// `embeddings` is `[n, inputs]`. The first half of the rows is one view of the documents, the second half the other view
    /// in the same order.
    ///
    /// # Panics
    /// When a length does not fit the sizes of the parameters, or `n` is odd or 0.
    pub fn step(
        &mut self,
        parameters: &Parameters<T>,
        objective: &Objective,
        embeddings: &[T],
        noise: Noise<T>,
        gradient: &mut Parameters<T>,
    ) -> Losses {
        let sizes = parameters.sizes;
        assert_eq!(gradient.sizes, sizes);
        let n = embeddings.len() / sizes.inputs;
        assert!(n > 0 && n.is_multiple_of(2) && n * sizes.inputs == embeddings.len(), "two views of whole vectors");
        let width = sizes.code.width();
        for (buffer, rows) in [
            (&mut self.hidden, sizes.hidden),
            (&mut self.dhidden, sizes.hidden),
            (&mut self.projected, width),
            (&mut self.decoded, width),
            (&mut self.unit, width),
            (&mut self.slope, width),
            (&mut self.dprojected, width),
        ] {
            buffer.resize(rows * n, T::ZERO);
        }
        self.codes.resize_with(sizes.code.num_codebooks(), SoftCode::default);
        self.project(parameters, embeddings, n);
        let information = self.quantize(parameters, objective, noise, n);
        let contrastive = self.compare(objective, n);
        self.backward_quantization(parameters, objective, n, gradient);
        self.backward_projection(parameters, embeddings, n, gradient);
        Losses {
            loss: objective.code_weight * contrastive - objective.prob_weight * information,
            contrastive,
            information,
        }
    }

    /// `u = ReLU(W1 x + b1)`, `z = W2 u + b2`.
    fn project(&mut self, parameters: &Parameters<T>, embeddings: &[T], n: usize) {
        let (sizes, parts) = (parameters.sizes, parameters.parts());
        let x = View::new(embeddings, n, sizes.inputs).transposed();
        let tasks = self.hidden.par_chunks_mut(ROWS * n).zip(parts.w1.par_chunks(ROWS * sizes.inputs));
        tasks.zip(parts.b1.par_chunks(ROWS)).for_each(|((out, w), bias)| {
            multiply(out, View::new(w, bias.len(), sizes.inputs), x, T::ONE);
            for (row, b) in out.chunks_exact_mut(n).zip(bias) {
                row.iter_mut().for_each(|v| {
                    let y = *v + *b;
                    // NaN must pass through, so that the loss shows it: `max` would turn it into 0.
                    *v = if y < T::ZERO { T::ZERO } else { y };
                });
            }
        });
        let u = View::new(&self.hidden, sizes.hidden, n);
        let tasks = self.projected.par_chunks_mut(ROWS * n).zip(parts.w2.par_chunks(ROWS * sizes.hidden));
        tasks.zip(parts.b2.par_chunks(ROWS)).for_each(|((out, w), bias)| {
            multiply(out, View::new(w, bias.len(), sizes.hidden), u, T::ONE);
            for (row, b) in out.chunks_exact_mut(n).zip(bias) {
                row.iter_mut().for_each(|v| *v += *b);
            }
        });
    }

    /// Computes the soft codes, their decoded vectors, and these scaled to unit length. Returns the mutual information summed
    /// over codebooks.
    fn quantize(&mut self, parameters: &Parameters<T>, objective: &Objective, noise: Noise<T>, n: usize) -> f64 {
        let (code, parts) = (parameters.sizes.code, parameters.parts());
        let (codebook_size, dim) = (code.codebook_size(), code.dim());
        self.partial.resize(code.num_codebooks() * n, T::ZERO);
        let tasks = self.codes.par_iter_mut().zip(parts.codewords.par_chunks(codebook_size * dim)).enumerate();
        let outputs = self.decoded.par_chunks_mut(dim * n).zip(self.partial.par_chunks_mut(n));
        tasks.zip(self.projected.par_chunks(dim * n)).zip(outputs).for_each(
            |(((m, (soft, codewords)), z), (h, squares))| {
                let cells = codebook_size * n;
                let noise = match noise {
                    Noise::Drawn { seed, step } => {
                        Uniform::Drawn(Stream::new(seed, Purpose::Gumbel, &[step, m as u64]))
                    }
                    Noise::Given(draws) => Uniform::Given(&draws[m * cells..(m + 1) * cells]),
                };
                soft.forward(Codebook { codewords, dim }, objective, noise, z, h);
                dot_columns(squares, h, h);
            },
        );
        fold_columns(&mut self.scale, &self.partial, n);
        for v in &mut self.scale {
            let norm = v.root();
            *v = T::ONE / if norm < T::of(MIN_NORM) { T::of(MIN_NORM) } else { norm };
        }
        let scale = &self.scale;
        self.unit.par_chunks_mut(ROWS * n).zip(self.decoded.par_chunks(ROWS * n)).for_each(|(unit, h)| {
            for (unit, h) in unit.chunks_exact_mut(n).zip(h.chunks_exact(n)) {
                unit.iter_mut().zip(h).zip(scale).for_each(|((u, h), s)| *u = *h * *s);
            }
        });
        self.codes.iter().map(|c| c.information).sum()
    }

    /// Returns the contrastive loss and leaves its derivative by the decoded vectors in `slope`.
    fn compare(&mut self, objective: &Objective, n: usize) -> f64 {
        let temperature = objective.contrast_temperature;
        let loss = contrast(&self.unit, n, temperature, objective.code_weight, &mut self.similar);
        let similar = View::new(&self.similar, n, n);
        self.partial.resize(self.unit.len().div_ceil(ROWS * n) * n, T::ZERO);
        let tasks = self.slope.par_chunks_mut(ROWS * n).zip(self.unit.par_chunks(ROWS * n));
        tasks.zip(self.partial.par_chunks_mut(n)).for_each(|((slope, unit), dots)| {
            multiply(slope, View::new(unit, unit.len() / n, n), similar, T::of(1.0 / temperature));
            dot_columns(dots, slope, unit);
        });
        fold_columns(&mut self.dots, &self.partial, n);
        let (dots, scale) = (&self.dots, &self.scale);
        // Backward through the scaling to unit length: only the component orthogonal to the vector counts.
        self.slope.par_chunks_mut(ROWS * n).zip(self.unit.par_chunks(ROWS * n)).for_each(|(slope, unit)| {
            for (slope, unit) in slope.chunks_exact_mut(n).zip(unit.chunks_exact(n)) {
                for (((g, u), dot), s) in slope.iter_mut().zip(unit).zip(dots).zip(scale) {
                    *g = (*g - *dot * *u) * *s;
                }
            }
        });
        loss
    }

    /// Gradient of the codewords, and the derivative by the projected vectors.
    fn backward_quantization(
        &mut self,
        parameters: &Parameters<T>,
        objective: &Objective,
        n: usize,
        gradient: &mut Parameters<T>,
    ) {
        let (code, parts) = (parameters.sizes.code, parameters.parts());
        let dim = code.dim();
        let (slice, codebook) = (dim * n, code.codebook_size() * dim);
        let inputs = self.projected.par_chunks(slice).zip(self.slope.par_chunks(slice));
        let outputs =
            self.dprojected.par_chunks_mut(slice).zip(gradient.parts_mut().codewords.par_chunks_mut(codebook));
        let tasks = self.codes.par_iter_mut().zip(parts.codewords.par_chunks(codebook)).zip(inputs).zip(outputs);
        tasks.for_each(|(((soft, codewords), (z, g)), (dz, dcodewords))| {
            soft.backward(Codebook { codewords, dim }, objective, z, g, dz, dcodewords);
        });
    }

    /// Gradients of both dense layers.
    fn backward_projection(
        &mut self,
        parameters: &Parameters<T>,
        embeddings: &[T],
        n: usize,
        gradient: &mut Parameters<T>,
    ) {
        let (sizes, parts) = (parameters.sizes, parameters.parts());
        let width = sizes.code.width();
        let to = gradient.parts_mut();
        let (hidden, dprojected) = (&self.hidden, &self.dprojected);
        let u = View::new(hidden, sizes.hidden, n).transposed();
        let second = to.w2.par_chunks_mut(ROWS * sizes.hidden).zip(to.b2.par_chunks_mut(ROWS));
        second.zip(dprojected.par_chunks(ROWS * n)).for_each(|((dw, db), dz)| {
            multiply(dw, View::new(dz, db.len(), n), u, T::ONE);
            db.iter_mut().zip(dz.chunks_exact(n)).for_each(|(b, row)| *b = sum(row));
        });
        let x = View::new(embeddings, n, sizes.inputs);
        let dz = View::new(dprojected, width, n);
        let w2 = View::new(parts.w2, width, sizes.hidden);
        let outputs = to.w1.par_chunks_mut(ROWS * sizes.inputs).zip(to.b1.par_chunks_mut(ROWS)).enumerate();
        let tasks = self.dhidden.par_chunks_mut(ROWS * n).zip(hidden.par_chunks(ROWS * n)).zip(outputs);
        tasks.for_each(|((du, u), (chunk, (dw, db)))| {
            multiply(du, w2.columns(chunk * ROWS, db.len()).transposed(), dz, T::ONE);
            for (d, u) in du.iter_mut().zip(u) {
                *d = if *u > T::ZERO { *d } else { T::ZERO };
            }
            multiply(dw, View::new(du, db.len(), n), x, T::ONE);
            db.iter_mut().zip(du.chunks_exact(n)).for_each(|(b, row)| *b = sum(row));
        });
    }
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
