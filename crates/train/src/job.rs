//! From texts to models: encoder passes, views, training and its metrics.
//!
//! [`Job::prepare`] computes embeddings and views once. [`Prepared::train`] then trains any number of models from this one
//! copy, with other code lengths and seeds. [`Prepared::train_all`] trains several at the same time.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use engine::encoder::Embedder;
use engine::model::{Distance, Model};
use engine::{Error, Matrix, NoProgress, Progress, Result};
use parking_lot::Mutex;

use crate::config::TrainConfig;
use crate::dataset::Dataset;
use crate::evaluate::{Corpus, EvaluateConfig, evaluate};
use crate::passes::Passes;
use crate::selection::Validation;
use crate::trainer::TrainRun;
use crate::views::{ViewChoice, Views};

/// Encoder, corpus and cache of training runs.
pub struct Job<'a> {
    pub views: ViewChoice,
    /// Dropout rate of the encoder for views.
    pub dropout: f64,
    pub embedder: &'a Embedder,
    pub corpus: &'a Dataset,
    /// Labelled queries whose P@100 selects the best epoch. Without them documents are held out and no labels are needed.
    pub validation: Option<&'a Dataset>,
    /// Labelled queries for the test scores of every finished model. They influence no training.
    pub test: Option<&'a Dataset>,
    /// Directory of embeddings, views and checkpoints.
    pub cache: &'a Path,
    /// The corpus as the embedder reads it, where that is known already.
    pub passes: Option<Passes<'a>>,
}

/// Embeddings and views of a job, ready for training.
pub struct Prepared<'j, 'a> {
    job: &'j Job<'a>,
    passes: Passes<'a>,
    views: Box<dyn Views>,
    validation: Option<Matrix>,
    test: Option<Matrix>,
    encoding_seconds: f64,
    views_seconds: f64,
}

/// The result of a run.
pub struct Trained {
    /// Model of the best epoch.
    pub model: Model,
    /// Curve, scores, codeword usage and seconds, for `metrics.json`.
    pub metrics: serde_json::Value,
    /// Whether the user stopped the run before its end.
    pub interrupted: bool,
}

impl Trained {
    /// The run in half a line.
    pub fn summary(&self) -> String {
        let metrics = &self.metrics;
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
}

/// The texts of a corpus as training read them. An index of the same texts need neither tokenise nor encode them again.
pub struct Vectors {
    /// Clean embeddings, one row per text.
    pub rows: Matrix,
    pub tokens: Vec<Vec<u32>>,
    /// Which texts are longer than the encoder takes.
    pub cut: Vec<bool>,
}

impl<'a> Job<'a> {
    /// Trains one model and returns it with the embeddings of the corpus, for a caller that indexes the corpus next.
    pub fn fit(mut self, config: &TrainConfig, progress: &dyn Progress) -> Result<(Trained, Vectors)> {
        let prepared = self.prepare(progress)?;
        let trained = prepared.train(config, progress)?;
        Ok((trained, prepared.into_vectors()))
    }

    /// Encodes the corpus and its views, or reads them from the cache.
    pub fn prepare(&mut self, progress: &dyn Progress) -> Result<Prepared<'_, 'a>> {
        if self.corpus.texts.len() < 2 {
            return Err(Error::input(
                "corpus",
                format!("has {} documents; training compares documents, so give at least 2", self.corpus.texts.len()),
            ));
        }
        self.corpus.check_labels(self.validation, self.test)?;
        let start = Instant::now();
        let passes = match self.passes.take() {
            Some(passes) => passes,
            None => Passes::new(self.embedder, &self.corpus.texts, self.dropout, Some(self.cache), progress)?,
        };
        let encoding_seconds = start.elapsed().as_secs_f64();
        let embeddings = |set: Option<&Dataset>| -> Result<Option<Matrix>> {
            let passes = |set: &Dataset| Passes::new(self.embedder, &set.texts, 0.0, Some(self.cache), progress);
            Ok(set.map(passes).transpose()?.map(Passes::into_clean))
        };
        let (validation, test) = (embeddings(self.validation)?, embeddings(self.test)?);
        let start = Instant::now();
        let views = self.views.prepare(&passes, self.cache, progress)?;
        let views_seconds = start.elapsed().as_secs_f64();
        Ok(Prepared { job: self, passes, views, validation, test, encoding_seconds, views_seconds })
    }
}

impl Prepared<'_, '_> {
    /// Trains one model. When the user stops it after at least one epoch, it returns the best model so far. Started again with
    /// the same options, it resumes after the last finished epoch.
    pub fn train(&self, config: &TrainConfig, progress: &dyn Progress) -> Result<Trained> {
        config.validate()?;
        let corpus = self.job.corpus;
        let validation = match (self.job.validation, &self.validation) {
            (Some(set), Some(queries)) => {
                Validation::Labelled { queries, query_labels: &set.labels, document_labels: &corpus.labels }
            }
            _ => Validation::HeldOut,
        };
        let checkpoints = self.job.cache.join("runs");
        let gpu = self.job.embedder.gpu();
        let run = TrainRun::new(config, self.views.as_ref()).validation(validation).gpu(gpu);
        let outcome = run.checkpoint(Some(&checkpoints)).train(progress)?;
        let mut metrics = serde_json::to_value(&outcome.metrics).expect("plain data has a JSON form");
        metrics["encoding_seconds"] = self.encoding_seconds.into();
        metrics["views_seconds"] = self.views_seconds.into();
        metrics["training_documents"] = corpus.texts.len().into();
        let mut model = outcome.model(config, Some(self.job.embedder.config().clone()))?;
        model.config.training["dropout"] = self.job.dropout.into();
        if let (Some(set), Some(queries)) = (self.job.test, &self.test) {
            let corpus =
                Corpus { documents: self.passes.clean(), queries, labels: Some((&set.labels, &corpus.labels)) };
            let mut distances = vec![config.distance];
            distances.extend([Distance::Norm, Distance::Squared].into_iter().filter(|d| *d != config.distance));
            let evaluation = EvaluateConfig { distances, float: false, seed: config.seed };
            // Not interruptible: it takes seconds, and a user who stops a run wants these scores.
            let result = evaluate(&model, &corpus, &evaluation, &NoProgress)?;
            metrics["test"] = serde_json::to_value(&result).expect("plain data has a JSON form");
        }
        Ok(Trained { model, metrics, interrupted: outcome.interrupted })
    }

    /// Trains a model for each of `configs`, in their order, `parallel_models` at a time. `finished` receives every finished
    /// model with its position in `configs`, one call at a time.
    ///
    /// The models share the threads; a result does not depend on the number of threads. After an error no further model is
    /// started. The error is returned when the running models have finished.
    pub fn train_all(
        &self,
        configs: &[TrainConfig],
        parallel_models: usize,
        finished: &(dyn Fn(usize, Trained) -> Result<()> + Sync),
        progress: &dyn Progress,
    ) -> Result<()> {
        configs.iter().try_for_each(TrainConfig::validate)?;
        let parallel_models = parallel_models.clamp(1, configs.len().max(1));
        let threads = (rayon::current_num_threads() / parallel_models).max(1);
        progress.stage("training models", Some(configs.len() as u64));
        let next = AtomicUsize::new(0);
        let first_error = Mutex::new(None);
        let reporting = Mutex::new(());
        std::thread::scope(|scope| -> Result<()> {
            for _ in 0..parallel_models {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .map_err(|e| Error::config(format!("cannot start {threads} threads for a model: {e}")))?;
                let (next, first_error, reporting) = (&next, &first_error, &reporting);
                scope.spawn(move || {
                    pool.install(|| {
                        loop {
                            let position = next.fetch_add(1, Ordering::Relaxed);
                            let Some(config) = configs.get(position) else { break };
                            let named =
                                NamedNotes { progress, name: format!("{} bits, seed {}", config.bits, config.seed) };
                            let result = self.train(config, &named).and_then(|trained| {
                                let _guard = reporting.lock();
                                progress.advance(1);
                                finished(position, trained)
                            });
                            if let Err(error) = result {
                                next.store(configs.len(), Ordering::Relaxed);
                                first_error.lock().get_or_insert(error);
                            }
                        }
                    });
                });
            }
            Ok(())
        })?;
        match first_error.into_inner() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub fn into_vectors(self) -> Vectors {
        drop(self.views);
        let (rows, tokens, cut) = self.passes.into_parts();
        Vectors { rows, tokens, cut }
    }
}

/// Progress of one of several models: its notes carry its name, and stages and counts are left to the whole.
struct NamedNotes<'a> {
    progress: &'a dyn Progress,
    name: String,
}

impl Progress for NamedNotes<'_> {
    fn note(&self, text: &str) {
        self.progress.note(&format!("{}: {text}", self.name));
    }

    fn interrupted(&self) -> bool {
        self.progress.interrupted()
    }
}
