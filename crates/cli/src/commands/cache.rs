//! `micpq cache list|clear`: cached vectors, views and checkpoints. They only save time.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use engine::Error;
use serde::Serialize;

use crate::args::CacheCommand;
use crate::output;

/// A file of the cache, or a folder of files.
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
        CacheCommand::List { cache } => list(&micpq::pipeline::cache_dir(cache.as_deref())?, json),
        CacheCommand::Clear { cache, older_than } => {
            clear(&micpq::pipeline::cache_dir(cache.as_deref())?, older_than, json)
        }
    }
}

fn list(dir: &Path, json: bool) -> Result<()> {
    let entries = entries(dir)?;
    if json {
        return entries.iter().try_for_each(output::json);
    }
    if entries.is_empty() {
        return output::line(format!("{}: the cache is empty", dir.display()));
    }
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|e| vec![e.name.clone(), e.files.to_string(), output::bytes(e.bytes), format!("{:.1}", e.days)])
        .collect();
    output::table(&["entry", "files", "size", "days old"], &rows)?;
    output::line(format!("{} in {}", output::bytes(entries.iter().map(|e| e.bytes).sum()), dir.display()))
}

fn clear(dir: &Path, older_than: Option<f64>, json: bool) -> Result<()> {
    let min_days = older_than.unwrap_or(0.0);
    if !(min_days >= 0.0 && min_days.is_finite()) {
        return Err(Error::config(format!("--older-than is {min_days}; give a number of days, 0 or more")).into());
    }
    let removed: Vec<Entry> = entries(dir)?.into_iter().filter(|e| e.days >= min_days).collect();
    for entry in &removed {
        let result =
            if entry.path.is_dir() { std::fs::remove_dir_all(&entry.path) } else { std::fs::remove_file(&entry.path) };
        result.map_err(Error::io(&entry.path))?;
    }
    let bytes = removed.iter().map(|e| e.bytes).sum();
    if json {
        return output::json(&serde_json::json!({ "removed": removed.len(), "bytes": bytes }));
    }
    output::line(format!("{} removed from {}", output::bytes(bytes), dir.display()))
}

/// Whether the trainer writes files of this name. Every other file belongs to somebody else and is never removed.
fn is_cache_name(name: &str) -> bool {
    let is_known = |rest: &str| rest.starts_with("views-") || rest.starts_with("sample-") || rest.starts_with("clean");
    match name.split_once('-') {
        Some(("vectors", _)) => true,
        Some((prefix, rest)) => prefix.len() == 8 && prefix.bytes().all(|b| b.is_ascii_hexdigit()) && is_known(rest),
        None => name == "runs",
    }
}

/// The cache entries, largest first.
fn entries(dir: &Path) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        if !is_cache_name(&name) {
            continue;
        }
        let mut files = Vec::new();
        collect_files(&path, &mut files)?;
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

/// Collects the files below a path. A file may vanish meanwhile: a training run cleans up.
fn collect_files(path: &Path, files: &mut Vec<Metadata>) -> Result<()> {
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(path)(e).into()),
    };
    if metadata.is_dir() {
        for inner in std::fs::read_dir(path).map_err(Error::io(path))? {
            collect_files(&inner.map_err(Error::io(path))?.path(), files)?;
        }
    } else {
        files.push(metadata);
    }
    Ok(())
}
