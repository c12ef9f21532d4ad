//! One book's soft code: forward, its mutual information, and the way back.
//!
//! Everything here lies column by column: `[dim, n]` and `[words, n]` with one column a view of a document, so that the
//! sums over words run along whole registers and a book's rows of the batch are one contiguous piece.

use crate::product::{View, multiply, multiply_add};
use crate::real::Real;
use crate::step::{Information, Objective};

/// Added inside the entropies' logarithms, as in the authors' code.
const ENTROPY_FLOOR: f64 = 1e-12;

/// One codebook.
#[derive(Clone, Copy)]
pub struct Book<'a, T> {
    /// `[words, dim]`.
    pub words: &'a [T],
    /// Dimensions of a word.
    pub dim: usize,
}

impl<'a, T: Real> Book<'a, T> {
    fn count(&self) -> usize {
        self.words.len() / self.dim
    }

    /// `[words, dim]`.
    fn view(&self) -> View<'a, T> {
        View::new(self.words, self.count(), self.dim)
    }
}

/// What the forward pass of a book leaves for the way back.
#[derive(Clone, Debug, Default)]
pub struct SoftCode<T> {
    /// `p = softmax(-|z - c|^2)`, `[words, n]`; empty when nothing asks for it.
    pub posterior: Vec<T>,
    /// The soft code `v`, `[words, n]`.
    pub code: Vec<T>,
    /// `ln(q + 1e-12)` of the probabilities whose information counts, `[words, n]`.
    log: Vec<T>,
    /// Derivative of `x ln(x + 1e-12)` at the batch mean of `q`, `[2, words]`.
    mean_slope: Vec<T>,
    /// Derivative of the loss by the logits, `[words, n]`.
    error: Vec<T>,
    /// One value a column.
    column: Vec<T>,
    /// This book's mutual information.
    pub information: f64,
}

/// Where the Gumbel noise comes from.
#[derive(Clone, Copy)]
pub enum Uniform<'a, T> {
    /// From a stream of its own for every book.
    Drawn(crate::random::Stream),
    /// Given, `[words, n]`.
    Given(&'a [T]),
}

/// `x = softmax(x)` down every column of `[words, n]`.
fn softmax<T: Real>(x: &mut [T], column: &mut [T]) {
    let n = column.len();
    column.copy_from_slice(&x[..n]);
    for row in x.chunks_exact(n).skip(1) {
        for (top, v) in column.iter_mut().zip(row) {
            *top = if *v > *top { *v } else { *top };
        }
    }
    for row in x.chunks_exact_mut(n) {
        row.iter_mut().zip(&*column).for_each(|(v, top)| *v -= *top);
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

/// `column = sum over words of a * b`.
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
    fn prepare(&mut self, words: usize, n: usize) {
        for buffer in [&mut self.posterior, &mut self.code, &mut self.log, &mut self.error] {
            buffer.resize(words * n, T::ZERO);
        }
        self.mean_slope.resize(2 * words, T::ZERO);
        self.column.resize(n, T::ZERO);
    }

    /// Refined slices `z [dim, n]` to soft codes, and to what they stand for, `h [dim, n]`. The first half of the columns is
    /// one view of the batch, the second the other.
    pub fn forward(&mut self, book: Book<T>, objective: &Objective, noise: Uniform<T>, z: &[T], h: &mut [T]) {
        let (words, n) = (book.count(), z.len() / book.dim);
        self.prepare(words, n);
        // Logits 2 z.c - |c|^2: the |z|^2 of the distance is the same for every word and cancels in the softmax.
        multiply(&mut self.posterior, book.view(), View::new(z, book.dim, n), T::of(2.0));
        for (row, word) in self.posterior.chunks_exact_mut(n).zip(book.words.chunks_exact(book.dim)) {
            let square = word.iter().fold(T::ZERO, |sum, c| sum + *c * *c);
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
            // Without a floor ln p is the logit but for a constant, and never underflows.
            self.code.iter_mut().zip(&self.posterior).for_each(|(v, l)| *v += *l);
            if objective.information == Information::Posterior {
                softmax(&mut self.posterior, &mut self.column);
            }
        }
        let sharpness = T::of(1.0 / objective.tau);
        self.code.iter_mut().for_each(|v| *v *= sharpness);
        softmax(&mut self.code, &mut self.column);
        multiply(h, book.view().transposed(), View::new(&self.code, words, n), T::ONE);
        self.inform(objective, n);
    }

    /// Mutual information of word and document over the batch, for each view, then their mean.
    fn inform(&mut self, objective: &Objective, n: usize) {
        let (batch, floor) = (n / 2, T::of(ENTROPY_FLOOR));
        let q = match objective.information {
            Information::Code => &self.code,
            Information::Posterior => &self.posterior,
        };
        self.log.iter_mut().zip(q).for_each(|(l, q)| *l = *q + floor);
        T::ln_all(&mut self.log);
        let words = q.len() / n;
        let mut information = 0.0;
        for view in 0..2 {
            let (mut entropy, mut conditional) = (0.0, 0.0);
            for k in 0..words {
                let cells = k * n + view * batch..k * n + (view + 1) * batch;
                let (mut sum, mut own) = (T::ZERO, T::ZERO);
                for (q, l) in q[cells.clone()].iter().zip(&self.log[cells]) {
                    sum += *q;
                    own += *q * *l;
                }
                let mean = sum.wide() / batch as f64;
                let log = (mean + ENTROPY_FLOOR).ln();
                entropy -= mean * log;
                conditional -= own.wide() / batch as f64;
                self.mean_slope[view * words + k] = T::of(log + mean / (mean + ENTROPY_FLOOR));
            }
            information += 0.5 * (entropy - objective.alpha * conditional);
        }
        self.information = information;
    }

    /// From `g [dim, n]`, the derivative by `h`, to `dz [dim, n]` and to the words' gradient `[words, dim]`.
    pub fn backward(&mut self, book: Book<T>, objective: &Objective, z: &[T], g: &[T], dz: &mut [T], dwords: &mut [T]) {
        let (words, n) = (book.count(), z.len() / book.dim);
        let batch = n / 2;
        // s = G.c, plus the information's own derivative where it is taken on v.
        multiply(&mut self.error, book.view(), View::new(g, book.dim, n), T::ONE);
        // From here on `log` holds the derivative of the information by q, U.
        let (weight, alpha) = (T::of(objective.prob_weight / n as f64), T::of(objective.alpha));
        let floor = T::of(ENTROPY_FLOOR);
        let q = match objective.information {
            Information::Code => &self.code,
            Information::Posterior => &self.posterior,
        };
        for k in 0..words {
            for view in 0..2 {
                let cells = k * n + view * batch..k * n + (view + 1) * batch;
                let slope = self.mean_slope[view * words + k];
                for (l, q) in self.log[cells.clone()].iter_mut().zip(&q[cells]) {
                    *l = weight * (slope - alpha * (*l + *q / (*q + floor)));
                }
            }
        }
        if objective.information == Information::Code {
            self.error.iter_mut().zip(&self.log).for_each(|(s, u)| *s += *u);
        }
        // A = v (s - sum v s) / tau: back through the tempered softmax.
        dot_columns(&mut self.column, &self.code, &self.error);
        let sharpness = T::of(1.0 / objective.tau);
        for (errors, codes) in self.error.chunks_exact_mut(n).zip(self.code.chunks_exact(n)) {
            for ((s, v), mean) in errors.iter_mut().zip(codes).zip(&self.column) {
                *s = *v * (*s - *mean) * sharpness;
            }
        }
        if objective.floor > 0.0 {
            // E = r A - p sum r A with r = p / (p + floor): back through the floored logarithm and the softmax.
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
        let error = View::new(&self.error, words, n);
        multiply(dz, book.view().transposed(), error, T::of(2.0));
        // dC = v G^T + 2 (E z^T - (sum E) c).
        multiply(dwords, View::new(&self.code, words, n), View::new(g, book.dim, n).transposed(), T::ONE);
        multiply_add(dwords, error, View::new(z, book.dim, n).transposed(), T::of(2.0));
        let rows = dwords.chunks_exact_mut(book.dim).zip(book.words.chunks_exact(book.dim));
        for ((gradient, word), errors) in rows.zip(self.error.chunks_exact(n)) {
            let sum = errors.iter().fold(T::ZERO, |sum, e| sum + *e) * T::of(2.0);
            gradient.iter_mut().zip(word).for_each(|(d, c)| *d -= sum * *c);
        }
    }
}
