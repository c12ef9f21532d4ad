//! What is to be trained, MICPQ or another system, and on what: every surface goes through here.

use std::path::Path;

use micpq::encoder::Features;
use micpq::text::Clean;
use micpq::{Error, Result, Watch};
use train::TrainConfig;
use train::dataset::Dataset;
use train::job::{Trained, Vectors};
use train::views::ViewChoice;

use crate::config::SystemConfig;
use crate::job::Job;
use crate::method::{Input, Method};

/// What is to be trained.
pub enum Training {
    /// MICPQ or a variant of it.
    Micpq(Method, Box<TrainConfig>),
    /// Another system.
    System(Box<SystemConfig>),
}

impl Training {
    /// The system.
    pub fn method(&self) -> Method {
        match self {
            Training::Micpq(method, _) => *method,
            Training::System(config) => config.method,
        }
    }

    /// Bits of the code.
    pub fn bits(&self) -> usize {
        match self {
            Training::Micpq(_, config) => config.bits,
            Training::System(config) => config.bits,
        }
    }

    /// Seed of the run.
    pub fn seed(&self) -> u64 {
        match self {
            Training::Micpq(_, config) => config.seed,
            Training::System(config) => config.seed,
        }
    }

    /// MICPQ's own options, where it is MICPQ or a variant.
    pub fn micpq(&self) -> Option<&TrainConfig> {
        match self {
            Training::Micpq(_, config) => Some(config),
            Training::System(_) => None,
        }
    }

    /// Whether an encoder has to be there.
    pub fn needs_encoder(&self) -> bool {
        !matches!(self, Training::System(config) if config.input == Input::Tfidf)
    }
}

/// What to train from.
pub struct Task<'a> {
    /// The encoder; a system that is given words needs none.
    pub features: Option<&'a Features>,
    /// Cleaning of texts that are taken by their words.
    pub clean: Clean,
    /// Rate of dropout in the encoder's views.
    pub dropout: f64,
    /// What to train on.
    pub corpus: &'a Dataset,
    /// Labelled queries by whose P@100 the best epoch is chosen.
    pub validation: Option<&'a Dataset>,
    /// Labelled queries the finished model is measured by; they decide nothing.
    pub test: Option<&'a Dataset>,
    /// Where vectors, views and checkpoints are kept.
    pub cache: &'a Path,
}

impl<'a> Task<'a> {
    /// One model, with the corpus's vectors.
    pub fn fit(&self, training: &Training, watch: &dyn Watch) -> Result<(Trained, Vectors)> {
        match training {
            Training::Micpq(method, config) => {
                let (trained, vectors) = self.job(*method, config.views)?.fit(config, watch)?;
                Ok((named(trained, *method), vectors))
            }
            Training::System(config) => Job { config, task: self }.run(watch),
        }
    }

    /// The run of MICPQ or a variant of it, which may train several models from one copy of its views.
    pub fn job(&self, method: Method, views: ViewChoice) -> Result<train::job::Job<'a>> {
        Ok(train::job::Job {
            views,
            dropout: self.dropout,
            features: self.encoder(method)?,
            corpus: self.corpus,
            validation: self.validation,
            test: self.test,
            cache: self.cache,
        })
    }

    /// The encoder, which `method` cannot do without.
    pub(crate) fn encoder(&self, method: Method) -> Result<&'a Features> {
        self.features.ok_or_else(|| Error::config(format!("{method} needs an encoder; name one")))
    }
}

/// A variant of MICPQ says which it is.
pub fn named(mut trained: Trained, method: Method) -> Trained {
    trained.model.config.method = method.name().into();
    trained
}
