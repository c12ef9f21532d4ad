//! One file a command.

mod build;
mod encode;
mod encoder;
mod eval;
mod index;
mod paper;
mod search;
mod train;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::CommandFactory;
use micpq::corpus::{Corpus, Document};
use micpq::encoder::{Features, pull};
use micpq::model::Model;
use micpq::{Error, Watch};

use crate::args::{Args, Command};
use crate::progress::Progress;

/// Documents read, encoded and added at a time: enough to keep every core busy, small beside any memory.
const CHUNK: usize = 4096;

pub fn run(args: Args) -> Result<()> {
    let (json, progress) = (args.json, Progress::new(args.quiet));
    match args.command {
        Command::Build(a) => build::run(a, json, &progress),
        Command::Search(a) => search::run(a, json, &progress),
        Command::Eval(a) => eval::run(a, json, &progress),
        Command::Encode(a) => encode::run(a, json, &progress),
        Command::Train(a) => train::run(a, json, &progress),
        Command::Paper(a) => paper::run(a, json, args.quiet, &progress),
        Command::Index(command) => index::run(command, json, &progress),
        Command::Encoder(command) => encoder::run(command, json, &progress),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "micpq", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// Sets the size of the one thread pool everything runs on.
pub fn set_threads(threads: usize) -> Result<()> {
    if threads == 0 {
        return Err(Error::config("--threads takes 1 or more").into());
    }
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    Ok(())
}

/// Documents of a corpus, [`CHUNK`] at a time.
fn chunks(corpus: &mut Corpus) -> impl Iterator<Item = micpq::Result<Vec<Document>>> + '_ {
    std::iter::from_fn(move || {
        let chunk: micpq::Result<Vec<Document>> = corpus.by_ref().take(CHUNK).collect();
        match &chunk {
            Ok(documents) if documents.is_empty() => None,
            _ => Some(chunk),
        }
    })
}

/// The encoder a model was trained with, fetched where it is a registered one that is not here.
fn features_of(model: &Model, watch: &dyn Watch) -> Result<Features> {
    let Some(config) = &model.config.features else {
        return Err(Error::config(
            "this model was trained on vectors the user brought: it cannot encode text, give it vectors instead",
        )
        .into());
    };
    if config.terms.is_none() {
        pull::locate_or_pull(&config.encoder, watch)?;
    }
    Ok(Features::of_model(config)?)
}

/// Where vectors, views and checkpoints are kept between runs.
fn cache_dir(given: Option<&Path>) -> Result<PathBuf> {
    let dir = match given {
        Some(dir) => dir.to_path_buf(),
        None => pull::models_dir()?.parent().map_or_else(|| PathBuf::from("cache"), Path::to_path_buf).join("train"),
    };
    std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
    Ok(dir)
}

/// Rows that were passed over, with the first reasons.
fn tell_skipped(corpus: &Corpus, watch: &dyn Watch) {
    let skipped = corpus.skipped();
    if skipped.count() > 0 {
        for reason in skipped.reasons() {
            watch.note(&format!("skipped: {reason}"));
        }
        watch.note(&format!("{} rows skipped in all", skipped.count()));
    }
}
