//! `micpq cache list|clear`: vectors, views and checkpoints that are kept between runs, and only ever spare time.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use micpq::Error;
use serde::Serialize;

use crate::args::CacheCommand;
use crate::output;

/// One thing kept: a file, or a folder of them.
#[derive(Serialize)]
struct Entry {
    name: String,
    #[serde(skip)]
    path: PathBuf,
    bytes: u64,
    files: usize,
    /// Days since anything in it was written.
    days: f64,
}

pub fn run(command: CacheCommand, json: bool) -> Result<()> {
    match command {
        CacheCommand::List { cache } => list(&super::cache_dir(cache.as_deref())?, json),
        CacheCommand::Clear { cache, older_than } => clear(&super::cache_dir(cache.as_deref())?, older_than, json),
    }
}

fn list(dir: &Path, json: bool) -> Result<()> {
    let entries = entries(dir)?;
    if json {
        return entries.iter().try_for_each(output::json);
    }
    if entries.is_empty() {
        return output::line(format!("{}: nothing is kept", dir.display()));
    }
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|e| vec![e.name.clone(), e.files.to_string(), output::bytes(e.bytes), format!("{:.1}", e.days)])
        .collect();
    output::table(&["kept", "files", "size", "days old"], &rows)?;
    output::line(format!("{} in {}", output::bytes(entries.iter().map(|e| e.bytes).sum()), dir.display()))
}

fn clear(dir: &Path, older_than: Option<f64>, json: bool) -> Result<()> {
    let least = older_than.unwrap_or(0.0);
    if !(least >= 0.0 && least.is_finite()) {
        return Err(Error::config(format!("--older-than takes a number of days, 0 or more, not {least}")).into());
    }
    let gone: Vec<Entry> = entries(dir)?.into_iter().filter(|e| e.days >= least).collect();
    for entry in &gone {
        let removed =
            if entry.path.is_dir() { std::fs::remove_dir_all(&entry.path) } else { std::fs::remove_file(&entry.path) };
        removed.map_err(Error::io(&entry.path))?;
    }
    let bytes = gone.iter().map(|e| e.bytes).sum();
    if json {
        return output::json(&serde_json::json!({ "removed": gone.len(), "bytes": bytes }));
    }
    output::line(format!("{} removed from {}", output::bytes(bytes), dir.display()))
}

/// Whether a name is one the trainer gives: whatever else lies there is another's, and stays.
fn ours(name: &str) -> bool {
    let named = |rest: &str| rest.starts_with("views-") || rest.starts_with("sample-") || rest.starts_with("clean");
    match name.split_once('-') {
        Some(("vectors", _)) => true,
        Some((prefix, rest)) => prefix.len() == 8 && prefix.bytes().all(|b| b.is_ascii_hexdigit()) && named(rest),
        None => name == "runs",
    }
}

/// What lies in the cache, largest first.
fn entries(dir: &Path) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    for found in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = found.map_err(Error::io(dir))?.path();
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        if !ours(&name) {
            continue;
        }
        let mut files = Vec::new();
        collect(&path, &mut files)?;
        let newest = files.iter().filter_map(|f| f.modified().ok()).max().unwrap_or_else(SystemTime::now);
        let age = newest.elapsed().unwrap_or(Duration::ZERO);
        all.push(Entry {
            name,
            bytes: files.iter().map(Metadata::len).sum(),
            files: files.len(),
            days: age.as_secs_f64() / 86_400.0,
            path,
        });
    }
    all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    Ok(all)
}

/// The files under a path. One that vanishes meanwhile (a training run tidies up) is not missed.
fn collect(path: &Path, files: &mut Vec<Metadata>) -> Result<()> {
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(path)(e).into()),
    };
    if found.is_dir() {
        for inner in std::fs::read_dir(path).map_err(Error::io(path))? {
            collect(&inner.map_err(Error::io(path))?.path(), files)?;
        }
    } else {
        files.push(found);
    }
    Ok(())
}
