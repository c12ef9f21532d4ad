//! One training step: two views of a batch to the loss and the gradient of every parameter.
//!
//! The gradients are written by hand (`quantizer` and `contrastive` hold the two hard parts) and checked against autograd
//! in double precision. Activations lie feature by feature, `[features, n]` with a column a view of a document: a piece of
//! any layer's output is then one contiguous slice, every task writes its own, and no sum crosses tasks except in a fixed
//! order. The result is the same bits whatever the number of threads.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::contrastive::{SHORTEST, contrast};
use crate::parameters::Parameters;
use crate::product::{View, multiply};
use crate::quantizer::{Book, SoftCode, Uniform};
use crate::random::{Purpose, Stream};
use crate::real::Real;

/// The probabilities whose mutual information with the document is maximised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Information {
    /// The soft code `v`, tempered and noised: the authors' code.
    #[default]
    Code,
    /// `p(word | document)` without temperature or noise: the paper's text.
    Posterior,
}

/// What is minimised. The defaults are the authors' code at 32 bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Objective {
    /// Temperature of the soft code: 10 at 16 bits, 5 beyond.
    pub tau: f64,
    /// Added to a probability before its logarithm; 0 leaves the logits as they are. Not in the paper, and not harmless: it
    /// bounds how sharp a training code can be.
    pub floor: f64,
    /// Whether Gumbel noise is added. Off together with `floor` 0 is the paper's "softmax" ablation.
    pub gumbel: bool,
    /// Which probabilities the mutual information is taken on.
    pub information: Information,
    /// Weight of the mutual information; 0 is the paper's "w/o MI".
    pub prob_weight: f64,
    /// Weight of the contrastive loss.
    pub code_weight: f64,
    /// Weight of the conditional entropy inside the mutual information.
    pub alpha: f64,
    /// Temperature of the contrastive loss.
    pub contrast_temperature: f64,
}

impl Default for Objective {
    fn default() -> Self {
        Objective {
            tau: 5.0,
            floor: 1e-9,
            gumbel: true,
            information: Information::Code,
            prob_weight: 0.2,
            code_weight: 1.0,
            alpha: 0.1,
            contrast_temperature: 0.3,
        }
    }
}

/// The loss and its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// `code_weight * contrastive - prob_weight * information`.
    pub loss: f64,
    /// NT-Xent, nats.
    pub contrastive: f64,
    /// Mutual information summed over books, nats.
    pub information: f64,
}

/// The uniform draws behind the Gumbel noise of a step.
#[derive(Clone, Copy)]
pub enum Noise<'a, T> {
    /// Drawn for this seed and step.
    Drawn {
        /// The run's seed.
        seed: u64,
        /// The step's number over the whole run.
        step: u64,
    },
    /// Given, `[books, words, n]`.
    Given(&'a [T]),
}

/// Buffers of a step, kept from one to the next.
#[derive(Default)]
pub struct Workspace<T> {
    // [hidden, n]
    hidden: Vec<T>,
    dhidden: Vec<T>,
    // [width, n]
    refined: Vec<T>,
    decoded: Vec<T>,
    unit: Vec<T>,
    slope: Vec<T>,
    drefined: Vec<T>,
    // [n, n]
    similar: Vec<T>,
    // One a book.
    codes: Vec<SoftCode<T>>,
    // [tasks, n], then folded in order.
    partial: Vec<T>,
    // [n]
    scale: Vec<T>,
    dots: Vec<T>,
}

/// Output rows of a large product computed by one task: enough that packing the other operand again is a small part.
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
    /// Refined vectors of the last step, `[width, n]`.
    pub fn refined(&self) -> &[T] {
        &self.refined
    }

    /// What the soft codes stood for, `[width, n]`.
    pub fn decoded(&self) -> &[T] {
        &self.decoded
    }

    /// The soft codes, one `[words, n]` a book.
    pub fn codes(&self) -> impl ExactSizeIterator<Item = &[T]> {
        self.codes.iter().map(|c| &c.code[..])
    }

    /// Loss of a batch, and into `gradient` its derivative by every parameter.
    ///
    /// `features` is `[n, inputs]`: the first half of the rows one view of the documents, the second the other in the
    /// same order.
    ///
    /// # Panics
    /// When the lengths do not fit the parameters' sizes, or `n` is odd or 0.
    pub fn step(
        &mut self,
        parameters: &Parameters<T>,
        objective: &Objective,
        features: &[T],
        noise: Noise<T>,
        gradient: &mut Parameters<T>,
    ) -> Losses {
        let sizes = parameters.sizes;
        assert_eq!(gradient.sizes, sizes);
        let n = features.len() / sizes.inputs;
        assert!(n > 0 && n.is_multiple_of(2) && n * sizes.inputs == features.len(), "two views of whole vectors");
        let (width, words, dim) = (sizes.code.width(), sizes.code.words(), sizes.code.dim());
        for (buffer, rows) in [
            (&mut self.hidden, sizes.hidden),
            (&mut self.dhidden, sizes.hidden),
            (&mut self.refined, width),
            (&mut self.decoded, width),
            (&mut self.unit, width),
            (&mut self.slope, width),
            (&mut self.drefined, width),
        ] {
            buffer.resize(rows * n, T::ZERO);
        }
        self.codes.resize_with(sizes.code.books(), SoftCode::default);
        self.refine(parameters, features, n);
        let information = self.quantize(parameters, objective, noise, n);
        let contrastive = self.compare(objective, n);
        self.dequantize(parameters, objective, gradient, dim * n, words * dim);
        self.unrefine(parameters, features, n, gradient);
        Losses {
            loss: objective.code_weight * contrastive - objective.prob_weight * information,
            contrastive,
            information,
        }
    }

    /// `u = ReLU(W1 x + b1)`, `z = W2 u + b2`.
    fn refine(&mut self, parameters: &Parameters<T>, features: &[T], n: usize) {
        let (sizes, parts) = (parameters.sizes, parameters.parts());
        let x = View::new(features, n, sizes.inputs).transposed();
        let tasks = self.hidden.par_chunks_mut(ROWS * n).zip(parts.w1.par_chunks(ROWS * sizes.inputs));
        tasks.zip(parts.b1.par_chunks(ROWS)).for_each(|((out, w), bias)| {
            multiply(out, View::new(w, bias.len(), sizes.inputs), x, T::ONE);
            for (row, b) in out.chunks_exact_mut(n).zip(bias) {
                row.iter_mut().for_each(|v| {
                    let y = *v + *b;
                    // Written so that what is not a number stays visible.
                    *v = if y < T::ZERO { T::ZERO } else { y };
                });
            }
        });
        let u = View::new(&self.hidden, sizes.hidden, n);
        let tasks = self.refined.par_chunks_mut(ROWS * n).zip(parts.w2.par_chunks(ROWS * sizes.hidden));
        tasks.zip(parts.b2.par_chunks(ROWS)).for_each(|((out, w), bias)| {
            multiply(out, View::new(w, bias.len(), sizes.hidden), u, T::ONE);
            for (row, b) in out.chunks_exact_mut(n).zip(bias) {
                row.iter_mut().for_each(|v| *v += *b);
            }
        });
    }

    /// Soft codes of every book; the vectors they stand for, and those scaled to unit length.
    fn quantize(&mut self, parameters: &Parameters<T>, objective: &Objective, noise: Noise<T>, n: usize) -> f64 {
        let (code, parts) = (parameters.sizes.code, parameters.parts());
        let (words, dim) = (code.words(), code.dim());
        self.partial.resize(code.books() * n, T::ZERO);
        let tasks = self.codes.par_iter_mut().zip(parts.words.par_chunks(words * dim)).enumerate();
        let outputs = self.decoded.par_chunks_mut(dim * n).zip(self.partial.par_chunks_mut(n));
        tasks.zip(self.refined.par_chunks(dim * n)).zip(outputs).for_each(|(((m, (soft, words)), z), (h, squares))| {
            let cells = words.len() / dim * n;
            let noise = match noise {
                Noise::Drawn { seed, step } => Uniform::Drawn(Stream::new(seed, Purpose::Gumbel, &[step, m as u64])),
                Noise::Given(draws) => Uniform::Given(&draws[m * cells..(m + 1) * cells]),
            };
            soft.forward(Book { words, dim }, objective, noise, z, h);
            dot_columns(squares, h, h);
        });
        fold_columns(&mut self.scale, &self.partial, n);
        for v in &mut self.scale {
            let length = v.root();
            *v = T::ONE / if length < T::of(SHORTEST) { T::of(SHORTEST) } else { length };
        }
        let scale = &self.scale;
        self.unit.par_chunks_mut(ROWS * n).zip(self.decoded.par_chunks(ROWS * n)).for_each(|(unit, h)| {
            for (unit, h) in unit.chunks_exact_mut(n).zip(h.chunks_exact(n)) {
                unit.iter_mut().zip(h).zip(scale).for_each(|((u, h), s)| *u = *h * *s);
            }
        });
        self.codes.iter().map(|c| c.information).sum()
    }

    /// The contrastive loss, and `slope`, its derivative by the unscaled vectors.
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
        // Through the scaling to unit length: only what is at right angles to the vector counts.
        self.slope.par_chunks_mut(ROWS * n).zip(self.unit.par_chunks(ROWS * n)).for_each(|(slope, unit)| {
            for (slope, unit) in slope.chunks_exact_mut(n).zip(unit.chunks_exact(n)) {
                for (((g, u), dot), s) in slope.iter_mut().zip(unit).zip(dots).zip(scale) {
                    *g = (*g - *dot * *u) * *s;
                }
            }
        });
        loss
    }

    fn dequantize(
        &mut self,
        parameters: &Parameters<T>,
        objective: &Objective,
        gradient: &mut Parameters<T>,
        slice: usize,
        book: usize,
    ) {
        let dim = parameters.sizes.code.dim();
        let parts = parameters.parts();
        let inputs = self.refined.par_chunks(slice).zip(self.slope.par_chunks(slice));
        let outputs = self.drefined.par_chunks_mut(slice).zip(gradient.parts_mut().words.par_chunks_mut(book));
        let tasks = self.codes.par_iter_mut().zip(parts.words.par_chunks(book)).zip(inputs).zip(outputs);
        tasks.for_each(|(((soft, words), (z, g)), (dz, dwords))| {
            soft.backward(Book { words, dim }, objective, z, g, dz, dwords);
        });
    }

    /// Gradients of both layers.
    fn unrefine(&mut self, parameters: &Parameters<T>, features: &[T], n: usize, gradient: &mut Parameters<T>) {
        let (sizes, parts) = (parameters.sizes, parameters.parts());
        let width = sizes.code.width();
        let to = gradient.parts_mut();
        let (hidden, drefined) = (&self.hidden, &self.drefined);
        let u = View::new(hidden, sizes.hidden, n).transposed();
        let second = to.w2.par_chunks_mut(ROWS * sizes.hidden).zip(to.b2.par_chunks_mut(ROWS));
        second.zip(drefined.par_chunks(ROWS * n)).for_each(|((dw, db), dz)| {
            multiply(dw, View::new(dz, db.len(), n), u, T::ONE);
            db.iter_mut().zip(dz.chunks_exact(n)).for_each(|(b, row)| *b = sum(row));
        });
        let x = View::new(features, n, sizes.inputs);
        let dz = View::new(drefined, width, n);
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
