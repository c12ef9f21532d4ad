//! Weights and layers of a transformer, packed for the kernels. [`super::forward`] runs them.
//!
//! An architecture is the names of its tensors ([`Names`]) and what its layers have: biases, norms before or after the blocks, a
//! gate, a window, rotary positions, a bias of the scores.

use std::sync::Arc;

use kernels::Backend;
use kernels::attention::{Shape, Tiled};
use kernels::gemm::Epilogue;
use rayon::prelude::*;

use super::Precision;
use super::config::{Architecture, EncoderConfig};
use super::linear::Linear;
use super::weights::{Embedding, Weights};
use crate::Result;

pub(super) struct Norm {
    pub scale: Vec<f32>,
    pub shift: Vec<f32>,
}

pub(super) struct Layer {
    // Queries, keys and values in one product: [3 * hidden, hidden].
    pub attention_in: Arc<Linear>,
    pub attention_out: Arc<Linear>,
    // None before the first block of ModernBERT, whose embeddings have one.
    pub attention_norm: Option<Norm>,
    pub feed_in: Arc<Linear>,
    // Multiplied with the activated values of `feed_in`, where the block is gated.
    pub gate: Option<Arc<Linear>>,
    pub feed_out: Arc<Linear>,
    pub feed_norm: Norm,
    // Norms come before the blocks, not after them.
    pub norms_first: bool,
    // Tokens to either side that a token sees; None is all.
    pub window: Option<usize>,
    pub rotary: Option<Arc<Rotary>>,
}

/// Rotary positions: queries and keys are turned by an angle that grows with the position.
pub(super) struct Rotary {
    // [positions, half the width of a head]
    cosines: Vec<f32>,
    sines: Vec<f32>,
    half: usize,
}

impl Rotary {
    fn new(positions: usize, width: usize, theta: f64) -> Self {
        let half = width / 2;
        let angle = |i: usize| {
            // Frequencies are single precision in transformers too.
            let frequency = theta.powf(-((2 * (i % half)) as f64) / width as f64) as f32;
            f64::from((i / half) as f32 * frequency)
        };
        let of = |f: fn(f64) -> f64| (0..positions * half).map(|i| f(angle(i)) as f32).collect();
        Rotary { cosines: of(f64::cos), sines: of(f64::sin), half }
    }

    /// Turns the queries and keys of one sequence, `qkv [tokens, 3 * hidden]`.
    pub fn turn(&self, qkv: &mut [f32], hidden: usize) {
        for (position, token) in qkv.chunks_exact_mut(3 * hidden).enumerate() {
            let at = position * self.half..(position + 1) * self.half;
            let (cosines, sines) = (&self.cosines[at.clone()], &self.sines[at]);
            for head in token[..2 * hidden].chunks_exact_mut(2 * self.half) {
                let (low, high) = head.split_at_mut(self.half);
                for (((a, b), c), s) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
                    (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
                }
            }
        }
    }
}

/// The names of an architecture's tensors, without `.weight` and `.bias`.
struct Names {
    /// In front of all names, in files of models with a task head.
    prefix: &'static str,
    tokens: &'static str,
    positions: Option<&'static str>,
    types: Option<&'static str>,
    norm: &'static str,
    /// In front of a layer's number. The following are in a layer.
    layers: &'static str,
    /// One tensor, or one each for queries, keys and values.
    qkv: &'static [&'static str],
    attention_out: &'static str,
    attention_norm: &'static str,
    feed_in: &'static str,
    feed_out: &'static str,
    feed_norm: &'static str,
    final_norm: Option<&'static str>,
}

const BERT: Names = Names {
    prefix: "bert.",
    tokens: "embeddings.word_embeddings",
    positions: Some("embeddings.position_embeddings"),
    types: Some("embeddings.token_type_embeddings"),
    norm: "embeddings.LayerNorm",
    layers: "encoder.layer",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    attention_out: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    feed_in: "intermediate.dense",
    feed_out: "output.dense",
    feed_norm: "output.LayerNorm",
    final_norm: None,
};

impl Names {
    fn of(architecture: Architecture) -> &'static Names {
        const ROBERTA: Names = Names { prefix: "roberta.", ..BERT };
        const MPNET: Names = Names {
            prefix: "mpnet.",
            types: None,
            qkv: &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
            attention_out: "attention.attn.o",
            attention_norm: "attention.LayerNorm",
            ..BERT
        };
        const DISTILBERT: Names = Names {
            prefix: "distilbert.",
            types: None,
            layers: "transformer.layer",
            qkv: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
            attention_out: "attention.out_lin",
            attention_norm: "sa_layer_norm",
            feed_in: "ffn.lin1",
            feed_out: "ffn.lin2",
            feed_norm: "output_layer_norm",
            ..BERT
        };
        const MODERNBERT: Names = Names {
            prefix: "model.",
            tokens: "embeddings.tok_embeddings",
            positions: None,
            types: None,
            norm: "embeddings.norm",
            layers: "layers",
            qkv: &["attn.Wqkv"],
            attention_out: "attn.Wo",
            attention_norm: "attn_norm",
            feed_in: "mlp.Wi",
            feed_out: "mlp.Wo",
            feed_norm: "mlp_norm",
            final_norm: Some("final_norm"),
        };
        match architecture {
            Architecture::Bert | Architecture::Static => &BERT,
            Architecture::Roberta => &ROBERTA,
            Architecture::MpNet => &MPNET,
            Architecture::DistilBert => &DISTILBERT,
            Architecture::ModernBert => &MODERNBERT,
        }
    }
}

/// Reads the parts of an encoder.
struct Parts<'a> {
    config: &'a EncoderConfig,
    weights: &'a Weights,
    names: &'static Names,
    precision: Precision,
}

impl Parts<'_> {
    fn vector(&self, name: &str, length: usize, there: bool) -> Result<Vec<f32>> {
        if there { self.weights.read(name, &[length]) } else { Ok(vec![0.0; length]) }
    }

    fn norm(&self, name: &str) -> Result<Norm> {
        let hidden = self.config.hidden_size;
        let biased = self.config.modern.as_ref().is_none_or(|modern| modern.norm_bias);
        Ok(Norm {
            scale: self.weights.read(&format!("{name}.weight"), &[hidden])?,
            shift: self.vector(&format!("{name}.bias"), hidden, biased)?,
        })
    }

    /// `parts` linear layers of `inputs` values that are stored below each other in every tensor of `names`.
    fn linears(
        &self,
        names: &[String],
        parts: usize,
        outputs: usize,
        inputs: usize,
        biased: bool,
    ) -> Result<Vec<Arc<Linear>>> {
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for name in names {
            weight.extend(self.weights.read(&format!("{name}.weight"), &[outputs, inputs])?);
            bias.extend(self.vector(&format!("{name}.bias"), outputs, biased)?);
        }
        let (weights, biases) = (weight.chunks_exact(weight.len() / parts), bias.chunks_exact(bias.len() / parts));
        Ok(weights.zip(biases).map(|(w, b)| Arc::new(Linear::new(w, b.to_vec(), inputs, self.precision))).collect())
    }

    fn layer(&self, i: usize) -> Result<Layer> {
        let Parts { config, names, .. } = *self;
        let (hidden, inner, modern) = (config.hidden_size, config.intermediate_size, config.modern.as_ref());
        let at = |part: &str| format!("{}.{i}.{part}", names.layers);
        let one = |name: &str, outputs: usize, inputs: usize, biased: bool| -> Result<Arc<Linear>> {
            Ok(self.linears(&[at(name)], 1, outputs, inputs, biased)?.remove(0))
        };
        let attention_bias = modern.is_none_or(|modern| modern.attention_bias);
        let feed_bias = modern.is_none_or(|modern| modern.feed_bias);
        let qkv: Vec<String> = names.qkv.iter().map(|name| at(name)).collect();
        let attention_in = self.linears(&qkv, 1, 3 * hidden / qkv.len(), hidden, attention_bias)?.remove(0);
        let (feed_in, gate) = match modern {
            None => (one(names.feed_in, inner, hidden, feed_bias)?, None),
            Some(_) => {
                let mut both = self.linears(&[at(names.feed_in)], 2, 2 * inner, hidden, feed_bias)?;
                let gate = both.pop();
                (both.remove(0), gate)
            }
        };
        let first_modern = modern.is_some() && i == 0;
        Ok(Layer {
            attention_in,
            attention_out: one(names.attention_out, hidden, hidden, attention_bias)?,
            attention_norm: (!first_modern).then(|| self.norm(&at(names.attention_norm))).transpose()?,
            feed_in,
            gate,
            feed_out: one(names.feed_out, hidden, inner, feed_bias)?,
            feed_norm: self.norm(&at(names.feed_norm))?,
            norms_first: modern.is_some(),
            window: modern.filter(|modern| modern.local[i]).map(|modern| modern.window),
            rotary: None,
        })
    }

    /// MPNet's bias of every head by the distance from query to key, `[heads, 2 * positions - 1]`.
    fn bias_by_distance(&self) -> Result<Vec<f32>> {
        let EncoderConfig { relative_buckets: buckets, num_attention_heads: heads, .. } = *self.config;
        if buckets == 0 {
            return Ok(Vec::new());
        }
        let table = self.weights.read("encoder.relative_attention_bias.weight", &[buckets, heads])?;
        let reach = self.config.max_tokens() as i64 - 1;
        let distances = || -reach..=reach;
        Ok((0..heads)
            .flat_map(|head| distances().map(move |d| (head, d)))
            .map(|(head, d)| table[bucket(d, buckets) * heads + head])
            .collect())
    }
}

/// The bucket of a distance from query to key: exact for near tokens, logarithmic up to 128, one for all beyond; half of them for
/// keys after the query.
fn bucket(distance: i64, buckets: usize) -> usize {
    const MAX_DISTANCE: f32 = 128.0;
    let half = buckets / 2;
    let first = if distance > 0 { half } else { 0 };
    let (far, exact) = (distance.unsigned_abs() as usize, half / 2);
    if far < exact {
        return first + far;
    }
    let steps = (far as f32 / exact as f32).ln() / (MAX_DISTANCE / exact as f32).ln() * (half - exact) as f32;
    first + (exact + steps as usize).min(half - 1)
}

pub struct Transformer {
    pub(super) hidden: usize,
    pub(super) heads: Shape,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    pub(super) tokens: Embedding,
    pub(super) positions: Option<Embedding>,
    pub(super) padding: Option<usize>,
    pub(super) types: Option<Embedding>,
    pub(super) norm: Norm,
    pub(super) layers: Vec<Layer>,
    /// After the last layer, where norms come before the blocks.
    pub(super) final_norm: Option<Norm>,
    // Bias of the scores by distance, [heads, 2 * positions - 1]; empty in most architectures.
    pub(super) by_distance: Vec<f32>,
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
    pub(super) fn epilogue(self, bias: &[f32]) -> Epilogue<'_> {
        match self {
            Activation::Gelu => Epilogue::BiasGelu(bias),
            Activation::GeluTanh => Epilogue::BiasGeluTanh(bias),
            Activation::Relu => Epilogue::BiasRelu(bias),
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

impl Transformer {
    /// Reads and packs every tensor the forward pass needs.
    pub fn new(config: &EncoderConfig, weights: Weights, precision: Precision) -> Result<Self> {
        let names = Names::of(config.architecture);
        let weights = weights.prefixed(names.prefix);
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        // Refuses a `config.json` with more layers, or larger ones, than the file has, before memory is allocated for them.
        let last = format!("{}.{}.{}.weight", names.layers, config.num_hidden_layers - 1, names.feed_out);
        weights.expect(&last, &[hidden, inner])?;
        let parts = Parts { config, weights: &weights, names, precision };
        // In parallel, since the first query waits for it. Of several bad tensors the error names the first layer's.
        let layers: Vec<Result<Layer>> =
            (0..config.num_hidden_layers).into_par_iter().map(|i| parts.layer(i)).collect();
        let mut layers = layers.into_iter().collect::<Result<Vec<_>>>()?;
        let heads = Shape { heads: config.num_attention_heads, width: hidden / config.num_attention_heads };
        if let Some(modern) = &config.modern {
            let rotary = |theta| Arc::new(Rotary::new(config.max_position_embeddings, heads.width, theta));
            let (global, local) = (rotary(modern.global_theta), rotary(modern.local_theta));
            let own = |local_layer: &bool| if *local_layer { local.clone() } else { global.clone() };
            layers.iter_mut().zip(&modern.local).for_each(|(layer, local)| layer.rotary = Some(own(local)));
        }
        let plain = config.modern.is_none() && config.relative_buckets == 0;
        let tiled = Tiled::new(Backend::active(), heads).filter(|_| precision != Precision::F32 && plain);
        let table = |name: &str, rows: usize| weights.embedding(&format!("{name}.weight"), rows, hidden);
        let small = |name: Option<&str>, rows: usize| {
            name.map(|name| table(name, rows).and_then(Embedding::check_all)).transpose()
        };
        Ok(Transformer {
            hidden,
            heads,
            epsilon: config.layer_norm_eps,
            activation: match config.hidden_act.as_str() {
                "gelu_new" => Activation::GeluTanh,
                "relu" => Activation::Relu,
                _ => Activation::Gelu,
            },
            tokens: table(names.tokens, config.vocab_size)?,
            positions: small(names.positions, config.max_position_embeddings)?,
            padding: config.padding,
            types: small(names.types, config.type_vocab_size)?,
            norm: parts.norm(names.norm)?,
            layers,
            final_norm: names.final_norm.map(|name| parts.norm(name)).transpose()?,
            by_distance: parts.bias_by_distance()?,
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
