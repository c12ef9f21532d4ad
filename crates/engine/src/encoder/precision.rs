//! Number formats of the encoder's matrix products.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Number format of the matrix products. Attention is `f32` with `f32` and `bf16` with the others. The other steps
/// (LayerNorm, activations, pooling) are `f32`.
///
/// Each gives the same bits on every CPU, whatever instructions it has, so the precision identifies a vector and the machine
/// does not matter. (One exception: `bf16` on CPUs with `vdpbf16ps` and no AMX, whose embeddings are cached under another
/// name.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision throughout.
    F32,
    /// Weights and states rounded to sixteen bits, summed in `f32`: half the memory. Fast if the CPU has AMX; on AVX2 well
    /// below the speed of `f32`.
    Bf16,
    /// Bytes: weights of eight bits with a scale per output, states of seven bits with a step and a floor per token, outliers
    /// stored separately. On the golden texts the largest error relative to a vector's length was 0.1 for MiniLM and 0.3 for
    /// bert-base.
    Int8,
}

impl Precision {
    /// The value of `auto`: the fastest precision within 0.2 points of `f32` in P@100 on AGNews and DBpedia (the table is in
    /// `benchmarks/encode/README.md`). It is the same for all CPUs, because vectors must not depend on the machine. With AMX
    /// `bf16` is a fifth faster with MiniLM and a quarter slower with bert-base.
    pub const AUTO: Precision = Precision::Int8;

    /// Name in flags and records.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            "int8" => Ok(Precision::Int8),
            "auto" => Ok(Precision::AUTO),
            _ => Err(Error::config(format!("unknown precision '{name}'; known: f32, bf16, int8, auto"))),
        }
    }
}
