//! `micpq train`: a model from a corpus, or several of other lengths and seeds from one copy of its views.

use std::path::Path;

use anyhow::Result;
use micpq::Error;
use micpq::corpus::{Corpus, CorpusConfig};
use micpq::encoder::Features;
use systems::Training;
use systems::training::{Task, named};
use train::config::TrainConfig;
use train::dataset::{Dataset, LabelNames};
use train::job::Trained;

use crate::args::{FeatureArgs, Train};
use crate::output;
use crate::progress::Progress;

pub fn run(args: Train, json: bool, progress: &Progress) -> Result<()> {
    let trainings = args.training.trainings(args.features.pooling)?;
    if args.jobs == Some(0) {
        return Err(Error::config("--jobs takes 1 or more").into());
    }
    let features = encoder(&trainings[0], &args.features, progress)?;
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
    let task = Task {
        features: features.as_ref(),
        clean: args.features.clean,
        dropout: args.training.dropout(),
        corpus: &corpus,
        validation: validation.as_ref(),
        test: test.as_ref(),
        cache: &cache,
    };
    let place = |training: &Training| match &trainings[..] {
        [_] => args.output.clone(),
        _ => args.output.join(format!("{}-{}", training.bits(), training.seed())),
    };
    let each = |training: &Training, trained: Trained| -> micpq::Result<()> {
        finished(&place(training), &trained, json).map_err(|e| match e.downcast::<Error>() {
            Ok(own) => own,
            Err(other) => Error::input("standard output", other.to_string()),
        })
    };
    fit_all(&task, &trainings, args.jobs, &each, progress)?;
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

/// The encoder, where what is to be trained needs one.
pub fn encoder(training: &Training, args: &FeatureArgs, progress: &Progress) -> Result<Option<Features>> {
    Ok(if training.needs_encoder() { Some(args.load(progress)?) } else { None })
}

/// Every model, told of as it is finished. Those of MICPQ share one copy of their views and may run side by side.
fn fit_all(
    task: &Task,
    trainings: &[Training],
    jobs: Option<usize>,
    each: &(dyn Fn(&Training, Trained) -> micpq::Result<()> + Sync),
    progress: &Progress,
) -> Result<()> {
    let Training::Micpq(method, first) = &trainings[0] else {
        for training in trainings {
            let (trained, _) = task.fit(training, progress)?;
            each(training, trained)?;
        }
        return Ok(());
    };
    let job = task.job(*method, first.views)?;
    let prepared = job.prepare(progress)?;
    if trainings.len() == 1 {
        let trained = prepared.train(first, progress)?;
        progress.finish();
        return Ok(each(&trainings[0], named(trained, *method))?);
    }
    let configs: Vec<TrainConfig> = trainings.iter().filter_map(Training::micpq).cloned().collect();
    let told = |place: usize, trained: Trained| each(&trainings[place], named(trained, *method));
    Ok(prepared.train_all(&configs, jobs.unwrap_or(configs.len()), &told, progress)?)
}

/// The run in half a line.
pub fn summary(trained: &Trained) -> String {
    let metrics = &trained.metrics;
    let text = |name: &str| metrics[name].as_str().unwrap_or("figure").to_owned();
    let number = |name: &str| metrics[name].as_f64().unwrap_or(f64::NAN);
    let test = metrics["test"]["precision"]["100"].as_f64();
    let test = test.map_or_else(String::new, |p| format!(", test P@100 {p:.2}"));
    match metrics["curve"].as_array() {
        Some(curve) => format!(
            "best {} {:.3} at epoch {} of {}{test}",
            text("selection"),
            number("best"),
            metrics["best_epoch"],
            curve.len()
        ),
        // Fitted, not learned.
        None => format!("{} {:.5}{test}", text("selection"), number("best")),
    }
}
