//! `micpq train`: trains a model on a corpus, or several code lengths and seeds on one copy of its views.

use std::path::Path;

use anyhow::Result;
use engine::corpus::{Corpus, CorpusConfig};
use engine::disk::Replaces;
use engine::encoder::{Embedder, EmbedderConfig};
use engine::{Error, Progress};
use methods::Training;
use methods::training::{Task, named};
use train::Preset;
use train::config::TrainConfig;
use train::dataset::{Dataset, LabelNames};
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
    let embedder = embedder(&trainings[0], &embedding, progress)?;
    let mut names = LabelNames::default();
    let source = CorpusConfig { unique_ids: false, ..args.source.config() };
    let mut read = |path: &Path, max_documents: usize| -> Result<Dataset> {
        let mut corpus = Corpus::open(path, &source)?;
        let set = Dataset::sample(&mut corpus, max_documents, args.training.sample_seed(), &mut names, progress)?;
        micpq::pipeline::report_skipped(&corpus, progress);
        Ok(set)
    };
    let corpus = read(&args.corpus, args.training.sample)?;
    let validation = args.validation.as_deref().map(|path| read(path, usize::MAX)).transpose()?;
    let test = args.test.as_deref().map(|path| read(path, usize::MAX)).transpose()?;
    if let Some(preset) = &args.training.preset {
        for warning in preset.parse::<Preset>()?.warnings(&corpus, validation.is_some()) {
            progress.note(&format!("{preset}: {warning}"));
        }
    }
    let cache = micpq::pipeline::cache_dir(args.training.cache.as_deref())?;
    let task = Task {
        embedder: embedder.as_ref(),
        clean: embedding.clean,
        dropout: args.training.dropout(),
        corpus: &corpus,
        validation: validation.as_ref(),
        test: test.as_ref(),
        cache: &cache,
    };
    let on_trained = |training: &Training, trained: Trained| -> engine::Result<()> {
        save(&path(training), &trained, json).map_err(|e| match e.downcast::<Error>() {
            Ok(own) => own,
            Err(other) => Error::input("standard output", other.to_string()),
        })
    };
    fit_all(&task, &trainings, args.jobs, &on_trained, progress)?;
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

/// The embedder, if the training needs one.
fn embedder(training: &Training, config: &EmbedderConfig, progress: &TerminalProgress) -> Result<Option<Embedder>> {
    Ok(if training.needs_encoder() { Some(Embedder::load(config, progress)?) } else { None })
}

/// Trains every model and calls `on_trained` for each. MICPQ models share one copy of their views and can run in parallel.
fn fit_all(
    task: &Task,
    trainings: &[Training],
    jobs: Option<usize>,
    on_trained: &(dyn Fn(&Training, Trained) -> engine::Result<()> + Sync),
    progress: &TerminalProgress,
) -> Result<()> {
    let Training::Micpq(method, first) = &trainings[0] else {
        for training in trainings {
            let (trained, _) = task.fit(training, progress)?;
            on_trained(training, trained)?;
        }
        return Ok(());
    };
    let job = task.job(method, first.views)?;
    let prepared = job.prepare(progress)?;
    if trainings.len() == 1 {
        let trained = prepared.train(first, progress)?;
        progress.finish();
        return Ok(on_trained(&trainings[0], named(trained, method))?);
    }
    let configs: Vec<TrainConfig> = trainings.iter().filter_map(Training::micpq).cloned().collect();
    let on_position = |i: usize, trained: Trained| on_trained(&trainings[i], named(trained, method));
    Ok(prepared.train_all(&configs, jobs.unwrap_or(configs.len()), &on_position, progress)?)
}
