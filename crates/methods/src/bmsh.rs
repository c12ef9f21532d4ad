//! BMSH: a mixture of Bernoulli distributions as the prior of the bits.
//!
//! ```text
//! q = sigmoid(W x + b);  r = softmax(V y + d): the component of the mixture a document comes from. Of terms, x says which are
//! in the document, and y has their tf-idf weights; of embeddings, y = x.
//! code as in NASH;  prior: component c with pi = softmax(theta), bits Bernoulli(gamma_c), gamma = sigmoid(Gamma)
//! KL = sum_c r_c (ln r_c - ln pi_c) + sum_c r_c sum_i KL(Bernoulli(q_i) || Bernoulli(gamma_ci))
//! loss = -log p(x | code) + kl_weight KL
//! bit_i = [q_i > 1/2]
//! ```

use burn_tensor::activation::{log_sigmoid, log_softmax, sigmoid};

use crate::config::MethodConfig;
use crate::decoder;
use crate::gradient::GradientMethod;
use crate::graph::{Init, Loss, T2, Weight, negative_entropy};
use crate::learn::{Batch, LearnedMethod};
use crate::nash::{noise_weights, noisy_bits};

/// Initial values as in the re-implementation the published tables come from.
const INIT: Init = Init::Uniform(0.1);

pub const METHOD: GradientMethod = GradientMethod {
    options: &["components", "noise_hidden", "kl_weight"],
    ..GradientMethod::generative("bmsh", |config, inputs| Ok(Box::new(Bmsh::new(config, inputs))))
};

pub struct Bmsh {
    config: MethodConfig,
    inputs: usize,
}

impl Bmsh {
    pub fn new(config: &MethodConfig, inputs: usize) -> Self {
        Bmsh { config: config.clone(), inputs }
    }
}

impl LearnedMethod for Bmsh {
    fn outputs(&self) -> usize {
        self.config.bits
    }

    fn weighted_outputs(&self) -> usize {
        self.config.components
    }

    fn init(&self) -> Init {
        INIT
    }

    fn weights(&self) -> Vec<Weight> {
        let (m, parts, seed) = (self.config.bits, self.config.components, self.config.seed);
        let decoder = decoder::weights(m, self.inputs, INIT, seed, 3);
        let prior = [Weight::uniform([1, parts], -0.1, 0.1, seed, 4), Weight::uniform([parts, m], -0.1, 0.1, seed, 5)];
        [noise_weights(&self.config, INIT), decoder.to_vec(), prior.to_vec()].concat()
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let (m, all) = (self.config.bits, self.config.bits + self.config.components);
        let n = a.dims()[0];
        let logits = a.clone().slice([0..n, 0..m]);
        let parts = a.slice([0..n, m..all]);
        let code = noisy_bits(sigmoid(logits.clone()), &w[..4], batch);
        decoder::reconstruction_loss(code, &w[4], &w[5], batch)
            + divergence(logits, parts, &w[6], &w[7]) * self.config.kl_weight
    }
}

/// The divergence from the mixture with logits `theta [1, parts]` and `gamma [parts, bits]`, mean over documents.
fn divergence(logits: T2, parts: T2, theta: &T2, gamma: &T2) -> Loss {
    let n = logits.dims()[0] as f64;
    let log_r = log_softmax(parts, 1);
    let r = log_r.clone().exp();
    let of_part = r.clone() * (log_r - log_softmax(theta.clone(), 1));
    let q = sigmoid(logits.clone());
    // sum_i KL = -H(q) - q . ln gamma_c - (1 - q) . ln(1 - gamma_c): [n, parts] in two products.
    let (log_one, log_zero) = (log_sigmoid(gamma.clone()).transpose(), log_sigmoid(gamma.clone().neg()).transpose());
    let cross = q.clone().matmul(log_one) + (q.neg() + 1.0).matmul(log_zero);
    let of_bits = negative_entropy(logits).sum() - (r * cross).sum();
    (of_part.sum() + of_bits) / n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{number, tensor};

    #[test]
    fn divergence_equals_the_sum_written_out() {
        let (logits, parts) = (vec![0.3f32, -1.0, 2.0, 0.5], vec![0.2f32, 1.0, -0.4, 0.1, 0.0, 0.7]);
        let (theta, gamma) = (vec![0.5f32, -0.5, 0.0], vec![1.0f32, -1.0, 0.2, 0.3, -2.0, 0.0]);
        let found = number(&divergence(
            tensor(logits.clone(), 2, 2),
            tensor(parts.clone(), 2, 3),
            &tensor(theta.clone(), 1, 3),
            &tensor(gamma.clone(), 3, 2),
        ));
        let sig = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        let soft = |x: &[f32]| {
            let e: Vec<f64> = x.iter().map(|v| f64::from(*v).exp()).collect();
            let s: f64 = e.iter().sum();
            e.into_iter().map(|v| v / s).collect::<Vec<_>>()
        };
        let pi = soft(&theta);
        let mut expected = 0.0;
        for d in 0..2 {
            let r = soft(&parts[d * 3..d * 3 + 3]);
            for c in 0..3 {
                expected += r[c] * (r[c] / pi[c]).ln();
                for i in 0..2 {
                    let (q, g) = (sig(logits[d * 2 + i]), sig(gamma[c * 2 + i]));
                    expected += r[c] * (q * (q / g).ln() + (1.0 - q) * ((1.0 - q) / (1.0 - g)).ln());
                }
            }
        }
        assert!((found - expected / 2.0).abs() < 1e-5, "{found} {expected}");
    }
}
