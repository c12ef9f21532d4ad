//! The decoder of the generative methods: the likelihood of a document given its code.

use burn_tensor::Tensor;
use kernels::Backend;
use kernels::elementwise::exp;
use train::product::{View, multiply};

use crate::config::{DecoderInit, MethodConfig};
use crate::graph::{Graph, Init, Loss, T2, Weight, linear, tensor, values};
use crate::learn::Batch;
use crate::yardstick::Row;

/// Initial values of `E` and `beta`.
pub fn init(config: &MethodConfig) -> Init {
    match config.decoder_init {
        DecoderInit::Linear => Init::Linear,
        DecoderInit::Normal => Init::Normal,
    }
}

/// Weights `E [code, inputs]` and `beta [1, inputs]`.
pub fn weights(code: usize, inputs: usize, init: Init, seed: u64, number: u64) -> [Weight; 2] {
    Weight::layer(code, inputs, init, seed, number)
}

/// Mean over documents of `-log p(x | code)`.
///
/// Terms: `-sum over the document's distinct terms of log softmax(code E + beta)`.
/// Embeddings: a Gaussian of unit variance around `code E + beta`, without its constant: `|x - (code E + beta)|^2 / 2`. The
/// published tables say only that the models were changed to fit embeddings; the Gaussian is ours.
pub fn reconstruction_loss(code: T2, e: &T2, beta: &T2, batch: &Batch) -> Loss {
    match batch.terms() {
        Some(rows) => of_terms(code, e, beta, rows),
        None => (linear(code, e, beta) - batch.target()).square().sum() / (2.0 * batch.len() as f64),
    }
}

/// Value and gradients by hand. A row of logits is as long as the vocabulary, and log-softmax with its gradient in the graph took
/// three quarters of a method's time. The graph gets a linear function with the same value and gradients at this point.
fn of_terms(code: T2, e: &T2, beta: &T2, rows: &[&Row]) -> Loss {
    let ([n, m], [_, terms]) = (code.dims(), e.dims());
    let (c, w) = (values(code.clone().inner()), values(e.clone().inner()));
    let b = values(beta.clone().inner());
    let (c, w) = (View::new(&c, n, m), View::new(&w, m, terms));
    let mut logits = vec![0.0f32; n * terms];
    multiply(&mut logits, c, w, 1.0);
    let mut total = 0.0f64;
    let mut of_beta = vec![0.0f32; terms];
    for (logit, row) in logits.chunks_exact_mut(terms).zip(rows) {
        logit.iter_mut().zip(&b).for_each(|(s, b)| *s += b);
        let max = logit.iter().copied().fold(f32::MIN, f32::max);
        logit.iter_mut().for_each(|s| *s -= max);
        let own: f64 = row.iter().map(|&(term, _)| f64::from(logit[term as usize])).sum();
        exp(Backend::active(), logit);
        let sum: f64 = logit.chunks(256).map(|part| f64::from(part.iter().sum::<f32>())).sum();
        total += row.len() as f64 * sum.ln() - own;
        // d / d logit_w = ((terms of the document) softmax_w - [w is in the document]) / n.
        let scale = (row.len() as f64 / sum / n as f64) as f32;
        logit.iter_mut().for_each(|s| *s *= scale);
        row.iter().for_each(|&(term, _)| logit[term as usize] -= 1.0 / n as f32);
        of_beta.iter_mut().zip(logit.iter()).for_each(|(b, s)| *b += s);
    }
    let slope = View::new(&logits, n, terms);
    let (mut of_code, mut of_e) = (vec![0.0f32; n * m], vec![0.0f32; m * terms]);
    multiply(&mut of_code, slope, w.transposed(), 1.0);
    multiply(&mut of_e, c.transposed(), slope, 1.0);
    let linear = (code * tensor(of_code, n, m)).sum()
        + (e.clone() * tensor(of_e, m, terms)).sum()
        + (beta.clone() * tensor(of_beta, 1, terms)).sum();
    let value = Tensor::<Graph, 1>::from_floats([(total / n as f64) as f32], &Default::default());
    linear.clone() - linear.detach() + value
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_tensor::activation::log_softmax;

    use crate::graph::number;

    #[test]
    fn decoders_start_from_a_normal_distribution_with_a_bias_of_zero_if_asked() {
        for name in ["vdsh", "nash", "wish", "corrsh", "bmsh"] {
            let config = MethodConfig { decoder_init: DecoderInit::Normal, ..MethodConfig::named(name, 32).unwrap() };
            let inputs = 700;
            let network = match name {
                "vdsh" => (crate::vdsh::METHOD.network)(&config, inputs),
                "nash" => (crate::nash::METHOD.network)(&config, inputs),
                "wish" => (crate::wish::METHOD.network)(&config, inputs),
                "corrsh" => (crate::corrsh::METHOD.network)(&config, inputs),
                _ => (crate::bmsh::METHOD.network)(&config, inputs),
            };
            let all = network.unwrap().weights();
            let at = all.iter().position(|w| w.shape[1] == inputs).unwrap();
            let (e, beta) = (&all[at], &all[at + 1]);
            let square = e.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / e.values.len() as f64;
            let expected = if name == "bmsh" { 0.01 / 3.0 } else { 1.0 };
            assert!((square / expected - 1.0).abs() < 0.05, "{name}: {square}");
            assert!(beta.shape == [1, inputs] && beta.values.iter().all(|b| *b == 0.0), "{name}");
        }
    }

    #[test]
    fn loss_and_gradients_by_hand_equal_those_of_the_graph() {
        let rows: [Row; 3] = [vec![(0, 0.5), (3, 2.0)], vec![(4, 1.0)], vec![]];
        let rows: Vec<&Row> = rows.iter().collect();
        let mut target = vec![0.0; 3 * 5];
        rows.iter().enumerate().for_each(|(i, row)| row.iter().for_each(|&(t, _)| target[i * 5 + t as usize] = 1.0));
        let given = [Weight::normal([3, 2], 0, 0), Weight::normal([2, 5], 0, 1), Weight::normal([1, 5], 0, 2)];
        let leaves = || given.iter().map(Weight::leaf).collect::<Vec<T2>>();
        let (by_hand, by_graph) = (leaves(), leaves());
        let one = of_terms(by_hand[0].clone(), &by_hand[1], &by_hand[2], &rows);
        let logits = linear(by_graph[0].clone(), &by_graph[1], &by_graph[2]);
        let other: Loss = (log_softmax(logits, 1) * tensor(target, 3, 5)).sum().neg() / 3.0;
        assert!((number(&one) - number(&other)).abs() < 1e-5, "{} {}", number(&one), number(&other));
        // Doubled, so that a factor before the loss counts too.
        let (one, other) = ((one * 2.0).backward(), (other * 2.0).backward());
        for (a, b) in by_hand.iter().zip(&by_graph) {
            let (a, b) = (values(a.grad(&one).unwrap()), values(b.grad(&other).unwrap()));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?} {b:?}");
        }
    }
}
