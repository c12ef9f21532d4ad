//! In which numbers the encoder's matrix products run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Numbers of the matrix products. Attention is `f32` with `f32` and `bf16` with the others; everything else between the
/// products (LayerNorm, activations, pooling) is `f32`.
///
/// Each gives the same bits on every CPU, whatever instructions it has, so a vector is known by its precision and not by
/// the machine it was computed on. (One exception: `bf16` on CPUs with `vdpbf16ps` and no AMX, whose vectors are kept under
/// another name.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision throughout.
    #[default]
    F32,
    /// Weights and states rounded to sixteen bits, summed in `f32`: half the memory. Fast where the CPU has AMX; on AVX2 well
    /// below the speed of `f32`.
    Bf16,
    /// Bytes: weights of eight bits with a scale an output, states of seven with a step and a floor a token and what is far
    /// above the rest kept apart. On the golden texts MiniLM's vectors were at most 0.1 of their length off; of bert-base's the
    /// worst was 0.3.
    Int8,
}

impl Precision {
    /// What `auto` stands for: the fastest within 0.2 points of `f32` in P@100 on AGNews and DBpedia (the table is in
    /// `benchmarks/encode/README.md`). One for all CPUs, or vectors would depend on the machine; with AMX
    /// `bf16` is a fifth faster with MiniLM and a quarter slower with bert-base.
    pub const AUTO: Precision = Precision::Int8;

    /// Its name, as flags and records have it.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
        }
    }

    /// Whether it is the one that needs no word in a record: models written before there was a choice have none.
    pub fn is_f32(&self) -> bool {
        *self == Precision::F32
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
