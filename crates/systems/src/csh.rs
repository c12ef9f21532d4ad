//! CSH: contrastive Bernoulli hashing.
//!
//! ```text
//! pi = sigmoid(W2 relu(W1 x + b1) + b2);  code = sign(pi - u), u uniform, gradient passed on to pi
//! loss = contrast of the codes of two views
//! bit_i = [pi_i > 1/2]
//! ```

use burn_tensor::activation::{relu, sigmoid};
use micpq::Result;
use micpq::model::Dense;

use crate::config::SystemConfig;
use crate::graph::{Init, Loss, T2, Weight, bernoulli, contrast, dense, linear};
use crate::learn::{Batch, System};

/// The system.
pub struct Csh {
    config: SystemConfig,
}

impl Csh {
    /// For any inputs.
    pub fn new(config: &SystemConfig) -> Self {
        Csh { config: config.clone() }
    }
}

impl System for Csh {
    fn outputs(&self) -> usize {
        self.config.hidden
    }

    fn weights(&self) -> Vec<Weight> {
        Weight::layer(self.config.hidden, self.config.bits, Init::Linear, self.config.seed, 0).to_vec()
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let pi = sigmoid(linear(relu(a), &w[0], &w[1]));
        // From 0 and 1 to -1 and +1; the gradient doubles with it, which Adam does not see.
        let code = bernoulli(pi, &batch.draws) * 2.0 - 1.0;
        contrast(code, self.config.contrast_temperature)
    }

    fn layers(&self, w: &[Weight]) -> Result<Vec<Dense>> {
        Ok(vec![dense(&w[0], &w[1])?])
    }
}
