//! The learned parameters: two dense layers and the codebooks, in one flat vector.

use std::ops::Range;

use engine::Result;
use engine::model::{CodeShape, Codebooks, Dense, Projection};
use rayon::prelude::*;

use crate::random::{Purpose, Stream};
use crate::real::{Adam, Real};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Values in an embedding, d.
    pub inputs: usize,
    /// Width of the hidden layer, H.
    pub hidden: usize,
    pub code: CodeShape,
}

impl Sizes {
    /// Where `W1 [H, d]`, `b1 [H]`, `W2 [W, H]`, `b2 [W]`, `C [codebooks, codewords, dim]` lie in the flat vector.
    pub fn ranges(&self) -> [Range<usize>; 5] {
        let (width, code) = (self.code.width(), self.code);
        let mut end = 0;
        [self.hidden * self.inputs, self.hidden, width * self.hidden, width, width * code.codebook_size()].map(|n| {
            let start = end;
            end += n;
            start..end
        })
    }

    pub fn len(&self) -> usize {
        self.ranges()[4].end
    }

    /// Always false: a model has parameters.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Parameters, or their gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters<T> {
    pub sizes: Sizes,
    /// All values, in the order of [`Sizes::ranges`].
    pub values: Vec<T>,
}

/// The named parts of a flat vector.
pub struct Parts<'a, T> {
    /// `[H, d]`.
    pub w1: &'a [T],
    /// `[H]`.
    pub b1: &'a [T],
    /// `[W, H]`.
    pub w2: &'a [T],
    /// `[W]`.
    pub b2: &'a [T],
    /// `[codebooks, codewords, dim]`.
    pub codewords: &'a [T],
}

/// The named parts of a flat vector, mutable.
pub struct PartsMut<'a, T> {
    /// `[H, d]`.
    pub w1: &'a mut [T],
    /// `[H]`.
    pub b1: &'a mut [T],
    /// `[W, H]`.
    pub w2: &'a mut [T],
    /// `[W]`.
    pub b2: &'a mut [T],
    /// `[codebooks, codewords, dim]`.
    pub codewords: &'a mut [T],
}

impl<T: Real> Parameters<T> {
    pub fn zeros(sizes: Sizes) -> Self {
        Parameters { sizes, values: vec![T::ZERO; sizes.len()] }
    }

    pub fn parts(&self) -> Parts<'_, T> {
        let [w1, b1, w2, b2, codewords] = self.sizes.ranges().map(|r| &self.values[r]);
        Parts { w1, b1, w2, b2, codewords }
    }

    pub fn parts_mut(&mut self) -> PartsMut<'_, T> {
        let [r1, r2, r3, r4, _] = self.sizes.ranges();
        let (w1, rest) = self.values.split_at_mut(r1.len());
        let (b1, rest) = rest.split_at_mut(r2.len());
        let (w2, rest) = rest.split_at_mut(r3.len());
        let (b2, codewords) = rest.split_at_mut(r4.len());
        PartsMut { w1, b1, w2, b2, codewords }
    }

    /// Sets to zero what connects the slice of one codebook with that of another, in weights or in their gradient.
    pub fn keep_slices(&mut self) {
        let Sizes { inputs, hidden, code } = self.sizes;
        let (codebooks, width) = (code.num_codebooks(), code.width());
        let parts = self.parts_mut();
        // [to, from]
        for (weight, [to, from]) in [(parts.w1, [hidden, inputs]), (parts.w2, [width, hidden])] {
            for (o, row) in weight.chunks_exact_mut(from).enumerate() {
                let own = o * codebooks / to;
                let foreign = row.iter_mut().enumerate().filter(|(i, _)| i * codebooks / from != own);
                foreign.for_each(|(_, v)| *v = T::ZERO);
            }
        }
    }

    /// Euclidean norm of the flat vector.
    pub fn norm(&self) -> f64 {
        self.values.iter().map(|v| v.wide() * v.wide()).sum::<f64>().sqrt()
    }

    /// Scales the flat vector down to norm `max_norm` when its norm is larger (`torch.nn.utils.clip_grad_norm_`).
    pub fn clip(&mut self, max_norm: f64) {
        let scale = T::of((max_norm / (self.norm() + 1e-6)).min(1.0));
        self.values.iter_mut().for_each(|v| *v *= scale);
    }
}

impl Parameters<f32> {
    /// Initial values like the authors': `U(-1/sqrt(inputs), 1/sqrt(inputs))` for weights and biases, as in `nn.Linear`, and
    /// N(0, 1) for codewords.
    pub fn init(sizes: Sizes, seed: u64) -> Self {
        let mut parameters = Self::zeros(sizes);
        let parts = parameters.parts_mut();
        let layers =
            [(parts.w1, sizes.inputs), (parts.b1, sizes.inputs), (parts.w2, sizes.hidden), (parts.b2, sizes.hidden)];
        for (i, (values, inputs)) in layers.into_iter().enumerate() {
            Stream::new(seed, Purpose::Init, &[i as u64]).uniform_f32(values);
            let bound = 1.0 / (inputs as f32).sqrt();
            values.iter_mut().for_each(|v| *v = (2.0 * *v - 1.0) * bound);
        }
        Stream::new(seed, Purpose::Init, &[4]).normal(parts.codewords);
        parameters
    }

    /// [`Parameters::init`] for a projection by slices: every codebook has a part of the embedding, of the hidden layer and of the
    /// output of its own. Initial values are those of layers of that size.
    pub fn init_slices(sizes: Sizes, seed: u64) -> Self {
        let mut parameters = Self::init(sizes, seed);
        let scale = (sizes.code.num_codebooks() as f32).sqrt();
        let parts = parameters.parts_mut();
        for values in [parts.w1, parts.b1, parts.w2, parts.b2] {
            values.iter_mut().for_each(|v| *v *= scale);
        }
        parameters.keep_slices();
        parameters
    }

    pub fn model_parts(&self) -> Result<(Projection, Codebooks)> {
        let parts = self.parts();
        let first = Dense::new(self.sizes.inputs, parts.w1.to_vec(), parts.b1.to_vec())?;
        let second = Dense::new(self.sizes.hidden, parts.w2.to_vec(), parts.b2.to_vec())?;
        Ok((Projection::new(vec![first, second])?, Codebooks::new(self.sizes.code, parts.codewords.to_vec())?))
    }
}

/// Adam's running moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments<T> {
    /// Running mean of the gradient.
    pub first: Vec<T>,
    /// Running mean of the squared gradient.
    pub second: Vec<T>,
    /// Number of updates so far.
    pub updates: u64,
}

/// Values per task of an update.
const CHUNK: usize = 1 << 15;

impl<T: Real> Moments<T> {
    pub fn zeros(n: usize) -> Self {
        Moments { first: vec![T::ZERO; n], second: vec![T::ZERO; n], updates: 0 }
    }

    /// Updates `parameters` by one step of Adam with learning rate `rate`.
    pub fn update(&mut self, parameters: &mut Parameters<T>, gradient: &Parameters<T>, rate: f64) {
        self.updates += 1;
        let adam = Adam { rate, number: self.updates };
        let values = parameters.values.par_chunks_mut(CHUNK).zip(gradient.values.par_chunks(CHUNK));
        let moments = self.first.par_chunks_mut(CHUNK).zip(self.second.par_chunks_mut(CHUNK));
        values.zip(moments).for_each(|((x, g), (m, v))| T::adam_all(x, g, m, v, &adam));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_values_have_the_distributions_of_the_authors_code() {
        let sizes = Sizes { inputs: 100, hidden: 64, code: CodeShape::micpq(64).unwrap() };
        let p = Parameters::init(sizes, 5);
        let parts = p.parts();
        for (values, inputs) in [(parts.w1, 100.0f64), (parts.b1, 100.0), (parts.w2, 64.0), (parts.b2, 64.0)] {
            let bound = 1.0 / inputs.sqrt();
            assert!(values.iter().all(|&v| f64::from(v).abs() <= bound * 1.000001));
            let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / values.len() as f64;
            let spread = if values.len() > 1000 { 0.05 } else { 0.4 };
            assert!((square / (bound * bound / 3.0) - 1.0).abs() < spread, "{square} {bound}");
        }
        let square = parts.codewords.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / parts.codewords.len() as f64;
        assert!((square - 1.0).abs() < 0.05, "{square}");
        assert_eq!(p, Parameters::init(sizes, 5));
        assert_ne!(p, Parameters::init(sizes, 6));
    }

    #[test]
    fn slices_are_not_connected() {
        // Four codebooks: each reads a quarter of the embedding through a quarter of the hidden layer.
        let sizes = Sizes { inputs: 12, hidden: 8, code: CodeShape::micpq(16).unwrap() };
        let p = Parameters::init_slices(sizes, 3);
        let (projection, _) = p.model_parts().unwrap();
        let of = |x: &[f32; 12]| projection.apply(&engine::Matrix::from_vec(12, x.to_vec())).unwrap();
        let (zero, mut moved) = (of(&[0.0; 12]), [0.0; 12]);
        moved[4] = 30.0;
        let moved = of(&moved);
        let changed: Vec<usize> = (0..96).filter(|&i| moved.row(0)[i] != zero.row(0)[i]).collect();
        assert!(!changed.is_empty() && changed.iter().all(|i| i / 24 == 1), "{changed:?}");
        let bound = 1.0 / 3f32.sqrt();
        assert!(p.parts().w1.iter().all(|v| v.abs() <= bound * 1.000001));
        assert!(p.parts().w1.iter().any(|v| v.abs() > bound / 2.0));
    }

    #[test]
    fn clipping_bounds_the_norm_and_leaves_shorter_vectors_unchanged() {
        let sizes = Sizes { inputs: 2, hidden: 2, code: CodeShape::new(1, 2, 2).unwrap() };
        let mut g = Parameters::<f64>::zeros(sizes);
        g.values.fill(10.0);
        g.clip(10.0);
        assert!((g.norm() - 10.0).abs() < 1e-5);
        let before = g.clone();
        g.clip(100.0);
        assert_eq!(g, before);
    }
}
