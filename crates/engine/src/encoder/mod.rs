//! The frozen encoder: token ids to one embedding per document.
//!
//! [`pull`] puts a Hugging Face directory where [`Encoder::load`] finds it, [`weights`] reads and checks its tensors,
//! [`bert`] packs its layers, [`forward`] runs them over packed sequences, [`device`] moves them to a GPU, and [`Embedder`]
//! turns raw text into embeddings for every surface.

mod bert;
mod convolution;
mod device;
mod embedder;
mod forward;
mod linear;
mod package;
mod precision;
pub mod pull;
mod team;
mod terms;
mod weights;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels::{Backend, bf16};
use rayon::prelude::*;

pub use convolution::{Convolution, WINDOW, windows};
pub use device::Device;
pub use embedder::{Embedder, EmbedderConfig};
pub use forward::Dropout;
pub use precision::Precision;
pub use terms::{Layer, NAME as TERMS, Terms, Vocabulary, Weighting, terms_of};
pub use weights::EncoderConfig;

use crate::progress::Progress;
use crate::tokenizer::Tokenizer;
use crate::{Error, Matrix, Result};
use team::Team;

/// How token states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The state of `[CLS]` after the last layer; the tanh pooler is not used.
    Cls,
    /// The mean over all tokens, `[CLS]` and `[SEP]` among them.
    Mean,
}

impl std::fmt::Display for Pooling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Pooling::Cls => "cls",
            Pooling::Mean => "mean",
        })
    }
}

impl std::str::FromStr for Pooling {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "cls" => Ok(Pooling::Cls),
            "mean" => Ok(Pooling::Mean),
            _ => Err(Error::config(format!("unknown pooling '{name}'; known: cls, mean"))),
        }
    }
}

/// With fewer tokens in a task, a product's weights are read for too few rows.
const MIN_TASK_TOKENS: usize = 64;

/// A loaded encoder.
pub struct Encoder {
    dir: PathBuf,
    config: EncoderConfig,
    sha256: String,
    tokenizer: Tokenizer,
    precision: Precision,
    bert: bert::Bert,
    gpu: Option<device::Gpu>,
    // Batches on the CPU at this moment.
    calls: AtomicUsize,
}

impl Encoder {
    /// Loads a Hugging Face directory: `config.json`, `model.safetensors`, `tokenizer.json` or `vocab.txt`.
    pub fn load(dir: &Path) -> Result<Self> {
        Encoder::load_in(dir, Precision::F32)
    }

    /// [`Encoder::load`] with matrix products in another precision.
    pub fn load_in(dir: &Path, precision: Precision) -> Result<Self> {
        let config = EncoderConfig::read(dir)?;
        let tokenizer = Tokenizer::load(dir)?;
        if tokenizer.vocabulary() > config.vocab_size {
            return Err(Error::format(
                dir,
                format!(
                    "its tokenizer knows {} ids, its weights {}: tokenizer and weights belong to different encoders",
                    tokenizer.vocabulary(),
                    config.vocab_size
                ),
            ));
        }
        let weights = weights::Weights::open(dir)?;
        let bert = bert::Bert::new(&config, &weights, precision)?;
        let sha256 = weights.sha256(dir)?;
        Ok(Encoder {
            dir: dir.to_path_buf(),
            config,
            sha256,
            tokenizer,
            precision,
            bert,
            gpu: None,
            calls: AtomicUsize::new(0),
        })
    }

    /// Moves it to `device`. [`Device::Auto`] takes a GPU that works, and notes why a GPU that is there does not.
    pub fn on(mut self, device: Device, progress: &dyn Progress) -> Result<Self> {
        self.gpu = device::Gpu::open(device, &self.dir, &self.config, progress)?;
        Ok(self)
    }

    /// The GPU it computes on; `None` on the CPU.
    pub fn gpu(&self) -> Option<&cuda::Device> {
        self.gpu.as_ref().and_then(device::Gpu::device)
    }

    /// The arithmetic of its embeddings, part of the name of cached ones: a GPU does not give the CPU's bits.
    pub fn arithmetic(&self) -> &'static str {
        let pairs = || bf16::Unit::of(Backend::active()).order() == bf16::Order::Pairs;
        match self.precision {
            _ if self.gpu.is_some() => device::ARITHMETIC,
            Precision::F32 => "f32",
            // A CPU with `vdpbf16ps` and no AMX sums in another order, and the last bits differ. The names `bf16` and `int8`
            // are those of older caches, from before the heads were `bf16` in both.
            Precision::Bf16 if pairs() => "bf16-pairs-heads",
            Precision::Bf16 => "bf16-heads",
            Precision::Int8 => "int8-heads",
        }
    }

    /// Sequences per call that keep a GPU busy; 0 on the CPU, where it does not matter.
    pub fn sequences_at_once(&self) -> usize {
        if self.gpu.is_some() { device::AT_ONCE } else { 0 }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Values in an embedding.
    pub fn width(&self) -> usize {
        self.config.hidden_size
    }

    /// SHA-256 of the weight file.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Embeddings of token sequences, `[sequences, width]`: raw pooled vectors, not scaled.
    ///
    /// A row depends only on its own tokens (and, with dropout, its own number), not on its neighbours, the batch or the
    /// number of threads.
    pub fn encode(
        &self,
        sequences: &[impl AsRef<[u32]> + Sync],
        pooling: Pooling,
        dropout: Option<Dropout>,
        progress: &dyn Progress,
    ) -> Result<Matrix> {
        let views = self.encode_views(sequences, pooling, &[dropout], progress)?;
        Ok(views.into_iter().next().expect("one view was requested"))
    }

    /// Several views of the same sequences; `None` is the view without dropout. A GPU gets the tokens once.
    pub fn encode_views(
        &self,
        sequences: &[impl AsRef<[u32]> + Sync],
        pooling: Pooling,
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        self.check(sequences)?;
        for view in views.iter().flatten() {
            assert_eq!(view.len(), sequences.len(), "a number for every sequence");
        }
        match &self.gpu {
            Some(gpu) => gpu.encode(sequences, pooling, views, self.width(), progress),
            None => self.encode_on_cpu(sequences, pooling, views, progress),
        }
    }

    fn encode_on_cpu(
        &self,
        sequences: &[impl AsRef<[u32]> + Sync],
        pooling: Pooling,
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let mut out: Vec<Matrix> = views.iter().map(|_| Matrix::zeros(sequences.len(), self.width())).collect();
        let threads = rayon::current_num_threads();
        let total: usize = sequences.iter().map(|s| s.as_ref().len()).sum();
        // Few texts become smaller tasks, so that no core waits for another.
        let max_tokens = (total / (4 * threads)).clamp(MIN_TASK_TOKENS, self.bert.task_tokens());
        let mut tasks = Vec::new();
        let mut rest: Vec<&mut [f32]> = out.iter_mut().map(Matrix::as_mut_slice).collect();
        for range in forward::groups(sequences, max_tokens) {
            let cut = range.len() * self.width();
            let (rows, after): (Vec<_>, Vec<_>) = rest.into_iter().map(|view| view.split_at_mut(cut)).unzip();
            tasks.push((range, rows));
            rest = after;
        }
        // All cores share a lone query. With other queries at the same time each gets one core, and none waits for another.
        let call = Call::begin(&self.calls);
        let share = if tasks.len() == 1 && call.only { self.bert.team_size(total, threads) } else { 1 };
        tasks.into_par_iter().try_for_each_init(forward::Scratch::default, |scratch, (range, mut rows)| {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let batch: Vec<&[u32]> = sequences[range.clone()].iter().map(AsRef::as_ref).collect();
            let parts: Vec<Option<Dropout>> = views.iter().map(|view| view.map(|d| d.part(range.clone()))).collect();
            Team::run(share, |team| self.bert.forward_views(&batch, &parts, pooling, scratch, team, &mut rows));
            progress.advance((batch.len() * views.len()) as u64);
            Ok(())
        })?;
        Ok(out)
    }

    fn check(&self, sequences: &[impl AsRef<[u32]>]) -> Result<()> {
        for (i, sequence) in sequences.iter().enumerate() {
            let ids = sequence.as_ref();
            if ids.is_empty() || ids.len() > self.config.max_position_embeddings {
                return Err(Error::input(
                    format!("sequence {i}"),
                    format!("has {} tokens, the encoder takes 1 to {}", ids.len(), self.config.max_position_embeddings),
                ));
            }
            if let Some(id) = ids.iter().find(|&&id| id as usize >= self.config.vocab_size) {
                return Err(Error::input(
                    format!("sequence {i}"),
                    format!("holds token {id}, the encoder's vocabulary ends at {}", self.config.vocab_size - 1),
                ));
            }
            ids.iter().try_for_each(|&id| self.bert.check_token(id))?;
        }
        Ok(())
    }
}

/// Counts a batch while it is encoded.
struct Call<'a> {
    calls: &'a AtomicUsize,
    // Whether no other batch was under way when it began.
    only: bool,
}

impl<'a> Call<'a> {
    fn begin(calls: &'a AtomicUsize) -> Self {
        Call { calls, only: calls.fetch_add(1, Ordering::Relaxed) == 0 }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }
}
