//! From raw text to feature vectors: the one way that building, searching and training take.

use std::borrow::Cow;
use std::path::Path;

use rayon::prelude::*;

use super::{Convolution, Device, Dropout, Encoder, Precision, Terms, pull};
use crate::model::{FeatureConfig, Model};
use crate::text::Clean;
use crate::watch::Watch;
use crate::{Error, Matrix, Result};

/// An encoder with the settings that turn a text into a vector.
pub struct Features {
    // None in a model that takes words instead.
    encoder: Option<Encoder>,
    config: FeatureConfig,
}

impl Features {
    /// Loads encoder `name` (a registered name, a hub name already pulled, or a directory) with the given settings.
    /// `max_tokens` of `None` is the encoder's own length.
    pub fn new(
        name: &str,
        pooling: super::Pooling,
        max_tokens: Option<usize>,
        clean: Clean,
        unit_length: bool,
        precision: Precision,
    ) -> Result<Self> {
        let encoder = Encoder::load_in(&pull::locate(name)?, precision)?;
        let limit = encoder.config().max_position_embeddings;
        let max_tokens = max_tokens.unwrap_or(encoder.config().default_length());
        if !(3..=limit).contains(&max_tokens) {
            return Err(Error::config(format!(
                "encoder {name} takes 3 to {limit} tokens with [CLS] and [SEP], not {max_tokens}"
            )));
        }
        let config = FeatureConfig {
            encoder: portable_name(name),
            encoder_sha256: encoder.sha256().to_owned(),
            width: encoder.width(),
            pooling,
            max_tokens,
            clean,
            unit_length,
            precision,
            terms: None,
            convolution: None,
        };
        Ok(Features { encoder: Some(encoder), config })
    }

    /// Takes words and their learned layer instead of an encoder.
    pub fn of_terms(terms: Terms, clean: Clean) -> Self {
        let config = FeatureConfig {
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
        Features { encoder: None, config }
    }

    /// Loads the encoder a model was trained with, and refuses another one under the same name. Its products run in the
    /// precision of the model's own vectors.
    pub fn of_model(config: &FeatureConfig) -> Result<Self> {
        Features::of_model_in(config, config.precision)
    }

    /// The same in another precision than the model's.
    pub fn of_model_in(config: &FeatureConfig, precision: Precision) -> Result<Self> {
        if config.terms.is_some() {
            return Ok(Features { encoder: None, config: config.clone() });
        }
        let FeatureConfig { encoder, pooling, max_tokens, clean, unit_length, .. } = config;
        let features = Features::new(encoder, *pooling, Some(*max_tokens), *clean, *unit_length, precision)?;
        if features.config.encoder_sha256 != config.encoder_sha256 {
            return Err(Error::format(
                features.encoder.as_ref().map_or(Path::new(""), Encoder::dir),
                format!(
                    "weights have SHA-256 {}, the model was trained with {}; pull that version of {} or train again",
                    features.config.encoder_sha256, config.encoder_sha256, config.encoder
                ),
            ));
        }
        Ok(features.with_convolution(config.convolution.clone()))
    }

    /// Pools token states by a learned convolution, where one is given.
    pub fn with_convolution(mut self, convolution: Option<Convolution>) -> Self {
        if let Some(convolution) = &convolution {
            self.config.width = convolution.outputs;
        }
        self.config.convolution = convolution;
        self
    }

    /// Loads the encoder of a model, fetching a registered one that is not here yet; in the model's own precision unless
    /// another is given.
    pub fn for_model(model: &Model, precision: Option<Precision>, watch: &dyn Watch) -> Result<Self> {
        let Some(config) = &model.config.features else {
            return Err(Error::config(
                "this model was trained on vectors the user brought: it cannot encode text, give it vectors instead",
            ));
        };
        if config.terms.is_none() {
            pull::locate_or_pull(&config.encoder, watch)?;
        }
        Features::of_model_in(config, precision.unwrap_or(config.precision))
    }

    /// Moves the encoder to where `device` says.
    pub fn on(self, device: Device, watch: &dyn Watch) -> Result<Self> {
        let encoder = self.encoder.map(|encoder| encoder.on(device, watch)).transpose()?;
        Ok(Features { encoder, ..self })
    }

    /// The settings, as a model records them.
    pub fn config(&self) -> &FeatureConfig {
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

    /// Values in a vector.
    pub fn width(&self) -> usize {
        self.config.width
    }

    fn loaded(&self) -> &Encoder {
        self.encoder.as_ref().expect("without words there is an encoder")
    }

    /// Cleans and tokenises; of words instead of an encoder, their numbers.
    pub fn tokens(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<u32>>> {
        if let Some(terms) = &self.config.terms {
            let vocabulary = terms.vocabulary();
            let of = |text: &str| vocabulary.terms(&self.config.clean.apply(text, None));
            return Ok(texts.par_iter().map(|text| of(text.as_ref())).collect());
        }
        // The authors cut to max_length words and to max_length + 1 ids.
        let words = self.config.max_tokens - 1;
        let cleaned: Vec<Cow<str>> =
            texts.par_iter().map(|text| self.config.clean.apply(text.as_ref(), Some(words))).collect();
        self.loaded().tokenizer().encode(&cleaned, self.config.max_tokens)
    }

    /// Vectors of token sequences; with `dropout` one view of them.
    pub fn encode_tokens(
        &self,
        tokens: &[impl AsRef<[u32]> + Sync],
        dropout: Option<Dropout>,
        watch: &dyn Watch,
    ) -> Result<Matrix> {
        let views = self.encode_views(tokens, &[dropout], watch)?;
        Ok(views.into_iter().next().expect("one view was asked for"))
    }

    /// Several views of token sequences, `None` the clean one.
    pub fn encode_views(
        &self,
        tokens: &[impl AsRef<[u32]> + Sync],
        views: &[Option<Dropout>],
        watch: &dyn Watch,
    ) -> Result<Vec<Matrix>> {
        let mut out = match (&self.config.terms, &self.config.convolution) {
            (None, None) => self.loaded().encode_views(tokens, self.config.pooling, views, watch)?,
            _ if views.iter().any(Option::is_some) => {
                return Err(Error::config(
                    "words and learned convolutions have no dropout: views are made of an encoder's own vectors",
                ));
            }
            (Some(terms), _) => {
                let rows = terms.encode(tokens)?;
                watch.advance((tokens.len() * views.len()) as u64);
                vec![rows; views.len()]
            }
            (None, Some(convolution)) => {
                let pass = |_: &_| self.loaded().convolve(convolution, tokens, watch);
                views.iter().map(pass).collect::<Result<_>>()?
            }
        };
        if self.config.unit_length {
            out.iter_mut().for_each(Matrix::normalize_rows);
        }
        Ok(out)
    }

    /// Vectors of texts.
    pub fn encode(&self, texts: &[impl AsRef<str> + Sync], watch: &dyn Watch) -> Result<Matrix> {
        self.encode_tokens(&self.tokens(texts)?, None, watch)
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
