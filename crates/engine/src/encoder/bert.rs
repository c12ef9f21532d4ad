//! Weights and layers of a BERT encoder, packed for the kernels. [`super::forward`] runs them.

use kernels::Backend;
use kernels::attention::{Shape, Tiled};
use kernels::gemm::Epilogue;
use rayon::prelude::*;

use super::Precision;
use super::linear::Linear;
use super::weights::{Embedding, EncoderConfig, Weights};
use crate::Result;

pub(super) struct Norm {
    pub scale: Vec<f32>,
    pub shift: Vec<f32>,
}

pub(super) struct Layer {
    // Queries, keys and values in one product: [3 * hidden, hidden].
    pub attention_in: Linear,
    pub attention_out: Linear,
    pub attention_norm: Norm,
    pub feed_in: Linear,
    pub feed_out: Linear,
    pub feed_norm: Norm,
}

/// An encoder's weights.
pub struct Bert {
    pub(super) hidden: usize,
    pub(super) heads: Shape,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    pub(super) tokens: Embedding,
    pub(super) positions: Embedding,
    pub(super) types: Embedding,
    pub(super) norm: Norm,
    pub(super) layers: Vec<Layer>,
    pub(super) precision: Precision,
    /// Where the CPU runs attention on AMX tiles.
    pub(super) tiled: Option<Tiled>,
    pub(super) batching: Batching,
}

#[derive(Clone, Copy)]
pub(super) enum Activation {
    Gelu,
    GeluTanh,
    Relu,
}

impl Activation {
    pub(super) fn epilogue<'a>(self) -> impl Fn(&'a [f32]) -> Epilogue<'a> {
        match self {
            Activation::Gelu => Epilogue::BiasGelu,
            Activation::GeluTanh => Epilogue::BiasGeluTanh,
            Activation::Relu => Epilogue::BiasRelu,
        }
    }
}

/// How many tokens a layer processes at once.
#[derive(Clone, Copy)]
pub(super) struct Batching {
    /// Tokens of a group of whole sequences. Values between two products then stay in the second-level cache. A longer
    /// sequence is a group of its own.
    pub group: usize,
    /// Rows of one product. The widest of them (1,536 to 3,072 values of four bytes) stay in that cache too.
    pub block: usize,
    /// Tokens of a task: enough to use the cached weights of a layer for many rows, few enough that the states stay in the
    /// cache too.
    pub task: usize,
}

impl Batching {
    /// The fastest sizes that were measured: for caches of half a megabyte and registers, or for AMX tiles of sixteen rows
    /// (few of them half empty) and caches of two megabytes, which all CPUs with tiles have. `inner` is the width of the
    /// widest rows.
    fn new(precision: Precision, inner: usize) -> Self {
        // The widest rows may take this much of that cache beside the weights: 192 rows of MiniLM in `bf16`, 96 in `f32`.
        const MAX_BYTES: usize = 576 << 10;
        let blocks = |size: usize| (MAX_BYTES / (inner * size) / 32 * 32).clamp(32, 384);
        let (tiles, block) = match precision {
            Precision::F32 => (false, 0),
            Precision::Bf16 => (kernels::bf16::Unit::of(Backend::active()) == kernels::bf16::Unit::Amx, blocks(2)),
            Precision::Int8 => (kernels::int8::Unit::of(Backend::active()) == kernels::int8::Unit::Amx, blocks(4)),
        };
        if tiles { Batching { group: 384, block, task: 1536 } } else { Batching { group: 96, block: 48, task: 512 } }
    }
}

impl Bert {
    /// Reads and packs every tensor the forward pass needs.
    pub fn new(config: &EncoderConfig, weights: &Weights, precision: Precision) -> Result<Self> {
        weights.check(config)?;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let norm = |name: &str| -> Result<Norm> {
            Ok(Norm {
                scale: weights.read(&format!("{name}.LayerNorm.weight"), &[hidden])?,
                shift: weights.read(&format!("{name}.LayerNorm.bias"), &[hidden])?,
            })
        };
        let linear = |names: &[String], outputs: usize, inputs: usize| -> Result<Linear> {
            let (mut weight, mut bias) = (Vec::new(), Vec::new());
            for name in names {
                weight.extend(weights.read(&format!("{name}.weight"), &[outputs, inputs])?);
                bias.extend(weights.read(&format!("{name}.bias"), &[outputs])?);
            }
            Ok(Linear::new(&weight, bias, inputs, precision))
        };
        // In parallel, since the first query waits for it. Of several bad tensors the error names the first layer's.
        let layers: Vec<Result<Layer>> = (0..config.num_hidden_layers)
            .into_par_iter()
            .map(|i| {
                let at = |part: &str| format!("encoder.layer.{i}.{part}");
                let qkv = ["query", "key", "value"].map(|part| at(&format!("attention.self.{part}")));
                Ok(Layer {
                    attention_in: linear(&qkv, hidden, hidden)?,
                    attention_out: linear(&[at("attention.output.dense")], hidden, hidden)?,
                    attention_norm: norm(&at("attention.output"))?,
                    feed_in: linear(&[at("intermediate.dense")], inner, hidden)?,
                    feed_out: linear(&[at("output.dense")], hidden, inner)?,
                    feed_norm: norm(&at("output"))?,
                })
            })
            .collect();
        let layers = layers.into_iter().collect::<Result<Vec<_>>>()?;
        let heads = Shape { heads: config.num_attention_heads, width: hidden / config.num_attention_heads };
        let tiled = Tiled::new(Backend::active(), heads).filter(|_| precision != Precision::F32);
        let table = |name: &str, rows: usize| weights.embedding(&format!("embeddings.{name}.weight"), rows, hidden);
        Ok(Bert {
            hidden,
            heads,
            epsilon: config.layer_norm_eps,
            activation: match config.hidden_act.as_str() {
                "gelu_new" => Activation::GeluTanh,
                "relu" => Activation::Relu,
                _ => Activation::Gelu,
            },
            tokens: table("word_embeddings", config.vocab_size)?,
            positions: table("position_embeddings", config.max_position_embeddings)?.check_all()?,
            types: table("token_type_embeddings", config.type_vocab_size)?.check_all()?,
            norm: norm("embeddings")?,
            layers,
            precision,
            tiled,
            batching: Batching::new(precision, inner),
        })
    }

    pub fn task_tokens(&self) -> usize {
        self.batching.task
    }

    /// How many of `threads` should share the only task, of `tokens` tokens. Sixteen are no faster than eight (MiniLM, ten
    /// tokens, int8: 0.6 ms, one thread 0.7 to 1.1). One thread that runs its heads on tiles has their results in `bf16` at
    /// once, and overtakes eight threads without tiles between 40 and 80 tokens (3.1 against 2.5 ms, 4.0 against 5.6).
    pub fn team_size(&self, tokens: usize, threads: usize) -> usize {
        const MAX_THREADS: usize = 8;
        const MAX_SHARED_TOKENS_WITH_TILES: usize = 40;
        if self.tiled.is_some() && tokens > MAX_SHARED_TOKENS_WITH_TILES { 1 } else { threads.min(MAX_THREADS) }
    }

    /// Refuses token `id` when its embedding is damaged.
    pub fn check_token(&self, id: u32) -> Result<()> {
        self.tokens.check_row(id as usize)
    }
}
