//! `micpq train`: a model from a corpus, or several of other lengths and seeds from one copy of its views.

use std::path::{Path, PathBuf};

use anyhow::Result;
use micpq::Error;
use micpq::corpus::{Corpus, CorpusConfig};
use micpq::encoder::Features;
use train::config::TrainConfig;
use train::dataset::{Dataset, LabelNames};
use train::job::{Job, Trained, Vectors};

use crate::args::{Train, TrainingArgs};
use crate::output;
use crate::progress::Progress;

pub fn run(args: Train, json: bool, progress: &Progress) -> Result<()> {
    let configs = args.training.configs(args.features.pooling)?;
    if args.jobs == Some(0) {
        return Err(Error::config("--jobs takes 1 or more").into());
    }
    let features = args.features.load(progress)?;
    let mut names = LabelNames::default();
    let source = CorpusConfig { unique_ids: false, ..args.source.config() };
    let mut read = |path: &Path, most: usize| -> Result<Dataset> {
        let mut corpus = Corpus::open(path, &source)?;
        let set = Dataset::sample(&mut corpus, most, args.training.sample_seed(), &mut names, progress)?;
        super::tell_skipped(&corpus, progress);
        Ok(set)
    };
    let corpus = read(&args.corpus, args.training.sample)?;
    let validation = args.validation.as_deref().map(|path| read(path, usize::MAX)).transpose()?;
    let test = args.test.as_deref().map(|path| read(path, usize::MAX)).transpose()?;
    let cache = super::cache_dir(args.training.cache.as_deref())?;
    let job = Job {
        views: configs[0].views,
        dropout: args.training.dropout.unwrap_or(TrainingArgs::DROPOUT),
        features: &features,
        corpus: &corpus,
        validation: validation.as_ref(),
        test: test.as_ref(),
        cache: &cache,
    };
    let prepared = job.prepare(progress)?;
    if let [config] = &configs[..] {
        let trained = prepared.train(config, progress)?;
        progress.finish();
        return finished(&args.output, &trained, json);
    }
    let each = |place: usize, trained: Trained| -> micpq::Result<()> {
        let config = &configs[place];
        let name: PathBuf = args.output.join(format!("{}-{}", config.bits, config.seed));
        finished(&name, &trained, json).map_err(|e| match e.downcast::<Error>() {
            Ok(own) => own,
            Err(other) => Error::input("standard output", other.to_string()),
        })
    };
    prepared.train_all(&configs, args.jobs.unwrap_or(configs.len()), &each, progress)?;
    progress.finish();
    Ok(())
}

/// Saves a model and says so.
fn finished(output: &Path, trained: &Trained, json: bool) -> Result<()> {
    trained.model.save(output, &trained.metrics)?;
    if trained.interrupted {
        eprintln!(
            "stopped early: {} holds the best model so far; the same command goes on from here",
            output.display()
        );
    }
    if json {
        return output::json(&serde_json::json!({
            "model": output, "fingerprint": trained.model.fingerprint(), "bits": trained.model.shape().bits(),
            "interrupted": trained.interrupted, "metrics": trained.metrics,
        }));
    }
    output::line(format!(
        "{}: {} bits, model {}; {}",
        output.display(),
        trained.model.shape().bits(),
        trained.model.fingerprint(),
        summary(trained)
    ))
}

/// Trains one model without labels, as `build` does.
pub fn fit(
    args: &TrainingArgs,
    config: &TrainConfig,
    features: &Features,
    corpus: &Dataset,
    progress: &Progress,
) -> Result<(Trained, Vectors)> {
    let cache = super::cache_dir(args.cache.as_deref())?;
    let dropout = args.dropout.unwrap_or(TrainingArgs::DROPOUT);
    let job = Job { views: config.views, dropout, features, corpus, validation: None, test: None, cache: &cache };
    Ok(job.fit(config, progress)?)
}

/// The run in half a line.
pub fn summary(trained: &Trained) -> String {
    let metrics = &trained.metrics;
    let text = |name: &str| metrics[name].as_str().unwrap_or("figure").to_owned();
    let number = |name: &str| metrics[name].as_f64().unwrap_or(f64::NAN);
    let test = metrics["test"]["precision"]["100"].as_f64();
    format!(
        "best {} {:.3} at epoch {} of {}{}",
        text("selection"),
        number("best"),
        metrics["best_epoch"],
        metrics["curve"].as_array().map_or(0, Vec::len),
        test.map_or_else(String::new, |p| format!(", test P@100 {p:.2}"))
    )
}
