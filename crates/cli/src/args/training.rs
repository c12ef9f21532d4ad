//! How a model is trained.

use std::path::PathBuf;

use clap::Args as Flags;
use engine::encoder::Pooling;
use engine::{Error, Result};
use methods::{Input, MethodHandle, Training};
use micpq::BuildConfig;
use serde_json::Value;
use train::TrainConfig;

/// How a model is trained.
#[derive(Flags, Clone)]
#[command(next_help_heading = "Training")]
pub struct TrainingArgs {
    /// Bits of a code: 16, 32, 64 or 128. `train` takes several
    #[arg(long, default_values_t = [BuildConfig::BITS], value_name = "N[,N...]", value_delimiter = ',')]
    pub bits: Vec<usize>,
    /// Training method: distilled (one code for the particular document and for its kind), micpq (the paper's), opq, or
    /// another of docs/methods.md. Default: distilled, and micpq with --preset
    #[arg(long)]
    pub method: Option<MethodHandle>,
    /// Input of the method: embeddings, or terms (tfidf; for vdsh, nash, wish, bmsh, corrsh, ammi)
    #[arg(long, value_name = "encoder|tfidf", default_value_t = Input::Encoder)]
    pub input: Input,
    /// Random seed. `train` takes several
    #[arg(long, default_values_t = [TrainConfig::default().seed], value_name = "N[,N...]", value_delimiter = ',')]
    pub seed: Vec<u64>,
    /// Views for training: full:R (R encoder passes with dropout per document), lastL:R (dropout only in the last L layers)
    /// or noise[:R] (a model of that noise, fitted on a sample: a sixth of the encoding). Default: that of the method, noise:12
    /// for distilled, full:8 or (CLS pooling) full:16 for micpq
    #[arg(long, value_name = "full:R|lastL:R|noise[:R]")]
    pub views: Option<String>,
    /// A whole run of the paper, from encoder to training: paper:agnews, paper:dbpedia or paper:nyt as the authors' code runs
    /// it, paper-text:agnews and so on as the paper's text says. Other flags change it
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Maximum number of epochs. Default: that of the method or preset
    #[arg(long)]
    pub epochs: Option<usize>,
    /// Stop after this many epochs without improvement. Default: that of the method or preset
    #[arg(long)]
    pub patience: Option<usize>,
    /// Documents per training step. Default: that of the method or preset
    #[arg(long)]
    pub batch: Option<usize>,
    /// Learning rate of Adam. Default: that of the method or preset
    #[arg(long)]
    pub learning_rate: Option<f64>,
    /// Weight of the mutual-information term; 0 is the paper's ablation. Default: that of the method or preset
    #[arg(long)]
    pub prob_weight: Option<f64>,
    /// Temperature of the soft code. Default: that of the method or preset
    #[arg(long)]
    pub tau: Option<f64>,
    /// Temperature of the contrastive loss. Default: that of the method or preset
    #[arg(long)]
    pub tau_cl: Option<f64>,
    /// Dropout rate of the views. Default: 0.3
    #[arg(long)]
    pub dropout: Option<f64>,
    /// Train without Gumbel noise (the paper's softmax ablation)
    #[arg(long)]
    pub no_gumbel: bool,
    /// Width of the hidden layer. Default: that of the method or preset
    #[arg(long)]
    pub hidden: Option<usize>,
    /// Any other training option by its name in config.json, such as floor=0, information=posterior,
    /// clean_first_epoch=false, alpha=0.2 or distance=squared. Can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Maximum number of training documents; the seed samples a larger corpus evenly
    #[arg(long, default_value_t = BuildConfig::SAMPLE, value_name = "N")]
    pub sample: usize,
    /// Directory that caches views and checkpoints between runs. Default: below the user's cache directory
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

impl TrainingArgs {
    pub fn dropout(&self) -> f64 {
        self.dropout.unwrap_or(BuildConfig::DROPOUT)
    }

    /// The training of exactly one model.
    pub fn training(&self, pooling: Pooling) -> Result<Training> {
        match (&self.bits[..], &self.seed[..]) {
            ([bits], [seed]) => self.one(*bits, *seed, pooling),
            (bits, seeds) => Err(Error::config(format!(
                "--bits and --seed ask for {} models, but an index has one; \"micpq train\" trains several at once",
                bits.len() * seeds.len()
            ))),
        }
    }

    /// One training per seed and code length. The longest code comes first within a seed: it takes longest.
    pub fn trainings(&self, pooling: Pooling) -> Result<Vec<Training>> {
        let mut lengths = self.bits.clone();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let mut seeds = self.seed.clone();
        seeds.dedup();
        seeds.iter().flat_map(|s| lengths.iter().map(move |b| (*b, *s))).map(|(b, s)| self.one(b, s, pooling)).collect()
    }

    /// The corpus is sampled with the first seed.
    pub fn sample_seed(&self) -> u64 {
        self.seed[0]
    }

    fn one(&self, bits: usize, seed: u64, pooling: Pooling) -> Result<Training> {
        let method = BuildConfig::method(self.method.clone(), self.preset.is_some())?;
        let mut training = Training::new(method, bits).reading(self.input)?;
        training = match &self.preset {
            Some(name) => training.with_option("preset", name.clone().into())?,
            None => training.suited_to(pooling)?,
        };
        // Softmax without noise, the paper's ablation, has no floor either: that belongs to the noise.
        let options: [(&str, Option<Value>); 12] = [
            ("seed", Some(seed.into())),
            ("views", self.views.clone().map(Into::into)),
            ("epochs", self.epochs.map(Into::into)),
            ("patience", self.patience.map(Into::into)),
            ("batch", self.batch.map(Into::into)),
            ("learning_rate", self.learning_rate.map(Into::into)),
            ("prob_weight", self.prob_weight.map(Into::into)),
            ("tau", self.tau.map(Into::into)),
            ("contrast_temperature", self.tau_cl.map(Into::into)),
            ("gumbel", self.no_gumbel.then(|| false.into())),
            ("floor", self.no_gumbel.then(|| 0.0.into())),
            ("hidden", self.hidden.map(Into::into)),
        ];
        for (name, value) in options {
            if let Some(value) = value {
                training = training.with_option(name, value)?;
            }
        }
        let training = self.set.iter().try_fold(training, |training, pair| with_option(training, pair))?;
        training.validate()?;
        Ok(training)
    }
}

/// Splits `NAME=VALUE`. A value that is not JSON is a string.
fn option(pair: &str) -> Result<(&str, Value)> {
    let (name, value) =
        pair.split_once('=').ok_or_else(|| Error::config(format!("--set {pair}: write it as NAME=VALUE")))?;
    Ok((name, serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()))))
}

fn with_option(training: Training, pair: &str) -> Result<Training> {
    let (name, value) = option(pair)?;
    training.with_option(name, value).map_err(|e| Error::config(format!("--set {pair}: {e}")))
}
