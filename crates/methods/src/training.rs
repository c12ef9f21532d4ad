//! A method with its options, and the texts it is trained on. The program, the Python package and the paper's runner all train
//! through here.

use std::path::Path;

use engine::encoder::Embedder;
use engine::text::Clean;
use engine::{Error, Progress, Result};
use train::TrainConfig;
use train::dataset::Dataset;
use train::job::Trained;
use train::views::ViewChoice;

use crate::config::MethodConfig;
use crate::method::{Fitted, Input, MethodHandle, Prepared};

/// A method with all of its options. MICPQ and its variants have those of [`TrainConfig`], the others those of
/// [`MethodConfig`].
#[derive(Clone)]
pub enum Training {
    Micpq(MethodHandle, Box<TrainConfig>),
    Other(Box<MethodConfig>),
}

impl Training {
    /// A registered method by its name, with its default options.
    ///
    /// ```
    /// let training = methods::Training::named("opq", 64)?;
    /// assert_eq!((training.bits(), training.seed()), (64, 0));
    /// # Ok::<(), engine::Error>(())
    /// ```
    pub fn named(method: &str, bits: usize) -> Result<Training> {
        let method = crate::find(method)?;
        let Some(variant) = method.variant() else {
            let config = MethodConfig::new(method, bits);
            config.validate()?;
            return Ok(Training::Other(Box::new(config)));
        };
        let mut config = TrainConfig::new(bits);
        variant.vary(&mut config);
        config.validate()?;
        Ok(Training::Micpq(method, Box::new(config)))
    }

    pub fn method(&self) -> &MethodHandle {
        match self {
            Training::Micpq(method, _) => method,
            Training::Other(config) => &config.method,
        }
    }

    pub fn bits(&self) -> usize {
        match self {
            Training::Micpq(_, config) => config.bits,
            Training::Other(config) => config.bits,
        }
    }

    pub fn seed(&self) -> u64 {
        match self {
            Training::Micpq(_, config) => config.seed,
            Training::Other(config) => config.seed,
        }
    }

    pub fn input(&self) -> Input {
        match self {
            Training::Micpq(..) => Input::Encoder,
            Training::Other(config) => config.input,
        }
    }

    /// How views are made, for a method that reads them.
    pub fn views(&self) -> Option<ViewChoice> {
        let choice = match self {
            Training::Micpq(_, config) => config.views,
            Training::Other(config) => config.views,
        };
        self.method().reads().views.then_some(choice)
    }

    /// The options of MICPQ or a variant of it.
    pub fn micpq(&self) -> Option<&TrainConfig> {
        match self {
            Training::Micpq(_, config) => Some(config),
            Training::Other(_) => None,
        }
    }

    /// The options of any other method.
    pub fn config(&self) -> Result<&MethodConfig> {
        match self {
            Training::Micpq(method, _) => Err(Error::config(format!("{method} does not take the options of MICPQ"))),
            Training::Other(config) => Ok(config),
        }
    }

    /// The options with one of them changed, by the name it is recorded under.
    pub fn with_option(self, name: &str, value: serde_json::Value) -> Result<Training> {
        Ok(match self {
            Training::Micpq(method, config) => Training::Micpq(method, Box::new(config.with_option(name, value)?)),
            Training::Other(config) => Training::Other(Box::new(config.with(name, value)?)),
        })
    }

    /// Returns an error for the first option that is out of its range.
    pub fn validate(&self) -> Result<()> {
        match self {
            Training::Micpq(_, config) => config.validate(),
            Training::Other(config) => config.validate(),
        }
    }

    /// The options as a model records them.
    pub fn record(&self) -> serde_json::Value {
        match self {
            Training::Micpq(_, config) => serde_json::to_value(config).expect("options have a JSON form"),
            Training::Other(config) => config.record(),
        }
    }

    pub fn needs_encoder(&self) -> bool {
        self.input() == Input::Encoder
    }

    /// Trains on prepared inputs.
    pub fn fit(&self, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted> {
        self.method().fit(self, inputs, progress)
    }
}

/// Texts to train on.
pub struct Task<'a> {
    /// A method that reads terms needs none.
    pub embedder: Option<&'a Embedder>,
    /// Cleaning of texts that are read by their terms.
    pub clean: Clean,
    /// Rate of dropout in the encoder's views.
    pub dropout: f64,
    pub corpus: &'a Dataset,
    /// Labelled queries whose P@100 chooses the best epoch.
    pub validation: Option<&'a Dataset>,
    /// Labelled queries that measure the finished model; they decide nothing.
    pub test: Option<&'a Dataset>,
    /// Folder of embeddings, views and checkpoints.
    pub cache: &'a Path,
}

impl<'a> Task<'a> {
    /// The job of MICPQ or a variant of it, which can train several models from one copy of the views.
    pub fn job(&self, method: &MethodHandle, views: ViewChoice) -> Result<train::job::Job<'a>> {
        Ok(train::job::Job {
            views,
            dropout: self.dropout,
            embedder: self.encoder(method)?,
            corpus: self.corpus,
            validation: self.validation,
            test: self.test,
            cache: self.cache,
        })
    }

    pub(crate) fn encoder(&self, method: &MethodHandle) -> Result<&'a Embedder> {
        self.embedder.ok_or_else(|| Error::config(format!("{method} needs an encoder; name one")))
    }
}

/// Records the name of the variant: `train` knows MICPQ alone.
pub fn named(mut trained: Trained, method: &MethodHandle) -> Trained {
    trained.model.config.method = method.name().into();
    trained
}
