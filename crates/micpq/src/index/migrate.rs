//! An index made again under another model, from the texts it keeps.

use std::path::Path;

use super::snapshot::Record;
use super::walk::in_order;
use super::writer::{self, Payload};
use super::{Index, IndexConfig, STORE, Store, tantivy_error};
use crate::corpus::Document;
use crate::disk::{self, Making};
use crate::model::Model;
use crate::{Error, Matrix, Result, Watch};

/// How an index is made again.
#[derive(Clone, Debug)]
pub struct MigrateConfig {
    /// What is known of the new model, kept beside it.
    pub metrics: serde_json::Value,
    /// Documents a commit: so much an interrupted migration does again.
    pub commit_every: usize,
}

impl Default for MigrateConfig {
    fn default() -> Self {
        MigrateConfig { metrics: serde_json::Value::Null, commit_every: 20_000 }
    }
}

impl MigrateConfig {
    /// Refuses what cannot be.
    pub fn validate(&self) -> Result<()> {
        if self.commit_every == 0 {
            return Err(Error::config("0 documents a commit; take at least one"));
        }
        Ok(())
    }
}

/// What a migration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Migrated {
    /// Documents in the new index.
    pub documents: u64,
    /// Those of them that an interrupted migration had already made.
    pub resumed: u64,
}

/// Documents read and encoded at a time.
const CHUNK: usize = 4096;

/// What is being made of what: a migration is resumed only where this is the same.
#[derive(PartialEq, serde::Serialize, serde::Deserialize)]
struct Task {
    /// Model and commit of the old index.
    from: (String, Payload),
    /// The new model.
    to: String,
}

/// Encodes every document of the index at `dir` again with `model` and puts the new index in the place of the old one, in
/// one step: ids, texts, labels, attributes and their order stay. Until then the old one can be searched, and is not
/// written to. `encode` turns texts into the model's features.
///
/// Interrupted, it leaves what it has in a hidden folder beside the index; the same call goes on from there, and begins
/// again where the index was changed in between.
pub fn migrate(
    dir: &Path,
    model: &Model,
    encode: &mut dyn FnMut(&[&str]) -> Result<Matrix>,
    config: &MigrateConfig,
    watch: &dyn Watch,
) -> Result<Migrated> {
    config.validate()?;
    let old = Index::open(dir, watch)?;
    if old.store() != Store::All {
        return Err(Error::format(
            dir,
            "keeps no texts (it was made with --store codes), so there is nothing to encode again; build it from its corpus with the new model",
        ));
    }
    if old.model().fingerprint() == model.fingerprint() {
        return Err(Error::config(format!(
            "{} is of model {} already; there is nothing to migrate",
            dir.display(),
            model.fingerprint()
        )));
    }
    let _lock = writer::lock(&old.inner.tantivy, dir)?;
    old.inner.reload(watch)?;
    let making = Making::resume(dir, "migration")?;
    match fill(&old, &making, model, encode, config, watch) {
        Ok(migrated) => {
            making.finish()?;
            Ok(migrated)
        }
        Err(error) => {
            making.keep();
            Err(error)
        }
    }
}

fn fill(
    old: &Index,
    making: &Making,
    model: &Model,
    encode: &mut dyn FnMut(&[&str]) -> Result<Matrix>,
    config: &MigrateConfig,
    watch: &dyn Watch,
) -> Result<Migrated> {
    let new = begin(old, making, model, config, watch)?;
    let resumed = new.len() as u64;
    let snapshot = old.inner.sound()?;
    let total = snapshot.searcher().num_docs();
    watch.stage("encoding again", Some(total));
    watch.advance(resumed);
    let mut writer = new.writer()?;
    let mut addresses = in_order(&snapshot).skip(resumed as usize);
    let mut pending = 0;
    loop {
        let records = addresses.by_ref().take(CHUNK).map(|address| old.inner.record(&snapshot, address));
        let records: Vec<Record> = records.collect::<Result<_>>()?;
        if records.is_empty() {
            break;
        }
        let texts: Vec<&str> = records.iter().map(|r| r.text.as_deref().unwrap_or("")).collect();
        let features = match encode(&texts) {
            Err(Error::Interrupted) => {
                writer.commit(watch)?;
                return Err(Error::Interrupted);
            }
            other => other?,
        };
        pending += records.len();
        let document = |record: Record| {
            let Record { id, text, labels, attributes, .. } = record;
            Document { id, text: text.unwrap_or_default(), labels, attributes }
        };
        let documents: Vec<Document> = records.into_iter().map(document).collect();
        writer.add_features(&documents, &features)?;
        if pending >= config.commit_every || watch.interrupted() {
            writer.commit(watch)?;
            pending = 0;
        }
        if watch.interrupted() {
            return Err(Error::Interrupted);
        }
    }
    writer.commit(watch)?;
    writer.close(watch)?;
    if new.len() as u64 != total {
        return Err(Error::format(
            making.folder(),
            format!("has {} documents after all {total} were encoded; remove it and migrate again", new.len()),
        ));
    }
    Ok(Migrated { documents: total, resumed })
}

/// The new index: what an interrupted migration of the same task has left, or an empty one.
fn begin(old: &Index, making: &Making, model: &Model, config: &MigrateConfig, watch: &dyn Watch) -> Result<Index> {
    let store = old.dir().join(STORE);
    let metas = old.inner.tantivy.load_metas().map_err(|e| tantivy_error(&store, e))?;
    let payload = metas.payload.as_deref().map(|text| Payload::read(&store, text)).transpose()?;
    let payload = payload.unwrap_or(Payload { next: 0, opstamp: metas.opstamp });
    let task = Task { from: (old.model().fingerprint().into(), payload), to: model.fingerprint().into() };
    let note = making.folder().join("task.json");
    let left: Option<Task> = std::fs::read(&note).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if left.as_ref() == Some(&task)
        && let Ok(index) = Index::open(&making.path(), watch)
        && index.expect_model(model).is_ok()
    {
        return Ok(index);
    }
    if making.path().exists() {
        std::fs::remove_dir_all(making.path()).map_err(Error::io(making.path()))?;
    }
    // What is kept of a feature is kept of the new one.
    let metrics = config.metrics.clone();
    let settings = IndexConfig { store: Store::All, keep: old.keep(), metrics, ..IndexConfig::default() };
    let index = Index::create(&making.path(), model, settings)?;
    disk::replace(&note, &serde_json::to_vec(&task).expect("plain data has a JSON form"))?;
    Ok(index)
}
