//! `micpq index backup|backups|restore` with an object store.

use std::path::Path;

use anyhow::Result;
use backups::{BackedUp, BackupConfig, BackupInfo};
use engine::Error;
use engine::index::Copied;

use crate::args::CopyArgs;
use crate::output;
use crate::progress::TerminalProgress;

pub fn backup(
    index: &Path,
    url: &str,
    keep: Option<usize>,
    copy: &CopyArgs,
    json: bool,
    progress: &TerminalProgress,
) -> Result<()> {
    if copy.replace || copy.copy {
        return Err(Error::config("an object store has many backups; leave --replace and --copy out").into());
    }
    let done = backups::backup(index, url, BackupConfig { keep }, progress)?;
    progress.finish();
    if json {
        return output::json(&done);
    }
    print_done(url, &done)
}

fn print_done(url: &str, done: &BackedUp) -> Result<()> {
    output::line(format!(
        "{url}: backup {}, {} documents, {} in {} files; uploaded {} in {} files",
        done.name,
        done.documents,
        output::bytes(done.bytes),
        done.files,
        output::bytes(done.uploaded_bytes),
        done.uploaded_files
    ))?;
    done.removed.iter().try_for_each(|name| output::line(format!("removed {name}")))
}

pub fn list(url: &str, json: bool) -> Result<()> {
    let backups = backups::list(url)?;
    if json {
        return backups.iter().try_for_each(output::json);
    }
    let row = |backup: &BackupInfo| {
        vec![
            backup.name.clone(),
            backup.time.clone(),
            backup.documents.to_string(),
            backup.files.to_string(),
            output::bytes(backup.bytes),
        ]
    };
    let rows: Vec<Vec<String>> = backups.iter().map(row).collect();
    output::table(&["backup", "time", "documents", "files", "size"], &rows)
}

pub fn restore(
    url: &str,
    name: Option<&str>,
    index: &Path,
    copy: &CopyArgs,
    progress: &TerminalProgress,
) -> Result<Copied> {
    if copy.copy {
        return Err(Error::config("an index from an object store has its own files; leave --copy out").into());
    }
    Ok(backups::restore(url, name, index, copy.replace, progress)?)
}
