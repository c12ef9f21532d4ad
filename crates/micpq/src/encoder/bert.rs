//! The forward pass over packed sequences: no padded token is ever multiplied.

use kernels::Backend;
use kernels::attention::{self, Shape};
use kernels::dropout::{Rate, drop_row, mix};
use kernels::gemm::{Epilogue, PackedWeight};
use kernels::rows::{add_layer_norm, layer_norm};

use super::Pooling;
use super::weights::{Embedding, EncoderConfig, Weights};
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
}

impl<'a> Dropout<'a> {
    /// View number `view` of the sequences that carry the numbers `documents`: the same numbers give the same masks.
    pub fn new(rate: f64, seed: u64, view: u32, documents: &'a [u64]) -> Self {
        let key = mix(mix(0x6d69_6370_715f_7631, seed), u64::from(view));
        Dropout { probability: rate, rate: Rate::new(rate), key, documents }
    }

    /// The same view for some of its sequences.
    pub(super) fn part(self, range: std::ops::Range<usize>) -> Self {
        Dropout { documents: &self.documents[range], ..self }
    }

    /// The same view for a GPU.
    pub(super) fn on_gpu(self) -> cuda::Dropout<'a> {
        cuda::Dropout { rate: self.probability, key: self.key, documents: self.documents }
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

struct Linear {
    weight: PackedWeight,
    bias: Vec<f32>,
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
    states: Vec<f32>,
    // [tokens, 3 * hidden], then [tokens, intermediate]
    wide: Vec<f32>,
    // [tokens, hidden]
    narrow: Vec<f32>,
    // [tokens, hidden]
    context: Vec<f32>,
    attention: attention::Scratch,
}

impl Bert {
    /// Reads and packs every tensor the forward pass needs.
    pub fn new(config: &EncoderConfig, weights: &Weights) -> Result<Self> {
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
            Ok(Linear { weight: PackedWeight::new(&weight, bias.len(), inputs), bias })
        };
        let layers = (0..config.num_hidden_layers)
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
            .collect::<Result<Vec<_>>>()?;
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
            positions: table("position_embeddings", config.max_position_embeddings)?,
            types: table("token_type_embeddings", config.type_vocab_size)?,
            norm: norm("embeddings")?,
            layers,
        })
    }

    /// Last hidden states `[tokens of all sequences, hidden]`. `trace` sees the states after the embeddings (layer 0)
    /// and after each layer.
    pub fn forward<'s>(
        &self,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &'s mut Scratch,
        mut trace: impl FnMut(usize, &[f32]),
    ) -> &'s [f32] {
        let backend = Backend::active();
        let hidden = self.hidden;
        let tokens: usize = sequences.iter().map(|s| s.len()).sum();
        let Scratch { states, wide, narrow, context, attention } = scratch;
        states.clear();
        states.resize(tokens * hidden, 0.0);
        narrow.resize(tokens * hidden, 0.0);
        context.resize(tokens * hidden, 0.0);

        let ids = sequences.iter().flat_map(|s| s.iter().enumerate());
        for ((position, &id), row) in ids.zip(states.chunks_exact_mut(hidden)) {
            self.words.add_row(id as usize, row);
            self.types.add_row(0, row);
            self.positions.add_row(position, row);
        }
        layer_norm(backend, states, &self.norm.scale, &self.norm.shift, self.epsilon);
        // Sites are numbered 0 for the embeddings, then 1 + 3 * layer + {0: probabilities, 1: attention, 2: feed-forward}.
        drop_states(backend, states, sequences, hidden, dropout, 0);
        trace(0, states);

        for (l, layer) in self.layers.iter().enumerate() {
            let site = 1 + 3 * l as u64;
            wide.resize(tokens * 3 * hidden, 0.0);
            layer.attention_in.apply(states, wide, tokens, Epilogue::Bias);
            let mut start = 0;
            for (i, sequence) in sequences.iter().enumerate() {
                let end = start + sequence.len();
                let mask = dropout.map(|d| (d.rate, mix(d.document(i), site)));
                let (qkv, out) =
                    (&wide[3 * start * hidden..3 * end * hidden], &mut context[start * hidden..end * hidden]);
                attention::attend(backend, qkv, out, self.heads, mask, attention);
                start = end;
            }
            layer.attention_out.apply(context, narrow, tokens, Epilogue::Bias);
            drop_states(backend, narrow, sequences, hidden, dropout, site + 1);
            let norm = &layer.attention_norm;
            add_layer_norm(backend, states, narrow, &norm.scale, &norm.shift, self.epsilon);

            wide.resize(tokens * layer.feed_in.weight.outputs(), 0.0);
            match self.activation {
                Activation::Gelu => layer.feed_in.apply(states, wide, tokens, Epilogue::BiasGelu),
                Activation::GeluTanh => layer.feed_in.apply(states, wide, tokens, Epilogue::BiasGeluTanh),
                Activation::Relu => layer.feed_in.apply(states, wide, tokens, Epilogue::BiasRelu),
            }
            layer.feed_out.apply(wide, narrow, tokens, Epilogue::Bias);
            drop_states(backend, narrow, sequences, hidden, dropout, site + 2);
            let norm = &layer.feed_norm;
            add_layer_norm(backend, states, narrow, &norm.scale, &norm.shift, self.epsilon);
            trace(l + 1, states);
        }
        states
    }
}

impl Linear {
    fn apply<'a>(&'a self, x: &[f32], y: &mut [f32], rows: usize, epilogue: impl Fn(&'a [f32]) -> Epilogue<'a>) {
        self.weight.multiply(x, y, rows, epilogue(&self.bias));
    }
}

fn drop_states(
    backend: Backend,
    states: &mut [f32],
    sequences: &[&[u32]],
    hidden: usize,
    dropout: Option<Dropout>,
    site: u64,
) {
    let Some(view) = dropout else { return };
    let mut rows = states.chunks_exact_mut(hidden);
    for (i, sequence) in sequences.iter().enumerate() {
        let key = mix(view.document(i), site);
        for (position, row) in rows.by_ref().take(sequence.len()).enumerate() {
            drop_row(backend, row, mix(key, position as u64), view.rate);
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
