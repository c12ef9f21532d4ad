//! Arguments of an encoder: its shape, the precision, the pooling, dropout.

use crate::{Error, Result};

/// The shape of a BERT-family encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Values of a token state.
    pub hidden: usize,
    pub heads: usize,
    pub layers: usize,
    /// Values between the two products of the feed-forward part.
    pub intermediate: usize,
    /// Rows of the token embedding table.
    pub vocab: usize,
    /// Rows of the position table: the longest sequence.
    pub positions: usize,
    pub epsilon: f32,
    /// Activation of the feed-forward part.
    pub activation: Activation,
}

/// `hidden_act`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The erf form.
    Gelu,
    /// The tanh form.
    GeluTanh,
    /// max(x, 0).
    Relu,
}

/// Type of stored states and weights; every sum is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Eleven bits of mantissa, values up to 65,504.
    F16,
    /// Eight bits of mantissa, the range of f32.
    Bf16,
}

/// Reduction of token states to one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The state of the first token.
    Cls,
    /// The mean over all tokens.
    Mean,
}

/// Dropout of one view, at all of BERT's sites. The same rate, key and document number give the CPU's masks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout<'a> {
    /// Dropout probability, in [0, 1).
    pub rate: f64,
    /// The view's key.
    pub key: u64,
    /// Document number of every sequence.
    pub documents: &'a [u64],
    /// Number of last layers with dropout; `None` means all layers and the embeddings.
    pub last: Option<usize>,
}

impl Shape {
    /// Values per head.
    pub fn width(&self) -> usize {
        self.hidden / self.heads.max(1)
    }

    /// Longest sequence whose keys and values fit the registers of the attention kernel; SHORT in `kernels.cu`.
    pub(crate) fn short(&self) -> usize {
        if self.width() <= 64 { 64 } else { 32 }
    }

    /// Floating-point operations of the matrix products per token: without those inside attention, and with all of the last
    /// layer.
    pub fn operations(&self) -> f64 {
        let (h, i) = (self.hidden as f64, self.intermediate as f64);
        2.0 * self.layers as f64 * (4.0 * h * h + 2.0 * h * i)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let positive = [
            ("hidden_size", self.hidden),
            ("num_attention_heads", self.heads),
            ("num_hidden_layers", self.layers),
            ("intermediate_size", self.intermediate),
            ("vocab_size", self.vocab),
            ("max_position_embeddings", self.positions),
        ];
        for (what, value) in positive {
            if value == 0 || value > i32::MAX as usize {
                return Err(Error::shape(what, value, "at least 1"));
            }
        }
        if !self.hidden.is_multiple_of(self.heads) || ![32, 64, 96, 128].contains(&self.width()) {
            let found = format!("{} over {} heads", self.hidden, self.heads);
            return Err(Error::shape("hidden_size", found, "32, 64, 96 or 128 per head"));
        }
        if self.hidden > 4096 {
            return Err(Error::shape("hidden_size", self.hidden, "at most 4096"));
        }
        if !self.intermediate.is_multiple_of(8) {
            return Err(Error::shape("intermediate_size", self.intermediate, "a multiple of 8"));
        }
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return Err(Error::shape("layer_norm_eps", self.epsilon, "finite and not negative"));
        }
        Ok(())
    }
}

impl Precision {
    /// Name of the precision, and the advice to use another.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Precision::F16 => ("f16", "bf16"),
            Precision::Bf16 => ("bf16", "f16, or the CPU"),
        }
    }
}

/// A dropout rate in the layout of the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Rate {
    pub threshold: u32,
    pub scale: f32,
}

impl Dropout<'_> {
    /// Whether layer `layer` of `layers` has dropout; `None` means the embeddings.
    pub(crate) fn in_layer(&self, layer: Option<usize>, layers: usize) -> bool {
        match (self.last, layer) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(last), Some(layer)) => layer + last >= layers,
        }
    }

    pub(crate) fn check(&self, sequences: usize) -> Result<()> {
        if !(0.0..1.0).contains(&self.rate) {
            return Err(Error::Input(format!("a dropout rate is in [0, 1), not {}", self.rate)));
        }
        if self.documents.len() != sequences {
            let found = self.documents.len();
            return Err(Error::Input(format!(
                "a view has numbers of {found} documents, but there are {sequences} sequences"
            )));
        }
        Ok(())
    }

    /// An element stays where its hash is not below the threshold.
    pub(crate) fn rate(&self) -> Rate {
        Rate { threshold: (self.rate * 4_294_967_296.0) as u32, scale: (1.0 / (1.0 - self.rate)) as f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINILM: Shape = Shape {
        hidden: 384,
        heads: 12,
        layers: 6,
        intermediate: 1536,
        vocab: 30522,
        positions: 512,
        epsilon: 1e-12,
        activation: Activation::Gelu,
    };

    #[test]
    fn the_error_names_the_unsupported_field() {
        assert!(MINILM.check().is_ok());
        assert_eq!(MINILM.operations(), 21_233_664.0);
        let wrong = [
            (Shape { heads: 0, ..MINILM }, "num_attention_heads"),
            (Shape { heads: 7, ..MINILM }, "hidden_size"),
            (Shape { heads: 24, ..MINILM }, "hidden_size"),
            (Shape { intermediate: 1533, ..MINILM }, "intermediate_size"),
            (Shape { positions: 0, ..MINILM }, "max_position_embeddings"),
            (Shape { epsilon: f32::NAN, ..MINILM }, "layer_norm_eps"),
        ];
        for (shape, field) in wrong {
            let message = shape.check().unwrap_err().to_string();
            assert!(message.contains(field) && message.contains("CPU"), "{message}");
        }
    }

    /// The threshold and the scale decide the dropout masks on both sides.
    #[test]
    fn the_rate_equals_that_of_the_cpu() {
        for p in [0.0, 0.1, 0.3, 0.5, 0.999] {
            let ours = Dropout { rate: p, key: 0, documents: &[], last: None }.rate();
            let theirs = kernels::dropout::Rate::new(p);
            assert_eq!(
                format!("{theirs:?}"),
                format!("Rate {{ threshold: {}, scale: {:?} }}", ours.threshold, ours.scale)
            );
        }
        for p in [-0.1, 1.0, f64::NAN] {
            assert!(Dropout { rate: p, key: 0, documents: &[], last: None }.check(0).is_err());
        }
        let view = Dropout { rate: 0.3, key: 0, documents: &[7, 8], last: None };
        assert!(view.check(2).is_ok() && view.check(3).unwrap_err().to_string().contains("2 documents"));
    }
}
