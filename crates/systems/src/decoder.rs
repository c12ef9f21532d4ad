//! The decoder the generative systems share: what a code says its document is.

use burn_tensor::Tensor;
use kernels::Backend;
use kernels::elementwise::exp;
use train::product::{View, multiply};

use crate::graph::{Graph, Init, Loss, T2, Weight, linear, tensor, values};
use crate::learn::Batch;
use crate::yardstick::Row;

/// Its weights: `E [code, inputs]` and `beta [1, inputs]`.
pub fn weights(code: usize, inputs: usize, init: Init, seed: u64, number: u64) -> [Weight; 2] {
    Weight::layer(code, inputs, init, seed, number)
}

/// Mean over documents of `-log p(x | code)`.
///
/// Words: `-sum over the document's distinct words of log softmax(code E + beta)`.
/// Vectors: a Gaussian of unit variance around `code E + beta`, without its constant: `|x - (code E + beta)|^2 / 2`. The
/// published rows say only that the models were changed to fit an encoder's vectors; this is our reading.
pub fn surprise(code: T2, e: &T2, beta: &T2, batch: &Batch) -> Loss {
    match batch.words() {
        Some(rows) => of_words(code, e, beta, rows),
        None => (linear(code, e, beta) - batch.target()).square().sum() / (2.0 * batch.len() as f64),
    }
}

/// The value and its gradients by hand: a row of logits is as long as the vocabulary, and taking it through the graph
/// (log-softmax, target, their gradients) cost three quarters of a system's time. The graph sees a linear function that has the
/// same value and the same gradients here.
fn of_words(code: T2, e: &T2, beta: &T2, rows: &[&Row]) -> Loss {
    let ([n, m], [_, words]) = (code.dims(), e.dims());
    let (c, w) = (values(code.clone().inner()), values(e.clone().inner()));
    let b = values(beta.clone().inner());
    let (c, w) = (View::new(&c, n, m), View::new(&w, m, words));
    let mut logits = vec![0.0f32; n * words];
    multiply(&mut logits, c, w, 1.0);
    let mut total = 0.0f64;
    let mut of_beta = vec![0.0f32; words];
    for (said, row) in logits.chunks_exact_mut(words).zip(rows) {
        said.iter_mut().zip(&b).for_each(|(s, b)| *s += b);
        let most = said.iter().copied().fold(f32::MIN, f32::max);
        said.iter_mut().for_each(|s| *s -= most);
        let own: f64 = row.iter().map(|&(term, _)| f64::from(said[term as usize])).sum();
        exp(Backend::active(), said);
        let sum: f64 = said.chunks(256).map(|part| f64::from(part.iter().sum::<f32>())).sum();
        total += row.len() as f64 * sum.ln() - own;
        // d / d logit_w = (words of the document) softmax_w - [w is in the document], over n.
        let scale = (row.len() as f64 / sum / n as f64) as f32;
        said.iter_mut().for_each(|s| *s *= scale);
        row.iter().for_each(|&(term, _)| said[term as usize] -= 1.0 / n as f32);
        of_beta.iter_mut().zip(said.iter()).for_each(|(b, s)| *b += s);
    }
    let slope = View::new(&logits, n, words);
    let (mut of_code, mut of_e) = (vec![0.0f32; n * m], vec![0.0f32; m * words]);
    multiply(&mut of_code, slope, w.transposed(), 1.0);
    multiply(&mut of_e, c.transposed(), slope, 1.0);
    let linear = (code * tensor(of_code, n, m)).sum()
        + (e.clone() * tensor(of_e, m, words)).sum()
        + (beta.clone() * tensor(of_beta, 1, words)).sum();
    let value = Tensor::<Graph, 1>::from_floats([(total / n as f64) as f32], &Default::default());
    linear.clone() - linear.detach() + value
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_tensor::activation::log_softmax;

    use crate::graph::number;

    #[test]
    fn words_by_hand_are_the_softmax_of_the_graph() {
        let rows: [Row; 3] = [vec![(0, 0.5), (3, 2.0)], vec![(4, 1.0)], vec![]];
        let rows: Vec<&Row> = rows.iter().collect();
        let mut target = vec![0.0; 3 * 5];
        rows.iter().enumerate().for_each(|(i, row)| row.iter().for_each(|&(t, _)| target[i * 5 + t as usize] = 1.0));
        let given = [Weight::normal([3, 2], 0, 0), Weight::normal([2, 5], 0, 1), Weight::normal([1, 5], 0, 2)];
        let leaves = || given.iter().map(Weight::leaf).collect::<Vec<T2>>();
        let (by_hand, by_graph) = (leaves(), leaves());
        let one = of_words(by_hand[0].clone(), &by_hand[1], &by_hand[2], &rows);
        let said = linear(by_graph[0].clone(), &by_graph[1], &by_graph[2]);
        let other: Loss = (log_softmax(said, 1) * tensor(target, 3, 5)).sum().neg() / 3.0;
        assert!((number(&one) - number(&other)).abs() < 1e-5, "{} {}", number(&one), number(&other));
        // Twice: what stands before it counts for its gradient.
        let (one, other) = ((one * 2.0).backward(), (other * 2.0).backward());
        for (a, b) in by_hand.iter().zip(&by_graph) {
            let (a, b) = (values(a.grad(&one).unwrap()), values(b.grad(&other).unwrap()));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?} {b:?}");
        }
    }
}
