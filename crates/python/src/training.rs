//! `train` and `build`, which call the shared pipeline of the crate `micpq`.

use std::path::PathBuf;
use std::sync::Arc;

use ::train::vectors::VectorViews;
use engine::encoder::{Embedder, EncodingWorkers};
use engine::index::Claim;
use engine::model::Model as EngineModel;
use engine::{Error, Matrix, Progress, Result};
use micpq::pipeline::{BuildConfig, ModelSource, TrainingSources, TrainingTexts};
use micpq::vectors::{UserVectors, train_on_vectors};
use numpy::PyReadonlyArray2;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arrays::floats;
use crate::documents::Documents;
use crate::errors::raise;
use crate::index::Index;
use crate::model::Model;
use crate::options::Training;
use crate::work::{self, Stop};

/// What a build has where nothing is given, by the name of the option.
#[pyfunction]
pub fn build_defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let (defaults, found) = (BuildConfig::default(), PyDict::new(py));
    found.set_item("sample", defaults.sample)?;
    found.set_item("seed", defaults.training.seed())?;
    found.set_item("store", defaults.index.store.to_string())?;
    found.set_item("rerank_vectors", defaults.index.rerank_vectors.to_string())?;
    found.set_item("language", defaults.language.to_string())?;
    Ok(found)
}

#[pyfunction]
#[pyo3(signature = (documents, options, validation=None, report=None, stop=None, workers=None))]
pub fn train(
    py: Python<'_>,
    documents: &Documents,
    options: &str,
    validation: Option<&Documents>,
    report: Option<Py<PyAny>>,
    stop: Option<&Stop>,
    workers: Option<(usize, Py<PyAny>)>,
) -> PyResult<Model> {
    let options = Training::parse(options).map_err(raise)?;
    let workers = workers.map(|(count, encode)| Arc::new(Workers { count, encode, raised: Mutex::default() }));
    let trained =
        work::run(py, report, stop, |progress| fit(options, documents, validation, workers.clone(), progress));
    match workers.and_then(|workers| workers.raised.lock().take()) {
        Some(problem) => Err(problem),
        None => trained,
    }
}

/// Processes of a Python program: `encode` gets a list of batches and returns a list of replies of [`ViewEncoder`].
struct Workers {
    count: usize,
    encode: Py<PyAny>,
    // An exception of `encode` is raised as it is.
    raised: Mutex<Option<PyErr>>,
}

impl EncodingWorkers for Workers {
    fn count(&self) -> usize {
        self.count
    }

    fn encode(&self, batches: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let replies = Python::attach(|py| -> PyResult<Vec<Vec<u8>>> {
            let batches: Vec<_> = batches.iter().map(|batch| PyBytes::new(py, batch)).collect();
            let replies = self.encode.call1(py, (batches,))?;
            let replies: Vec<Bound<'_, PyBytes>> = replies.extract(py)?;
            Ok(replies.iter().map(|reply| reply.as_bytes().to_vec()).collect())
        });
        replies.map_err(|problem| {
            *self.raised.lock() = Some(problem);
            Error::Interrupted
        })
    }
}

/// The encoder of a training in another process: the views of batches that `train` hands out.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct ViewEncoder {
    embedder: Embedder,
}

#[pymethods]
impl ViewEncoder {
    /// Takes the options of `train`.
    #[new]
    fn new(py: Python<'_>, options: &str) -> PyResult<Self> {
        let options = Training::parse(options).map_err(raise)?;
        work::run(py, None, None, |progress| Ok(ViewEncoder { embedder: options.embedder(progress)? }))
    }

    fn encode<'py>(&self, py: Python<'py>, batch: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let reply = work::run(py, None, None, |progress| self.embedder.encode_batch(batch, progress))?;
        Ok(PyBytes::new(py, &reply))
    }
}

/// Trains on vectors of any encoder, with the user's views if there are any.
#[pyfunction]
#[pyo3(signature = (vectors, options, views=None, report=None, stop=None))]
pub fn train_vectors(
    py: Python<'_>,
    vectors: PyReadonlyArray2<'_, f32>,
    options: &str,
    views: Option<Vec<PyReadonlyArray2<'_, f32>>>,
    report: Option<Py<PyAny>>,
    stop: Option<&Stop>,
) -> PyResult<Model> {
    let options = Training::parse(options).map_err(raise)?;
    let (values, width) = floats(&vectors)?;
    let given: Option<Vec<&[f32]>> =
        views.as_ref().map(|views| views.iter().map(|v| floats(v).map(|(values, _)| values)).collect()).transpose()?;
    work::run(py, report, stop, |progress| {
        let (model, metrics) = fit_vectors(&options, values, width, given, progress)?;
        Ok(Model::new(model, metrics, None))
    })
}

fn fit(
    options: Training,
    documents: &Documents,
    validation: Option<&Documents>,
    workers: Option<Arc<Workers>>,
    progress: &dyn Progress,
) -> Result<Model> {
    let by_workers = |embedder: Embedder| match &workers {
        Some(workers) => embedder.by_workers(workers.clone()),
        None => embedder,
    };
    let config = options.build();
    let embedder = config.encoder(progress)?.map(by_workers).map(Arc::new);
    let sources = TrainingSources { validation: validation.map(Documents::source), ..documents.source().into() };
    let texts = TrainingTexts::read(sources, embedder.as_deref(), &config, progress)?;
    let (trained, _) = texts.task(embedder.as_deref(), &config).fit(&config.training, progress)?;
    // The checkpoint stays, and the same call continues from it.
    if trained.interrupted {
        return Err(Error::Interrupted);
    }
    // A model of keywords or with a learned convolution loads its own embedder.
    let same = |embedder: &Arc<Embedder>| trained.model.config.embedding.as_ref() == Some(embedder.config());
    let embedder = embedder.filter(same).filter(|_| workers.is_none());
    Ok(Model::new(trained.model, trained.metrics, embedder))
}

fn fit_vectors(
    options: &Training,
    values: &[f32],
    width: usize,
    views: Option<Vec<&[f32]>>,
    progress: &dyn Progress,
) -> Result<(EngineModel, serde_json::Value)> {
    let views = views.map_or(VectorViews::Noise(options.noise), VectorViews::Given);
    let cache = options.cache()?;
    let vectors = UserVectors::new(values, width).views(views);
    let trained = train_on_vectors(&options.training, vectors, &cache, progress)?;
    Ok((trained.model, trained.metrics))
}

/// Trains a model if none is given, and indexes the documents. A `temporary` index is removed with its object.
#[pyfunction]
#[pyo3(signature = (documents, path, temporary, options, model=None, vectors=None, report=None, stop=None))]
#[allow(clippy::too_many_arguments)] // the keyword arguments of one Python call
pub fn build(
    py: Python<'_>,
    documents: &Documents,
    path: PathBuf,
    temporary: bool,
    options: &str,
    model: Option<&Model>,
    vectors: Option<PyReadonlyArray2<'_, f32>>,
    report: Option<Py<PyAny>>,
    stop: Option<&Stop>,
) -> PyResult<Index> {
    let options = Training::parse(options).map_err(raise)?;
    let borrowed = vectors.as_ref().map(floats).transpose()?;
    work::run(py, report, stop, |progress| {
        if path.exists() && !options.replace && !temporary {
            return Err(Error::config(format!(
                "{} exists; choose another path, add to it with micpq.open, or pass replace=True",
                path.display()
            )));
        }
        let target = if temporary { path.join("index") } else { path.clone() };
        let source = || documents.source();
        if let Some((values, width)) = borrowed {
            // A path that cannot be replaced is refused before an hour of training.
            Claim::new(&target, options.replace)?;
            let (model, metrics) = match model {
                Some(model) => (model.engine().clone(), model.metrics_value().clone()),
                None => fit_vectors(&options, values, width, None, progress)?,
            };
            let rows = Matrix::from_vec(width, values.to_vec());
            let given = ModelSource::Vectors { model: &model, metrics, vectors: &rows };
            let built =
                micpq::build(source(), &target).model(given).config(options.build()).progress(progress).run()?;
            return Index::opened(built.index, None, temporary.then_some(path));
        }
        let embedder = model.map(|model| model.embedder(progress).cloned()).transpose()?;
        let given = match (model, &embedder) {
            (Some(model), Some(embedder)) => ModelSource::Given {
                model: model.engine(),
                metrics: model.metrics_value().clone(),
                embedder: Some(embedder),
            },
            _ => ModelSource::Train,
        };
        let built = micpq::build(source(), &target).model(given).config(options.build()).progress(progress).run()?;
        let embedder = embedder.or(built.embedder.map(Arc::new));
        Index::opened(built.index, embedder, temporary.then_some(path))
    })
}
