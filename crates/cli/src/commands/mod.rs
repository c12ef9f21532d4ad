//! One file per command.

pub mod build;
pub mod search;
pub mod sync;
pub mod serve;
pub mod mcp;

pub mod encode;
pub mod train;
pub mod distill;
pub mod eval;
pub mod judge;
pub mod score;
pub mod paper;

pub mod index;
#[cfg_attr(not(feature = "object-store"), path = "unstored.rs")]
mod stored;
pub mod topics;
pub mod dedup;
pub mod watch;
pub mod export;
pub mod import;

pub mod encoder;
pub mod cache;
pub mod doctor;

use anyhow::Result;
use engine::corpus::{Corpus, Document};
use engine::encoder::{Device, Embedder};
use engine::model::Model;
use engine::{Error, Progress};
use micpq::pipeline::FillConfig;

use crate::args::{ComputingArgs, device};

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

/// Says what an interrupt leaves of a change that is one commit.
fn whole_or_nothing(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<engine::Error>() {
        Some(engine::Error::Interrupted) => {
            error.context("the index has the whole change or nothing of it; run the same command again")
        }
        _ => error,
    }
}
