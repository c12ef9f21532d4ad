//! Training steps on a GPU: parameters and moments stay there, batches go in, losses and codes come out.
//!
//! `training.cu` holds the kernels; its formulas are the CPU's, and so are the draws of the Gumbel noise. All arithmetic is
//! f32. The steps of a model are queued one behind the other on a stream of its own, so that several models share a GPU.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::compile::{Kernel, Module, arguments, assemble};
use crate::device::Device;
use crate::learned::{Learned, TrainingAdam};
use crate::library::guarded;
use crate::memory::{Buffer, Event, Pinned, Stream};
use crate::{Error, Result};

// Two files, one program: the second uses the draws and the update of the first.
const SOURCE: &str = concat!(include_str!("training.cu"), include_str!("layer.cu"));

/// Batches that may be on their way to the GPU while it computes.
const AHEAD: usize = 4;
/// Vectors whose codes are computed at a time.
const CODED: usize = 4096;

/// Sizes of what is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingShape {
    /// Values in a feature vector.
    pub inputs: usize,
    /// Width of the hidden layer.
    pub hidden: usize,
    /// Codebooks.
    pub books: usize,
    /// Words of a book, 256 at most.
    pub words: usize,
    /// Dimensions of a word.
    pub dim: usize,
    /// The most documents of a batch.
    pub batch: usize,
}

impl TrainingShape {
    fn width(&self) -> usize {
        self.books * self.dim
    }

    /// Where `W1`, `b1`, `W2`, `b2` and the words begin, and where they end.
    fn places(&self) -> [usize; 6] {
        let mut end = 0;
        let sizes = [
            self.hidden * self.inputs,
            self.hidden,
            self.width() * self.hidden,
            self.width(),
            self.width() * self.words,
        ];
        let mut places = [0; 6];
        for (place, size) in places[1..].iter_mut().zip(sizes) {
            end += size;
            *place = end;
        }
        places
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.places()[5]
    }

    fn check(&self) -> Result<()> {
        let columns = CODED.max(2 * self.batch);
        let largest = [
            self.parameters(),
            self.inputs * columns,
            self.hidden * columns,
            self.width() * columns,
            self.width() * self.words * 2 * self.batch,
            4 * self.batch * self.batch,
        ];
        let least = [self.inputs, self.hidden, self.books, self.words, self.dim, self.batch].into_iter().min();
        // The kernels count in 32 bits.
        if largest.iter().any(|&n| n >= 1 << 31) || least == Some(0) || self.words > 256 {
            return Err(Error::Input(format!("a model of {self:?} is none that a GPU of ours can train; use the CPU")));
        }
        Ok(())
    }
}

/// What is minimised, as the kernels read it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct TrainingObjective {
    /// Temperature of the soft code.
    pub tau: f32,
    /// Added to a probability before its logarithm.
    pub floor: f32,
    /// Weight of the mutual information.
    pub prob_weight: f32,
    /// Weight of the contrastive loss.
    pub code_weight: f32,
    /// Weight of the conditional entropy.
    pub alpha: f32,
    /// Temperature of the contrastive loss.
    pub contrast_temperature: f32,
    /// 1 with Gumbel noise, else 0.
    pub gumbel: u32,
    /// 1 where the information is that of the posterior, 0 where it is the soft code's.
    pub posterior: u32,
}

/// Losses summed over steps, each by its share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingLosses {
    /// The whole.
    pub loss: f64,
    /// NT-Xent, nats.
    pub contrastive: f64,
    /// Mutual information, nats.
    pub information: f64,
    /// The first step, counted from 1, whose loss was not a finite number.
    pub failed: Option<u64>,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Code {
    books: u32,
    words: u32,
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

/// The compiled kernels of a kind of GPU: one compilation serves every model of a process.
pub(crate) fn image(capability: (i32, i32)) -> Result<Arc<[u8]>> {
    static COMPILED: Mutex<Images> = Mutex::new(Images::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(image) = compiled.get(&capability) {
        return Ok(image.clone());
    }
    let options = vec!["--std=c++17".into()];
    let image: Arc<[u8]> = assemble(SOURCE, options, capability, "")?.into();
    compiled.insert(capability, image.clone());
    Ok(image)
}

/// A batch on its way to the GPU.
struct Slot {
    features: Pinned<f32>,
    keys: Pinned<u64>,
    gone: Event,
}

/// A model in training on a GPU.
pub struct Trainer {
    // Dropped first: it waits for what is queued.
    stream: Stream,
    kernels: Kernels,
    slots: Vec<Slot>,
    next: usize,
    device: Device,
    shape: TrainingShape,
    objective: TrainingObjective,
    // Flat, in the order W1, b1, W2, b2, words.
    learned: Learned,
    // [columns, inputs]
    features: Buffer,
    keys: Buffer,
    // [hidden, columns] and [width, columns]
    hidden: Buffer,
    refined: Buffer,
    // Of a step: [hidden, n], [width, n], [books, words, n], [n, n] and smaller.
    dhidden: Buffer,
    decoded: Buffer,
    unit: Buffer,
    slope: Buffer,
    drefined: Buffer,
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
    // [columns, books] bytes
    chosen: Buffer,
}

/// A matrix of the GPU, read in place: element (i, j) lies at `i * row + j * column`.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub at: u64,
    pub row: u32,
    pub column: u32,
}

impl View {
    /// Row-major, a row every `columns` values.
    pub fn rows(at: u64, columns: usize) -> Self {
        View { at, row: columns as u32, column: 1 }
    }

    pub fn turned(self) -> Self {
        View { row: self.column, column: self.row, ..self }
    }
}

/// What happens to a product's values.
#[derive(Clone, Copy, Default)]
struct Edge {
    bias: u64,
    mask: u64,
    relu: bool,
}

impl Trainer {
    /// Room for a model and its batches.
    pub fn new(device: &Device, shape: TrainingShape, objective: TrainingObjective) -> Result<Self> {
        shape.check()?;
        guarded("preparing training on the GPU", || {
            let floats = |count: usize| Buffer::new(device, 4 * count, "training");
            let doubles = |count: usize| Buffer::new(device, 8 * count, "training");
            let (n, width) = (2 * shape.batch, shape.width());
            let columns = CODED.max(n);
            let cells = shape.books * shape.words * n;
            let slots = (0..AHEAD).map(|_| {
                Ok(Slot {
                    features: Pinned::new(device, n * shape.inputs)?,
                    keys: Pinned::new(device, shape.books)?,
                    gone: Event::new(device)?,
                })
            });
            let trainer = Trainer {
                kernels: Kernels::load(device)?,
                slots: slots.collect::<Result<_>>()?,
                next: 0,
                shape,
                objective,
                learned: Learned::new(device, &vec![0.0; shape.parameters()])?,
                features: floats(columns * shape.inputs)?,
                keys: doubles(shape.books)?,
                hidden: floats(shape.hidden * columns)?,
                refined: floats(width * columns)?,
                dhidden: floats(shape.hidden * n)?,
                decoded: floats(width * n)?,
                unit: floats(width * n)?,
                slope: floats(width * n)?,
                drefined: floats(width * n)?,
                posterior: floats(cells)?,
                code: floats(cells)?,
                logs: floats(cells)?,
                error: floats(cells)?,
                squares: floats(shape.books * n)?,
                scale: floats(n)?,
                mean_slope: floats(2 * shape.books * shape.words)?,
                information: doubles(shape.books * shape.words)?,
                similar: floats(n * n)?,
                both: floats(n * n)?,
                losses: doubles(n)?,
                totals: Buffer::filled(device, &[0.0f64; 4], "training")?,
                chosen: Buffer::new(device, columns * shape.books, "training")?,
                stream: Stream::new(device)?,
                device: device.clone(),
            };
            Ok(trainer)
        })
    }

    /// Takes up a state: parameters and Adam's two moments, in the order `W1`, `b1`, `W2`, `b2`, words.
    pub fn set_state(&mut self, parameters: &[f32], first: &[f32], second: &[f32]) -> Result<()> {
        self.device.bind()?;
        let own = &self.learned;
        for (buffer, values) in [(&own.values, parameters), (&own.first, first), (&own.second, second)] {
            self.fits("a state", values.len(), self.shape.parameters())?;
            self.stream.upload(buffer.at(), values)?;
        }
        self.stream.wait()
    }

    /// The state after every step queued so far.
    pub fn state(&self, parameters: &mut [f32], first: &mut [f32], second: &mut [f32]) -> Result<()> {
        self.device.bind()?;
        let own = &self.learned;
        for (buffer, values) in [(&own.values, parameters), (&own.first, first), (&own.second, second)] {
            self.fits("a state", values.len(), self.shape.parameters())?;
            self.stream.download(values, buffer.at())?;
        }
        self.stream.wait()
    }

    /// The gradient of the last step.
    pub fn gradient(&self, values: &mut [f32]) -> Result<()> {
        self.device.bind()?;
        self.fits("a gradient", values.len(), self.shape.parameters())?;
        self.stream.download(values, self.learned.gradient.at())?;
        self.stream.wait()
    }

    /// Queues the losses and the gradient of a batch. `features` is `[n, inputs]`, the first half of the rows one view of
    /// the documents and the second the other; `keys` are the streams of the books' Gumbel noise; the losses count as
    /// `share` of the total, and `number` names the step where its loss is no number.
    pub fn step(&mut self, features: &[f32], keys: &[u64], share: f64, number: u64) -> Result<()> {
        let TrainingShape { inputs, hidden, books, words, dim, batch } = self.shape;
        let n = features.len() / inputs;
        if n < 2 || !n.is_multiple_of(2) || n > 2 * batch {
            return Err(Error::Input(format!(
                "{n} vectors in a step; two views of 1 to {batch} documents are expected"
            )));
        }
        self.fits("features", features.len(), n * inputs)?;
        self.fits("keys", keys.len(), books)?;
        self.device.bind()?;
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % AHEAD;
        slot.gone.wait()?;
        slot.features.as_mut_slice()[..features.len()].copy_from_slice(features);
        slot.keys.as_mut_slice().copy_from_slice(keys);
        let stream = &self.stream;
        stream.upload(self.features.at(), &slot.features.as_slice()[..features.len()])?;
        stream.upload(self.keys.at(), slot.keys.as_slice())?;
        slot.gone.record(stream)?;

        let (k, width, o) = (&self.kernels, books * dim, self.objective);
        let s = Code { books: books as u32, words: words as u32, dim: dim as u32, n: n as u32 };
        let (width32, n32) = (width as u32, n as u32);
        let [w1, b1, w2, b2, book_words, _] = self.shape.places().map(|p| 4 * p as u64);
        let (at, to) = (self.learned.values.at(), self.learned.gradient.at());
        let x = View::rows(self.features.at(), inputs);
        let columns = |buffer: &Buffer| View::rows(buffer.at(), n);
        self.refine(n)?;
        let own = at + book_words;
        let each = |count: usize| count.div_ceil(128);
        // SAFETY: every argument has the type of the kernel's parameter, and every buffer the size `new` gave it for n of at
        // most two batches, which was checked above.
        unsafe {
            k.quantize.launch(
                stream,
                each(books * n),
                128,
                arguments![
                    self.refined.at(),
                    own,
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
                books * words,
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
        let softness = 1.0 / o.contrast_temperature;
        let unit = columns(&self.unit);
        self.product(self.similar.at(), unit.turned(), unit, [n, n, width], softness, Edge::default())?;
        // SAFETY: as above.
        unsafe {
            k.contrast.launch(stream, n, 128, arguments![self.similar.at(), self.losses.at(), n32, o.code_weight])?;
            k.symmetrize.launch(stream, each(n * n), 128, arguments![self.similar.at(), self.both.at(), n32])?;
        }
        self.product(self.slope.at(), unit, columns(&self.both), [width, n, n], softness, Edge::default())?;
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
                each(books * n),
                128,
                arguments![
                    self.slope.at(),
                    own,
                    self.posterior.at(),
                    self.code.at(),
                    self.logs.at(),
                    self.mean_slope.at(),
                    self.error.at(),
                    self.drefined.at(),
                    s,
                    o
                ],
            )?;
            k.word_gradient.launch(
                stream,
                each(width * words),
                128,
                arguments![
                    self.slope.at(),
                    self.refined.at(),
                    own,
                    self.code.at(),
                    self.error.at(),
                    to + book_words,
                    s
                ],
            )?;
        }
        let (dz, u, du) = (columns(&self.drefined), columns(&self.hidden), columns(&self.dhidden));
        self.product(to + w2, dz, u.turned(), [width, hidden, n], 1.0, Edge::default())?;
        self.sums(self.drefined.at(), to + b2, width, n)?;
        let masked = Edge { mask: self.hidden.at(), ..Edge::default() };
        self.product(du.at, View::rows(at + w2, hidden).turned(), dz, [hidden, n, width], 1.0, masked)?;
        self.product(to + w1, du, x, [hidden, inputs, n], 1.0, Edge::default())?;
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

    /// Puts another gradient in the place of the last step's.
    pub fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        self.device.bind()?;
        self.fits("a gradient", values.len(), self.shape.parameters())?;
        self.stream.upload(self.learned.gradient.at(), values)?;
        self.stream.wait()
    }

    /// Waits for the steps queued so far and gives their losses; with `clear` the next ones begin at 0.
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

    /// The nearest word of every book for vectors `[n, inputs]`: `[n, books]`.
    pub fn codes(&mut self, features: &[f32]) -> Result<Vec<u8>> {
        let TrainingShape { inputs, books, words, dim, .. } = self.shape;
        self.fits("features", features.len() % inputs, 0)?;
        self.device.bind()?;
        let mut chosen = vec![0; features.len() / inputs * books];
        for (rows, out) in features.chunks(CODED * inputs).zip(chosen.chunks_mut(CODED * books)) {
            let n = rows.len() / inputs;
            self.stream.upload(self.features.at(), rows)?;
            self.refine(n)?;
            let own = self.learned.values.at() + 4 * self.shape.places()[4] as u64;
            let s = Code { books: books as u32, words: words as u32, dim: dim as u32, n: n as u32 };
            // SAFETY: `refined` and `chosen` have room for `CODED` columns.
            unsafe {
                self.kernels.assign.launch(
                    &self.stream,
                    (books * n).div_ceil(128),
                    128,
                    arguments![self.refined.at(), own, self.chosen.at(), s],
                )?;
            }
            self.stream.download(out, self.chosen.at())?;
            self.stream.wait()?;
        }
        Ok(chosen)
    }

    /// `u = ReLU(W1 x + b1)`, `z = W2 u + b2` of `n` vectors.
    fn refine(&self, n: usize) -> Result<()> {
        let TrainingShape { inputs, hidden, .. } = self.shape;
        let [w1, b1, w2, b2, ..] = self.shape.places().map(|p| self.learned.values.at() + 4 * p as u64);
        let x = View::rows(self.features.at(), inputs).turned();
        let first = Edge { bias: b1, relu: true, ..Edge::default() };
        self.product(self.hidden.at(), View::rows(w1, inputs), x, [hidden, n, inputs], 1.0, first)?;
        let (u, second) = (View::rows(self.hidden.at(), n), Edge { bias: b2, ..Edge::default() });
        self.product(self.refined.at(), View::rows(w2, hidden), u, [self.shape.width(), n, hidden], 1.0, second)
    }

    /// `c = scale a b`, of `[rows, columns, depth]`.
    fn product(&self, c: u64, a: View, b: View, size: [usize; 3], scale: f32, edge: Edge) -> Result<()> {
        let [rows, columns, depth] = size.map(|n| n as u32);
        let blocks = size[0].div_ceil(32) * size[1].div_ceil(32);
        // SAFETY: callers pass views of buffers that hold matrices of these sizes; a null address is none.
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
                    edge.bias,
                    edge.mask,
                    u32::from(edge.relu)
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

    fn fits(&self, what: &str, found: usize, expected: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(Error::Input(format!("{what} of {found} values, {expected} are expected of {:?}", self.shape)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::{Library, require};

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
    fn sizes_beyond_the_kernels_counting_are_refused() {
        let shape = TrainingShape { inputs: 768, hidden: 768, books: 32, words: 16, dim: 24, batch: 64 };
        shape.check().unwrap();
        assert_eq!(shape.parameters(), 768 * 768 + 768 + 768 * 768 + 768 + 768 * 16);
        for wrong in [
            TrainingShape { batch: 65_536, ..shape },
            TrainingShape { words: 512, ..shape },
            TrainingShape { dim: 0, ..shape },
        ] {
            assert!(wrong.check().unwrap_err().to_string().contains("use the CPU"));
        }
    }
}
