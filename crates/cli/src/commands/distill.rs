//! `micpq distill`: makes a fast query encoder for an index or a model.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use engine::Error;
use engine::index::{Index, Store};
use engine::model::{FastEncoder, Model};
use micpq::pipeline::{DistillTarget, Source, distill_corpus, distill_index};
use train::query_encoder::{DistillConfig, expect_encoder};

use super::embedder_of;
use crate::args::{ComputingArgs, CorpusArgs};
use crate::output;
use crate::progress::TerminalProgress;

#[derive(Args)]
#[command(after_help = "\
Examples:
  micpq distill news.micpq                             then: micpq search news.micpq \"oil\" --query-encoder fast
  micpq distill codes.micpq --corpus news.jsonl        an index that stores no texts
  micpq distill model --corpus news.jsonl              a model directory")]
pub struct Distill {
    /// Index directory, or model directory
    pub path: PathBuf,
    /// Learn from the texts of this corpus. Default: those the index stores
    #[arg(long, value_name = "FILE")]
    pub corpus: Option<PathBuf>,
    /// Maximum number of documents to learn from; the seed samples more of them evenly
    #[arg(long, value_name = "N", default_value_t = DistillConfig::default().documents)]
    pub documents: usize,
    /// Values of a token's vector
    #[arg(long, value_name = "N", default_value_t = DistillConfig::default().width)]
    pub width: usize,
    /// Values of a token's vector that search by codes uses, the first ones; a web export has only these
    #[arg(long, value_name = "N", default_value_t = DistillConfig::default().code_width)]
    pub code_width: usize,
    /// Passes over the pieces of the documents
    #[arg(long, value_name = "N", default_value_t = DistillConfig::default().epochs)]
    pub epochs: usize,
    /// Learning rate of Adam
    #[arg(long, value_name = "RATE", default_value_t = DistillConfig::default().learning_rate)]
    pub learning_rate: f64,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = DistillConfig::default().seed)]
    pub seed: u64,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

impl Distill {
    fn config(&self) -> DistillConfig {
        let Distill { documents, width, code_width, epochs, learning_rate, seed, .. } = *self;
        DistillConfig { documents, width, code_width, epochs, learning_rate, seed }
    }
}

pub fn run(args: Distill, json: bool, progress: &TerminalProgress) -> Result<()> {
    let (begun, config) = (Instant::now(), args.config());
    config.validate()?;
    // A model directory has a config.json and no index.json.
    let index = match args.path.join("index.json").exists() || !args.path.join("config.json").exists() {
        true => Some(Index::open(&args.path, progress)?),
        false => None,
    };
    let (model, dir) = match &index {
        Some(index) => (index.model().clone(), index.model_dir()),
        None => (Model::load(&args.path)?, args.path.clone()),
    };
    // Refused before an encoder is fetched.
    expect_encoder(&model)?;
    match (&index, &args.corpus) {
        (None, None) => {
            return Err(
                Error::config("a model directory has no texts to distil on; name a corpus with --corpus").into()
            );
        }
        (Some(index), None) if index.store() == Store::Codes => {
            return Err(Error::config(format!(
                "{} stores no texts to distil on; name the corpus it was built from with --corpus",
                args.path.display()
            ))
            .into());
        }
        _ => {}
    }
    let embedder = embedder_of(&model, args.computing, progress)?;
    let made = match (&index, &args.corpus) {
        (_, Some(corpus)) => {
            let target = DistillTarget { model: &model, dir: &dir, embedder: &embedder };
            distill_corpus(target, Source::Corpus(corpus, &args.source.config()), &config, progress)?
        }
        (Some(index), None) => distill_index(index, &embedder, &config, progress)?,
        (None, None) => unreachable!("refused above"),
    };
    progress.finish();
    let (path, seconds) = (FastEncoder::path(&dir), begun.elapsed().as_secs_f64());
    let bytes = path.metadata().map_err(Error::io(&path))?.len();
    if json {
        return output::json(&serde_json::json!({
            "path": path, "documents": made.info().documents, "width": made.width(), "bytes": bytes, "seconds": seconds,
        }));
    }
    output::line(format!(
        "{}: {} from {} documents in {seconds:.0} s\nsearch with: --query-encoder fast",
        path.display(),
        output::bytes(bytes),
        made.info().documents,
    ))
}
