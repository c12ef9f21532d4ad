//! Foreign files: TREC runs and vectors.

use std::path::PathBuf;

use engine::formats::trec::{Qrels, Run};
use engine::formats::vectors::VectorFile;
use numpy::PyArray2;
use pyo3::prelude::*;

use crate::arrays::rows;
use crate::work;

/// Rows read between two checks for Ctrl-C.
const CHUNK_ROWS: usize = 65_536;

/// Measures of a TREC run, as JSON.
#[pyfunction]
pub fn score(py: Python<'_>, run: PathBuf, qrels: PathBuf) -> PyResult<String> {
    work::quick(py, None, |_| {
        let scored = Run::read(&run)?.score(&Qrels::read(&qrels)?);
        let mut value = serde_json::to_value(&scored).expect("plain data has a JSON form");
        value["each"] = serde_json::to_value(&scored.each).expect("plain data has a JSON form");
        Ok(value.to_string())
    })
}

/// Reads all vectors of a file.
#[pyfunction]
#[pyo3(signature = (path, dataset=None))]
pub fn read_vectors(py: Python<'_>, path: PathBuf, dataset: Option<String>) -> PyResult<Bound<'_, PyArray2<f32>>> {
    let (values, width) = work::run(py, None, None, |progress| {
        let file = VectorFile::open(&path, dataset.as_deref())?;
        let mut values = Vec::with_capacity(file.rows() * file.width());
        for start in (0..file.rows()).step_by(CHUNK_ROWS) {
            if progress.interrupted() {
                return Err(engine::Error::Interrupted);
            }
            values.extend_from_slice(file.read(start..(start + CHUNK_ROWS).min(file.rows()))?.as_slice());
        }
        Ok((values, file.width()))
    })?;
    rows(py, values, width)
}
