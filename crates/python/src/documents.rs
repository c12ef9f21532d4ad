//! Documents from paths, Python rows and Arrow tables.

use std::path::PathBuf;

use arrow_array::RecordBatchReader;
use arrow_array::ffi_stream::RecordBatchStreamReader;
use arrow_pyarrow::FromPyArrow;
use engine::corpus::{Corpus, CorpusConfig, Document};
use engine::index::Index;
use engine::internal::{from_wire, to_wire};
use engine::shards::ShardManifest;
use engine::{Error, Progress, Result};
use micpq::pipeline::{Embeddings, FillConfig, Filled, fill, report_skipped};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde_json::{Map, Value};

use crate::errors::{exception, raise};
use crate::{options, work};

/// Documents processed between two checks for Ctrl-C.
const CHUNK_DOCS: usize = 4096;

/// A corpus in memory, or a path that is read when the documents are needed.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct Documents {
    source: Source,
    skipped: Vec<String>,
}

/// Insertion sequences that are set aside for a document before it is split: no text has more chunks than bytes.
pub fn sequences_of(document: &Document, split: bool) -> u64 {
    if split { document.text.len().max(1) as u64 } else { 1 }
}

enum Source {
    Memory(Vec<Document>),
    Files { path: PathBuf, config: Box<CorpusConfig> },
}

#[pymethods]
impl Documents {
    #[staticmethod]
    fn from_path(path: PathBuf, options: &str) -> PyResult<Self> {
        let config = options::corpus(options).map_err(raise)?;
        // An unreadable corpus is refused here, before an hour of encoding.
        Corpus::open(&path, &config).map_err(raise)?;
        Ok(Documents { source: Source::Files { path, config: Box::new(config) }, skipped: Vec::new() })
    }

    /// Documents of strings and dictionaries.
    #[staticmethod]
    fn from_rows(py: Python<'_>, rows: &Bound<'_, PyAny>, name: &str, options: &str) -> PyResult<Self> {
        let config = options::corpus(options).map_err(raise)?;
        let mut values = Vec::new();
        for (i, row) in rows.try_iter()?.enumerate() {
            if i % CHUNK_DOCS == 0 {
                py.check_signals()?;
            }
            values
                .push(row_value(&row?).map_err(|problem| exception("InputError", format!("{name}[{i}]: {problem}")))?);
        }
        let name = name.to_owned();
        work::run(py, None, None, move |progress| {
            Documents::read(Corpus::from_rows(&name, values.into_iter(), &config)?, progress)
        })
    }

    /// Documents of a table with the Arrow C stream interface: pyarrow, polars, pandas, DuckDB. Columns are not copied.
    #[staticmethod]
    fn from_arrow(py: Python<'_>, table: &Bound<'_, PyAny>, name: &str, options: &str) -> PyResult<Self> {
        let config = options::corpus(options).map_err(raise)?;
        let reader = RecordBatchStreamReader::from_pyarrow_bound(table)
            .map_err(|e| exception("InputError", format!("{name} is not a table that Arrow can read: {e}")))?;
        let reader: Box<dyn RecordBatchReader + Send> = Box::new(reader);
        let name = name.to_owned();
        // The stream may call into Python, so the thread that reads it must be able to take the interpreter's lock.
        work::run(py, None, None, move |progress| {
            Documents::read(Corpus::from_batches(&name, reader, &config)?, progress)
        })
    }

    /// Documents of another process, from the bytes of `to_bytes`.
    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        Ok(Documents { source: Source::Memory(from_wire(bytes).map_err(raise)?), skipped: Vec::new() })
    }

    /// The documents at these positions, as bytes.
    fn to_bytes<'py>(&self, py: Python<'py>, positions: Vec<usize>) -> PyResult<Bound<'py, PyBytes>> {
        let documents = self.in_memory().map_err(raise)?;
        let chosen: Vec<&Document> = positions.iter().filter_map(|&i| documents.get(i)).collect();
        Ok(PyBytes::new(py, &to_wire(chosen.into_iter())))
    }

    /// The shard of each document.
    fn routes(&self, shards: usize) -> PyResult<Vec<usize>> {
        let documents = self.in_memory().map_err(raise)?;
        Ok(documents.iter().map(|document| ShardManifest::route(&document.id, shards.max(1))).collect())
    }

    /// Insertion sequences to set aside for each document, in an index with chunks or without.
    fn sequences(&self, split: bool) -> PyResult<Vec<u64>> {
        let documents = self.in_memory().map_err(raise)?;
        Ok(documents.iter().map(|document| sequences_of(document, split)).collect())
    }

    /// The number of documents, or None if it is not known before reading.
    fn count(&self) -> Option<usize> {
        match &self.source {
            Source::Memory(documents) => Some(documents.len()),
            Source::Files { .. } => None,
        }
    }

    /// Reasons of the rows that `on_error="skip"` skipped.
    fn skipped(&self) -> Vec<String> {
        self.skipped.clone()
    }

    fn texts(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        work::run(py, None, None, |progress| {
            let mut texts = Vec::new();
            self.each_chunk(progress, |chunk| {
                texts.extend(chunk.iter().map(|d| d.text.clone()));
                Ok(())
            })?;
            Ok(texts)
        })
    }
}

impl Documents {
    /// Documents that are in memory; those of a path are not.
    pub fn in_memory(&self) -> Result<&[Document]> {
        match &self.source {
            Source::Memory(documents) => Ok(documents),
            Source::Files { path, .. } => {
                Err(Error::config(format!("{} is read when it is needed; pass rows or a table", path.display())))
            }
        }
    }

    fn read(mut corpus: Corpus, progress: &dyn Progress) -> Result<Documents> {
        let mut documents = Vec::new();
        for document in corpus.by_ref() {
            documents.push(document?);
            if documents.len() % CHUNK_DOCS == 0 && progress.interrupted() {
                return Err(Error::Interrupted);
            }
        }
        let skipped = corpus.skipped();
        let mut reasons = skipped.reasons().to_vec();
        if skipped.count() as usize > reasons.len() {
            reasons.push(format!("and {} more", skipped.count() as usize - reasons.len()));
        }
        Ok(Documents { source: Source::Memory(documents), skipped: reasons })
    }

    /// The documents as the input of the build pipeline.
    pub fn source(&self) -> micpq::pipeline::Source<'_> {
        match &self.source {
            Source::Memory(documents) => {
                micpq::pipeline::Source::Documents(Box::new(documents.iter().cloned().map(Ok)))
            }
            Source::Files { path, config } => micpq::pipeline::Source::Corpus(path, config),
        }
    }

    /// Adds the documents to an index, and notes rows that were skipped.
    pub fn add_to(
        &self,
        index: &Index,
        embeddings: &Embeddings,
        filling: FillConfig,
        progress: &dyn Progress,
    ) -> Result<Filled> {
        match &self.source {
            Source::Memory(documents) => fill(index, documents.iter().cloned().map(Ok), embeddings, filling, progress),
            Source::Files { path, config } => {
                let mut corpus = Corpus::open(path, config)?;
                let filled = fill(index, corpus.by_ref(), embeddings, filling, progress)?;
                report_skipped(&corpus, progress);
                Ok(filled)
            }
        }
    }

    /// Calls `work` with chunks of documents, and checks for Ctrl-C between them.
    pub fn each_chunk(&self, progress: &dyn Progress, mut work: impl FnMut(&[Document]) -> Result<()>) -> Result<()> {
        let stopped = |progress: &dyn Progress| if progress.interrupted() { Err(Error::Interrupted) } else { Ok(()) };
        match &self.source {
            Source::Memory(documents) => documents.chunks(CHUNK_DOCS).try_for_each(|chunk| {
                stopped(progress)?;
                work(chunk)
            }),
            Source::Files { path, config } => {
                let mut corpus = Corpus::open(path, config)?;
                loop {
                    let chunk: Vec<Document> = corpus.by_ref().take(CHUNK_DOCS).collect::<Result<_>>()?;
                    if chunk.is_empty() {
                        break;
                    }
                    stopped(progress)?;
                    work(&chunk)?;
                }
                report_skipped(&corpus, progress);
                Ok(())
            }
        }
    }
}

/// A row as JSON: a string is a text, a mapping has fields.
fn row_value(row: &Bound<'_, PyAny>) -> std::result::Result<Value, String> {
    if row.is_instance_of::<PyString>() || row.cast::<PyMapping>().is_ok() {
        return value(row, 0);
    }
    Err(format!("expected a text (str) or a document (dict with \"text\"), found {}", kind(row)))
}

fn kind(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// The value of a field. Dates convert by `isoformat`, NumPy values by `tolist` or `item`.
fn value(object: &Bound<'_, PyAny>, depth: usize) -> std::result::Result<Value, String> {
    let message = |e: PyErr| e.to_string();
    if depth > 8 {
        return Err("nested more than 8 levels deep".into());
    }
    if object.is_none() {
        Ok(Value::Null)
    } else if let Ok(text) = object.cast::<PyString>() {
        Ok(Value::String(text.to_str().map_err(|_| "not valid Unicode (a lone surrogate)".to_owned())?.to_owned()))
    } else if let Ok(flag) = object.cast::<PyBool>() {
        Ok(Value::Bool(flag.is_true()))
    } else if object.is_instance_of::<PyInt>() {
        let number = object.extract::<i64>().map(Value::from).or_else(|_| object.extract::<u64>().map(Value::from));
        number.map_err(|_| "a whole number of more than 64 bits; pass it as a string".to_owned())
    } else if object.is_instance_of::<PyFloat>() {
        // Tables use NaN for an absent value; it becomes null.
        Ok(object.extract::<f64>().map_err(message)?.into())
    } else if let Ok(mapping) = object.cast::<PyMapping>() {
        let mut fields = Map::new();
        for item in mapping.items().map_err(message)? {
            let (name, field): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract().map_err(message)?;
            let name: String = name.extract().map_err(|_| format!("field names are strings, found {}", kind(&name)))?;
            let field = value(&field, depth + 1).map_err(|problem| format!("field \"{name}\": {problem}"))?;
            fields.insert(name, field);
        }
        Ok(Value::Object(fields))
    } else if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let items = object.try_iter().map_err(message)?;
        items
            .map(|item| value(&item.map_err(message)?, depth + 1))
            .collect::<std::result::Result<_, _>>()
            .map(Value::Array)
    } else if let Ok(text) = object.call_method0("isoformat") {
        Ok(Value::String(text.extract().map_err(message)?))
    } else if let Ok(plain) = object.call_method0("tolist").or_else(|_| object.call_method0("item")) {
        value(&plain, depth + 1)
    } else {
        Err(format!("a value of type {} cannot be stored; pass a string, number, flag, date or list", kind(object)))
    }
}

/// A document as a dictionary.
pub fn dictionary<'py>(py: Python<'py>, record: &engine::index::Record) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("id", crate::answers::id(py, &record.id)?)?;
    out.set_item("text", &record.text)?;
    out.set_item("labels", &record.labels)?;
    out.set_item("attributes", crate::answers::attributes(py, &record.attributes)?)?;
    out.set_item("code", pyo3::types::PyBytes::new(py, &record.code))?;
    Ok(out)
}
