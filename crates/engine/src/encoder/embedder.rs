//! From raw text to embeddings, for building, searching and training alike.

use std::borrow::Cow;
use std::path::Path;

use rayon::prelude::*;

use super::{Convolution, Device, Dropout, Encoder, Precision, Terms, pull};
use crate::model::{EmbeddingConfig, Model};
use crate::progress::Progress;
use crate::text::Clean;
use crate::{Error, Matrix, Result};

/// How texts become embeddings.
#[derive(Clone, Debug)]
pub struct EmbedderConfig {
    /// A registered name, a name on the hub that was pulled, or a Hugging Face directory.
    pub encoder: String,
    pub pooling: super::Pooling,
    /// Tokens per text at most, with `[CLS]` and `[SEP]`; `None` is the encoder's own length.
    pub max_tokens: Option<usize>,
    /// Cleaning before tokenisation.
    pub clean: Clean,
    /// Scale embeddings to unit length.
    pub unit_length: bool,
    pub precision: Precision,
    pub device: Device,
}

impl Default for EmbedderConfig {
    fn default() -> Self {
        EmbedderConfig {
            encoder: pull::DEFAULT.to_owned(),
            pooling: super::Pooling::Mean,
            max_tokens: None,
            clean: Clean::default(),
            unit_length: false,
            precision: Precision::AUTO,
            device: Device::Auto,
        }
    }
}

/// An encoder with the settings that turn a text into an embedding.
pub struct Embedder {
    // None in a model that takes terms instead.
    encoder: Option<Encoder>,
    config: EmbeddingConfig,
}

impl Embedder {
    /// Loads the encoder to the configured device. A registered encoder that is missing is fetched first.
    pub fn load(config: &EmbedderConfig, progress: &dyn Progress) -> Result<Self> {
        pull::locate_or_pull(&config.encoder, progress)?;
        Embedder::load_local(config)?.on(config.device, progress)
    }

    /// Loads an encoder that is on this machine, to the CPU.
    pub fn load_local(config: &EmbedderConfig) -> Result<Self> {
        let EmbedderConfig { encoder: name, pooling, max_tokens, clean, unit_length, precision, .. } = config;
        let encoder = Encoder::load_in(&pull::locate(name)?, *precision)?;
        let limit = encoder.config().max_position_embeddings;
        let max_tokens = max_tokens.unwrap_or(encoder.config().default_length());
        if !(3..=limit).contains(&max_tokens) {
            return Err(Error::config(format!(
                "encoder {name} takes 3 to {limit} tokens with [CLS] and [SEP], not {max_tokens}"
            )));
        }
        let config = EmbeddingConfig {
            encoder: portable_name(name),
            encoder_sha256: encoder.sha256().to_owned(),
            width: encoder.width(),
            pooling: *pooling,
            max_tokens,
            clean: *clean,
            unit_length: *unit_length,
            precision: *precision,
            terms: None,
            convolution: None,
        };
        Ok(Embedder { encoder: Some(encoder), config })
    }

    /// Takes terms and their learned layer instead of an encoder.
    pub fn of_terms(terms: Terms, clean: Clean) -> Self {
        let config = EmbeddingConfig {
            encoder: super::TERMS.into(),
            encoder_sha256: terms.sha256(),
            width: terms.width(),
            pooling: super::Pooling::Mean,
            max_tokens: 0,
            clean,
            unit_length: false,
            precision: Precision::F32,
            terms: Some(terms),
            convolution: None,
        };
        Embedder { encoder: None, config }
    }

    /// Loads the encoder a model was trained with, and refuses another one under the same name. Its products run in the
    /// precision of the model's own vectors.
    pub fn of_model(config: &EmbeddingConfig) -> Result<Self> {
        Embedder::of_model_in(config, config.precision)
    }

    /// The same in another precision than the model's.
    pub fn of_model_in(config: &EmbeddingConfig, precision: Precision) -> Result<Self> {
        if config.terms.is_some() {
            return Ok(Embedder { encoder: None, config: config.clone() });
        }
        let embedder = Embedder::load_local(&EmbedderConfig {
            encoder: config.encoder.clone(),
            pooling: config.pooling,
            max_tokens: Some(config.max_tokens),
            clean: config.clean,
            unit_length: config.unit_length,
            precision,
            device: Device::Cpu,
        })?;
        if embedder.config.encoder_sha256 != config.encoder_sha256 {
            return Err(Error::format(
                embedder.encoder.as_ref().map_or(Path::new(""), Encoder::dir),
                format!(
                    "weights have SHA-256 {}, the model was trained with {}; pull that version of {} or train again",
                    embedder.config.encoder_sha256, config.encoder_sha256, config.encoder
                ),
            ));
        }
        Ok(embedder.with_convolution(config.convolution.clone()))
    }

    /// Pools token states by a learned convolution, where one is given.
    pub fn with_convolution(mut self, convolution: Option<Convolution>) -> Self {
        if let Some(convolution) = &convolution {
            self.config.width = convolution.outputs;
        }
        self.config.convolution = convolution;
        self
    }

    /// Loads the encoder of a model, and fetches a registered one that is missing. Default: the model's own precision.
    pub fn for_model(model: &Model, precision: Option<Precision>, progress: &dyn Progress) -> Result<Self> {
        let Some(config) = &model.config.embedding else {
            return Err(Error::config(
                "this model was trained on user vectors and cannot encode text; give vectors instead",
            ));
        };
        if config.terms.is_none() {
            pull::locate_or_pull(&config.encoder, progress)?;
        }
        Embedder::of_model_in(config, precision.unwrap_or(config.precision))
    }

    /// Moves the encoder to where `device` says.
    pub fn on(self, device: Device, progress: &dyn Progress) -> Result<Self> {
        let encoder = self.encoder.map(|encoder| encoder.on(device, progress)).transpose()?;
        Ok(Embedder { encoder, ..self })
    }

    /// The settings, as a model records them.
    pub fn config(&self) -> &EmbeddingConfig {
        &self.config
    }

    /// The encoder, where there is one.
    pub fn encoder(&self) -> Option<&Encoder> {
        self.encoder.as_ref()
    }

    /// The GPU the encoder computes on, where it does.
    pub fn gpu(&self) -> Option<&cuda::Device> {
        self.encoder.as_ref().and_then(Encoder::gpu)
    }

    pub fn width(&self) -> usize {
        self.config.width
    }

    fn loaded(&self) -> &Encoder {
        self.encoder.as_ref().expect("without terms there is an encoder")
    }

    /// Token ids of cleaned texts; term numbers in a model with terms.
    pub fn tokens(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<u32>>> {
        if let Some(terms) = &self.config.terms {
            let vocabulary = terms.vocabulary();
            let of = |text: &str| vocabulary.term_numbers(&self.config.clean.apply(text, None));
            return Ok(texts.par_iter().map(|text| of(text.as_ref())).collect());
        }
        // The authors cut to max_length words and to max_length + 1 ids.
        let max_words = self.config.max_tokens - 1;
        let cleaned: Vec<Cow<str>> =
            texts.par_iter().map(|text| self.config.clean.apply(text.as_ref(), Some(max_words))).collect();
        self.loaded().tokenizer().encode(&cleaned, self.config.max_tokens)
    }

    /// Embeddings of token sequences, or with `dropout` one view of them.
    pub fn encode_tokens(
        &self,
        tokens: &[impl AsRef<[u32]> + Sync],
        dropout: Option<Dropout>,
        progress: &dyn Progress,
    ) -> Result<Matrix> {
        let views = self.encode_views(tokens, &[dropout], progress)?;
        Ok(views.into_iter().next().expect("one view was requested"))
    }

    /// Several views of token sequences; `None` is without dropout.
    pub fn encode_views(
        &self,
        tokens: &[impl AsRef<[u32]> + Sync],
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let mut out = match (&self.config.terms, &self.config.convolution) {
            (None, None) => self.loaded().encode_views(tokens, self.config.pooling, views, progress)?,
            _ if views.iter().any(Option::is_some) => {
                return Err(Error::config(
                    "terms and learned convolutions have no dropout: views need an encoder's own embeddings",
                ));
            }
            (Some(terms), _) => {
                let rows = terms.encode(tokens)?;
                progress.advance((tokens.len() * views.len()) as u64);
                vec![rows; views.len()]
            }
            (None, Some(convolution)) => {
                let pass = |_: &_| self.loaded().convolve(convolution, tokens, progress);
                views.iter().map(pass).collect::<Result<_>>()?
            }
        };
        if self.config.unit_length {
            out.iter_mut().for_each(Matrix::normalize_rows);
        }
        Ok(out)
    }

    /// Embeddings of texts.
    pub fn encode(&self, texts: &[impl AsRef<str> + Sync], progress: &dyn Progress) -> Result<Matrix> {
        self.encode_tokens(&self.tokens(texts)?, None, progress)
    }
}

/// A directory is recorded by its absolute path, so that the model can be used from elsewhere.
fn portable_name(name: &str) -> String {
    let path = Path::new(name);
    if path.is_dir() {
        std::fs::canonicalize(path).map_or_else(|_| name.to_owned(), |p| p.to_string_lossy().into_owned())
    } else {
        name.to_owned()
    }
}
