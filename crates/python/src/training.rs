//! `train` and `build`.

use std::path::PathBuf;
use std::sync::Arc;

use ::train::dataset::LabelNames;
use ::train::vectors::{VectorJob, VectorViews};
use micpq::corpus::Document;
use micpq::encoder::Features;
use micpq::index::{Index as Engine, IndexConfig};
use micpq::model::Model as EngineModel;
use micpq::{Error, Matrix, Result, Watch};
use numpy::PyReadonlyArray2;
use pyo3::prelude::*;
use systems::training::{Task, named};

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
    work::run(py, report, stop, |watch| Ok(fit(&options, documents, validation, watch)?.0))
}

/// Trains on vectors of any encoder, with views of them where the user has some.
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
    work::run(py, report, stop, |watch| {
        let (model, metrics) = fit_vectors(&options, values, width, given, watch)?;
        Ok(Model::new(model, metrics, None))
    })
}

/// A model of texts, and their vectors.
fn fit(
    options: &Training,
    documents: &Documents,
    validation: Option<&Documents>,
    watch: &dyn Watch,
) -> Result<(Model, Matrix)> {
    let features = if options.training.needs_encoder() { Some(Arc::new(options.features(watch)?)) } else { None };
    let mut names = LabelNames::default();
    let corpus = documents.dataset(options.sample, options.training.seed(), &mut names, watch)?;
    let validation =
        validation.map(|set| set.dataset(usize::MAX, options.training.seed(), &mut names, watch)).transpose()?;
    let cache = options.cache()?;
    let task = Task {
        features: features.as_deref(),
        clean: options.clean,
        dropout: options.dropout,
        corpus: &corpus,
        validation: validation.as_ref(),
        test: None,
        cache: &cache,
    };
    let (trained, (clean, _)) = task.fit(&options.training, watch)?;
    // Who asked to stop gets the exception; the checkpoint stays, and the same call goes on from it.
    if trained.interrupted {
        return Err(Error::Interrupted);
    }
    // Words, or a pooling learned on the way, are read back from the model.
    let same = |features: &Arc<Features>| trained.model.config.features.as_ref() == Some(features.config());
    let features = features.filter(same);
    Ok((Model::new(trained.model, trained.metrics, features), clean))
}

fn fit_vectors(
    options: &Training,
    values: &[f32],
    width: usize,
    views: Option<Vec<&[f32]>>,
    watch: &dyn Watch,
) -> Result<(EngineModel, serde_json::Value)> {
    let trained = match &options.training {
        systems::Training::System(config) => {
            if views.is_some() {
                return Err(Error::config(format!("{} takes no views; leave them out", config.method)));
            }
            systems::job::of_vectors(config, Matrix::from_vec(width, values.to_vec()), watch)?
        }
        systems::Training::Micpq(method, config) => {
            let cache = options.cache()?;
            let job = VectorJob {
                config: (**config).clone(),
                vectors: values,
                width,
                views: views.map_or(VectorViews::Noise(options.noise), VectorViews::Given),
                cache: Some(&cache),
            };
            named(::train::vectors::run(&job, watch)?, *method)
        }
    };
    if trained.interrupted { Err(Error::Interrupted) } else { Ok((trained.model, trained.metrics)) }
}

/// Trains where no model is given, and indexes. With `temporary` the index goes with its object.
#[pyfunction]
#[pyo3(signature = (documents, path, temporary, options, model=None, vectors=None, report=None, stop=None))]
#[allow(clippy::too_many_arguments)] // the keyword arguments of one call
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
    work::run(py, report, stop, |watch| {
        if path.exists() && !options.replace && !temporary {
            return Err(Error::config(format!(
                "{} exists; name another place, open it and add to it, or pass replace=True",
                path.display()
            )));
        }
        let mut known = None;
        let (engine, metrics, features) = match (model, borrowed) {
            (Some(model), None) => {
                let features = model.features(watch)?.clone();
                (model.engine().clone(), model.metrics_value().clone(), Some(features))
            }
            (Some(model), Some(_)) => (model.engine().clone(), model.metrics_value().clone(), None),
            (None, Some((values, width))) => {
                let (model, metrics) = fit_vectors(&options, values, width, None, watch)?;
                (model, metrics, None)
            }
            (None, None) => {
                let (fitted, clean) = fit(&options, documents, None, watch)?;
                known = Some(clean);
                let features = fitted.features(watch)?.clone();
                (fitted.engine().clone(), fitted.metrics_value().clone(), Some(features))
            }
        };
        let config = IndexConfig { store: options.store, keep: options.keep, replace: options.replace, metrics };
        let target = if temporary { path.join("index") } else { path.clone() };
        let index = Engine::create(&target, &engine, config)?;
        let rows = match borrowed {
            Some((values, width)) => Rows::Given { values, width },
            // Every document was trained on: their vectors are at hand, in the same order.
            None => match known.filter(|clean| documents.is_whole(clean.rows())) {
                Some(clean) => Rows::Known(clean),
                None => Rows::Encoded(features.as_ref().expect("an encoder where no vectors are given").clone()),
            },
        };
        fill(&index, documents, &rows, watch)?;
        Index::opened(index, features, temporary.then_some(path))
    })
}

/// Where the vectors of documents come from.
pub enum Rows<'a> {
    Given { values: &'a [f32], width: usize },
    Known(Matrix),
    Encoded(Arc<Features>),
}

/// Adds documents, in one commit for a few thousand to some hundred thousand, and waits for merges.
pub fn fill(index: &Engine, documents: &Documents, rows: &Rows, watch: &dyn Watch) -> Result<usize> {
    let mut writer = index.writer()?;
    let (mut added, mut pending) = (0, 0);
    watch.stage("indexing", None);
    documents.each_chunk(watch, |chunk: &[Document]| {
        let vectors = match rows {
            Rows::Given { values, width } => {
                let (start, end) = (added * width, (added + chunk.len()) * width);
                let part = values.get(start..end).ok_or_else(|| {
                    Error::input(
                        "vectors",
                        format!("there are {} rows for more documents; give one for each", values.len() / width),
                    )
                })?;
                Matrix::from_vec(*width, part.to_vec())
            }
            Rows::Known(clean) => clean.select(&(added..added + chunk.len()).collect::<Vec<_>>()),
            Rows::Encoded(features) => {
                let texts: Vec<&str> = chunk.iter().map(|d| d.text.as_str()).collect();
                features.encode(&texts, watch)?
            }
        };
        writer.add_features(chunk, &vectors)?;
        added += chunk.len();
        pending += chunk.len();
        if pending >= COMMIT {
            writer.commit(watch)?;
            pending = 0;
        }
        Ok(())
    })?;
    if let Rows::Given { values, width } = rows
        && values.len() / width != added
    {
        return Err(Error::input(
            "vectors",
            format!("there are {} rows for {added} documents; give one for each", values.len() / width),
        ));
    }
    writer.commit(watch)?;
    writer.close(watch)?;
    index.reload(watch)?;
    Ok(added)
}

/// Documents a commit.
const COMMIT: usize = 200_000;
