//! Static embeddings: a table of token vectors, as sentence-transformers (`StaticEmbedding`) and model2vec write them. A text is
//! the mean of its tokens' vectors, so an encoder of this kind is a thousand times as fast as a transformer.

use std::path::Path;

use kernels::Backend;
use kernels::dropout::{drop_row, mix};

use super::config::{Architecture, EncoderConfig};
use super::forward::Dropout;
use super::weights::{Embedding, Weights};
use crate::{Error, Result};

/// Tokens per text at most: no real text is longer.
const MAX_TOKENS: usize = 1 << 20;

/// Name of the table in sentence-transformers, and in model2vec.
const NAMES: [&str; 2] = ["embedding.weight", "embeddings"];

fn table(dir: &Path, weights: &Weights) -> Result<(&'static str, [usize; 2])> {
    for name in NAMES {
        match weights.shape(name) {
            Some(&[rows, width]) if rows > 0 && width > 0 => return Ok((name, [rows, width])),
            Some(shape) => {
                return Err(Error::format(dir, format!("its tensor \"{name}\" has shape {shape:?}, expected a table")));
            }
            None => {}
        }
    }
    Err(Error::format(
        dir,
        "is no directory of static embeddings: its weights have no table \"embedding.weight\" or \"embeddings\"; fetch it again",
    ))
}

/// The sizes of the table at `dir`.
pub fn config(dir: &Path) -> Result<EncoderConfig> {
    let weights = Weights::open(dir)?;
    let (_, [vocab_size, hidden_size]) = table(dir, &weights)?;
    // Newer model2vec can share rows between tokens and weigh them.
    for name in ["mapping", "weights"] {
        if weights.shape(name).is_some() {
            return Err(Error::format(
                dir,
                format!(
                    "its weights have a tensor \"{name}\" (a model2vec directory with a quantized vocabulary), which is not read; use one without"
                ),
            ));
        }
    }
    Ok(EncoderConfig {
        architecture: Architecture::Static,
        hidden_size,
        num_hidden_layers: 0,
        num_attention_heads: 0,
        intermediate_size: 0,
        vocab_size,
        max_position_embeddings: MAX_TOKENS,
        padding: None,
        type_vocab_size: 0,
        hidden_act: "none".into(),
        layer_norm_eps: 0.0,
        relative_buckets: 0,
        modern: None,
    })
}

pub struct Static {
    table: Embedding,
    width: usize,
}

impl Static {
    pub fn new(dir: &Path, weights: &Weights) -> Result<Self> {
        let (name, [rows, width]) = table(dir, weights)?;
        Ok(Static { table: weights.embedding(name, rows, width)?, width })
    }

    /// Refuses token `id` when its vector is damaged.
    pub fn check_token(&self, id: u32) -> Result<()> {
        self.table.check_row(id as usize)
    }

    /// The vectors of one text's tokens, `[tokens, width]`. A view has dropout in each of them, at the site of the embeddings of
    /// a transformer. It has no layers, so a view of the last layers is without dropout.
    pub fn states(&self, ids: &[u32], number: usize, dropout: Option<Dropout>, states: &mut Vec<f32>) {
        states.clear();
        states.resize(ids.len() * self.width, 0.0);
        for ((position, &id), row) in ids.iter().enumerate().zip(states.chunks_exact_mut(self.width)) {
            self.table.add_row(id as usize, row);
            if let Some((rate, key)) = dropout.and_then(|d| d.of_embeddings(number)) {
                drop_row(Backend::active(), row, mix(mix(key, 0), position as u64), rate);
            }
        }
    }
}
