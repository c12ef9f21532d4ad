//! The two floating-point types of a step: `f32` for training, `f64` for tests against autograd.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use kernels::{Backend, elementwise};

use crate::random::Stream;

/// `f32` or `f64`.
pub trait Real:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
{
    const ZERO: Self;
    const ONE: Self;
    /// The value nearest to `x`.
    fn of(x: f64) -> Self;
    /// Converts to `f64`, exactly.
    fn wide(self) -> f64;
    fn root(self) -> Self;
    /// `x = e^x` for all.
    fn exp_all(x: &mut [Self]);
    /// `x = ln x` for all; every `x` must be positive.
    fn ln_all(x: &mut [Self]);
    /// Turns uniform draws in [0, 1) into Gumbel noise by the authors' formula `-ln(-ln(u + 1e-20) + 1e-20)`.
    fn gumbel_all(u: &mut [Self]);
    fn uniform_all(stream: Stream, out: &mut [Self]);
    fn adam_all(x: &mut [Self], gradient: &[Self], first: &mut [Self], second: &mut [Self], adam: &Adam);
}

/// One update by Adam.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    pub rate: f64,
    /// Number of the update, counted from 1.
    pub number: u64,
}

impl Adam {
    /// Decay of the first moment, beta 1.
    pub const FIRST: f64 = 0.9;
    /// Decay of the second moment, beta 2.
    pub const SECOND: f64 = 0.999;
    /// Added to the root of the second moment.
    pub const EPSILON: f64 = 1e-8;

    /// The coefficients of the update in single precision.
    pub fn numbers(&self) -> elementwise::Adam {
        let (rate, scale) = self.corrected();
        elementwise::Adam {
            keep_first: Adam::FIRST as f32,
            keep_second: Adam::SECOND as f32,
            rate: rate as f32,
            scale: scale as f32,
            epsilon: Adam::EPSILON as f32,
        }
    }

    /// The rate divided by the bias correction of the first moment, and the inverse root of the correction of the second.
    fn corrected(&self) -> (f64, f64) {
        let correction = |decay: f64| 1.0 - decay.powf(self.number as f64);
        (self.rate / correction(Self::FIRST), 1.0 / correction(Self::SECOND).sqrt())
    }
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn of(x: f64) -> f32 {
        x as f32
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn root(self) -> f32 {
        self.sqrt()
    }

    fn exp_all(x: &mut [f32]) {
        elementwise::exp(Backend::active(), x);
    }

    fn ln_all(x: &mut [f32]) {
        elementwise::ln(Backend::active(), x);
    }

    fn gumbel_all(u: &mut [f32]) {
        elementwise::gumbel(Backend::active(), u);
    }

    fn uniform_all(stream: Stream, out: &mut [f32]) {
        stream.uniform_f32(out);
    }

    fn adam_all(x: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], adam: &Adam) {
        elementwise::adam(Backend::active(), x, gradient, first, second, adam.numbers());
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn of(x: f64) -> f64 {
        x
    }

    fn wide(self) -> f64 {
        self
    }

    fn root(self) -> f64 {
        self.sqrt()
    }

    fn exp_all(x: &mut [f64]) {
        x.iter_mut().for_each(|v| *v = v.exp());
    }

    fn ln_all(x: &mut [f64]) {
        x.iter_mut().for_each(|v| *v = v.ln());
    }

    fn gumbel_all(u: &mut [f64]) {
        u.iter_mut().for_each(|v| *v = -(-(*v + 1e-20).ln() + 1e-20).ln());
    }

    fn uniform_all(stream: Stream, out: &mut [f64]) {
        stream.uniform_f64(out);
    }

    fn adam_all(x: &mut [f64], gradient: &[f64], first: &mut [f64], second: &mut [f64], adam: &Adam) {
        let (rate, scale) = adam.corrected();
        for (((x, g), m), v) in x.iter_mut().zip(gradient).zip(first).zip(second) {
            *m = Adam::FIRST * *m + (1.0 - Adam::FIRST) * g;
            *v = Adam::SECOND * *v + (1.0 - Adam::SECOND) * g * g;
            *x -= rate * *m / (v.sqrt() * scale + Adam::EPSILON);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The updates by the formulas of Kingma and Ba, with the bias corrections not merged into the rate.
    fn reference(gradients: &[f64], rate: f64) -> f64 {
        let (mut x, mut m, mut v) = (1.0, 0.0, 0.0);
        for (t, g) in gradients.iter().enumerate() {
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            let (mh, vh) = (m / (1.0 - 0.9f64.powi(t as i32 + 1)), v / (1.0 - 0.999f64.powi(t as i32 + 1)));
            x -= rate * mh / (vh.sqrt() + 1e-8);
        }
        x
    }

    fn run<T: Real>(gradients: &[f64]) -> f64 {
        let (mut x, mut m, mut v) = ([T::ONE], [T::ZERO], [T::ZERO]);
        for (i, &g) in gradients.iter().enumerate() {
            T::adam_all(&mut x, &[T::of(g)], &mut m, &mut v, &Adam { rate: 1e-3, number: i as u64 + 1 });
        }
        x[0].wide()
    }

    #[test]
    fn adam_equals_the_published_formulas() {
        let gradients = [0.5, -2.0, 1e-4, 3.0];
        let expected = reference(&gradients, 1e-3);
        assert!((run::<f64>(&gradients) - expected).abs() < 1e-14);
        assert!((run::<f32>(&gradients) - expected).abs() < 1e-6);
    }
}
