//! AEPQ: MICPQ's quantizer, trained to reconstruct the embedding.
//!
//! ```text
//! z = W2 relu(W1 x + b1) + b2, cut into codebooks;  per codebook d_k = |z - c_k|^2, p = softmax(-d)
//! v = softmax((ln(p + 1e-9) + g) / tau), g Gumbel;  h = sum_k v_k c_k
//! loss = mean (decoder(h) - x)^2,  decoder: two layers, ReLU between
//! codeword = argmin_k d_k
//! ```
//! The paper names neither the decoder nor the noise. Ours: layers as wide as the encoder's, the clean embedding in and out.

use burn_tensor::Tensor;
use burn_tensor::activation::{relu, softmax};
use engine::model::{CodeShape, Codebooks, Dense, Distance};
use engine::{Matrix, Result};

use crate::config::MethodConfig;
use crate::gradient::GradientMethod;
use crate::graph::{Draws, Graph, Init, Loss, T2, Weight, dense, linear, two_layers};
use crate::learn::{Batch, LearnedMethod};

/// Added to a probability before its logarithm, as in the authors' code.
const FLOOR: f64 = 1e-9;

pub const METHOD: GradientMethod = GradientMethod {
    options: &["dim", "hidden", "tau"],
    defaults: MethodConfig::like_micpq,
    assumptions: "decoder of two layers as wide as the encoder's, the clean vector in and out, no mutual information",
    ..GradientMethod::new("aepq", |config, inputs| Ok(Box::new(Aepq::new(config, inputs)?)))
};

pub struct Aepq {
    config: MethodConfig,
    shape: CodeShape,
    inputs: usize,
}

impl Aepq {
    pub fn new(config: &MethodConfig, inputs: usize) -> Result<Self> {
        let shape = CodeShape::new(config.bits / 4, 16, config.dim)?;
        Ok(Aepq { config: config.clone(), shape, inputs })
    }
}

impl LearnedMethod for Aepq {
    fn outputs(&self) -> usize {
        self.config.hidden
    }

    fn weights(&self) -> Vec<Weight> {
        let (h, width, seed) = (self.config.hidden, self.shape.width(), self.config.seed);
        let layer = |inputs, outputs, number| Weight::layer(inputs, outputs, Init::Linear, seed, number).to_vec();
        let codewords =
            Weight::normal([self.shape.num_codebooks() * self.shape.codebook_size(), self.shape.dim()], seed, 1);
        [layer(h, width, 0), vec![codewords], layer(width, h, 2), layer(h, self.inputs, 3)].concat()
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let z = linear(relu(a), &w[0], &w[1]);
        let h = quantize(z, w[2].clone(), self.shape, self.config.tau, &batch.draws);
        (two_layers(h, &w[3..]) - batch.target()).square().mean()
    }

    fn layers(&self, w: &[Weight]) -> Result<Vec<Dense>> {
        Ok(vec![dense(&w[0], &w[1])?])
    }

    fn codebooks(&self, w: &[Weight], _: &Matrix) -> Result<(Codebooks, Distance)> {
        Ok((Codebooks::new(self.shape, w[2].values.clone())?, Distance::Norm))
    }
}

/// The soft code of `z [n, codebooks * dim]` by `codewords [codebooks * k, dim]`: `[n, codebooks * dim]`.
fn quantize(z: T2, codewords: T2, shape: CodeShape, tau: f64, draws: &Draws) -> T2 {
    let [n, width] = z.dims();
    let (codebooks, k, dim) = (shape.num_codebooks(), shape.codebook_size(), shape.dim());
    let z: Tensor<Graph, 3> = z.reshape([n, codebooks, dim]).swap_dims(0, 1);
    let c: Tensor<Graph, 3> = codewords.reshape([codebooks, k, dim]);
    // |z|^2 is the same for all codewords of a codebook and cancels in the softmax.
    let near = z.matmul(c.clone().swap_dims(1, 2)) * 2.0 - c.clone().square().sum_dim(2).swap_dims(1, 2);
    let uniform = draws.uniform(codebooks * n, k).reshape([codebooks, n, k]);
    let gumbel = ((uniform + 1e-20).log().neg() + 1e-20).log().neg();
    let v = softmax(((softmax(near, 2) + FLOOR).log() + gumbel) / tau, 2);
    v.matmul(c).swap_dims(0, 1).reshape([n, width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{tensor, values};

    #[test]
    fn soft_codes_become_codewords_at_low_temperature() {
        let shape = CodeShape::new(2, 2, 1).unwrap();
        let codewords = || tensor(vec![-10.0, 10.0, -20.0, 20.0], 4, 1);
        let z = || tensor(vec![9.0, -19.0, -9.0, 19.0], 2, 2);
        let hard = values(quantize(z(), codewords(), shape, 1e-2, &Draws::new(0, 0)).inner());
        assert!(hard.iter().zip([10.0, -20.0, -10.0, 20.0]).all(|(a, b)| (a - b).abs() < 1e-3), "{hard:?}");
        // At a high temperature both codewords have the same share.
        let soft = values(quantize(z(), codewords(), shape, 1e4, &Draws::new(0, 0)).inner());
        assert!(soft.iter().all(|v| v.abs() < 0.2), "{soft:?}");
    }
}
