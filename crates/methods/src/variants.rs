//! MICPQ and its variants. The crate `train` has the equations and the steps; a variant changes its options.

use engine::model::Distance;
use engine::{Error, Progress, Result};
use train::TrainConfig;
use train::trainer;

use crate::inputs::{Built, Inputs};
use crate::method::{Fitted, Method, Prepared, Reads};
use crate::training::Training;

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

impl Micpq {
    /// Changes MICPQ's options to those of the variant.
    pub fn vary(&self, config: &mut TrainConfig) {
        (self.vary)(config);
    }

    fn config<'t>(&self, training: &'t Training) -> Result<&'t TrainConfig> {
        let wrong = || Error::config(format!("{} takes the options of MICPQ, not those of MethodConfig", self.name));
        training.micpq().ok_or_else(wrong)
    }
}

impl Method for Micpq {
    fn name(&self) -> &str {
        self.name
    }

    fn reads(&self) -> Reads {
        Reads { views: true, validation: true, ..Reads::default() }
    }

    fn variant(&self) -> Option<&Micpq> {
        Some(self)
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
        let outcome = trainer::train(inputs.gpu, config, views, validation, inputs.checkpoints, progress)?;
        let mut metrics = serde_json::to_value(&outcome.metrics).expect("plain data has a JSON form");
        // Of all runs that led here through a checkpoint, not of the last one.
        metrics["training_seconds"] = (outcome.metrics.seconds.training + outcome.metrics.seconds.validation).into();
        let built = Built { distance: config.distance, ..Built::quantizer(outcome.projection, outcome.codebooks) };
        Ok(Fitted { built, metrics, interrupted: outcome.interrupted })
    }
}
