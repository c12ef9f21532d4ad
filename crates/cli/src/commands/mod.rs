//! One file per command.

mod build;
mod cache;
pub mod dedup;
pub mod distill;
pub mod doctor;
mod encode;
mod encoder;
mod eval;
pub mod export;
pub mod import;
mod index;
pub mod judge;
pub mod mcp;
mod paper;
pub mod score;
mod search;
mod serve;
#[cfg_attr(not(feature = "object-store"), path = "unstored.rs")]
mod stored;
mod sync;
pub mod topics;
mod train;
pub mod watch;

use std::path::Path;
use std::sync::OnceLock;

use anyhow::Result;
use clap::CommandFactory;
use engine::corpus::{Corpus, Document};
use engine::encoder::{Device, Embedder};
use engine::model::Model;
use engine::{Error, Progress};
use micpq::pipeline::FillConfig;

use crate::args::{Args, Command, ComputingArgs};
use crate::progress::TerminalProgress;

/// The value of `--device`. It holds for the whole process, like the number of threads.
static DEVICE: OnceLock<Device> = OnceLock::new();

pub fn device() -> Device {
    DEVICE.get().copied().unwrap_or_default()
}

pub fn run(args: Args) -> Result<()> {
    DEVICE.get_or_init(|| args.device);
    let (json, progress) = (args.json, TerminalProgress::new(args.quiet));
    match args.command {
        Command::Build(a) => build::run(a, json, &progress),
        Command::Search(a) => search::run(a, json, &progress),
        Command::Sync(a) => sync::run(a, json, &progress),
        Command::Serve(a) => serve::run(a, json, &progress),
        Command::Mcp(a) => mcp::run(a, json, &progress),
        Command::Eval(a) => eval::run(a, json, &progress),
        Command::Encode(a) => encode::run(a, json, &progress),
        Command::Train(a) => train::run(a, json, &progress),
        Command::Paper(a) => paper::run(a, json, args.quiet, &progress),
        Command::Index(command) => index::run(command, json, &progress),
        Command::Topics(a) => topics::run(a, json, &progress),
        Command::Dedup(a) => dedup::run(a, json, &progress),
        Command::SavedQueries(command) => watch::run(command, json, &progress),
        Command::Distill(a) => distill::run(a, json, &progress),
        Command::Export(a) => export::run(a, json, &progress),
        Command::Import(a) => import::run(a, json, &progress),
        Command::Judge(a) => judge::run(a, json, &progress),
        Command::Score(a) => score::run(a, json, &progress),
        Command::Encoder(command) => encoder::run(command, json, &progress),
        Command::Cache(command) => cache::run(command, json),
        Command::Doctor(a) => doctor::run(&a, json),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "micpq", &mut std::io::stdout());
            Ok(())
        }
        Command::Man { folder } => man(&folder),
    }
}

/// Writes a manual page for every command, `micpq-search.1` for `micpq search`.
fn man(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    clap_mangen::generate_to(Args::command(), folder).map_err(Error::io(folder))?;
    Ok(())
}

/// Sets the size of the global thread pool.
pub fn set_threads(threads: usize) -> Result<()> {
    if threads == 0 {
        return Err(Error::config("--threads takes 1 or more").into());
    }
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    Ok(())
}

/// Documents of a corpus in groups of the size that an index takes at once.
fn chunks(corpus: &mut Corpus) -> impl Iterator<Item = engine::Result<Vec<Document>>> + '_ {
    let at_once = FillConfig::default().at_once;
    let next = move |corpus: &mut Corpus| corpus.by_ref().take(at_once).collect::<engine::Result<Vec<Document>>>();
    std::iter::from_fn(move || match next(corpus) {
        Ok(documents) if documents.is_empty() => None,
        chunk => Some(chunk),
    })
}

/// The embedder of a model, for many texts. Downloads a registered encoder that is missing.
fn embedder_of(model: &Model, computing: ComputingArgs, progress: &dyn Progress) -> Result<Embedder> {
    Ok(model.embedder(computing.precision, progress)?.on(device(), progress)?)
}

/// The embedder of a model, for single queries. A GPU takes seconds to start, so it is used only if it is named.
fn embedder_for_queries(model: &Model, computing: ComputingArgs, progress: &dyn Progress) -> Result<Embedder> {
    let device = if device() == Device::Auto { Device::Cpu } else { device() };
    Ok(model.embedder(computing.precision, progress)?.on(device, progress)?)
}
