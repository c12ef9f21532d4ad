//! `micpq sync`: keeps an index like a folder.

use std::time::{Duration, Instant};

use anyhow::Result;
use engine::index::Index;
use engine::{Error, Progress};
use micpq::pipeline::{Looks, SyncConfig, Synced, sync_again};

use super::embedder_of;
use crate::args::Sync;
use crate::output;
use crate::progress::TerminalProgress;

/// How often a wait looks for Ctrl-C.
const STEP: Duration = Duration::from_millis(100);

pub fn run(args: Sync, json: bool, progress: &TerminalProgress) -> Result<()> {
    if args.commit_every == 0 {
        return Err(Error::config("--commit-every is 0; give 1 or more").into());
    }
    if let Some(seconds) = args.watch.filter(|s| !(0.1..=86_400.0).contains(s)) {
        return Err(Error::config(format!("--watch {seconds}: give 0.1 to 86400 seconds")).into());
    }
    if !args.folder.is_dir() {
        return Err(Error::input(args.folder.display(), "is no folder; sync takes a folder of documents").into());
    }
    if !args.index.exists() {
        return Err(Error::config(format!(
            "{} does not exist; build it first: micpq build {} -o {}",
            args.index.display(),
            args.folder.display(),
            args.index.display()
        ))
        .into());
    }
    let index = Index::open(&args.index, progress)?;
    let embedder = embedder_of(index.model(), args.computing, progress)?;
    let mut config = SyncConfig {
        corpus: args.source.config(),
        allow_empty: args.allow_empty,
        max_delete: args.max_delete,
        ..SyncConfig::default()
    };
    config.fill.commit_every = args.commit_every;
    let (mut looks, mut first, mut problem) = (Looks::default(), true, None);
    loop {
        match sync_again(&index, &embedder, &args.folder, &config, &mut looks, progress).map_err(in_flags) {
            Ok(synced) => {
                progress.finish();
                if first || problem.take().is_some() || synced.is_changed() || synced.filled.interrupted {
                    report(&index, &synced, json, progress)?;
                }
                if synced.filled.interrupted {
                    return Err(anyhow::Error::new(Error::Interrupted).context("run the same command to do the rest"));
                }
            }
            Err(error) if first || matches!(error, Error::Interrupted) => return Err(error.into()),
            // A disk that is away for a while does not end the watch. The same problem is told once.
            Err(error) => {
                progress.finish();
                let now = error.to_string();
                if problem.as_ref() != Some(&now) {
                    progress.warn(&format!("sync failed, the next look tries again: {now}"));
                }
                problem = Some(now);
            }
        }
        let Some(seconds) = args.watch else { return Ok(()) };
        first = false;
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < until {
            if progress.interrupted() {
                return Ok(());
            }
            std::thread::sleep(STEP);
        }
    }
}

/// A folder that lost files is no wrong usage, so its error is none of an option; but options help.
fn in_flags(error: Error) -> Error {
    match error {
        Error::Input { place, problem } => {
            Error::input(place, problem.replace("allow_empty", "--allow-empty").replace("max_delete", "--max-delete"))
        }
        other => other,
    }
}

fn report(index: &Index, synced: &Synced, json: bool, progress: &TerminalProgress) -> Result<()> {
    let Synced { added, replaced, deleted, unchanged, skipped, filled } = synced;
    filled.report_cut(index, progress);
    skipped.iter().for_each(|reason| progress.note(&format!("skipped: {reason}")));
    if json {
        return output::json(&serde_json::json!({
            "added": added, "replaced": replaced, "deleted": deleted, "unchanged": unchanged, "skipped": skipped.len(),
            "documents": index.len(),
        }));
    }
    output::line(format!(
        "files: {added} added, {replaced} replaced, {deleted} deleted, {unchanged} unchanged, {} skipped; {} documents in the index",
        skipped.len(),
        index.len()
    ))
}
