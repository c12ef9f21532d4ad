//! A model as a directory: `config.json`, `model.safetensors`, `metrics.json`, `README.md`.

use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Cells, CodeShape, Codebooks, Dense, Distance, Model, Refine, card};
use crate::encoder::{Convolution, Layer, Pooling, Precision, Terms, Vocabulary};
use crate::text::Clean;
use crate::{Error, Result};

/// Version of the model directory. 1: first release. 2: a model may have words instead of an encoder, and cells; one that
/// has neither is still written as 1.
pub const FORMAT: u32 = 2;
/// The oldest version this program reads.
pub const OLDEST_READABLE: u32 = 1;

/// How text becomes the vector the model takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureConfig {
    /// Name or directory of the encoder.
    pub encoder: String,
    /// SHA-256 of its weight file, by which another encoder is refused.
    pub encoder_sha256: String,
    /// Values in a feature vector.
    pub width: usize,
    /// How token states become one vector.
    pub pooling: Pooling,
    /// Most tokens of a text, with `[CLS]` and `[SEP]`.
    pub max_tokens: usize,
    /// Cleaning before tokenisation.
    pub clean: Clean,
    /// Whether vectors are scaled to unit length.
    #[serde(default)]
    pub unit_length: bool,
    /// The numbers the encoder's products ran in. Without a word it is `f32`, so that models from before there was a
    /// choice keep their fingerprint.
    #[serde(default, skip_serializing_if = "Precision::is_f32")]
    pub precision: Precision,
    /// Words and a learned layer over them, in a model that has no encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// Learned pooling of token states, in a model that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convolution: Option<Convolution>,
}

/// Everything needed to use a model and to make it again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Version of this directory's layout.
    pub format: u32,
    /// The system it was trained by: `micpq`, and others as they come.
    pub method: String,
    /// Books, words and dimensions.
    pub shape: CodeShape,
    /// The distance it is searched by unless another is asked for.
    pub distance: Distance,
    /// Where its vectors come from; `None` when the user brought vectors.
    pub features: Option<FeatureConfig>,
    /// The options of the training run, as the trainer wrote them.
    #[serde(default)]
    pub training: serde_json::Value,
}

impl Model {
    /// Writes the directory: beside its place under a temporary name, then renamed, so that no half of it is ever read.
    /// A model already there is replaced.
    pub fn save(&self, dir: &Path, metrics: &serde_json::Value) -> Result<()> {
        let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
        if dir.exists() && !dir.join("config.json").exists() {
            let empty = std::fs::read_dir(dir).map_err(Error::io(dir))?.next().is_none();
            if !empty {
                return Err(Error::format(dir, "exists and is not a model; name another place"));
            }
        }
        let making = crate::disk::Making::begin(dir)?;
        std::fs::create_dir(making.path()).map_err(Error::io(making.path()))?;
        self.write_into(&making.path(), metrics)?;
        making.finish()
    }

    /// Writes the four files into an existing directory.
    pub fn write_into(&self, dir: &Path, metrics: &serde_json::Value) -> Result<()> {
        let write = |name: &str, bytes: &[u8]| crate::disk::write_synced(&dir.join(name), bytes);
        let features = self.config.features.as_ref();
        let plain = features.is_none_or(|f| f.terms.is_none() && f.convolution.is_none());
        let format = if plain && self.refine.cells().is_none() { OLDEST_READABLE } else { FORMAT };
        write("config.json", pretty(&ModelConfig { format, ..self.config.clone() }).as_bytes())?;
        write("model.safetensors", &tensors(&self.refine, &self.codebooks, features))?;
        write("metrics.json", pretty(metrics).as_bytes())?;
        write("README.md", card::write(self, metrics).as_bytes())
    }

    /// Reads a model directory.
    pub fn load(dir: &Path) -> Result<Model> {
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                Error::format(dir, "is not a model directory: it has no config.json; \"micpq train\" makes one")
            } else {
                Error::io(&path)(source)
            }
        })?;
        let format = serde_json::from_str::<serde_json::Value>(&text)
            .map_err(|e| {
                Error::format(&path, format!("is not valid JSON: {e}; restore it from a copy or train again"))
            })?
            .get("format")
            .and_then(serde_json::Value::as_u64)
            .ok_or_else(|| Error::format(&path, "has no \"format\" number: it is not a micpq model"))?;
        if !(u64::from(OLDEST_READABLE)..=u64::from(FORMAT)).contains(&format) {
            return Err(Error::format(
                &path,
                format!(
                    "has format {format}, this program reads {OLDEST_READABLE} to {FORMAT}; use the micpq that wrote it or train again"
                ),
            ));
        }
        let mut config: ModelConfig = serde_json::from_str(&text)
            .map_err(|e| Error::format(&path, format!("{e}; restore it from a copy or train again")))?;
        let path = dir.join("model.safetensors");
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let damaged =
            |problem: String| Error::format(&path, format!("{problem}; restore it from a copy or train again"));
        let (refine, codebooks) = parts(&bytes, config.shape).map_err(damaged)?;
        if let Some(features) = &mut config.features
            && let Some(convolution) = &mut features.convolution
        {
            let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
            let (weight, bias) = (floats(&file, "convolution.weight"), floats(&file, "convolution.bias"));
            let filled = convolution.fill(weight.map_err(damaged)?, bias.map_err(damaged)?);
            filled.map_err(|e| damaged(e.to_string()))?;
        }
        if let Some(features) = &mut config.features
            && let Some(terms) = &mut features.terms
        {
            let (vocabulary, layer) = words(&bytes).map_err(damaged)?;
            terms.fill(vocabulary.into(), layer).map_err(|e| damaged(e.to_string()))?;
            if terms.sha256() != features.encoder_sha256 {
                return Err(damaged("holds other words or weights than config.json names".into()));
            }
        }
        Model::new(config, refine, codebooks).map_err(|e| Error::format(&path, e.to_string()))
    }
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data has a JSON form") + "\n"
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// `refine.N.weight [out, in]`, `refine.N.bias [out]`, `codebooks [books, words, dim]`, all F32; with cells
/// `cells.heads [cells, dim]`, `cells.centres [cells, tail]`, `cells.rotations [cells, tail, tail]`; with words
/// `terms.words` (U8: the words, a line end after each), `terms.frequencies [words]`, `terms.weight [words, width]`,
/// `terms.bias [width]`.
/// With a learned convolution `convolution.weight [5 inputs, outputs]` and `convolution.bias [outputs]`.
fn tensors(refine: &Refine, codebooks: &Codebooks, features: Option<&FeatureConfig>) -> Vec<u8> {
    let mut data: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (i, layer) in refine.layers().iter().enumerate() {
        data.push((format!("refine.{i}.weight"), vec![layer.outputs(), layer.inputs()], bytes_of(layer.weight())));
        data.push((format!("refine.{i}.bias"), vec![layer.outputs()], bytes_of(layer.bias())));
    }
    let shape = codebooks.shape();
    data.push(("codebooks".into(), vec![shape.books(), shape.words(), shape.dim()], bytes_of(codebooks.values())));
    if let Some(cells) = refine.cells() {
        let (n, (dim, tail)) = (cells.len(), cells.sizes());
        data.push(("cells.heads".into(), vec![n, dim], bytes_of(cells.heads())));
        data.push(("cells.centres".into(), vec![n, tail], bytes_of(cells.centres())));
        data.push(("cells.rotations".into(), vec![n, tail, tail], bytes_of(cells.rotations())));
    }
    if let Some(convolution) = features.and_then(|f| f.convolution.as_ref()) {
        let (rows, outputs) = (convolution.weight().len() / convolution.outputs, convolution.outputs);
        data.push(("convolution.weight".into(), vec![rows, outputs], bytes_of(convolution.weight())));
        data.push(("convolution.bias".into(), vec![outputs], bytes_of(convolution.bias())));
    }
    let mut letters = Vec::new();
    if let Some(terms) = features.and_then(|f| f.terms.as_ref()) {
        let (n, width) = (terms.vocabulary().len(), terms.width());
        terms.vocabulary().words().iter().for_each(|word| letters.extend_from_slice(format!("{word}\n").as_bytes()));
        data.push(("terms.frequencies".into(), vec![n], bytes_of(terms.vocabulary().frequencies())));
        data.push(("terms.weight".into(), vec![n, width], bytes_of(&terms.layer().weight)));
        data.push(("terms.bias".into(), vec![width], bytes_of(&terms.layer().bias)));
    }
    let letters = (!letters.is_empty()).then(|| {
        let view = TensorView::new(Dtype::U8, vec![letters.len()], &letters).expect("one byte a value");
        ("terms.words".to_owned(), view)
    });
    let views = data.iter().map(|(name, shape, bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("lengths follow from the shapes"))
    });
    safetensors::serialize(views.chain(letters), None).expect("names are distinct")
}

fn parts(bytes: &[u8], shape: CodeShape) -> std::result::Result<(Refine, Codebooks), String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("is not a readable safetensors file: {e}"))?;
    let read = |name: &str| -> std::result::Result<(Vec<usize>, Vec<f32>), String> {
        let t = file.tensor(name).map_err(|_| format!("has no tensor \"{name}\""))?;
        if t.dtype() != Dtype::F32 {
            return Err(format!("tensor \"{name}\" is {:?}, expected F32", t.dtype()));
        }
        Ok((t.shape().to_vec(), t.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    };
    let count = (0..).take_while(|i| file.tensor(&format!("refine.{i}.weight")).is_ok()).count();
    let mut layers = Vec::new();
    for i in 0..count {
        let (dims, weight) = read(&format!("refine.{i}.weight"))?;
        let [_, inputs] = dims[..] else {
            return Err(format!("tensor \"refine.{i}.weight\" has shape {dims:?}, expected two dimensions"));
        };
        let (_, bias) = read(&format!("refine.{i}.bias"))?;
        layers.push(Dense::new(inputs, weight, bias).map_err(|e| format!("layer {i}: {e}"))?);
    }
    let refine = if file.tensor("cells.heads").is_ok() {
        let (dims, heads) = read("cells.heads")?;
        let (tails, centres) = read("cells.centres")?;
        let [_, dim] = dims[..] else { return Err(format!("tensor \"cells.heads\" has shape {dims:?}")) };
        let [_, tail] = tails[..] else { return Err(format!("tensor \"cells.centres\" has shape {tails:?}")) };
        let cells = Cells::new(dim, tail, heads, centres, read("cells.rotations")?.1).map_err(|e| e.to_string())?;
        Refine::with_cells(layers, cells)
    } else {
        Refine::new(layers)
    };
    let refine = refine.map_err(|e| e.to_string())?;
    let (dims, words) = read("codebooks")?;
    if dims != [shape.books(), shape.words(), shape.dim()] {
        return Err(format!("tensor \"codebooks\" has shape {dims:?}, config.json says {shape:?}"));
    }
    Ok((refine, Codebooks::new(shape, words).map_err(|e| e.to_string())?))
}

/// Vocabulary and layer of a model that has words instead of an encoder.
fn words(bytes: &[u8]) -> std::result::Result<(Vocabulary, Layer), String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("is not a readable safetensors file: {e}"))?;
    let letters = file.tensor("terms.words").map_err(|_| "has no tensor \"terms.words\"".to_owned())?;
    let letters = std::str::from_utf8(letters.data()).map_err(|e| format!("terms.words: {e}"))?;
    let words = letters.lines().map(str::to_owned).collect();
    let vocabulary = Vocabulary::new(words, floats(&file, "terms.frequencies")?).map_err(|e| e.to_string())?;
    Ok((vocabulary, Layer { weight: floats(&file, "terms.weight")?, bias: floats(&file, "terms.bias")? }))
}

fn floats(file: &SafeTensors, name: &str) -> std::result::Result<Vec<f32>, String> {
    let tensor = file.tensor(name).map_err(|_| format!("has no tensor \"{name}\""))?;
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("tensor \"{name}\" is {:?}, expected F32", tensor.dtype()));
    }
    Ok(tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// Over parameters, distance and features: whatever changes a code or a ranking changes it.
pub(super) fn fingerprint(config: &ModelConfig, refine: &Refine, codebooks: &Codebooks) -> String {
    let mut hash = Sha256::new();
    for layer in refine.layers() {
        hash.update(bytes_of(layer.weight()));
        hash.update(bytes_of(layer.bias()));
    }
    hash.update(bytes_of(codebooks.values()));
    if let Some(cells) = refine.cells() {
        [cells.heads(), cells.centres(), cells.rotations()].iter().for_each(|part| hash.update(bytes_of(part)));
    }
    let mut features = config.features.clone();
    // The name is how a user calls the encoder, the hash is what it is.
    features.iter_mut().for_each(|f| f.encoder.clear());
    hash.update(serde_json::to_string(&(config.shape, features)).expect("plain data has a JSON form"));
    crate::hex(&hash.finalize()[..8])
}
