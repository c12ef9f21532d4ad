//! Inputs and results of a GPU, as plain values. They exist in a build without CUDA too.

use std::ops::Range;

/// Returns a tensor's values in f32 by its Hugging Face name without the prefix `bert.`.
pub type Source<'a> = &'a dyn Fn(&str) -> std::result::Result<Vec<f32>, Box<dyn std::error::Error + Send + Sync>>;

/// Description of a GPU, known before it is opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    pub ordinal: usize,
    pub name: String,
    /// Total memory in bytes.
    pub memory: usize,
    /// Compute capability, (major, minor).
    pub capability: (i32, i32),
    /// Number of multiprocessors.
    pub processors: usize,
    /// CUDA version of the driver: 13000 is 13.0.
    pub driver: i32,
}

/// Statistics of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Tokens of all sequences, counted once for all views.
    pub tokens: u64,
    pub batches: usize,
    /// Largest number of tokens of a batch.
    pub batch_tokens: usize,
    /// How often the batch was halved because the GPU's memory was short.
    pub halved: u32,
}

impl Report {
    /// A warning for the user, if there is one.
    pub fn note(&self) -> Option<String> {
        let tokens = self.batch_tokens;
        (self.halved > 0).then(|| {
            format!(
                "the GPU is short of memory: batches have {tokens} tokens instead of {}, which is slower",
                tokens << self.halved
            )
        })
    }
}

/// A block of a weight `[inputs, outputs]`. Elements outside of all blocks are zero and stay zero.
#[derive(Clone, Debug)]
pub struct LayerPart {
    /// Rows of the weight.
    pub inputs: Range<usize>,
    /// Columns of the weight.
    pub outputs: Range<usize>,
}

/// Token states of several texts.
#[derive(Clone, Copy)]
pub struct Texts<'a> {
    /// All states, contiguous.
    pub states: &'a [f32],
    /// Values of a state, the distance between windows.
    pub width: usize,
    /// For every text, the windows of its tokens.
    pub windows: &'a [Range<usize>],
}

/// Learned parameters after the filters.
#[derive(Clone, Copy)]
pub struct InfoMaxHead<'a> {
    /// `W [width, bits]`.
    pub map: &'a [f32],
    /// `b [bits]`.
    pub bias: &'a [f32],
    /// `V` for windows, `[bits, bits]`, and its bias.
    pub parts: [&'a [f32]; 2],
    /// `V` for first states, `[bits, bits]`, and its bias.
    pub whole: [&'a [f32]; 2],
}

/// Arguments of a step.
#[derive(Clone, Copy)]
pub struct InfoMaxStep<'a> {
    /// Token states of the texts, without the first token.
    pub texts: Texts<'a>,
    /// States of the first tokens, `[texts, width]`.
    pub firsts: &'a [f32],
    /// Keys of the random draws: codes of texts, of tokens, of first states.
    pub keys: [u64; 3],
}

/// Coefficients of one Adam update, bias corrections included.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TrainingAdam {
    /// Decay of the first moment (beta 1).
    pub keep_first: f32,
    /// Decay of the second moment (beta 2).
    pub keep_second: f32,
    /// Learning rate divided by the first moment's bias correction.
    pub rate: f32,
    /// One over the square root of the second moment's bias correction.
    pub scale: f32,
    /// Added to the square root of the second moment.
    pub epsilon: f32,
}

/// Sizes of a model in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingShape {
    /// Values of an embedding.
    pub inputs: usize,
    /// Width of the projection's hidden layer.
    pub hidden: usize,
    pub num_codebooks: usize,
    /// Codewords per codebook, at most 256.
    pub codebook_size: usize,
    /// Dimensions of a codeword.
    pub dim: usize,
    /// Largest number of documents of a batch.
    pub batch: usize,
}

/// The objective, in the layout of the kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct TrainingObjective {
    /// Temperature of the soft code.
    pub tau: f32,
    /// Added to a probability before its logarithm.
    pub floor: f32,
    /// Weight of the mutual information.
    pub prob_weight: f32,
    /// Weight of the contrastive loss.
    pub code_weight: f32,
    /// Weight of the conditional entropy.
    pub alpha: f32,
    /// Temperature of the contrastive loss.
    pub contrast_temperature: f32,
    /// 1 with Gumbel noise, else 0.
    pub gumbel: u32,
    /// 1 for the mutual information of the posterior, 0 for that of the soft code.
    pub posterior: u32,
}

/// Losses summed over steps, each weighted by its share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingLosses {
    pub loss: f64,
    /// NT-Xent, nats.
    pub contrastive: f64,
    /// Mutual information, nats.
    pub information: f64,
    /// The first step, counted from 1, whose loss was not finite.
    pub failed: Option<u64>,
}
