//! A query encoder in microseconds: encoder and projection, distilled into a table of token vectors.
//!
//! A query is the mean of the vectors of its tokens. Two dense layers turn that mean into what search needs: the query's
//! embedding, for re-ranking, and its projected vector, for the distance table. `docs/format.md` has the file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kernels::pieces;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Dense, Model};
use crate::encoder::{Embedder, EmbeddingConfig};
use crate::error::Remedy;
use crate::parallel;
use crate::tokenizer::Tokenizer;
use crate::{Error, Matrix, Result};

/// The header of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastInfo {
    /// Fingerprint of the model whose encoder and projection it imitates.
    pub model: String,
    /// SHA-256 of the encoder's weights.
    pub encoder_sha256: String,
    /// Documents it was trained on.
    pub documents: usize,
    pub seed: u64,
}

/// The learned parts.
#[derive(Clone, Debug)]
pub struct FastParts {
    /// `[tokens, width]`, in bytes.
    pub table: Vec<i8>,
    /// The value of one unit of a row's bytes, `[tokens]`.
    pub scales: Vec<f32>,
    /// From the mean to the embedding.
    pub embedding: Dense,
    /// From the first values of the mean to the projected vector: codes need less of a query than re-ranking does.
    pub projected: Dense,
}

/// A distilled query encoder.
pub struct FastEncoder {
    info: FastInfo,
    parts: FastParts,
    tokenizer: Tokenizer,
    // How the model's own encoder prepares a text.
    config: EmbeddingConfig,
}

/// Version of the file.
const FORMAT: u32 = 1;

/// The one entry of the file's metadata. With several their order, and so the bytes of the file, would be random.
const ENTRY: &str = "micpq_query_encoder";

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    /// Of the tensors.
    sha256: String,
    #[serde(flatten)]
    info: FastInfo,
}

impl FastEncoder {
    /// Name of the file in a model directory.
    pub const FILE: &str = "query_encoder.safetensors";

    /// Joins the parts of a query encoder for `model`, whose tokens are those of its encoder.
    pub fn new(model: &Model, tokenizer: &Tokenizer, parts: FastParts, info: FastInfo) -> Result<Self> {
        let json = tokenizer.to_json()?;
        FastEncoder::assemble(model, json.as_bytes(), parts, info, Path::new(FastEncoder::FILE))
    }

    fn assemble(model: &Model, json: &[u8], parts: FastParts, info: FastInfo, path: &Path) -> Result<Self> {
        let Some(config) = model.config.embedding.clone() else {
            return Err(Error::format(
                path,
                "belongs to a model of user vectors, which reads no text; remove the file",
            ));
        };
        if info.model != model.fingerprint() {
            return Err(bad(
                path,
                format!("was distilled from model {}, this is model {}", info.model, model.fingerprint()),
            ));
        }
        let width = parts.embedding.inputs();
        let outputs = (parts.embedding.outputs(), parts.projected.outputs());
        if parts.table.len() != parts.scales.len() * width
            || parts.projected.inputs() > width
            || outputs != (model.inputs(), model.projection().outputs())
        {
            return Err(bad(path, "has parts whose sizes do not fit"));
        }
        if let Some(row) = parts.scales.iter().position(|scale| !scale.is_finite()) {
            return Err(bad(path, format!("token {row} has a damaged scale")));
        }
        let tokenizer = words(json, path)?;
        if let Some((id, token)) = tokenizer.beyond(parts.scales.len()) {
            return Err(bad(path, format!("has no vector of token \"{token}\" with id {id}")));
        }
        Ok(FastEncoder { info, parts, tokenizer, config })
    }

    pub fn info(&self) -> &FastInfo {
        &self.info
    }

    pub fn parts(&self) -> &FastParts {
        &self.parts
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How a text is prepared, as a model records it.
    pub fn config(&self) -> &EmbeddingConfig {
        &self.config
    }

    /// Values of a token vector.
    pub fn width(&self) -> usize {
        self.parts.embedding.inputs()
    }

    /// Tokens of the texts of queries.
    pub fn tokens(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<u32>>> {
        tokens(&self.tokenizer, &self.config, texts)
    }

    /// The tokens that a query encoder of this encoder reads: without ends, prompt and unknown tokens. A prompt is the same
    /// for all queries, so the layers learn it.
    pub fn tokens_of(embedder: &Embedder, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<u32>>> {
        let Some(encoder) = embedder.encoder() else {
            return Err(Error::config("a query encoder needs the tokens of an encoder on this machine"));
        };
        let json = encoder.tokenizer().to_json()?;
        tokens(&words(json.as_bytes(), encoder.dir())?, embedder.config(), texts)
    }

    /// Embeddings `[texts, inputs of the model]` and projected vectors `[texts, outputs of its projection]`.
    pub fn encode(&self, tokens: &[Vec<u32>]) -> (Matrix, Matrix) {
        let mut means = Matrix::zeros(tokens.len(), self.width());
        for (ids, mean) in tokens.iter().zip(means.as_mut_slice().chunks_exact_mut(self.width())) {
            pieces::mean(&self.parts.table, &self.parts.scales, ids, mean);
        }
        let mut embeddings = self.parts.embedding.apply(&means);
        if self.config.unit_length {
            embeddings.normalize_rows();
        }
        let first = self.parts.projected.inputs();
        let firsts = Matrix::from_vec(first, means.iter().flat_map(|mean| &mean[..first]).copied().collect());
        (embeddings, self.parts.projected.apply(&firsts))
    }

    /// The file of a model directory.
    pub fn path(model: &Path) -> PathBuf {
        model.join(FastEncoder::FILE)
    }

    /// Writes the file into a model directory, in one step.
    pub fn save(&self, model: &Path) -> Result<()> {
        crate::disk::replace(&FastEncoder::path(model), &self.to_bytes()?)
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        let json = self.tokenizer.to_json()?;
        let parts = &self.parts;
        let table: Vec<u8> = parts.table.iter().map(|value| value.cast_unsigned()).collect();
        let floats = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
        let dense = |name: &'static str, layer: &Dense| {
            let (outputs, inputs) = (layer.outputs(), layer.inputs());
            [
                (format!("{name}.weight"), Dtype::F32, vec![outputs, inputs], floats(layer.weight())),
                (format!("{name}.bias"), Dtype::F32, vec![outputs], floats(layer.bias())),
            ]
        };
        let mut tensors = vec![
            ("table".to_owned(), Dtype::I8, vec![parts.scales.len(), self.width()], table),
            ("scales".to_owned(), Dtype::F32, vec![parts.scales.len()], floats(&parts.scales)),
            ("tokenizer".to_owned(), Dtype::U8, vec![json.len()], json.into_bytes()),
        ];
        tensors.extend(dense("embedding", &parts.embedding));
        tensors.extend(dense("projected", &parts.projected));
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).expect("lengths follow from the shapes"))
        });
        let sha256 = checksum(tensors.iter().map(|(name, _, _, bytes)| (name.as_str(), &bytes[..])));
        let header = Header { format: FORMAT, sha256, info: self.info.clone() };
        let header = serde_json::to_string(&header).expect("plain data has a JSON form");
        let metadata = HashMap::from([(ENTRY.to_owned(), header)]);
        Ok(safetensors::serialize(views, Some(metadata)).expect("names are distinct"))
    }

    /// Reads the query encoder of a model directory; `None` if it has none.
    pub fn load(dir: &Path, model: &Model) -> Result<Option<Self>> {
        let path = FastEncoder::path(dir);
        match std::fs::read(&path) {
            Ok(bytes) => FastEncoder::read(&bytes, model, &path).map(Some),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(&path)(e)),
        }
    }

    fn read(bytes: &[u8], model: &Model, path: &Path) -> Result<Self> {
        let bad = |problem: String| bad(path, problem);
        let damaged = |e: safetensors::SafeTensorError| bad(format!("is not a readable safetensors file: {e}"));
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let header = metadata.metadata().as_ref().and_then(|entries| entries.get(ENTRY));
        let header = header.ok_or_else(|| bad("is not a query encoder of micpq".into()))?;
        let format =
            serde_json::from_str::<serde_json::Value>(header).map_err(|e| bad(e.to_string()))?["format"].clone();
        if format != FORMAT {
            return Err(bad(format!("has format {format}, this program reads {FORMAT}")));
        }
        let Header { sha256, info, .. } = serde_json::from_str(header).map_err(|e| bad(e.to_string()))?;
        let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
        if checksum(file.iter().map(|(name, tensor)| (name, tensor.data()))) != sha256 {
            return Err(bad("is damaged: its SHA-256 is not the one it names".into()));
        }
        let tensor = |name: &str, dtype: Dtype| match file.tensor(name) {
            Ok(tensor) if tensor.dtype() == dtype => Ok(tensor.data()),
            _ => Err(bad(format!("has no tensor \"{name}\" of type {dtype:?}"))),
        };
        let floats = |name: &str| -> Result<Vec<f32>> {
            let (values, _) = tensor(name, Dtype::F32)?.as_chunks::<4>();
            Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
        };
        let dense = |name: &str| -> Result<Dense> {
            let (weight, bias) = (floats(&format!("{name}.weight"))?, floats(&format!("{name}.bias"))?);
            let inputs = weight.len().checked_div(bias.len()).unwrap_or_default();
            Dense::new(inputs, weight, bias).map_err(|e| bad(e.to_string()))
        };
        let parts = FastParts {
            table: tensor("table", Dtype::I8)?.iter().map(|value| value.cast_signed()).collect(),
            scales: floats("scales")?,
            embedding: dense("embedding")?,
            projected: dense("projected")?,
        };
        FastEncoder::assemble(model, tensor("tokenizer", Dtype::U8)?, parts, info, path)
    }
}

fn words(json: &[u8], path: &Path) -> Result<Tokenizer> {
    Tokenizer::read(json, path)?.of_known_words(json, path)
}

fn tokens(tokenizer: &Tokenizer, config: &EmbeddingConfig, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<u32>>> {
    let prepared: Vec<String> = parallel::map(texts, |text| {
        let text = config.clean.apply(text.as_ref(), None);
        if config.lowercase { text.to_lowercase() } else { text.into_owned() }
    });
    tokenizer.encode(&prepared, config.max_tokens)
}

/// SHA-256 over names and bytes of tensors, in the order of their names.
fn checksum<'a>(tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort_unstable();
    let mut hash = Sha256::new();
    for (name, bytes) in tensors {
        hash.update(name);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hex::encode(hash.finalize())
}

/// A query encoder that cannot be used.
fn bad(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::format(path, format!("{problem}; distil it again")).remedied(Remedy::Distil)
}
