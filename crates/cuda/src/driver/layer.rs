//! Filters over the states of neighbouring tokens on a GPU, and their gradient.
//!
//! The states of many texts are contiguous, with empty states between the texts, so that a filter's window is a contiguous
//! range of values: rows of the input overlap, and no state is copied. All arithmetic is f32, every sum in a fixed order.

use std::ops::Range;

use crate::driver::compile::{Kernel, Module, arguments};
use crate::driver::device::Device;
use crate::driver::learned::Learned;
use crate::driver::library::guarded;
use crate::driver::memory::{Buffer, Pinned, Stream};
use crate::driver::training::{View, image};
use crate::{Error, LayerPart, Result, Texts, TrainingAdam};

/// `y = x W + b` with Adam's moments of `W` and `b`.
pub struct Layer {
    // Dropped first: it waits for queued work.
    pub(crate) stream: Stream,
    pub(crate) kernels: LayerKernels,
    pub(crate) device: Device,
    inputs: usize,
    pub(crate) outputs: usize,
    parts: Vec<LayerPart>,
    // Weights of the parts, each [inputs, outputs] of the part, then the bias.
    weights: Learned,
    // The last loaded states, on the host and on the GPU, their width, and their number of windows.
    states: (Pinned<f32>, Buffer),
    width: usize,
    rows: usize,
    // Buffers of `pool`: outputs, means, texts.
    pooled: [Buffer; 3],
}

pub(crate) struct LayerKernels {
    product: Kernel,
    column_sums: Kernel,
    pub adam: Kernel,
    pool: Kernel,
    pub draw_codes: Kernel,
    pub agree: Kernel,
    pub sum_losses: Kernel,
    pub scale_by: Kernel,
    pub filter_slopes: Kernel,
    _module: Module,
}

impl LayerKernels {
    fn load(device: &Device) -> Result<Self> {
        let module = Module::load(device, &image(device.info().capability)?)?;
        let find = |name| module.find(name);
        Ok(LayerKernels {
            product: find("wide_product")?,
            column_sums: find("column_sums")?,
            adam: find("adam")?,
            pool: find("pool")?,
            draw_codes: find("draw_codes")?,
            agree: find("agree")?,
            sum_losses: find("sum_losses")?,
            scale_by: find("scale_by")?,
            filter_slopes: find("filter_slopes")?,
            _module: module,
        })
    }
}

impl Layer {
    /// A layer with the initial values `weight [inputs, outputs]` and `bias [outputs]`; parts must not overlap.
    pub fn new(device: &Device, parts: Vec<LayerPart>, weight: &[f32], bias: &[f32]) -> Result<Self> {
        let outputs = bias.len();
        let inputs = weight.len() / outputs.max(1);
        let inside = |p: &LayerPart| p.inputs.end <= inputs && p.outputs.end <= outputs;
        if outputs == 0 || inputs * outputs != weight.len() || !parts.iter().all(inside) {
            return Err(Error::Input(format!(
                "a layer of {} weights and {outputs} biases does not have the parts {parts:?}",
                weight.len()
            )));
        }
        guarded("preparing a layer on the GPU", || {
            let mut values: Vec<f32> = Vec::new();
            for part in &parts {
                let rows = weight[part.inputs.start * outputs..part.inputs.end * outputs].chunks_exact(outputs);
                rows.for_each(|row| values.extend_from_slice(&row[part.outputs.clone()]));
            }
            values.extend_from_slice(bias);
            let empty = || Buffer::new(device, 0, "a layer");
            Ok(Layer {
                kernels: LayerKernels::load(device)?,
                weights: Learned::new(device, &values)?,
                states: (Pinned::new(device, 0)?, empty()?),
                stream: Stream::new(device)?,
                device: device.clone(),
                inputs,
                outputs,
                parts,
                width: 0,
                rows: 0,
                pooled: [empty()?, empty()?, empty()?],
            })
        })
    }

    /// Offset of each part in the weights, then that of the bias.
    fn offsets(&self) -> Vec<usize> {
        let mut offsets = vec![0];
        for part in &self.parts {
            offsets.push(offsets[offsets.len() - 1] + part.inputs.len() * part.outputs.len());
        }
        offsets
    }

    /// Queues the upload of the states of texts and returns their number of windows. No queued work may read the previous
    /// states.
    pub(crate) fn load(&mut self, texts: &Texts) -> Result<usize> {
        let Texts { states, width, windows } = *texts;
        let rows = match states.len().checked_sub(self.inputs) {
            Some(rest) if width > 0 && rest % width == 0 => rest / width + 1,
            _ => {
                return Err(Error::Input(format!(
                    "{} values cannot be split into windows of {} values that begin every {width} values",
                    states.len(),
                    self.inputs
                )));
            }
        };
        // The kernels use 32-bit indices.
        if rows * self.outputs >= 1 << 31 {
            return Err(Error::Input(format!("{rows} windows are too many for one call; pass fewer texts")));
        }
        if let Some(outside) = windows.iter().find(|w| w.start > w.end || w.end > rows) {
            return Err(Error::Input(format!("a text has the windows {outside:?}, but there are {rows} windows")));
        }
        self.device.bind()?;
        if states.len() > self.states.0.as_slice().len() {
            // A quarter more: batches of texts differ in length.
            let capacity = states.len() * 5 / 4;
            self.states =
                (Pinned::new(&self.device, capacity)?, Buffer::new(&self.device, 4 * capacity, "token states")?);
        }
        self.states.0.as_mut_slice()[..states.len()].copy_from_slice(states);
        self.stream.upload(self.states.1.at(), &self.states.0.as_slice()[..states.len()])?;
        (self.width, self.rows) = (width, rows);
        Ok(rows)
    }

    /// Queues the outputs of all windows of the loaded states, `[rows, outputs]` at `y`.
    pub(crate) fn forward(&self, y: u64) -> Result<()> {
        let offsets = self.offsets();
        let bias = self.weights.values.at() + 4 * offsets[self.parts.len()] as u64;
        for (part, offset) in self.parts.iter().zip(&offsets) {
            let x = View::rows(self.states.1.at() + 4 * part.inputs.start as u64, self.width);
            let weight = View::rows(self.weights.values.at() + 4 * *offset as u64, part.outputs.len());
            let to = 4 * part.outputs.start as u64;
            let size = [self.rows, part.outputs.len(), part.inputs.len()];
            self.multiply((y + to, self.outputs), x, weight, size, bias + to)?;
        }
        Ok(())
    }

    /// Queues the gradient of the weights at the loaded states, for `slope [rows, outputs]`, the gradient of the outputs.
    pub(crate) fn backward(&self, slope: u64) -> Result<()> {
        let offsets = self.offsets();
        for (part, offset) in self.parts.iter().zip(&offsets) {
            let x = View::rows(self.states.1.at() + 4 * part.inputs.start as u64, self.width).transposed();
            let slope = View::rows(slope + 4 * part.outputs.start as u64, self.outputs);
            let to = self.weights.gradient.at() + 4 * *offset as u64;
            let size = [part.inputs.len(), part.outputs.len(), self.rows];
            self.multiply((to, part.outputs.len()), x, slope, size, 0)?;
        }
        let bias = self.weights.gradient.at() + 4 * offsets[self.parts.len()] as u64;
        self.sums(slope, bias, self.rows, self.outputs)
    }

    /// Queues an update by the last gradient.
    pub(crate) fn update(&self, by: TrainingAdam) -> Result<()> {
        self.weights.update(&self.kernels.adam, &self.stream, by)
    }

    /// Queues max(0, x) of `x [rows, outputs]` in place, and its means over texts, `means [texts, outputs]`.
    pub(crate) fn mean(&self, x: u64, means: u64, texts: &Buffer, count: usize) -> Result<()> {
        let blocks = (count * self.outputs).div_ceil(128);
        // SAFETY: callers pass windows that `load` has checked to lie within the rows, and room for the means.
        unsafe {
            let sizes = (count as u32, self.outputs as u32);
            self.kernels.pool.launch(&self.stream, blocks, 128, arguments![x, means, texts.at(), sizes.0, sizes.1])
        }
    }

    /// The mean of max(0, outputs) over every text's tokens: `[texts, outputs]`.
    pub fn pool(&mut self, texts: &Texts) -> Result<Vec<f32>> {
        let (rows, count) = (self.load(texts)?, texts.windows.len());
        let [outputs, means, ranges_at] = &mut self.pooled;
        outputs.grow(4 * rows * self.outputs, "a layer's outputs")?;
        means.grow(4 * count * self.outputs, "a layer's outputs")?;
        ranges_at.grow(8 * count, "a layer's outputs")?;
        let ranges = text_ranges(texts.windows);
        self.stream.upload(ranges_at.at(), &ranges)?;
        let [outputs, means, ranges_at] = &self.pooled;
        self.forward(outputs.at())?;
        self.mean(outputs.at(), means.at(), ranges_at, count)?;
        let mut pooled = vec![0.0f32; count * self.outputs];
        self.stream.download(&mut pooled, means.at())?;
        self.stream.wait()?;
        Ok(pooled)
    }

    /// Reads the current weight and bias; elements outside of all parts are not written.
    pub fn read(&self, weight: &mut [f32], bias: &mut [f32]) -> Result<()> {
        if weight.len() != self.inputs * self.outputs || bias.len() != self.outputs {
            return Err(Error::Input(format!(
                "the layer has {} x {} weights and {} biases, but the outputs have {} and {} values",
                self.inputs,
                self.outputs,
                self.outputs,
                weight.len(),
                bias.len()
            )));
        }
        self.device.bind()?;
        let values = self.weights.read(&self.stream)?;
        let offsets = self.offsets();
        bias.copy_from_slice(&values[offsets[self.parts.len()]..]);
        for (part, offset) in self.parts.iter().zip(&offsets) {
            let rows = weight[part.inputs.start * self.outputs..].chunks_exact_mut(self.outputs);
            for (row, own) in rows.zip(values[*offset..].chunks_exact(part.outputs.len()).take(part.inputs.len())) {
                row[part.outputs.clone()].copy_from_slice(own);
            }
        }
        Ok(())
    }

    /// The gradient of the last step: the parts, then the bias.
    #[cfg(test)]
    fn gradient(&self) -> Result<Vec<f32>> {
        self.weights.read_gradient(&self.stream)
    }

    /// Queues `c = a b (+ bias per column)` of `size` `[rows, columns, depth]`. `c` comes with its row stride; one of the two
    /// strides of `a` and of `b` is 1.
    pub(crate) fn multiply(
        &self,
        (c, c_row): (u64, usize),
        a: View,
        b: View,
        size: [usize; 3],
        bias: u64,
    ) -> Result<()> {
        let [rows, columns, depth] = size.map(|n| n as u32);
        let blocks = size[0].div_ceil(64) * size[1].div_ceil(64);
        let c_row = c_row as u32;
        // SAFETY: callers pass matrices of these sizes inside buffers that hold them; a null bias means no bias.
        unsafe {
            self.kernels.product.launch(
                &self.stream,
                blocks,
                256,
                arguments![c, a.at, b.at, rows, columns, depth, a.row, a.column, b.row, b.column, c_row, bias],
            )
        }
    }

    /// Queues the sums of the columns of `x [rows, columns]`.
    pub(crate) fn sums(&self, x: u64, to: u64, rows: usize, columns: usize) -> Result<()> {
        let sizes = (rows as u32, columns as u32);
        // SAFETY: callers pass a matrix of that size, and room for one sum per column.
        unsafe {
            self.kernels.column_sums.launch(
                &self.stream,
                columns.div_ceil(32),
                1024,
                arguments![x, to, sizes.0, sizes.1],
            )
        }
    }
}

/// First window and number of windows of each text, in the layout of the kernels.
pub(crate) fn text_ranges(windows: &[Range<usize>]) -> Vec<[u32; 2]> {
    windows.iter().map(|w| [w.start as u32, w.len() as u32]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(count: usize, pace: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * pace).sin()).collect()
    }

    /// Needs a GPU.
    #[test]
    fn filters_and_their_gradient_equal_plain_sums() {
        let device = match Device::open(0) {
            Ok(device) => device,
            Err(problem) => {
                println!("skipped: {problem}");
                return;
            }
        };
        // Windows of three states of 37 values; one part sees the middle state, the other all of them.
        let (width, inputs, outputs) = (37, 111, 90);
        let parts = vec![LayerPart { inputs: 37..74, outputs: 0..21 }, LayerPart { inputs: 0..111, outputs: 21..90 }];
        let in_a_part = |i: usize, o: usize| o >= 21 || (37..74).contains(&i);
        let mut weight = wave(inputs * outputs, 0.7);
        weight.iter_mut().enumerate().for_each(|(at, w)| *w *= f32::from(in_a_part(at / outputs, at % outputs)));
        let bias = wave(outputs, 1.3);
        let mut layer = Layer::new(&device, parts.clone(), &weight, &bias).unwrap();
        let wrong = wave(inputs + 1, 0.1);
        let wrong = layer.pool(&Texts { states: &wrong, width, windows: &[] }).unwrap_err().to_string();
        assert!(wrong.contains("begin every 37"), "{wrong}");
        for rows in [301, 75] {
            let x = wave(inputs + (rows - 1) * width, 0.37);
            let windows = [0..40, 42..42, 43..rows];
            let beyond = layer.pool(&Texts { states: &x, width, windows: &[0..2, 3..rows + 1] });
            assert!(beyond.unwrap_err().to_string().contains("has the windows"));
            let means = layer.pool(&Texts { states: &x, width, windows: &windows }).unwrap();
            let y = |r: usize, o: usize| -> f32 {
                bias[o] + (0..inputs).map(|i| x[r * width + i] * weight[i * outputs + o]).sum::<f32>()
            };
            for (at, mean) in means.iter().enumerate() {
                let (text, o) = (windows[at / outputs].clone(), at % outputs);
                let sum: f32 = text.clone().map(|r| y(r, o).max(0.0)).sum();
                let expected = sum / text.len().max(1) as f32;
                assert!((mean - expected).abs() < 1e-3, "{text:?}, {o}: {mean}, {expected}");
            }
            let slope = wave(rows * outputs, 0.11);
            let slope_buffer = Buffer::filled(&device, &slope, "a test").unwrap();
            layer.backward(slope_buffer.at()).unwrap();
            let gradient = layer.gradient().unwrap();
            let mut at = 0;
            let mut agrees = |expected: f32| {
                assert!((gradient[at] - expected).abs() < 1e-2, "{at}: {}, {expected}", gradient[at]);
                at += 1;
            };
            for part in &parts {
                for i in part.inputs.clone() {
                    for o in part.outputs.clone() {
                        agrees((0..rows).map(|r| x[r * width + i] * slope[r * outputs + o]).sum());
                    }
                }
            }
            (0..outputs).for_each(|o| agrees((0..rows).map(|r| slope[r * outputs + o]).sum()));
        }
        let (mut read, mut read_bias) = (vec![0.0; inputs * outputs], vec![0.0; outputs]);
        layer.read(&mut read, &mut read_bias).unwrap();
        assert!(read == weight && read_bias == bias);
    }
}
