//! WISH: a topic vector per bit, with a penalty that keeps the topics orthogonal.
//!
//! ```text
//! q = sigmoid(W x + b);  bits ~ Bernoulli(q), straight-through gradient
//! t = bits T,  T [bits, topics];  p(term | t) = softmax(t E + beta)
//! loss = -log p(x | t) + kl_weight KL(Bernoulli(q) || fair coins) + orthogonal_weight |T T' - I|^2
//! bit_i = [q_i > 1/2]
//! ```

use burn_tensor::activation::sigmoid;

use crate::config::MethodConfig;
use crate::decoder;
use crate::gradient::GradientMethod;
use crate::graph::{Loss, T2, Weight, bernoulli, kl_to_fair_coin, tensor};
use crate::learn::{Batch, LearnedMethod};
use crate::rotation::identity;

pub const METHOD: GradientMethod = GradientMethod {
    options: &["topics", "orthogonal_weight", "kl_weight", "decoder_init"],
    ..GradientMethod::generative("wish", |config, inputs| Ok(Box::new(Wish::new(config, inputs))))
};

pub struct Wish {
    config: MethodConfig,
    inputs: usize,
}

impl Wish {
    pub fn new(config: &MethodConfig, inputs: usize) -> Self {
        Wish { config: config.clone(), inputs }
    }
}

impl LearnedMethod for Wish {
    fn outputs(&self) -> usize {
        self.config.bits
    }

    fn weights(&self) -> Vec<Weight> {
        let (m, topics, seed) = (self.config.bits, self.config.topics, self.config.seed);
        let decoder = decoder::weights(topics, self.inputs, decoder::init(&self.config), seed, 3);
        [vec![Weight::uniform([m, topics], 0.0, 1.0, seed, 0)], decoder.to_vec()].concat()
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let bits = bernoulli(sigmoid(a.clone()), &batch.draws);
        decoder::reconstruction_loss(bits.matmul(w[0].clone()), &w[1], &w[2], batch)
            + kl_to_fair_coin(a) * self.config.kl_weight
            + overlap(w[0].clone()) * self.config.orthogonal_weight
    }
}

/// `|T T' - I|^2`, the sum of all squares.
fn overlap(topics: T2) -> Loss {
    let m = topics.dims()[0];
    let unit = tensor(identity(m).as_slice().to_vec(), m, m);
    (topics.clone().matmul(topics.transpose()) - unit).square().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::number;

    #[test]
    fn overlap_equals_values_computed_by_hand() {
        assert!(number(&overlap(tensor(vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0], 2, 3))).abs() < 1e-6);
        // Rows (1, 1) and (1, 0): products 2, 1, 1, 1 against 1, 0, 0, 1.
        assert!((number(&overlap(tensor(vec![1.0, 1.0, 1.0, 0.0], 2, 2))) - 3.0).abs() < 1e-6);
    }
}
