//! The decoder the generative systems share: what a code says its document is.

use burn_tensor::activation::log_softmax;

use crate::graph::{Init, Loss, T2, Weight, linear};
use crate::learn::Batch;

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
    let n = batch.len() as f64;
    let said = linear(code, e, beta);
    if batch.words() {
        (log_softmax(said, 1) * batch.target()).sum().neg() / n
    } else {
        (said - batch.target()).square().sum() / (2.0 * n)
    }
}
