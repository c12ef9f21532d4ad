//! One file a command.

mod build;
mod cache;
mod encode;
mod encoder;
mod eval;
pub mod export;
pub mod import;
mod index;
mod paper;
pub mod score;
mod search;
mod serve;
mod train;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Result;
use clap::CommandFactory;
use micpq::corpus::{Corpus, Document};
use micpq::encoder::{Device, Features, pull};
use micpq::model::Model;
use micpq::{Error, Watch};

use crate::args::{Args, Command, ComputingArgs};
use crate::progress::Progress;

/// Documents read, encoded and added at a time: enough to keep every core busy, small beside any memory.
const CHUNK: usize = 4096;

/// What `--device` said: one answer for the whole process, as the number of threads is.
static DEVICE: OnceLock<Device> = OnceLock::new();

/// Where this process encodes.
pub fn device() -> Device {
    DEVICE.get().copied().unwrap_or_default()
}

pub fn run(args: Args) -> Result<()> {
    DEVICE.get_or_init(|| args.device);
    let (json, progress) = (args.json, Progress::new(args.quiet));
    match args.command {
        Command::Build(a) => build::run(a, json, &progress),
        Command::Search(a) => search::run(a, json, &progress),
        Command::Serve(a) => serve::run(a, json, &progress),
        Command::Eval(a) => eval::run(a, json, &progress),
        Command::Encode(a) => encode::run(a, json, &progress),
        Command::Train(a) => train::run(a, json, &progress),
        Command::Paper(a) => paper::run(a, json, args.quiet, &progress),
        Command::Index(command) => index::run(command, json, &progress),
        Command::Export(a) => export::run(a, json, &progress),
        Command::Import(a) => import::run(a, json, &progress),
        Command::Score(a) => score::run(a, json, &progress),
        Command::Encoder(command) => encoder::run(command, json, &progress),
        Command::Cache(command) => cache::run(command, json),
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

/// The encoder a model was trained with, fetched where it is a registered one that is not here, for many texts.
fn features_of(model: &Model, computing: ComputingArgs, watch: &dyn Watch) -> Result<Features> {
    Ok(Features::for_model(model, computing.precision, watch)?.on(device(), watch)?)
}

/// The same for a query now and then: a GPU takes seconds to prepare, so it is taken only where it is named.
fn features_for_queries(model: &Model, computing: ComputingArgs, watch: &dyn Watch) -> Result<Features> {
    let device = if device() == Device::Auto { Device::Cpu } else { device() };
    Ok(Features::for_model(model, computing.precision, watch)?.on(device, watch)?)
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
