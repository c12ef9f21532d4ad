//! Tensors with gradients, weights with Adam's moments, and reproducible random draws: losses are written in these.
//!
//! `burn`'s parts are used one by one (tensor, autodiff, the ndarray backend): its umbrella crate has modules, datasets and
//! optimisers that nothing here uses. The backend runs on one thread: methods train side by side, and equal seeds give equal
//! results. After a backward pass `burn-autodiff` 0.21 scans all graphs of the process and waits for those in use: eight models
//! whose backward pass is most of a step keep four cores busy, not eight.

use burn_autodiff::Autodiff;
use burn_ndarray::{NdArray, NdArrayDevice, NdArrayTensor};
use burn_tensor::activation::{log_sigmoid, log_softmax, relu};
use burn_tensor::{Tensor, TensorData};
use engine::Result;
use engine::model::Dense;
use rayon::prelude::*;
use std::cell::Cell;
use train::random::{Purpose, Stream};
use train::real::{Adam, Real};

pub type Graph = Autodiff<NdArray<f32>>;
/// A matrix with a gradient; a bias has one row.
pub type T2 = Tensor<Graph, 2>;
pub type Loss = Tensor<Graph, 1>;

pub fn tensor(values: Vec<f32>, rows: usize, cols: usize) -> T2 {
    Tensor::from_data(TensorData::new(values, [rows, cols]), &NdArrayDevice::default())
}

/// The values of a tensor, row by row. `into_data` walks a shared array value by value through its dynamic shape, which was two
/// thirds of a method's time.
pub fn values<const D: usize>(tensor: Tensor<NdArray<f32>, D>) -> Vec<f32> {
    let NdArrayTensor::F32(storage) = tensor.into_primitive().tensor() else {
        unreachable!("the backend computes in f32");
    };
    let view = storage.view();
    match view.as_slice() {
        Some(values) => values.to_vec(),
        None => view.as_standard_layout().as_slice().expect("the layout is standard").to_vec(),
    }
}

/// The value of a loss.
pub fn number(loss: &Loss) -> f64 {
    f64::from(values(loss.clone().inner())[0])
}

/// `x w + b`.
pub fn linear(x: T2, w: &T2, b: &T2) -> T2 {
    x.matmul(w.clone()) + b.clone()
}

/// `relu(x w1 + b1) w2 + b2`.
pub fn two_layers(x: T2, w: &[T2]) -> T2 {
    linear(relu(linear(x, &w[0], &w[1])), &w[2], &w[3])
}

/// Initial values of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// PyTorch's `nn.Linear`: weights and biases uniform within `1 / sqrt(inputs)`.
    Linear,
    /// Weights uniform within this bound, biases zero.
    Uniform(f32),
    /// PyTorch's `nn.Embedding`, with a bias of zero: weights from N(0, 1).
    Normal,
}

/// Values per task of an update. An update is value by value: the result does not depend on it.
const CHUNK: usize = 1 << 15;

/// A parameter with Adam's moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Row-major.
    pub values: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
}

impl Weight {
    pub fn new(shape: [usize; 2], values: Vec<f32>) -> Self {
        assert_eq!(values.len(), shape[0] * shape[1]);
        let zeros = vec![0.0; values.len()];
        Weight { shape, values, first: zeros.clone(), second: zeros }
    }

    /// Uniform in `[low, high)`; `number` distinguishes the weights of a network.
    pub fn uniform(shape: [usize; 2], low: f32, high: f32, seed: u64, number: u64) -> Self {
        let mut values = vec![0.0; shape[0] * shape[1]];
        Stream::new(seed, Purpose::Method, &[2, number]).uniform_f32(&mut values);
        values.iter_mut().for_each(|v| *v = low + *v * (high - low));
        Weight::new(shape, values)
    }

    /// Standard normal.
    pub fn normal(shape: [usize; 2], seed: u64, number: u64) -> Self {
        let mut values = vec![0.0; shape[0] * shape[1]];
        Stream::new(seed, Purpose::Method, &[2, number]).normal(&mut values);
        Weight::new(shape, values)
    }

    /// Weight `[inputs, outputs]` and bias `[1, outputs]` of a layer.
    pub fn layer(inputs: usize, outputs: usize, init: Init, seed: u64, number: u64) -> [Weight; 2] {
        match init {
            Init::Linear => {
                let bound = 1.0 / (inputs as f32).sqrt();
                [
                    Weight::uniform([inputs, outputs], -bound, bound, seed, number),
                    Weight::uniform([1, outputs], -bound, bound, seed, number + 1000),
                ]
            }
            Init::Uniform(bound) => [
                Weight::uniform([inputs, outputs], -bound, bound, seed, number),
                Weight::new([1, outputs], vec![0.0; outputs]),
            ],
            Init::Normal => {
                [Weight::normal([inputs, outputs], seed, number), Weight::new([1, outputs], vec![0.0; outputs])]
            }
        }
    }

    /// A tensor that collects a gradient.
    pub fn leaf(&self) -> T2 {
        tensor(self.values.clone(), self.shape[0], self.shape[1]).require_grad()
    }

    /// One Adam update of all values; `number` counts updates from 1.
    pub fn update(&mut self, gradient: &[f32], rate: f64, number: u64) {
        let adam = Adam { rate, number };
        let values = self.values.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK));
        let moments = self.first.par_chunks_mut(CHUNK).zip(self.second.par_chunks_mut(CHUNK));
        values.zip(moments).for_each(|((x, g), (m, v))| f32::adam_all(x, g, m, v, &adam));
    }

    /// Sets Adam's moments to zero.
    pub fn reset_moments(&mut self) {
        self.first.fill(0.0);
        self.second.fill(0.0);
    }
}

/// The layer of a model with this weight `[inputs, outputs]` and bias.
pub fn dense(weight: &Weight, bias: &Weight) -> Result<Dense> {
    let [inputs, outputs] = weight.shape;
    let mut turned = vec![0.0; inputs * outputs];
    for (i, row) in weight.values.chunks_exact(outputs).enumerate() {
        row.iter().enumerate().for_each(|(j, &v)| turned[j * inputs + i] = v);
    }
    Dense::new(inputs, turned, bias.values.clone())
}

/// Random draws of one step. Every call draws anew; the same step draws the same.
pub struct Draws {
    seed: u64,
    step: u64,
    calls: Cell<u64>,
}

impl Draws {
    pub fn new(seed: u64, step: u64) -> Self {
        Draws { seed, step, calls: Cell::new(0) }
    }

    fn stream(&self) -> Stream {
        self.calls.set(self.calls.get() + 1);
        Stream::new(self.seed, Purpose::Method, &[3, self.step, self.calls.get()])
    }

    /// The stream of the next call, for draws on a GPU.
    pub fn key(&self) -> u64 {
        self.stream().key()
    }

    /// Uniform in [0, 1).
    pub fn uniform(&self, rows: usize, cols: usize) -> T2 {
        let mut out = vec![0.0; rows * cols];
        self.stream().uniform_f32(&mut out);
        tensor(out, rows, cols)
    }

    /// Standard normal.
    pub fn normal(&self, rows: usize, cols: usize) -> T2 {
        let mut out = vec![0.0; rows * cols];
        self.stream().normal(&mut out);
        tensor(out, rows, cols)
    }

    /// Integers below `n`.
    pub fn below(&self, count: usize, n: u64) -> Vec<u64> {
        let stream = self.stream();
        (0..count as u64).map(|i| stream.below(i, n)).collect()
    }
}

/// Bernoulli draws with probabilities `q`; the gradient passes to `q` unchanged (straight through).
pub fn bernoulli(q: T2, draws: &Draws) -> T2 {
    let [rows, cols] = q.dims();
    let hard = draws.uniform(rows, cols).lower(q.clone()).float();
    q.clone() + (hard - q).detach()
}

/// KL divergence of Bernoulli `q = sigmoid(logits)` from a fair coin, `q ln 2q + (1 - q) ln 2(1 - q)`: sum over bits, mean over
/// documents.
pub fn kl_to_fair_coin(logits: T2) -> Loss {
    let [rows, cols] = logits.dims();
    negative_entropy(logits).sum() / rows as f64 + cols as f64 * std::f64::consts::LN_2
}

/// `q ln q + (1 - q) ln(1 - q)` for `q = sigmoid(logits)`, finite for all logits.
pub fn negative_entropy(logits: T2) -> T2 {
    let q = burn_tensor::activation::sigmoid(logits.clone());
    q.clone() * log_sigmoid(logits.clone()) + (q.neg() + 1.0) * log_sigmoid(logits.neg())
}

/// The contrastive loss of rows `[2 n, dim]`, view 1 of every document before view 2: cross-entropy of each row's other view
/// among all other rows, by cosine over the temperature.
pub fn contrast(rows: T2, temperature: f64) -> Loss {
    let [n, _] = rows.dims();
    let lengths = rows.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
    let unit = rows / lengths;
    let similar = unit.clone().matmul(unit.transpose()) / temperature;
    let mut own = vec![0.0; n * n];
    let mut partner = vec![0.0; n * n];
    for i in 0..n {
        own[i * n + i] = -1e9;
        partner[i * n + (i + n / 2) % n] = 1.0;
    }
    let chances = log_softmax(similar + tensor(own, n, n), 1);
    (chances * tensor(partner, n, n)).sum().neg() / n as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Largest difference between a gradient and finite differences of the loss, over the largest gradient.
    pub(crate) fn gradient_error(weights: &[Weight], loss: &dyn Fn(&[T2]) -> Loss) -> f64 {
        let leaves: Vec<T2> = weights.iter().map(Weight::leaf).collect();
        let gradients = loss(&leaves).backward();
        let (mut worst, mut largest) = (0.0f64, 1e-6f64);
        for (i, leaf) in leaves.iter().enumerate() {
            let Some(gradient) = leaf.grad(&gradients).map(values) else { continue };
            for j in (0..gradient.len()).step_by(gradient.len() / 12 + 1) {
                let at = |step: f32| {
                    let mut moved = weights.to_vec();
                    moved[i].values[j] += step;
                    number(&loss(&moved.iter().map(Weight::leaf).collect::<Vec<_>>()))
                };
                const STEP: f32 = 4e-3;
                let slope = (at(STEP) - at(-STEP)) / (2.0 * f64::from(STEP));
                worst = worst.max((slope - f64::from(gradient[j])).abs());
                largest = largest.max(f64::from(gradient[j]).abs());
            }
        }
        worst / largest
    }

    #[test]
    fn values_are_row_major_for_every_layout() {
        let t = tensor(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3);
        assert_eq!(values(t.clone().inner()), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(values(t.clone().transpose().inner()), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(values(t.slice([0..2, 1..2]).inner()), [2.0, 5.0]);
    }

    #[test]
    fn contrast_equals_a_value_computed_by_hand() {
        // Two documents whose views agree and are at right angles to the other's: similarities 1 / t and 0.
        let rows = tensor(vec![2.0, 0.0, 0.0, 1.0, 5.0, 0.0, 0.0, 3.0], 4, 2);
        let t = 0.5f64;
        let expected = ((1.0 / t).exp() + 2.0).ln() - 1.0 / t;
        assert!((number(&contrast(rows, t)) - expected).abs() < 1e-6);
    }

    #[test]
    fn gradient_of_contrast_equals_finite_differences() {
        let weights = [Weight::normal([6, 5], 1, 0)];
        let error = gradient_error(&weights, &|w| contrast(w[0].clone(), 0.3));
        assert!(error < 1e-2, "{error}");
    }

    #[test]
    fn kl_to_a_fair_coin_equals_values_computed_by_hand() {
        assert!(number(&kl_to_fair_coin(tensor(vec![0.0; 6], 2, 3))).abs() < 1e-6);
        let q = 1.0 / (1.0 + (-2.0f64).exp());
        let one = q * (2.0 * q).ln() + (1.0 - q) * (2.0 * (1.0 - q)).ln();
        assert!((number(&kl_to_fair_coin(tensor(vec![2.0, -2.0], 1, 2))) - 2.0 * one).abs() < 1e-6);
        // Certain bits cost ln 2 each, and the gradient stays finite.
        let sure = Weight::new([1, 2], vec![200.0, -200.0]);
        let leaf = sure.leaf();
        let loss = kl_to_fair_coin(leaf.clone());
        assert!((number(&loss) - 2.0 * std::f64::consts::LN_2).abs() < 1e-6);
        assert!(values(leaf.grad(&loss.backward()).unwrap()).iter().all(|g| g.is_finite()));
    }

    #[test]
    fn bernoulli_has_its_probability_and_passes_the_gradient() {
        let q = tensor(vec![0.25; 10_000], 100, 100).require_grad();
        let bits = bernoulli(q.clone(), &Draws::new(0, 1));
        let drawn = values(bits.clone().inner());
        assert!(drawn.iter().all(|b| b.abs() < 1e-6 || (b - 1.0).abs() < 1e-6));
        assert!((drawn.iter().sum::<f32>() / 10_000.0 - 0.25).abs() < 0.02);
        let gradient = values(q.grad(&(bits * 3.0).sum().backward()).unwrap());
        assert!(gradient.iter().all(|g| (g - 3.0).abs() < 1e-6));
    }

    #[test]
    fn initial_values_have_the_distribution_of_their_layer() {
        // Mean square of the weights, and of the biases.
        let squares = |init: Init| {
            Weight::layer(50, 400, init, 7, 0)
                .map(|w| w.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / w.values.len() as f64)
        };
        for (init, weight, bias) in
            [(Init::Linear, 1.0 / 150.0, 1.0 / 150.0), (Init::Uniform(0.1), 0.01 / 3.0, 0.0), (Init::Normal, 1.0, 0.0)]
        {
            let [w, b] = squares(init);
            assert!((w / weight - 1.0).abs() < 0.05, "{init:?}: {w}");
            assert!(if bias == 0.0 { b == 0.0 } else { (b / bias - 1.0).abs() < 0.3 }, "{init:?}: {b}");
        }
    }
}
