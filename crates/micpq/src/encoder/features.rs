//! From raw text to feature vectors: the one way that building, searching and training take.

use std::borrow::Cow;
use std::path::Path;

use rayon::prelude::*;

use super::{Dropout, Encoder, pull};
use crate::model::{FeatureConfig, Model};
use crate::text::Clean;
use crate::watch::Watch;
use crate::{Error, Matrix, Result};

/// An encoder with the settings that turn a text into a vector.
pub struct Features {
    encoder: Encoder,
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
    ) -> Result<Self> {
        let encoder = Encoder::load(&pull::locate(name)?)?;
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
        };
        Ok(Features { encoder, config })
    }

    /// Loads the encoder a model was trained with, and refuses another one under the same name.
    pub fn of_model(config: &FeatureConfig) -> Result<Self> {
        let features =
            Features::new(&config.encoder, config.pooling, Some(config.max_tokens), config.clean, config.unit_length)?;
        if features.config.encoder_sha256 != config.encoder_sha256 {
            return Err(Error::format(
                features.encoder.dir(),
                format!(
                    "weights have SHA-256 {}, the model was trained with {}; pull that version of {} or train again",
                    features.config.encoder_sha256, config.encoder_sha256, config.encoder
                ),
            ));
        }
        Ok(features)
    }

    /// Loads the encoder of a model, fetching a registered one that is not here yet.
    pub fn for_model(model: &Model, watch: &dyn Watch) -> Result<Self> {
        let Some(config) = &model.config.features else {
            return Err(Error::config(
                "this model was trained on vectors the user brought: it cannot encode text, give it vectors instead",
            ));
        };
        pull::locate_or_pull(&config.encoder, watch)?;
        Features::of_model(config)
    }

    /// The settings, as a model records them.
    pub fn config(&self) -> &FeatureConfig {
        &self.config
    }

    /// The encoder.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Values in a vector.
    pub fn width(&self) -> usize {
        self.config.width
    }

    /// Cleans and tokenises.
    pub fn tokens(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<u32>>> {
        // The authors cut to max_length words and to max_length + 1 ids.
        let words = self.config.max_tokens - 1;
        let cleaned: Vec<Cow<str>> =
            texts.par_iter().map(|text| self.config.clean.apply(text.as_ref(), Some(words))).collect();
        self.encoder.tokenizer().encode(&cleaned, self.config.max_tokens)
    }

    /// Vectors of token sequences; with `dropout` one view of them.
    pub fn encode_tokens(
        &self,
        tokens: &[impl AsRef<[u32]> + Sync],
        dropout: Option<Dropout>,
        watch: &dyn Watch,
    ) -> Result<Matrix> {
        let mut out = self.encoder.encode(tokens, self.config.pooling, dropout, watch)?;
        if self.config.unit_length {
            out.normalize_rows();
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
