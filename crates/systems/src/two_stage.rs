//! Two stages: a network trained by contrast alone, then product quantization of what it gives.
//!
//! ```text
//! z = W2 relu(W1 x + b1) + b2;  loss = contrast of two views' z;  then K-means in every slice of z
//! ```

use burn_tensor::activation::relu;
use micpq::model::{CodeShape, Codebooks, Dense, Distance};
use micpq::{Matrix, Result};

use crate::config::SystemConfig;
use crate::graph::{Init, Loss, T2, Weight, contrast, dense, linear};
use crate::job::sampled;
use crate::learn::{Batch, System};
use crate::pq;

/// The system.
pub struct TwoStage {
    config: SystemConfig,
    shape: CodeShape,
}

impl TwoStage {
    /// For any inputs.
    pub fn new(config: &SystemConfig) -> Result<Self> {
        Ok(TwoStage { config: config.clone(), shape: CodeShape::new(config.bits / 4, 16, config.dim)? })
    }
}

impl System for TwoStage {
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

    fn books(&self, _: &[Weight], refined: &Matrix) -> Result<(Codebooks, Distance)> {
        let sample = sampled(refined, self.config.sample, self.config.seed);
        let (words, _) = pq::books(&sample, self.shape, self.config.iterations, self.config.seed, None);
        Ok((Codebooks::new(self.shape, words)?, Distance::Squared))
    }
}
