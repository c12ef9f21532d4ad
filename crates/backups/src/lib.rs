//! Backups of indexes in an object store: a bucket of S3, or a folder.
//!
//! A place holds `files/`, each named by the SHA-256 of its bytes, and `backups/`, one manifest per backup that lists its files.
//! A file that two backups share is there once: segments of an index never change, so a backup uploads what is new since the
//! last one. [`backup`] uploads, [`list`] lists, [`restore`] makes an index of a backup again.
//!
//! Invariants: a manifest is written after all its files. A file is removed only if no manifest lists it. No byte becomes part
//! of an index before its file has the SHA-256 of its name.
//!
//! This program makes a backup in a folder, as it would in `s3://bucket/prefix`, and an index of it again:
//!
//! ```
//! use backups::{BackupConfig, backup, list, restore};
//! use engine::corpus::Document;
//! use engine::index::{Index, IndexConfig};
//! use engine::model::Model;
//! use engine::{Matrix, NoProgress};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("news.micpq");
//! let model = Model::load("../engine/tests/data/index-3/model".as_ref())?;
//! let index = Index::create(&path, &model, IndexConfig::default())?;
//! let mut writer = index.writer()?;
//! writer.add_embeddings(&[Document::new(1u64, "Oil rises")], &Matrix::from_vec(8, vec![0.5; 8]))?;
//! writer.commit(&NoProgress)?;
//!
//! let place = format!("file://{}", dir.path().join("backups").display());
//! let first = backup(&path, &place, BackupConfig::default(), &NoProgress)?;
//! assert_eq!((first.documents, first.uploaded_files), (1, first.files));
//!
//! // The second one uploads what is new since, and seven of them stay.
//! writer.add_embeddings(&[Document::new(2u64, "Tea falls")], &Matrix::from_vec(8, vec![-0.5; 8]))?;
//! writer.commit(&NoProgress)?;
//! let second = backup(&path, &place, BackupConfig { keep: Some(7) }, &NoProgress)?;
//! assert!(second.uploaded_files < second.files);
//! assert_eq!(list(&place)?.len(), 2);
//!
//! let again = dir.path().join("again.micpq");
//! restore(&place, Some(&first.name), &again, false, &NoProgress)?;
//! assert_eq!(Index::open(&again, &NoProgress)?.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connector;
mod manifest;
mod place;
mod retention;
mod transfer;

use std::path::Path;

use engine::index::{Claim, Copied, CopyConfig};
use engine::{Error, Progress, Result};
use serde::Serialize;

pub use manifest::{BackupFile, Manifest};
use place::Place;

/// How a backup is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupConfig {
    /// Backups of the index that stay, this one included; older ones are removed. `None`: all stay.
    pub keep: Option<usize>,
}

impl BackupConfig {
    pub fn validate(&self) -> Result<()> {
        match self.keep {
            Some(0) => Err(Error::option("keep", "is 0; keep at least the backup that is made")),
            _ => Ok(()),
        }
    }
}

/// The result of [`backup`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackedUp {
    pub name: String,
    pub documents: u64,
    pub files: usize,
    /// Total size of the files.
    pub bytes: u64,
    /// Files that earlier backups had not.
    pub uploaded_files: usize,
    pub uploaded_bytes: u64,
    /// Names of the backups that were removed.
    pub removed: Vec<String>,
}

/// A backup as [`list`] shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackupInfo {
    pub name: String,
    /// Name of the index directory, without `.micpq`.
    pub index: String,
    /// When it was made, in RFC 3339.
    pub time: String,
    pub documents: u64,
    pub files: usize,
    pub bytes: u64,
}

/// Uploads the last commit of an index. A writer may be open meanwhile; its later commits are not in the backup. Make one
/// backup of an index at a time.
pub fn backup(index: &Path, url: &str, config: BackupConfig, progress: &dyn Progress) -> Result<BackedUp> {
    config.validate()?;
    let place = Place::open(url)?;
    // Hard links keep the files of the commit, also if a merge removes them meanwhile.
    let claim = Claim::new(&engine::internal::beside(index, "-backup"), false)?;
    let copy = claim.folder().join("copy");
    let copied = engine::index::backup(index, &copy, CopyConfig::default(), progress)?;
    let manifest = Manifest::of(index, &copy, copied.documents, progress)?;
    let mut done = BackedUp {
        name: manifest.name.clone(),
        documents: manifest.documents,
        files: manifest.files.len(),
        bytes: manifest.bytes(),
        ..BackedUp::default()
    };
    place.run(async {
        (done.uploaded_files, done.uploaded_bytes) = transfer::upload(&place, &copy, &manifest, progress).await?;
        place.put(&place.manifest(&manifest.name), manifest.to_json().into_bytes()).await?;
        // The end of another backup may have removed a file that was there before.
        let (files, bytes) = transfer::upload(&place, &copy, &manifest, progress).await?;
        done.uploaded_files += files;
        done.uploaded_bytes += bytes;
        if let Some(keep) = config.keep {
            done.removed = retention::keep(&place, &manifest.index, keep, progress).await?;
        }
        Ok(done)
    })
}

/// The backups of a place, oldest first.
pub fn list(url: &str) -> Result<Vec<BackupInfo>> {
    let place = Place::open(url)?;
    let manifests = place.run(manifest::all(&place))?;
    let info = |manifest: Manifest| BackupInfo {
        bytes: manifest.bytes(),
        files: manifest.files.len(),
        name: manifest.name,
        index: manifest.index,
        time: manifest.time,
        documents: manifest.documents,
    };
    Ok(manifests.into_iter().map(info).collect())
}

/// Makes an index of a backup, after comparing every byte of it. `name` is a name of [`list`]; without one it is the newest
/// backup, if all are of one index.
pub fn restore(url: &str, name: Option<&str>, to: &Path, replace: bool, progress: &dyn Progress) -> Result<Copied> {
    // Refuses a path that is taken before anything is downloaded.
    drop(Claim::new(to, replace)?);
    let place = Place::open(url)?;
    let manifest = place.run(manifest::find(&place, name))?;
    let claim = Claim::new(&engine::internal::beside(to, "-restore"), false)?;
    let copy = claim.folder().join("copy");
    place.run(transfer::download(&place, &manifest, &copy, progress))?;
    engine::index::restore(&copy, to, CopyConfig { replace, own_files: false }, progress)
}
