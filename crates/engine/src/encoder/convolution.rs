//! Learned pooling: a convolution over the states of neighbouring tokens, then the mean over tokens.
//!
//! ```text
//! states [tokens, width] of all tokens but [CLS], zeros beyond both ends
//! local_t = relu(W' [state_t-2 .. state_t+2] + b): a third of the outputs sees one token, a third three, a third five
//! vector = mean over t of local_t
//! ```

use std::sync::Arc;

use kernels::gemm::{Epilogue, PackedWeight};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::team::Team;
use super::{Dropout, Encoder, Network, forward};
use crate::progress::Progress;
use crate::{Error, Matrix, Result};

/// Tokens that the widest filters see.
pub const WINDOW: usize = 5;

/// The convolution, as a model records it. Its weights are in `model.safetensors`.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Convolution {
    /// Width of a token state.
    pub inputs: usize,
    /// Width of the embedding.
    pub outputs: usize,
    /// SHA-256 over the weights. Other weights are refused.
    pub sha256: String,
    #[serde(skip)]
    weights: Arc<Weights>,
}

#[derive(Debug, Default)]
struct Weights {
    // [WINDOW inputs, outputs]
    weight: Vec<f32>,
    bias: Vec<f32>,
    packed: Option<PackedWeight>,
}

impl PartialEq for Convolution {
    fn eq(&self, other: &Self) -> bool {
        (self.inputs, self.outputs) == (other.inputs, other.outputs)
            && self.weights.weight == other.weights.weight
            && self.weights.bias == other.weights.bias
    }
}

impl Convolution {
    /// Takes `weight [WINDOW inputs, outputs]` and `bias [outputs]`.
    pub fn new(inputs: usize, weight: Vec<f32>, bias: Vec<f32>) -> Result<Self> {
        let mut convolution =
            Convolution { inputs, outputs: bias.len(), sha256: hash(&weight, &bias), weights: Arc::default() };
        convolution.fill(weight, bias)?;
        Ok(convolution)
    }

    /// Sets the weights, which a model directory stores in another file.
    pub(crate) fn fill(&mut self, weight: Vec<f32>, bias: Vec<f32>) -> Result<()> {
        let rows = WINDOW * self.inputs;
        if self.inputs == 0 || bias.is_empty() || bias.len() != self.outputs || weight.len() != rows * bias.len() {
            return Err(Error::config(format!(
                "a convolution of {} to {} values cannot have {} weights and {} biases",
                self.inputs,
                self.outputs,
                weight.len(),
                bias.len()
            )));
        }
        if !weight.iter().chain(&bias).all(|v| v.is_finite()) {
            return Err(Error::config("a convolution holds a value that is not a finite number"));
        }
        if hash(&weight, &bias) != self.sha256 {
            return Err(Error::config("the convolution's weights do not have the SHA-256 that config.json gives"));
        }
        let mut transposed = vec![0.0; weight.len()];
        for (i, row) in weight.chunks_exact(bias.len()).enumerate() {
            row.iter().enumerate().for_each(|(j, &v)| transposed[j * rows + i] = v);
        }
        let packed = Some(PackedWeight::new(&transposed, bias.len(), rows));
        self.weights = Arc::new(Weights { weight, bias, packed });
        Ok(())
    }

    /// `[WINDOW inputs, outputs]`.
    pub fn weight(&self) -> &[f32] {
        &self.weights.weight
    }

    /// `[outputs]`.
    pub fn bias(&self) -> &[f32] {
        &self.weights.bias
    }

    /// Embedding of one text from the states `[tokens, inputs]` of all its tokens but the first. Zeros if there are no tokens.
    pub fn pool(&self, states: &[f32], out: &mut [f32]) {
        let tokens = states.len() / self.inputs;
        out.fill(0.0);
        if tokens == 0 {
            return;
        }
        let windows = windows(states, self.inputs);
        let mut local = vec![0.0; tokens * self.outputs];
        let packed = self.weights.packed.as_ref().expect("weights are filled in before use");
        packed.multiply(&windows, &mut local, tokens, Epilogue::BiasRelu(&self.weights.bias));
        for row in local.chunks_exact(self.outputs) {
            out.iter_mut().zip(row).for_each(|(o, v)| *o += v);
        }
        out.iter_mut().for_each(|o| *o /= tokens as f32);
    }
}

fn hash(weight: &[f32], bias: &[f32]) -> String {
    let mut hash = Sha256::new();
    weight.iter().chain(bias).for_each(|v| hash.update(v.to_le_bytes()));
    hex::encode(hash.finalize())
}

/// Inputs of the filters at every token, `[tokens, WINDOW width]`: the states of the token, of two tokens before and of two
/// after it. Zeros beyond the ends.
pub fn windows(states: &[f32], width: usize) -> Vec<f32> {
    let tokens = states.len() / width;
    let mut out = vec![0.0; tokens * WINDOW * width];
    for (t, row) in out.chunks_exact_mut(WINDOW * width).enumerate() {
        for (k, part) in row.chunks_exact_mut(width).enumerate() {
            if let Some(from) = (t + k).checked_sub(WINDOW / 2).filter(|from| *from < tokens) {
                part.copy_from_slice(&states[from * width..(from + 1) * width]);
            }
        }
    }
    out
}

/// Texts per call on a GPU. The call returns the states of all their tokens: some tens of megabytes.
const GPU_TEXTS: usize = 512;

/// Tokens per task where a token costs an addition of its vector.
const STATIC_TASK_TOKENS: usize = 1 << 14;

impl Encoder {
    /// Embeddings of sequences by a convolution over the states of all tokens but the first.
    pub fn convolve(
        &self,
        convolution: &Convolution,
        sequences: &[impl AsRef<[u32]> + Sync],
        progress: &dyn Progress,
    ) -> Result<Matrix> {
        let mut out = Matrix::zeros(sequences.len(), convolution.outputs);
        let rows = out.as_mut_slice().chunks_exact_mut(convolution.outputs).collect();
        let take = |states: &[f32], row: &mut [f32]| convolution.pool(&states[convolution.inputs..], row);
        self.reduce(sequences, None, rows, take, progress)?;
        Ok(out)
    }

    /// Passes token states to `take` instead of pooling them. `take` gets the states `[tokens, self.width()]` of each sequence,
    /// with or without dropout, and the sequence's element of `places`.
    pub fn reduce<T: Send>(
        &self,
        sequences: &[impl AsRef<[u32]> + Sync],
        dropout: Option<Dropout>,
        places: Vec<T>,
        take: impl Fn(&[f32], T) + Sync,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.check(sequences)?;
        assert_eq!(places.len(), sequences.len(), "a place for every sequence");
        assert!(dropout.is_none_or(|d| d.len() == sequences.len()), "a number for every sequence");
        let mut places = places.into_iter();
        if let Some(gpu) = &self.gpu {
            for (i, part) in sequences.chunks(GPU_TEXTS).enumerate() {
                let range = i * GPU_TEXTS..i * GPU_TEXTS + part.len();
                let part: Vec<&[u32]> = part.iter().map(AsRef::as_ref).collect();
                let states = gpu.states(&part, dropout.map(|d| d.part(range)), self.width(), progress)?;
                let mut rest = &states[..];
                let own = part.iter().map(|s| rest.split_off(..s.len() * self.width()).expect("states of every token"));
                let own: Vec<(&[f32], T)> = own.zip(places.by_ref()).collect();
                own.into_par_iter().for_each(|(own, place)| take(own, place));
                progress.advance(part.len() as u64);
            }
            return Ok(());
        }
        let (transformer, task_tokens) = match &self.network {
            Network::Transformer(transformer) => (Ok(transformer), transformer.task_tokens()),
            Network::Static(table) => (Err(table), STATIC_TASK_TOKENS),
        };
        let ranges = forward::groups(sequences, task_tokens).into_iter();
        let tasks: Vec<(_, Vec<T>)> =
            ranges.map(|range| (range.clone(), places.by_ref().take(range.len()).collect())).collect();
        let hidden = self.width();
        tasks.into_par_iter().try_for_each_init(forward::Scratch::default, |scratch, (range, places)| {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let batch: Vec<&[u32]> = sequences[range.clone()].iter().map(AsRef::as_ref).collect();
            let transformer = match transformer {
                Ok(transformer) => transformer,
                Err(table) => {
                    let mut states = Vec::new();
                    for ((number, ids), place) in range.zip(&batch).zip(places) {
                        table.states(ids, number, dropout, &mut states);
                        take(&states, place);
                    }
                    progress.advance(batch.len() as u64);
                    return Ok(());
                }
            };
            let mut states =
                transformer.forward(&batch, dropout.map(|d| d.part(range)), scratch, &Team::alone(), |_, _| {});
            for (sequence, place) in batch.iter().zip(places) {
                let (own, after) = states.split_at(sequence.len() * hidden);
                take(own, place);
                states = after;
            }
            progress.advance(batch.len() as u64);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_equal_a_hand_computation() {
        // Two tokens, one value per token.
        assert_eq!(windows(&[3.0, 4.0], 1), [0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0]);
    }

    #[test]
    fn pooling_equals_a_hand_computation() {
        // One filter sees the token itself, negated; another sees the token before it.
        let mut weight = vec![0.0; WINDOW * 2];
        weight[2 * 2] = -1.0;
        weight[2 + 1] = 1.0;
        let convolution = Convolution::new(1, weight, vec![0.0, 0.5]).unwrap();
        let mut out = [9.0; 2];
        convolution.pool(&[1.0, -3.0, 2.0], &mut out);
        // ReLU of -1, 3, -2 and of 0.5, 1.5, -2.5, then the mean.
        assert!((out[0] - 1.0).abs() < 1e-6 && (out[1] - 2.0 / 3.0).abs() < 1e-6, "{out:?}");
        convolution.pool(&[], &mut out);
        assert_eq!(out, [0.0; 2]);
        assert!(Convolution::new(2, vec![0.0; 10], vec![0.0]).is_ok());
        assert!(Convolution::new(2, vec![0.0; 9], vec![0.0]).is_err());
    }
}
