//! AMMI: maximises the mutual information of document and bits. A prior that is trained against the bits estimates their
//! entropy.
//!
//! ```text
//! p = sigmoid(W x + b): independent bits
//! prior q: every bit depends on the three before it; its logits are T U + c, T [bits, 400], U [400, 8]: an embedding of every bit
//! and a linear layer. A step moves them about ten times as far as a table of logits.
//! CE(p, q) = -mean over documents of sum_i sum_w p(w_i w_i-1 w_i-2 w_i-3) ln q_i(w_i | w_i-1 w_i-2 w_i-3)
//! prior_steps times: q <- q - d CE(p, q);  then p <- p - d (H(p) - entropy_weight CE(p, q))
//! bit_i = [p_i > 1/2]
//! ```

use burn_tensor::activation::{log_sigmoid, sigmoid};

use crate::config::MethodConfig;
use crate::gradient::GradientMethod;
use crate::graph::{Init, Loss, T2, Weight, linear, negative_entropy, tensor, values};
use crate::learn::{Batch, LearnedMethod};

/// Number of previous bits that a bit of the prior depends on.
const ORDER: usize = 3;
/// Width of the embedding of a bit in the prior.
const WIDTH: usize = 400;
/// Largest norm of the prior's gradient.
const CLIP: f64 = 10.0;

/// Initial values of encoder and prior in the re-implementation.
const INIT: Init = Init::Uniform(0.1);

pub const METHOD: GradientMethod = GradientMethod {
    options: &["entropy_weight", "prior_steps", "prior_rate"],
    defaults: |base| MethodConfig { learning_rate: 1e-2, ..base },
    // Published rate and batch were found on terms. On embeddings of bert-base they lose one to six points of AGNews.
    encoder_defaults: |config| MethodConfig { learning_rate: 1e-3, batch: 256, ..config },
    decoder: false,
    ..GradientMethod::generative("ammi", |config, _| Ok(Box::new(Ammi::new(config))))
};

pub struct Ammi {
    config: MethodConfig,
}

impl Ammi {
    pub fn new(config: &MethodConfig) -> Self {
        Ammi { config: config.clone() }
    }
}

impl LearnedMethod for Ammi {
    fn outputs(&self) -> usize {
        self.config.bits
    }

    fn init(&self) -> Init {
        INIT
    }

    // The prior: T [bits, 400], U [400, 8], c [1, 8].
    fn weights(&self) -> Vec<Weight> {
        let (bits, seed) = (self.config.bits, self.config.seed);
        let [embedding, _] = Weight::layer(bits, WIDTH, INIT, seed, 0);
        [vec![embedding], Weight::layer(WIDTH, 1 << ORDER, INIT, seed, 1).to_vec()].concat()
    }

    fn adapt(&self, a: &T2, weights: &mut [Weight], _: &Batch) {
        let p = sigmoid(a.clone()).detach();
        let histories = histories(&p);
        // Every batch starts Adam anew.
        weights.iter_mut().for_each(Weight::reset_moments);
        for number in 1..=self.config.prior_steps as u64 {
            let leaves: Vec<T2> = weights.iter().map(Weight::leaf).collect();
            let gradients = cross_entropy(&p, &histories, prior_logits(&leaves)).backward();
            let mut all: Vec<Vec<f32>> =
                leaves.iter().map(|leaf| values(leaf.grad(&gradients).expect("the prior is in its loss"))).collect();
            let length = all.iter().flatten().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let scale = (CLIP / (length + 1e-6)).min(1.0) as f32;
            for (weight, gradient) in weights.iter_mut().zip(&mut all) {
                gradient.iter_mut().for_each(|g| *g *= scale);
                weight.update(gradient, self.config.prior_rate, number);
            }
        }
    }

    fn loss(&self, a: T2, w: &[T2], _: &Batch) -> Loss {
        let n = a.dims()[0] as f64;
        let own = negative_entropy(a.clone()).sum().neg() / n;
        let p = sigmoid(a);
        // Only `adapt` updates the prior.
        let cross = cross_entropy(&p, &histories(&p), prior_logits(w).detach());
        own - cross * self.config.entropy_weight
    }
}

/// Logits of the prior, a row for each of the eight histories: `[8, bits]`.
fn prior_logits(w: &[T2]) -> T2 {
    linear(w[0].clone(), &w[1], &w[2]).transpose()
}

/// Probabilities of the eight histories of every bit, `[n, bits]` each. Bits before the first are 0.
fn histories(p: &T2) -> Vec<T2> {
    let [n, m] = p.dims();
    let before: Vec<T2> = (1..=ORDER)
        .map(|t| {
            let zeros = tensor(vec![0.0; n * t.min(m)], n, t.min(m));
            if t >= m { zeros } else { T2::cat(vec![zeros, p.clone().slice([0..n, 0..m - t])], 1) }
        })
        .collect();
    (0..1usize << ORDER)
        .map(|history| {
            let bits = before
                .iter()
                .enumerate()
                .map(|(t, one)| if history >> t & 1 == 1 { one.clone() } else { one.clone().neg() + 1.0 });
            bits.reduce(|a, b| a * b).expect("ORDER is above 0")
        })
        .collect()
}

/// `CE(p, q)` for a prior with logits `[8, bits]`.
fn cross_entropy(p: &T2, histories: &[T2], logits: T2) -> Loss {
    let [n, m] = p.dims();
    let each = histories.iter().enumerate().map(|(h, chance)| {
        let logit = logits.clone().slice([h..h + 1, 0..m]);
        let surprise = p.clone() * log_sigmoid(logit.clone()) + (p.clone().neg() + 1.0) * log_sigmoid(logit.neg());
        (chance.clone() * surprise).sum()
    });
    each.reduce(|a, b| a + b).expect("there are eight histories").neg() / n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::number;

    #[test]
    fn cross_entropy_equals_the_sum_over_all_histories() {
        let (p, logits) = (vec![0.2f32, 0.7, 0.9, 0.4, 0.5], (0..40).map(|i| (i as f32).sin()).collect::<Vec<_>>());
        let q = tensor(p.clone(), 1, 5);
        let found = number(&cross_entropy(&q, &histories(&q), tensor(logits.clone(), 8, 5)));
        let chance = |i: isize, one: bool| {
            let p = if i < 0 { 0.0 } else { f64::from(p[i as usize]) };
            if one { p } else { 1.0 - p }
        };
        let mut expected = 0.0;
        for i in 0..5isize {
            for w in 0..16usize {
                let product: f64 = (0..4).map(|t| chance(i - t as isize, w >> t & 1 == 1)).product();
                let logit = f64::from(logits[(w >> 1) * 5 + i as usize]);
                let one = 1.0 / (1.0 + (-logit).exp());
                expected -= product * if w & 1 == 1 { one.ln() } else { (1.0 - one).ln() };
            }
        }
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }

    #[test]
    fn cross_entropy_of_a_fitted_prior_reaches_the_entropy_from_above() {
        // Documents 1 0 1 0 and 0 1 0 1, half each: one bit of entropy, all of it in the first.
        let a = tensor([[9.0, -9.0, 9.0, -9.0], [-9.0, 9.0, -9.0, 9.0]].concat().repeat(4), 8, 4);
        let network = Ammi::new(&crate::config::MethodConfig {
            prior_steps: 100,
            bits: 4,
            ..crate::config::MethodConfig::named("ammi", 16).unwrap()
        });
        let p = sigmoid(a.clone());
        let mut weights = network.weights();
        let of = |w: &[Weight]| {
            let leaves: Vec<T2> = w.iter().map(Weight::leaf).collect();
            number(&cross_entropy(&p, &histories(&p), prior_logits(&leaves)))
        };
        let before = of(&weights);
        let rows = crate::entry::Rows::Terms(Vec::new());
        network.adapt(&a, &mut weights, &Batch::of(&rows, 0));
        let after = of(&weights);
        let entropy = std::f64::consts::LN_2;
        assert!(before > entropy && after >= entropy - 1e-3 && after < entropy + 0.05, "{before} {after}");
    }

    #[test]
    fn a_step_of_the_prior_equals_that_of_its_embedding_and_layer_by_hand() {
        // Two bits, one document; by the chain rule dT = dL U', dU = T' dL, dc = sums of dL, then Adam's first step.
        let config = MethodConfig { bits: 2, prior_steps: 1, ..MethodConfig::named("ammi", 16).unwrap() };
        let network = Ammi::new(&config);
        let mut weights = network.weights();
        assert_eq!(weights.iter().map(|w| w.shape).collect::<Vec<_>>(), [[2, 400], [400, 8], [1, 8]]);
        let start = weights.clone();
        let (t, u) = (&start[0].values, &start[1].values);
        let p = [0.8f64, 0.3];
        let a = tensor(p.map(|p| (p / (1.0 - p)).ln() as f32).to_vec(), 1, 2);
        // d CE / d logit of bit i after history h: chance of h times (q - p_i). Only bit 1 has a past that is not all zero.
        let mut slope = [[0.0f64; 8]; 2];
        for (i, h, chance) in [(0, 0, 1.0), (1, 0, 1.0 - p[0]), (1, 1, p[0])] {
            let logit: f64 = (0..400).map(|k| f64::from(t[i * 400 + k]) * f64::from(u[k * 8 + h])).sum();
            slope[i][h] = chance * (1.0 / (1.0 + (-logit).exp()) - p[i]);
        }
        network.adapt(&a, &mut weights, &Batch::of(&crate::entry::Rows::Terms(Vec::new()), 0));
        // Adam's first step is the rate against the sign of the gradient.
        let check = |moved: f32, before: f32, gradient: f64| {
            let expected = if gradient == 0.0 { 0.0 } else { -config.prior_rate * gradient.signum() };
            assert!(gradient.abs() < 1e-6 && gradient != 0.0 || (f64::from(moved - before) - expected).abs() < 1e-4);
        };
        for k in 0..400 {
            for i in 0..2 {
                let gradient: f64 = (0..8).map(|h| slope[i][h] * f64::from(u[k * 8 + h])).sum();
                check(weights[0].values[i * 400 + k], t[i * 400 + k], gradient);
            }
            for h in 0..8 {
                let gradient: f64 = (0..2).map(|i| slope[i][h] * f64::from(t[i * 400 + k])).sum();
                check(weights[1].values[k * 8 + h], u[k * 8 + h], gradient);
            }
        }
        (0..8).for_each(|h| check(weights[2].values[h], 0.0, slope[0][h] + slope[1][h]));
    }
}
