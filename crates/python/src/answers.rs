//! Answers of a search as plain Python values. The package builds its classes from them.

use engine::corpus::{DocId, Value};
use engine::query::{Answer, Hit};
use engine::topics::{CodewordTerms, SharedCodeword};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// A number or a string, as the corpus had it.
pub fn id<'py>(py: Python<'py>, id: &DocId) -> PyResult<Bound<'py, PyAny>> {
    match id {
        DocId::Int(number) => number.into_bound_py_any(py),
        DocId::Str(name) => name.into_bound_py_any(py),
    }
}

pub fn doc_id(object: &Bound<'_, PyAny>) -> PyResult<DocId> {
    if let Ok(number) = object.extract::<u64>() {
        return Ok(DocId::Int(number));
    }
    match object.extract::<String>() {
        Ok(name) => Ok(name.parse().unwrap_or(DocId::Str(name))),
        Err(_) => Err(crate::errors::exception(
            "ArgumentError",
            format!("an id must be a string or a whole number, 0 or more, not {}", object.repr()?),
        )),
    }
}

fn value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Bool(v) => v.into_bound_py_any(py),
        Value::Int(v) => v.into_bound_py_any(py),
        Value::Float(v) => v.into_bound_py_any(py),
        Value::Text(v) => v.into_bound_py_any(py),
        Value::Texts(v) => v.into_bound_py_any(py),
    }
}

pub fn attributes<'py>(py: Python<'py>, all: &[(String, Value)]) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (name, v) in all {
        out.set_item(name, value(py, v)?)?;
    }
    Ok(out)
}

/// `(id, distance, score, text, labels, attributes, snippet, codebook_distances, chunk, shared codewords)`.
fn hit<'py>(py: Python<'py>, hit: &Hit, shared: Option<Vec<SharedCodeword>>) -> PyResult<Bound<'py, PyTuple>> {
    let snippet = hit.snippet.as_ref().map(|s| {
        let marks: Vec<(usize, usize)> = s.marks_in_chars().into_iter().map(|m| (m.start, m.end)).collect();
        (s.text.clone(), marks)
    });
    (
        id(py, &hit.id)?,
        hit.distance,
        hit.score,
        hit.text.as_deref(),
        &hit.labels,
        attributes(py, &hit.attributes)?,
        snippet,
        hit.codebook_distances.clone(),
        hit.chunk.map(|chunk| (chunk.number, chunk.of, chunk.start)),
        shared.map(|all| all.into_iter().map(|s| (s.codebook, s.codeword, s.terms)).collect::<Vec<_>>()),
    )
        .into_pyobject(py)
}

/// `(hits, next, explanation as JSON, {stage: seconds})`. `terms` say what codewords stand for, in an explained answer.
pub fn answer<'py>(py: Python<'py>, answer: &Answer, terms: Option<&CodewordTerms>) -> PyResult<Bound<'py, PyTuple>> {
    let asked = answer.explanation.as_ref().map(|explanation| &explanation.codewords);
    let hits = PyList::empty(py);
    for h in &answer.hits {
        let shared = || Some(terms?.shared(h.codewords.as_ref()?, asked?));
        hits.append(hit(py, h, shared())?)?;
    }
    let explanation =
        answer.explanation.as_ref().map(|e| serde_json::to_string(e).expect("plain data has a JSON form"));
    let timings = PyDict::new(py);
    for (stage, time) in answer.timings.stages() {
        timings.set_item(stage, time.as_secs_f64())?;
    }
    (hits, answer.next.as_ref().map(ToString::to_string), explanation, timings).into_pyobject(py)
}
