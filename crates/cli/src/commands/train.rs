//! `micpq train`: a model from a corpus, or several of other lengths and seeds from one copy of its views.

use std::path::Path;

use anyhow::Result;
use micpq::Error;
use micpq::corpus::{Corpus, CorpusConfig};
use micpq::encoder::Features;
use micpq::text::Clean;
use systems::{Method, SystemConfig};
use train::config::TrainConfig;
use train::dataset::{Dataset, LabelNames};
use train::job::{Job, Trained, Vectors};
use train::views::ViewChoice;

use crate::args::{FeatureArgs, Train, Training, TrainingArgs};
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
    let task = Task {
        args: &args.training,
        features: features.as_ref(),
        clean: args.features.clean,
        corpus: &corpus,
        validation: validation.as_ref(),
        test: test.as_ref(),
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
    task.fit_all(&trainings, args.jobs, &each, progress)?;
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

/// What to train from; `build` takes the same way.
pub struct Task<'a> {
    pub args: &'a TrainingArgs,
    pub features: Option<&'a Features>,
    pub clean: Clean,
    pub corpus: &'a Dataset,
    pub validation: Option<&'a Dataset>,
    pub test: Option<&'a Dataset>,
}

impl Task<'_> {
    /// One model, with the corpus's vectors.
    pub fn fit(&self, training: &Training, progress: &Progress) -> Result<(Trained, Vectors)> {
        let cache = super::cache_dir(self.args.cache.as_deref())?;
        match training {
            Training::Micpq(method, config) => {
                let job = self.job(config.views, &cache)?;
                let (trained, vectors) = job.fit(config, progress)?;
                Ok((named(trained, *method), vectors))
            }
            Training::System(config) => Ok(self.system(config, &cache).run(progress)?),
        }
    }

    /// Every model, told of as it is finished. Those of MICPQ share one copy of their views and may run side by side.
    fn fit_all(
        &self,
        trainings: &[Training],
        jobs: Option<usize>,
        each: &(dyn Fn(&Training, Trained) -> micpq::Result<()> + Sync),
        progress: &Progress,
    ) -> Result<()> {
        let cache = super::cache_dir(self.args.cache.as_deref())?;
        let Training::Micpq(method, first) = &trainings[0] else {
            for training in trainings {
                let (trained, _) = self.fit(training, progress)?;
                each(training, trained)?;
            }
            return Ok(());
        };
        let job = self.job(first.views, &cache)?;
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

    fn job<'a>(&'a self, views: ViewChoice, cache: &'a Path) -> Result<Job<'a>> {
        let features = self.features.ok_or_else(|| Error::config("an encoder is needed; name one with --encoder"))?;
        Ok(Job {
            views,
            dropout: self.dropout(),
            features,
            corpus: self.corpus,
            validation: self.validation,
            test: self.test,
            cache,
        })
    }

    fn system<'a>(&'a self, config: &SystemConfig, cache: &'a Path) -> systems::job::Job<'a> {
        systems::job::Job {
            config: config.clone(),
            features: self.features,
            clean: self.clean,
            dropout: self.dropout(),
            corpus: self.corpus,
            validation: self.validation,
            test: self.test,
            cache,
        }
    }

    fn dropout(&self) -> f64 {
        self.args.dropout.unwrap_or(TrainingArgs::DROPOUT)
    }
}

/// A variant of MICPQ says which it is.
fn named(mut trained: Trained, method: Method) -> Trained {
    trained.model.config.method = method.name().into();
    trained
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
