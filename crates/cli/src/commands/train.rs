//! `micpq train`: a model from a corpus.

use std::path::Path;

use anyhow::Result;
use micpq::corpus::{Corpus, CorpusConfig};
use micpq::encoder::Features;
use train::dataset::{Dataset, LabelNames};
use train::job::{self, Job, Trained};

use crate::args::{Train, TrainingArgs};
use crate::output;
use crate::progress::Progress;

pub fn run(args: Train, json: bool, progress: &Progress) -> Result<()> {
    let config = args.training.config(args.features.pooling)?;
    let features = args.features.load(progress)?;
    let mut names = LabelNames::default();
    let source = CorpusConfig { unique_ids: false, ..args.source.config() };
    let mut read = |path: &Path, most: usize| -> Result<Dataset> {
        let mut corpus = Corpus::open(path, &source)?;
        let set = Dataset::sample(&mut corpus, most, args.training.seed, &mut names, progress)?;
        super::tell_skipped(&corpus, progress);
        Ok(set)
    };
    let corpus = read(&args.corpus, args.training.sample)?;
    let validation = args.validation.as_deref().map(|path| read(path, usize::MAX)).transpose()?;
    let trained = fit(&args.training, config, &features, &corpus, validation.as_ref(), progress)?;
    trained.model.save(&args.output, &trained.metrics)?;
    progress.finish();
    if trained.interrupted {
        eprintln!("stopped early: {} holds the best model so far; the same command goes on from here", args.output.display());
    }
    if json {
        return output::json(&serde_json::json!({
            "model": args.output, "fingerprint": trained.model.fingerprint(), "bits": trained.model.shape().bits(),
            "interrupted": trained.interrupted, "metrics": trained.metrics,
        }));
    }
    output::line(format!(
        "{}: {} bits, model {}; {}",
        args.output.display(),
        trained.model.shape().bits(),
        trained.model.fingerprint(),
        summary(&trained)
    ))
}

/// Trains with the given flags; `build` takes the same way.
pub fn fit(
    args: &TrainingArgs,
    config: train::config::TrainConfig,
    features: &Features,
    corpus: &Dataset,
    validation: Option<&Dataset>,
    progress: &Progress,
) -> Result<Trained> {
    let cache = super::cache_dir(args.cache.as_deref())?;
    let dropout = args.dropout.unwrap_or(TrainingArgs::DROPOUT);
    let job = Job { config, dropout, features, corpus, validation, cache: &cache };
    Ok(job::run(&job, progress)?)
}

/// The run in half a line.
pub fn summary(trained: &Trained) -> String {
    let metrics = &trained.metrics;
    let text = |name: &str| metrics[name].as_str().unwrap_or("figure").to_owned();
    let number = |name: &str| metrics[name].as_f64().unwrap_or(f64::NAN);
    format!("best {} {:.3} at epoch {} of {}", text("selection"), number("best"), metrics["best_epoch"], metrics["curve"].as_array().map_or(0, Vec::len))
}
