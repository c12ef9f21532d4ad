//! The forward pass over packed sequences: no padded token is ever multiplied.

use kernels::Backend;
use kernels::aligned::Aligned;
use kernels::attention::{self, Shape};
use kernels::dropout::{Rate, drop_row, mix};
use kernels::gemm::Epilogue;
use kernels::rows::{add_layer_norm, layer_norm};

use rayon::prelude::*;

use super::linear::{Linear, Rows};
use super::weights::{Embedding, EncoderConfig, Weights};
use super::{Pooling, Precision};
use crate::Result;

/// One seeded view: dropout at all of BERT's sites (embedding output, attention probabilities, attention output,
/// feed-forward output) at one rate, as `hidden_dropout_prob` and `attention_probs_dropout_prob` would set it.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    probability: f64,
    rate: Rate,
    key: u64,
    // One a sequence.
    documents: &'a [u64],
    /// Only so many of the last layers drop; all of them and the embeddings where it is none.
    last: Option<usize>,
}

impl<'a> Dropout<'a> {
    /// View number `view` of the sequences that carry the numbers `documents`: the same numbers give the same masks.
    pub fn new(rate: f64, seed: u64, view: u32, documents: &'a [u64]) -> Self {
        let key = mix(mix(0x6d69_6370_715f_7631, seed), u64::from(view));
        Dropout { probability: rate, rate: Rate::new(rate), key, documents, last: None }
    }

    /// The same masks in the last `layers` alone. Views of one text then share all states before, which are computed once.
    pub fn in_last(self, layers: usize) -> Self {
        Dropout { last: Some(layers), ..self }
    }

    /// The first of `layers` layers that drops; `None` where the embeddings do already.
    fn first(&self, layers: usize) -> Option<usize> {
        self.last.map(|last| layers.saturating_sub(last))
    }

    /// The same view for some of its sequences.
    pub(super) fn part(self, range: std::ops::Range<usize>) -> Self {
        Dropout { documents: &self.documents[range], ..self }
    }

    /// The same view for a GPU.
    pub(super) fn on_gpu(self) -> cuda::Dropout<'a> {
        cuda::Dropout { rate: self.probability, key: self.key, documents: self.documents, last: self.last }
    }

    /// How many sequences it speaks of.
    pub(super) fn len(&self) -> usize {
        self.documents.len()
    }

    fn document(&self, i: usize) -> u64 {
        mix(self.key, self.documents[i])
    }
}

struct Norm {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

struct Layer {
    // Queries, keys and values in one product: [3 * hidden, hidden].
    attention_in: Linear,
    attention_out: Linear,
    attention_norm: Norm,
    feed_in: Linear,
    feed_out: Linear,
    feed_norm: Norm,
}

/// Weights, packed for the kernels.
pub struct Bert {
    hidden: usize,
    heads: Shape,
    epsilon: f32,
    activation: Activation,
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: Norm,
    layers: Vec<Layer>,
    portion: Portion,
}

#[derive(Clone, Copy)]
enum Activation {
    Gelu,
    GeluTanh,
    Relu,
}

/// Buffers of one thread, kept between batches.
#[derive(Default)]
pub struct Scratch {
    // [tokens, hidden]
    states: Aligned<f32>,
    // [tokens of a group, 3 * hidden], then [rows of a block, intermediate]
    wide: Aligned<f32>,
    // [rows of a block, hidden]
    narrow: Aligned<f32>,
    // [tokens of a group, hidden]
    context: Aligned<f32>,
    rows: Rows,
    attention: attention::Scratch,
}

/// How much goes through a layer at once.
#[derive(Clone, Copy)]
struct Portion {
    /// Tokens of a group: whole sequences, so that what lies between two products stays in the second-level cache. A longer
    /// sequence is a group of its own.
    group: usize,
    /// Rows of one product: the widest of them (1,536 to 3,072 values of four bytes) stay in that cache too.
    block: usize,
}

impl Portion {
    /// What was fastest: caches of half a megabyte and registers, or AMX tiles of sixteen rows (few of them half empty) and
    /// caches of two megabytes, which all CPUs with tiles have.
    fn of(precision: Precision) -> Self {
        let tiles = match precision {
            Precision::F32 => false,
            Precision::Bf16 => kernels::bf16::Unit::of(Backend::active()) == kernels::bf16::Unit::Amx,
            Precision::Int8 => kernels::int8::Unit::of(Backend::active()) == kernels::int8::Unit::Amx,
        };
        if tiles { Portion { group: 192, block: 192 } } else { Portion { group: 96, block: 48 } }
    }
}

impl Bert {
    /// Reads and packs every tensor the forward pass needs.
    pub fn new(config: &EncoderConfig, weights: &Weights, precision: Precision) -> Result<Self> {
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
        // Side by side, since a first query waits for it; of several bad tensors the first layer's is named.
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
        let table = |name: &str, rows: usize| weights.embedding(&format!("embeddings.{name}.weight"), rows, hidden);
        Ok(Bert {
            hidden,
            heads: Shape { heads: config.num_attention_heads, width: hidden / config.num_attention_heads },
            epsilon: config.layer_norm_eps,
            activation: match config.hidden_act.as_str() {
                "gelu_new" => Activation::GeluTanh,
                "relu" => Activation::Relu,
                _ => Activation::Gelu,
            },
            words: table("word_embeddings", config.vocab_size)?,
            positions: table("position_embeddings", config.max_position_embeddings)?.check_all()?,
            types: table("token_type_embeddings", config.type_vocab_size)?.check_all()?,
            norm: norm("embeddings")?,
            layers,
            portion: Portion::of(precision),
        })
    }

    /// Refuses token `id` when its embedding is damaged.
    pub fn check_word(&self, id: u32) -> Result<()> {
        self.words.check_row(id as usize)
    }

    /// Last hidden states `[tokens of all sequences, hidden]`. `trace` sees the states after the embeddings (layer 0)
    /// and after each layer. A product is shared out among `share` threads: for a batch too small to give each its own.
    pub fn forward<'s>(
        &self,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &'s mut Scratch,
        share: usize,
        mut trace: impl FnMut(usize, &[f32]),
    ) -> &'s [f32] {
        self.embed(sequences, dropout, scratch);
        trace(0, &scratch.states);
        self.layers(0..self.layers.len(), sequences, dropout, scratch, share, trace);
        &scratch.states
    }

    /// The same for several views; `each` sees the last states of every one. Layers in which none of them drops are
    /// computed once.
    pub fn forward_views(
        &self,
        sequences: &[&[u32]],
        views: &[Option<Dropout>],
        scratch: &mut Scratch,
        share: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) {
        let count = self.layers.len();
        let first = |view: &Option<Dropout>| view.as_ref().map_or(Some(count), |d| d.first(count));
        let shared = views.iter().map(first).min().flatten().unwrap_or(0);
        if views.len() < 2 || shared == 0 {
            for (i, view) in views.iter().enumerate() {
                each(i, self.forward(sequences, *view, scratch, share, |_, _| {}));
            }
            return;
        }
        self.embed(sequences, None, scratch);
        self.layers(0..shared, sequences, None, scratch, share, |_, _| {});
        let before = scratch.states.clone();
        for (i, view) in views.iter().enumerate() {
            scratch.states.copy_from_slice(&before);
            self.layers(shared..count, sequences, *view, scratch, share, |_, _| {});
            each(i, &scratch.states);
        }
    }

    fn embed(&self, sequences: &[&[u32]], dropout: Option<Dropout>, scratch: &mut Scratch) {
        let (backend, hidden) = (Backend::active(), self.hidden);
        let tokens: usize = sequences.iter().map(|s| s.len()).sum();
        let states = &mut scratch.states;
        states.space(tokens * hidden).fill(0.0);

        let ids = sequences.iter().flat_map(|s| s.iter().enumerate());
        for ((position, &id), row) in ids.zip(states.chunks_exact_mut(hidden)) {
            self.words.add_row(id as usize, row);
            self.types.add_row(0, row);
            self.positions.add_row(position, row);
        }
        layer_norm(backend, states, &self.norm.scale, &self.norm.shift, self.epsilon);
        // Sites are numbered 0 for the embeddings, then 1 + 3 * layer + {0: probabilities, 1: attention, 2: feed-forward}.
        let here = dropout.filter(|d| d.last.is_none());
        Keys::new(here, 0, sequences).drop(0..tokens, states, hidden, 0, backend);
    }

    fn layers(
        &self,
        range: std::ops::Range<usize>,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &mut Scratch,
        share: usize,
        mut trace: impl FnMut(usize, &[f32]),
    ) {
        let (backend, hidden) = (Backend::active(), self.hidden);
        let Scratch { states, wide, narrow, context, rows, attention } = scratch;
        rows.share(share);
        let Portion { group, block } = self.portion;
        let groups = groups(sequences, group);
        let inner = self.layers.first().map_or(0, |layer| layer.feed_in.outputs());
        for l in range {
            let layer = &self.layers[l];
            let dropout = dropout.filter(|d| d.first(self.layers.len()).is_none_or(|first| l >= first));
            let site = 1 + 3 * l as u64;
            let mut first = 0;
            for &(from, to) in &groups {
                let group = &sequences[from..to];
                let tokens: usize = group.iter().map(|s| s.len()).sum();
                let states = &mut states[first * hidden..(first + tokens) * hidden];
                first += tokens;

                let wide = wide.space(tokens * (3 * hidden).max(inner));
                let context = context.space(tokens * hidden);
                let narrow = narrow.space(block * hidden);
                let blocks =
                    states.chunks(block * hidden).zip(wide[..tokens * 3 * hidden].chunks_mut(block * 3 * hidden));
                for (x, y) in blocks {
                    layer.attention_in.apply(x, y, rows, Epilogue::Bias);
                }
                let (mut qkv, mut out) = (&wide[..], &mut context[..]);
                for (i, sequence) in group.iter().enumerate() {
                    let size = sequence.len() * hidden;
                    let mask = dropout.map(|d| (d.rate, mix(d.document(from + i), site)));
                    attention::attend(backend, &qkv[..3 * size], &mut out[..size], self.heads, mask, attention);
                    (qkv, out) = (&qkv[3 * size..], &mut std::mem::take(&mut out)[size..]);
                }

                let mut keys = Keys::new(dropout, from, group);
                for (x, state) in context.chunks(block * hidden).zip(states.chunks_mut(block * hidden)) {
                    let narrow = &mut narrow[..state.len()];
                    layer.attention_out.apply(x, narrow, rows, Epilogue::Bias);
                    let block = keys.block(state.len() / hidden);
                    keys.drop(block.clone(), narrow, hidden, site + 1, backend);
                    let norm = &layer.attention_norm;
                    add_layer_norm(backend, state, narrow, &norm.scale, &norm.shift, self.epsilon);

                    let wide = &mut wide[..state.len() / hidden * inner];
                    match self.activation {
                        Activation::Gelu => layer.feed_in.apply(state, wide, rows, Epilogue::BiasGelu),
                        Activation::GeluTanh => layer.feed_in.apply(state, wide, rows, Epilogue::BiasGeluTanh),
                        Activation::Relu => layer.feed_in.apply(state, wide, rows, Epilogue::BiasRelu),
                    }
                    layer.feed_out.apply(wide, narrow, rows, Epilogue::Bias);
                    keys.drop(block, narrow, hidden, site + 2, backend);
                    let norm = &layer.feed_norm;
                    add_layer_norm(backend, state, narrow, &norm.scale, &norm.shift, self.epsilon);
                }
            }
            trace(l + 1, states);
        }
    }
}

/// Whole sequences of together at most so many tokens, or one longer.
fn groups(sequences: &[&[u32]], most: usize) -> Vec<(usize, usize)> {
    let mut groups = Vec::new();
    let (mut from, mut tokens) = (0, 0);
    for (i, sequence) in sequences.iter().enumerate() {
        if i > from && tokens + sequence.len() > most {
            groups.push((from, i));
            (from, tokens) = (i, 0);
        }
        tokens += sequence.len();
    }
    groups.push((from, sequences.len()));
    groups
}

/// Where the rows of a group get their masks from: each from its document and its position there.
struct Keys {
    rate: Option<Rate>,
    // (document's key, position), a row each; empty without dropout.
    rows: Vec<(u64, u64)>,
    next: usize,
}

impl Keys {
    fn new(dropout: Option<Dropout>, first: usize, sequences: &[&[u32]]) -> Self {
        let rows = dropout.map_or_else(Vec::new, |view| {
            let key = |(i, s): (usize, &&[u32])| {
                let document = view.document(first + i);
                (0..s.len() as u64).map(move |position| (document, position)).collect::<Vec<_>>()
            };
            sequences.iter().enumerate().flat_map(key).collect()
        });
        Keys { rate: dropout.map(|d| d.rate), rows, next: 0 }
    }

    /// The next `n` rows.
    fn block(&mut self, n: usize) -> std::ops::Range<usize> {
        self.next += n;
        self.next - n..self.next
    }

    fn drop(&self, block: std::ops::Range<usize>, values: &mut [f32], width: usize, site: u64, backend: Backend) {
        let Some(rate) = self.rate else { return };
        for (&(document, position), row) in self.rows[block].iter().zip(values.chunks_exact_mut(width)) {
            drop_row(backend, row, mix(mix(document, site), position), rate);
        }
    }
}

/// States to one row a sequence.
pub fn pool(states: &[f32], sequences: &[&[u32]], pooling: Pooling, out: &mut [f32]) {
    let hidden = out.len() / sequences.len();
    let mut start = 0;
    for (sequence, row) in sequences.iter().zip(out.chunks_exact_mut(hidden)) {
        let end = start + sequence.len() * hidden;
        match pooling {
            Pooling::Cls => row.copy_from_slice(&states[start..start + hidden]),
            Pooling::Mean => {
                row.fill(0.0);
                for state in states[start..end].chunks_exact(hidden) {
                    for (o, v) in row.iter_mut().zip(state) {
                        *o += v;
                    }
                }
                let count = sequence.len() as f32;
                row.iter_mut().for_each(|v| *v /= count);
            }
        }
        start = end;
    }
}
