//! DHIM: codes of parts of a text and of the whole text that know of each other.
//!
//! ```text
//! l_t = relu(convolution of token states at t);  g = mean_t l_t;  x = the state of [CLS]
//! code(v) ~ Bernoulli(sigmoid((W v + b) / sharpness)), gradient passed on: of every l_t, of g and of x by the same W
//! s(g, c) = sigmoid((code(g) V) . c);  own pairs: -softplus(-s), pairs with other texts: -softplus(s), mean over the others
//! loss = -(that of code(l_t) by V_local) - regulariser_weight (that of code(x) by V_global)
//! bit_i = [(W g + b)_i > 0]
//! ```
//! The sigmoid inside the softplus is the released code's, which drops out a tenth of the encoder from the second epoch on and so
//! encodes the corpus anew in every epoch; here token states are clean, or of a few `passes` by turns. Padding has none here.
//! States are brought to mean 0 and variance 1 (ours: without it bert-base's collapse; `inputs.rs` says how).

use burn_ndarray::NdArrayDevice;
use burn_tensor::activation::{relu, sigmoid, softplus};
use burn_tensor::{IndexingUpdateOp, Int, Tensor, TensorData};
use micpq::Result;
use micpq::encoder::WINDOW;
use micpq::model::Dense;

use crate::config::SystemConfig;
use crate::entry::Span;
use crate::graph::{Graph, Init, Loss, T2, Weight, bernoulli, dense, linear, tensor};
use crate::learn::{Batch, System};

/// Sizes of the filters, in tokens.
const SIZES: [usize; 3] = [1, 3, 5];

/// The system.
pub struct Dhim {
    config: SystemConfig,
    width: usize,
}

impl Dhim {
    /// For token states of so many values. The text's vector has as many: a third of the filters of each size, so that
    /// one map serves it and the state of `[CLS]`.
    pub fn new(config: &SystemConfig, width: usize) -> Self {
        Dhim { config: config.clone(), width }
    }

    /// Filters of a size, the last size taking what does not divide.
    fn filters(&self, size: usize) -> std::ops::Range<usize> {
        let third = self.width / SIZES.len();
        match SIZES.iter().position(|s| *s == size) {
            Some(2) => 2 * third..self.width,
            place => place.unwrap_or(0) * third..(place.unwrap_or(0) + 1) * third,
        }
    }

    fn code(&self, v: T2, w: &[T2], batch: &Batch) -> T2 {
        bernoulli(sigmoid(linear(v, &w[0], &w[1]) / self.config.sharpness), &batch.draws)
    }
}

impl System for Dhim {
    fn outputs(&self) -> usize {
        self.width
    }

    fn weights(&self) -> Vec<Weight> {
        let (m, seed) = (self.config.bits, self.config.seed);
        let bound = 1.0 / (m as f32).sqrt();
        let square = |number| Weight::uniform([m, m], -bound, bound, seed, number);
        [Weight::layer(self.width, m, Init::Linear, seed, 0).to_vec(), vec![square(1), square(2)]].concat()
    }

    // The first layer reads five tokens; a filter of one or three reads those in the middle.
    fn spans(&self) -> Option<Vec<Span>> {
        let span = |size: usize| {
            let (centre, reach) = (WINDOW / 2, size / 2);
            Span {
                inputs: (centre - reach) * self.width..(centre + reach + 1) * self.width,
                outputs: self.filters(size),
                // First values are drawn for five tokens; fewer inputs have larger ones.
                scale: (WINDOW as f32 / size as f32).sqrt(),
            }
        };
        Some(SIZES.map(span).to_vec())
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let (lengths, firsts) = batch.tokens();
        let n = lengths.len();
        let local = relu(a);
        // Which text a part is of, and what it counts for in the text's mean.
        let owners: Vec<i64> = (0..n).flat_map(|i| std::iter::repeat_n(i as i64, lengths[i])).collect();
        let shares: Vec<f32> = lengths.iter().flat_map(|&l| std::iter::repeat_n(1.0 / l as f32, l)).collect();
        let shares = tensor(shares, owners.len(), 1);
        let empty = tensor(vec![0.0; n * self.width], n, self.width);
        let global = empty.select_assign(0, whole(&owners), local.clone() * shares, IndexingUpdateOp::Add);
        let code = self.code(global, w, batch);
        let parts = agreement(code.clone().matmul(w[2].clone()), self.code(local, w, batch), &owners);
        let first = self.code(tensor(firsts.to_vec(), n, self.width), w, batch);
        let texts: Vec<i64> = (0..n as i64).collect();
        let regulariser = agreement(code.matmul(w[3].clone()), first, &texts);
        (parts + regulariser * self.config.regulariser_weight).neg()
    }

    fn layers(&self, w: &[Weight]) -> Result<Vec<Dense>> {
        Ok(vec![dense(&w[0], &w[1])?])
    }
}

/// Mean over `other [k, m]` of the Jensen-Shannon bound against `global [n, m]`, of which `owners [k]` are their own.
fn agreement(global: T2, other: T2, owners: &[i64]) -> Loss {
    let [n, k] = [global.dims()[0], other.dims()[0]];
    let own = sigmoid((global.clone().select(0, whole(owners)) * other.clone()).sum_dim(1));
    let all = sigmoid(global.matmul(other.transpose()));
    // softplus(-s) = softplus(s) - s; those of others are all but the own.
    let own_wrong = softplus(own.clone(), 1.0).sum();
    let right = own_wrong.clone() - own.sum();
    let wrong = (softplus(all, 1.0).sum() - own_wrong) / (n.max(2) - 1) as f64;
    (right + wrong).neg() / k as f64
}

/// Whole numbers as a tensor.
fn whole(values: &[i64]) -> Tensor<Graph, 1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &NdArrayDevice::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::number;
    use crate::method::Method;

    #[test]
    fn agreement_by_hand() {
        // Two texts, three parts: the first two parts belong to the first.
        let global = tensor(vec![1.0, 0.0, 0.0, 1.0], 2, 2);
        let other = tensor(vec![1.0, 0.0, 1.0, 1.0, 0.0, 1.0], 3, 2);
        let sig = |x: f64| 1.0 / (1.0 + (-x).exp());
        let soft = |x: f64| (1.0 + x.exp()).ln();
        // Scores: first text 1, 1, 0; second 0, 1, 1.
        let right = soft(-sig(1.0)) * 3.0;
        let wrong = soft(sig(0.0)) * 2.0 + soft(sig(1.0));
        assert!((number(&agreement(global, other, &[0, 0, 1])) + (right + wrong) / 3.0).abs() < 1e-5);
    }

    #[test]
    fn small_filters_see_few_tokens() {
        let system = Dhim::new(&SystemConfig::new(Method::Dhim, 16), 7);
        let spans = system.spans().unwrap();
        // Filters, and the tokens they read.
        let seen: Vec<_> = spans.into_iter().map(|s| (s.outputs, s.inputs.start / 7..s.inputs.end / 7)).collect();
        assert_eq!(seen, [(0..2, 2..3), (2..4, 1..4), (4..7, 0..5)]);
    }
}
