//! Training steps on a GPU: parameters and moments stay there, batches go in, losses and codes come out.
//!
//! `training.cu` has the kernels. Its formulas and its draws of the Gumbel noise equal the CPU's. All arithmetic is f32. Each
//! model queues its steps on its own stream, so that several models share a GPU. `step.rs` has the kernels of a step,
//! `products.rs` its matrix products.

mod products;
mod step;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::driver::compile::{Kernel, Module, arguments, assemble};
use crate::driver::device::Device;
use crate::driver::learned::Learned;
use crate::driver::library::guarded;
use crate::driver::memory::{Buffer, Event, Pinned, Stream};
use crate::{Error, Result, TrainingAdam, TrainingLosses, TrainingObjective, TrainingShape};
use parking_lot::Mutex;
pub(crate) use products::View;
use step::Code;

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
        let TrainingShape { inputs, num_codebooks, .. } = self.shape;
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
            let s = Code::new(self.shape, n);
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
