//! An encoder's weights on the GPU.

use cudarc::cublaslt::sys::cublasLtEpilogue_t as Epilogue;
use half::{bf16, f16};

use crate::driver::compile::Kernels;
use crate::driver::device::Device;
use crate::driver::gemm::{Linear, Products, Site};
use crate::driver::memory::Buffer;
use crate::{Activation, Error, Precision, Result, Shape, Source};

/// Scale and shift of a LayerNorm, in f32.
pub(crate) struct Norm {
    pub scale: Buffer,
    pub shift: Buffer,
}

pub(crate) struct Layer {
    /// Queries, keys and values in one product: weight `[3 * hidden, hidden]`.
    pub attention_in: Linear,
    pub attention_out: Linear,
    pub attention_norm: Norm,
    pub feed_in: Linear,
    pub feed_out: Linear,
    pub feed_norm: Norm,
}

pub(crate) struct Weights {
    /// `[vocab, hidden]` in the precision.
    pub tokens: Buffer,
    /// `[positions, hidden]` in f32, plus the first token type.
    pub positions: Buffer,
    pub norm: Norm,
    pub layers: Vec<Layer>,
    /// Whether cuBLASLt's first product of the feed-forward part applies the activation.
    pub activated: bool,
}

impl Weights {
    pub fn load(
        device: &Device,
        products: &Products,
        kernels: &Kernels,
        shape: &Shape,
        precision: Precision,
        source: Source,
    ) -> Result<Self> {
        let hidden = shape.hidden;
        let read = |name: &str, len: usize| read(source, name, len);
        let norm = |name: &str| -> Result<Norm> {
            let part = |part: &str| -> Result<Buffer> {
                let values = read(&format!("{name}.LayerNorm.{part}"), hidden)?;
                Buffer::filled(device, &values, "the encoder's weights")
            };
            Ok(Norm { scale: part("weight")?, shift: part("bias")? })
        };
        let linear = |names: &[String], site: Site, epilogue| -> Result<Linear> {
            let (inputs, outputs) = site.size(shape);
            let outputs = outputs / names.len();
            let (mut weight, mut bias) = (Vec::new(), Vec::new());
            for name in names {
                weight.extend(bits(&read(&format!("{name}.weight"), outputs * inputs)?, precision));
                bias.extend(bits(&read(&format!("{name}.bias"), outputs)?, precision));
            }
            Linear::new(products, kernels, shape, site, &weight, &bias, epilogue)
        };
        // cuBLASLt's GELU is the tanh form; the erf form has its own kernel.
        let (plain, feed) = (
            Epilogue::CUBLASLT_EPILOGUE_BIAS,
            match shape.activation {
                Activation::Gelu => Epilogue::CUBLASLT_EPILOGUE_BIAS,
                Activation::GeluTanh => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
                Activation::Relu => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
            },
        );
        let layers = (0..shape.layers)
            .map(|i| {
                let at = |part: &str| format!("encoder.layer.{i}.{part}");
                let qkv = ["query", "key", "value"].map(|part| at(&format!("attention.self.{part}")));
                Ok(Layer {
                    attention_in: linear(&qkv, Site::AttentionIn, plain)?,
                    attention_out: linear(&[at("attention.output.dense")], Site::AttentionOut, plain)?,
                    attention_norm: norm(&at("attention.output"))?,
                    feed_in: linear(&[at("intermediate.dense")], Site::FeedIn, feed)?,
                    feed_out: linear(&[at("output.dense")], Site::FeedOut, plain)?,
                    feed_norm: norm(&at("output"))?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let tokens = read("embeddings.word_embeddings.weight", shape.vocab * hidden)?;
        let mut positions = read("embeddings.position_embeddings.weight", shape.positions * hidden)?;
        let name = "embeddings.token_type_embeddings.weight";
        let types = source(name).map_err(|source| Error::Weights { name: name.into(), source })?;
        if types.len() < hidden {
            return Err(wrong(name, types.len(), hidden));
        }
        for row in positions.chunks_exact_mut(hidden) {
            for (p, t) in row.iter_mut().zip(&types) {
                *p += t;
            }
        }
        Ok(Weights {
            tokens: Buffer::filled(device, &bits(&tokens, precision), "the token embeddings")?,
            positions: Buffer::filled(device, &positions, "the position embeddings")?,
            norm: norm("embeddings")?,
            layers,
            activated: shape.activation != Activation::Gelu,
        })
    }
}

fn read(source: Source, name: &str, len: usize) -> Result<Vec<f32>> {
    let values = source(name).map_err(|source| Error::Weights { name: name.into(), source })?;
    if values.len() == len { Ok(values) } else { Err(wrong(name, values.len(), len)) }
}

fn wrong(name: &str, found: usize, expected: usize) -> Error {
    let text = format!(
        "it has {found} values, but the encoder's shape needs {expected}; use the config.json of these weights"
    );
    Error::Weights { name: name.into(), source: text.into() }
}

/// Bits of values rounded to the nearest of the precision.
pub(crate) fn bits(values: &[f32], precision: Precision) -> Vec<u16> {
    match precision {
        Precision::F16 => values.iter().map(|v| f16::from_f32(*v).to_bits()).collect(),
        Precision::Bf16 => values.iter().map(|v| bf16::from_f32(*v).to_bits()).collect(),
    }
}

/// The inverse of [`bits`].
pub(crate) fn widen(bits: &[u16], precision: Precision, to: &mut [f32]) {
    let each = |value: fn(u16) -> f32, to: &mut [f32]| to.iter_mut().zip(bits).for_each(|(v, b)| *v = value(*b));
    match precision {
        Precision::F16 => each(|b| f16::from_bits(b).to_f32(), to),
        Precision::Bf16 => each(|b| bf16::from_bits(b).to_f32(), to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_a_missing_or_wrong_tensor() {
        let source: Source = &|name| if name == "there" { Ok(vec![1.0; 3]) } else { Err("no such tensor".into()) };
        assert_eq!(read(source, "there", 3).unwrap(), [1.0; 3]);
        let message = read(source, "there", 4).unwrap_err().to_string();
        assert!(message.contains("there") && message.contains("3 values") && message.contains("4"), "{message}");
        assert_eq!(read(source, "absent", 4).unwrap_err().to_string(), "tensor absent: no such tensor");
    }

    #[test]
    fn bits_round_to_nearest() {
        assert_eq!(bits(&[1.0, -2.0, 1.0 + 1.0 / 2048.0], Precision::F16), [0x3c00, 0xc000, 0x3c00]);
        assert_eq!(bits(&[1.0, 1.0 + 3.0 / 256.0], Precision::Bf16), [0x3f80, 0x3f82]);
        for precision in [Precision::F16, Precision::Bf16] {
            let mut back = [0.0; 3];
            widen(&bits(&[1.0, -2.5, 0.0], precision), precision, &mut back);
            assert_eq!(back, [1.0, -2.5, 0.0]);
        }
    }
}
