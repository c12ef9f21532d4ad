//! Trains a new model for a served index on its own documents. Searches and writes continue meanwhile.
//!
//! A new index is filled from one commit of the old one. The writer thread records the ids that change meanwhile. At the
//! end it updates exactly those and replaces the old index between two writes, so that no write is lost.
//!
//! A document without text came as a vector: the new index takes its stored rerank vector. The index does not record which
//! documents came with both text and vector: their texts are encoded.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use engine::corpus::{DocId, Document};
use engine::disk::{Replaces, StagedDirectory};
use engine::encoder::Embedder;
use engine::index::{Index, IndexConfig, IndexWriter, Record, Walk};
use engine::{Error, Matrix, NoProgress, Progress, Result};
use micpq::BuildConfig;
use micpq::methods::training::Task;
use micpq::train::dataset::Dataset;
use micpq::train::metrics::Labels;

use crate::hosted::Hosted;
use crate::jobs::Job;
use crate::server::Server;
use crate::writes::{Changed, WriterThread};

/// Documents encoded at a time. Few, so that queries in between do not wait long.
const CHUNK: usize = 256;

/// Refuses an index with documents that have neither text nor stored vector. Reads every document if the index stores no
/// vectors.
pub fn check(hosted: &Hosted) -> Result<()> {
    hosted.index().expect_one_code_per_document("training a served index")?;
    hosted.index().walk()?.expect_texts_or_vectors()
}

/// Trains a model, fills a new index, and replaces the old one. Returns the result of the job.
pub fn run(server: &Arc<Server>, hosted: &Arc<Hosted>, config: BuildConfig, job: &Job) -> Result<serde_json::Value> {
    let interrupted = |_| Error::Interrupted;
    hosted.writes.run_exclusive_blocking(WriterThread::record_changes).map_err(interrupted)?;
    let done = prepare(hosted, config, job).and_then(|(staged, result)| {
        job.stage("swapping", None);
        let (server, own) = (server.clone(), hosted.clone());
        let swapped = hosted.writes.run_exclusive_blocking(move |writer| swap(&server, &own, writer, staged));
        let swapped = swapped.map_err(interrupted)?;
        swapped.map(|()| result)
    });
    if done.is_err() {
        let _ = hosted.writes.run_exclusive_blocking(|writer| drop(writer.take_changes()));
    }
    done
}

fn prepare(hosted: &Hosted, config: BuildConfig, job: &Job) -> Result<(StagedDirectory, serde_json::Value)> {
    let searcher = hosted.searcher();
    let embedder = searcher.embedder(job)?.clone();
    let index = searcher.index();
    let walk = index.walk()?;
    // Documents may have been added since the request.
    walk.expect_texts_or_vectors()?;

    let corpus = sample(&walk, config.sample, job)?;
    let count = corpus.texts.len();
    let cache = config.cache_dir()?;
    let task = Task {
        embedder: Some(&embedder),
        clean: embedder.config().clean,
        dropout: config.dropout,
        corpus: &corpus,
        validation: None,
        test: None,
        cache: &cache,
    };
    let (trained, (clean, encoded_tokens)) = task.fit(&config.training, job)?;
    if trained.interrupted {
        return Err(Error::Interrupted);
    }

    let staged = StagedDirectory::begin(hosted.dir(), Replaces::Index)?;
    let settings = IndexConfig {
        store: index.store(),
        rerank_vectors: index.rerank_vectors(),
        language: index.language(),
        metrics: trained.metrics.clone(),
        ..IndexConfig::default()
    };
    let new = Index::create(&staged.path(), &trained.model, settings)?;
    job.stage("indexing", Some(walk.len() as u64));
    // Training has already encoded its sample.
    let encoded_rows: HashMap<&Vec<u32>, usize> = encoded_tokens.iter().zip(0..).collect();
    let mut writer = new.writer()?;
    for start in (0..walk.len()).step_by(CHUNK) {
        if job.interrupted() {
            return Err(Error::Interrupted);
        }
        let range = start..(start + CHUNK).min(walk.len());
        let documents = range.clone().map(|i| walk.get(i).map(document)).collect::<Result<Vec<Document>>>()?;
        let encode = |texts: &[&str]| -> Result<Matrix> {
            let tokens = embedder.tokens(texts)?;
            let fresh: Vec<&Vec<u32>> = tokens.iter().filter(|t| !encoded_rows.contains_key(t)).collect();
            let encoded = embedder.encode_tokens(&fresh, None, &NoProgress)?;
            let mut encoded = encoded.iter();
            let mut vectors = Matrix::zeros(tokens.len(), embedder.width());
            for (i, sequence) in tokens.iter().enumerate() {
                let row = match encoded_rows.get(sequence) {
                    Some(&row) => clean.row(row),
                    None => encoded.next().expect("a vector for every new sequence"),
                };
                vectors.row_mut(i).copy_from_slice(row);
            }
            Ok(vectors)
        };
        let vectors = vectors_of(&documents, embedder.width(), encode, |i| walk.vector(start + i))?;
        writer.add_embeddings(&documents, &vectors)?;
        job.advance(documents.len() as u64);
    }
    writer.commit(job)?;
    writer.close(job)?;
    let result = serde_json::json!({
        "fingerprint": trained.model.fingerprint(),
        "bits": trained.model.shape().bits(),
        "documents": walk.len(),
        "training_documents": count,
        "selection": trained.metrics["selection"],
        "best": trained.metrics["best"],
        "best_epoch": trained.metrics["best_epoch"],
    });
    Ok((staged, result))
}

/// Texts of at most `most` documents, evenly spread over the index.
fn sample(walk: &Walk, most: usize, job: &Job) -> Result<Dataset> {
    let count = walk.len().min(most);
    job.stage("reading", Some(count as u64));
    let (mut texts, mut positions) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for i in 0..count {
        if job.interrupted() {
            return Err(Error::Interrupted);
        }
        let position = i * walk.len() / count;
        let record = walk.get(position)?;
        if !record.is_without_text() {
            texts.extend(record.text);
            positions.push(position);
        }
        job.advance(1);
    }
    if texts.len() < 2 {
        return Err(Error::config(format!(
            "training compares texts and needs at least 2; only {} of {count} documents have a text",
            texts.len()
        )));
    }
    let labels = Labels::several(vec![Vec::new(); texts.len()]);
    Ok(Dataset { texts, labels, positions, seen: walk.len() })
}

fn document(record: Record) -> Document {
    Document {
        id: record.id,
        text: record.text.unwrap_or_default(),
        labels: record.labels,
        attributes: record.attributes,
    }
}

/// One vector per document: the embedding of its text, or the stored vector if it has no text.
fn vectors_of(
    documents: &[Document],
    width: usize,
    encode: impl FnOnce(&[&str]) -> Result<Matrix>,
    stored: impl Fn(usize) -> Result<Option<Vec<f32>>>,
) -> Result<Matrix> {
    let has_text = |document: &&Document| !document.text.trim().is_empty();
    let texts: Vec<&str> = documents.iter().filter(has_text).map(|document| document.text.as_str()).collect();
    let encoded = if texts.is_empty() { Matrix::default() } else { encode(&texts)? };
    let mut encoded = encoded.iter();
    let mut rows = Vec::with_capacity(documents.len() * width);
    for (i, document) in documents.iter().enumerate() {
        if has_text(&document) {
            rows.extend_from_slice(encoded.next().expect("a vector for every text"));
            continue;
        }
        let vector = stored(i)?;
        rows.extend(vector.ok_or_else(|| {
            Error::input(&document.id, "has no text and no stored vector; add it again with its text")
        })?);
    }
    Ok(Matrix::from_vec(width, rows))
}

/// Updates the changed documents and replaces the old index. Runs on the writer thread.
fn swap(server: &Server, hosted: &Hosted, old_writer: &mut WriterThread, staged: StagedDirectory) -> Result<()> {
    let changed = old_writer.take_changes();
    let old = old_writer.index();
    let new = Index::open(&staged.path(), &NoProgress)?;
    let mut writer = new.writer()?;
    catch_up(&old, old_writer.searcher().embedder(&NoProgress)?, &mut writer, changed)?;
    writer.commit(&NoProgress)?;
    writer.close(&NoProgress)?;
    drop(new);
    old_writer.release();
    staged.finish()?;
    server.metrics.forget_recall(hosted.name());
    hosted.reopen(&server.encoders)
}

/// Copies changed documents from the old index. Deletions by filter come first: a document that was added again later is
/// among the changed ids.
fn catch_up(old: &Index, embedder: &Embedder, writer: &mut IndexWriter, changed: Vec<Changed>) -> Result<()> {
    let mut ids: BTreeSet<DocId> = BTreeSet::new();
    for change in changed {
        match change {
            Changed::Ids(some) => ids.extend(some),
            Changed::Where(filter) => match writer.delete_where(&filter) {
                // The filter names an attribute that only newer documents have: there is nothing to delete.
                Ok(_) | Err(Error::FilterSyntax { .. }) => {}
                Err(error) => return Err(error),
            },
        }
    }
    let ids: Vec<DocId> = ids.into_iter().collect();
    for chunk in ids.chunks(CHUNK) {
        let mut documents = Vec::new();
        for id in chunk {
            match old.get(id)? {
                Some(record) => documents.push(document(record)),
                None => drop(writer.delete(id)?),
            }
        }
        let encode = |texts: &[&str]| embedder.encode(texts, &NoProgress);
        let vectors = vectors_of(&documents, embedder.width(), encode, |i| old.vector(&documents[i].id))?;
        writer.add_embeddings(&documents, &vectors)?;
    }
    Ok(())
}
