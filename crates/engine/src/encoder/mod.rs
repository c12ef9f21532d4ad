//! The frozen encoder: token ids to one embedding per document.
//!
//! [`pull`] puts a Hugging Face directory where [`Encoder::load`] finds it, [`recipe`] reads how its makers meant it,
//! [`config`] its sizes, [`weights`] reads and checks its tensors, [`transformer`] packs its layers, [`forward`] runs them over
//! packed sequences, [`statics`] does without layers, [`device`] moves them to a GPU, [`pooling`] and [`head`] turn token states into one vector, and [`Embedder`] turns raw text into
//! embeddings for every surface, by other processes where it has [`EncodingWorkers`]. [`crate::model::FastEncoder`] is a copy of
//! all of it for queries, distilled into a table.

mod address;
#[cfg(feature = "hub")]
pub(crate) mod agent;
#[cfg(feature = "hub")]
mod cache;
mod choice;
mod config;
mod convolution;
mod device;
#[cfg(feature = "hub")]
mod download;
mod embedder;
mod embedding;
mod forward;
mod gpu_tensors;
mod head;
#[cfg(feature = "hub")]
mod hub;
mod linear;
#[cfg(not(feature = "hub"))]
mod offline;
#[cfg(feature = "hub")]
mod package;
mod pooling;
mod precision;
pub mod pull;
mod recipe;
mod remote;
#[cfg(feature = "hub")]
mod service;
mod statics;
mod team;
mod terms;
mod transformer;
mod weights;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels::{Backend, bf16};
use rayon::prelude::*;

pub use address::ServiceConfig;
pub use choice::QueryEncoder;
pub use config::{Architecture, EncoderConfig};
pub use convolution::{Convolution, WINDOW, windows};
pub use device::Device;
pub use embedder::{Embedder, EmbedderConfig, Role};
pub use embedding::EmbeddingConfig;
pub use forward::Dropout;
pub use head::Step;
#[cfg(not(feature = "hub"))]
use offline::{download, service};
pub use pooling::{Pool, Pooling, PoolingChoice};
pub use precision::Precision;
pub use recipe::Recipe;
pub use remote::EncodingWorkers;
pub use terms::{Layer, NAME as TERMS, Terms, Vocabulary, Weighting, terms_of};

use crate::progress::Progress;
use crate::tokenizer::Tokenizer;
use crate::{Error, Matrix, Result};
use recipe::Kind;
use team::Team;

/// With fewer tokens in a task, a product's weights are read for too few rows.
const MIN_TASK_TOKENS: usize = 64;
/// Tokens that a query has at most, as a rule.
const QUERY_TOKENS: usize = 16;

/// From token ids to token states.
enum Network {
    Transformer(Box<transformer::Transformer>),
    Static(statics::Static),
}

/// A GPU's vectors may be so far from the CPU's: more than rounding to 16 bits here and to bytes there, less than a wrong layer.
const MAX_DISTANCE_TO_CPU: f32 = 0.25;

pub struct Encoder {
    dir: PathBuf,
    config: EncoderConfig,
    recipe: Recipe,
    sha256: String,
    tokenizer: Tokenizer,
    precision: Precision,
    network: Network,
    gpu: Option<device::Gpu>,
    // Batches on the CPU at this moment.
    calls: AtomicUsize,
}

impl Encoder {
    /// Loads a directory of Hugging Face, sentence-transformers or model2vec: `config.json`, `model.safetensors`,
    /// `tokenizer.json` or `vocab.txt`, and `modules.json` with what it names.
    pub fn load(dir: &Path) -> Result<Self> {
        Encoder::load_in(dir, Precision::F32)
    }

    /// [`Encoder::load`] with matrix products in another precision.
    pub fn load_in(dir: &Path, precision: Precision) -> Result<Self> {
        let recipe = Recipe::read(dir)?;
        let place = &recipe.network;
        let config = EncoderConfig::read(&recipe)?;
        let mut tokenizer = Tokenizer::load(place)?;
        if recipe.kind == Kind::Static {
            tokenizer = tokenizer.of_words(place, recipe.drop_unknown)?;
        }
        if let Some((id, token)) = tokenizer.beyond(config.vocab_size) {
            return Err(Error::format(
                place,
                format!(
                    "its tokenizer has token \"{token}\" with id {id}, its weights have {} tokens: tokenizer and weights belong to different encoders; fetch it again",
                    config.vocab_size
                ),
            ));
        }
        let weights = weights::Weights::open(place)?;
        let sha256 = weights.sha256()?;
        let network = match recipe.kind {
            Kind::Transformer => {
                Network::Transformer(Box::new(transformer::Transformer::new(&config, weights, precision)?))
            }
            Kind::Static => Network::Static(statics::Static::new(place, &weights)?),
        };
        Ok(Encoder {
            dir: dir.to_path_buf(),
            config,
            recipe,
            sha256,
            tokenizer,
            precision,
            network,
            gpu: None,
            calls: AtomicUsize::new(0),
        })
    }

    /// Moves it to `device`. [`Device::Auto`] takes a GPU that works, and notes why a GPU that is there does not. Only BERT, and what
    /// is BERT with other names, runs on a GPU: others stay on the CPU, and say so where a GPU was asked for.
    pub fn on(mut self, device: Device, progress: &dyn Progress) -> Result<Self> {
        let architecture = self.config.architecture;
        if !gpu_tensors::has_gpu(architecture) {
            if matches!(device, Device::Cuda(_)) {
                progress.note(&format!(
                    "encoding on the CPU: {} does not run on a GPU, only BERT, RoBERTa and DistilBERT do",
                    architecture.name()
                ));
            }
            return Ok(self);
        }
        self.gpu = device::Gpu::open(device, &self.recipe.network, &self.config, progress)?;
        if let Some(gpu) = self.gpu.as_ref().filter(|_| architecture != Architecture::Bert) {
            let distance = self.distance_to_cpu(gpu)?;
            if distance.is_nan() || distance > MAX_DISTANCE_TO_CPU {
                let problem = format!("{} gives other vectors there than on the CPU", architecture.name());
                if matches!(device, Device::Cuda(_)) {
                    return Err(Error::device(format!(
                        "device {device}: {problem}; use the device cpu with this encoder"
                    )));
                }
                progress.note(&format!("encoding on the CPU: {problem}"));
                self.gpu = None;
            }
        }
        Ok(self)
    }

    /// How far a vector of the GPU is from the CPU's, relative to its length.
    fn distance_to_cpu(&self, gpu: &device::Gpu) -> Result<f32> {
        let ids = self.tokenizer.encode(
            &["Oil prices rise again, and the strike in the harbour goes on."],
            self.config.max_tokens().min(32),
        )?;
        let progress = crate::NoProgress;
        let here = self.encode_on_cpu(&ids, Pooling::Mean.into(), &[None], &progress)?.remove(0);
        let there = gpu.encode(&ids, cuda::Pooling::Mean, &[None], self.width(), &progress)?.remove(0);
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
        let apart = norm(&mut here.as_slice().iter().zip(there.as_slice()).map(|(a, b)| a - b));
        Ok(apart / norm(&mut here.as_slice().iter().copied()))
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
            // Its sums are f32 whatever the precision.
            _ if self.recipe.kind == Kind::Static => "f32",
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

    /// The description of embeddings in its directory.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Default maximum of tokens per text, with `[CLS]` and `[SEP]`.
    pub fn default_length(&self) -> usize {
        self.recipe.max_tokens.unwrap_or(usize::MAX).min(self.config.max_tokens())
    }

    /// Values of a token state, and of a pooled vector.
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
        pool: impl Into<Pool>,
        dropout: Option<Dropout>,
        progress: &dyn Progress,
    ) -> Result<Matrix> {
        let views = self.encode_views(sequences, pool, &[dropout], progress)?;
        Ok(views.into_iter().next().expect("one view was requested"))
    }

    /// Several views of the same sequences; `None` is the view without dropout. A GPU gets the tokens once.
    pub fn encode_views(
        &self,
        sequences: &[impl AsRef<[u32]> + Sync],
        pool: impl Into<Pool>,
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let pool = pool.into();
        self.check(sequences)?;
        for view in views.iter().flatten() {
            assert_eq!(view.len(), sequences.len(), "a number for every sequence");
        }
        match (&self.gpu, device::pooling(pool)) {
            (Some(gpu), Some(pooling)) => gpu.encode(sequences, pooling, views, self.width(), progress),
            (Some(_), None) => views.iter().map(|view| self.pool_states(sequences, pool, *view, progress)).collect(),
            (None, _) => self.encode_on_cpu(sequences, pool, views, progress),
        }
    }

    /// Pools on the CPU what the GPU does not pool itself.
    fn pool_states(
        &self,
        sequences: &[impl AsRef<[u32]> + Sync],
        pool: Pool,
        view: Option<Dropout>,
        progress: &dyn Progress,
    ) -> Result<Matrix> {
        let mut out = Matrix::zeros(sequences.len(), self.width());
        let rows = out.as_mut_slice().chunks_exact_mut(self.width()).collect();
        self.reduce(sequences, view, rows, |states, row| pool.apply(states, row), progress)?;
        Ok(out)
    }

    /// Wakes the threads that will share a query that is about to come, where no other batch is being encoded.
    pub fn wake(&self) {
        if let (Network::Transformer(transformer), None, 0) =
            (&self.network, &self.gpu, self.calls.load(Ordering::Relaxed))
        {
            team::wake(transformer.team_size(QUERY_TOKENS, rayon::current_num_threads()));
        }
    }

    fn encode_on_cpu(
        &self,
        sequences: &[impl AsRef<[u32]> + Sync],
        pool: Pool,
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let transformer = match &self.network {
            Network::Transformer(transformer) => transformer,
            Network::Static(_) => {
                return views.iter().map(|view| self.pool_states(sequences, pool, *view, progress)).collect();
            }
        };
        let mut out: Vec<Matrix> = views.iter().map(|_| Matrix::zeros(sequences.len(), self.width())).collect();
        let threads = rayon::current_num_threads();
        let total: usize = sequences.iter().map(|s| s.as_ref().len()).sum();
        let mut tasks = Vec::new();
        let mut rest: Vec<&mut [f32]> = out.iter_mut().map(Matrix::as_mut_slice).collect();
        for range in tasks_of(sequences, total, threads, transformer.task_tokens()) {
            let cut = range.len() * self.width();
            let (rows, after): (Vec<_>, Vec<_>) = rest.into_iter().map(|view| view.split_at_mut(cut)).unzip();
            tasks.push((range, rows));
            rest = after;
        }
        // All cores share a lone query. With other queries at the same time each gets one core, and none waits for another.
        let call = Call::begin(&self.calls);
        let share = if tasks.len() == 1 && call.only { transformer.team_size(total, threads) } else { 1 };
        let run = |scratch: &mut forward::Scratch, (range, mut rows): (Range<usize>, Vec<&mut [f32]>)| {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let batch: Vec<&[u32]> = sequences[range.clone()].iter().map(AsRef::as_ref).collect();
            let parts: Vec<Option<Dropout>> = views.iter().map(|view| view.map(|d| d.part(range.clone()))).collect();
            Team::run(share, |team| transformer.forward_views(&batch, &parts, pool, scratch, team, &mut rows));
            progress.advance((batch.len() * views.len()) as u64);
            Ok(())
        };
        if tasks.len() == 1 {
            // Not handed over to the pool: see `parallel`.
            tasks.into_iter().try_for_each(|task| run(&mut forward::Scratch::default(), task))?;
        } else {
            tasks.into_par_iter().try_for_each_init(forward::Scratch::default, run)?;
        }
        Ok(out)
    }

    fn check(&self, sequences: &[impl AsRef<[u32]>]) -> Result<()> {
        for (i, sequence) in sequences.iter().enumerate() {
            let ids = sequence.as_ref();
            let (min, max) = (usize::from(self.recipe.kind == Kind::Transformer), self.config.max_tokens());
            if !(min..=max).contains(&ids.len()) {
                return Err(Error::input(
                    format!("sequence {i}"),
                    format!("has {} tokens, the encoder takes {min} to {max}", ids.len()),
                ));
            }
            if let Some(id) = ids.iter().find(|&&id| id as usize >= self.config.vocab_size) {
                return Err(Error::input(
                    format!("sequence {i}"),
                    format!("holds token {id}, the encoder's vocabulary ends at {}", self.config.vocab_size - 1),
                ));
            }
            ids.iter().try_for_each(|&id| match &self.network {
                Network::Transformer(transformer) => transformer.check_token(id),
                Network::Static(table) => table.check_token(id),
            })?;
        }
        Ok(())
    }
}

/// The sequences of each task. Few texts become smaller tasks of about equal size, as many as threads or a multiple, so that no
/// core waits for another.
fn tasks_of(sequences: &[impl AsRef<[u32]>], total: usize, threads: usize, most_tokens: usize) -> Vec<Range<usize>> {
    let max_tokens = (total / (4 * threads)).clamp(MIN_TASK_TOKENS, most_tokens);
    let tasks = total.div_ceil(max_tokens);
    if tasks < threads || tasks > 16 * threads {
        return forward::groups(sequences, max_tokens);
    }
    let fewer = tasks / threads * threads;
    let tasks = if total.div_ceil(fewer) <= most_tokens { fewer } else { fewer + threads };
    // The smallest limit with which neighbours fill no more tasks: a limit of equal shares may leave a rest.
    let (mut low, mut high) = (total.div_ceil(tasks), 2 * total.div_ceil(tasks) + most_tokens);
    while low < high {
        let middle = low.midpoint(high);
        if forward::groups(sequences, middle).len() <= tasks { high = middle } else { low = middle + 1 }
    }
    forward::groups(sequences, low)
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
