//! Documents out of whatever Python has.

use std::path::PathBuf;

use arrow::array::RecordBatchReader;
use arrow::ffi_stream::RecordBatchStreamReader;
use arrow_pyarrow::FromPyArrow;
use micpq::corpus::{Corpus, CorpusConfig, Document};
use micpq::{Error, Result, Watch};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde_json::{Map, Value};
use train::dataset::{Dataset, LabelNames};

use crate::errors::{exception, raise};
use crate::{options, work};

/// Documents encoded and added at a time.
const CHUNK: usize = 4096;

/// A corpus: in memory, or on disk and read when it is needed.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct Documents {
    source: Source,
    skipped: Vec<String>,
}

enum Source {
    Memory(Vec<Document>),
    Files { path: PathBuf, config: CorpusConfig },
}

#[pymethods]
impl Documents {
    /// A file or folder.
    #[staticmethod]
    fn from_path(path: PathBuf, options: &str) -> PyResult<Self> {
        let config = options::corpus(options).map_err(raise)?;
        // Opened once to refuse what cannot be read before an hour is spent.
        Corpus::open(&path, &config).map_err(raise)?;
        Ok(Documents { source: Source::Files { path, config }, skipped: Vec::new() })
    }

    /// Strings and dictionaries.
    #[staticmethod]
    fn from_rows(py: Python<'_>, rows: &Bound<'_, PyAny>, name: &str, options: &str) -> PyResult<Self> {
        let config = options::corpus(options).map_err(raise)?;
        let mut values = Vec::new();
        for (i, row) in rows.try_iter()?.enumerate() {
            if i % CHUNK == 0 {
                py.check_signals()?;
            }
            values
                .push(row_value(&row?).map_err(|problem| exception("InputError", format!("{name}[{i}]: {problem}")))?);
        }
        let name = name.to_owned();
        work::run(py, None, None, move |watch| {
            Documents::read(Corpus::from_rows(&name, values.into_iter(), &config)?, watch)
        })
    }

    /// A table that speaks the Arrow C stream interface: pyarrow, polars, pandas, DuckDB. Its columns are not copied.
    #[staticmethod]
    fn from_arrow(py: Python<'_>, table: &Bound<'_, PyAny>, name: &str, options: &str) -> PyResult<Self> {
        let config = options::corpus(options).map_err(raise)?;
        let reader = RecordBatchStreamReader::from_pyarrow_bound(table)
            .map_err(|e| exception("InputError", format!("{name}: not a table Arrow can carry: {e}")))?;
        let reader: Box<dyn RecordBatchReader + Send> = Box::new(reader);
        let name = name.to_owned();
        // Its stream may call back into Python, which is why it is read by a thread that can take the lock.
        work::run(py, None, None, move |watch| Documents::read(Corpus::from_batches(&name, reader, &config)?, watch))
    }

    /// How many there are, where that is known without reading.
    fn count(&self) -> Option<usize> {
        match &self.source {
            Source::Memory(documents) => Some(documents.len()),
            Source::Files { .. } => None,
        }
    }

    /// Rows that were passed over, with `on_error="skip"`.
    fn skipped(&self) -> Vec<String> {
        self.skipped.clone()
    }

    /// The texts.
    fn texts(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        work::run(py, None, None, |watch| {
            let mut texts = Vec::new();
            self.each_chunk(watch, |chunk| {
                texts.extend(chunk.iter().map(|d| d.text.clone()));
                Ok(())
            })?;
            Ok(texts)
        })
    }
}

impl Documents {
    fn read(mut corpus: Corpus, watch: &dyn Watch) -> Result<Documents> {
        let mut documents = Vec::new();
        for document in corpus.by_ref() {
            documents.push(document?);
            if documents.len() % CHUNK == 0 && watch.interrupted() {
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

    /// Texts and labels to train on, at most `most`.
    pub fn dataset(&self, most: usize, seed: u64, names: &mut LabelNames, watch: &dyn Watch) -> Result<Dataset> {
        match &self.source {
            Source::Memory(documents) => {
                Dataset::sample_of(documents.iter().map(|d| Ok(d.clone())), most, seed, names, watch)
            }
            Source::Files { path, config } => {
                Dataset::sample(&mut Corpus::open(path, config)?, most, seed, names, watch)
            }
        }
    }

    /// Whether `count` documents are all of them. Of files that is not known before they are read.
    pub fn is_whole(&self, count: usize) -> bool {
        self.count() == Some(count)
    }

    /// Calls `work` with some thousand documents at a time.
    pub fn each_chunk(&self, watch: &dyn Watch, mut work: impl FnMut(&[Document]) -> Result<()>) -> Result<()> {
        let stopped = |watch: &dyn Watch| if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) };
        match &self.source {
            Source::Memory(documents) => documents.chunks(CHUNK).try_for_each(|chunk| {
                stopped(watch)?;
                work(chunk)
            }),
            Source::Files { path, config } => {
                let mut corpus = Corpus::open(path, config)?;
                loop {
                    let chunk: Vec<Document> = corpus.by_ref().take(CHUNK).collect::<Result<_>>()?;
                    if chunk.is_empty() {
                        break;
                    }
                    stopped(watch)?;
                    work(&chunk)?;
                }
                if corpus.skipped().count() > 0 {
                    watch.note(&corpus.skipped().to_string());
                }
                Ok(())
            }
        }
    }
}

/// A row: a string is a text, a mapping has fields.
fn row_value(row: &Bound<'_, PyAny>) -> std::result::Result<Value, String> {
    if row.is_instance_of::<PyString>() || row.cast::<PyMapping>().is_ok() {
        return value(row, 0);
    }
    Err(format!("a text (str) or a document (dict with \"text\") is expected, found {}", kind(row)))
}

fn kind(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// A field's value. Types of NumPy and dates are taken by what they can say of themselves.
fn value(object: &Bound<'_, PyAny>, depth: usize) -> std::result::Result<Value, String> {
    let told = |e: PyErr| e.to_string();
    if depth > 8 {
        return Err("nested more than 8 deep".into());
    }
    if object.is_none() {
        Ok(Value::Null)
    } else if let Ok(text) = object.cast::<PyString>() {
        Ok(Value::String(
            text.to_str().map_err(|_| "a string that is not valid Unicode (lone surrogate)".to_owned())?.to_owned(),
        ))
    } else if let Ok(flag) = object.cast::<PyBool>() {
        Ok(Value::Bool(flag.is_true()))
    } else if object.is_instance_of::<PyInt>() {
        let number = object.extract::<i64>().map(Value::from).or_else(|_| object.extract::<u64>().map(Value::from));
        number.map_err(|_| "a whole number beyond 64 bits; give it as a string".to_owned())
    } else if object.is_instance_of::<PyFloat>() {
        // NaN is how tables say "absent".
        Ok(object.extract::<f64>().map_err(told)?.into())
    } else if let Ok(mapping) = object.cast::<PyMapping>() {
        let mut fields = Map::new();
        for item in mapping.items().map_err(told)? {
            let (name, field): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract().map_err(told)?;
            let name: String = name.extract().map_err(|_| format!("field names are strings, not {}", kind(&name)))?;
            let field = value(&field, depth + 1).map_err(|problem| format!("field \"{name}\": {problem}"))?;
            fields.insert(name, field);
        }
        Ok(Value::Object(fields))
    } else if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let items = object.try_iter().map_err(told)?;
        items
            .map(|item| value(&item.map_err(told)?, depth + 1))
            .collect::<std::result::Result<_, _>>()
            .map(Value::Array)
    } else if let Ok(text) = object.call_method0("isoformat") {
        Ok(Value::String(text.extract().map_err(told)?))
    } else if let Ok(plain) = object.call_method0("tolist").or_else(|_| object.call_method0("item")) {
        value(&plain, depth + 1)
    } else {
        Err(format!("a value of type {} is neither text nor attribute", kind(object)))
    }
}

/// A document as a dictionary.
pub fn dictionary<'py>(py: Python<'py>, record: &micpq::index::Record) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("id", crate::answers::id(py, &record.id)?)?;
    out.set_item("text", &record.text)?;
    out.set_item("labels", &record.labels)?;
    out.set_item("attributes", crate::answers::attributes(py, &record.attributes)?)?;
    out.set_item("code", pyo3::types::PyBytes::new(py, &record.code))?;
    Ok(out)
}
