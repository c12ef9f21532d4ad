//! The soft code of one codebook: forward pass, mutual information and backward pass.
//!
//! Arrays are `[dim, n]` and `[codewords, n]`, with one column per view of a document. So sums over codewords run along whole
//! registers, and the rows of one codebook are one contiguous slice.

use crate::objective::{Information, Objective};
use crate::product::{View, multiply, multiply_add};
use crate::real::Real;

/// Added inside the logarithms of the entropies, as in the authors' code.
const ENTROPY_FLOOR: f64 = 1e-12;

#[derive(Clone, Copy)]
pub struct Codebook<'a, T> {
    /// `[codewords, dim]`.
    pub codewords: &'a [T],
    pub dim: usize,
}

impl<'a, T: Real> Codebook<'a, T> {
    fn size(&self) -> usize {
        self.codewords.len() / self.dim
    }

    /// `[codewords, dim]`.
    fn view(&self) -> View<'a, T> {
        View::new(self.codewords, self.size(), self.dim)
    }
}

/// The soft code of one codebook, and the values of its forward pass that the backward pass needs.
#[derive(Clone, Debug, Default)]
pub struct SoftCode<T> {
    /// `p = softmax(-|z - c|^2)`, `[codewords, n]`. Holds the logits instead when neither the floor nor the information uses
    /// the probabilities.
    pub posterior: Vec<T>,
    /// The soft code `v`, `[codewords, n]`.
    pub code: Vec<T>,
    /// `ln(q + 1e-12)`, `[codewords, n]`; `q` are the probabilities of the mutual information. The backward pass replaces it
    /// by the derivative of the information by `q`.
    log: Vec<T>,
    /// Derivative of `x ln(x + 1e-12)` at the batch mean of `q`, `[2, codewords]`.
    mean_slope: Vec<T>,
    /// Derivative of the loss by the logits, `[codewords, n]`.
    error: Vec<T>,
    /// Scratch space, one value per column.
    column: Vec<T>,
    /// Mutual information of codeword and document, in nats.
    pub information: f64,
}

/// The uniform draws behind the Gumbel noise of one codebook.
#[derive(Clone, Copy)]
pub enum Uniform<'a, T> {
    Drawn(crate::random::Stream),
    /// `[codewords, n]`.
    Given(&'a [T]),
}

/// `x = softmax(x)` over every column of `x [codewords, n]`.
fn softmax<T: Real>(x: &mut [T], column: &mut [T]) {
    let n = column.len();
    column.copy_from_slice(&x[..n]);
    for row in x.chunks_exact(n).skip(1) {
        for (max, v) in column.iter_mut().zip(row) {
            *max = if *v > *max { *v } else { *max };
        }
    }
    for row in x.chunks_exact_mut(n) {
        row.iter_mut().zip(&*column).for_each(|(v, max)| *v -= *max);
    }
    T::exp_all(x);
    column.fill(T::ZERO);
    for row in x.chunks_exact(n) {
        column.iter_mut().zip(row).for_each(|(sum, v)| *sum += *v);
    }
    column.iter_mut().for_each(|sum| *sum = T::ONE / *sum);
    for row in x.chunks_exact_mut(n) {
        row.iter_mut().zip(&*column).for_each(|(v, scale)| *v *= *scale);
    }
}

/// `column = sum over codewords of a * b`.
fn dot_columns<T: Real>(column: &mut [T], a: &[T], b: &[T]) {
    let n = column.len();
    column.fill(T::ZERO);
    for (a, b) in a.chunks_exact(n).zip(b.chunks_exact(n)) {
        for ((sum, a), b) in column.iter_mut().zip(a).zip(b) {
            *sum += *a * *b;
        }
    }
}

impl<T: Real> SoftCode<T> {
    fn resize(&mut self, codewords: usize, n: usize) {
        for buffer in [&mut self.posterior, &mut self.code, &mut self.log, &mut self.error] {
            buffer.resize(codewords * n, T::ZERO);
        }
        self.mean_slope.resize(2 * codewords, T::ZERO);
        self.column.resize(n, T::ZERO);
    }

    /// Computes the soft codes of the projected slices `z [dim, n]` and writes their decoded vectors to `h [dim, n]`. The
    /// first half of the columns is one view of the batch, the second half the other.
    pub fn forward(&mut self, codebook: Codebook<T>, objective: &Objective, noise: Uniform<T>, z: &[T], h: &mut [T]) {
        let (codewords, n) = (codebook.size(), z.len() / codebook.dim);
        self.resize(codewords, n);
        // Logits 2 z.c - |c|^2: the |z|^2 of the distance is equal for all codewords and cancels in the softmax.
        multiply(&mut self.posterior, codebook.view(), View::new(z, codebook.dim, n), T::of(2.0));
        for (row, codeword) in self.posterior.chunks_exact_mut(n).zip(codebook.codewords.chunks_exact(codebook.dim)) {
            let square = codeword.iter().fold(T::ZERO, |sum, c| sum + *c * *c);
            row.iter_mut().for_each(|l| *l -= square);
        }
        if objective.gumbel {
            match noise {
                Uniform::Drawn(stream) => T::uniform_all(stream, &mut self.code),
                Uniform::Given(draws) => self.code.copy_from_slice(draws),
            }
            T::gumbel_all(&mut self.code);
        } else {
            self.code.fill(T::ZERO);
        }
        if objective.floor > 0.0 {
            softmax(&mut self.posterior, &mut self.column);
            let floor = T::of(objective.floor);
            self.log.iter_mut().zip(&self.posterior).for_each(|(a, p)| *a = *p + floor);
            T::ln_all(&mut self.log);
            self.code.iter_mut().zip(&self.log).for_each(|(v, a)| *v += *a);
        } else {
            // Without a floor, ln p is the logit plus a constant and never underflows.
            self.code.iter_mut().zip(&self.posterior).for_each(|(v, l)| *v += *l);
            if objective.information == Information::Posterior {
                softmax(&mut self.posterior, &mut self.column);
            }
        }
        let sharpness = T::of(1.0 / objective.tau);
        self.code.iter_mut().for_each(|v| *v *= sharpness);
        softmax(&mut self.code, &mut self.column);
        multiply(h, codebook.view().transposed(), View::new(&self.code, codewords, n), T::ONE);
        self.measure_information(objective, n);
    }

    /// Mutual information of codeword and document over the batch: the mean of both views.
    fn measure_information(&mut self, objective: &Objective, n: usize) {
        let (batch, floor) = (n / 2, T::of(ENTROPY_FLOOR));
        let q = match objective.information {
            Information::Code => &self.code,
            Information::Posterior => &self.posterior,
        };
        self.log.iter_mut().zip(q).for_each(|(l, q)| *l = *q + floor);
        T::ln_all(&mut self.log);
        let codewords = q.len() / n;
        let mut information = 0.0;
        for view in 0..2 {
            let (mut entropy, mut conditional) = (0.0, 0.0);
            for k in 0..codewords {
                let cells = k * n + view * batch..k * n + (view + 1) * batch;
                let (mut sum, mut negative_entropy) = (T::ZERO, T::ZERO);
                for (q, l) in q[cells.clone()].iter().zip(&self.log[cells]) {
                    sum += *q;
                    negative_entropy += *q * *l;
                }
                let mean = sum.wide() / batch as f64;
                let log = (mean + ENTROPY_FLOOR).ln();
                entropy -= mean * log;
                conditional -= negative_entropy.wide() / batch as f64;
                self.mean_slope[view * codewords + k] = T::of(log + mean / (mean + ENTROPY_FLOOR));
            }
            information += 0.5 * (entropy - objective.alpha * conditional);
        }
        self.information = information;
    }

    /// Takes `g [dim, n]`, the derivative of the loss by `h`. Writes the derivative by `z` to `dz [dim, n]` and the gradient
    /// of the codewords to `dcodewords [codewords, dim]`.
    pub fn backward(
        &mut self,
        codebook: Codebook<T>,
        objective: &Objective,
        z: &[T],
        g: &[T],
        dz: &mut [T],
        dcodewords: &mut [T],
    ) {
        let (codewords, n) = (codebook.size(), z.len() / codebook.dim);
        // s = G.c
        multiply(&mut self.error, codebook.view(), View::new(g, codebook.dim, n), T::ONE);
        self.information_slope(objective, n);
        self.logit_errors(objective, n);
        let error = View::new(&self.error, codewords, n);
        multiply(dz, codebook.view().transposed(), error, T::of(2.0));
        // dC = v G^T + 2 (E z^T - (sum E) c).
        multiply(dcodewords, View::new(&self.code, codewords, n), View::new(g, codebook.dim, n).transposed(), T::ONE);
        multiply_add(dcodewords, error, View::new(z, codebook.dim, n).transposed(), T::of(2.0));
        let rows = dcodewords.chunks_exact_mut(codebook.dim).zip(codebook.codewords.chunks_exact(codebook.dim));
        for ((gradient, codeword), errors) in rows.zip(self.error.chunks_exact(n)) {
            let sum = errors.iter().fold(T::ZERO, |sum, e| sum + *e) * T::of(2.0);
            gradient.iter_mut().zip(codeword).for_each(|(d, c)| *d -= sum * *c);
        }
    }

    /// Replaces `log` by U, the derivative of the weighted information by `q`.
    fn information_slope(&mut self, objective: &Objective, n: usize) {
        let batch = n / 2;
        let (weight, alpha) = (T::of(objective.prob_weight / n as f64), T::of(objective.alpha));
        let floor = T::of(ENTROPY_FLOOR);
        let q = match objective.information {
            Information::Code => &self.code,
            Information::Posterior => &self.posterior,
        };
        let codewords = q.len() / n;
        for k in 0..codewords {
            for view in 0..2 {
                let cells = k * n + view * batch..k * n + (view + 1) * batch;
                let slope = self.mean_slope[view * codewords + k];
                for (l, q) in self.log[cells.clone()].iter_mut().zip(&q[cells]) {
                    *l = weight * (slope - alpha * (*l + *q / (*q + floor)));
                }
            }
        }
    }

    /// Turns `error` from `s [codewords, n]` into E, the derivative of the loss by the logits.
    fn logit_errors(&mut self, objective: &Objective, n: usize) {
        if objective.information == Information::Code {
            self.error.iter_mut().zip(&self.log).for_each(|(s, u)| *s += *u);
        }
        // A = v (s - sum v s) / tau: backward through the softmax with temperature.
        dot_columns(&mut self.column, &self.code, &self.error);
        let sharpness = T::of(1.0 / objective.tau);
        for (errors, codes) in self.error.chunks_exact_mut(n).zip(self.code.chunks_exact(n)) {
            for ((s, v), mean) in errors.iter_mut().zip(codes).zip(&self.column) {
                *s = *v * (*s - *mean) * sharpness;
            }
        }
        if objective.floor > 0.0 {
            // E = r A - p sum r A with r = p / (p + floor): backward through the floored logarithm and the softmax.
            let floor = T::of(objective.floor);
            for (a, p) in self.error.iter_mut().zip(&self.posterior) {
                *a *= *p / (*p + floor);
            }
            self.column.fill(T::ZERO);
            for errors in self.error.chunks_exact(n) {
                self.column.iter_mut().zip(errors).for_each(|(sum, e)| *sum += *e);
            }
            for (errors, posterior) in self.error.chunks_exact_mut(n).zip(self.posterior.chunks_exact(n)) {
                for ((e, p), sum) in errors.iter_mut().zip(posterior).zip(&self.column) {
                    *e -= *p * *sum;
                }
            }
        }
        if objective.information == Information::Posterior {
            dot_columns(&mut self.column, &self.posterior, &self.log);
            let rows = self.error.chunks_exact_mut(n).zip(self.posterior.chunks_exact(n)).zip(self.log.chunks_exact(n));
            for ((errors, posterior), slopes) in rows {
                for (((e, p), u), mean) in errors.iter_mut().zip(posterior).zip(slopes).zip(&self.column) {
                    *e += *p * (*u - *mean);
                }
            }
        }
    }
}
