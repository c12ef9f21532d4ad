//! Counts and sizes of an index.

use std::path::Path;

use super::schema::FEATURE;
use super::stats::columnar;
use super::{CODES, Inner, Keep, MODEL, STORE, Store};
use crate::model::CodeShape;
use crate::{Error, Result};

/// What an index holds, and what it weighs.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Info {
    /// Version of the directory.
    pub format: u32,
    /// Documents that can be found.
    pub documents: usize,
    /// Deleted documents whose place is not yet taken back.
    pub deleted: usize,
    /// Segments.
    pub segments: usize,
    /// Fingerprint of the model.
    pub model: String,
    /// Shape of the codes.
    pub shape: CodeShape,
    /// What is kept of a document.
    pub store: Store,
    /// How features are kept.
    pub keep: Keep,
    /// Bytes on disk.
    pub bytes: Bytes,
}

/// Bytes on disk, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Bytes {
    /// Ids, sequence and codes, and attributes as columns.
    pub columns: u64,
    /// Texts, labels and attributes as they came.
    pub documents: u64,
    /// The inverted index: ids, and the words of texts, labels and attributes.
    pub terms: u64,
    /// Packed codes.
    pub codes: u64,
    /// Features kept for the second stage of a search, which lie among the columns.
    pub features: u64,
    /// The model.
    pub model: u64,
    /// Everything else.
    pub other: u64,
}

impl Bytes {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.columns + self.documents + self.terms + self.codes + self.features + self.model + self.other
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
    for reader in readers {
        let columns = columnar(reader)?.read_columns(FEATURE).map_err(Error::io(inner.dir.join(STORE)))?;
        bytes.features += columns.iter().map(|column| column.num_bytes().get_bytes()).sum::<u64>();
    }
    // Less than the files they lie in, unless a merge took one away in between.
    bytes.columns = bytes.columns.saturating_sub(bytes.features);
    Ok(Info {
        format: inner.manifest.format(),
        documents: snapshot.searcher().num_docs() as usize,
        deleted: readers.iter().map(|r| r.num_deleted_docs() as usize).sum(),
        segments: readers.len(),
        model: inner.model.fingerprint().to_string(),
        shape: inner.model.shape(),
        store: inner.manifest.store(),
        keep: inner.manifest.keep(),
        bytes,
    })
}

fn each_file(dir: &Path, mut take: impl FnMut(&str, u64)) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let entry = entry.map_err(Error::io(dir))?;
        // A file may go between the listing and the look: merges run.
        if let Ok(data) = entry.metadata()
            && data.is_file()
        {
            take(&entry.file_name().to_string_lossy(), data.len());
        }
    }
    Ok(())
}
