//! Training steps on a GPU: parameters and moments stay there, batches go in, losses and codes come out.
//!
//! `training.cu` has the kernels. Its formulas and its draws of the Gumbel noise equal the CPU's. All arithmetic is f32. Each
//! model queues its steps on its own stream, so that several models share a GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::driver::compile::{Kernel, Module, arguments, assemble};
use crate::driver::device::Device;
use crate::driver::learned::Learned;
use crate::driver::library::guarded;
use crate::driver::memory::{Buffer, Event, Pinned, Stream};
use crate::{Error, Result, TrainingAdam, TrainingLosses, TrainingObjective, TrainingShape};
use parking_lot::Mutex;

// One program of two files: the second uses the draws and the update of the first.
const SOURCE: &str = concat!(include_str!("training.cu"), include_str!("layer.cu"));

/// Largest number of batches that are uploaded while the GPU computes.
const MAX_QUEUED_BATCHES: usize = 4;
/// Vectors per call of the kernel that computes codes.
const MAX_CODED_VECTORS: usize = 4096;

impl TrainingShape {
    fn width(&self) -> usize {
        self.num_codebooks * self.dim
    }

    /// Offsets of `W1`, `b1`, `W2`, `b2` and the codewords in the parameters, then their end.
    fn offsets(&self) -> [usize; 6] {
        let mut end = 0;
        let sizes = [
            self.hidden * self.inputs,
            self.hidden,
            self.width() * self.hidden,
            self.width(),
            self.width() * self.codebook_size,
        ];
        let mut offsets = [0; 6];
        for (offset, size) in offsets[1..].iter_mut().zip(sizes) {
            end += size;
            *offset = end;
        }
        offsets
    }

    pub fn parameters(&self) -> usize {
        self.offsets()[5]
    }

    fn check(&self) -> Result<()> {
        let columns = MAX_CODED_VECTORS.max(2 * self.batch);
        let largest = [
            self.parameters(),
            self.inputs * columns,
            self.hidden * columns,
            self.width() * columns,
            self.width() * self.codebook_size * 2 * self.batch,
            4 * self.batch * self.batch,
        ];
        let smallest =
            [self.inputs, self.hidden, self.num_codebooks, self.codebook_size, self.dim, self.batch].into_iter().min();
        // The kernels use 32-bit indices.
        if largest.iter().any(|&n| n >= 1 << 31) || smallest == Some(0) || self.codebook_size > 256 {
            return Err(Error::Input(format!("the GPU kernels cannot train a model of {self:?}; use the CPU")));
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Code {
    num_codebooks: u32,
    codebook_size: u32,
    dim: u32,
    n: u32,
}

struct Kernels {
    product: Kernel,
    quantize: Kernel,
    inform: Kernel,
    unitize: Kernel,
    contrast: Kernel,
    symmetrize: Kernel,
    tangent: Kernel,
    dequantize: Kernel,
    word_gradient: Kernel,
    row_sums: Kernel,
    adam: Kernel,
    tally: Kernel,
    assign: Kernel,
    _module: Module,
}

impl Kernels {
    fn load(device: &Device) -> Result<Self> {
        let module = Module::load(device, &image(device.info().capability)?)?;
        let find = |name| module.find(name);
        Ok(Kernels {
            product: find("product")?,
            quantize: find("quantize")?,
            inform: find("inform")?,
            unitize: find("unitize")?,
            contrast: find("contrast")?,
            symmetrize: find("symmetrize")?,
            tangent: find("tangent")?,
            dequantize: find("dequantize")?,
            word_gradient: find("word_gradient")?,
            row_sums: find("row_sums")?,
            adam: find("adam")?,
            tally: find("tally")?,
            assign: find("assign")?,
            _module: module,
        })
    }
}

/// Compiled kernels by compute capability.
type Images = BTreeMap<(i32, i32), Arc<[u8]>>;

/// The compiled kernels for a compute capability; compiled once per process.
pub(crate) fn image(capability: (i32, i32)) -> Result<Arc<[u8]>> {
    static COMPILED: Mutex<Images> = Mutex::new(Images::new());
    let mut compiled = COMPILED.lock();
    if let Some(image) = compiled.get(&capability) {
        return Ok(image.clone());
    }
    let options = vec!["--std=c++17".into()];
    let image: Arc<[u8]> = assemble(SOURCE, options, capability, "")?.into();
    compiled.insert(capability, image.clone());
    Ok(image)
}

/// Host memory of a batch that is being uploaded.
struct Slot {
    embeddings: Pinned<f32>,
    keys: Pinned<u64>,
    uploaded: Event,
}

/// A model in training on a GPU.
pub struct Trainer {
    // Dropped first: it waits for queued work.
    stream: Stream,
    kernels: Kernels,
    slots: Vec<Slot>,
    next: usize,
    device: Device,
    shape: TrainingShape,
    objective: TrainingObjective,
    // Flat, in the order W1, b1, W2, b2, codewords.
    learned: Learned,
    // [columns, inputs]
    embeddings: Buffer,
    keys: Buffer,
    // [hidden, columns] and [width, columns]
    hidden: Buffer,
    projected: Buffer,
    // Buffers of a step: [hidden, n], [width, n], [codebooks, codewords, n], [n, n] and smaller.
    dhidden: Buffer,
    decoded: Buffer,
    unit: Buffer,
    slope: Buffer,
    dprojected: Buffer,
    posterior: Buffer,
    code: Buffer,
    logs: Buffer,
    error: Buffer,
    squares: Buffer,
    scale: Buffer,
    mean_slope: Buffer,
    information: Buffer,
    similar: Buffer,
    both: Buffer,
    losses: Buffer,
    totals: Buffer,
    // [columns, codebooks] of bytes
    codes: Buffer,
}

/// A matrix on the GPU with strides: element (i, j) lies at `i * row + j * column`.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub at: u64,
    pub row: u32,
    pub column: u32,
}

impl View {
    /// Row-major, with a row stride of `columns`.
    pub fn rows(at: u64, columns: usize) -> Self {
        View { at, row: columns as u32, column: 1 }
    }

    pub fn transposed(self) -> Self {
        View { row: self.column, column: self.row, ..self }
    }
}

/// Operations on the values of a product: a bias per row, a ReLU, and zeros where `mask` is not positive. Null addresses mean
/// none.
#[derive(Clone, Copy, Default)]
struct Epilogue {
    bias: u64,
    mask: u64,
    relu: bool,
}

impl Trainer {
    /// Allocates the buffers of a model and its batches.
    pub fn new(device: &Device, shape: TrainingShape, objective: TrainingObjective) -> Result<Self> {
        shape.check()?;
        guarded("preparing training on the GPU", || {
            let floats = |count: usize| Buffer::new(device, 4 * count, "training");
            let doubles = |count: usize| Buffer::new(device, 8 * count, "training");
            let (n, width) = (2 * shape.batch, shape.width());
            let columns = MAX_CODED_VECTORS.max(n);
            let cells = shape.num_codebooks * shape.codebook_size * n;
            let slots = (0..MAX_QUEUED_BATCHES).map(|_| {
                Ok(Slot {
                    embeddings: Pinned::new(device, n * shape.inputs)?,
                    keys: Pinned::new(device, shape.num_codebooks)?,
                    uploaded: Event::new(device)?,
                })
            });
            let trainer = Trainer {
                kernels: Kernels::load(device)?,
                slots: slots.collect::<Result<_>>()?,
                next: 0,
                shape,
                objective,
                learned: Learned::new(device, &vec![0.0; shape.parameters()])?,
                embeddings: floats(columns * shape.inputs)?,
                keys: doubles(shape.num_codebooks)?,
                hidden: floats(shape.hidden * columns)?,
                projected: floats(width * columns)?,
                dhidden: floats(shape.hidden * n)?,
                decoded: floats(width * n)?,
                unit: floats(width * n)?,
                slope: floats(width * n)?,
                dprojected: floats(width * n)?,
                posterior: floats(cells)?,
                code: floats(cells)?,
                logs: floats(cells)?,
                error: floats(cells)?,
                squares: floats(shape.num_codebooks * n)?,
                scale: floats(n)?,
                mean_slope: floats(2 * shape.num_codebooks * shape.codebook_size)?,
                information: doubles(shape.num_codebooks * shape.codebook_size)?,
                similar: floats(n * n)?,
                both: floats(n * n)?,
                losses: doubles(n)?,
                totals: Buffer::filled(device, &[0.0f64; 4], "training")?,
                codes: Buffer::new(device, columns * shape.num_codebooks, "training")?,
                stream: Stream::new(device)?,
                device: device.clone(),
            };
            Ok(trainer)
        })
    }

    /// Sets the parameters and Adam's two moments, in the order `W1`, `b1`, `W2`, `b2`, codewords.
    pub fn set_state(&mut self, parameters: &[f32], first: &[f32], second: &[f32]) -> Result<()> {
        self.device.bind()?;
        let own = &self.learned;
        for (buffer, values) in [(&own.values, parameters), (&own.first, first), (&own.second, second)] {
            self.check_len("a state", values.len(), self.shape.parameters())?;
            self.stream.upload(buffer.at(), values)?;
        }
        self.stream.wait()
    }

    /// Reads the parameters and Adam's two moments after all queued steps.
    pub fn state(&self, parameters: &mut [f32], first: &mut [f32], second: &mut [f32]) -> Result<()> {
        self.device.bind()?;
        let own = &self.learned;
        for (buffer, values) in [(&own.values, parameters), (&own.first, first), (&own.second, second)] {
            self.check_len("a state", values.len(), self.shape.parameters())?;
            self.stream.download(values, buffer.at())?;
        }
        self.stream.wait()
    }

    /// Reads the gradient of the last step.
    pub fn gradient(&self, values: &mut [f32]) -> Result<()> {
        self.device.bind()?;
        self.check_len("a gradient", values.len(), self.shape.parameters())?;
        self.stream.download(values, self.learned.gradient.at())?;
        self.stream.wait()
    }

    /// Queues the losses and the gradient of a batch. `embeddings` is `[n, inputs]`: one view of the documents in the first half
    /// of the rows, the other view in the second. `keys` are the keys of the Gumbel noise, one per codebook. The losses are
    /// weighted by `share`, and `number` is reported if the loss is not finite.
    pub fn step(&mut self, embeddings: &[f32], keys: &[u64], share: f64, number: u64) -> Result<()> {
        let TrainingShape { inputs, hidden, num_codebooks, codebook_size, dim, batch } = self.shape;
        let n = embeddings.len() / inputs;
        if n < 2 || !n.is_multiple_of(2) || n > 2 * batch {
            return Err(Error::Input(format!("a step got {n} vectors; it takes two views of 1 to {batch} documents")));
        }
        self.check_len("embeddings", embeddings.len(), n * inputs)?;
        self.check_len("keys", keys.len(), num_codebooks)?;
        self.device.bind()?;
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % MAX_QUEUED_BATCHES;
        slot.uploaded.wait()?;
        slot.embeddings.as_mut_slice()[..embeddings.len()].copy_from_slice(embeddings);
        slot.keys.as_mut_slice().copy_from_slice(keys);
        let stream = &self.stream;
        stream.upload(self.embeddings.at(), &slot.embeddings.as_slice()[..embeddings.len()])?;
        stream.upload(self.keys.at(), slot.keys.as_slice())?;
        slot.uploaded.record(stream)?;

        let (k, width, o) = (&self.kernels, num_codebooks * dim, self.objective);
        let s = Code {
            num_codebooks: num_codebooks as u32,
            codebook_size: codebook_size as u32,
            dim: dim as u32,
            n: n as u32,
        };
        let (width32, n32) = (width as u32, n as u32);
        let [w1, b1, w2, b2, codewords_offset, _] = self.shape.offsets().map(|p| 4 * p as u64);
        let (at, to) = (self.learned.values.at(), self.learned.gradient.at());
        let x = View::rows(self.embeddings.at(), inputs);
        let columns = |buffer: &Buffer| View::rows(buffer.at(), n);
        self.project(n)?;
        let codewords = at + codewords_offset;
        let each = |count: usize| count.div_ceil(128);
        // SAFETY: every argument has the type of the kernel's parameter, and every buffer has the size that `new` allocates for
        // n of at most two batches, which was checked above.
        unsafe {
            k.quantize.launch(
                stream,
                each(num_codebooks * n),
                128,
                arguments![
                    self.projected.at(),
                    codewords,
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
                each(n) * width.div_ceil(16),
                128,
                arguments![self.decoded.at(), self.squares.at(), self.unit.at(), self.scale.at(), s],
            )?;
        }
        let inverse_temperature = 1.0 / o.contrast_temperature;
        let unit = columns(&self.unit);
        self.product(
            self.similar.at(),
            unit.transposed(),
            unit,
            [n, n, width],
            inverse_temperature,
            Epilogue::default(),
        )?;
        // SAFETY: as above.
        unsafe {
            k.contrast.launch(stream, n, 128, arguments![self.similar.at(), self.losses.at(), n32, o.code_weight])?;
            k.symmetrize.launch(stream, each(n * n), 128, arguments![self.similar.at(), self.both.at(), n32])?;
        }
        self.product(
            self.slope.at(),
            unit,
            columns(&self.both),
            [width, n, n],
            inverse_temperature,
            Epilogue::default(),
        )?;
        // SAFETY: as above.
        unsafe {
            k.tangent.launch(
                stream,
                n.div_ceil(8),
                256,
                arguments![self.slope.at(), self.unit.at(), self.scale.at(), width32, n32],
            )?;
            k.dequantize.launch(
                stream,
                each(num_codebooks * n),
                128,
                arguments![
                    self.slope.at(),
                    codewords,
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
                each(width * codebook_size),
                128,
                arguments![
                    self.slope.at(),
                    self.projected.at(),
                    codewords,
                    self.code.at(),
                    self.error.at(),
                    to + codewords_offset,
                    s
                ],
            )?;
        }
        let (dz, u, du) = (columns(&self.dprojected), columns(&self.hidden), columns(&self.dhidden));
        self.product(to + w2, dz, u.transposed(), [width, hidden, n], 1.0, Epilogue::default())?;
        self.sums(self.dprojected.at(), to + b2, width, n)?;
        let masked = Epilogue { mask: self.hidden.at(), ..Epilogue::default() };
        self.product(du.at, View::rows(at + w2, hidden).transposed(), dz, [hidden, n, width], 1.0, masked)?;
        self.product(to + w1, du, x, [hidden, inputs, n], 1.0, Epilogue::default())?;
        self.sums(du.at, to + b1, hidden, n)?;
        // SAFETY: as above.
        unsafe {
            let (losses, information, totals) = (self.losses.at(), self.information.at(), self.totals.at());
            k.tally.launch(stream, 1, 256, arguments![losses, information, totals, share, number, s, o])
        }
    }

    /// Queues an update by the last step's gradient.
    pub fn update(&mut self, by: TrainingAdam) -> Result<()> {
        self.device.bind()?;
        self.learned.update(&self.kernels.adam, &self.stream, by)
    }

    /// Replaces the gradient of the last step.
    pub fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        self.device.bind()?;
        self.check_len("a gradient", values.len(), self.shape.parameters())?;
        self.stream.upload(self.learned.gradient.at(), values)?;
        self.stream.wait()
    }

    /// Waits for the queued steps and returns their losses; `clear` resets the sums to 0.
    pub fn losses(&mut self, clear: bool) -> Result<TrainingLosses> {
        self.device.bind()?;
        let mut totals = [0.0f64; 4];
        self.stream.download(&mut totals, self.totals.at())?;
        self.stream.wait()?;
        if clear {
            self.stream.upload(self.totals.at(), &[0.0f64; 4])?;
            self.stream.wait()?;
        }
        let [loss, contrastive, information, failed] = totals;
        Ok(TrainingLosses { loss, contrastive, information, failed: (failed > 0.0).then_some(failed as u64) })
    }

    /// The nearest codeword of every codebook for vectors `[n, inputs]`: `[n, codebooks]`.
    pub fn codes(&mut self, embeddings: &[f32]) -> Result<Vec<u8>> {
        let TrainingShape { inputs, num_codebooks, codebook_size, dim, .. } = self.shape;
        if !embeddings.len().is_multiple_of(inputs) {
            let found = embeddings.len();
            return Err(Error::Input(format!(
                "{found} values are not a whole number of embeddings of {inputs} values"
            )));
        }
        self.device.bind()?;
        let mut codes = vec![0; embeddings.len() / inputs * num_codebooks];
        for (rows, out) in
            embeddings.chunks(MAX_CODED_VECTORS * inputs).zip(codes.chunks_mut(MAX_CODED_VECTORS * num_codebooks))
        {
            let n = rows.len() / inputs;
            self.stream.upload(self.embeddings.at(), rows)?;
            self.project(n)?;
            let codewords = self.learned.values.at() + 4 * self.shape.offsets()[4] as u64;
            let s = Code {
                num_codebooks: num_codebooks as u32,
                codebook_size: codebook_size as u32,
                dim: dim as u32,
                n: n as u32,
            };
            // SAFETY: `projected` and `codes` have room for `MAX_CODED_VECTORS` columns.
            unsafe {
                self.kernels.assign.launch(
                    &self.stream,
                    (num_codebooks * n).div_ceil(128),
                    128,
                    arguments![self.projected.at(), codewords, self.codes.at(), s],
                )?;
            }
            self.stream.download(out, self.codes.at())?;
            self.stream.wait()?;
        }
        Ok(codes)
    }

    /// Queues `u = ReLU(W1 x + b1)` and `z = W2 u + b2` of `n` vectors.
    fn project(&self, n: usize) -> Result<()> {
        let TrainingShape { inputs, hidden, .. } = self.shape;
        let [w1, b1, w2, b2, ..] = self.shape.offsets().map(|p| self.learned.values.at() + 4 * p as u64);
        let x = View::rows(self.embeddings.at(), inputs).transposed();
        let first = Epilogue { bias: b1, relu: true, ..Epilogue::default() };
        self.product(self.hidden.at(), View::rows(w1, inputs), x, [hidden, n, inputs], 1.0, first)?;
        let (u, second) = (View::rows(self.hidden.at(), n), Epilogue { bias: b2, ..Epilogue::default() });
        self.product(self.projected.at(), View::rows(w2, hidden), u, [self.shape.width(), n, hidden], 1.0, second)
    }

    /// Queues `c = epilogue(scale a b)` of `size` `[rows, columns, depth]`.
    fn product(&self, c: u64, a: View, b: View, size: [usize; 3], scale: f32, epilogue: Epilogue) -> Result<()> {
        let [rows, columns, depth] = size.map(|n| n as u32);
        let blocks = size[0].div_ceil(32) * size[1].div_ceil(32);
        // SAFETY: callers pass views of buffers that hold matrices of these sizes; a null address means none.
        unsafe {
            self.kernels.product.launch(
                &self.stream,
                blocks,
                256,
                arguments![
                    c,
                    a.at,
                    b.at,
                    rows,
                    columns,
                    depth,
                    a.row,
                    a.column,
                    b.row,
                    b.column,
                    scale,
                    epilogue.bias,
                    epilogue.mask,
                    u32::from(epilogue.relu)
                ],
            )
        }
    }

    fn sums(&self, rows: u64, to: u64, count: usize, n: usize) -> Result<()> {
        let (count32, n32) = (count as u32, n as u32);
        // SAFETY: callers pass `[count, n]` and room for `count` sums.
        unsafe {
            self.kernels.row_sums.launch(&self.stream, count.div_ceil(64), 64, arguments![rows, to, count32, n32])
        }
    }

    fn check_len(&self, what: &str, found: usize, expected: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(Error::Input(format!("{what}: {found} values, but a model of {:?} needs {expected}", self.shape)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::library::{Library, require};

    /// Needs NVRTC, not a GPU.
    #[test]
    fn the_kernels_compile() {
        if require(Library::Compiler).is_err() {
            println!("skipped: NVRTC is not on this machine");
            return;
        }
        for capability in [(8, 0), (8, 9), (9, 0), (99, 9)] {
            assert!(guarded("compiling", || image(capability)).unwrap().len() > 1000);
        }
    }

    #[test]
    fn sizes_beyond_the_kernels_indices_are_refused() {
        let shape =
            TrainingShape { inputs: 768, hidden: 768, num_codebooks: 32, codebook_size: 16, dim: 24, batch: 64 };
        shape.check().unwrap();
        assert_eq!(shape.parameters(), 768 * 768 + 768 + 768 * 768 + 768 + 768 * 16);
        for wrong in [
            TrainingShape { batch: 65_536, ..shape },
            TrainingShape { codebook_size: 512, ..shape },
            TrainingShape { dim: 0, ..shape },
        ] {
            assert!(wrong.check().unwrap_err().to_string().contains("use the CPU"));
        }
    }
}
