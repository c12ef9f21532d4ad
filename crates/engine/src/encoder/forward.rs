//! The forward pass over groups of packed sequences: no padding is multiplied.

use std::ops::Range;

use kernels::Backend;
use kernels::aligned::Aligned;
use kernels::attention::{self, HalfScratch, Scores, Tiled, attend_rounded};
use kernels::bf16::HalfRows;
use kernels::dropout::{Rate, drop_row, mix};
use kernels::rows::{add_layer_norm, layer_norm};

use super::Precision;
use super::linear::Rows;
use super::pooling::{Pool, Pooling};
use super::remote::View;
use super::team::Team;
use super::transformer::{Layer, Norm, Transformer};

/// One seeded view: dropout at all of BERT's sites (embedding output, attention probabilities, attention output,
/// feed-forward output) at one rate, as `hidden_dropout_prob` and `attention_probs_dropout_prob` would set it.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    probability: f64,
    rate: Rate,
    key: u64,
    // [sequences]
    documents: &'a [u64],
    /// Dropout is in this many of the last layers; `None` is all layers and the embeddings.
    last: Option<usize>,
}

impl<'a> Dropout<'a> {
    /// View number `view` of the sequences numbered `documents`: the same numbers give the same masks.
    pub fn new(rate: f64, seed: u64, view: u32, documents: &'a [u64]) -> Self {
        let key = mix(mix(0x6d69_6370_715f_7631, seed), u64::from(view));
        Dropout { probability: rate, rate: Rate::new(rate), key, documents, last: None }
    }

    /// The same masks in the last `layers` layers only. Views of one text then share all states before, which are computed
    /// once.
    pub fn in_last(self, layers: usize) -> Self {
        Dropout { last: Some(layers), ..self }
    }

    /// The first of `layers` layers with dropout; `None` where the embeddings have it.
    fn first_layer(&self, layers: usize) -> Option<usize> {
        self.last.map(|last| layers.saturating_sub(last))
    }

    /// The same view for a range of its sequences.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        Dropout { documents: &self.documents[range], ..self }
    }

    /// The same view for a GPU.
    pub(super) fn on_gpu(self) -> cuda::Dropout<'a> {
        cuda::Dropout { rate: self.probability, key: self.key, documents: self.documents, last: self.last }
    }

    /// The same view for another process, and back.
    pub(super) fn travelling(self) -> View {
        View { rate: self.probability.to_bits(), key: self.key, documents: self.documents.to_vec(), last: self.last }
    }

    pub(super) fn arrived(view: &'a View) -> Self {
        let probability = f64::from_bits(view.rate);
        let rate = Rate::new(probability);
        Dropout { probability, rate, key: view.key, documents: &view.documents, last: view.last }
    }

    pub(super) fn len(&self) -> usize {
        self.documents.len()
    }

    /// Rate and key of the dropout in the embeddings of sequence `i`, where it is there too.
    pub(super) fn of_embeddings(&self, i: usize) -> Option<(Rate, u64)> {
        self.last.is_none().then(|| (self.rate, self.document_key(i)))
    }

    /// Rate and key of the dropout in the finished vector of sequence `i`.
    pub(super) fn of_vector(&self, i: usize) -> (Rate, u64) {
        (self.rate, self.document_key(i))
    }

    fn document_key(&self, i: usize) -> u64 {
        mix(self.key, self.documents[i])
    }
}

/// Buffers of one thread, reused between batches.
#[derive(Default)]
pub struct Scratch {
    // [tokens, hidden]
    states: Aligned<f32>,
    // [tokens of a group, 3 * hidden]
    qkv: Aligned<f32>,
    // [rows of a block, hidden]
    narrow: Aligned<f32>,
    // States after a norm that comes before its block, [tokens of a group, hidden].
    normed: Aligned<f32>,
    // [tokens of a group, hidden]
    context: Aligned<f32>,
    // Contexts of the first tokens, [sequences, hidden].
    firsts: Aligned<f32>,
    // `qkv` and `context` where attention runs on tiles.
    qkv_halves: HalfRows,
    context_halves: HalfRows,
    rows: Rows,
    attention: attention::Scratch,
    half_attention: HalfScratch,
}

impl Transformer {
    /// Last hidden states `[tokens of all sequences, hidden]`. `trace` gets the states after the embeddings (layer 0) and
    /// after each layer. A `team` shares the products of a batch too small to give every thread a task.
    pub fn forward<'s>(
        &self,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &'s mut Scratch,
        team: &Team,
        mut trace: impl FnMut(usize, &[f32]),
    ) -> &'s [f32] {
        self.embed(sequences, dropout, scratch);
        trace(0, &scratch.states);
        self.run_layers(0..self.layers.len(), sequences, dropout, scratch, team, trace);
        self.norm_last(&mut scratch.states);
        &scratch.states
    }

    fn norm_last(&self, states: &mut [f32]) {
        if let Some(norm) = &self.final_norm {
            layer_norm(Backend::active(), states, &norm.scale, &norm.shift, self.epsilon);
        }
    }

    /// Pooled vectors of several views: those of view `i` go into `outs[i]`, `[sequences, hidden]`. Layers without dropout in
    /// any view are computed once. With `[CLS]` the last layer computes the first tokens only.
    pub fn forward_views(
        &self,
        sequences: &[&[u32]],
        views: &[Option<Dropout>],
        pool: Pool,
        scratch: &mut Scratch,
        team: &Team,
        outs: &mut [&mut [f32]],
    ) {
        let last = self.layers.len() - 1;
        let first = |view: &Option<Dropout>| view.as_ref().map_or(Some(last), |d| d.first_layer(last + 1));
        let shared = match views.iter().map(first).min() {
            Some(Some(shared)) if views.len() > 1 => shared.min(last),
            _ => 0,
        };
        let mut before = Vec::new();
        if shared > 0 {
            self.embed(sequences, None, scratch);
            self.run_layers(0..shared, sequences, None, scratch, team, |_, _| {});
            before = scratch.states.to_vec();
        }
        for (view, out) in views.iter().zip(outs) {
            if shared > 0 {
                scratch.states.copy_from_slice(&before);
            } else {
                self.embed(sequences, *view, scratch);
            }
            if pool == Pool::from(Pooling::Cls) {
                self.run_layers(shared..last, sequences, *view, scratch, team, |_, _| {});
                self.last_layer_of_first_tokens(sequences, *view, scratch, team);
                out.copy_from_slice(&scratch.states[..out.len()]);
                self.norm_last(out);
                continue;
            }
            self.run_layers(shared..last + 1, sequences, *view, scratch, team, |_, _| {});
            self.norm_last(&mut scratch.states);
            let mut rest = &scratch.states[..];
            for (sequence, row) in sequences.iter().zip(out.chunks_exact_mut(self.hidden)) {
                let states = rest.split_off(..sequence.len() * self.hidden).expect("states of every token");
                pool.apply(states, row);
            }
        }
    }

    fn embed(&self, sequences: &[&[u32]], dropout: Option<Dropout>, scratch: &mut Scratch) {
        let (backend, hidden) = (Backend::active(), self.hidden);
        let tokens: usize = sequences.iter().map(|s| s.len()).sum();
        let states = &mut scratch.states;
        states.space(tokens * hidden).fill(0.0);

        let ids = sequences.iter().flat_map(|s| self.with_positions(s));
        for ((position, id), row) in ids.zip(states.chunks_exact_mut(hidden)) {
            self.tokens.add_row(id as usize, row);
            if let Some(types) = &self.types {
                types.add_row(0, row);
            }
            if let Some(positions) = &self.positions {
                positions.add_row(position, row);
            }
        }
        layer_norm(backend, states, &self.norm.scale, &self.norm.shift, self.epsilon);
        // Dropout sites: 0 is the embeddings, then 1 + 3 * layer + {0: probabilities, 1: attention, 2: feed-forward}.
        let here = dropout.filter(|d| d.last.is_none());
        RowKeys::new(here, 0, sequences).drop(0..tokens, states, hidden, 0, backend);
    }

    /// Token ids and their positions: from 0 on, or from the padding's number on, where padding itself has that number.
    fn with_positions(&self, ids: &[u32]) -> impl Iterator<Item = (usize, u32)> {
        let mut next = self.padding.map_or(0, |padding| padding + 1);
        ids.iter().map(move |&id| match self.padding {
            Some(padding) if id as usize == padding => (padding, id),
            _ => {
                next += 1;
                (next - 1, id)
            }
        })
    }

    fn run_layers(
        &self,
        range: Range<usize>,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &mut Scratch,
        team: &Team,
        mut trace: impl FnMut(usize, &[f32]),
    ) {
        let halves = self.precision == Precision::Bf16 && self.tiled(team).is_some();
        let groups = groups(sequences, self.batching.group);
        // Taken out, since `attend` and `finish` borrow the rest of the scratch.
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

    /// The last layer where only the first token of every sequence is needed. The products after the heads, nine twelfths of
    /// a layer, run on the first tokens only. Their states, `[sequences, hidden]`, end up in front, with the same bits as from
    /// `run_layers`.
    fn last_layer_of_first_tokens(
        &self,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        scratch: &mut Scratch,
        team: &Team,
    ) {
        let (l, hidden, count) = (self.layers.len() - 1, self.hidden, sequences.len());
        let mut states = std::mem::take(&mut scratch.states);
        let mut firsts = std::mem::take(&mut scratch.firsts);
        let gathered = firsts.space(count * hidden);
        let mut first = 0;
        for range in groups(sequences, self.batching.group) {
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

    /// Sequences from number `first` on that layer `l` processes together.
    fn group<'a>(&self, l: usize, sequences: &'a [&'a [u32]], first: usize, dropout: Option<Dropout<'a>>) -> Group<'a> {
        let dropout = dropout.filter(|d| d.first_layer(self.layers.len()).is_none_or(|first| l >= first));
        Group { sequences, first, dropout, site: 1 + 3 * l as u64 }
    }

    /// Tiles for the heads. A lone query, whose products a team shares, goes without.
    fn tiled(&self, team: &Team) -> Option<Tiled> {
        self.tiled.filter(|_| team.is_alone())
    }

    /// Changes of the architecture to the scores of a layer.
    fn scores(&self, layer: &Layer) -> Scores<'_> {
        match layer.window {
            Some(window) => Scores::Window(window),
            None if self.by_distance.is_empty() => Scores::Plain,
            None => {
                let reach = (self.by_distance.len() / self.heads.heads - 1) / 2;
                Scores::ByDistance { bias: &self.by_distance, reach }
            }
        }
    }

    /// Runs the heads of a layer for a group. The result goes into `scratch.context`, or with `halves` into
    /// `scratch.context_halves`.
    fn attend(&self, layer: &Layer, group: &Group, states: &[f32], halves: bool, scratch: &mut Scratch, team: &Team) {
        if let Some(tiled) = self.tiled(team) {
            return self.attend_on_tiles(tiled, layer, group, states, halves, scratch);
        }
        let (backend, hidden, block) = (Backend::active(), self.hidden, self.batching.block);
        let Scratch { qkv, context, normed, rows, attention, half_attention, .. } = scratch;
        let (qkv, context) = (qkv.space(3 * states.len()), context.space(states.len()));
        let states = match layer.attention_norm.as_ref().filter(|_| layer.norms_first) {
            Some(norm) => norm.of(states, self.epsilon, normed),
            None => states,
        };
        for (x, y) in states.chunks(block * hidden).zip(qkv.chunks_mut(3 * block * hidden)) {
            layer.attention_in.apply(x, y, rows, team, None);
        }
        for (i, tokens) in group.ranges().enumerate() {
            let qkv = &mut qkv[3 * tokens.start * hidden..3 * tokens.end * hidden];
            let out = &mut context[tokens.start * hidden..tokens.end * hidden];
            if let Some(rotary) = &layer.rotary {
                rotary.turn(qkv, hidden);
            }
            let (scores, mask) = (self.scores(layer), group.mask(i));
            match self.precision {
                Precision::F32 => attention::attend(backend, qkv, out, self.heads, scores, mask, attention),
                _ => attend_rounded(backend, qkv, out, self.heads, scores, mask, half_attention),
            }
        }
    }

    /// [`Transformer::attend`] on tiles, with the same bits.
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
        layer.attention_in.apply_into(states, qkv_halves, rows, None);
        let context = context.space(states.len());
        for (i, tokens) in group.ranges().enumerate() {
            let mask = group.mask(i);
            if halves {
                let rows = (tokens.start, tokens.len());
                tiled.attend_into(qkv_halves, rows, context_halves, self.heads, mask, half_attention);
            } else {
                let out = &mut context[tokens.start * hidden..tokens.end * hidden];
                tiled.attend(qkv_halves, tokens.start, out, self.heads, mask, half_attention);
            }
        }
    }

    /// The layer after its heads: their output product, the feed-forward block, and a residual and a norm after each, or the norm
    /// before the block.
    fn finish(
        &self,
        layer: &Layer,
        group: &Group,
        states: &mut [f32],
        halves: bool,
        scratch: &mut Scratch,
        team: &Team,
    ) {
        let (backend, hidden) = (Backend::active(), self.hidden);
        let Scratch { narrow, normed, context, context_halves, rows, .. } = scratch;
        // Rows that are `bf16` already are multiplied all at once.
        let narrow = narrow.space(if halves { states.len() } else { self.batching.block * hidden });
        if halves {
            layer.attention_out.apply_halves(context_halves, narrow);
        }
        let mut keys = RowKeys::new(group.dropout, group.first, group.sequences);
        for (b, state) in states.chunks_mut(self.batching.block * hidden).enumerate() {
            let from = b * self.batching.block * hidden;
            let narrow = &mut narrow[if halves { from } else { 0 }..][..state.len()];
            if !halves {
                layer.attention_out.apply(&context[from..from + state.len()], narrow, rows, team, None);
            }
            let block = keys.next_block(state.len() / hidden);
            keys.drop(block.clone(), narrow, hidden, group.site + 1, backend);
            match layer.attention_norm.as_ref().filter(|_| !layer.norms_first) {
                Some(norm) => add_layer_norm(backend, state, narrow, &norm.scale, &norm.shift, self.epsilon),
                None => add(state, narrow),
            }
            let input = if layer.norms_first { layer.feed_norm.of(state, self.epsilon, normed) } else { &*state };
            match &layer.gate {
                None => {
                    layer.feed_in.apply_then(&layer.feed_out, input, narrow, rows, team, self.activation);
                }
                Some(gate) => {
                    layer.feed_in.apply_gated(gate, &layer.feed_out, input, narrow, rows, team, self.activation);
                }
            }
            keys.drop(block, narrow, hidden, group.site + 2, backend);
            if layer.norms_first {
                add(state, narrow);
                continue;
            }
            let norm = &layer.feed_norm;
            add_layer_norm(backend, state, narrow, &norm.scale, &norm.shift, self.epsilon);
        }
    }
}

impl Norm {
    /// The norm of `states`, in `space`.
    fn of<'s>(&self, states: &[f32], epsilon: f32, space: &'s mut Aligned<f32>) -> &'s [f32] {
        let normed = space.space(states.len());
        normed.copy_from_slice(states);
        layer_norm(Backend::active(), normed, &self.scale, &self.shift, epsilon);
        normed
    }
}

/// A residual without a norm.
fn add(state: &mut [f32], change: &[f32]) {
    state.iter_mut().zip(change).for_each(|(s, c)| *s += c);
}

/// Sequences that a layer processes together.
struct Group<'a> {
    sequences: &'a [&'a [u32]],
    // Number of the first of them among all sequences.
    first: usize,
    dropout: Option<Dropout<'a>>,
    // Number of the layer's first dropout site.
    site: u64,
}

impl Group<'_> {
    fn tokens(&self) -> usize {
        self.sequences.iter().map(|s| s.len()).sum()
    }

    /// Rows of each sequence.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.sequences.iter().scan(0, |end, sequence| {
            *end += sequence.len();
            Some(*end - sequence.len()..*end)
        })
    }

    /// Dropout mask of the attention of sequence `i`.
    fn mask(&self, i: usize) -> Option<(Rate, u64)> {
        self.dropout.map(|d| (d.rate, mix(d.document_key(self.first + i), self.site)))
    }
}

/// Ranges of neighbouring sequences with at most `max_tokens` tokens together; a longer sequence is alone.
pub fn groups(sequences: &[impl AsRef<[u32]>], max_tokens: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut from, mut tokens) = (0, 0);
    for (i, sequence) in sequences.iter().enumerate() {
        let length = sequence.as_ref().len();
        if i > from && tokens + length > max_tokens {
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

/// Keys of the dropout masks of a group's rows: a mask depends on the document and the position in it.
struct RowKeys {
    rate: Option<Rate>,
    // (document's key, position) per row; empty without dropout.
    rows: Vec<(u64, u64)>,
    next: usize,
}

impl RowKeys {
    fn new(dropout: Option<Dropout>, first: usize, sequences: &[&[u32]]) -> Self {
        let rows = dropout.map_or_else(Vec::new, |view| {
            let key = |(i, s): (usize, &&[u32])| {
                let document = view.document_key(first + i);
                (0..s.len() as u64).map(move |position| (document, position)).collect::<Vec<_>>()
            };
            sequences.iter().enumerate().flat_map(key).collect()
        });
        RowKeys { rate: dropout.map(|d| d.rate), rows, next: 0 }
    }

    /// The next `n` rows.
    fn next_block(&mut self, n: usize) -> Range<usize> {
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
