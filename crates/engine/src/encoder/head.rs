//! The steps after pooling: dense layers and scaling to unit length, as a sentence-transformers directory names them.

use std::path::Path;

use kernels::gemm::{Epilogue, PackedWeight};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::weights::Weights;
use crate::{Error, Matrix, Result};

/// One step, as a model records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// `activation(x W^T + b)`.
    Dense {
        /// Folder of its weights in the encoder's directory.
        path: String,
        inputs: usize,
        outputs: usize,
        activation: Activation,
        bias: bool,
        /// SHA-256 of the weight file. Another file is refused.
        sha256: String,
    },
    /// Scales to unit length.
    Normalize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    Identity,
    Tanh,
    Relu,
    Gelu,
    Sigmoid,
}

impl Activation {
    pub const KNOWN: [&str; 5] = ["Identity", "Tanh", "ReLU", "GELU", "Sigmoid"];

    /// By its class in PyTorch, such as `torch.nn.modules.activation.Tanh`.
    pub fn named(class: &str) -> Option<Self> {
        let name = class.strip_prefix("torch.nn.")?.rsplit('.').next()?;
        let of = [Activation::Identity, Activation::Tanh, Activation::Relu, Activation::Gelu, Activation::Sigmoid];
        Some(of[Activation::KNOWN.iter().position(|known| *known == name)?])
    }
}

/// Rows per task of a dense layer.
const ROWS: usize = 64;

/// The steps, with the weights of the dense layers.
#[derive(Default)]
pub struct Head {
    steps: Vec<Loaded>,
}

enum Loaded {
    Dense { weight: PackedWeight, bias: Vec<f32>, activation: Activation },
    Normalize,
}

impl Head {
    /// Reads the dense layers of the encoder at `dir`, which gives vectors of `width` values. Fills in the checksums that
    /// `steps` does not have, and refuses weights with others.
    pub fn load(dir: &Path, steps: &mut [Step], mut width: usize) -> Result<Self> {
        let mut head = Head::default();
        for step in steps {
            let Step::Dense { path, inputs, outputs, activation, bias, sha256 } = step else {
                head.steps.push(Loaded::Normalize);
                continue;
            };
            let place = dir.join(&*path);
            if *inputs != width {
                return Err(Error::format(
                    place.join("config.json"),
                    format!(
                        "in_features is {inputs}, and the vectors before it have {width} values; fetch the encoder again"
                    ),
                ));
            }
            let weights = Weights::open(&place)?;
            let found = weights.sha256()?;
            if !sha256.is_empty() && *sha256 != found {
                return Err(Error::format(
                    &place,
                    format!(
                        "its weights have SHA-256 {found}, the model was trained with {sha256}; pull that version of the encoder or train again"
                    ),
                ));
            }
            *sha256 = found;
            let weight = weights.read("linear.weight", &[*outputs, *inputs])?;
            let bias = if *bias { weights.read("linear.bias", &[*outputs])? } else { vec![0.0; *outputs] };
            let weight = PackedWeight::new(&weight, *outputs, *inputs);
            head.steps.push(Loaded::Dense { weight, bias, activation: *activation });
            width = *outputs;
        }
        Ok(head)
    }

    /// Values of its results, of vectors of `width` values.
    pub fn width(&self, width: usize) -> usize {
        let dense = self.steps.iter().rev().find_map(|step| match step {
            Loaded::Dense { bias, .. } => Some(bias.len()),
            Loaded::Normalize => None,
        });
        dense.unwrap_or(width)
    }

    pub fn apply(&self, mut rows: Matrix) -> Matrix {
        for step in &self.steps {
            match step {
                Loaded::Normalize => rows.normalize_rows(),
                Loaded::Dense { weight, bias, activation } => rows = dense(&rows, weight, bias, *activation),
            }
        }
        rows
    }
}

fn dense(rows: &Matrix, weight: &PackedWeight, bias: &[f32], activation: Activation) -> Matrix {
    let mut out = Matrix::zeros(rows.rows(), bias.len());
    let parts = out.as_mut_slice().par_chunks_mut(ROWS * bias.len());
    parts.zip(rows.as_slice().par_chunks(ROWS * rows.cols())).for_each(|(y, x)| {
        let epilogue = match activation {
            Activation::Relu => Epilogue::BiasRelu(bias),
            Activation::Gelu => Epilogue::BiasGelu(bias),
            _ => Epilogue::Bias(bias),
        };
        weight.multiply(x, y, x.len() / rows.cols(), epilogue);
        // In double precision, so that the rounded result does not depend on the machine's mathematical library.
        let of = |f: fn(f64) -> f64, y: &mut [f32]| y.iter_mut().for_each(|v| *v = f(f64::from(*v)) as f32);
        match activation {
            Activation::Tanh => of(f64::tanh, y),
            Activation::Sigmoid => of(|v| 1.0 / (1.0 + (-v).exp()), y),
            _ => {}
        }
    });
    out
}
