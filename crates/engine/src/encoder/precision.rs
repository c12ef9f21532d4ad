//! Number formats of the encoder's matrix products.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantNames};

use crate::Error;

/// Number format of the matrix products. Attention is `f32` with `f32` and `bf16` with the others. The other steps
/// (LayerNorm, activations, pooling) are `f32`.
///
/// Each gives the same bits on every CPU, whatever instructions it has, so the precision identifies a vector and the machine
/// does not matter. (One exception: `bf16` on CPUs with `vdpbf16ps` and no AMX, whose embeddings are cached under another
/// name.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display, EnumString, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_precision)]
pub enum Precision {
    /// Single precision throughout.
    F32,
    /// Weights and states rounded to sixteen bits, summed in `f32`: half the memory. Fast if the CPU has AMX; on AVX2 well
    /// below the speed of `f32`.
    Bf16,
    /// Bytes: weights of eight bits with a scale per output, states of seven bits with a step and a floor per token, outliers
    /// stored separately. On the golden texts the largest error relative to a vector's length was 0.1 for MiniLM and 0.3 for
    /// bert-base. `auto` is read as this one, see [`Precision::AUTO`].
    #[strum(to_string = "int8", serialize = "auto")]
    Int8,
}

impl Precision {
    /// The value of `auto`: the fastest precision within 0.2 points of `f32` in P@100 on AGNews and DBpedia (the table is in
    /// `benchmarks/encode/README.md`). It is the same for all CPUs, because vectors must not depend on the machine. With AMX
    /// `bf16` is a fifth faster with MiniLM and a quarter slower with bert-base.
    pub const AUTO: Precision = Precision::Int8;
}

fn unknown_precision(name: &str) -> Error {
    Error::config(format!("unknown precision '{name}'; known: {}, auto", Precision::VARIANTS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_auto_is_int8_and_an_unknown_name_lists_the_known_ones() {
        for name in Precision::VARIANTS {
            assert_eq!(name.parse::<Precision>().unwrap().to_string(), *name);
        }
        assert_eq!("auto".parse::<Precision>().unwrap(), Precision::AUTO);
        assert_eq!(Precision::AUTO.to_string(), "int8");
        let message = "f16".parse::<Precision>().unwrap_err().to_string();
        assert!(message.contains("unknown precision 'f16'; known: f32, bf16, int8, auto"), "{message}");
    }
}
