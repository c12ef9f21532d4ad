//! A method with its options, and the texts it is trained on. The program, the Python package and the paper's runner all train
//! through here.

use std::any::Any;
use std::path::Path;

use engine::encoder::{Embedder, Pooling};
use engine::text::Clean;
use engine::{Error, Progress, Result};
use parking_lot::Mutex;
use train::dataset::Dataset;
use train::job::{Trained, Vectors};
use train::passes::Passes;
use train::views::ViewChoice;

use super::config::MethodConfig;
use super::options::MethodOptions;
use super::registry::MethodHandle;
use super::{Fitted, Input, Prepared};

/// A method with all of its options.
#[derive(Clone)]
pub struct Training {
    method: MethodHandle,
    options: Box<dyn MethodOptions>,
}

impl Training {
    /// A method with its default options for codes of `bits`.
    pub fn new(method: MethodHandle, bits: usize) -> Training {
        let options = method.own_options(bits);
        let options =
            options.unwrap_or_else(|| Box::new(MethodConfig::new(method.clone(), bits).reading(Input::Encoder)));
        Training { method, options }
    }

    /// A registered method by its name, with its default options.
    ///
    /// ```
    /// let training = methods::Training::named("opq", 64)?;
    /// assert_eq!((training.bits(), training.seed()), (64, 0));
    /// # Ok::<(), engine::Error>(())
    /// ```
    pub fn named(method: &str, bits: usize) -> Result<Training> {
        let training = Training::new(super::registry::find(method)?, bits);
        training.validate()?;
        Ok(training)
    }

    pub fn method(&self) -> &MethodHandle {
        &self.method
    }

    pub fn bits(&self) -> usize {
        self.options.bits()
    }

    pub fn seed(&self) -> u64 {
        self.options.seed()
    }

    pub fn input(&self) -> Input {
        self.options.input()
    }

    /// How views are made, for a method that reads them.
    pub fn views(&self) -> Option<ViewChoice> {
        self.method.reads().views.then(|| self.options.views())
    }

    /// The options of a method that has no record of its own.
    pub fn config(&self) -> Result<&MethodConfig> {
        let own = || Error::config(format!("{} has options of its own, not those of MethodConfig", self.method));
        self.own().ok_or_else(own)
    }

    /// The options, if their record is of this type.
    pub fn own<T: MethodOptions>(&self) -> Option<&T> {
        (self.options.as_ref() as &dyn Any).downcast_ref()
    }

    /// The options with one of them changed, by the name it is recorded under. `preset` names a published run of MICPQ; it
    /// replaces all options but the bits.
    pub fn with_option(self, name: &str, value: serde_json::Value) -> Result<Training> {
        Ok(Training { options: self.options.with_option(name, value)?, ..self })
    }

    /// The default options of the same method and length for another input.
    pub fn reading(self, input: Input) -> Result<Training> {
        if input == self.input() {
            return Ok(self);
        }
        Ok(Training { options: self.options.reading(input)?, ..self })
    }

    /// The same with views that suit the pooling of an encoder.
    pub fn suited_to(self, pooling: Pooling) -> Result<Training> {
        if !self.method.reads().views {
            return Ok(self);
        }
        let views = self.method.views(pooling).to_string();
        self.with_option("views", views.into())
    }

    /// Returns an error for the first option that is out of its range.
    pub fn validate(&self) -> Result<()> {
        self.options.validate()
    }

    /// The options as a model records them.
    pub fn record(&self) -> serde_json::Value {
        self.options.record()
    }

    pub fn needs_encoder(&self) -> bool {
        self.input() == Input::Encoder
    }

    /// Trains on prepared inputs.
    pub fn fit(&self, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted> {
        self.method.fit(self, inputs, progress)
    }
}

impl From<MethodConfig> for Training {
    fn from(config: MethodConfig) -> Training {
        Training { method: config.method.clone(), options: Box::new(config) }
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
    /// The corpus as the embedder reads it, where that is known already. The first training takes it.
    pub passes: Mutex<Option<Passes<'a>>>,
}

impl<'a> Task<'a> {
    /// Trains one model; gives the embeddings of the corpus with it. Stopped by the user after at least one epoch, it gives the
    /// best model so far.
    pub fn fit(&self, training: &Training, progress: &dyn Progress) -> Result<(Trained, Vectors)> {
        training.method().train(training, self, progress)
    }

    /// Trains several models of one method and hands each to `finished`, one call at a time. At most `parallel` of them run side
    /// by side, where the method can do that.
    pub fn fit_each(
        &self,
        trainings: &[Training],
        parallel: Option<usize>,
        finished: &(dyn Fn(&Training, Trained) -> Result<()> + Sync),
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some(first) = trainings.first() else { return Ok(()) };
        first.method().train_each(trainings, self, parallel, finished, progress)
    }

    pub(crate) fn encoder(&self, method: &str) -> Result<&'a Embedder> {
        self.embedder.ok_or_else(|| Error::config(format!("{method} needs an encoder; name one")))
    }
}
