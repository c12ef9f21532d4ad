//! The learned projection: dense layers with ReLU between them, none after the last, and cells behind them where there
//! are any.

use kernels::gemm::{Epilogue, PackedWeight};
use rayon::prelude::*;

use super::Cells;
use crate::{Error, Matrix, Result};

/// `y = W x + b`, `W` row-major `[outputs, inputs]` as PyTorch keeps it, with the copy its product runs on.
#[derive(Clone, Debug)]
pub struct Dense {
    inputs: usize,
    weight: Vec<f32>,
    bias: Vec<f32>,
    packed: PackedWeight,
}

impl Dense {
    /// Checks and takes the parameters.
    pub fn new(inputs: usize, weight: Vec<f32>, bias: Vec<f32>) -> Result<Self> {
        if inputs == 0 || bias.is_empty() || weight.len() != inputs * bias.len() {
            return Err(Error::config(format!(
                "a dense layer of {inputs} inputs and {} outputs cannot have {} weights",
                bias.len(),
                weight.len()
            )));
        }
        if !weight.iter().chain(&bias).all(|v| v.is_finite()) {
            return Err(Error::config("a dense layer holds a value that is not a finite number"));
        }
        let packed = PackedWeight::new(&weight, bias.len(), inputs);
        Ok(Dense { inputs, weight, bias, packed })
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// `[outputs, inputs]`.
    pub fn weight(&self) -> &[f32] {
        &self.weight
    }

    /// `[outputs]`.
    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// `[n, inputs]` to `[n, outputs]`, on the calling thread.
    pub fn apply(&self, rows: &Matrix) -> Matrix {
        let mut out = Matrix::zeros(rows.rows(), self.outputs());
        self.packed.multiply(rows.as_slice(), out.as_mut_slice(), rows.rows(), Epilogue::Bias(&self.bias));
        out
    }
}

/// The layers, first to last.
#[derive(Clone, Debug)]
pub struct Projection {
    layers: Vec<Dense>,
    cells: Option<Cells>,
}

/// Rows projected by one task. Fixed, so that neither the number of threads nor the batch a row arrives in changes a bit of its result.
const CHUNK: usize = 64;

impl Projection {
    /// Joins layers whose widths agree.
    pub fn new(layers: Vec<Dense>) -> Result<Self> {
        if layers.is_empty() {
            return Err(Error::config("a projection needs at least one layer"));
        }
        for pair in layers.windows(2) {
            if pair[0].outputs() != pair[1].inputs() {
                return Err(Error::config(format!(
                    "a layer of {} outputs precedes one of {} inputs",
                    pair[0].outputs(),
                    pair[1].inputs()
                )));
            }
        }
        Ok(Projection { layers, cells: None })
    }

    /// Joins layers and the cells that divide what comes out of them.
    pub fn with_cells(layers: Vec<Dense>, cells: Cells) -> Result<Self> {
        let projection = Projection::new(layers)?;
        let (head, tail) = cells.sizes();
        if head + tail != projection.outputs() {
            return Err(Error::config(format!(
                "cells take vectors of {} values, the layers before them give {}",
                head + tail,
                projection.outputs()
            )));
        }
        Ok(Projection { cells: Some(cells), ..projection })
    }

    pub fn cells(&self) -> Option<&Cells> {
        self.cells.as_ref()
    }

    pub fn layers(&self) -> &[Dense] {
        &self.layers
    }

    pub fn inputs(&self) -> usize {
        self.layers[0].inputs()
    }

    pub fn outputs(&self) -> usize {
        self.layers[self.layers.len() - 1].outputs()
    }

    /// Embeddings `[n, inputs]` to projected vectors `[n, outputs]`.
    pub fn apply(&self, embeddings: &Matrix) -> Result<Matrix> {
        if embeddings.cols() != self.inputs() {
            return Err(Error::config(format!(
                "the model takes vectors of {} values, these have {}; use the encoder it was trained with",
                self.inputs(),
                embeddings.cols()
            )));
        }
        let mut out = Matrix::zeros(embeddings.rows(), self.outputs());
        if embeddings.rows() <= CHUNK {
            self.apply_chunk(embeddings.as_slice(), out.as_mut_slice());
            return Ok(out);
        }
        let inputs = embeddings.as_slice().par_chunks(CHUNK * self.inputs());
        let outputs = out.as_mut_slice().par_chunks_mut(CHUNK * self.outputs());
        inputs.zip(outputs).for_each(|(x, y)| self.apply_chunk(x, y));
        Ok(out)
    }

    fn apply_chunk(&self, embeddings: &[f32], out: &mut [f32]) {
        let rows = embeddings.len() / self.inputs();
        let mut x = embeddings.to_vec();
        for (i, layer) in self.layers.iter().enumerate() {
            let mut y = vec![0.0; rows * layer.outputs()];
            let last = i + 1 == self.layers.len();
            let epilogue = if last { Epilogue::Bias(&layer.bias) } else { Epilogue::BiasRelu(&layer.bias) };
            layer.packed.multiply(&x, &mut y, rows, epilogue);
            x = y;
        }
        if let Some(cells) = &self.cells {
            x.chunks_exact_mut(self.outputs()).for_each(|row| cells.place(row));
        }
        out.copy_from_slice(&x);
    }
}
