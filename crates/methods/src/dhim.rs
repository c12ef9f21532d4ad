//! DHIM: maximises the mutual information between the codes of a text's parts and the code of the whole text.
//!
//! ```text
//! l_t = relu(convolution of token states at t);  g = mean_t l_t;  x = the state of [CLS]
//! code(v) ~ Bernoulli(sigmoid((W v + b) / sharpness)), straight-through gradient; l_t, g and x share W
//! s(g, c) = sigmoid((code(g) V + d) . c);  own pairs: -softplus(-s); pairs with other texts: -softplus(s), mean over the others
//! bound: mean over texts of the mean over the parts c of a text
//! loss = -(bound of code(l_t) by V_local, d_local) - regulariser_weight (bound of code(x) by V_global, d_global)
//! bit_i = [(W g + b)_i > 0]
//! ```
//! The sigmoid inside the softplus is that of the released code. That code has a dropout of 0.1 in the encoder from the second epoch
//! on, so it encodes the corpus anew in every epoch; here token states are clean, or come from a few `passes` in turn. Padding is
//! left out here. States are scaled to mean 0 and variance 1 (ours: without it those of bert-base collapse, see `inputs.rs`).

use burn_ndarray::NdArrayDevice;
use burn_tensor::activation::{relu, sigmoid, softplus};
use burn_tensor::{IndexingUpdateOp, Int, Tensor, TensorData};
use engine::Result;
use engine::encoder::WINDOW;
use engine::model::Dense;

use crate::config::MethodConfig;
use crate::entry::Span;
use crate::gradient::GradientMethod;
use crate::graph::{Graph, Init, Loss, T2, Weight, bernoulli, dense, linear, tensor};
use crate::learn::{Batch, LearnedMethod};
use crate::method::Reads;

/// Sizes of the filters, in tokens.
const SIZES: [usize; 3] = [1, 3, 5];

pub const METHOD: GradientMethod = GradientMethod {
    reads: Reads { terms: false, token_states: true, views: false, validation: true },
    options: &["sample", "sharpness", "regulariser_weight", "passes"],
    // Ours: at the published rate of 1e-3 the best epoch is the first (bert-base, 2,000 documents of AGNews: 64 against 71).
    defaults: |base| MethodConfig { batch: 64, learning_rate: 3e-4, ..base },
    assumptions: "token states without dropout, padding left out, scaled to mean 0 and variance 1; beta weights the agreement with [CLS]",
    // 2: the discriminators' biases, and a mean per text.
    revision: 2,
    ..GradientMethod::new("dhim", |config, inputs| Ok(Box::new(Dhim::new(config, inputs / WINDOW))))
};

pub struct Dhim {
    config: MethodConfig,
    width: usize,
}

impl Dhim {
    /// For token states of `width` values. There are as many filters, a third of each size, so that one map serves the pooled
    /// filters and the state of `[CLS]`.
    pub fn new(config: &MethodConfig, width: usize) -> Self {
        Dhim { config: config.clone(), width }
    }

    /// The filters of a size; the last size takes the remainder.
    fn filters(&self, size: usize) -> std::ops::Range<usize> {
        let third = self.width / SIZES.len();
        match SIZES.iter().position(|s| *s == size) {
            Some(2) => 2 * third..self.width,
            position => position.unwrap_or(0) * third..(position.unwrap_or(0) + 1) * third,
        }
    }

    fn code(&self, v: T2, w: &[T2], batch: &Batch) -> T2 {
        bernoulli(sigmoid(linear(v, &w[0], &w[1]) / self.config.sharpness), &batch.draws)
    }
}

impl LearnedMethod for Dhim {
    fn outputs(&self) -> usize {
        self.width
    }

    fn weights(&self) -> Vec<Weight> {
        let (m, seed) = (self.config.bits, self.config.seed);
        let layer = |inputs, number| Weight::layer(inputs, m, Init::Linear, seed, number);
        [layer(self.width, 0), layer(m, 1), layer(m, 2)].concat()
    }

    // The first layer reads five tokens; a filter of one or three reads those in the middle.
    fn spans(&self) -> Option<Vec<Span>> {
        let span = |size: usize| {
            let (centre, reach) = (WINDOW / 2, size / 2);
            Span {
                inputs: (centre - reach) * self.width..(centre + reach + 1) * self.width,
                outputs: self.filters(size),
                // Initial values are drawn for five tokens; filters with fewer inputs have larger ones.
                scale: (WINDOW as f32 / size as f32).sqrt(),
            }
        };
        Some(SIZES.map(span).to_vec())
    }

    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss {
        let (lengths, firsts) = batch.tokens();
        let n = lengths.len();
        let local = relu(a);
        // The text of each part, and its weight in the text's mean.
        let owners: Vec<i64> = (0..n).flat_map(|i| std::iter::repeat_n(i as i64, lengths[i])).collect();
        let weights: Vec<f32> = lengths.iter().flat_map(|&l| std::iter::repeat_n(1.0 / l as f32, l)).collect();
        let weights = tensor(weights, owners.len(), 1);
        let empty = tensor(vec![0.0; n * self.width], n, self.width);
        let global = empty.select_assign(0, integers(&owners), local.clone() * weights, IndexingUpdateOp::Add);
        let code = self.code(global, w, batch);
        let parts = agreement(linear(code.clone(), &w[2], &w[3]), self.code(local, w, batch), &owners);
        let first = self.code(tensor(firsts.to_vec(), n, self.width), w, batch);
        let texts: Vec<i64> = (0..n as i64).collect();
        let regulariser = agreement(linear(code, &w[4], &w[5]), first, &texts);
        (parts + regulariser * self.config.regulariser_weight).neg()
    }

    fn layers(&self, w: &[Weight]) -> Result<Vec<Dense>> {
        Ok(vec![dense(&w[0], &w[1])?])
    }
}

/// The Jensen-Shannon bound of `other [k, m]` against `global [n, m]`; `owners [k]` are their texts. The mean runs over the parts
/// of a text, then over texts: a long text counts as much as a short one.
fn agreement(global: T2, other: T2, owners: &[i64]) -> Loss {
    let [n, k] = [global.dims()[0], other.dims()[0]];
    let mut counts = vec![0.0f32; n];
    owners.iter().for_each(|&text| counts[text as usize] += 1.0);
    // [1, k]
    let shares = tensor(owners.iter().map(|&text| 1.0 / (n as f32 * counts[text as usize])).collect(), 1, k);
    let own = sigmoid((global.clone().select(0, integers(owners)) * other.clone()).sum_dim(1)).transpose();
    let all = sigmoid(global.matmul(other.transpose()));
    // softplus(-s) = softplus(s) - s; pairs with other texts are all pairs but the own ones.
    let own_wrong = (softplus(own.clone(), 1.0) * shares.clone()).sum();
    let right = own_wrong.clone() - (own * shares.clone()).sum();
    let wrong = ((softplus(all, 1.0) * shares).sum() - own_wrong) / (n.max(2) - 1) as f64;
    (right + wrong).neg()
}

fn integers(values: &[i64]) -> Tensor<Graph, 1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &NdArrayDevice::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::number;

    #[test]
    fn agreement_equals_a_value_computed_by_hand() {
        // Two texts, three parts: the first two parts belong to the first.
        let global = tensor(vec![1.0, 0.0, 0.0, 1.0], 2, 2);
        let other = tensor(vec![1.0, 0.0, 1.0, 1.0, 0.0, 1.0], 3, 2);
        let sig = |x: f64| 1.0 / (1.0 + (-x).exp());
        let soft = |x: f64| (1.0 + x.exp()).ln();
        // Scores: first text 1, 1, 0; second 0, 1, 1. Each of the first two parts has half the weight of the third.
        let right = soft(-sig(1.0)) * (0.5 + 0.5 + 1.0);
        let wrong = soft(sig(0.0)) * (1.0 + 0.5) + soft(sig(1.0)) * 0.5;
        assert!((number(&agreement(global, other, &[0, 0, 1])) + (right + wrong) / 2.0).abs() < 1e-5);
    }

    #[test]
    fn discriminators_have_a_bias() {
        let network = Dhim::new(&MethodConfig::named("dhim", 16).unwrap(), 6);
        let weights = network.weights();
        let shapes: Vec<[usize; 2]> = weights.iter().map(|w| w.shape).collect();
        assert_eq!(shapes, [[6, 16], [1, 16], [16, 16], [1, 16], [16, 16], [1, 16]]);
        // The loss depends on both: their gradients are not zero.
        let rows = crate::entry::Rows::Terms(Vec::new());
        let state = |count: usize| (0..count * 6).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<f32>>();
        let batch = Batch::of_tokens(&rows, vec![3, 2], state(2), 1);
        let leaves: Vec<T2> = weights.iter().map(Weight::leaf).collect();
        let gradients = network.loss(tensor(state(5), 5, 6), &leaves, &batch).backward();
        for bias in [3, 5] {
            let gradient = crate::graph::values(leaves[bias].grad(&gradients).unwrap());
            assert!(gradient.iter().any(|g| g.abs() > 1e-4), "{gradient:?}");
        }
    }

    #[test]
    fn filters_read_one_three_and_five_tokens() {
        let network = Dhim::new(&MethodConfig::named("dhim", 16).unwrap(), 7);
        let spans = network.spans().unwrap();
        // Filters, and the tokens they read.
        let seen: Vec<_> = spans.into_iter().map(|s| (s.outputs, s.inputs.start / 7..s.inputs.end / 7)).collect();
        assert_eq!(seen, [(0..2, 2..3), (2..4, 1..4), (4..7, 0..5)]);
    }
}
