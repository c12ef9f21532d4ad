//! `micpq dedup`: finds the duplicates of an index, and deletes or marks them.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use engine::Error;
use engine::corpus::DocId;
use engine::duplicates::{self, Deleted, Duplicates, DuplicatesConfig, Measure};
use engine::index::Index;

use crate::output;
use crate::progress::TerminalProgress;

#[derive(Args)]
#[command(after_help = "\
Examples:
  micpq dedup news.micpq
  micpq dedup news.micpq --by vectors --threshold 0.95 --report duplicates.jsonl
  micpq dedup news.micpq --mark copy_of      # then: search --filter \"NOT copy_of:*\"
  micpq dedup news.micpq --by text --delete

A group is represented by the document that was added first; it is never deleted.")]
pub struct Dedup {
    /// Index directory
    pub index: PathBuf,
    /// What decides: text (equal texts), words (Jaccard similarity of word pairs: copies that were edited) or vectors (cosine of
    /// the stored vectors: also other words for the same). Default: words, or vectors in an index without texts
    #[arg(long, value_name = "text|words|vectors")]
    pub by: Option<Measure>,
    /// Least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors
    #[arg(long, value_name = "0..1")]
    pub threshold: Option<f32>,
    /// Nearest documents by code that each document is compared with
    #[arg(long, value_name = "N", default_value_t = DuplicatesConfig::default().neighbours)]
    pub neighbours: usize,
    /// Write every group as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Groups shown on the terminal
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub show: usize,
    /// Delete the duplicates; the first document of each group stays
    #[arg(long, conflicts_with = "mark")]
    pub delete: bool,
    /// Give each duplicate this attribute, with the id of the document it repeats
    #[arg(long, value_name = "ATTRIBUTE")]
    pub mark: Option<String>,
}

pub fn run(args: Dedup, json: bool, progress: &TerminalProgress) -> Result<()> {
    dedup(args, json, progress).map_err(super::whole_or_nothing)
}

fn dedup(args: Dedup, json: bool, progress: &TerminalProgress) -> Result<()> {
    let index = Index::open(&args.index, progress)?;
    let config = DuplicatesConfig { by: args.by, threshold: args.threshold, neighbours: args.neighbours };
    let found = duplicates::find(&index, &config, progress)?;
    if let Some(path) = &args.report {
        write_report(path, &found)?;
    }
    let deleted = args.delete.then(|| duplicates::delete(&index, &found, progress)).transpose()?;
    let marked = args.mark.as_deref().map(|name| duplicates::mark(&index, &found, name, progress)).transpose()?;
    progress.finish();
    if json {
        let mut value = serde_json::to_value(&found)?;
        if let Some(deleted) = deleted {
            value["deleted"] = serde_json::to_value(deleted)?;
        }
        if let Some(marked) = marked {
            value["marked"] = marked.into();
        }
        return output::json(&value);
    }
    print(&index, &found, args.show)?;
    if let Some(Deleted { deleted, stale, documents }) = deleted {
        output::line(format!("{deleted} documents deleted; {documents} left"))?;
        if stale > 0 {
            output::line(format!(
                "{stale} stay: they, or what they repeat, were changed meanwhile; run the command again"
            ))?;
        }
    }
    if let (Some(marked), Some(name)) = (marked, &args.mark) {
        output::line(format!("attribute {name} written: {marked} documents changed"))?;
    }
    Ok(())
}

/// One line of JSON per group. The file appears when it is complete.
fn write_report(path: &Path, found: &Duplicates) -> Result<()> {
    let mut lines = Vec::new();
    for group in &found.groups {
        serde_json::to_writer(&mut lines, group)?;
        lines.write_all(b"\n").map_err(Error::io(path))?;
    }
    Ok(engine::internal::replace(path, &lines)?)
}

fn print(index: &Index, found: &Duplicates, show: usize) -> Result<()> {
    let duplicates = found.exact + found.near;
    let near = |what: &str| format!(", {} near ones by a {what} of {} or more", found.near, found.threshold);
    let decided = match found.measure {
        Measure::Text => String::new(),
        Measure::Words => near("Jaccard similarity of words"),
        Measure::Vectors => near("cosine"),
    };
    output::line(format!(
        "{duplicates} of {} documents repeat another, in {} groups: {} by equal texts{decided}",
        found.documents,
        found.groups.len(),
        found.exact
    ))?;
    // The largest groups first; equal ones stay in the order of insertion.
    let mut groups: Vec<_> = found.groups.iter().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.duplicates.len()));
    let mut rows = Vec::new();
    for group in groups.iter().take(show) {
        let least = group.duplicates.iter().map(|duplicate| duplicate.similarity).fold(1.0, f32::min);
        rows.push(vec![
            beginning(index, &group.representative)?,
            group.representative.to_string(),
            group.duplicates.len().to_string(),
            format!("{least:.3}"),
        ]);
    }
    if !rows.is_empty() {
        output::table(&["text", "id", "duplicates", "least similarity"], &rows)?;
    }
    if groups.len() > show {
        output::line(format!("... and {} more groups; --report FILE writes all of them", groups.len() - show))?;
    }
    Ok(())
}

/// The beginning of a document's text.
fn beginning(index: &Index, id: &DocId) -> Result<String> {
    let text = index.get(id)?.and_then(|record| record.text).unwrap_or_default();
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(60).collect())
}
