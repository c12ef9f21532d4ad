//! Two stages: a network trained by the contrastive loss alone, then product quantization of its output.
//!
//! ```text
//! z = W2 relu(W1 x + b1) + b2;  loss = contrast of two views' z;  then K-means in every slice of z
//! ```

use burn_tensor::activation::relu;
use engine::model::{CodeShape, Codebooks, Dense, Distance};
use engine::{Matrix, Result};

use crate::config::MethodConfig;
use crate::gradient::GradientMethod;
use crate::graph::{Init, Loss, T2, Weight, contrast, dense, linear};
use crate::learn::{Batch, LearnedMethod};
use crate::method::Reads;
use crate::pq;
use crate::quantization::sampled;

pub const METHOD: GradientMethod = GradientMethod {
    reads: Reads { terms: false, token_states: false, views: true, validation: true },
    options: &["dim", "iterations", "sample", "hidden"],
    defaults: MethodConfig::like_micpq,
    assumptions: "MICPQ's network and views with the contrastive loss alone, then K-means in every slice",
    ..GradientMethod::new("two-stage", |config, _| Ok(Box::new(TwoStage::new(config)?)))
};

pub struct TwoStage {
    config: MethodConfig,
    shape: CodeShape,
}

impl TwoStage {
    pub fn new(config: &MethodConfig) -> Result<Self> {
        Ok(TwoStage { config: config.clone(), shape: CodeShape::new(config.bits / 4, 16, config.dim)? })
    }
}

impl LearnedMethod for TwoStage {
    fn outputs(&self) -> usize {
        self.config.hidden
    }

    fn weights(&self) -> Vec<Weight> {
        Weight::layer(self.config.hidden, self.shape.width(), Init::Linear, self.config.seed, 0).to_vec()
    }

    fn loss(&self, a: T2, w: &[T2], _: &Batch) -> Loss {
        contrast(linear(relu(a), &w[0], &w[1]), self.config.contrast_temperature)
    }

    fn layers(&self, w: &[Weight]) -> Result<Vec<Dense>> {
        Ok(vec![dense(&w[0], &w[1])?])
    }

    fn codebooks(&self, _: &[Weight], projected: &Matrix) -> Result<(Codebooks, Distance)> {
        let sample = sampled(projected, self.config.sample, self.config.seed);
        let (codewords, _) = pq::codewords(&sample, self.shape, self.config.iterations, self.config.seed, None);
        Ok((Codebooks::new(self.shape, codewords)?, Distance::Squared))
    }
}
