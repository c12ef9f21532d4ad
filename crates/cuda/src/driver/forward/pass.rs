//! The kernels of one view of a batch, in the order of the layers.

use cudarc::driver::result;

use super::{HEADER_VALUES, Lane, Mark, Model};
use crate::driver::batch::Packed;
use crate::driver::compile::arguments;
use crate::driver::device::driver_result;
use crate::driver::gemm::Linear;
use crate::driver::weights::{Layer, Norm};
use crate::shape::Rate;
use crate::{Dropout, Pooling, Result};

/// One view on its way through the layers.
pub(super) struct Pass<'a> {
    pub lane: &'a Lane,
    pub model: &'a Model,
    pub packed: Packed,
    pub pooling: Pooling,
    pub dropout: Option<Dropout<'a>>,
    /// Addresses of the document numbers and of the result.
    pub numbers: u64,
    pub embeddings: u64,
}

/// The rows of a layer after its attention: all tokens, or with CLS pooling in the last layer the first ones alone.
#[derive(Clone, Copy)]
struct Rows {
    count: usize,
    first_only: bool,
    /// Address of the row numbers of the first tokens; null for all tokens.
    first_at: u64,
    /// Address of their states.
    states: u64,
}

impl Pass<'_> {
    /// Queues all kernels.
    ///
    /// # Safety
    /// The buffers of the lane and of the model have the capacity's sizes, the batch is within the capacity, and all of them
    /// live until the stream is waited for.
    pub unsafe fn run(&self, mark: Mark) -> Result<()> {
        // SAFETY: the caller's. Below, the arguments of every launch are those of its kernel, in order and type; addresses are
        // of the lane's or the model's buffers, whose sizes cover the tokens and documents of the batch.
        unsafe {
            self.embed(mark)?;
            for (number, layer) in self.model.weights.layers.iter().enumerate() {
                self.linear(&layer.attention_in, self.lane.states.at(), self.lane.wide.at(), self.packed.tokens)?;
                mark(&self.lane.stream, "product, attention in")?;
                let rows = self.rows(number);
                self.attend(number, rows)?;
                mark(&self.lane.stream, "attention")?;
                self.finish_attention(number, layer, rows, mark)?;
                self.feed_forward(number, layer, rows, mark)?;
            }
            self.pool()?;
        }
        mark(&self.lane.stream, "pooling")
    }

    fn section(&self, start: usize) -> u64 {
        self.lane.batch.at() + 4 * start as u64
    }

    fn drops(&self, layer: Option<usize>) -> bool {
        self.dropout.is_some_and(|d| d.in_layer(layer, self.model.shape.layers))
    }

    fn rate(&self) -> Rate {
        self.dropout.map_or(Rate::default(), |d| d.rate())
    }

    /// Keys of the sites that drop states: site 0 is the embeddings, then two sites per layer.
    fn row_keys(&self, site: usize) -> u64 {
        self.lane.row_keys.at() + 8 * (site * self.packed.tokens) as u64
    }

    fn attention_keys(&self, layer: usize) -> u64 {
        self.lane.attention_keys.at() + 8 * (layer * self.packed.documents) as u64
    }

    /// CLS pooling needs only the first tokens of the last layer, so only these are computed.
    fn rows(&self, layer: usize) -> Rows {
        let Packed { tokens, documents, sections, .. } = self.packed;
        match self.pooling == Pooling::Cls && layer + 1 == self.model.shape.layers {
            true => Rows {
                count: documents,
                first_only: true,
                first_at: self.section(sections.starts),
                states: self.lane.compact.at(),
            },
            false => Rows { count: tokens, first_only: false, first_at: 0, states: self.lane.states.at() },
        }
    }

    /// Keys of the dropout, then the embeddings of tokens and positions.
    unsafe fn embed(&self, mark: Mark) -> Result<()> {
        let Model { shape, weights, kernels, .. } = self.model;
        let Packed { tokens, documents, sections, .. } = self.packed;
        let (stream, positions) = (&self.lane.stream, self.section(sections.positions));
        let (count, rows_of_documents) = (tokens as i32, documents as i32);
        // SAFETY: see `run`.
        unsafe {
            if let Some(view) = self.dropout {
                let layers = shape.layers as i32;
                kernels.keys.launch(
                    stream,
                    tokens.div_ceil(128),
                    128,
                    arguments![
                        positions,
                        count,
                        rows_of_documents,
                        layers,
                        view.key,
                        self.numbers,
                        self.row_keys(0),
                        self.attention_keys(0)
                    ],
                )?;
            }
            mark(stream, "keys")?;
            let Norm { scale, shift } = &weights.norm;
            kernels.embed.pick(self.drops(None)).launch(
                stream,
                tokens.div_ceil(8),
                256,
                arguments![
                    self.section(sections.ids),
                    positions,
                    weights.tokens.at(),
                    weights.positions.at(),
                    scale.at(),
                    shift.at(),
                    self.lane.states.at(),
                    count,
                    self.row_keys(0),
                    self.rate()
                ],
            )?;
        }
        mark(stream, "embeddings")
    }

    unsafe fn linear(&self, linear: &Linear, x: u64, y: u64, rows: usize) -> Result<()> {
        // SAFETY: see `run`.
        unsafe { linear.multiply(&self.model.products, x, y, rows, &self.lane.workspace, &self.lane.stream) }
    }

    /// Attention heads: `wide` to `context`.
    unsafe fn attend(&self, layer: usize, rows: Rows) -> Result<()> {
        let Model { shape, kernels, .. } = self.model;
        let Packed { documents, shorts, items, sections, .. } = self.packed;
        let (stream, drop, rate) = (&self.lane.stream, self.drops(Some(layer)), self.rate());
        let (wide, context, keys) = (self.lane.wide.at(), self.lane.context.at(), self.attention_keys(layer));
        // SAFETY: see `run`.
        unsafe {
            if rows.first_only {
                let count = documents as i32;
                return kernels.attend_first.pick(drop).launch(
                    stream,
                    (documents * shape.heads).div_ceil(4),
                    128,
                    arguments![wide, context, rows.first_at, count, keys, rate],
                );
            }
            let (units, at) = (shorts * shape.heads, self.section(sections.shorts));
            let count = units as i32;
            kernels.attend_short.pick(drop).launch(
                stream,
                units.div_ceil(4),
                128,
                arguments![wide, context, at, count, keys, rate],
            )?;
            kernels.attend.pick(drop).launch(
                stream,
                items * shape.heads,
                128,
                arguments![wide, context, self.section(sections.items), keys, rate],
            )
        }
    }

    /// Adds `narrow` to the states at `from`, whose rows `at` names where it is not null, and normalises into `rows.states`.
    unsafe fn add_norm(&self, layer: usize, site: usize, from: (u64, u64), norm: &Norm, rows: Rows) -> Result<()> {
        let count = rows.count as i32;
        // SAFETY: see `run`.
        unsafe {
            self.model.kernels.add_norm.pick(self.drops(Some(layer))).launch(
                &self.lane.stream,
                rows.count.div_ceil(8),
                256,
                arguments![
                    from.0,
                    from.1,
                    self.lane.narrow.at(),
                    rows.states,
                    norm.scale.at(),
                    norm.shift.at(),
                    count,
                    self.row_keys(site),
                    rows.first_at,
                    self.rate()
                ],
            )
        }
    }

    unsafe fn finish_attention(&self, number: usize, layer: &Layer, rows: Rows, mark: Mark) -> Result<()> {
        let (lane, stream) = (self.lane, &self.lane.stream);
        // SAFETY: see `run`.
        unsafe {
            self.linear(&layer.attention_out, lane.context.at(), lane.narrow.at(), rows.count)?;
            mark(stream, "product, attention out")?;
            let from = (lane.states.at(), rows.first_at);
            self.add_norm(number, 1 + 2 * number, from, &layer.attention_norm, rows)?;
        }
        mark(stream, "residual and norm")
    }

    unsafe fn feed_forward(&self, number: usize, layer: &Layer, rows: Rows, mark: Mark) -> Result<()> {
        let Model { shape, weights, kernels, .. } = self.model;
        let (lane, stream, wide) = (self.lane, &self.lane.stream, self.lane.wide.at());
        // SAFETY: see `run`.
        unsafe {
            match (layer.feed_in.own_product().filter(|_| self.model.use_own_product), &lane.maps) {
                (Some(own), Some((all, first))) => {
                    own.launch(if rows.first_only { first } else { all }, wide, rows.count, stream)?;
                    mark(stream, "product, feed in")?;
                }
                _ => {
                    self.linear(&layer.feed_in, rows.states, wide, rows.count)?;
                    mark(stream, "product, feed in")?;
                    if !weights.activated {
                        let vectors = (rows.count * shape.intermediate / 8) as u64;
                        let blocks = vectors.div_ceil(256) as usize;
                        kernels.activation.launch(stream, blocks, 256, arguments![wide, vectors])?;
                        mark(stream, "activation")?;
                    }
                }
            }
            self.linear(&layer.feed_out, wide, lane.narrow.at(), rows.count)?;
            mark(stream, "product, feed out")?;
            self.add_norm(number, 2 + 2 * number, (rows.states, 0), &layer.feed_norm, rows)?;
        }
        mark(stream, "residual and norm")
    }

    /// Token states to one vector per document, and a flag for values that are not finite.
    unsafe fn pool(&self) -> Result<()> {
        let (lane, stream, embeddings) = (self.lane, &self.lane.stream, self.embeddings);
        let (from, first_rows) = match self.pooling {
            Pooling::Cls => (lane.compact.at(), 0u64),
            Pooling::Mean => (lane.states.at(), self.section(self.packed.sections.starts)),
        };
        let to = embeddings + 4 * HEADER_VALUES as u64;
        // SAFETY: see `run`.
        unsafe {
            driver_result(
                "clearing a flag",
                result::memset_d8_async(embeddings, 0, 4 * HEADER_VALUES, stream.handle()),
            )?;
            let blocks = self.packed.documents;
            self.model.kernels.pool.launch(stream, blocks, 128, arguments![from, first_rows, to, embeddings])
        }
    }
}
