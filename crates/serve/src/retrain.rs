//! Trains a new model for a served index on its own documents. Searches and writes continue meanwhile.
//!
//! A new index is filled from one commit of the old one. The writer thread records the ids that change meanwhile. At the
//! end it updates exactly those and replaces the old index between two writes, so that no write is lost.
//!
//! A document without text came as a vector: the new index takes its stored rerank vector. The index does not record which
//! documents came with both text and vector: their texts are encoded.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use engine::corpus::{DocId, Document};
use engine::encoder::Embedder;
use engine::index::{Index, IndexConfig, IndexWriter};
use engine::internal::{Replaces, StagedDirectory};
use engine::language::LanguageChoice;
use engine::{Error, Matrix, NoProgress, Progress, Result};
use micpq::BuildConfig;
use micpq::pipeline::{FillConfig, ModelSource, Source, build_staged};

use crate::hosted::Hosted;
use crate::jobs::Job;
use crate::server::Server;
use crate::writes::{Changed, WriterThread};

/// Documents encoded at a time. Few, so that queries in between do not wait long.
const AT_ONCE: usize = 256;

/// Refuses an index with documents that have neither text nor stored vector. Reads every document if the index stores no
/// vectors.
pub fn check(hosted: &Hosted) -> Result<()> {
    hosted.index().expect_one_code_per_document("training a served index")?;
    hosted.index().walk()?.expect_texts_or_vectors()
}

/// Trains a model, fills a new index, and replaces the old one. Returns the result of the job.
pub fn run(server: &Arc<Server>, hosted: &Arc<Hosted>, config: BuildConfig, job: &Job) -> Result<serde_json::Value> {
    let interrupted = |_| Error::Interrupted;
    // Of the last training, if the index could not be opened at its end.
    hosted.follow(&server.encoders);
    hosted.writes.run_exclusive_blocking(WriterThread::record_changes).map_err(interrupted)??;
    let done = prepare(hosted, config, job).and_then(|(staged, result)| {
        job.stage("swapping", None);
        let (server, own) = (server.clone(), hosted.clone());
        let swapped = hosted.writes.run_exclusive_blocking(move |writer| {
            swap(&own, writer, staged)?;
            server.metrics.forget_recall(own.name());
            Ok::<_, Error>(reopen(&own, &server))
        });
        // The new index is in its place. If it cannot be opened now, the server tries again until it can.
        if let Err(error) = swapped.map_err(interrupted)?? {
            tracing::warn!(index = hosted.name(), %error, "the new index cannot be opened yet; the server tries again");
            job.note("the new index is in its place and cannot be opened yet; the server tries again");
        }
        Ok(result)
    });
    if done.is_err() {
        let _ = hosted.writes.run_exclusive_blocking(|writer| drop(writer.take_changes()));
    }
    done
}

/// Opens the index that has taken the place of the old one. What fails may succeed a moment later, for example when other
/// connections have given their descriptors back; until then every write would fail. So it is tried for about a second.
fn reopen(hosted: &Hosted, server: &Server) -> Result<()> {
    let mut pause = Duration::from_millis(1);
    loop {
        match hosted.reopen(&server.encoders) {
            Err(_) if pause < Duration::from_secs(1) => std::thread::sleep(pause),
            done => return done,
        }
        pause *= 2;
    }
}

fn prepare(hosted: &Hosted, config: BuildConfig, job: &Job) -> Result<(StagedDirectory, serde_json::Value)> {
    let searcher = hosted.searcher();
    let (embedder, index) = (searcher.embedder(job)?.clone(), searcher.index());
    let walk = index.walk()?;
    // Documents may have been added since the request.
    walk.expect_texts_or_vectors()?;
    let config = BuildConfig {
        index: IndexConfig { store: index.store(), rerank_vectors: index.rerank_vectors(), ..IndexConfig::default() },
        language: LanguageChoice::Given(index.language()),
        fill: FillConfig { at_once: AT_ONCE, ..config.fill },
        // The job "recall" measures it.
        measure_recall: false,
        ..config
    };
    let staged = StagedDirectory::begin(hosted.dir(), Replaces::Index)?;
    let built = build_staged(Source::Index(&walk), &staged.path(), ModelSource::TrainWith(&embedder), &config, job)?;
    let new = Index::open(&staged.path(), job)?;
    let result = serde_json::json!({
        "fingerprint": new.model().fingerprint(),
        "bits": new.model().shape().bits(),
        "documents": walk.len(),
        "training_documents": built.trained_on,
        "selection": built.metrics["selection"],
        "best": built.metrics["best"],
        "best_epoch": built.metrics["best_epoch"],
    });
    Ok((staged, result))
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

/// Updates the changed documents and replaces the old index. Runs on the writer thread. After an error the old index is
/// still in its place.
fn swap(hosted: &Hosted, old_writer: &mut WriterThread, staged: StagedDirectory) -> Result<()> {
    let changed = old_writer.take_changes();
    let old = old_writer.index();
    if old.is_replaced()? {
        return Err(Error::Busy(format!("index {} was replaced during training; train it again", hosted.name())));
    }
    let new = Index::open(&staged.path(), &NoProgress)?;
    let mut writer = new.writer()?;
    catch_up(&old, old_writer.searcher().embedder(&NoProgress)?, &mut writer, changed)?;
    writer.commit(&NoProgress)?;
    writer.close(&NoProgress)?;
    engine::saved::carry(&old, &new)?;
    engine::topics::carry(&old, &new, &NoProgress)?;
    drop(new);
    old_writer.release();
    // No other program writes to the old index until the new one is in its place.
    let _lock = old.lock()?;
    if old.reload(&NoProgress)? {
        return Err(Error::Busy(format!(
            "another program wrote to index {} at the end of training; train it again",
            hosted.name()
        )));
    }
    staged.finish()
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
    for chunk in ids.chunks(AT_ONCE) {
        let mut documents: Vec<Document> = Vec::new();
        for id in chunk {
            match old.get(id)? {
                Some(record) => documents.push(record.into()),
                None => drop(writer.delete(id)?),
            }
        }
        let encode = |texts: &[&str]| embedder.encode(texts, &NoProgress);
        let vectors = vectors_of(&documents, embedder.width(), encode, |i| old.vector(&documents[i].id))?;
        writer.add_embeddings(&documents, &vectors)?;
    }
    Ok(())
}
