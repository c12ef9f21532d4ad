//! A new model for a served index, trained on its own documents while it is searched and written to.
//!
//! The new index is filled beside the old one from one commit of it. Ids that are changed meanwhile are remembered by
//! the writer's thread, which at the end brings exactly those up to date and puts the new index in the place of the old:
//! between two writes, so that none is lost.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use micpq::corpus::{DocId, Document};
use micpq::disk::Making;
use micpq::encoder::{Features, pull};
use micpq::index::{Index, IndexConfig, IndexWriter, Record};
use micpq::{Error, Matrix, Result, Silent, Watch};
use train::TrainConfig;
use train::dataset::Dataset;
use train::metrics::Labels;

use crate::hosted::Hosted;
use crate::jobs::Job;
use crate::server::Server;
use crate::writes::{Changed, Hand};

/// Documents encoded at a time: few, so that queries in between do not wait for long.
const CHUNK: usize = 256;

/// Rate of dropout in the encoder's views: the authors'.
const DROPOUT: f64 = 0.3;

/// Trains, fills, swaps. Returns what is worth telling.
pub fn run(
    server: &Arc<Server>,
    hosted: &Arc<Hosted>,
    config: TrainConfig,
    sample: usize,
    job: &Job,
) -> Result<serde_json::Value> {
    let lost = |_| Error::Interrupted;
    hosted.writes.wait_alone(Hand::remember).map_err(lost)?;
    let done = prepare(server, hosted, config, sample, job).and_then(|(making, result)| {
        job.stage("swapping", None);
        let (server, own) = (server.clone(), hosted.clone());
        let swapped = hosted.writes.wait_alone(move |hand| swap(&server, &own, hand, making)).map_err(lost)?;
        swapped.map(|()| result)
    });
    if done.is_err() {
        let _ = hosted.writes.wait_alone(|hand| drop(hand.recall()));
    }
    done
}

fn prepare(
    server: &Server,
    hosted: &Hosted,
    config: TrainConfig,
    sample: usize,
    job: &Job,
) -> Result<(Making, serde_json::Value)> {
    let searcher = hosted.searcher();
    let features = searcher.features(job)?.clone();
    let index = searcher.index();
    let walk = index.walk()?;

    let count = walk.len().min(sample);
    job.stage("reading", Some(count as u64));
    let mut texts = Vec::with_capacity(count);
    for i in 0..count {
        if job.interrupted() {
            return Err(Error::Interrupted);
        }
        texts.push(walk.get(i * walk.len() / count)?.text.unwrap_or_default());
        job.advance(1);
    }
    let corpus = Dataset { labels: Labels::several(vec![Vec::new(); texts.len()]), seen: walk.len(), texts };
    let cache = cache(server)?;
    let run = train::job::Job {
        views: config.views,
        dropout: DROPOUT,
        features: &features,
        corpus: &corpus,
        validation: None,
        test: None,
        cache: &cache,
    };
    let (trained, (clean, encoded_tokens)) = run.fit(&config, job)?;
    if trained.interrupted {
        return Err(Error::Interrupted);
    }

    let making = Making::begin(hosted.dir())?;
    let settings = IndexConfig {
        store: index.store(),
        keep: index.keep(),
        metrics: trained.metrics.clone(),
        ..IndexConfig::default()
    };
    let new = Index::create(&making.path(), &trained.model, settings)?;
    job.stage("indexing", Some(walk.len() as u64));
    // Training has encoded its sample already.
    let known: HashMap<&Vec<u32>, usize> = encoded_tokens.iter().zip(0..).collect();
    let mut writer = new.writer()?;
    for start in (0..walk.len()).step_by(CHUNK) {
        if job.interrupted() {
            return Err(Error::Interrupted);
        }
        let range = start..(start + CHUNK).min(walk.len());
        let records = range.map(|i| walk.get(i)).collect::<Result<Vec<Record>>>()?;
        let texts: Vec<&str> = records.iter().map(|r| r.text.as_deref().unwrap_or_default()).collect();
        let tokens = features.tokens(&texts)?;
        let fresh: Vec<&Vec<u32>> = tokens.iter().filter(|t| !known.contains_key(t)).collect();
        let encoded = features.encode_tokens(&fresh, None, &Silent)?;
        let mut encoded = encoded.iter();
        let mut vectors = Matrix::zeros(tokens.len(), features.width());
        for (i, sequence) in tokens.iter().enumerate() {
            let row = match known.get(sequence) {
                Some(&row) => clean.row(row),
                None => encoded.next().expect("a vector for every new sequence"),
            };
            vectors.row_mut(i).copy_from_slice(row);
        }
        let documents: Vec<Document> = records.into_iter().map(document).collect();
        writer.add_features(&documents, &vectors)?;
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
    Ok((making, result))
}

fn document(record: Record) -> Document {
    Document {
        id: record.id,
        text: record.text.unwrap_or_default(),
        labels: record.labels,
        attributes: record.attributes,
    }
}

/// Where vectors, views and checkpoints are kept between runs.
fn cache(server: &Server) -> Result<PathBuf> {
    let dir = match &server.config.cache {
        Some(dir) => dir.clone(),
        None => pull::models_dir()?.parent().map_or_else(|| PathBuf::from("cache"), Path::to_path_buf).join("train"),
    };
    std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
    Ok(dir)
}

/// On the writer's thread: brings what was changed up to date and puts the new index in the place of the old.
fn swap(server: &Server, hosted: &Hosted, hand: &mut Hand, making: Making) -> Result<()> {
    let changed = hand.recall();
    let old = hand.index();
    let new = Index::open(&making.path(), &Silent)?;
    let mut writer = new.writer()?;
    catch_up(&old, hand.searcher().features(&Silent)?, &mut writer, changed)?;
    writer.commit(&Silent)?;
    writer.close(&Silent)?;
    drop(new);
    hand.release();
    making.finish()?;
    hosted.reopen(&server.encoders)
}

/// A document that was changed is taken as the old index has it now; filters are applied before, for whatever they hit
/// and was changed again is among those.
fn catch_up(old: &Index, features: &Features, writer: &mut IndexWriter, changed: Vec<Changed>) -> Result<()> {
    let mut ids: BTreeSet<DocId> = BTreeSet::new();
    for change in changed {
        match change {
            Changed::Ids(some) => ids.extend(some),
            Changed::Where(filter) => match writer.delete_where(&filter) {
                // An attribute that came only later: no document here has it.
                Ok(_) | Err(Error::Config(_)) => {}
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
        let texts: Vec<&str> = documents.iter().map(|d| d.text.as_str()).collect();
        writer.add_features(&documents, &features.encode(&texts, &Silent)?)?;
    }
    Ok(())
}
