//! AMMI: maximises the mutual information of document and bits. A prior that is trained against the bits estimates their
//! entropy.
//!
//! ```text
//! p = sigmoid(W x + b): independent bits;  prior q: every bit depends on the three before it
//! CE(p, q) = -mean over documents of sum_i sum_w p(w_i w_i-1 w_i-2 w_i-3) ln q_i(w_i | w_i-1 w_i-2 w_i-3)
//! prior_steps times: q <- q - d CE(p, q);  then p <- p - d (H(p) - entropy_weight CE(p, q))
//! bit_i = [p_i > 1/2]
//! ```

use burn_tensor::activation::{log_sigmoid, sigmoid};

use crate::config::MethodConfig;
use crate::gradient::GradientMethod;
use crate::graph::{Init, Loss, T2, Weight, negative_entropy, tensor, values};
use crate::learn::{Batch, LearnedMethod};

/// Number of previous bits that a bit of the prior depends on.
const ORDER: usize = 3;
/// Largest norm of the prior's gradient.
const CLIP: f64 = 10.0;

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
        Init::Uniform(0.1)
    }

    // Logits of the prior, a row for each of the eight histories: [8, bits].
    fn weights(&self) -> Vec<Weight> {
        vec![Weight::uniform([1 << ORDER, self.config.bits], -0.1, 0.1, self.config.seed, 0)]
    }

    fn adapt(&self, a: &T2, weights: &mut [Weight], _: &Batch) {
        let p = sigmoid(a.clone()).detach();
        let histories = histories(&p);
        let prior = &mut weights[0];
        // Every batch starts Adam anew.
        prior.reset_moments();
        for number in 1..=self.config.prior_steps as u64 {
            let leaf = prior.leaf();
            let gradients = cross_entropy(&p, &histories, leaf.clone()).backward();
            let mut gradient = values(leaf.grad(&gradients).expect("the prior is in its loss"));
            let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let scale = (CLIP / (length + 1e-6)).min(1.0) as f32;
            gradient.iter_mut().for_each(|g| *g *= scale);
            prior.update(&gradient, self.config.prior_rate, number);
        }
    }

    fn loss(&self, a: T2, w: &[T2], _: &Batch) -> Loss {
        let n = a.dims()[0] as f64;
        let own = negative_entropy(a.clone()).sum().neg() / n;
        let p = sigmoid(a);
        // Only `adapt` updates the prior.
        let cross = cross_entropy(&p, &histories(&p), w[0].clone().detach());
        own - cross * self.config.entropy_weight
    }
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
            prior_steps: 400,
            prior_rate: 0.1,
            ..crate::config::MethodConfig::named("ammi", 16).unwrap()
        });
        let p = sigmoid(a.clone());
        let mut weights = vec![Weight::uniform([8, 4], -0.1, 0.1, 0, 0)];
        let of = |w: &Weight| number(&cross_entropy(&p, &histories(&p), w.leaf()));
        let before = of(&weights[0]);
        let rows = crate::entry::Rows::Terms(Vec::new());
        network.adapt(&a, &mut weights, &Batch::of(&rows, 0));
        let after = of(&weights[0]);
        let entropy = std::f64::consts::LN_2;
        assert!(before > entropy && after >= entropy - 1e-3 && after < entropy + 0.05, "{before} {after}");
    }
}
