//! Shards: reading a corpus in parts, one open shard, and a search over shards of other processes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::chunk::ChunkConfig;
use engine::corpus::{Corpus, DocId, Document, Value};
use engine::encoder::Role;
use engine::index::{Facet, Index as Engine, IndexConfig, IndexWriter};
use engine::internal::to_wire;
use engine::language::LanguageChoice;
use engine::query::{Delivery, Hit, Query, RemoteSearcher, Replies, ShardView, entropy};
use engine::shards::{ShardManifest, checksum};
use engine::topics::{CodewordDocuments, CodewordTerms, LatestTerms};
use engine::{Error, Matrix, NoProgress, Progress, Result};
use numpy::{PyArray2, PyReadonlyArray2};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use serde_json::json;

use crate::answers::{answer, doc_id};
use crate::arrays::{floats, rows};
use crate::documents::{Documents, dictionary, sequences_of};
use crate::errors::raise;
use crate::index::{query, recall_config};
use crate::model::Model;
use crate::options;
use crate::work;

/// The number of the shard that owns an id.
#[pyfunction]
pub fn route(id: &Bound<'_, PyAny>, shards: usize) -> PyResult<usize> {
    Ok(ShardManifest::route(&doc_id(id)?, shards.max(1)))
}

/// The manifest of a folder of shards, as JSON.
#[pyfunction]
pub fn read_manifest(dir: PathBuf) -> PyResult<String> {
    let manifest = ShardManifest::read(&dir).map_err(raise)?;
    Ok(serde_json::to_string(&manifest).expect("plain data has a JSON form"))
}

/// Checks a manifest and puts it in place in one step.
#[pyfunction]
pub fn write_manifest(dir: PathBuf, json: &str) -> PyResult<()> {
    let manifest: ShardManifest = serde_json::from_str(json)
        .map_err(|e| raise(Error::config(format!("this is not a manifest of shards: {e}"))))?;
    manifest.write(&dir).map_err(raise)
}

/// The insertion sequence after those of the last commit of a shard. The shard is not opened for it.
#[pyfunction]
pub fn next_sequence_at(py: Python<'_>, dir: PathBuf) -> PyResult<u64> {
    work::quick(py, None, |_| engine::index::next_sequence_at(&dir))
}

/// One line per damage of one shard of a folder, and whether its files are those of the build.
#[pyfunction]
pub fn verify_shard(py: Python<'_>, out: PathBuf, number: usize) -> PyResult<(Vec<String>, bool)> {
    work::run(py, None, None, |progress| {
        let manifest = ShardManifest::read(&out)?;
        let Some(shard) = manifest.shards.get(number) else {
            return Err(Error::config(format!(
                "there is no shard {number}; the manifest lists {}",
                manifest.shards.len()
            )));
        };
        let is_as_built = checksum(&out.join(&shard.name)).is_ok_and(|found| found == shard.checksum);
        let problems = manifest.verify_shard(&out, number, progress)?;
        Ok((problems.iter().map(ToString::to_string).collect(), is_as_built))
    })
}

/// A corpus that is read part by part.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct CorpusParts {
    reading: Mutex<Reading>,
    size: usize,
    // Whether a document may have several chunks, and so takes several insertion sequences.
    split: bool,
}

struct Reading {
    corpus: Corpus,
    sequence: u64,
    // Why nothing more can be read. It is raised after the part before it.
    failed: Option<Error>,
}

#[pymethods]
impl CorpusParts {
    /// Rows and insertion sequences are numbered from `first_row` and `first_sequence`. A part has `size` documents.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        options: &str,
        first_row: u64,
        first_sequence: u64,
        size: usize,
        split: bool,
    ) -> PyResult<Self> {
        let config = options::corpus(options).map_err(raise)?;
        let mut corpus = work::waiting(py, || Corpus::open(&path, &config))?;
        corpus.number_rows_from(first_row);
        corpus.keep_all_reasons();
        let reading = Mutex::new(Reading { corpus, sequence: first_sequence, failed: None });
        Ok(CorpusParts { reading, size: size.max(1), split })
    }

    /// `(documents as bytes, insertion sequences, reasons of bad rows)`, or None after the last part. A part depends on
    /// the corpus and the size alone. Where the corpus cannot be read any further, what was read comes first, then the error.
    #[allow(clippy::type_complexity)]
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Vec<u64>, Vec<String>)>> {
        let part = work::waiting(py, || {
            let mut reading = self.reading.lock();
            let (mut documents, mut sequences) = (Vec::<Document>::new(), Vec::new());
            while documents.len() < self.size && reading.failed.is_none() {
                match reading.corpus.next() {
                    Some(Ok(document)) => documents.push(document),
                    Some(Err(error)) => {
                        reading.failed = Some(error);
                        break;
                    }
                    None => break,
                }
                sequences.push(reading.sequence);
                reading.sequence += sequences_of(documents.last().expect("just added"), self.split);
            }
            let reasons = reading.corpus.take_reasons();
            if documents.is_empty() && reasons.is_empty() {
                return reading.failed.take().map_or(Ok(None), Err);
            }
            Ok(Some((to_wire(documents.iter()), sequences, reasons)))
        })?;
        Ok(part.map(|(documents, sequences, reasons)| (PyBytes::new(py, &documents), sequences, reasons)))
    }
}

/// The language of keyword search for texts: the given one, or with "auto" that of most texts.
#[pyfunction]
pub fn language_of(choice: &str, texts: Vec<String>) -> PyResult<String> {
    let choice: LanguageChoice = choice.parse().map_err(raise)?;
    Ok(choice.of(texts.iter().map(String::as_str)).to_string())
}

/// Texts that `language_of` looks at.
#[pyfunction]
pub fn language_sample() -> usize {
    LanguageChoice::SAMPLE
}

/// Time after which a view that no request came back for is dropped.
const MAX_VIEW_AGE: Duration = Duration::from_secs(60);

/// One open shard: its commits as requests see them, and its writer once something is written.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct Shard {
    index: Engine,
    writer: Mutex<Option<IndexWriter>>,
    // By the token of a request, with its last call.
    views: Mutex<HashMap<String, (Instant, Arc<ShardView>)>>,
}

impl Shard {
    fn opened(index: Engine) -> Shard {
        Shard { index, writer: Mutex::default(), views: Mutex::default() }
    }

    /// Runs work with the writer. After an error the changes since the last commit are discarded.
    fn write<T: Send>(&self, py: Python<'_>, change: impl FnOnce(&mut IndexWriter) -> Result<T> + Send) -> PyResult<T> {
        work::run(py, None, None, |_| {
            let mut writer = self.writer.lock();
            if writer.is_none() {
                *writer = Some(self.index.writer()?);
            }
            let open = writer.as_mut().expect("opened above");
            let done = change(open);
            if done.is_err() {
                open.rollback()?;
            }
            done
        })
    }

    /// The view of a request, which its first call takes.
    fn view(&self, token: &str) -> Result<Arc<ShardView>> {
        let mut views = self.views.lock();
        views.retain(|_, (used, _)| used.elapsed() < MAX_VIEW_AGE);
        if let Some((used, view)) = views.get_mut(token) {
            *used = Instant::now();
            return Ok(view.clone());
        }
        let view = Arc::new(ShardView::new(&self.index)?);
        views.insert(token.to_owned(), (Instant::now(), view.clone()));
        Ok(view)
    }
}

#[pymethods]
impl Shard {
    #[staticmethod]
    fn open(py: Python<'_>, dir: PathBuf) -> PyResult<Self> {
        work::run(py, None, None, |progress| Ok(Shard::opened(Engine::open(&dir, progress)?)))
    }

    #[staticmethod]
    fn create(py: Python<'_>, dir: PathBuf, model: &Model, options: &str) -> PyResult<Self> {
        let options = options::Training::parse(options).map_err(raise)?;
        work::run(py, None, None, |progress| {
            let sizes = |chunk: ChunkConfig| chunk.sizes(model.embedder(progress)?);
            let config = IndexConfig {
                store: options.store,
                rerank_vectors: options.rerank_vectors,
                language: options.language.of(std::iter::empty()),
                chunk: options.chunk.map(sizes).transpose()?,
                replace: options.replace,
                metrics: model.metrics_value().clone(),
            };
            Ok(Shard::opened(Engine::create(&dir, model.engine(), config)?))
        })
    }

    /// An empty shard that stores what the index at `like` stores.
    #[staticmethod]
    fn create_like(py: Python<'_>, dir: PathBuf, model: &Model, like: PathBuf) -> PyResult<Self> {
        work::run(py, None, None, |progress| {
            let like = Engine::open(&like, progress)?;
            let config = IndexConfig {
                store: like.store(),
                rerank_vectors: like.rerank_vectors(),
                language: like.language(),
                chunk: like.chunk(),
                replace: false,
                metrics: model.metrics_value().clone(),
            };
            Ok(Shard::opened(Engine::create(&dir, model.engine(), config)?))
        })
    }

    fn __len__(&self) -> usize {
        self.index.len()
    }

    #[getter]
    fn store(&self) -> String {
        self.index.store().to_string()
    }

    #[getter]
    fn rerank_vectors(&self) -> String {
        self.index.rerank_vectors().to_string()
    }

    #[getter]
    fn language(&self) -> String {
        self.index.language().to_string()
    }

    /// How texts are split, as "TOKENS:OVERLAP", or None.
    #[getter]
    fn chunk(&self) -> Option<String> {
        self.index.chunk().map(|sizes| sizes.to_string())
    }

    /// The insertion sequence after those of the last commit of any process.
    fn next_sequence(&self, py: Python<'_>) -> PyResult<u64> {
        work::quick(py, None, |_| self.index.next_sequence())
    }

    /// Takes the writer's lock, which is held until `close`.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        self.write(py, |_| Ok(()))
    }

    /// Adds documents with their embeddings and insertion sequences. `chunks` are the byte ranges of each document's chunks,
    /// which have an embedding each; None where every document is one. They are visible after `commit`.
    #[pyo3(signature = (documents, vectors, sequences, chunks=None))]
    fn add(
        &self,
        py: Python<'_>,
        documents: &Documents,
        vectors: PyReadonlyArray2<'_, f32>,
        sequences: Vec<u64>,
        chunks: Option<Vec<Vec<(usize, usize)>>>,
    ) -> PyResult<()> {
        let (values, width) = floats(&vectors)?;
        let documents = documents.in_memory().map_err(raise)?;
        self.write(py, |writer| {
            let embeddings = Matrix::from_vec(width, values.to_vec());
            let Some(chunks) = chunks.filter(|chunks| chunks.len() == documents.len()) else {
                return writer.add_embeddings_at(documents, &embeddings, &sequences);
            };
            let ranges = |chunks: Vec<(usize, usize)>| chunks.into_iter().map(|(start, end)| start..end).collect();
            let split: Vec<_> = documents.iter().zip(chunks.into_iter().map(ranges)).collect();
            writer.add_chunks_at(&split, &embeddings, &sequences)
        })
    }

    /// Deletes documents by id and by filter, and returns how many there were. `known` are the attributes of all shards.
    fn delete(
        &self,
        py: Python<'_>,
        ids: Vec<Bound<'_, PyAny>>,
        filter: Option<String>,
        known: Option<BTreeSet<String>>,
    ) -> PyResult<usize> {
        let ids: Vec<DocId> = ids.iter().map(doc_id).collect::<PyResult<_>>()?;
        self.write(py, |writer| {
            let mut deleted = 0;
            for id in &ids {
                deleted += usize::from(writer.delete(id)?);
            }
            if let Some(filter) = &filter {
                deleted += writer.delete_where_in_shard(filter, known.as_ref())?;
            }
            Ok(deleted)
        })
    }

    /// Copies the documents that shard `number` of `shards` owns from another index.
    fn copy_from(&self, py: Python<'_>, dir: PathBuf, number: usize, shards: usize) -> PyResult<usize> {
        self.write(py, |writer| {
            let from = Engine::open(&dir, &NoProgress)?;
            writer.copy_from(&from, |id| ShardManifest::route(id, shards.max(1)) == number, &NoProgress)
        })
    }

    /// Makes all changes durable and visible, and returns the number of documents.
    fn commit(&self, py: Python<'_>) -> PyResult<usize> {
        self.write(py, |writer| writer.commit(&NoProgress))
    }

    /// Ends the writer, after its merges. What is not committed is discarded.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        work::run(py, None, None, |progress| self.writer.lock().take().map_or(Ok(()), |writer| writer.close(progress)))
    }

    fn reload(&self, py: Python<'_>) -> PyResult<bool> {
        work::quick(py, None, |progress| self.index.reload(progress))
    }

    /// The document with this id, with its insertion sequence.
    fn get<'py>(&self, py: Python<'py>, id: &Bound<'_, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let id = doc_id(id)?;
        let Some(record) = work::quick(py, None, |_| self.index.get(&id))? else { return Ok(None) };
        let found = dictionary(py, &record)?;
        found.set_item("sequence", record.sequence)?;
        Ok(Some(found))
    }

    /// Counts and sizes as JSON text.
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        let info = work::quick(py, None, |_| self.index.info())?;
        Ok(serde_json::to_string(&info).expect("plain data has a JSON form"))
    }

    /// Names of the attributes that documents have.
    fn attributes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        work::quick(py, None, |_| self.index.attributes())
    }

    /// Counts the documents, or those that match a filter. `known` are the attributes of all shards.
    fn count(&self, py: Python<'_>, filter: Option<String>, known: Option<BTreeSet<String>>) -> PyResult<usize> {
        work::quick(py, None, |_| match filter {
            None => Ok(self.index.len()),
            Some(filter) => self.index.count_in_shard(&filter, known.as_ref()),
        })
    }

    /// Answers one call of a request. All calls with one token see the same commit.
    fn call(&self, py: Python<'_>, token: &str, call: &str) -> PyResult<String> {
        work::quick(py, None, |_| self.view(token)?.answer(call))
    }

    /// Drops the view of a request.
    fn release(&self, token: &str) {
        self.views.lock().remove(token);
    }
}

/// A model that searches shards of other processes. `deliver` gets a list of calls `(shard or None for all, call)` and returns a
/// dictionary of replies by shard.
#[pyclass(frozen, module = "micpq._micpq")]
pub struct Merger {
    searcher: RemoteSearcher,
    terms: LatestTerms,
}

/// Delivers calls to shards.
type Deliver<'a> = &'a (dyn Fn(Vec<Delivery>) -> Result<Replies> + Sync);

/// Runs work that calls shards. An exception of `deliver` is raised as it is.
fn delivering<T: Send>(
    py: Python<'_>,
    deliver: Py<PyAny>,
    work: impl FnOnce(Deliver<'_>, &dyn Progress) -> Result<T> + Send,
) -> PyResult<T> {
    let raised: Mutex<Option<PyErr>> = Mutex::default();
    let done = work::quick(py, None, |progress| {
        let deliver = |calls: Vec<Delivery>| -> Result<Replies> {
            let replies = Python::attach(|py| deliver.call1(py, (calls,)).and_then(|replies| replies.extract(py)));
            replies.map_err(|problem| {
                *raised.lock() = Some(problem);
                Error::Interrupted
            })
        };
        work(&deliver, progress)
    });
    match raised.into_inner() {
        Some(problem) => Err(problem),
        None => done,
    }
}

#[pymethods]
impl Merger {
    #[new]
    fn new(model: &Model, rerank_vectors: &str, store: &str, language: &str) -> PyResult<Self> {
        let parsed = || Ok((rerank_vectors.parse()?, store.parse()?, language.parse()?));
        let (rerank_vectors, store, language) = parsed().map_err(raise)?;
        let searcher = RemoteSearcher::new(model.engine().clone(), rerank_vectors, store, language);
        Ok(Merger { searcher, terms: LatestTerms::default() })
    }

    /// Answers queries like `Index.search`.
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: Vec<(Bound<'py, PyAny>, Option<String>)>,
        options: &str,
        deliver: Py<PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let (config, encoder) = options::search(options).map_err(raise)?;
        let queries: Vec<Query> =
            queries.into_iter().map(|(like, keywords)| query(&like, keywords, encoder)).collect::<PyResult<_>>()?;
        let (answers, terms) = delivering(py, deliver, |deliver, progress| {
            let answers = self.searcher.search(deliver, &queries, &config, progress)?;
            Ok((answers, config.explain.then(|| self.terms(deliver)).transpose()?))
        })?;
        answers.iter().map(|a| answer(py, a, terms.as_deref())).collect()
    }

    /// The attributes with their most frequent values, as JSON text.
    fn facets(&self, py: Python<'_>, filter: Option<String>, values: usize, deliver: Py<PyAny>) -> PyResult<String> {
        let facets =
            delivering(py, deliver, |deliver, _| self.searcher.survey(deliver).facets(filter.as_deref(), values))?;
        let value = |name: &str, (value, count): &(Value, u64)| json!({ "value": value, "count": count, "filter": Facet::filter(name, value) });
        let facet = |facet: &Facet| {
            json!({
                "name": facet.name, "documents": facet.documents, "distinct": facet.distinct,
                "least": facet.range.map(|range| range.0), "greatest": facet.range.map(|range| range.1),
                "values": facet.values.iter().map(|one| value(&facet.name, one)).collect::<Vec<_>>(),
            })
        };
        Ok(facets.iter().map(facet).collect::<serde_json::Value>().to_string())
    }

    /// Documents per codeword of each codebook, and the entropy of each codebook.
    fn usage(&self, py: Python<'_>, deliver: Py<PyAny>) -> PyResult<(Vec<Vec<u64>>, Vec<f64>)> {
        let usage = delivering(py, deliver, |deliver, _| self.searcher.survey(deliver).usage())?;
        let entropy = entropy(&usage);
        Ok((usage, entropy))
    }

    /// The documents of a codeword, and the terms that characterise them, as JSON text.
    fn codeword(
        &self,
        py: Python<'_>,
        codebook: usize,
        codeword: usize,
        documents: usize,
        deliver: Py<PyAny>,
    ) -> PyResult<String> {
        let found = delivering(py, deliver, |deliver, _| {
            CodewordDocuments::of_shards(&self.searcher.survey(deliver), (codebook, codeword), documents)
        })?;
        let document = |hit: &Hit| {
            let attributes: BTreeMap<_, _> = hit.attributes.iter().map(|(name, value)| (name, value)).collect();
            json!({ "id": hit.id, "text": hit.text, "labels": hit.labels, "attributes": attributes })
        };
        let documents: Vec<_> = found.documents.iter().map(document).collect();
        Ok(json!({ "documents": documents, "marks": found.marks }).to_string())
    }

    /// Recall like `Index.recall`.
    #[pyo3(signature = (deliver, queries=None, k=None, windows=None, rerank=None))]
    fn recall(
        &self,
        py: Python<'_>,
        deliver: Py<PyAny>,
        queries: Option<usize>,
        k: Option<usize>,
        windows: Option<usize>,
        rerank: Option<usize>,
    ) -> PyResult<String> {
        let config = recall_config(queries, k, windows, rerank);
        let report = delivering(py, deliver, |deliver, _| self.searcher.recall(deliver, &config))?;
        Ok(serde_json::to_string(&report).expect("plain data has a JSON form"))
    }

    /// Embeddings `[texts, inputs]` of texts or of their token ids, and the number of tokens.
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<String>,
        tokens: Option<Vec<Vec<u32>>>,
        of_queries: bool,
    ) -> PyResult<(Bound<'py, PyArray2<f32>>, usize)> {
        let role = if of_queries { Role::Query } else { Role::Document };
        let (embeddings, tokens) = work::run(py, None, None, |progress| {
            let embedder = self.searcher.embedder(progress)?;
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let tokens = tokens.map_or_else(|| embedder.tokens_of(role, &texts), Ok)?;
            let count = tokens.iter().map(Vec::len).sum();
            Ok((embedder.encode_tokens_of(role, &tokens, progress)?, count))
        })?;
        Ok((rows(py, embeddings.as_slice().to_vec(), self.searcher.model().inputs())?, tokens))
    }
}

impl Merger {
    /// What the codewords of all shards stand for.
    fn terms(&self, deliver: Deliver<'_>) -> Result<Arc<CodewordTerms>> {
        let survey = self.searcher.survey(deliver);
        let documents = survey.documents()?;
        match self.terms.of(documents) {
            Some(terms) => Ok(terms),
            None => {
                let terms = CodewordTerms::of_shards(&survey, self.searcher.language(), CodewordTerms::TERMS)?;
                Ok(self.terms.set(documents, terms))
            }
        }
    }
}
