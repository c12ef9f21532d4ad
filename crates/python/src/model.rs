//! Models: texts and vectors to codes, codes to nearest codes.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use engine::chunk::{ChunkConfig, Chunker};
use engine::encoder::{Device, Embedder};
use engine::formats::faiss::{Layout, ProductIndex};
use engine::formats::npz;
use engine::model::{Distance, Model as Engine};
use engine::query::SearchConfig;
use engine::search::Flat as Memory;
use engine::{Error, Matrix, Progress, Result};
use numpy::{PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::arrays::{bytes, each_chunk, floats, rows};
use crate::documents::Documents;
use crate::errors::raise;
use crate::options;
use crate::work::{self, Stop};

/// A model in memory. The first text loads its encoder.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct Model {
    model: Arc<Engine>,
    metrics: serde_json::Value,
    embedder: OnceLock<Arc<Embedder>>,
    loading: Mutex<()>,
}

impl Model {
    pub fn new(model: Engine, metrics: serde_json::Value, embedder: Option<Arc<Embedder>>) -> Self {
        let created = Model { model: Arc::new(model), metrics, embedder: OnceLock::new(), loading: Mutex::new(()) };
        if let Some(embedder) = embedder {
            let _ = created.embedder.set(embedder);
        }
        created
    }

    pub fn engine(&self) -> &Engine {
        &self.model
    }

    pub fn metrics_value(&self) -> &serde_json::Value {
        &self.metrics
    }

    pub fn embedder(&self, progress: &dyn Progress) -> Result<&Arc<Embedder>> {
        if self.embedder.get().is_none() {
            let _exclusive = self.loading.lock();
            if self.embedder.get().is_none() {
                let _ = self.embedder.set(Arc::new(self.model.embedder(None, progress)?));
            }
        }
        Ok(self.embedder.get().expect("set above"))
    }
}

#[pymethods]
impl Model {
    #[staticmethod]
    fn load(py: Python<'_>, dir: PathBuf) -> PyResult<Self> {
        work::quick(py, None, |_| {
            let metrics = match std::fs::read(dir.join("metrics.json")) {
                Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
                Err(_) => serde_json::Value::Null,
            };
            Ok(Model::new(Engine::load(&dir)?, metrics, None))
        })
    }

    /// Reads a FAISS product quantizer: a model, its codes, and their ids if there are any.
    #[staticmethod]
    #[allow(clippy::type_complexity)]
    fn from_faiss<'py>(
        py: Python<'py>,
        path: PathBuf,
    ) -> PyResult<(Self, Bound<'py, PyArray2<u8>>, Option<Bound<'py, numpy::PyArray1<i64>>>)> {
        let (model, quantizer) = work::quick(py, None, |_| {
            let quantizer = ProductIndex::read(&path)?;
            Ok((quantizer.model(&path.display().to_string())?, quantizer))
        })?;
        let width = model.shape().code_bytes();
        let ids = quantizer.ids.map(|ids| numpy::PyArray1::from_vec(py, ids));
        Ok((Model::new(model, serde_json::Value::Null, None), rows(py, quantizer.codes, width)?, ids))
    }

    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        work::quick(py, None, |_| self.model.save(&dir, &self.metrics))
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.model.fingerprint()
    }

    /// `(num_codebooks, codebook_size, dim)`.
    #[getter]
    fn shape(&self) -> (usize, usize, usize) {
        let shape = self.model.shape();
        (shape.num_codebooks(), shape.codebook_size(), shape.dim())
    }

    #[getter]
    fn bits(&self) -> usize {
        self.model.shape().bits()
    }

    #[getter]
    fn code_bytes(&self) -> usize {
        self.model.shape().code_bytes()
    }

    #[getter]
    fn inputs(&self) -> usize {
        self.model.inputs()
    }

    #[getter]
    fn takes_text(&self) -> bool {
        self.model.config.embedding.is_some()
    }

    #[getter]
    fn config(&self) -> String {
        serde_json::to_string(&self.model.config).expect("plain data has a JSON form")
    }

    #[getter]
    fn metrics(&self) -> String {
        self.metrics.to_string()
    }

    /// `[num_codebooks * codebook_size, dim]`.
    fn codebooks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        rows(py, self.model.codebooks().values().to_vec(), self.model.shape().dim())
    }

    /// `[documents, inputs]`.
    #[pyo3(signature = (documents, report=None, stop=None))]
    fn embeddings<'py>(
        &self,
        py: Python<'py>,
        documents: &Documents,
        report: Option<Py<PyAny>>,
        stop: Option<&Stop>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let vectors = work::run(py, report, stop, |progress| {
            self.vectors(documents, progress, |out, chunk| {
                out.extend_from_slice(chunk.as_slice());
                Ok(())
            })
        })?;
        rows(py, vectors, self.model.inputs())
    }

    /// Loads the encoder, and moves it to where `device` says.
    fn load_encoder(&self, py: Python<'_>, device: &str) -> PyResult<()> {
        let device: Device = device.parse().map_err(raise)?;
        work::run(py, None, None, |progress| {
            let _ = self.embedder.set(Arc::new(self.model.embedder(None, progress)?.on(device, progress)?));
            Ok(())
        })
    }

    /// The sizes of chunks for this model, "TOKENS:OVERLAP", from those of the option `chunk`; None without.
    fn chunk_sizes(&self, py: Python<'_>, options: &str) -> PyResult<Option<String>> {
        let chunk = options::Training::parse(options).map_err(raise)?.chunk;
        work::run(py, None, None, |progress| {
            Ok(chunk.map(|chunk| chunk.sizes(self.embedder(progress)?)).transpose()?.map(|sizes| sizes.to_string()))
        })
    }

    /// Splits documents where `chunk` has sizes. Gives the embeddings `[chunks, inputs]`, the byte ranges of each document's
    /// chunks (None without sizes), and how many of the chunks are longer than the encoder takes.
    #[allow(clippy::type_complexity)]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        documents: &Documents,
        chunk: Option<&str>,
    ) -> PyResult<(Bound<'py, PyArray2<f32>>, Option<Vec<Vec<(usize, usize)>>>, usize)> {
        let chunk: Option<ChunkConfig> = chunk.map(str::parse).transpose().map_err(raise)?;
        let (vectors, ranges, cut) = work::run(py, None, None, |progress| {
            let embedder = self.embedder(progress)?;
            let sizes = chunk.map(|chunk| chunk.sizes(embedder)).transpose()?;
            let chunker = sizes.map(|sizes| Chunker::new(sizes, embedder)).transpose()?;
            let (mut vectors, mut ranges, mut count) = (Vec::new(), Vec::new(), 0);
            documents.each_chunk(progress, |some| {
                let split = chunker.as_ref().map(|chunker| chunker.split_all(some));
                let texts: Vec<&str> = match &split {
                    None => some.iter().map(|d| d.text.as_str()).collect(),
                    Some(split) => {
                        let chunks = some.iter().zip(split);
                        chunks.flat_map(|(d, ranges)| ranges.iter().map(|range| &d.text[range.clone()])).collect()
                    }
                };
                let (tokens, cut) = embedder.tokens_and_cut(&texts)?;
                vectors.extend_from_slice(embedder.encode_tokens(&tokens, None, progress)?.as_slice());
                count += cut.into_iter().filter(|cut| *cut).count();
                let pairs =
                    |ranges: Vec<std::ops::Range<usize>>| ranges.into_iter().map(|r| (r.start, r.end)).collect();
                ranges.extend(split.into_iter().flatten().map(pairs));
                Ok(())
            })?;
            Ok((vectors, chunker.is_some().then_some(ranges), count))
        })?;
        Ok((rows(py, vectors, self.model.inputs())?, ranges, cut))
    }

    /// `[documents, code_bytes]`.
    #[pyo3(signature = (documents, report=None, stop=None))]
    fn encode_texts<'py>(
        &self,
        py: Python<'py>,
        documents: &Documents,
        report: Option<Py<PyAny>>,
        stop: Option<&Stop>,
    ) -> PyResult<Bound<'py, PyArray2<u8>>> {
        let codes = work::run(py, report, stop, |progress| {
            self.vectors(documents, progress, |out, chunk| {
                out.extend(self.model.encode(chunk)?);
                Ok(())
            })
        })?;
        rows(py, codes, self.model.shape().code_bytes())
    }

    /// `[vectors, code_bytes]`.
    #[pyo3(signature = (vectors, stop=None))]
    fn encode_vectors<'py>(
        &self,
        py: Python<'py>,
        vectors: PyReadonlyArray2<'py, f32>,
        stop: Option<&Stop>,
    ) -> PyResult<Bound<'py, PyArray2<u8>>> {
        let (values, width) = floats(&vectors)?;
        let codes = work::run(py, None, stop, |progress| {
            let mut codes = Vec::with_capacity(values.len() / width * self.model.shape().code_bytes());
            each_chunk(values, width, |chunk| {
                codes.extend(self.model.encode(chunk)?);
                if progress.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
            })?;
            Ok(codes)
        })?;
        rows(py, codes, self.model.shape().code_bytes())
    }

    /// Projects embeddings into the space of the codewords, `[vectors, num_codebooks * dim]`.
    fn project<'py>(
        &self,
        py: Python<'py>,
        vectors: PyReadonlyArray2<'py, f32>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let (values, width) = floats(&vectors)?;
        let projected = work::run(py, None, None, |_| {
            let mut out = Vec::with_capacity(values.len() / width * self.model.shape().width());
            each_chunk(values, width, |chunk| {
                out.extend_from_slice(self.model.projection().apply(chunk)?.as_slice());
                Ok(())
            })?;
            Ok(out)
        })?;
        rows(py, projected, self.model.shape().width())
    }

    /// Packs codes for search in memory.
    fn flat(&self, py: Python<'_>, codes: PyReadonlyArray2<'_, u8>) -> PyResult<Flat> {
        let (packed, bytes) = bytes(&codes)?;
        let model = self.model.clone();
        work::run(py, None, None, |_| {
            if bytes != model.shape().code_bytes() {
                return Err(Error::config(format!(
                    "the codes have {bytes} bytes, those of this model {}; encode with this model",
                    model.shape().code_bytes()
                )));
            }
            let flat = Memory::new(model.shape(), packed)?;
            Ok(Flat { model, flat })
        })
    }

    /// Writes codes as a FAISS index, and the projection beside it.
    #[pyo3(signature = (path, codes, ids=None, fastscan=false))]
    fn write_faiss(
        &self,
        py: Python<'_>,
        path: PathBuf,
        codes: PyReadonlyArray2<'_, u8>,
        ids: Option<PyReadonlyArray1<'_, i64>>,
        fastscan: bool,
    ) -> PyResult<()> {
        let (packed, width) = bytes(&codes)?;
        let ids = ids.map(|ids| ids.as_array().to_vec());
        work::quick(py, None, |_| {
            if width != self.model.shape().code_bytes() {
                return Err(Error::config(format!(
                    "the codes have {width} bytes, those of this model {}; encode with this model",
                    self.model.shape().code_bytes()
                )));
            }
            let quantizer = ProductIndex { codebooks: self.model.codebooks().clone(), codes: packed.to_vec(), ids };
            quantizer.write(&path, if fastscan { Layout::FastScan } else { Layout::Plain })?;
            npz::write_projection(&engine::internal::beside(&path, ".projection.npz"), self.model.projection())
        })
    }
}

impl Model {
    /// Embeds documents chunk by chunk; `take` appends the result of a chunk.
    fn vectors<T>(
        &self,
        documents: &Documents,
        progress: &dyn Progress,
        mut take: impl FnMut(&mut Vec<T>, &Matrix) -> Result<()>,
    ) -> Result<Vec<T>> {
        let embedder = self.embedder(progress)?;
        progress.stage("encoding", None);
        let mut out = Vec::new();
        documents.each_chunk(progress, |chunk| {
            let texts: Vec<&str> = chunk.iter().map(|d| d.text.as_str()).collect();
            take(&mut out, &embedder.encode(&texts, progress)?)
        })?;
        Ok(out)
    }
}

/// From this many queries on, a search runs on its own thread, so that Ctrl-C can stop it.
const MIN_QUERIES_FOR_THREAD: usize = 64;

/// Codes in memory, searched exactly by vectors.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct Flat {
    model: Arc<Engine>,
    flat: Memory,
}

#[pymethods]
impl Flat {
    fn __len__(&self) -> usize {
        self.flat.len()
    }

    /// The nearest codes of every query vector: distances and rows, `[queries, k]` each.
    #[pyo3(signature = (queries, k=None, distance=None))]
    #[allow(clippy::type_complexity)]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray2<'py, f32>,
        k: Option<usize>,
        distance: Option<&str>,
    ) -> PyResult<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray2<i64>>)> {
        let distance: Distance = distance.map_or(Ok(self.model.config.distance), str::parse).map_err(raise)?;
        let (values, width) = floats(&queries)?;
        let k = k.unwrap_or(SearchConfig::default().k).min(self.flat.len());
        let (mut distances, mut found) = (Vec::new(), Vec::new());
        let work = |_: &dyn Progress| {
            each_chunk(values, width, |chunk: &Matrix| {
                for hits in self.flat.search(&self.model.tables(chunk, distance)?, k.max(1))? {
                    distances.extend(hits.iter().map(|hit| hit.distance));
                    found.extend(hits.iter().map(|hit| hit.row as i64));
                }
                Ok(())
            })
        };
        if values.len() / width < MIN_QUERIES_FOR_THREAD {
            work::quick(py, None, work)?;
        } else {
            work::run(py, None, None, work)?;
        };
        Ok((rows(py, distances, k)?, rows(py, found, k)?))
    }
}
