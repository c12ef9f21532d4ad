//! `train` and `build`, which call the shared pipeline of the crate `micpq`.

use std::path::PathBuf;
use std::sync::Arc;

use ::train::dataset::LabelNames;
use ::train::vectors::VectorViews;
use engine::encoder::Embedder;
use engine::index::Claim;
use engine::model::Model as EngineModel;
use engine::{Error, Matrix, Progress, Result};
use methods::training::Task;
use micpq::pipeline::ModelSource;
use micpq::vectors::{UserVectors, train_on_vectors};
use numpy::PyReadonlyArray2;
use pyo3::prelude::*;

use crate::arrays::floats;
use crate::documents::Documents;
use crate::errors::raise;
use crate::index::Index;
use crate::model::Model;
use crate::options::Training;
use crate::work::{self, Stop};

/// Trains on texts.
#[pyfunction]
#[pyo3(signature = (documents, options, validation=None, report=None, stop=None))]
pub fn train(
    py: Python<'_>,
    documents: &Documents,
    options: &str,
    validation: Option<&Documents>,
    report: Option<Py<PyAny>>,
    stop: Option<&Stop>,
) -> PyResult<Model> {
    let options = Training::parse(options).map_err(raise)?;
    work::run(py, report, stop, |progress| fit(&options, documents, validation, progress))
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
    options: &Training,
    documents: &Documents,
    validation: Option<&Documents>,
    progress: &dyn Progress,
) -> Result<Model> {
    let embedder = if options.training.needs_encoder() { Some(Arc::new(options.embedder(progress)?)) } else { None };
    let mut names = LabelNames::default();
    let corpus = documents.dataset(options.sample, options.training.seed(), &mut names, progress)?;
    let validation =
        validation.map(|set| set.dataset(usize::MAX, options.training.seed(), &mut names, progress)).transpose()?;
    let cache = options.cache()?;
    let task = Task {
        embedder: embedder.as_deref(),
        clean: options.embedding.clean,
        dropout: options.dropout,
        corpus: &corpus,
        validation: validation.as_ref(),
        test: None,
        cache: &cache,
    };
    let (trained, _) = task.fit(&options.training, progress)?;
    // The checkpoint stays, and the same call continues from it.
    if trained.interrupted {
        return Err(Error::Interrupted);
    }
    // A model of keywords or with a learned convolution loads its own embedder.
    let same = |embedder: &Arc<Embedder>| trained.model.config.embedding.as_ref() == Some(embedder.config());
    let embedder = embedder.filter(same);
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
            let built = micpq::build(source(), &target, given, &options.build(), progress)?;
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
        let built = micpq::build(source(), &target, given, &options.build(), progress)?;
        let embedder = embedder.or(built.embedder.map(Arc::new));
        Index::opened(built.index, embedder, temporary.then_some(path))
    })
}
