//! An index of an earlier format as one of today's, with the same documents, codes and vectors.

use std::path::Path;

use super::manifest::FORMAT;
use super::writer;
use super::{Index, IndexConfig, MODEL};
use crate::disk::{Replaces, StagedDirectory};
use crate::model::FastEncoder;
use crate::{Error, Progress, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Upgraded {
    pub documents: u64,
    /// Format that the index had.
    pub from: u32,
    /// Format that it has now.
    pub to: u32,
}

/// Replaces the index at `dir` by one of today's format in one step. Nothing is encoded: documents keep their codes, vectors
/// and places in the order of insertion. Until then the old index can be searched, but not written to; an interrupted call
/// leaves it as it was.
pub fn upgrade(dir: &Path, progress: &dyn Progress) -> Result<Upgraded> {
    let old = Index::open(dir, progress)?;
    let from = old.inner.manifest.format();
    if from == FORMAT {
        return Err(Error::config(format!(
            "{} has format {FORMAT} already; there is nothing to upgrade",
            dir.display()
        )));
    }
    let _lock = writer::lock(&old.inner.directory, dir)?;
    old.inner.reload(progress)?;
    // Damaged data would get a valid checksum in the new index.
    old.inner.snapshot().check_files()?;
    let staged = StagedDirectory::begin(dir, Replaces::Index)?;
    let metrics = std::fs::read(dir.join(MODEL).join("metrics.json")).unwrap_or_default();
    let config = IndexConfig {
        store: old.store(),
        rerank_vectors: old.rerank_vectors(),
        language: old.language(),
        chunk: old.chunk(),
        metrics: serde_json::from_slice(&metrics).unwrap_or_default(),
        replace: false,
    };
    let new = Index::create(&staged.path(), old.model(), config)?;
    let fast = dir.join(MODEL).join(FastEncoder::FILE);
    if fast.exists() {
        std::fs::copy(&fast, staged.path().join(MODEL).join(FastEncoder::FILE)).map_err(Error::io(&fast))?;
    }
    progress.stage("copying documents", Some(old.len() as u64));
    let mut writer = new.writer()?;
    let documents = writer.copy_from(&old, |_| true, progress)? as u64;
    writer.commit(progress)?;
    writer.close(progress)?;
    super::saved::carry(&old, &new)?;
    drop(new);
    staged.finish()?;
    Ok(Upgraded { documents, from, to: FORMAT })
}
