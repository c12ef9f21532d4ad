//! NASH: a Bernoulli variational autoencoder with straight-through bits and noise that depends on the document.
//!
//! ```text
//! q = sigmoid(W x + b);  bits ~ Bernoulli(q), straight-through gradient
//! code = bits + sigma(q) e,  sigma = exp(two layers of q) / 2
//! loss = -log p(x | code) + kl_weight KL(Bernoulli(q) || fair coins)
//! bit_i = [q_i > 1/2]
//! ```

use burn_tensor::activation::sigmoid;

use crate::config::MethodConfig;
use crate::decoder;
use crate::gradient::GradientMethod;
use crate::graph::{Init, Loss, T2, Weight, bernoulli, kl_to_fair_coin, two_layers};
use crate::learn::{Batch, LearnedMethod};

pub const METHOD: GradientMethod = GradientMethod {
    options: &["noise_hidden", "kl_weight", "decoder_init"],
    defaults: |base| MethodConfig { learning_rate: 3e-3, ..base },
    ..GradientMethod::generative("nash", |config, inputs| Ok(Box::new(Nash::new(config, inputs))))
};

pub struct Nash {
    config: MethodConfig,
    inputs: usize,
}

impl Nash {
    pub fn new(config: &MethodConfig, inputs: usize) -> Self {
        Nash { config: config.clone(), inputs }
    }
}

/// Weights of the two layers that set the noise.
pub(crate) fn noise_weights(config: &MethodConfig, init: Init) -> Vec<Weight> {
    let (m, h, seed) = (config.bits, config.noise_hidden, config.seed);
    [Weight::layer(m, h, init, seed, 10), Weight::layer(h, m, init, seed, 11)].concat()
}

/// Bits drawn from `q`, with noise whose scale two layers compute from `q`.
pub(crate) fn noisy_bits(q: T2, w: &[T2], batch: &Batch) -> T2 {
    let [n, m] = q.dims();
    let sigma = two_layers(q.clone(), w).exp() * 0.5;
    bernoulli(q, &batch.draws) + sigma * batch.draws.normal(n, m)
}

impl LearnedMethod for Nash {
    fn outputs(&self) -> usize {
        self.config.bits
    }

    fn weights(&self) -> Vec<Weight> {
        let decoder = decoder::weights(self.config.bits, self.inputs, decoder::init(&self.config), self.config.seed, 3);
        [noise_weights(&self.config, Init::Linear), decoder.to_vec()].concat()
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let code = noisy_bits(sigmoid(a.clone()), &w[..4], batch);
        decoder::reconstruction_loss(code, &w[4], &w[5], batch) + kl_to_fair_coin(a) * self.config.kl_weight
    }
}
