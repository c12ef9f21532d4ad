//! Learned pooling: a convolution over the states of neighbouring tokens, and the mean of what it finds.
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
use super::{Dropout, Encoder, bert};
use crate::watch::Watch;
use crate::{Error, Matrix, Result};

/// Tokens that the widest filters see.
pub const WINDOW: usize = 5;

/// The filters, as a model records them. The weights are in `model.safetensors`.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Convolution {
    /// Values of a token's state.
    pub inputs: usize,
    /// Values of the vector.
    pub outputs: usize,
    /// SHA-256 over the weights, by which others are refused.
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
        let mut made =
            Convolution { inputs, outputs: bias.len(), sha256: hash(&weight, &bias), weights: Arc::default() };
        made.fill(weight, bias)?;
        Ok(made)
    }

    /// Puts in the weights a model directory keeps apart.
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
            return Err(Error::config("the convolution's weights are others than config.json names"));
        }
        let mut turned = vec![0.0; weight.len()];
        for (i, row) in weight.chunks_exact(bias.len()).enumerate() {
            row.iter().enumerate().for_each(|(j, &v)| turned[j * rows + i] = v);
        }
        let packed = Some(PackedWeight::new(&turned, bias.len(), rows));
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

    /// The vector of one text from the states of its tokens but the first, `[tokens, inputs]`; zeros where there are none.
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
    crate::hex(&hash.finalize())
}

/// What the filters see at every token: its own state with two before and two behind, zeros beyond the ends.
/// `[tokens, WINDOW width]`.
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

/// Texts whose states come from a GPU at a time.
const GPU_TEXTS: usize = 512;

impl Encoder {
    /// The vectors a convolution makes of sequences, from the states of all tokens but the first.
    pub fn convolve(
        &self,
        convolution: &Convolution,
        sequences: &[impl AsRef<[u32]> + Sync],
        watch: &dyn Watch,
    ) -> Result<Matrix> {
        let mut out = Matrix::zeros(sequences.len(), convolution.outputs);
        let rows = out.as_mut_slice().chunks_exact_mut(convolution.outputs).collect();
        let take = |states: &[f32], row: &mut [f32]| convolution.pool(&states[convolution.inputs..], row);
        self.reduce(sequences, None, rows, take, watch)?;
        Ok(out)
    }

    /// Looks at the states of every token instead of pooling them: `take` is given the states `[tokens, self.width()]` of
    /// each sequence, clean or of a view, with its own of `places`.
    pub fn reduce<T: Send>(
        &self,
        sequences: &[impl AsRef<[u32]> + Sync],
        dropout: Option<Dropout>,
        places: Vec<T>,
        take: impl Fn(&[f32], T) + Sync,
        watch: &dyn Watch,
    ) -> Result<()> {
        self.check(sequences)?;
        assert_eq!(places.len(), sequences.len(), "a place for every sequence");
        assert!(dropout.is_none_or(|d| d.len() == sequences.len()), "a number for every sequence");
        let mut places = places.into_iter();
        if let Some(gpu) = &self.gpu {
            // States are many: as many texts at a time as fit some tens of megabytes.
            for (i, part) in sequences.chunks(GPU_TEXTS).enumerate() {
                let range = i * GPU_TEXTS..i * GPU_TEXTS + part.len();
                let part: Vec<&[u32]> = part.iter().map(AsRef::as_ref).collect();
                let states = gpu.states(&part, dropout.map(|d| d.part(range)), self.width(), watch)?;
                let mut rest = &states[..];
                let own = part.iter().map(|s| rest.split_off(..s.len() * self.width()).expect("states of every token"));
                let own: Vec<(&[f32], T)> = own.zip(places.by_ref()).collect();
                own.into_par_iter().for_each(|(own, place)| take(own, place));
                watch.advance(part.len() as u64);
            }
            return Ok(());
        }
        let ranges = bert::groups(sequences, self.bert.task_tokens()).into_iter();
        let tasks: Vec<(_, Vec<T>)> =
            ranges.map(|range| (range.clone(), places.by_ref().take(range.len()).collect())).collect();
        let hidden = self.width();
        tasks.into_par_iter().try_for_each_init(bert::Scratch::default, |scratch, (range, places)| {
            if watch.interrupted() {
                return Err(Error::Interrupted);
            }
            let batch: Vec<&[u32]> = sequences[range.clone()].iter().map(AsRef::as_ref).collect();
            let mut states =
                self.bert.forward(&batch, dropout.map(|d| d.part(range)), scratch, &Team::alone(), |_, _| {});
            for (sequence, place) in batch.iter().zip(places) {
                let (own, after) = states.split_at(sequence.len() * hidden);
                take(own, place);
                states = after;
            }
            watch.advance(batch.len() as u64);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_by_hand() {
        // Two tokens of one value.
        assert_eq!(windows(&[3.0, 4.0], 1), [0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0]);
    }

    #[test]
    fn pooling_by_hand() {
        // One filter sees the token itself, negated; another the token before it.
        let mut weight = vec![0.0; WINDOW * 2];
        weight[2 * 2] = -1.0;
        weight[2 + 1] = 1.0;
        let convolution = Convolution::new(1, weight, vec![0.0, 0.5]).unwrap();
        let mut out = [9.0; 2];
        convolution.pool(&[1.0, -3.0, 2.0], &mut out);
        // -1, 3, -2 cut at zero; 0.5, 1.5, -2.5 cut at zero.
        assert!((out[0] - 1.0).abs() < 1e-6 && (out[1] - 2.0 / 3.0).abs() < 1e-6, "{out:?}");
        convolution.pool(&[], &mut out);
        assert_eq!(out, [0.0; 2]);
        assert!(Convolution::new(2, vec![0.0; 10], vec![0.0]).is_ok());
        assert!(Convolution::new(2, vec![0.0; 9], vec![0.0]).is_err());
    }
}
