//! An open index: search, changes, export.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_pyarrow::IntoPyArrow;
use engine::corpus::DocId;
use engine::duplicates;
use engine::encoder::{Embedder, QueryEncoder};
use engine::formats::table::{self, Columns, TableFormat};
use engine::formats::web;
use engine::index::{CopyConfig, Index as Engine, IndexConfig, Record, backup, verify};
use engine::map::{self, HtmlMapConfig};
use engine::query::{Like, Query, RecallConfig, Searcher};
use engine::topics::{CodewordTerms, LatestTerms};
use engine::{Error, Matrix, Progress, Result, saved, topics};
use micpq::pipeline::{Embeddings, distill_index};
use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use parking_lot::{Mutex, RwLock};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use train::query_encoder::expect_encoder;

use crate::answers::{answer, doc_id};
use crate::arrays::floats;
use crate::documents::{Documents, dictionary};
use crate::errors::{exception, raise};
use crate::model::Model;
use crate::options;
use crate::work::{self, Stop};

/// An open index. Any number of threads may use it.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct Index {
    // None once closed.
    open: RwLock<Option<Arc<Searcher>>>,
    dir: PathBuf,
    // A folder that is removed with this object.
    temporary: Mutex<Option<PathBuf>>,
    terms: LatestTerms,
}

impl Index {
    pub fn opened(index: Engine, embedder: Option<Arc<Embedder>>, temporary: Option<PathBuf>) -> Result<Self> {
        let dir = index.dir().to_path_buf();
        let searcher = Searcher::new(index, embedder)?;
        let (open, temporary) = (RwLock::new(Some(Arc::new(searcher))), Mutex::new(temporary));
        Ok(Index { open, dir, temporary, terms: LatestTerms::default() })
    }

    fn searcher(&self) -> PyResult<Arc<Searcher>> {
        let open = self.open.read();
        open.clone().ok_or_else(|| {
            exception("ClosedError", format!("index {} is closed; open it again with micpq.open", self.dir.display()))
        })
    }

    /// What the codewords stand for.
    fn terms(&self, index: &Engine, progress: &dyn Progress) -> Result<Arc<CodewordTerms>> {
        let documents = index.len();
        match self.terms.of(documents) {
            Some(terms) => Ok(terms),
            None => Ok(self.terms.set(documents, CodewordTerms::of(index, CodewordTerms::TERMS, progress)?)),
        }
    }

    fn release(&self) {
        *self.open.write() = None;
        if let Some(dir) = self.temporary.lock().take() {
            // `drop` cannot report an error, and the system clears its temporary folder.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.release();
    }
}

/// A query of examples `(kind, value, weight)`, where kind is `text`, `vector` or `document`.
pub fn query(examples: &Bound<'_, PyAny>, keywords: Option<String>, encoder: QueryEncoder) -> PyResult<Query> {
    let mut like = Vec::new();
    for example in examples.try_iter()? {
        let (kind, value, weight): (String, Bound<'_, PyAny>, f32) = example?.extract()?;
        let one = match kind.as_str() {
            "text" => Like::Text(value.extract()?),
            "vector" => Like::Vector(value.extract::<PyReadonlyArray1<'_, f32>>()?.as_array().to_vec()),
            _ => Like::Document(doc_id(&value)?),
        };
        like.push((one, weight));
    }
    Ok(Query { like, keywords, encoder })
}

pub fn recall_config(
    queries: Option<usize>,
    k: Option<usize>,
    windows: Option<usize>,
    rerank: Option<usize>,
) -> RecallConfig {
    let defaults = RecallConfig::default();
    RecallConfig {
        queries: queries.unwrap_or(defaults.queries),
        k: k.unwrap_or(defaults.k),
        windows: windows.unwrap_or(defaults.windows),
        rerank: rerank.unwrap_or(defaults.rerank),
    }
}

/// From this many queries on, a search runs on its own thread, so that Ctrl-C can stop it.
const MIN_QUERIES_FOR_THREAD: usize = 32;

/// Rows per Arrow batch.
const BATCH_ROWS: usize = 65_536;

#[pymethods]
impl Index {
    #[staticmethod]
    fn open(py: Python<'_>, dir: PathBuf) -> PyResult<Self> {
        work::run(py, None, None, |progress| Index::opened(Engine::open(&dir, progress)?, None, None))
    }

    #[staticmethod]
    fn create(py: Python<'_>, dir: PathBuf, model: &Model, options: &str) -> PyResult<Self> {
        let options = options::Training::parse(options).map_err(raise)?;
        work::run(py, None, None, |progress| {
            let chunk = match options.chunk {
                None => None,
                Some(chunk) => Some(chunk.sizes(model.embedder(progress)?)?),
            };
            let config = IndexConfig {
                store: options.store,
                rerank_vectors: options.rerank_vectors,
                language: options.language.of(std::iter::empty()),
                chunk,
                replace: options.replace,
                metrics: model.metrics_value().clone(),
            };
            Index::opened(Engine::create(&dir, model.engine(), config)?, None, None)
        })
    }

    #[getter]
    fn dir(&self) -> &Path {
        &self.dir
    }

    #[getter]
    fn temporary(&self) -> bool {
        self.temporary.lock().is_some()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.searcher().is_err()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.release());
    }

    fn count(&self, py: Python<'_>, filter: Option<String>) -> PyResult<usize> {
        let searcher = self.searcher()?;
        work::quick(py, None, |_| match &filter {
            None => Ok(searcher.index().len()),
            Some(filter) => searcher.index().count(filter),
        })
    }

    fn info(&self, py: Python<'_>) -> PyResult<String> {
        let searcher = self.searcher()?;
        let info = work::quick(py, None, |_| searcher.index().info())?;
        Ok(serde_json::to_string(&info).expect("plain data has a JSON form"))
    }

    fn model(&self) -> PyResult<Model> {
        let searcher = self.searcher()?;
        let metrics = std::fs::read(self.dir.join("model").join("metrics.json")).ok();
        let metrics = metrics.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Ok(Model::new(searcher.index().model().clone(), metrics, None))
    }

    /// Adds documents. A document with a known id replaces the old one. Returns their number, and what became of duplicates as
    /// JSON text.
    #[pyo3(signature = (documents, options, vectors=None, report=None, stop=None))]
    fn add(
        &self,
        py: Python<'_>,
        documents: &Documents,
        options: &str,
        vectors: Option<PyReadonlyArray2<'_, f32>>,
        report: Option<Py<PyAny>>,
        stop: Option<&Stop>,
    ) -> PyResult<(usize, String)> {
        let searcher = self.searcher()?;
        let filling = options::adding(options).map_err(raise)?;
        let borrowed = vectors.as_ref().map(floats).transpose()?;
        work::run(py, report, stop, |progress| {
            let index = searcher.index();
            let given = borrowed.map(|(values, width)| Matrix::from_vec(width, values.to_vec()));
            let embeddings = match &given {
                Some(rows) => Embeddings::Given(rows),
                None => Embeddings::Encode(searcher.embedder(progress)?),
            };
            progress.stage("indexing", None);
            let filled = documents.add_to(index, &embeddings, filling, progress)?;
            filled.report_cut(index, progress);
            index.reload(progress)?;
            if filled.interrupted {
                return Err(Error::Interrupted);
            }
            let repeats = serde_json::to_string(&filled.repeats).expect("plain data has a JSON form");
            Ok((filled.documents, repeats))
        })
    }

    /// Deletes by id and by filter, and returns how many documents there were.
    #[pyo3(signature = (ids, filter=None))]
    fn delete(&self, py: Python<'_>, ids: Vec<Bound<'_, PyAny>>, filter: Option<String>) -> PyResult<usize> {
        let searcher = self.searcher()?;
        let ids: Vec<DocId> = ids.iter().map(doc_id).collect::<PyResult<_>>()?;
        work::run(py, None, None, |progress| {
            let mut writer = searcher.index().writer()?;
            let mut deleted = 0;
            for id in &ids {
                deleted += usize::from(writer.delete(id)?);
            }
            if let Some(filter) = &filter {
                deleted += writer.delete_where(filter)?;
            }
            writer.commit(progress)?;
            writer.close(progress)?;
            searcher.index().reload(progress)?;
            Ok(deleted)
        })
    }

    fn get<'py>(&self, py: Python<'py>, id: &Bound<'_, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let searcher = self.searcher()?;
        let id = doc_id(id)?;
        let record = work::quick(py, None, |_| searcher.index().get(&id))?;
        record.map(|record| dictionary(py, &record)).transpose()
    }

    fn reload(&self, py: Python<'_>) -> PyResult<bool> {
        let searcher = self.searcher()?;
        work::run(py, None, None, |progress| searcher.index().reload(progress))
    }

    fn compact(&self, py: Python<'_>) -> PyResult<()> {
        let searcher = self.searcher()?;
        work::run(py, None, None, |progress| {
            searcher.index().writer()?.compact(progress)?;
            searcher.index().reload(progress).map(drop)
        })
    }

    /// One line per damage; none if the index is sound.
    fn verify(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.searcher()?;
        work::run(py, None, None, |progress| Ok(verify(&self.dir, progress)?.iter().map(ToString::to_string).collect()))
    }

    /// Recall against exact float search over the stored vectors, as JSON text.
    #[pyo3(signature = (queries, k, windows, rerank, stop=None))]
    fn recall(
        &self,
        py: Python<'_>,
        queries: Option<usize>,
        k: Option<usize>,
        windows: Option<usize>,
        rerank: Option<usize>,
        stop: Option<&Stop>,
    ) -> PyResult<String> {
        let searcher = self.searcher()?;
        let config = recall_config(queries, k, windows, rerank);
        work::run(py, None, stop, |progress| {
            let report = searcher.recall(&config, progress)?;
            Ok(serde_json::to_string(&report).expect("plain data has a JSON form"))
        })
    }

    /// Candidates to re-rank so that `k` hits have a recall of `target`. Measured once per commit.
    #[pyo3(signature = (target, k, stop=None))]
    fn rerank_for(&self, py: Python<'_>, target: f64, k: Option<usize>, stop: Option<&Stop>) -> PyResult<usize> {
        let searcher = self.searcher()?;
        let k = k.unwrap_or(micpq::SearchConfig::default().k);
        work::run(py, None, stop, |progress| Ok(searcher.rerank_for(target, k, progress)?.rerank))
    }

    /// Finds duplicates, and deletes or marks them if the options say so. The report as JSON text.
    #[pyo3(signature = (options, report=None, stop=None))]
    fn dedup(&self, py: Python<'_>, options: &str, report: Option<Py<PyAny>>, stop: Option<&Stop>) -> PyResult<String> {
        let searcher = self.searcher()?;
        let options = options::Dedup::parse(options).map_err(raise)?;
        work::run(py, report, stop, |progress| {
            let index = searcher.index();
            let found = duplicates::find(index, &options.config, progress)?;
            let mut value = serde_json::to_value(&found).expect("plain data has a JSON form");
            if options.delete {
                let deleted = duplicates::delete(index, &found, progress)?;
                value["deleted"] = serde_json::to_value(deleted).expect("plain data has a JSON form");
            }
            if let Some(name) = &options.mark {
                value["marked"] = duplicates::mark(index, &found, name, progress)?.into();
            }
            Ok(value.to_string())
        })
    }

    /// Distils the encoder into a query encoder that takes microseconds.
    #[pyo3(signature = (options, report=None, stop=None))]
    fn distill(&self, py: Python<'_>, options: &str, report: Option<Py<PyAny>>, stop: Option<&Stop>) -> PyResult<()> {
        let searcher = self.searcher()?;
        let config = options::distill(options).map_err(raise)?;
        work::run(py, report, stop, |progress| {
            expect_encoder(searcher.index().model())?;
            distill_index(searcher.index(), searcher.embedder(progress)?, &config, progress).map(drop)
        })
    }

    /// Finds topics, and writes them to an attribute if the options say so. The report as JSON text; with `assignments`, also the
    /// id, the topic and whether it is an outlier of every document.
    #[pyo3(signature = (options, assignments, report=None, stop=None))]
    fn topics(
        &self,
        py: Python<'_>,
        options: &str,
        assignments: bool,
        report: Option<Py<PyAny>>,
        stop: Option<&Stop>,
    ) -> PyResult<String> {
        let searcher = self.searcher()?;
        let (config, mark, follow) = options::topics(options).map_err(raise)?;
        work::run(py, report, stop, |progress| {
            let index = searcher.index();
            let found = topics::find(index, &config, progress)?;
            let mut value = serde_json::to_value(&found).expect("plain data has a JSON form");
            if let Some(name) = &mark {
                value["marked"] = topics::mark(index, &found, name, progress)?.into();
                if follow {
                    topics::follow(index, name, progress)?;
                }
            }
            if assignments {
                let row = |(id, _, a): &(DocId, u64, topics::Assignment)| serde_json::json!({ "id": id, "topic": a.topic, "outlier": a.outlier });
                value["assignments"] = found.assignments.iter().map(row).collect();
            }
            Ok(value.to_string())
        })
    }

    /// Saves a query. The query as JSON text.
    #[pyo3(signature = (name, options, vector=None))]
    fn save_query(
        &self,
        py: Python<'_>,
        name: String,
        options: &str,
        vector: Option<PyReadonlyArray1<'_, f32>>,
    ) -> PyResult<String> {
        let searcher = self.searcher()?;
        let vector = vector.map(|vector| vector.as_array().to_vec());
        let query = options::saved_query(name, options, vector).map_err(raise)?;
        work::run(py, None, None, |progress| {
            let mut writer = searcher.index().writer()?;
            let (query, _) = saved::save(&searcher, &mut writer, query, progress)?;
            Ok(query.to_json().to_string())
        })
    }

    /// The saved queries as JSON text.
    fn saved_queries(&self, py: Python<'_>) -> PyResult<String> {
        let searcher = self.searcher()?;
        let queries = work::quick(py, None, |_| saved::list(searcher.index()))?;
        let queries: Vec<serde_json::Value> = queries.iter().map(|query| query.to_json()).collect();
        Ok(serde_json::Value::from(queries).to_string())
    }

    fn remove_query(&self, py: Python<'_>, name: String) -> PyResult<bool> {
        let searcher = self.searcher()?;
        work::run(py, None, None, |_| saved::remove(&mut searcher.index().writer()?, searcher.index(), &name))
    }

    /// New documents that match saved queries, as JSON text.
    #[pyo3(signature = (options, stop=None))]
    fn matches(&self, py: Python<'_>, options: &str, stop: Option<&Stop>) -> PyResult<String> {
        let searcher = self.searcher()?;
        let request = options::matches(options).map_err(raise)?;
        work::run(py, None, stop, |progress| {
            let found = saved::matches(&searcher, &request, progress)?;
            Ok(serde_json::to_string(&found).expect("plain data has a JSON form"))
        })
    }

    /// Gives documents that were added later the nearest topic. The numbers as JSON text.
    #[pyo3(signature = (attribute, report=None, stop=None))]
    fn extend_topics(
        &self,
        py: Python<'_>,
        attribute: String,
        report: Option<Py<PyAny>>,
        stop: Option<&Stop>,
    ) -> PyResult<String> {
        let searcher = self.searcher()?;
        work::run(py, report, stop, |progress| {
            let later = topics::find_later(searcher.index(), &attribute, progress)?;
            topics::mark_later(searcher.index(), &later, &attribute, progress)?;
            Ok(serde_json::to_string(&later).expect("plain data has a JSON form"))
        })
    }

    /// Copies the last commit to another directory.
    fn backup(&self, py: Python<'_>, to: PathBuf) -> PyResult<()> {
        self.searcher()?;
        work::run(py, None, None, |progress| backup(&self.dir, &to, CopyConfig::default(), progress).map(drop))
    }

    /// Answers queries. Each is a list of examples and the keywords of a hybrid search.
    #[pyo3(signature = (queries, options, stop=None))]
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: Vec<(Bound<'py, PyAny>, Option<String>)>,
        options: &str,
        stop: Option<&Stop>,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let searcher = self.searcher()?;
        let (config, encoder) = options::search(options).map_err(raise)?;
        let queries: Vec<Query> =
            queries.into_iter().map(|(like, keywords)| query(&like, keywords, encoder)).collect::<PyResult<_>>()?;
        let search = |progress: &dyn Progress| {
            let answers = searcher.search(&queries, &config, progress)?;
            let terms = config.explain.then(|| self.terms(searcher.index(), progress)).transpose()?;
            Ok((answers, terms))
        };
        let (answers, terms) = match queries.len() < MIN_QUERIES_FOR_THREAD {
            true => work::quick(py, stop, search)?,
            false => work::run(py, None, stop, search)?,
        };
        answers.iter().map(|a| answer(py, a, terms.as_deref())).collect()
    }

    /// All documents as a pyarrow table, in insertion order.
    #[pyo3(signature = (codes=false))]
    fn to_arrow<'py>(&self, py: Python<'py>, codes: bool) -> PyResult<Bound<'py, PyAny>> {
        let searcher = self.searcher()?;
        let reader: Box<dyn RecordBatchReader + Send> = work::run(py, None, None, |progress| {
            let index = searcher.index();
            let mut columns = Columns::new(codes.then(|| index.model().shape().code_bytes()));
            let mut records: Vec<Record> = Vec::with_capacity(index.len());
            for record in index.records(true)? {
                let record = record?;
                columns.see(&record);
                records.push(record);
                if progress.interrupted() {
                    return Err(Error::Interrupted);
                }
            }
            let batches: Vec<RecordBatch> =
                records.chunks(BATCH_ROWS).map(|part| columns.batch(part)).collect::<Result<_>>()?;
            Ok(Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), columns.schema())) as Box<_>)
        })?;
        reader.into_pyarrow(py)?.call_method0("read_all")
    }

    /// Ids and packed codes of all documents, in insertion order.
    #[allow(clippy::type_complexity)]
    fn codes<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Bound<'py, PyAny>>, Bound<'py, numpy::PyArray2<u8>>)> {
        let searcher = self.searcher()?;
        let (ids, codes) = work::run(py, None, None, |_| {
            searcher.index().expect_one_code_per_document("codes")?;
            let (mut ids, mut codes) = (Vec::new(), Vec::new());
            for record in searcher.index().records(false)? {
                let record = record?;
                ids.push(record.id);
                codes.extend_from_slice(&record.code);
            }
            Ok((ids, codes))
        })?;
        let ids = ids.iter().map(|id| crate::answers::id(py, id)).collect::<PyResult<_>>()?;
        Ok((ids, crate::arrays::rows(py, codes, searcher.index().model().shape().code_bytes())?))
    }

    /// Writes all documents as a table.
    #[pyo3(signature = (path, format, codes=false, report=None))]
    fn export(
        &self,
        py: Python<'_>,
        path: PathBuf,
        format: &str,
        codes: bool,
        report: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let searcher = self.searcher()?;
        let format = match format {
            "parquet" => TableFormat::Parquet,
            "arrow" => TableFormat::Arrow,
            "jsonl" => TableFormat::Jsonl,
            "web" => {
                let title =
                    self.dir.file_stem().map_or_else(|| "Search".into(), |name| name.to_string_lossy().into_owned());
                return work::run(py, report, None, |progress| {
                    Ok(web::write(searcher.index(), &path, &title, progress)?.documents)
                });
            }
            "html-map" => {
                let title =
                    self.dir.file_stem().map_or_else(|| "Map".into(), |name| name.to_string_lossy().into_owned());
                let config = HtmlMapConfig { title, ..HtmlMapConfig::default() };
                return work::run(py, report, None, |progress| {
                    Ok(map::write_html(searcher.index(), &path, &config, progress)?.documents)
                });
            }
            other => {
                let known = "parquet, arrow, jsonl, faiss, faiss-fastscan, web, html-map";
                return Err(exception("ConfigError", format!("unknown format '{other}'; known: {known}")));
            }
        };
        work::run(py, report, None, |progress| table::write_index(searcher.index(), &path, format, codes, progress))
    }
}
