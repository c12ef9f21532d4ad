//! A model: text or vectors to codes, codes to neighbours.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use micpq::encoder::Features;
use micpq::formats::faiss::{Layout, ProductIndex};
use micpq::formats::npz;
use micpq::model::{Distance, Model as Engine};
use micpq::search::Flat as Memory;
use micpq::{Error, Matrix, Result, Watch};
use numpy::{PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

use crate::arrays::{bytes, each_chunk, floats, rows};
use crate::documents::Documents;
use crate::errors::raise;
use crate::work::{self, Stop};

/// A model in memory. Its encoder is loaded when the first text comes.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct Model {
    model: Arc<Engine>,
    metrics: serde_json::Value,
    features: OnceLock<Arc<Features>>,
    loading: Mutex<()>,
}

impl Model {
    pub fn new(model: Engine, metrics: serde_json::Value, features: Option<Arc<Features>>) -> Self {
        let made = Model { model: Arc::new(model), metrics, features: OnceLock::new(), loading: Mutex::new(()) };
        if let Some(features) = features {
            let _ = made.features.set(features);
        }
        made
    }

    pub fn engine(&self) -> &Engine {
        &self.model
    }

    pub fn metrics_value(&self) -> &serde_json::Value {
        &self.metrics
    }

    pub fn features(&self, watch: &dyn Watch) -> Result<&Arc<Features>> {
        if self.features.get().is_none() {
            let _alone = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
            if self.features.get().is_none() {
                let _ = self.features.set(Arc::new(Features::for_model(&self.model, None, watch)?));
            }
        }
        Ok(self.features.get().expect("set above"))
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

    /// A model of a FAISS product quantizer, its codes, and their ids where it has some.
    #[staticmethod]
    #[allow(clippy::type_complexity)]
    fn from_faiss<'py>(
        py: Python<'py>,
        path: PathBuf,
    ) -> PyResult<(Self, Bound<'py, PyArray2<u8>>, Option<Bound<'py, numpy::PyArray1<i64>>>)> {
        let (model, made) = work::quick(py, None, |_| {
            let made = ProductIndex::read(&path)?;
            Ok((made.model(&path.display().to_string())?, made))
        })?;
        let width = model.shape().code_bytes();
        let ids = made.ids.map(|ids| numpy::PyArray1::from_vec(py, ids));
        Ok((Model::new(model, serde_json::Value::Null, None), rows(py, made.codes, width)?, ids))
    }

    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        work::quick(py, None, |_| self.model.save(&dir, &self.metrics))
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.model.fingerprint()
    }

    /// `(books, words, dim)`.
    #[getter]
    fn shape(&self) -> (usize, usize, usize) {
        let shape = self.model.shape();
        (shape.books(), shape.words(), shape.dim())
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
        self.model.config.features.is_some()
    }

    #[getter]
    fn config(&self) -> String {
        serde_json::to_string(&self.model.config).expect("plain data has a JSON form")
    }

    #[getter]
    fn metrics(&self) -> String {
        self.metrics.to_string()
    }

    /// `[books, words, dim]`, flat.
    fn codebooks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        rows(py, self.model.codebooks().values().to_vec(), self.model.shape().dim())
    }

    /// Feature vectors of texts.
    #[pyo3(signature = (documents, report=None, stop=None))]
    fn features_of<'py>(
        &self,
        py: Python<'py>,
        documents: &Documents,
        report: Option<Py<PyAny>>,
        stop: Option<&Stop>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let vectors = work::run(py, report, stop, |watch| {
            self.vectors(documents, watch, |out, chunk| {
                out.extend_from_slice(chunk.as_slice());
                Ok(())
            })
        })?;
        rows(py, vectors, self.model.inputs())
    }

    /// Codes of texts.
    #[pyo3(signature = (documents, report=None, stop=None))]
    fn encode_texts<'py>(
        &self,
        py: Python<'py>,
        documents: &Documents,
        report: Option<Py<PyAny>>,
        stop: Option<&Stop>,
    ) -> PyResult<Bound<'py, PyArray2<u8>>> {
        let codes = work::run(py, report, stop, |watch| {
            self.vectors(documents, watch, |out, chunk| {
                out.extend(self.model.encode(chunk)?);
                Ok(())
            })
        })?;
        rows(py, codes, self.model.shape().code_bytes())
    }

    /// Codes of vectors.
    #[pyo3(signature = (vectors, stop=None))]
    fn encode_vectors<'py>(
        &self,
        py: Python<'py>,
        vectors: PyReadonlyArray2<'py, f32>,
        stop: Option<&Stop>,
    ) -> PyResult<Bound<'py, PyArray2<u8>>> {
        let (values, width) = floats(&vectors)?;
        let codes = work::run(py, None, stop, |watch| {
            let mut codes = Vec::with_capacity(values.len() / width * self.model.shape().code_bytes());
            each_chunk(values, width, |chunk| {
                codes.extend(self.model.encode(chunk)?);
                if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
            })?;
            Ok(codes)
        })?;
        rows(py, codes, self.model.shape().code_bytes())
    }

    /// Vectors refined: what the codebooks, and an exported FAISS index, measure.
    fn refine<'py>(&self, py: Python<'py>, vectors: PyReadonlyArray2<'py, f32>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let (values, width) = floats(&vectors)?;
        let refined = work::run(py, None, None, |_| {
            let mut out = Vec::with_capacity(values.len() / width * self.model.shape().width());
            each_chunk(values, width, |chunk| {
                out.extend_from_slice(self.model.refine().apply(chunk)?.as_slice());
                Ok(())
            })?;
            Ok(out)
        })?;
        rows(py, refined, self.model.shape().width())
    }

    /// Codes in memory, ready to be searched.
    fn flat(&self, py: Python<'_>, codes: PyReadonlyArray2<'_, u8>) -> PyResult<Flat> {
        let (packed, bytes) = bytes(&codes)?;
        let model = self.model.clone();
        work::run(py, None, None, |_| {
            if bytes != model.shape().code_bytes() {
                return Err(Error::config(format!(
                    "these codes have {bytes} bytes, those of this model {}; encode with this model",
                    model.shape().code_bytes()
                )));
            }
            let flat = Memory::new(model.shape(), packed)?;
            Ok(Flat { model, flat })
        })
    }

    /// Writes codes as a FAISS index, the refinement beside it.
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
                    "these codes have {width} bytes, those of this model {}",
                    self.model.shape().code_bytes()
                )));
            }
            let made = ProductIndex { codebooks: self.model.codebooks().clone(), codes: packed.to_vec(), ids };
            made.write(&path, if fastscan { Layout::FastScan } else { Layout::Plain })?;
            npz::write_refine(&micpq::disk::beside(&path, ".refine.npz"), self.model.refine())
        })
    }
}

impl Model {
    fn vectors<T>(
        &self,
        documents: &Documents,
        watch: &dyn Watch,
        mut take: impl FnMut(&mut Vec<T>, &Matrix) -> Result<()>,
    ) -> Result<Vec<T>> {
        let features = self.features(watch)?;
        watch.stage("encoding", None);
        let mut out = Vec::new();
        documents.each_chunk(watch, |chunk| {
            let texts: Vec<&str> = chunk.iter().map(|d| d.text.as_str()).collect();
            take(&mut out, &features.encode(&texts, watch)?)
        })?;
        Ok(out)
    }
}

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

    /// The nearest codes of every query vector: distances `[queries, k]` and rows `[queries, k]`.
    #[pyo3(signature = (queries, k, distance=None))]
    #[allow(clippy::type_complexity)]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray2<'py, f32>,
        k: usize,
        distance: Option<&str>,
    ) -> PyResult<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray2<i64>>)> {
        let distance: Distance = distance.map_or(Ok(self.model.config.distance), str::parse).map_err(raise)?;
        let (values, width) = floats(&queries)?;
        let k = k.min(self.flat.len());
        let (mut distances, mut found) = (Vec::new(), Vec::new());
        let work = |_: &dyn Watch| {
            each_chunk(values, width, |chunk: &Matrix| {
                for hits in self.flat.search(&self.model.tables(chunk, distance)?, k.max(1))? {
                    distances.extend(hits.iter().map(|hit| hit.distance));
                    found.extend(hits.iter().map(|hit| hit.row as i64));
                }
                Ok(())
            })
        };
        if values.len() / width < 64 {
            work::quick(py, None, work)?
        } else {
            work::run(py, None, None, work)?
        };
        Ok((rows(py, distances, k)?, rows(py, found, k)?))
    }
}
