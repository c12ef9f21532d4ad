//! `config.json` and `model.safetensors` of a BERT-family encoder, read and checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Dtype, SafeTensors};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::mmap::Map;
use crate::{Error, Result};

/// The configuration of a `BertModel`, as in `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct EncoderConfig {
    /// Only `bert` is supported.
    pub model_type: String,
    /// Width of a token state.
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    /// Width between the two dense layers of a feed-forward block.
    pub intermediate_size: usize,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Maximum tokens of a sequence.
    pub max_position_embeddings: usize,
    /// Token types; only the first is used.
    pub type_vocab_size: usize,
    /// `gelu`, `gelu_new` or `relu`.
    pub hidden_act: String,
    pub layer_norm_eps: f32,
    /// `absolute`; anything else is refused.
    #[serde(default = "absolute")]
    pub position_embedding_type: String,
    /// Maximum tokens during training, from `sentence_bert_config.json`.
    #[serde(skip)]
    pub trained_length: Option<usize>,
}

fn absolute() -> String {
    "absolute".into()
}

impl EncoderConfig {
    /// Reads and checks `config.json`.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                Error::format(
                    dir,
                    "is not an encoder: it has no config.json; \"micpq encoder pull\" fetches one, \"micpq encoder list\" shows what is there",
                )
            } else {
                Error::io(&path)(source)
            }
        })?;
        let bad = |problem: String| Error::format(&path, problem);
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| bad(format!("is not valid JSON: {e}; fetch the encoder again")))?;
        let family = json.get("model_type").and_then(serde_json::Value::as_str).unwrap_or("nothing");
        if family != "bert" {
            return Err(bad(format!(
                "model_type is {family}, expected bert: only the BERT family (BertModel) can be read"
            )));
        }
        let mut config: EncoderConfig =
            serde_json::from_value(json).map_err(|e| bad(format!("{e}; fetch the encoder again")))?;
        if config.position_embedding_type != "absolute" {
            return Err(bad(format!(
                "position_embedding_type is {}, expected absolute",
                config.position_embedding_type
            )));
        }
        if !matches!(config.hidden_act.as_str(), "gelu" | "gelu_new" | "relu") {
            return Err(bad(format!("hidden_act is {}, expected gelu, gelu_new or relu", config.hidden_act)));
        }
        let (heads, hidden) = (config.num_attention_heads, config.hidden_size);
        if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
            return Err(bad(format!("hidden_size {hidden} is not a multiple of num_attention_heads {heads}")));
        }
        for (name, value) in [
            ("num_hidden_layers", config.num_hidden_layers),
            ("intermediate_size", config.intermediate_size),
            ("vocab_size", config.vocab_size),
            ("max_position_embeddings", config.max_position_embeddings),
            ("type_vocab_size", config.type_vocab_size),
        ] {
            if value == 0 {
                return Err(bad(format!("{name} is 0")));
            }
        }
        config.trained_length = std::fs::read_to_string(dir.join("sentence_bert_config.json"))
            .ok()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
            .and_then(|json| json.get("max_seq_length")?.as_u64())
            .map(|n| n as usize);
        Ok(config)
    }

    /// Default maximum of tokens per text, with `[CLS]` and `[SEP]`.
    pub fn default_length(&self) -> usize {
        self.trained_length.unwrap_or(usize::MAX).min(self.max_position_embeddings)
    }
}

/// An open weight file. Tensors are looked up with and without the `bert.` prefix.
pub struct Weights {
    path: PathBuf,
    map: Arc<Map>,
    tensors: Vec<(String, Tensor)>,
}

#[derive(Clone)]
struct Tensor {
    shape: Vec<usize>,
    dtype: Dtype,
    start: usize,
    end: usize,
}

impl Weights {
    /// Maps `model.safetensors` and reads its header.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("model.safetensors");
        if !path.exists() {
            return Err(Error::format(dir, "has no model.safetensors; weights in other formats are not read"));
        }
        let map = Arc::new(Map::open(&path)?);
        let file = SafeTensors::deserialize(&map).map_err(|e| {
            let problem = match first_cut(&map) {
                Some((tensor, missing)) => {
                    format!("is cut short: tensor \"{tensor}\" lacks its last {missing} bytes; fetch the encoder again")
                }
                None => format!("not a whole safetensors file: {e}; it may be cut short, fetch the encoder again"),
            };
            Error::format(&path, problem)
        })?;
        let base = map.as_ptr() as usize;
        let tensors = file
            .iter()
            .map(|(name, view)| {
                let start = view.data().as_ptr() as usize - base;
                let end = start + view.data().len();
                let name = name.strip_prefix("bert.").unwrap_or(name).to_owned();
                (name, Tensor { shape: view.shape().to_vec(), dtype: view.dtype(), start, end })
            })
            .collect();
        Ok(Weights { path, map, tensors })
    }

    /// Refuses a `config.json` with more layers, or larger ones, than the file has, before memory is allocated for them.
    pub fn check(&self, config: &EncoderConfig) -> Result<()> {
        let last = config.num_hidden_layers - 1;
        let shape = [config.hidden_size, config.intermediate_size];
        self.find(&format!("encoder.layer.{last}.output.dense.weight"), &shape).map(drop)
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<&Tensor> {
        let bad = |problem: String| Error::format(&self.path, problem);
        let (_, tensor) = self.tensors.iter().find(|(n, _)| n == name).ok_or_else(|| {
            bad(format!("has no tensor \"{name}\" (nor \"bert.{name}\"); it is not a whole BertModel"))
        })?;
        if tensor.shape != shape {
            return Err(bad(format!(
                "tensor \"{name}\" has shape {:?}, config.json asks for {shape:?}: weights and config belong to different encoders",
                tensor.shape
            )));
        }
        if !matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(bad(format!("tensor \"{name}\" is {:?}, expected F32, F16 or BF16", tensor.dtype)));
        }
        Ok(tensor)
    }

    /// A tensor as `f32`. Values that are not finite are refused.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.find(name, shape)?;
        let values = decode(&self.map[tensor.start..tensor.end], tensor.dtype);
        match values.iter().position(|v| !v.is_finite()) {
            None => Ok(values),
            Some(i) => Err(Error::format(
                &self.path,
                format!(
                    "tensor \"{name}\" holds {} at position {i}; the file is damaged, fetch the encoder again",
                    values[i]
                ),
            )),
        }
    }

    /// An embedding table that stays in the file and is read row by row: a query touches a dozen of 30,522 rows. So its values
    /// are not checked here; [`Embedding::check_row`] checks a row before it is used.
    pub fn embedding(&self, name: &str, rows: usize, width: usize) -> Result<Embedding> {
        let tensor = self.find(name, &[rows, width])?.clone();
        let (path, name) = (self.path.clone(), name.to_owned());
        Ok(Embedding { path, name, map: self.map.clone(), dtype: tensor.dtype, start: tensor.start, rows, width })
    }

    /// SHA-256 of the whole file. It is cached with the file's size and modification time, because a query should not wait for
    /// 90 MB to be hashed.
    pub fn sha256(&self, dir: &Path) -> Result<String> {
        super::pull::remembered_hash(&dir.join("model.safetensors"), || hex::encode(&Sha256::digest(&self.map[..])))
    }
}

/// The first tensor, in the order of the file, that its header places beyond the end, and the number of missing bytes.
fn first_cut(map: &[u8]) -> Option<(String, u64)> {
    let (length, rest) = map.split_first_chunk::<8>()?;
    let (header, data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let ends = header.iter().filter_map(|(name, tensor)| Some((tensor["data_offsets"][1].as_u64()?, name)));
    let (end, name) = ends.filter(|(end, _)| *end > data.len() as u64).min()?;
    Some((name.clone(), end - data.len() as u64))
}

/// Rows of a mapped table.
pub struct Embedding {
    path: PathBuf,
    name: String,
    map: Arc<Map>,
    dtype: Dtype,
    start: usize,
    rows: usize,
    width: usize,
}

impl Embedding {
    /// Refuses row `i` if it holds a value that is not finite.
    ///
    /// # Panics
    /// If there is no such row; the caller has checked its ids.
    pub fn check_row(&self, i: usize) -> Result<()> {
        let row = self.row(i);
        // All ones in the exponent: infinite or NaN.
        let bad = match self.dtype {
            Dtype::F32 => {
                row.as_chunks::<4>().0.iter().position(|b| u32::from_le_bytes(*b) & 0x7f80_0000 == 0x7f80_0000)
            }
            Dtype::F16 => row.as_chunks::<2>().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7c00 == 0x7c00),
            _ => row.as_chunks::<2>().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7f80 == 0x7f80),
        };
        match bad {
            None => Ok(()),
            Some(at) => Err(Error::format(
                &self.path,
                format!(
                    "tensor \"{}\" holds a value that is not a finite number in row {i} at position {at}; the file is damaged, fetch the encoder again",
                    self.name
                ),
            )),
        }
    }

    /// Refuses a table with a value that is not finite in any row.
    pub fn check_all(self) -> Result<Self> {
        (0..self.rows).try_for_each(|i| self.check_row(i))?;
        Ok(self)
    }

    fn row(&self, i: usize) -> &[u8] {
        assert!(i < self.rows);
        let bytes = self.width * size(self.dtype);
        &self.map[self.start + i * bytes..self.start + (i + 1) * bytes]
    }

    /// Adds row `i` to `out`.
    ///
    /// # Panics
    /// If there is no such row; the caller has checked its ids.
    pub fn add_row(&self, i: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.width);
        let row = self.row(i);
        match self.dtype {
            Dtype::F32 => add(row.as_chunks::<4>().0, out, |b| f32::from_le_bytes(*b)),
            Dtype::F16 => add(row.as_chunks::<2>().0, out, |b| half::f16::from_le_bytes(*b).to_f32()),
            _ => add(row.as_chunks::<2>().0, out, |b| half::bf16::from_le_bytes(*b).to_f32()),
        }
    }
}

fn add<B>(row: &[B], out: &mut [f32], value: impl Fn(&B) -> f32) {
    for (o, b) in out.iter_mut().zip(row) {
        *o += value(b);
    }
}

fn size(dtype: Dtype) -> usize {
    if dtype == Dtype::F32 { 4 } else { 2 }
}

fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => bytes.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
    }
}
