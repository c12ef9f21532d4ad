//! The forward pass over packed sequences: no padded token is ever multiplied.

use std::ops::Range;

use kernels::Backend;
use kernels::aligned::Aligned;
use kernels::attention::{self, HalfScratch, Shape, Tiled, attend_rounded};
use kernels::bf16::HalfRows;
use kernels::dropout::{Rate, drop_row, mix};
use kernels::gemm::Epilogue;
use kernels::rows::{add_layer_norm, layer_norm};

use rayon::prelude::*;

use super::linear::{Linear, Rows};
use super::team::Team;
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
    pub(super) fn part(self, range: Range<usize>) -> Self {
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
    precision: Precision,
    // Where attention runs on tiles.
    tiled: Option<Tiled>,
    portion: Portion,
}

#[derive(Clone, Copy)]
enum Activation {
    Gelu,
    GeluTanh,
    Relu,
}

impl Activation {
    fn epilogue<'a>(self) -> impl Fn(&'a [f32]) -> Epilogue<'a> {
        match self {
            Activation::Gelu => Epilogue::BiasGelu,
            Activation::GeluTanh => Epilogue::BiasGeluTanh,
            Activation::Relu => Epilogue::BiasRelu,
        }
    }
}

/// Buffers of one thread, kept between batches.
#[derive(Default)]
pub struct Scratch {
    // [tokens, hidden]
    states: Aligned<f32>,
    // [tokens of a group, 3 * hidden]
    qkv: Aligned<f32>,
    // [rows of a block, hidden]
    narrow: Aligned<f32>,
    // [tokens of a group, hidden]
    context: Aligned<f32>,
    // What of it the first tokens have, [sequences, hidden].
    firsts: Aligned<f32>,
    // The same where attention runs on tiles.
    qkv_halves: HalfRows,
    context_halves: HalfRows,
    rows: Rows,
    attention: attention::Scratch,
    half_attention: HalfScratch,
}

/// How much goes through a layer at once.
#[derive(Clone, Copy)]
struct Portion {
    /// Tokens of a group: whole sequences, so that what lies between two products stays in the second-level cache. A longer
    /// sequence is a group of its own.
    group: usize,
    /// Rows of one product: the widest of them (1,536 to 3,072 values of four bytes) stay in that cache too.
    block: usize,
    /// Tokens of a task: enough to keep the weights of a layer in cache over many rows, few enough that the states stay
    /// there too.
    task: usize,
}

impl Portion {
    /// What was fastest: caches of half a megabyte and registers, or AMX tiles of sixteen rows (few of them half empty) and
    /// caches of two megabytes, which all CPUs with tiles have. `inner` is the width of the widest rows.
    fn of(precision: Precision, inner: usize) -> Self {
        // What of that cache the widest rows may take beside weights: 192 rows of MiniLM in `bf16`, 96 in `f32`.
        const BYTES: usize = 576 << 10;
        let blocks = |size: usize| (BYTES / (inner * size) / 32 * 32).clamp(32, 384);
        let (tiles, block) = match precision {
            Precision::F32 => (false, 0),
            Precision::Bf16 => (kernels::bf16::Unit::of(Backend::active()) == kernels::bf16::Unit::Amx, blocks(2)),
            Precision::Int8 => (kernels::int8::Unit::of(Backend::active()) == kernels::int8::Unit::Amx, blocks(4)),
        };
        if tiles { Portion { group: 384, block, task: 1536 } } else { Portion { group: 96, block: 48, task: 512 } }
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
            words: table("word_embeddings", config.vocab_size)?,
            positions: table("position_embeddings", config.max_position_embeddings)?.check_all()?,
            types: table("token_type_embeddings", config.type_vocab_size)?.check_all()?,
            norm: norm("embeddings")?,
            layers,
            precision,
            tiled,
            portion: Portion::of(precision, inner),
        })
    }

    /// Tokens worth computing in one task.
    pub fn task_tokens(&self) -> usize {
        self.portion.task
    }

    /// Of `threads`, those worth sharing a task of `tokens` that is alone. Sixteen are no faster than eight (MiniLM, ten tokens, int8:
    /// 0.6 ms, one 0.7 to 1.1). One thread with tiles for its heads has its products in `bf16` at once and overtakes eight
    /// without between 40 and 80 tokens (3.1 against 2.5 ms, 4.0 against 5.6).
    pub fn sharers(&self, tokens: usize, threads: usize) -> usize {
        const MOST: usize = 8;
        const WITH_TILES: usize = 40;
        if self.tiled.is_some() && tokens > WITH_TILES { 1 } else { threads.min(MOST) }
    }

    /// Refuses token `id` when its embedding is damaged.
    pub fn check_word(&self, id: u32) -> Result<()> {
        self.words.check_row(id as usize)
    }

    /// Last hidden states `[tokens of all sequences, hidden]`. `trace` sees the states after the embeddings (layer 0)
    /// and after each layer. A `team` shares the products: for a batch too small to give every thread its own.
    pub fn forward<'s, 'w>(
        &'w self,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &'s mut Scratch,
        team: &Team<'w>,
        mut trace: impl FnMut(usize, &[f32]),
    ) -> &'s [f32] {
        self.embed(sequences, dropout, scratch);
        trace(0, &scratch.states);
        self.layers(0..self.layers.len(), sequences, dropout, scratch, team, trace);
        &scratch.states
    }

    /// Pooled vectors of several views, those of view `i` into `outs[i]`, `[sequences, hidden]`. Layers in which none of them
    /// drops are computed once; with `[CLS]` the last layer ends in the first tokens alone.
    pub fn forward_views<'w>(
        &'w self,
        sequences: &[&[u32]],
        views: &[Option<Dropout>],
        pooling: Pooling,
        scratch: &mut Scratch,
        team: &Team<'w>,
        outs: &mut [&mut [f32]],
    ) {
        let last = self.layers.len() - 1;
        let first = |view: &Option<Dropout>| view.as_ref().map_or(Some(last), |d| d.first(last + 1));
        let shared = match views.iter().map(first).min() {
            Some(Some(shared)) if views.len() > 1 => shared.min(last),
            _ => 0,
        };
        let mut before = Vec::new();
        if shared > 0 {
            self.embed(sequences, None, scratch);
            self.layers(0..shared, sequences, None, scratch, team, |_, _| {});
            before = scratch.states.to_vec();
        }
        for (view, out) in views.iter().zip(outs) {
            if shared > 0 {
                scratch.states.copy_from_slice(&before);
            } else {
                self.embed(sequences, *view, scratch);
            }
            match pooling {
                Pooling::Cls => {
                    self.layers(shared..last, sequences, *view, scratch, team, |_, _| {});
                    self.last_layer_of_firsts(sequences, *view, scratch, team);
                    out.copy_from_slice(&scratch.states[..out.len()]);
                }
                Pooling::Mean => {
                    self.layers(shared..last + 1, sequences, *view, scratch, team, |_, _| {});
                    mean(&scratch.states, sequences, out);
                }
            }
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

    fn layers<'w>(
        &'w self,
        range: Range<usize>,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &mut Scratch,
        team: &Team<'w>,
        mut trace: impl FnMut(usize, &[f32]),
    ) {
        let halves = self.precision == Precision::Bf16 && self.tiled(team).is_some();
        let groups = groups(sequences, self.portion.group);
        // Taken out while the rest is lent with it.
        let mut states = std::mem::take(&mut scratch.states);
        for l in range {
            let mut first = 0;
            for range in &groups {
                let group = self.group(l, &sequences[range.clone()], range.start, dropout);
                let size = group.tokens() * self.hidden;
                let states = &mut states[first..first + size];
                first += size;
                self.attend(&self.layers[l], &group, states, halves, scratch, team);
                self.finish(&self.layers[l], &group, states, halves, scratch, team);
            }
            trace(l + 1, &states);
        }
        scratch.states = states;
    }

    /// The last layer where only the first token of every sequence is asked for: what follows the heads, nine twelfths of a
    /// layer, sees those alone. Leaves their states, `[sequences, hidden]`, in front, with the bits `layers` gives them.
    fn last_layer_of_firsts<'w>(
        &'w self,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &mut Scratch,
        team: &Team<'w>,
    ) {
        let (l, hidden, count) = (self.layers.len() - 1, self.hidden, sequences.len());
        let mut states = std::mem::take(&mut scratch.states);
        let mut firsts = std::mem::take(&mut scratch.firsts);
        let gathered = firsts.space(count * hidden);
        let mut first = 0;
        for range in groups(sequences, self.portion.group) {
            let group = self.group(l, &sequences[range.clone()], range.start, dropout);
            let size = group.tokens() * hidden;
            self.attend(&self.layers[l], &group, &states[first..first + size], false, scratch, team);
            for (i, tokens) in group.ranges().enumerate() {
                let (at, to) = (tokens.start * hidden, (range.start + i) * hidden);
                gathered[to..to + hidden].copy_from_slice(&scratch.context[at..at + hidden]);
                states.copy_within(first + at..first + at + hidden, to);
            }
            first += size;
        }
        std::mem::swap(&mut scratch.context, &mut firsts);
        let heads: Vec<&[u32]> = sequences.iter().map(|sequence| &sequence[..1]).collect();
        let group = self.group(l, &heads, 0, dropout);
        self.finish(&self.layers[l], &group, &mut states[..count * hidden], false, scratch, team);
        (scratch.states, scratch.firsts) = (states, firsts);
    }

    /// Sequences from number `first` on that go through layer `l` together.
    fn group<'a>(&self, l: usize, sequences: &'a [&'a [u32]], first: usize, dropout: Option<Dropout<'a>>) -> Group<'a> {
        let dropout = dropout.filter(|d| d.first(self.layers.len()).is_none_or(|dropping| l >= dropping));
        Group { sequences, first, dropout, site: 1 + 3 * l as u64 }
    }

    /// Tiles for the heads: those of a lone query, whose products are shared out, do without.
    fn tiled(&self, team: &Team) -> Option<Tiled> {
        self.tiled.filter(|_| team.is_alone())
    }

    /// What the heads of a layer answer to a group, into `scratch.context`, or with `halves` into `scratch.context_halves`.
    fn attend<'w>(
        &self,
        layer: &'w Layer,
        group: &Group,
        states: &[f32],
        halves: bool,
        scratch: &mut Scratch,
        team: &Team<'w>,
    ) {
        if let Some(tiled) = self.tiled(team) {
            return self.attend_on_tiles(tiled, layer, group, states, halves, scratch);
        }
        let (backend, hidden, block) = (Backend::active(), self.hidden, self.portion.block);
        let Scratch { qkv, context, rows, attention, half_attention, .. } = scratch;
        let (qkv, context) = (qkv.space(3 * states.len()), context.space(states.len()));
        for (x, y) in states.chunks(block * hidden).zip(qkv.chunks_mut(3 * block * hidden)) {
            layer.attention_in.apply(x, y, rows, team, Epilogue::Bias);
        }
        for (i, tokens) in group.ranges().enumerate() {
            let qkv = &mut qkv[3 * tokens.start * hidden..3 * tokens.end * hidden];
            let out = &mut context[tokens.start * hidden..tokens.end * hidden];
            let mask = group.mask(i);
            match self.precision {
                Precision::F32 => attention::attend(backend, qkv, out, self.heads, mask, attention),
                _ => attend_rounded(backend, qkv, out, self.heads, mask, half_attention),
            }
        }
    }

    /// The same bits on tiles.
    fn attend_on_tiles(
        &self,
        tiled: Tiled,
        layer: &Layer,
        group: &Group,
        states: &[f32],
        halves: bool,
        scratch: &mut Scratch,
    ) {
        let hidden = self.hidden;
        let Scratch { qkv_halves, context, context_halves, rows, half_attention, .. } = scratch;
        layer.attention_in.apply_into(states, qkv_halves, rows, Epilogue::Bias);
        let context = context.space(states.len());
        for (i, tokens) in group.ranges().enumerate() {
            let mask = group.mask(i);
            if halves {
                let place = (tokens.start, tokens.len());
                tiled.attend_into(qkv_halves, place, context_halves, self.heads, mask, half_attention);
            } else {
                let out = &mut context[tokens.start * hidden..tokens.end * hidden];
                tiled.attend(qkv_halves, tokens.start, out, self.heads, mask, half_attention);
            }
        }
    }

    /// What follows the heads: their product, the feed-forward part, and a residual and a norm after each.
    fn finish<'w>(
        &self,
        layer: &'w Layer,
        group: &Group,
        states: &mut [f32],
        halves: bool,
        scratch: &mut Scratch,
        team: &Team<'w>,
    ) {
        let (backend, hidden) = (Backend::active(), self.hidden);
        let Scratch { narrow, context, context_halves, rows, .. } = scratch;
        // Rows that are `bf16` already go through their product together.
        let narrow = narrow.space(if halves { states.len() } else { self.portion.block * hidden });
        if halves {
            layer.attention_out.apply_halves(context_halves, narrow);
        }
        let mut keys = Keys::new(group.dropout, group.first, group.sequences);
        for (b, state) in states.chunks_mut(self.portion.block * hidden).enumerate() {
            let from = b * self.portion.block * hidden;
            let narrow = &mut narrow[if halves { from } else { 0 }..][..state.len()];
            if !halves {
                layer.attention_out.apply(&context[from..from + state.len()], narrow, rows, team, Epilogue::Bias);
            }
            let block = keys.block(state.len() / hidden);
            keys.drop(block.clone(), narrow, hidden, group.site + 1, backend);
            let norm = &layer.attention_norm;
            add_layer_norm(backend, state, narrow, &norm.scale, &norm.shift, self.epsilon);

            layer.feed_in.apply_then(&layer.feed_out, state, narrow, rows, team, self.activation.epilogue());
            keys.drop(block, narrow, hidden, group.site + 2, backend);
            let norm = &layer.feed_norm;
            add_layer_norm(backend, state, narrow, &norm.scale, &norm.shift, self.epsilon);
        }
    }
}

/// Sequences that go through a layer together.
struct Group<'a> {
    sequences: &'a [&'a [u32]],
    // Number of the first of them among all.
    first: usize,
    dropout: Option<Dropout<'a>>,
    // Of the layer's first site of dropout.
    site: u64,
}

impl Group<'_> {
    fn tokens(&self) -> usize {
        self.sequences.iter().map(|s| s.len()).sum()
    }

    /// Which rows are whose.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.sequences.iter().scan(0, |end, sequence| {
            *end += sequence.len();
            Some(*end - sequence.len()..*end)
        })
    }

    /// What falls of the probabilities of sequence `i`.
    fn mask(&self, i: usize) -> Option<(Rate, u64)> {
        self.dropout.map(|d| (d.rate, mix(d.document(self.first + i), self.site)))
    }
}

/// Neighbouring sequences of together at most so many tokens, or one longer.
pub fn groups(sequences: &[impl AsRef<[u32]>], most: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut from, mut tokens) = (0, 0);
    for (i, sequence) in sequences.iter().enumerate() {
        let length = sequence.as_ref().len();
        if i > from && tokens + length > most {
            groups.push(from..i);
            (from, tokens) = (i, 0);
        }
        tokens += length;
    }
    if from < sequences.len() {
        groups.push(from..sequences.len());
    }
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
    fn block(&mut self, n: usize) -> Range<usize> {
        self.next += n;
        self.next - n..self.next
    }

    fn drop(&self, block: Range<usize>, values: &mut [f32], width: usize, site: u64, backend: Backend) {
        let Some(rate) = self.rate else { return };
        for (&(document, position), row) in self.rows[block].iter().zip(values.chunks_exact_mut(width)) {
            drop_row(backend, row, mix(mix(document, site), position), rate);
        }
    }
}

/// The mean of every sequence's states.
fn mean(states: &[f32], sequences: &[&[u32]], out: &mut [f32]) {
    let hidden = out.len() / sequences.len();
    let mut rest = states.chunks_exact(hidden);
    for (sequence, row) in sequences.iter().zip(out.chunks_exact_mut(hidden)) {
        row.fill(0.0);
        for state in rest.by_ref().take(sequence.len()) {
            row.iter_mut().zip(state).for_each(|(o, v)| *o += v);
        }
        let count = sequence.len() as f32;
        row.iter_mut().for_each(|v| *v /= count);
    }
}
