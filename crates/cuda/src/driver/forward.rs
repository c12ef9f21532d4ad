//! Batches on a GPU: the buffers of a lane, its uploads, and its views in flight. `pass.rs` has the kernels of one view.

mod pass;

use std::collections::VecDeque;
use std::ops::Range;

use crate::driver::batch::{Capacity, Packed, pack};
use crate::driver::compile::Kernels;
use crate::driver::device::Device;
use crate::driver::gemm::{Products, WORKSPACE_BYTES};
use crate::driver::hopper::Map;
use crate::driver::memory::{Buffer, Event, Pinned, Stream};
use crate::driver::weights::Weights;
use crate::{Dropout, Error, Pooling, Precision, Result, Shape};
use pass::Pass;

/// The encoder, shared by all lanes.
pub(crate) struct Model {
    pub shape: Shape,
    pub precision: Precision,
    pub weights: Weights,
    pub products: Products,
    pub kernels: Kernels,
    /// Whether our own product may replace cuBLASLt's where it is faster.
    pub use_own_product: bool,
}

/// Called after each queued kernel with the name of its stage.
pub(crate) type Mark<'a> = &'a mut dyn FnMut(&Stream, &'static str) -> Result<()>;

/// Values before the embeddings of a result: a flag, padded to 16 bytes.
const HEADER_VALUES: usize = 4;
/// Views of a lane in flight: one is computed while the previous one is copied back.
const SLOTS: usize = 2;

/// A stream with the buffers of a batch, allocated once and used for every batch.
pub(crate) struct Lane {
    stream: Stream,
    capacity: Capacity,
    packed: Option<Packed>,
    staging: Pinned<u32>,
    uploaded: Event,
    batch: Buffer,
    // [tokens, hidden]
    states: Buffer,
    // [tokens, 3 * hidden], then [tokens, intermediate]
    wide: Buffer,
    // [tokens, hidden]: outputs of attention and feed-forward, before the residual.
    narrow: Buffer,
    // [tokens, hidden]
    context: Buffer,
    // [documents, hidden]: the first tokens, in the last layer with CLS pooling.
    compact: Buffer,
    // [2 * layers + 1, tokens] and [layers, documents] of u64
    row_keys: Buffer,
    attention_keys: Buffer,
    workspace: Buffer,
    /// Descriptions of `states` and `compact` for our own product.
    maps: Option<(Map, Map)>,
    slots: Vec<Slot>,
    pending: VecDeque<Pending>,
    launched: usize,
}

struct Slot {
    // [documents]: a view's document numbers, on the GPU and on the host.
    numbers: Buffer,
    host_numbers: Pinned<u64>,
    // HEADER_VALUES, then [documents, hidden] of f32
    embeddings: Buffer,
    host: Pinned<f32>,
    done: Event,
}

/// A view in flight.
struct Pending {
    slot: usize,
    view: usize,
    rows: Range<usize>,
}

impl Lane {
    pub fn new(device: &Device, model: &Model, capacity: Capacity) -> Result<Self> {
        let Capacity { tokens, documents } = capacity;
        let Model { shape, precision, .. } = model;
        let what = format!("a batch of {tokens} tokens");
        let buffer = |bytes: usize| Buffer::new(device, bytes, &what);
        let narrow = tokens * shape.hidden * 2;
        let slots = (0..SLOTS)
            .map(|_| {
                let values = HEADER_VALUES + documents * shape.hidden;
                Ok(Slot {
                    numbers: buffer(8 * documents)?,
                    host_numbers: Pinned::new(device, documents)?,
                    embeddings: buffer(4 * values)?,
                    host: Pinned::new(device, values)?,
                    done: Event::new(device)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let (states, compact) = (buffer(narrow)?, buffer(2 * documents * shape.hidden)?);
        let map = |buffer: &Buffer, rows| Map::operand(buffer.at(), rows, shape.hidden, *precision);
        let maps = match model.kernels.feed_in {
            Some(_) => Some((map(&states, tokens)?, map(&compact, documents)?)),
            None => None,
        };
        Ok(Lane {
            stream: Stream::new(device)?,
            capacity,
            packed: None,
            staging: Pinned::new(device, capacity.packed_len())?,
            uploaded: Event::new(device)?,
            batch: buffer(4 * capacity.packed_len())?,
            states,
            wide: buffer(2 * tokens * shape.intermediate.max(3 * shape.hidden))?,
            narrow: buffer(narrow)?,
            context: buffer(narrow)?,
            compact,
            row_keys: buffer(8 * (2 * shape.layers + 1) * tokens)?,
            attention_keys: buffer(8 * shape.layers * documents)?,
            workspace: buffer(WORKSPACE_BYTES)?,
            maps,
            slots,
            pending: VecDeque::new(),
            launched: 0,
        })
    }

    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Queues the upload of a batch; views of the previous one may still be in flight.
    pub fn upload(&mut self, shape: &Shape, sequences: &[&[u32]]) -> Result<()> {
        self.uploaded.wait()?;
        let packed = pack(sequences, shape.short(), self.staging.as_mut_slice());
        self.stream.upload(self.batch.at(), &self.staging.as_slice()[..packed.sections.end])?;
        self.uploaded.record(&self.stream)?;
        self.packed = Some(packed);
        Ok(())
    }

    /// Whether a view must be collected before the next launch.
    pub fn is_full(&self) -> bool {
        self.pending.len() == SLOTS
    }

    /// Queues one view of the uploaded batch, whose sequences are `rows` of the result.
    pub fn launch(
        &mut self,
        model: &Model,
        pooling: Pooling,
        view: usize,
        dropout: Option<Dropout>,
        rows: Range<usize>,
        mark: Mark,
    ) -> Result<()> {
        let Some(packed) = self.packed else {
            return Err(Error::Input("a view was launched before a batch was uploaded".into()));
        };
        debug_assert!(!self.is_full() && packed.documents == rows.len());
        let slot = self.launched % SLOTS;
        let Slot { numbers, host_numbers, embeddings, .. } = &mut self.slots[slot];
        if let Some(view) = dropout {
            let host_numbers = &mut host_numbers.as_mut_slice()[..rows.len()];
            host_numbers.copy_from_slice(&view.documents[rows.clone()]);
            self.stream.upload(numbers.at(), host_numbers)?;
        }
        let (numbers, embeddings) = (numbers.at(), embeddings.at());
        // SAFETY: the buffers have the capacity's sizes, the batch is within the capacity, and all of them live until
        // the stream is waited for when the lane is dropped.
        unsafe { Pass { lane: self, model, packed, pooling, dropout, numbers, embeddings }.run(mark)? };
        let values = HEADER_VALUES + packed.documents * model.shape.hidden;
        let Slot { host, done, .. } = &mut self.slots[slot];
        self.stream.download(&mut host.as_mut_slice()[..values], embeddings)?;
        done.record(&self.stream)?;
        self.pending.push_back(Pending { slot, view, rows });
        self.launched += 1;
        Ok(())
    }

    /// Waits for the oldest view in flight and copies it to its rows of `outs`. Returns the number of rows, or `None` without a
    /// view.
    pub fn collect(&mut self, model: &Model, outs: &mut [&mut [f32]]) -> Result<Option<usize>> {
        let Some(Pending { slot, view, rows }) = self.pending.pop_front() else { return Ok(None) };
        let Slot { host, done, .. } = &self.slots[slot];
        done.wait()?;
        let hidden = model.shape.hidden;
        let values = host.as_slice();
        if values[0].to_bits() != 0 {
            let (precision, other) = model.precision.names();
            return Err(Error::Range { precision, other });
        }
        outs[view][rows.start * hidden..rows.end * hidden]
            .copy_from_slice(&values[HEADER_VALUES..HEADER_VALUES + rows.len() * hidden]);
        Ok(Some(rows.len()))
    }

    /// Copies the first states of the batch after the last launch, as bits of the precision.
    pub fn states(&self, to: &mut [u16]) -> Result<()> {
        debug_assert!(2 * to.len() <= self.states.bytes() && self.pending.is_empty());
        self.stream.download(to, self.states.at())?;
        self.stream.wait()
    }

    /// Waits for queued work and discards its results.
    pub fn abandon(&mut self) {
        self.pending.clear();
        let _ = self.stream.wait();
    }
}
