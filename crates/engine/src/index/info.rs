//! Counts and sizes of an index.

use std::path::Path;

use super::schema::RERANK_VECTOR;
use super::stats::columnar;
use super::{CODES, Inner, MODEL, RerankVectors, STORE, Store, guarded_ours};
use crate::chunk::ChunkSizes;
use crate::language::Language;
use crate::model::CodeShape;
use crate::search::Memory;
use crate::{Error, Result};

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Info {
    /// Format version of the directory.
    pub format: u32,
    /// Documents that are not deleted.
    pub documents: usize,
    /// Chunks of these documents; `None` in an index without chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks: Option<usize>,
    /// How texts are split; `None` if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<ChunkSizes>,
    /// Language of keyword search.
    pub language: Language,
    /// Deleted documents (chunks, where there are chunks) that still take space.
    pub deleted: usize,
    pub segments: usize,
    /// Fingerprint of the model.
    pub model: String,
    pub shape: CodeShape,
    /// Whether a search can weigh the kind: the model has tables by kind.
    pub kinds: bool,
    /// Which parts of a document are stored.
    pub store: Store,
    /// How rerank vectors are stored.
    pub rerank_vectors: RerankVectors,
    pub bytes: Bytes,
    /// Bytes that searches read.
    pub memory: Memory,
    /// Those of them that are in this process's memory; `None` where the system does not tell.
    pub resident: Option<Memory>,
}

/// Bytes on disk, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Bytes {
    /// Ids, insertion sequence, codes and attributes as columns, without rerank vectors.
    pub columns: u64,
    /// Original texts, labels and attributes.
    pub documents: u64,
    /// The inverted index: ids, and the terms of texts, labels and attributes.
    pub terms: u64,
    pub codes: u64,
    /// Rerank vectors. They lie in the column files but are not counted in `columns`.
    pub rerank_vectors: u64,
    pub model: u64,
    pub other: u64,
}

impl Bytes {
    pub fn total(&self) -> u64 {
        self.columns + self.documents + self.terms + self.codes + self.rerank_vectors + self.model + self.other
    }
}

pub(super) fn of(inner: &Inner) -> Result<Info> {
    let snapshot = inner.snapshot();
    let readers = snapshot.searcher().segment_readers();
    let mut bytes = Bytes::default();
    each_file(&inner.dir.join(STORE), |name, size| match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("fast") => bytes.columns += size,
        Some("store") => bytes.documents += size,
        Some("term" | "idx" | "pos" | "fieldnorm") => bytes.terms += size,
        _ => bytes.other += size,
    })?;
    each_file(&inner.dir.join(CODES), |_, size| bytes.codes += size)?;
    each_file(&inner.dir.join(MODEL), |_, size| bytes.model += size)?;
    each_file(&inner.dir, |_, size| bytes.other += size)?;
    bytes.rerank_vectors = guarded_ours(&inner.dir.join(STORE), || {
        let mut vectors = 0;
        for reader in readers {
            let columns = columnar(reader)?.read_columns(RERANK_VECTOR).map_err(Error::io(inner.dir.join(STORE)))?;
            vectors += columns.iter().map(|column| column.num_bytes().get_bytes()).sum::<u64>();
        }
        Ok(vectors)
    })?;
    // Rerank vectors are part of the column files. The sum can still be smaller if a merge removed a file in between.
    bytes.columns = bytes.columns.saturating_sub(bytes.rerank_vectors);
    let mut memory = Memory { filters: inner.selections.bytes(), ..Memory::default() };
    snapshot.segments().iter().for_each(|segment| memory += segment.memory());
    let mut resident = Some(Memory { filters: inner.selections.bytes(), ..Memory::default() });
    for segment in snapshot.segments() {
        resident = resident.zip(segment.resident()).map(|(mut sum, own)| {
            sum += own;
            sum
        });
    }
    Ok(Info {
        format: inner.manifest.format(),
        documents: snapshot.documents(),
        chunks: snapshot.has_chunks().then(|| snapshot.searcher().num_docs() as usize),
        chunk: inner.manifest.layout().chunk,
        language: inner.manifest.layout().language,
        deleted: readers.iter().map(|r| r.num_deleted_docs() as usize).sum(),
        segments: readers.len(),
        model: inner.model.fingerprint().to_string(),
        shape: inner.model.shape(),
        kinds: inner.model.kinds().is_some(),
        store: inner.manifest.store(),
        rerank_vectors: inner.manifest.rerank_vectors(),
        bytes,
        memory,
        resident,
    })
}

fn each_file(dir: &Path, mut take: impl FnMut(&str, u64)) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let entry = entry.map_err(Error::io(dir))?;
        // A running merge may remove a file after it was listed.
        if let Ok(data) = entry.metadata()
            && data.is_file()
        {
            take(&entry.file_name().to_string_lossy(), data.len());
        }
    }
    Ok(())
}
