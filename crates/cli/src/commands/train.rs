//! `micpq train`: a model from a corpus.

use std::path::Path;

use anyhow::Result;
use micpq::Error;
use micpq::corpus::{Corpus, CorpusConfig};
use micpq::encoder::Features;
use micpq::text::Clean;
use train::dataset::{Dataset, LabelNames};
use systems::job::Trained;
use train::job::{self, Job};

use crate::args::{FeatureArgs, Train, Training, TrainingArgs};
use crate::output;
use crate::progress::Progress;

pub fn run(args: Train, json: bool, progress: &Progress) -> Result<()> {
    let training = args.training.training(args.features.pooling)?;
    let features = encoder(&training, &args.features, progress)?;
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
    let task = Task { args: &args.training, training, features: features.as_ref(), clean: args.features.clean };
    let trained = task.fit(&corpus, validation.as_ref(), progress)?;
    trained.model.save(&args.output, &trained.metrics)?;
    progress.finish();
    if trained.interrupted {
        eprintln!(
            "stopped early: {} holds the best model so far; the same command goes on from here",
            args.output.display()
        );
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

/// The encoder, where what is to be trained needs one.
pub fn encoder(training: &Training, args: &FeatureArgs, progress: &Progress) -> Result<Option<Features>> {
    Ok(if training.needs_encoder() { Some(args.load(progress)?) } else { None })
}

/// What to train, from what; `build` takes the same way.
pub struct Task<'a> {
    pub args: &'a TrainingArgs,
    pub training: Training,
    pub features: Option<&'a Features>,
    pub clean: Clean,
}

impl Task<'_> {
    /// Trains on a corpus.
    pub fn fit(self, corpus: &Dataset, validation: Option<&Dataset>, progress: &Progress) -> Result<Trained> {
        let cache = super::cache_dir(self.args.cache.as_deref())?;
        let dropout = self.args.dropout.unwrap_or(TrainingArgs::DROPOUT);
        match (self.training, self.features) {
            (Training::Micpq(method, config), Some(features)) => {
                let job = Job { config: *config, dropout, features, corpus, validation, cache: &cache };
                let job::Trained { mut model, metrics, clean, tokens, interrupted } = job::run(&job, progress)?;
                model.config.method = method.name().into();
                Ok(Trained { model, metrics, clean, tokens, interrupted })
            }
            (Training::Micpq(method, _), None) => {
                Err(Error::config(format!("{method} needs an encoder; name one with --encoder")).into())
            }
            (Training::System(config), features) => {
                let (config, clean) = (*config, self.clean);
                let job = systems::job::Job { config, features, clean, dropout, corpus, validation, cache: &cache };
                Ok(systems::job::run(&job, progress)?)
            }
        }
    }
}

/// The run in half a line.
pub fn summary(trained: &Trained) -> String {
    let metrics = &trained.metrics;
    let text = |name: &str| metrics[name].as_str().unwrap_or("figure").to_owned();
    let number = |name: &str| metrics[name].as_f64().unwrap_or(f64::NAN);
    match metrics["curve"].as_array() {
        Some(curve) => format!(
            "best {} {:.3} at epoch {} of {}",
            text("selection"),
            number("best"),
            metrics["best_epoch"],
            curve.len()
        ),
        // Fitted, not learned.
        None => format!("{} {:.5}", text("selection"), number("best")),
    }
}
