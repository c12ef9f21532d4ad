//! From texts to models: encoder passes, views, training, and the record of it all.
//!
//! Passes and views are prepared once ([`Job::prepare`]); any number of models, of other lengths and seeds, are then
//! trained from the one copy ([`Prepared::train`]), several side by side where asked ([`Prepared::train_all`]).

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use micpq::encoder::Features;
use micpq::model::{Distance, Model};
use micpq::{Error, Matrix, Result, Silent, Watch};

use crate::config::TrainConfig;
use crate::dataset::Dataset;
use crate::evaluate::{Corpus, EvaluateConfig, evaluate};
use crate::passes::Passes;
use crate::selection::Validation;
use crate::trainer::train;
use crate::views::{ViewChoice, Views};

/// What models are trained on.
pub struct Job<'a> {
    /// How views are made.
    pub views: ViewChoice,
    /// Rate of dropout in the encoder's views.
    pub dropout: f64,
    /// The encoder and its settings.
    pub features: &'a Features,
    /// What to train on.
    pub corpus: &'a Dataset,
    /// Labelled queries by whose P@100 the best epoch is chosen; without them the choice needs no labels.
    pub validation: Option<&'a Dataset>,
    /// Labelled queries every finished model is measured by; they decide nothing.
    pub test: Option<&'a Dataset>,
    /// Where vectors, views and checkpoints are kept.
    pub cache: &'a Path,
}

/// Vectors and views of a job, ready to train from.
pub struct Prepared<'a> {
    job: &'a Job<'a>,
    passes: Passes<'a>,
    views: Box<dyn Views>,
    validation: Option<Matrix>,
    test: Option<Matrix>,
    encoding: f64,
    viewing: f64,
}

/// What a run gives.
pub struct Trained {
    /// The best model of the run.
    pub model: Model,
    /// Curves, scores, codeword usage, seconds.
    pub metrics: serde_json::Value,
    /// Whether the user stopped it before its end.
    pub interrupted: bool,
}

/// Clean vectors of a corpus, one a text, and the token sequences they are found by: an index of the same texts need not
/// encode them again.
pub type Vectors = (Matrix, Vec<Vec<u32>>);

impl<'a> Job<'a> {
    /// Trains one model and gives the corpus's vectors with it: what whoever indexes the corpus next wants.
    pub fn fit(&self, config: &TrainConfig, watch: &dyn Watch) -> Result<(Trained, Vectors)> {
        let prepared = self.prepare(watch)?;
        let trained = prepared.train(config, watch)?;
        Ok((trained, prepared.into_vectors()))
    }

    /// Encodes the corpus and makes its views, or takes them from the cache.
    pub fn prepare(&'a self, watch: &dyn Watch) -> Result<Prepared<'a>> {
        if self.corpus.texts.len() < 2 {
            return Err(Error::input(
                "corpus",
                format!(
                    "has {} documents; training compares documents with each other and needs at least 2",
                    self.corpus.texts.len()
                ),
            ));
        }
        self.corpus.check_labels(self.validation, self.test)?;
        let begun = Instant::now();
        let passes = Passes::new(self.features, &self.corpus.texts, self.dropout, Some(self.cache), watch)?;
        let encoding = begun.elapsed().as_secs_f64();
        let queries = |set: Option<&Dataset>| -> Result<Option<Matrix>> {
            let vectors = |set: &Dataset| Passes::new(self.features, &set.texts, 0.0, Some(self.cache), watch);
            Ok(set.map(vectors).transpose()?.map(Passes::into_clean))
        };
        let (validation, test) = (queries(self.validation)?, queries(self.test)?);
        let begun = Instant::now();
        let views = self.views.prepare(&passes, self.cache, watch)?;
        let viewing = begun.elapsed().as_secs_f64();
        Ok(Prepared { job: self, passes, views, validation, test, encoding, viewing })
    }
}

impl Prepared<'_> {
    /// Trains one model. Stopped by the user after at least one epoch, it gives the best so far; started again with the
    /// same options, it goes on where it was.
    pub fn train(&self, config: &TrainConfig, watch: &dyn Watch) -> Result<Trained> {
        config.validate()?;
        let corpus = self.job.corpus;
        let validation = match (self.job.validation, &self.validation) {
            (Some(set), Some(queries)) => {
                Validation::Labelled { queries, query_labels: &set.labels, document_labels: &corpus.labels }
            }
            _ => Validation::HeldOut,
        };
        let checkpoints = self.job.cache.join("runs");
        let gpu = self.job.features.gpu();
        let outcome = train(gpu, config, self.views.as_ref(), validation, Some(&checkpoints), watch)?;
        let mut metrics = serde_json::to_value(&outcome.metrics).expect("plain data has a JSON form");
        metrics["encoding_seconds"] = self.encoding.into();
        metrics["views_seconds"] = self.viewing.into();
        metrics["training_documents"] = corpus.texts.len().into();
        let mut model = outcome.model(config, Some(self.job.features.config().clone()))?;
        model.config.training["dropout"] = self.job.dropout.into();
        if let (Some(set), Some(queries)) = (self.job.test, &self.test) {
            let corpus =
                Corpus { documents: self.passes.clean(), queries, labels: Some((&set.labels, &corpus.labels)) };
            let mut distances = vec![config.distance];
            distances.extend([Distance::Norm, Distance::Squared].into_iter().filter(|d| *d != config.distance));
            let how = EvaluateConfig { distances, float: false, seed: config.seed };
            // Measured to the end even where training was stopped: it takes seconds, and is why one stops and looks.
            let result = evaluate(model.refine(), model.codebooks(), &corpus, &how, &Silent)?;
            metrics["test"] = serde_json::to_value(&result).expect("plain data has a JSON form");
        }
        Ok(Trained { model, metrics, interrupted: outcome.interrupted })
    }

    /// Trains models of several options, `together` at a time, the first given first. `each` is told of every model when
    /// it is finished, by its place in `configs`, one call at a time.
    ///
    /// A model gets its share of the threads; its result does not depend on how many they are. An error ends the models
    /// that were not begun, and is returned when those under way are finished.
    pub fn train_all(
        &self,
        configs: &[TrainConfig],
        together: usize,
        each: &(dyn Fn(usize, Trained) -> Result<()> + Sync),
        watch: &dyn Watch,
    ) -> Result<()> {
        configs.iter().try_for_each(TrainConfig::validate)?;
        let together = together.clamp(1, configs.len().max(1));
        let threads = (rayon::current_num_threads() / together).max(1);
        watch.stage("training models", Some(configs.len() as u64));
        let next = AtomicUsize::new(0);
        let failed = std::sync::Mutex::new(None);
        let telling = std::sync::Mutex::new(());
        std::thread::scope(|scope| -> Result<()> {
            for _ in 0..together {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .map_err(|e| Error::config(format!("{threads} threads for a model: {e}")))?;
                let (next, failed, telling) = (&next, &failed, &telling);
                scope.spawn(move || {
                    pool.install(|| {
                        loop {
                            let place = next.fetch_add(1, Ordering::Relaxed);
                            let Some(config) = configs.get(place) else { break };
                            let quiet = OneOf { watch, name: format!("{} bits, seed {}", config.bits, config.seed) };
                            let ended = self.train(config, &quiet).and_then(|trained| {
                                let _one = telling.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                                watch.advance(1);
                                each(place, trained)
                            });
                            if let Err(problem) = ended {
                                next.store(configs.len(), Ordering::Relaxed);
                                failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(problem);
                            }
                        }
                    });
                });
            }
            Ok(())
        })?;
        match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }

    /// The corpus's own vectors.
    pub fn into_vectors(self) -> Vectors {
        drop(self.views);
        self.passes.into_parts()
    }
}

/// One of several models: its words carry its name, and the bars are left to the whole.
struct OneOf<'a> {
    watch: &'a dyn Watch,
    name: String,
}

impl Watch for OneOf<'_> {
    fn note(&self, text: &str) {
        self.watch.note(&format!("{}: {text}", self.name));
    }

    fn interrupted(&self) -> bool {
        self.watch.interrupted()
    }
}
