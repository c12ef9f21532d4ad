//! The loss and the gradient of a batch: projection, soft code, mutual information and contrastive loss, then back.

use super::products::{Epilogue, View};
use super::{MAX_QUEUED_BATCHES, Trainer};
use crate::driver::compile::arguments;
use crate::driver::memory::Buffer;
use crate::{Error, Result, TrainingShape};

/// Sizes of a code and of a batch, as the kernels take them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Code {
    num_codebooks: u32,
    codebook_size: u32,
    dim: u32,
    n: u32,
}

impl Code {
    pub fn new(shape: TrainingShape, n: usize) -> Self {
        let TrainingShape { num_codebooks, codebook_size, dim, .. } = shape;
        Code { num_codebooks: num_codebooks as u32, codebook_size: codebook_size as u32, dim: dim as u32, n: n as u32 }
    }
}

/// Blocks of 128 threads, a thread for each of `count`.
fn blocks(count: usize) -> usize {
    count.div_ceil(128)
}

impl Trainer {
    /// Queues the losses and the gradient of a batch. `embeddings` is `[n, inputs]`: one view of the documents in the first half
    /// of the rows, the other view in the second. `keys` are the keys of the Gumbel noise, one per codebook. The losses are
    /// weighted by `share`, and `number` is reported if the loss is not finite.
    pub fn step(&mut self, embeddings: &[f32], keys: &[u64], share: f64, number: u64) -> Result<()> {
        let TrainingShape { inputs, num_codebooks, batch, .. } = self.shape;
        let n = embeddings.len() / inputs;
        if n < 2 || !n.is_multiple_of(2) || n > 2 * batch {
            return Err(Error::Input(format!("a step got {n} vectors; it takes two views of 1 to {batch} documents")));
        }
        self.check_len("embeddings", embeddings.len(), n * inputs)?;
        self.check_len("keys", keys.len(), num_codebooks)?;
        self.device.bind()?;
        self.upload_batch(embeddings, keys)?;
        self.project(n)?;
        // SAFETY: `n` is at most two batches, which was checked above.
        unsafe {
            self.quantize(n)?;
            self.contrast(n)?;
            self.dequantize(n)?;
        }
        self.projection_gradient(n)?;
        let (s, o) = (Code::new(self.shape, n), self.objective);
        let (losses, information, totals) = (self.losses.at(), self.information.at(), self.totals.at());
        // SAFETY: as above; the arguments have the types of the kernel's parameters.
        unsafe {
            self.kernels.tally.launch(
                &self.stream,
                1,
                256,
                arguments![losses, information, totals, share, number, s, o],
            )
        }
    }

    fn upload_batch(&mut self, embeddings: &[f32], keys: &[u64]) -> Result<()> {
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % MAX_QUEUED_BATCHES;
        slot.uploaded.wait()?;
        slot.embeddings.as_mut_slice()[..embeddings.len()].copy_from_slice(embeddings);
        slot.keys.as_mut_slice().copy_from_slice(keys);
        self.stream.upload(self.embeddings.at(), &slot.embeddings.as_slice()[..embeddings.len()])?;
        self.stream.upload(self.keys.at(), slot.keys.as_slice())?;
        slot.uploaded.record(&self.stream)
    }

    /// Address of the codewords in the parameters.
    fn codewords(&self) -> u64 {
        self.learned.values.at() + 4 * self.shape.offsets()[4] as u64
    }

    /// Soft codes of the projected vectors, their mutual information, and the decoded vectors at unit length.
    ///
    /// # Safety
    /// `n` is at most two batches: every buffer has the size that `new` allocates for that. Every argument has the type of the
    /// kernel's parameter.
    unsafe fn quantize(&self, n: usize) -> Result<()> {
        let (k, stream, s, o) = (&self.kernels, &self.stream, Code::new(self.shape, n), self.objective);
        let TrainingShape { num_codebooks, codebook_size, .. } = self.shape;
        // SAFETY: as the caller promises.
        unsafe {
            k.quantize.launch(
                stream,
                blocks(num_codebooks * n),
                128,
                arguments![
                    self.projected.at(),
                    self.codewords(),
                    self.keys.at(),
                    self.posterior.at(),
                    self.code.at(),
                    self.logs.at(),
                    self.decoded.at(),
                    self.squares.at(),
                    s,
                    o
                ],
            )?;
            k.inform.launch(
                stream,
                num_codebooks * codebook_size,
                64,
                arguments![
                    self.posterior.at(),
                    self.code.at(),
                    self.logs.at(),
                    self.mean_slope.at(),
                    self.information.at(),
                    s,
                    o
                ],
            )?;
            k.unitize.launch(
                stream,
                blocks(n) * self.shape.width().div_ceil(16),
                128,
                arguments![self.decoded.at(), self.squares.at(), self.unit.at(), self.scale.at(), s],
            )
        }
    }

    /// The contrastive loss, and its gradient by the decoded vectors.
    ///
    /// # Safety
    /// As of `quantize`.
    unsafe fn contrast(&self, n: usize) -> Result<()> {
        let (k, stream, o) = (&self.kernels, &self.stream, self.objective);
        let (width, n32) = (self.shape.width(), n as u32);
        let width32 = width as u32;
        let inverse_temperature = 1.0 / o.contrast_temperature;
        let (unit, none) = (View::rows(self.unit.at(), n), Epilogue::default());
        self.product(self.similar.at(), unit.transposed(), unit, [n, n, width], inverse_temperature, none)?;
        // SAFETY: as the caller promises.
        unsafe {
            k.contrast.launch(stream, n, 128, arguments![self.similar.at(), self.losses.at(), n32, o.code_weight])?;
            k.symmetrize.launch(stream, blocks(n * n), 128, arguments![self.similar.at(), self.both.at(), n32])?;
        }
        let both = View::rows(self.both.at(), n);
        self.product(self.slope.at(), unit, both, [width, n, n], inverse_temperature, none)?;
        // SAFETY: as the caller promises.
        unsafe {
            k.tangent.launch(
                stream,
                n.div_ceil(8),
                256,
                arguments![self.slope.at(), self.unit.at(), self.scale.at(), width32, n32],
            )
        }
    }

    /// The gradient through the soft codes: by the projected vectors and by the codewords.
    ///
    /// # Safety
    /// As of `quantize`.
    unsafe fn dequantize(&self, n: usize) -> Result<()> {
        let (k, stream, s, o) = (&self.kernels, &self.stream, Code::new(self.shape, n), self.objective);
        let TrainingShape { num_codebooks, codebook_size, .. } = self.shape;
        let codewords_gradient = self.learned.gradient.at() + 4 * self.shape.offsets()[4] as u64;
        // SAFETY: as the caller promises.
        unsafe {
            k.dequantize.launch(
                stream,
                blocks(num_codebooks * n),
                128,
                arguments![
                    self.slope.at(),
                    self.codewords(),
                    self.posterior.at(),
                    self.code.at(),
                    self.logs.at(),
                    self.mean_slope.at(),
                    self.error.at(),
                    self.dprojected.at(),
                    s,
                    o
                ],
            )?;
            k.word_gradient.launch(
                stream,
                blocks(self.shape.width() * codebook_size),
                128,
                arguments![
                    self.slope.at(),
                    self.projected.at(),
                    self.codewords(),
                    self.code.at(),
                    self.error.at(),
                    codewords_gradient,
                    s
                ],
            )
        }
    }

    /// The gradient by the two layers of the projection.
    fn projection_gradient(&self, n: usize) -> Result<()> {
        let TrainingShape { inputs, hidden, .. } = self.shape;
        let (width, none) = (self.shape.width(), Epilogue::default());
        let [w1, b1, w2, b2, ..] = self.shape.offsets().map(|p| 4 * p as u64);
        let (at, to) = (self.learned.values.at(), self.learned.gradient.at());
        let x = View::rows(self.embeddings.at(), inputs);
        let columns = |buffer: &Buffer| View::rows(buffer.at(), n);
        let (dz, u, du) = (columns(&self.dprojected), columns(&self.hidden), columns(&self.dhidden));
        self.product(to + w2, dz, u.transposed(), [width, hidden, n], 1.0, none)?;
        self.sums(self.dprojected.at(), to + b2, width, n)?;
        let masked = Epilogue { mask: self.hidden.at(), ..none };
        self.product(du.at, View::rows(at + w2, hidden).transposed(), dz, [hidden, n, width], 1.0, masked)?;
        self.product(to + w1, du, x, [hidden, inputs, n], 1.0, none)?;
        self.sums(du.at, to + b1, hidden, n)
    }
}
