//! A model as a directory: `config.json`, `model.safetensors`, `metrics.json`, `README.md`.

use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Cells, CodeShape, Codebooks, Dense, Distance, KindTables, Model, Projection, card};
use crate::disk::{Replaces, StagedDirectory};
use crate::encoder::{EmbeddingConfig, Layer, Vocabulary};
use crate::error::Remedy;
use crate::{Error, Result};

/// Version of the model directory. 1: first. 2: a model may have terms instead of an encoder, and cells. 3: the names of
/// docs/glossary.md (`num_codebooks`, `codebook_size`, `embedding`, tensors `projection.N`). 4: dense layers, prompts and
/// truncation of embeddings. 5: tables by kind.
pub const FORMAT: u32 = 5;
/// The oldest version this program reads.
pub const OLDEST_READABLE: u32 = 1;

/// Everything needed to use a model and to train it again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Version of this directory's layout.
    pub format: u32,
    /// The method that trained it, for example `micpq`.
    pub method: String,
    pub shape: CodeShape,
    /// The default distance of a search.
    pub distance: Distance,
    /// How text becomes its embedding; `None` with user vectors.
    #[serde(alias = "features")]
    pub embedding: Option<EmbeddingConfig>,
    /// The options of the training run, as the trainer wrote them.
    #[serde(default)]
    pub training: serde_json::Value,
}

impl Model {
    /// Writes the directory beside its path under a temporary name and renames it, so that nobody reads half of it. It replaces
    /// an existing model and nothing else.
    pub fn save(&self, dir: &Path, metrics: &serde_json::Value) -> Result<()> {
        let staged = StagedDirectory::begin(dir, Replaces::Model)?;
        std::fs::create_dir(staged.path()).map_err(Error::io(staged.path()))?;
        self.write_into(&staged.path(), metrics)?;
        staged.finish()
    }

    /// Writes the four files into an existing directory.
    pub fn write_into(&self, dir: &Path, metrics: &serde_json::Value) -> Result<()> {
        let write = |name: &str, bytes: &[u8]| crate::disk::write_synced(&dir.join(name), bytes);
        let embedding = self.config.embedding.as_ref();
        write("config.json", pretty(&ModelConfig { format: FORMAT, ..self.config.clone() }).as_bytes())?;
        write("model.safetensors", &tensors(self, embedding))?;
        write("metrics.json", pretty(metrics).as_bytes())?;
        write("README.md", card::write(self, metrics).as_bytes())
    }

    /// Reads a model directory.
    pub fn load(dir: &Path) -> Result<Model> {
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                Error::format(
                    dir,
                    "is not a model directory: it has no config.json; train a model, or give the path of one",
                )
                .remedied(Remedy::TrainModel)
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
        let (projection, codebooks, kinds) = parts(&bytes, config.shape).map_err(damaged)?;
        if let Some(embedding) = &mut config.embedding
            && let Some(convolution) = &mut embedding.convolution
        {
            let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
            let (weight, bias) = (floats(&file, "convolution.weight"), floats(&file, "convolution.bias"));
            let filled = convolution.fill(weight.map_err(damaged)?, bias.map_err(damaged)?);
            filled.map_err(|e| damaged(e.to_string()))?;
        }
        if let Some(embedding) = &mut config.embedding
            && let Some(terms) = &mut embedding.terms
        {
            let (vocabulary, layer) = terms_of(&bytes).map_err(damaged)?;
            terms.fill(vocabulary.into(), layer).map_err(|e| damaged(e.to_string()))?;
            if terms.sha256() != embedding.encoder_sha256 {
                return Err(damaged("holds terms or weights whose SHA-256 is not that of config.json".into()));
            }
        }
        Model::of_parts(config, projection, codebooks, kinds).map_err(|e| Error::format(&path, e.to_string()))
    }
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data has a JSON form") + "\n"
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// `projection.N.weight [out, in]`, `projection.N.bias [out]`, `codebooks [codebooks, codewords, dim]`, all F32; with cells
/// `cells.heads [cells, dim]`, `cells.centres [cells, tail]`, `cells.rotations [cells, tail, tail]`; with terms
/// `terms.words` (U8: the terms, a line end after each), `terms.frequencies [terms]`, `terms.weight [terms, width]`,
/// `terms.bias [width]`.
/// With a learned convolution `convolution.weight [5 inputs, outputs]` and `convolution.bias [outputs]`. With tables by kind
/// `kind.N.weight [out, in]` and `kind.N.bias [out]`.
fn tensors(model: &Model, embedding: Option<&EmbeddingConfig>) -> Vec<u8> {
    let (projection, codebooks) = (&model.projection, &model.codebooks);
    let mut data: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut layers = |name: &str, layers: &[Dense]| {
        for (i, layer) in layers.iter().enumerate() {
            data.push((format!("{name}.{i}.weight"), vec![layer.outputs(), layer.inputs()], bytes_of(layer.weight())));
            data.push((format!("{name}.{i}.bias"), vec![layer.outputs()], bytes_of(layer.bias())));
        }
    };
    layers("projection", projection.layers());
    layers("kind", model.kinds.as_ref().map_or(&[][..], |kinds| kinds.layers().layers()));
    let shape = codebooks.shape();
    data.push((
        "codebooks".into(),
        vec![shape.num_codebooks(), shape.codebook_size(), shape.dim()],
        bytes_of(codebooks.values()),
    ));
    if let Some(cells) = projection.cells() {
        let (n, (dim, tail)) = (cells.len(), cells.sizes());
        data.push(("cells.heads".into(), vec![n, dim], bytes_of(cells.heads())));
        data.push(("cells.centres".into(), vec![n, tail], bytes_of(cells.centres())));
        data.push(("cells.rotations".into(), vec![n, tail, tail], bytes_of(cells.rotations())));
    }
    if let Some(convolution) = embedding.and_then(|f| f.convolution.as_ref()) {
        let (rows, outputs) = (convolution.weight().len() / convolution.outputs, convolution.outputs);
        data.push(("convolution.weight".into(), vec![rows, outputs], bytes_of(convolution.weight())));
        data.push(("convolution.bias".into(), vec![outputs], bytes_of(convolution.bias())));
    }
    let mut letters = Vec::new();
    if let Some(terms) = embedding.and_then(|f| f.terms.as_ref()) {
        let (n, width) = (terms.vocabulary().len(), terms.width());
        terms.vocabulary().terms().iter().for_each(|term| letters.extend_from_slice(format!("{term}\n").as_bytes()));
        data.push(("terms.frequencies".into(), vec![n], bytes_of(terms.vocabulary().frequencies())));
        data.push(("terms.weight".into(), vec![n, width], bytes_of(&terms.layer().weight)));
        data.push(("terms.bias".into(), vec![width], bytes_of(&terms.layer().bias)));
    }
    let letters = (!letters.is_empty()).then(|| {
        let view = TensorView::new(Dtype::U8, vec![letters.len()], &letters).expect("one byte per value");
        ("terms.words".to_owned(), view)
    });
    let views = data.iter().map(|(name, shape, bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("lengths follow from the shapes"))
    });
    safetensors::serialize(views.chain(letters), None).expect("names are distinct")
}

/// Projection, codebooks, and the layers of tables by kind where there are any.
type Parts = (Projection, Codebooks, Option<Projection>);

fn parts(bytes: &[u8], shape: CodeShape) -> std::result::Result<Parts, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("is not a readable safetensors file: {e}"))?;
    let read = |name: &str| -> std::result::Result<(Vec<usize>, Vec<f32>), String> {
        let t = file.tensor(name).map_err(|_| format!("has no tensor \"{name}\""))?;
        if t.dtype() != Dtype::F32 {
            return Err(format!("tensor \"{name}\" is {:?}, expected F32", t.dtype()));
        }
        Ok((t.shape().to_vec(), t.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    };
    // Format 1 and 2 name them `refine.N`.
    let prefix = if file.tensor("refine.0.weight").is_ok() { "refine" } else { "projection" };
    let layers_of = |prefix: &str| -> std::result::Result<Vec<Dense>, String> {
        let count = (0..).take_while(|i| file.tensor(&format!("{prefix}.{i}.weight")).is_ok()).count();
        let layer = |i: usize| {
            let (dims, weight) = read(&format!("{prefix}.{i}.weight"))?;
            let [_, inputs] = dims[..] else {
                return Err(format!("tensor \"{prefix}.{i}.weight\" has shape {dims:?}, expected two dimensions"));
            };
            let (_, bias) = read(&format!("{prefix}.{i}.bias"))?;
            Dense::new(inputs, weight, bias).map_err(|e| format!("{prefix}.{i}: {e}"))
        };
        (0..count).map(layer).collect()
    };
    let layers = layers_of(prefix)?;
    let kinds = match layers_of("kind")? {
        none if none.is_empty() => None,
        layers => Some(Projection::new(layers).map_err(|e| format!("kind: {e}"))?),
    };
    let projection = if file.tensor("cells.heads").is_ok() {
        let (dims, heads) = read("cells.heads")?;
        let (tails, centres) = read("cells.centres")?;
        let [_, dim] = dims[..] else { return Err(format!("tensor \"cells.heads\" has shape {dims:?}")) };
        let [_, tail] = tails[..] else { return Err(format!("tensor \"cells.centres\" has shape {tails:?}")) };
        let cells = Cells::new(dim, tail, heads, centres, read("cells.rotations")?.1).map_err(|e| e.to_string())?;
        Projection::with_cells(layers, cells)
    } else {
        Projection::new(layers)
    };
    let projection = projection.map_err(|e| e.to_string())?;
    let (dims, codewords) = read("codebooks")?;
    if dims != [shape.num_codebooks(), shape.codebook_size(), shape.dim()] {
        return Err(format!("tensor \"codebooks\" has shape {dims:?}, config.json says {shape:?}"));
    }
    Ok((projection, Codebooks::new(shape, codewords).map_err(|e| e.to_string())?, kinds))
}

/// Vocabulary and layer of a model with terms instead of an encoder.
fn terms_of(bytes: &[u8]) -> std::result::Result<(Vocabulary, Layer), String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("is not a readable safetensors file: {e}"))?;
    let letters = file.tensor("terms.words").map_err(|_| "has no tensor \"terms.words\"".to_owned())?;
    let letters = std::str::from_utf8(letters.data()).map_err(|e| format!("terms.words: {e}"))?;
    let terms = letters.lines().map(str::to_owned).collect();
    let vocabulary = Vocabulary::new(terms, floats(&file, "terms.frequencies")?).map_err(|e| e.to_string())?;
    Ok((vocabulary, Layer { weight: floats(&file, "terms.weight")?, bias: floats(&file, "terms.bias")? }))
}

fn floats(file: &SafeTensors, name: &str) -> std::result::Result<Vec<f32>, String> {
    let tensor = file.tensor(name).map_err(|_| format!("has no tensor \"{name}\""))?;
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("tensor \"{name}\" is {:?}, expected F32", tensor.dtype()));
    }
    Ok(tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// A hash of parameters, shape and embedding options: whatever changes a code changes it. The distance is left out: it does not
/// change codes, and a search may use another.
pub(super) fn fingerprint(
    config: &ModelConfig,
    projection: &Projection,
    codebooks: &Codebooks,
    kinds: Option<&KindTables>,
) -> String {
    let mut hash = Sha256::new();
    for layer in projection.layers().iter().chain(kinds.map_or(&[][..], |kinds| kinds.layers().layers())) {
        hash.update(bytes_of(layer.weight()));
        hash.update(bytes_of(layer.bias()));
    }
    hash.update(bytes_of(codebooks.values()));
    if let Some(cells) = projection.cells() {
        [cells.heads(), cells.centres(), cells.rotations()].iter().for_each(|part| hash.update(bytes_of(part)));
    }
    let mut embedding = config.embedding.clone();
    // The encoder's hash identifies it; its name may differ between machines.
    embedding.iter_mut().for_each(|f| f.encoder.clear());
    // The names of format 1, so that a model keeps its fingerprint when it is written anew.
    let shape = config.shape;
    let (num_codebooks, codebook_size, dim) = (shape.num_codebooks(), shape.codebook_size(), shape.dim());
    let embedding = serde_json::to_string(&embedding).expect("plain data has a JSON form");
    hash.update(format!("[{{\"books\":{num_codebooks},\"words\":{codebook_size},\"dim\":{dim}}},{embedding}]"));
    hex::encode(&hash.finalize()[..8])
}
