//! Migration: encodes an index again with another model, from its stored texts. Documents without text use their stored
//! vectors.

use std::path::Path;

use tantivy::DocAddress;

use super::payload::Payload;
use super::schema::Stored;
use super::snapshot::{Record, Snapshot};
use super::walk::in_order;
use super::writer;
use super::{Index, IndexConfig, STORE, Store, tantivy_error};
use crate::corpus::Document;
use crate::disk::{self, Replaces, StagedDirectory};
use crate::model::Model;
use crate::{Error, Matrix, Progress, Result};

#[derive(Clone, Debug)]
pub struct MigrateConfig {
    /// Metrics of the new model, stored beside it.
    pub metrics: serde_json::Value,
    /// Documents per commit. An interrupted migration repeats at most this many.
    pub commit_every: usize,
}

impl Default for MigrateConfig {
    fn default() -> Self {
        MigrateConfig { metrics: serde_json::Value::Null, commit_every: 20_000 }
    }
}

impl MigrateConfig {
    pub fn validate(&self) -> Result<()> {
        if self.commit_every == 0 {
            return Err(Error::config("0 documents a commit; take at least one"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Migrated {
    /// Documents in the new index.
    pub documents: u64,
    /// Documents that an earlier, interrupted migration had already encoded.
    pub resumed: u64,
}

/// Name of the folder that holds an interrupted migration.
pub(super) const FOLDER: &str = "migration";

/// Documents read and encoded at a time.
const CHUNK: usize = 4096;

/// Identifies a migration: an interrupted one is resumed only if this is equal.
#[derive(PartialEq, serde::Serialize, serde::Deserialize)]
struct Task {
    /// Model fingerprint and commit of the old index.
    from: (String, Payload),
    /// Fingerprint of the new model.
    to: String,
}

/// Encodes every document of the index at `dir` with `model` and replaces the old index by the new one in one step.
/// Ids, texts, labels, attributes and insertion order stay. Until then the old index can be searched, but not written
/// to. `encode` turns texts into embeddings for the model.
///
/// A document without text keeps its stored rerank vector. If there is none, or if the new model takes vectors of
/// another encoder, the migration is refused before any work. The index does not record which documents with a text
/// came with user vectors: their texts are encoded.
///
/// When interrupted, it leaves its work in a hidden folder beside the index. The same call resumes from there, or
/// starts over if the index has changed since.
pub fn migrate(
    dir: &Path,
    model: &Model,
    encode: &mut dyn FnMut(&[&str]) -> Result<Matrix>,
    config: &MigrateConfig,
    progress: &dyn Progress,
) -> Result<Migrated> {
    config.validate()?;
    let old = Index::open(dir, progress)?;
    if old.store() != Store::All {
        return Err(Error::format(
            dir,
            "keeps no texts (its option store is codes), so there is nothing to encode again; build it from its corpus with the new model",
        ));
    }
    if old.model().fingerprint() == model.fingerprint() {
        return Err(Error::config(format!(
            "{} is of model {} already; there is nothing to migrate",
            dir.display(),
            model.fingerprint()
        )));
    }
    let _lock = writer::lock(&old.inner.directory, dir)?;
    old.inner.reload(progress)?;
    // Damaged data would get a valid checksum in the new index.
    old.inner.snapshot().check_files()?;
    if same_vectors(old.model(), model) {
        old.walk()?.expect_texts_or_vectors()?;
    } else {
        old.walk()?.expect_texts("their stored vectors are not of the new model's encoder")?;
    }
    let staged = StagedDirectory::resume(dir, FOLDER, Replaces::Index)?;
    match fill(&old, &staged, model, encode, config, progress) {
        Ok(migrated) => {
            staged.finish()?;
            Ok(migrated)
        }
        Err(error) => {
            staged.keep();
            Err(error)
        }
    }
}

fn fill(
    old: &Index,
    staged: &StagedDirectory,
    model: &Model,
    encode: &mut dyn FnMut(&[&str]) -> Result<Matrix>,
    config: &MigrateConfig,
    progress: &dyn Progress,
) -> Result<Migrated> {
    let new = begin(old, staged, model, config, progress)?;
    let resumed = new.len() as u64;
    let snapshot = old.inner.sound()?;
    let total = snapshot.documents() as u64;
    progress.stage("encoding again", Some(total));
    progress.advance(resumed);
    let mut writer = new.writer()?;
    let is_first = |address: &DocAddress| snapshot.first(*address) == *address;
    let mut documents = in_order(&snapshot).filter(is_first).skip(resumed as usize);
    let mut pending = 0;
    loop {
        let firsts: Vec<DocAddress> = documents.by_ref().take(CHUNK.min(config.commit_every - pending)).collect();
        if firsts.is_empty() {
            break;
        }
        // The chunks stay as they are: the new model may have another encoder, but the passages are the user's.
        let mut chunks: Vec<(DocAddress, Stored)> = Vec::new();
        for address in firsts.iter().flat_map(|&first| snapshot.chunks(first)) {
            chunks.push((address, snapshot.stored(&old.inner.fields, address)?));
        }
        let embeddings = match embeddings_of(old, &snapshot, &chunks, model, encode) {
            Err(Error::Interrupted) => {
                writer.commit(progress)?;
                return Err(Error::Interrupted);
            }
            other => other?,
        };
        pending += firsts.len();
        let records = firsts.iter().map(|&first| old.inner.record(&snapshot, first).map(document));
        let records: Vec<Document> = records.collect::<Result<_>>()?;
        let mut chunks = chunks.into_iter().peekable();
        let mut ranges = |first: DocAddress| -> Vec<std::ops::Range<usize>> {
            let own = std::iter::from_fn(|| chunks.next_if(|(address, _)| snapshot.first(*address) == first));
            let range = |(address, stored): (DocAddress, Stored)| {
                let start = snapshot.chunk_place(address).map_or(0, |(_, start)| start as usize);
                start..start + stored.text.map_or(0, |text| text.len())
            };
            own.map(range).collect()
        };
        let split: Vec<_> = records.iter().zip(&firsts).map(|(record, &first)| (record, ranges(first))).collect();
        writer.add_chunks(&split, &embeddings)?;
        if pending >= config.commit_every || progress.interrupted() {
            writer.commit(progress)?;
            pending = 0;
        }
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
    }
    writer.commit(progress)?;
    writer.close(progress)?;
    if new.len() as u64 != total {
        return Err(Error::format(
            staged.folder(),
            format!("has {} documents after all {total} were encoded; remove it and migrate again", new.len()),
        ));
    }
    super::saved::carry(old, &new)?;
    super::topics::carry(old, &new, progress)?;
    Ok(Migrated { documents: total, resumed })
}

fn document(record: Record) -> Document {
    let Record { id, text, labels, attributes, .. } = record;
    Document { id, text: text.unwrap_or_default(), labels, attributes }
}

/// Embeddings of some documents or chunks: encoded from their texts, or the stored vectors of documents without text.
fn embeddings_of(
    old: &Index,
    snapshot: &Snapshot,
    rows: &[(DocAddress, Stored)],
    model: &Model,
    encode: &mut dyn FnMut(&[&str]) -> Result<Matrix>,
) -> Result<Matrix> {
    let text_of = |stored: &Stored| stored.text.as_deref().is_some_and(|text| !text.trim().is_empty());
    let texts = rows.iter().filter(|(_, stored)| text_of(stored)).filter_map(|(_, stored)| stored.text.as_deref());
    let texts: Vec<&str> = texts.collect();
    if texts.len() == rows.len() {
        return encode(&texts);
    }
    let encoded = if texts.is_empty() { Matrix::default() } else { encode(&texts)? };
    let mut encoded = encoded.iter();
    let mut values = Vec::with_capacity(rows.len() * model.inputs());
    for (address, stored) in rows {
        if text_of(stored) {
            values.extend_from_slice(encoded.next().expect("a vector for every text"));
            continue;
        }
        let vector = old.inner.vector(snapshot, *address)?;
        values.extend(vector.ok_or_else(|| {
            Error::format(old.dir(), "has a chunk without text and stores no vectors; build it from its corpus again")
        })?);
    }
    Ok(Matrix::from_vec(model.inputs(), values))
}

/// Whether both models take vectors of the same encoder. For user vectors, only the width can be compared.
pub(crate) fn same_vectors(old: &Model, new: &Model) -> bool {
    match (&old.config.embedding, &new.config.embedding) {
        (Some(old), Some(new)) => old.same_vectors(new),
        (None, None) => old.inputs() == new.inputs(),
        _ => false,
    }
}

/// Opens the unfinished index of an interrupted migration if it is the same task; otherwise creates an empty one.
fn begin(
    old: &Index,
    staged: &StagedDirectory,
    model: &Model,
    config: &MigrateConfig,
    progress: &dyn Progress,
) -> Result<Index> {
    let store = old.dir().join(STORE);
    let metas = old.inner.tantivy.load_metas().map_err(|e| tantivy_error(&store, e))?;
    let payload = metas.payload.as_deref().map(|text| Payload::read(&store, text)).transpose()?;
    let payload = payload.unwrap_or(Payload { next: 0, opstamp: metas.opstamp });
    let task = Task { from: (old.model().fingerprint().into(), payload), to: model.fingerprint().into() };
    let task_path = staged.folder().join("task.json");
    let previous: Option<Task> = std::fs::read(&task_path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if previous.as_ref() == Some(&task)
        && let Ok(index) = Index::open(&staged.path(), progress)
        && index.expect_model(model).is_ok()
    {
        return Ok(index);
    }
    if staged.path().exists() {
        std::fs::remove_dir_all(staged.path()).map_err(Error::io(staged.path()))?;
    }
    // The new index stores rerank vectors the same way as the old one.
    let metrics = config.metrics.clone();
    let settings = IndexConfig {
        store: Store::All,
        rerank_vectors: old.rerank_vectors(),
        language: old.language(),
        chunk: old.chunk(),
        metrics,
        replace: false,
    };
    let index = Index::create(&staged.path(), model, settings)?;
    disk::replace(&task_path, &serde_json::to_vec(&task).expect("plain data has a JSON form"))?;
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::super::RerankVectors;
    use super::super::tests::{clean, document, embeddings, model, scratch};
    use super::*;
    use crate::NoProgress;
    use crate::encoder::EmbeddingConfig;
    use crate::model::CodeShape;

    /// An embedding that depends only on the text, not on the model.
    fn embeddings_of_text(texts: &[&str]) -> Matrix {
        let row = |text: &&str| embeddings(1, u64::from(crc32fast::hash(text.as_bytes()))).as_slice().to_vec();
        Matrix::from_vec(4, texts.iter().flat_map(row).collect())
    }

    #[test]
    fn migration_keeps_stored_vectors_of_documents_without_text() {
        let dir = scratch();
        let (old_model, new_model) = (model(CodeShape::micpq(32).unwrap(), 1), model(CodeShape::micpq(64).unwrap(), 2));
        let add = |path: &Path, keep| {
            let index = Index::create(path, &old_model, IndexConfig { rerank_vectors: keep, ..IndexConfig::default() })
                .unwrap();
            // Every third document has a text; the others have user vectors.
            let text = |i: u64| if i.is_multiple_of(3) { document(i).text } else { " ".repeat(i as usize % 2) };
            let documents: Vec<Document> = (0..90).map(|i| Document { text: text(i), ..document(i) }).collect();
            let rows: Vec<f32> = documents
                .iter()
                .zip(0u64..)
                .flat_map(|(d, i)| {
                    let own =
                        if i.is_multiple_of(3) { embeddings_of_text(&[&d.text]) } else { embeddings(1, 1000 + i) };
                    own.as_slice().to_vec()
                })
                .collect();
            let vectors = Matrix::from_vec(4, rows);
            let mut writer = index.writer().unwrap();
            writer.add_embeddings(&documents, &vectors).unwrap();
            writer.commit(&NoProgress).unwrap();
            writer.close(&NoProgress).unwrap();
            vectors
        };
        for keep in [RerankVectors::Int8, RerankVectors::F16] {
            let path = dir.path().join(keep.to_string());
            let vectors = add(&path, keep);
            let mut encoded = 0;
            let mut encode = |texts: &[&str]| {
                assert!(texts.iter().all(|text| !text.trim().is_empty()), "an empty text is never encoded");
                encoded += texts.len();
                Ok(embeddings_of_text(texts))
            };
            migrate(&path, &new_model, &mut encode, &MigrateConfig::default(), &NoProgress).unwrap();
            assert_eq!(encoded, 30);
            let new = Index::open(&path, &NoProgress).unwrap();
            new.expect_model(&new_model).unwrap();
            let (walk, mut same) = (new.walk().unwrap(), 0);
            for i in 0..90 {
                let stored = walk.vector(i).unwrap().unwrap();
                let near = stored.iter().zip(vectors.row(i)).all(|(a, b)| (a - b).abs() < 0.02);
                assert!(near, "{keep}: document {i} has {stored:?}, it came with {:?}", vectors.row(i));
                same +=
                    usize::from(walk.get(i).unwrap().code == new_model.encode(&features_row(vectors.row(i))).unwrap());
            }
            // A vector close to the border between two codewords may change its codeword when it is rounded.
            assert!(same >= 85, "{keep}: {same} of 90 have the code of their vector");
            clean(&path);
        }
        // Without stored vectors, documents without text cannot be encoded: refused before any work.
        let path = dir.path().join("none");
        add(&path, RerankVectors::None);
        let mut never = |_: &[&str]| -> Result<Matrix> { panic!("nothing is encoded") };
        let said =
            migrate(&path, &new_model, &mut never, &MigrateConfig::default(), &NoProgress).unwrap_err().to_string();
        assert!(said.contains("60 of 90 documents have no text") && said.contains("stores no vectors"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is left behind");
        // The model cannot use vectors of another encoder.
        let mut other = model(CodeShape::micpq(32).unwrap(), 3);
        other.config.embedding = Some(encoder_named("another"));
        let path = dir.path().join("int8");
        let said = migrate(&path, &other, &mut never, &MigrateConfig::default(), &NoProgress).unwrap_err().to_string();
        assert!(said.contains("60 of 90") && said.contains("encoder"), "{said}");
        assert_eq!(Index::open(&path, &NoProgress).unwrap().len(), 90);
    }

    fn features_row(row: &[f32]) -> Matrix {
        Matrix::from_vec(row.len(), row.to_vec())
    }

    fn encoder_named(name: &str) -> EmbeddingConfig {
        serde_json::from_value(serde_json::json!({
            "encoder": name, "encoder_sha256": "0".repeat(64), "width": 4, "pooling": "mean", "max_tokens": 16, "clean": "none"
        }))
        .unwrap()
    }
}
