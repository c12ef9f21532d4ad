//! A layer in training on a GPU: inputs go in and outputs come back, their slopes go in and move the weights.
//!
//! For systems whose first layer is nearly all of their work and whose loss is computed on the host. All arithmetic is f32,
//! every sum in a fixed order.

use std::ops::Range;

use crate::compile::{Kernel, Module, arguments};
use crate::device::Device;
use crate::library::guarded;
use crate::memory::{Buffer, Pinned, Stream};
use crate::training::{TrainingAdam, image};
use crate::{Error, Result};

/// A part of a weight `[inputs, outputs]`: what lies in no part is zero and stays so.
#[derive(Clone, Debug)]
pub struct LayerPart {
    /// Rows of the weight.
    pub inputs: Range<usize>,
    /// Columns.
    pub outputs: Range<usize>,
}

/// `y = x W + b` with Adam's memory of `W` and `b`.
pub struct Layer {
    // Dropped first: it waits for what is queued.
    stream: Stream,
    product: Kernel,
    column_sums: Kernel,
    adam: Kernel,
    _module: Module,
    device: Device,
    inputs: usize,
    outputs: usize,
    parts: Vec<LayerPart>,
    // The parts' weights one after the other, each [inputs, outputs] of its own, and the bias.
    parameters: Buffer,
    gradient: Buffer,
    first: Buffer,
    second: Buffer,
    room: Room,
    // Values between the beginnings of neighbouring rows of the last inputs, and how many rows they were.
    step: usize,
    rows: usize,
}

/// Inputs `x`, outputs or their slopes `y`, and memory of the host they pass through.
struct Room {
    x: Buffer,
    y: Buffer,
    staged_x: Pinned<f32>,
    staged_y: Pinned<f32>,
}

impl Room {
    fn new(device: &Device, x: usize, y: usize) -> Result<Self> {
        Ok(Room {
            x: Buffer::new(device, 4 * x, "a layer's inputs")?,
            y: Buffer::new(device, 4 * y, "a layer's outputs")?,
            staged_x: Pinned::new(device, x)?,
            staged_y: Pinned::new(device, y)?,
        })
    }
}

impl Layer {
    /// A layer of these first values, `weight [inputs, outputs]` and `bias [outputs]`; parts do not overlap.
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
            let module = Module::load(device, &image(device.info().capability)?)?;
            let mut values: Vec<f32> = Vec::new();
            for part in &parts {
                let rows = weight[part.inputs.start * outputs..part.inputs.end * outputs].chunks_exact(outputs);
                rows.for_each(|row| values.extend_from_slice(&row[part.outputs.clone()]));
            }
            values.extend_from_slice(bias);
            let zeros = vec![0.0f32; values.len()];
            Ok(Layer {
                product: module.find("wide_product")?,
                column_sums: module.find("column_sums")?,
                adam: module.find("adam")?,
                _module: module,
                parameters: Buffer::filled(device, &values, "a layer")?,
                gradient: Buffer::filled(device, &zeros, "a layer")?,
                first: Buffer::filled(device, &zeros, "a layer")?,
                second: Buffer::filled(device, &zeros, "a layer")?,
                room: Room::new(device, 0, 0)?,
                stream: Stream::new(device)?,
                device: device.clone(),
                inputs,
                outputs,
                parts,
                step: 0,
                rows: 0,
            })
        })
    }

    /// Where each part begins among the parameters, and the bias after them.
    fn places(&self) -> Vec<usize> {
        let mut places = vec![0];
        for part in &self.parts {
            places.push(places[places.len() - 1] + part.inputs.len() * part.outputs.len());
        }
        places
    }

    /// Outputs `[rows, outputs]`. Row `i` of the input is `inputs` values of `x` from `i * step`, as many rows as there are:
    /// with a step below the inputs rows overlap, and a window that slides over tokens needs no copies of them.
    pub fn forward(&mut self, x: &[f32], step: usize) -> Result<Vec<f32>> {
        let rows = match x.len().checked_sub(self.inputs) {
            Some(beyond) if step > 0 && beyond % step == 0 => beyond / step + 1,
            _ => {
                return Err(Error::Input(format!(
                    "{} values are no rows of {} that begin every {step}",
                    x.len(),
                    self.inputs
                )));
            }
        };
        let outputs = self.outputs;
        if rows >= 1 << 31 {
            return Err(Error::Input(format!("{rows} rows are more than a layer takes at once")));
        }
        self.device.bind()?;
        if x.len() > self.room.staged_x.as_slice().len() || rows * outputs > self.room.staged_y.as_slice().len() {
            // A quarter more: batches of texts differ in length.
            self.room = Room::new(&self.device, x.len() * 5 / 4, rows * outputs * 5 / 4)?;
        }
        self.room.staged_x.as_mut_slice()[..x.len()].copy_from_slice(x);
        self.stream.upload(self.room.x.at(), &self.room.staged_x.as_slice()[..x.len()])?;
        let places = self.places();
        let bias = self.parameters.at() + 4 * places[self.parts.len()] as u64;
        for (part, place) in self.parts.iter().zip(&places) {
            let (x, y) = (self.room.x.at() + 4 * part.inputs.start as u64, part.outputs.start as u64 * 4);
            let weight = self.parameters.at() + 4 * *place as u64;
            let size = [rows, part.outputs.len(), part.inputs.len()];
            self.multiply(self.room.y.at() + y, outputs, (x, step, 1), (weight, size[1]), size, bias + y)?;
        }
        let staged = &mut self.room.staged_y.as_mut_slice()[..rows * outputs];
        self.stream.download(staged, self.room.y.at())?;
        self.stream.wait()?;
        (self.step, self.rows) = (step, rows);
        Ok(staged.to_vec())
    }

    /// Moves the layer against `slope [rows, outputs]`, the gradient at the outputs of the last [`Layer::forward`].
    pub fn update(&mut self, slope: &[f32], by: TrainingAdam) -> Result<()> {
        let (rows, outputs) = (self.rows, self.outputs);
        if slope.len() != rows * outputs {
            return Err(Error::Input(format!("{} slopes at {rows} rows of {outputs} outputs", slope.len())));
        }
        self.device.bind()?;
        self.room.staged_y.as_mut_slice()[..slope.len()].copy_from_slice(slope);
        self.stream.upload(self.room.y.at(), &self.room.staged_y.as_slice()[..slope.len()])?;
        let places = self.places();
        for (part, place) in self.parts.iter().zip(&places) {
            let x = self.room.x.at() + 4 * part.inputs.start as u64;
            let slope = self.room.y.at() + 4 * part.outputs.start as u64;
            let to = self.gradient.at() + 4 * *place as u64;
            let size = [part.inputs.len(), part.outputs.len(), rows];
            self.multiply(to, size[1], (x, 1, self.step), (slope, outputs), size, 0)?;
        }
        let bias = places[self.parts.len()];
        let (to, slope) = (self.gradient.at() + 4 * bias as u64, self.room.y.at());
        let count = bias + outputs;
        let (x, g, m, v) = (self.parameters.at(), self.gradient.at(), self.first.at(), self.second.at());
        // SAFETY: `slope` holds [rows, outputs], `to` has room for a sum of each column, and the four buffers as many values
        // as there are weights and biases.
        unsafe {
            self.column_sums.launch(
                &self.stream,
                outputs.div_ceil(32),
                1024,
                arguments![slope, to, rows as u32, outputs as u32],
            )?;
            self.adam.launch(&self.stream, count.div_ceil(256), 256, arguments![x, g, m, v, count as u64, by])?;
        }
        // The staged slopes may be written over from here on.
        self.stream.wait()
    }

    /// Reads the weight and the bias as they are now; what lies in no part is left alone.
    pub fn read(&self, weight: &mut [f32], bias: &mut [f32]) -> Result<()> {
        if weight.len() != self.inputs * self.outputs || bias.len() != self.outputs {
            return Err(Error::Input(format!("a layer has {} x {} weights", self.inputs, self.outputs)));
        }
        self.device.bind()?;
        let places = self.places();
        let end = places[self.parts.len()];
        let mut values = vec![0.0f32; end + self.outputs];
        self.stream.download(&mut values, self.parameters.at())?;
        self.stream.wait()?;
        bias.copy_from_slice(&values[end..]);
        for (part, place) in self.parts.iter().zip(&places) {
            let rows = weight[part.inputs.start * self.outputs..].chunks_exact_mut(self.outputs);
            for (row, own) in rows.zip(values[*place..].chunks_exact(part.outputs.len()).take(part.inputs.len())) {
                row[part.outputs.clone()].copy_from_slice(own);
            }
        }
        Ok(())
    }

    /// `c = a b (+ bias)` of `[rows, columns, depth]`: `c` and `b` with the step between their rows, `a` with those between
    /// its rows and between its columns.
    fn multiply(
        &self,
        c: u64,
        c_row: usize,
        (a, a_row, a_column): (u64, usize, usize),
        (b, b_row): (u64, usize),
        size: [usize; 3],
        bias: u64,
    ) -> Result<()> {
        let [rows, columns, depth] = size.map(|n| n as u32);
        let blocks = size[0].div_ceil(64) * size[1].div_ceil(64);
        let [c_row, a_row, a_column, b_row] = [c_row, a_row, a_column, b_row].map(|n| n as u32);
        // SAFETY: callers pass matrices of these sizes inside buffers that hold them; a null bias is none.
        unsafe {
            self.product.launch(
                &self.stream,
                blocks,
                256,
                arguments![c, a, b, rows, columns, depth, a_row, a_column, b_row, c_row, bias],
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(count: usize, pace: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * pace).sin()).collect()
    }

    /// Needs a GPU.
    #[test]
    fn a_layer_is_the_sums_of_its_products_and_moves_against_its_gradient() {
        let device = match Device::open(0) {
            Ok(device) => device,
            Err(problem) => {
                println!("skipped: {problem}");
                return;
            }
        };
        // Windows of three states of 37 values, 301 and 75 of them; one part sees the middle state, the other all of them.
        let (width, inputs, outputs) = (37, 111, 90);
        let parts = vec![LayerPart { inputs: 37..74, outputs: 0..21 }, LayerPart { inputs: 0..111, outputs: 21..90 }];
        let used = |i: usize, o: usize| o >= 21 || (37..74).contains(&i);
        let mut weight = wave(inputs * outputs, 0.7);
        weight.iter_mut().enumerate().for_each(|(at, w)| *w *= f32::from(used(at / outputs, at % outputs)));
        let mut bias = wave(outputs, 1.3);
        let mut layer = Layer::new(&device, parts, &weight, &bias).unwrap();
        assert!(layer.forward(&wave(inputs + 1, 0.1), width).unwrap_err().to_string().contains("begin every 37"));
        let by = TrainingAdam {
            keep_first: 0.9,
            keep_second: 0.999,
            rate: 1e-2 / 0.1,
            scale: 1.0 / 0.001f32.sqrt(),
            epsilon: 1e-8,
        };
        for rows in [301, 75] {
            let x = wave(inputs + (rows - 1) * width, 0.37);
            let y = layer.forward(&x, width).unwrap();
            assert_eq!(y.len(), rows * outputs);
            for (at, y) in y.iter().enumerate() {
                let (r, o) = (at / outputs, at % outputs);
                let sum: f32 = (0..inputs).map(|i| x[r * width + i] * weight[i * outputs + o]).sum();
                assert!((y - sum - bias[o]).abs() < 1e-3, "{r}, {o}: {y}, {}", sum + bias[o]);
            }
            let (before, before_bias) = (weight.clone(), bias.clone());
            if rows == 75 {
                // Adam's second update depends on the first.
                continue;
            }
            let slope = wave(rows * outputs, 0.11);
            assert!(layer.update(&slope[1..], by).is_err());
            layer.update(&slope, by).unwrap();
            layer.read(&mut weight, &mut bias).unwrap();
            // The first update of Adam is the rate against the sign of the gradient.
            let gradient =
                |x: &dyn Fn(usize) -> f32, o: usize| -> f32 { (0..rows).map(|r| x(r) * slope[r * outputs + o]).sum() };
            for o in 0..outputs {
                let expected = before_bias[o] - 1e-2 * gradient(&|_| 1.0, o).signum();
                assert!((bias[o] - expected).abs() < 1e-5, "bias {o}");
                for i in 0..inputs {
                    let g = gradient(&|r| x[r * width + i], o);
                    let expected = before[i * outputs + o] - if used(i, o) { 1e-2 * g.signum() } else { 0.0 };
                    let found = weight[i * outputs + o];
                    assert!((found - expected).abs() < 1e-5 || g.abs() < 1e-2, "{i}, {o}: {found}, {expected}");
                }
            }
        }
    }
}
