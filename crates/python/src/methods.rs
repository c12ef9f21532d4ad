//! Methods that Python classes define, and the paper's runner, which takes them as rows.

use std::path::PathBuf;
use std::sync::Arc;

use ::paper::{Board, Paper, Plan, State, Task};
use engine::encoder::pull;
use engine::model::{CodeShape, Codebooks, Dense, Projection};
use engine::{Error, Matrix, Progress, Result};
use methods::{EmbeddingMethod, Training};
use micpq::pipeline::cache_dir;
use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::arrays::rows;
use crate::errors::raise;
use crate::work::{self, Stop};

/// Registers a method under `name`. `fit(embeddings, bits, seed)` returns layers `[(weight [outputs, inputs], bias)]` and
/// codebooks `[codebooks, codewords, dim]`, all float32.
#[pyfunction]
pub fn register_method(name: String, fit: Py<PyAny>) -> PyResult<()> {
    let own = name.clone();
    let method = EmbeddingMethod::new(name, move |embeddings: &Matrix, training: &Training| {
        Python::attach(|py| call(py, &fit, embeddings, training))
            .map_err(|problem| Error::config(format!("method {own}: {problem}")))
    });
    methods::register(Arc::new(method)).map_err(raise)
}

type Layers<'py> = Vec<(PyReadonlyArray2<'py, f32>, PyReadonlyArray1<'py, f32>)>;

fn call(
    py: Python<'_>,
    fit: &Py<PyAny>,
    embeddings: &Matrix,
    training: &Training,
) -> PyResult<(Projection, Codebooks)> {
    let array = rows(py, embeddings.as_slice().to_vec(), embeddings.cols())?;
    let fitted = fit.call1(py, (array, training.bits(), training.seed()))?;
    let (layers, codewords): (Layers<'_>, PyReadonlyArray3<'_, f32>) = fitted.extract(py)?;
    let layer = |(weight, bias): &(PyReadonlyArray2<'_, f32>, PyReadonlyArray1<'_, f32>)| {
        Dense::new(weight.shape()[1], weight.as_slice()?.to_vec(), bias.as_slice()?.to_vec()).map_err(raise)
    };
    let layers = layers.iter().map(layer).collect::<PyResult<Vec<Dense>>>()?;
    let [num_codebooks, codebook_size, dim] = codewords.shape() else { unreachable!("the array has three axes") };
    let shape = CodeShape::new(*num_codebooks, *codebook_size, *dim).map_err(raise)?;
    let codebooks = Codebooks::new(shape, codewords.as_slice()?.to_vec()).map_err(raise)?;
    Ok((Projection::new(layers).map_err(raise)?, codebooks))
}

/// Runs a plan of the paper and writes its report. Returns the finished cells and the missing ones as JSON text.
#[pyfunction]
#[pyo3(signature = (plan, data, output, cache=None, jobs=1, only=Vec::new(), skip=Vec::new(), report=None, stop=None))]
#[allow(clippy::too_many_arguments)] // the keyword arguments of one Python call
pub fn paper(
    py: Python<'_>,
    plan: &str,
    data: PathBuf,
    output: PathBuf,
    cache: Option<PathBuf>,
    jobs: usize,
    only: Vec<String>,
    skip: Vec<String>,
    report: Option<Py<PyAny>>,
    stop: Option<&Stop>,
) -> PyResult<String> {
    work::run(py, report, stop, |progress| {
        let plan = Plan::open(plan)?;
        pull::locate_or_pull(&plan.encoder, progress)?;
        let (device, cache) = (plan.device, cache_dir(cache.as_deref())?);
        let paper = Paper { plan, data, output, cache, device, jobs: jobs.max(1), only, skip, report_only: false };
        run(&paper, progress)
    })
}

fn run(paper: &Paper, progress: &dyn Progress) -> Result<String> {
    let results = paper.run(progress, &Notes(progress))?;
    ::paper::report(&paper.plan, &results, &paper.output)?;
    if results.interrupted {
        return Err(Error::Interrupted);
    }
    let missing: Vec<_> = results
        .missing
        .iter()
        .map(|(task, why)| serde_json::json!({ "cell": task.to_string(), "why": why.to_string() }))
        .collect();
    Ok(serde_json::json!({ "cells": results.cells, "missing": missing }).to_string())
}

/// Passes what happens to the cells on as notes.
struct Notes<'p>(&'p dyn Progress);

impl Board for Notes<'_> {
    fn show(&self, all: &[(Task, State)], news: &str) {
        if !news.is_empty() {
            let done = all.iter().filter(|(_, state)| matches!(state, State::Done(_))).count();
            self.0.note(&format!("[{done}/{}] {news}", all.len()));
        }
    }
}
