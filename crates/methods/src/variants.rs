//! MICPQ and its variants. The crate `train` has the equations and the steps; a variant changes its options.

use std::path::Path;

use engine::model::{CodeShape, Distance};
use engine::{Error, Progress, Result};
use serde_json::Value;
use train::TrainConfig;
use train::job::{Job, Trained, Vectors};
use train::trainer::TrainRun;
use train::vectors::VectorJob;
use train::views::ViewChoice;

use crate::inputs::{Built, Inputs};
use crate::job::UserVectors;
use crate::method::{Fitted, Input, Method, Prepared, Reads};
use crate::options::MethodOptions;
use crate::training::{Task, Training};

/// MICPQ, or MICPQ with some options changed.
pub struct Micpq {
    name: &'static str,
    vary: fn(&mut TrainConfig),
}

pub const MICPQ: Micpq = Micpq { name: "micpq", vary: |_| {} };

/// Without the mutual-information term.
pub const CL: Micpq = Micpq { name: "cl", vary: |config| config.objective.prob_weight = 0.0 };

/// Without Gumbel noise, and without the floor that came with it.
pub const SOFTMAX: Micpq =
    Micpq { name: "softmax", vary: |config| (config.objective.gumbel, config.objective.floor) = (false, 0.0) };

/// Codebooks of two codewords, Hamming distance.
pub const MICPQ_EH: Micpq =
    Micpq { name: "micpq-eh", vary: |config| (config.codebook_size, config.distance) = (2, Distance::Hamming) };

/// Codebooks of two codewords, distance from the query's projected embedding.
pub const MICPQ_EA: Micpq = Micpq { name: "micpq-ea", vary: |config| config.codebook_size = 2 };

/// The options of MICPQ or a variant of it.
#[derive(Clone)]
pub struct MicpqOptions {
    config: TrainConfig,
    vary: fn(&mut TrainConfig),
}

impl MicpqOptions {
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    fn changed(&self, config: TrainConfig) -> Box<dyn MethodOptions> {
        Box::new(MicpqOptions { config, vary: self.vary })
    }
}

impl MethodOptions for MicpqOptions {
    fn bits(&self) -> usize {
        self.config.bits
    }

    fn seed(&self) -> u64 {
        self.config.seed
    }

    fn input(&self) -> Input {
        Input::Encoder
    }

    fn views(&self) -> ViewChoice {
        self.config.views
    }

    fn with_option(&self, name: &str, value: Value) -> Result<Box<dyn MethodOptions>> {
        if let ("preset", Some(preset)) = (name, value.as_str()) {
            let mut config = TrainConfig::preset(preset, self.config.bits)?;
            (self.vary)(&mut config);
            return Ok(self.changed(config));
        }
        Ok(self.changed(self.config.with_option(name, value)?))
    }

    fn reading(&self, input: Input) -> Result<Box<dyn MethodOptions>> {
        match input {
            Input::Encoder => Ok(self.boxed()),
            Input::Tfidf => Err(Error::option(
                "input",
                "is tfidf, but the method needs an encoder: MICPQ and its variants read embeddings; name an encoder, or a \
                 method that takes terms, such as nash",
            )),
        }
    }

    fn validate(&self) -> Result<()> {
        if self.config.codebook_size == 16 {
            CodeShape::micpq(self.config.bits)?;
        }
        self.config.validate()
    }

    fn record(&self) -> Value {
        serde_json::to_value(&self.config).expect("options have a JSON form")
    }

    fn boxed(&self) -> Box<dyn MethodOptions> {
        Box::new(self.clone())
    }
}

impl Training {
    /// The options of MICPQ or a variant of it.
    pub fn micpq(&self) -> Option<&TrainConfig> {
        self.own::<MicpqOptions>().map(MicpqOptions::config)
    }
}

impl Micpq {
    fn config<'t>(&self, training: &'t Training) -> Result<&'t TrainConfig> {
        let wrong = || Error::config(format!("{} takes the options of MICPQ, not those of MethodConfig", self.name));
        training.micpq().ok_or_else(wrong)
    }

    /// The job of the crate `train`, which can train several models from one copy of the views.
    fn job<'a>(&self, training: &Training, task: &Task<'a>) -> Result<Job<'a>> {
        Ok(Job {
            views: self.config(training)?.views,
            dropout: task.dropout,
            embedder: task.encoder(self.name)?,
            corpus: task.corpus,
            validation: task.validation,
            test: task.test,
            cache: task.cache,
            passes: task.passes.lock().take(),
        })
    }

    /// Records the name of the variant: `train` knows MICPQ alone.
    fn named(&self, mut trained: Trained) -> Trained {
        trained.model.config.method = self.name.into();
        trained
    }
}

impl Method for Micpq {
    fn name(&self) -> &str {
        self.name
    }

    fn reads(&self) -> Reads {
        Reads { views: true, validation: true, ..Reads::default() }
    }

    fn own_options(&self, bits: usize) -> Option<Box<dyn MethodOptions>> {
        let mut config = TrainConfig::new(bits);
        (self.vary)(&mut config);
        Some(Box::new(MicpqOptions { config, vary: self.vary }))
    }

    fn train(&self, training: &Training, task: &Task, progress: &dyn Progress) -> Result<(Trained, Vectors)> {
        let (trained, vectors) = self.job(training, task)?.fit(self.config(training)?, progress)?;
        Ok((self.named(trained), vectors))
    }

    fn train_each(
        &self,
        trainings: &[Training],
        task: &Task,
        parallel: Option<usize>,
        finished: &(dyn Fn(&Training, Trained) -> Result<()> + Sync),
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut job = self.job(&trainings[0], task)?;
        let prepared = job.prepare(progress)?;
        if let [one] = trainings {
            return finished(one, self.named(prepared.train(self.config(one)?, progress)?));
        }
        let configs = trainings.iter().map(|training| self.config(training).cloned()).collect::<Result<Vec<_>>>()?;
        let finished = |i: usize, trained: Trained| finished(&trainings[i], self.named(trained));
        prepared.train_all(&configs, parallel.unwrap_or(configs.len()), &finished, progress)
    }

    fn train_on_vectors(
        &self,
        training: &Training,
        vectors: &UserVectors,
        cache: &Path,
        progress: &dyn Progress,
    ) -> Result<Trained> {
        let job = VectorJob {
            config: self.config(training)?.clone(),
            vectors: vectors.values,
            width: vectors.width,
            views: vectors.given_or_noise(),
            cache: Some(cache),
        };
        Ok(self.named(train::vectors::run(&job, progress)?))
    }

    fn fit(&self, training: &Training, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted> {
        let config = self.config(training)?;
        let views = inputs.views.ok_or_else(|| Error::config(format!("{} compares views and got none", self.name)))?;
        let validation = match &inputs.validation {
            None => train::Validation::HeldOut,
            Some(set) => {
                let Inputs::Embeddings(queries) = set.queries else {
                    return Err(Error::config(format!("{} reads embeddings alone", self.name)));
                };
                let (query_labels, document_labels) = (set.query_labels, set.document_labels);
                train::Validation::Labelled { queries, query_labels, document_labels }
            }
        };
        let run = TrainRun::new(config, views).validation(validation).gpu(inputs.gpu);
        let outcome = run.checkpoint(inputs.checkpoints).train(progress)?;
        let mut metrics = serde_json::to_value(&outcome.metrics).expect("plain data has a JSON form");
        // Of all runs that led here through a checkpoint, not of the last one.
        metrics["training_seconds"] = (outcome.metrics.seconds.training + outcome.metrics.seconds.validation).into();
        let built = Built { distance: config.distance, ..Built::quantizer(outcome.projection, outcome.codebooks) };
        Ok(Fitted { built, metrics, interrupted: outcome.interrupted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_change_the_options_of_micpq() {
        let options = |name: &str| Training::named(name, 32).unwrap().micpq().unwrap().clone();
        let config = options("micpq-eh");
        assert_eq!((config.shape().unwrap().num_codebooks(), config.distance), (32, Distance::Hamming));
        let config = options("cl");
        assert_eq!(config.objective.prob_weight, 0.0);
        config.validate().unwrap();
        assert!(Training::named("opq", 32).unwrap().micpq().is_none());
    }

    #[test]
    fn a_preset_keeps_the_bits_and_what_the_variant_changes() {
        let training = Training::named("cl", 64).unwrap().with_option("preset", "paper:nyt".into()).unwrap();
        let published = TrainConfig::preset("paper:nyt", 64).unwrap();
        let mut expected = published.clone();
        expected.objective.prob_weight = 0.0;
        assert_eq!(*training.micpq().unwrap(), expected);
        assert_ne!(published, expected);
        let error = Training::named("opq", 64).unwrap().with_option("preset", "paper:nyt".into()).err().unwrap();
        assert!(error.to_string().contains("opq has no option called preset"), "{error}");
    }
}
