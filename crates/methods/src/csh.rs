//! CSH: contrastive Bernoulli hashing.
//!
//! ```text
//! pi = sigmoid(W2 relu(W1 x + b1) + b2);  code = sign(pi - u), u uniform, straight-through gradient
//! loss = contrast of the codes of two views
//! bit_i = [pi_i > 1/2]
//! ```

use burn_tensor::activation::{relu, sigmoid};
use engine::Result;
use engine::model::Dense;

use crate::config::MethodConfig;
use crate::gradient::GradientMethod;
use crate::graph::{Init, Loss, T2, Weight, bernoulli, contrast, dense, linear};
use crate::learn::{Batch, LearnedMethod};
use crate::method::Reads;

pub const METHOD: GradientMethod = GradientMethod {
    reads: Reads { terms: false, token_states: false, views: true, validation: true },
    options: &["hidden"],
    defaults: MethodConfig::like_micpq,
    assumptions: "threshold drawn uniformly in training and 1/2 in use, no divergence term",
    ..GradientMethod::new("csh", |config, _| Ok(Box::new(Csh::new(config))))
};

pub struct Csh {
    config: MethodConfig,
}

impl Csh {
    pub fn new(config: &MethodConfig) -> Self {
        Csh { config: config.clone() }
    }
}

impl LearnedMethod for Csh {
    fn outputs(&self) -> usize {
        self.config.hidden
    }

    fn weights(&self) -> Vec<Weight> {
        Weight::layer(self.config.hidden, self.config.bits, Init::Linear, self.config.seed, 0).to_vec()
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let pi = sigmoid(linear(relu(a), &w[0], &w[1]));
        // From 0 and 1 to -1 and +1. This doubles the gradient; Adam ignores the scale.
        let code = bernoulli(pi, &batch.draws) * 2.0 - 1.0;
        contrast(code, self.config.contrast_temperature)
    }

    fn layers(&self, w: &[Weight]) -> Result<Vec<Dense>> {
        Ok(vec![dense(&w[0], &w[1])?])
    }
}
