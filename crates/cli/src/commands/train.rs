//! `micpq train`: trains a model on a corpus, or several code lengths and seeds on one copy of its views.

use std::path::Path;

use anyhow::Result;
use engine::corpus::CorpusConfig;
use engine::internal::Replaces;
use engine::{Error, Progress};
use methods::Training;
use micpq::BuildConfig;
use micpq::pipeline::{Source, TrainingSources, TrainingTexts};
use train::Preset;
use train::job::Trained;

use crate::args::Train;
use crate::output;
use crate::progress::TerminalProgress;

pub fn run(args: Train, json: bool, progress: &TerminalProgress) -> Result<()> {
    let embedding = args.embedding.config(args.training.preset.as_deref())?;
    let trainings = args.training.trainings(embedding.pooling()?)?;
    if args.jobs == Some(0) {
        return Err(Error::config("--jobs takes 1 or more").into());
    }
    let path = |training: &Training| match &trainings[..] {
        [_] => args.output.clone(),
        _ => args.output.join(format!("{}-{}", training.bits(), training.seed())),
    };
    // Checks the output paths before an hour of training.
    trainings.iter().try_for_each(|training| Replaces::Model.check(&path(training)))?;
    let config = BuildConfig {
        embedding,
        dropout: args.training.dropout(),
        sample: args.training.sample,
        cache: args.training.cache.clone(),
        // The corpus is sampled with the first seed.
        ..BuildConfig::new(trainings[0].clone().with_option("seed", args.training.sample_seed().into())?)
    };
    let encoder = config.encoder(progress)?;
    let read = CorpusConfig { unique_ids: false, ..args.source.config() };
    let sources = TrainingSources {
        corpus: Source::Corpus(&args.corpus, &read),
        validation: args.validation.as_deref().map(|path| Source::Corpus(path, &read)),
        test: args.test.as_deref().map(|path| Source::Corpus(path, &read)),
    };
    let texts = TrainingTexts::read(sources, encoder.as_ref(), &config, progress)?;
    if let Some(preset) = &args.training.preset {
        for warning in preset.parse::<Preset>()?.warnings(&texts.corpus, texts.validation.is_some()) {
            progress.note(&format!("{preset}: {warning}"));
        }
    }
    let on_trained = |training: &Training, trained: Trained| -> engine::Result<()> {
        if trainings.len() == 1 {
            progress.finish();
        }
        save(&path(training), &trained, json).map_err(|e| match e.downcast::<Error>() {
            Ok(own) => own,
            Err(other) => Error::input("standard output", other.to_string()),
        })
    };
    texts.task(encoder.as_ref(), &config).fit_each(&trainings, args.jobs, &on_trained, progress)?;
    progress.finish();
    Ok(())
}

/// Saves a model and reports it.
fn save(output: &Path, trained: &Trained, json: bool) -> Result<()> {
    trained.model.save(output, &trained.metrics)?;
    if trained.interrupted {
        eprintln!("stopped early: {} is the best model so far; run the same command to continue", output.display());
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
        trained.summary()
    ))
}
