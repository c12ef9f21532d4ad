//! AEPQ: MICPQ's quantizer, trained to give the vector back.
//!
//! ```text
//! z = W2 relu(W1 x + b1) + b2, cut into books;  per book d_k = |z - c_k|^2, p = softmax(-d)
//! v = softmax((ln(p + 1e-9) + g) / tau), g Gumbel;  h = sum_k v_k c_k
//! loss = mean (decoder(h) - x)^2,  decoder: two layers, ReLU between
//! word = argmin_k d_k
//! ```
//! The paper names neither the decoder nor the noise; these are our reading: layers as wide as the encoder's, the clean
//! vector in and out.

use burn_tensor::Tensor;
use burn_tensor::activation::{relu, softmax};
use micpq::model::{CodeShape, Codebooks, Dense, Distance};
use micpq::{Matrix, Result};

use crate::config::SystemConfig;
use crate::graph::{Draws, Graph, Init, Loss, T2, Weight, dense, linear, two_layers};
use crate::learn::{Batch, System};

/// Added to a chance before its logarithm, as the authors do.
const FLOOR: f64 = 1e-9;

/// The system.
pub struct Aepq {
    config: SystemConfig,
    shape: CodeShape,
    inputs: usize,
}

impl Aepq {
    /// For vectors of so many values.
    pub fn new(config: &SystemConfig, inputs: usize) -> Result<Self> {
        let shape = CodeShape::new(config.bits / 4, 16, config.dim)?;
        Ok(Aepq { config: config.clone(), shape, inputs })
    }
}

impl System for Aepq {
    fn outputs(&self) -> usize {
        self.config.hidden
    }

    fn weights(&self) -> Vec<Weight> {
        let (h, width, seed) = (self.config.hidden, self.shape.width(), self.config.seed);
        let layer = |inputs, outputs, number| Weight::layer(inputs, outputs, Init::Linear, seed, number).to_vec();
        let words = Weight::normal([self.shape.books() * self.shape.words(), self.shape.dim()], seed, 1);
        [layer(h, width, 0), vec![words], layer(width, h, 2), layer(h, self.inputs, 3)].concat()
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let z = linear(relu(a), &w[0], &w[1]);
        let h = quantize(z, w[2].clone(), self.shape, self.config.tau, &batch.draws);
        (two_layers(h, &w[3..]) - batch.target()).square().mean()
    }

    fn layers(&self, w: &[Weight]) -> Result<Vec<Dense>> {
        Ok(vec![dense(&w[0], &w[1])?])
    }

    fn books(&self, w: &[Weight], _: &Matrix) -> Result<(Codebooks, Distance)> {
        Ok((Codebooks::new(self.shape, w[2].values.clone())?, Distance::Norm))
    }
}

/// The soft code of `z [n, books dim]` by `words [books words, dim]`: `[n, books dim]`.
fn quantize(z: T2, words: T2, shape: CodeShape, tau: f64, draws: &Draws) -> T2 {
    let [n, width] = z.dims();
    let (books, k, dim) = (shape.books(), shape.words(), shape.dim());
    let z: Tensor<Graph, 3> = z.reshape([n, books, dim]).swap_dims(0, 1);
    let c: Tensor<Graph, 3> = words.reshape([books, k, dim]);
    // |z|^2 is the same for all words of a book and falls out of the softmax.
    let near = z.matmul(c.clone().swap_dims(1, 2)) * 2.0 - c.clone().square().sum_dim(2).swap_dims(1, 2);
    let uniform = draws.uniform(books * n, k).reshape([books, n, k]);
    let gumbel = ((uniform + 1e-20).log().neg() + 1e-20).log().neg();
    let v = softmax(((softmax(near, 2) + FLOOR).log() + gumbel) / tau, 2);
    v.matmul(c).swap_dims(0, 1).reshape([n, width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{tensor, values};

    #[test]
    fn soft_codes_lie_among_the_words_and_harden_with_the_temperature() {
        let shape = CodeShape::new(2, 2, 1).unwrap();
        let words = || tensor(vec![-10.0, 10.0, -20.0, 20.0], 4, 1);
        let z = || tensor(vec![9.0, -19.0, -9.0, 19.0], 2, 2);
        let hard = values(quantize(z(), words(), shape, 1e-2, &Draws::new(0, 0)).inner());
        assert!(hard.iter().zip([10.0, -20.0, -10.0, 20.0]).all(|(a, b)| (a - b).abs() < 1e-3), "{hard:?}");
        // At a high temperature every word has half a share.
        let soft = values(quantize(z(), words(), shape, 1e4, &Draws::new(0, 0)).inner());
        assert!(soft.iter().all(|v| v.abs() < 0.2), "{soft:?}");
    }
}
