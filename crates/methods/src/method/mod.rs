//! A method: a name, the inputs it reads, its options, and a fit from prepared inputs to a model.

pub mod config;
pub mod job;
pub mod options;
pub mod registry;
pub mod training;

use std::path::Path;

use engine::encoder::Pooling;
use engine::{Error, Progress, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::{Display, EnumString, VariantNames};
use train::Views;
use train::job::{Trained, Vectors};
use train::views::ViewChoice;

use crate::inputs::{Built, Inputs, Validation};
use config::MethodConfig;
use job::UserVectors;
use options::MethodOptions;
use training::{Task, Training};

/// A way to train a model.
///
/// Three kinds cover most methods, so that one is a constant in its file: [`crate::GradientMethod`], [`crate::Quantization`]
/// and, for users, [`crate::EmbeddingMethod`].
pub trait Method: Send + Sync {
    /// The name users write, recorded in every model.
    fn name(&self) -> &str;

    fn reads(&self) -> Reads;

    /// The fields of [`MethodConfig`] that count for this method alone. Those of views, epochs and terms follow from
    /// [`Method::reads`].
    fn options(&self) -> &[&'static str] {
        &[]
    }

    /// Options that [`MethodConfig`] has no field for, with their defaults.
    fn extra_options(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Version of the implementation, raised when the same options and data give another model. The paper's cells are named by it.
    fn revision(&self) -> u32 {
        1
    }

    /// The defaults of this method, from those all methods share.
    fn defaults(&self, base: MethodConfig) -> MethodConfig {
        base
    }

    /// The defaults on embeddings, where they differ from those on terms.
    fn encoder_defaults(&self, config: MethodConfig) -> MethodConfig {
        config
    }

    /// How views are made by default.
    fn views(&self, pooling: Pooling) -> ViewChoice {
        ViewChoice::suited_to(pooling)
    }

    /// Decisions of ours where the literature is silent, recorded in the model.
    fn assumptions(&self, _input: Input) -> String {
        String::new()
    }

    /// A record of options of its own, with its defaults, where [`MethodConfig`] does not fit.
    fn own_options(&self, _bits: usize) -> Option<Box<dyn MethodOptions>> {
        None
    }

    /// Trains on prepared inputs.
    fn fit(&self, training: &Training, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted>;

    /// Trains on texts: prepares what the method reads, fits it, measures the model. Gives the embeddings of the texts with it.
    fn train(&self, training: &Training, task: &Task, progress: &dyn Progress) -> Result<(Trained, Vectors)> {
        job::train(training, task, progress)
    }

    /// Trains several models of this method on the same texts and hands each to `finished`, one call at a time. At most
    /// `parallel` of them run side by side, where the method can do that.
    fn train_each(
        &self,
        trainings: &[Training],
        task: &Task,
        _parallel: Option<usize>,
        finished: &(dyn Fn(&Training, Trained) -> Result<()> + Sync),
        progress: &dyn Progress,
    ) -> Result<()> {
        trainings.iter().try_for_each(|training| finished(training, self.train(training, task, progress)?.0))
    }

    /// Trains on user vectors. `cache` takes checkpoints.
    fn train_on_vectors(
        &self,
        training: &Training,
        vectors: &UserVectors,
        cache: &Path,
        progress: &dyn Progress,
    ) -> Result<Trained> {
        job::train_on_vectors(training, vectors, cache, progress)
    }
}

/// The inputs of a method. Every method but those that read token states can read embeddings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Rows of term weights in place of embeddings, if the user wants.
    pub terms: bool,
    /// States of every token in place of embeddings.
    pub token_states: bool,
    /// Two views of every document.
    pub views: bool,
    /// Validation queries, or held-out documents, after every epoch. A method without epochs reads none.
    pub validation: bool,
}

/// Inputs ready to train on.
pub struct Prepared<'a> {
    pub documents: &'a Inputs,
    /// Labelled queries that choose the best epoch. Without them documents are held out.
    pub validation: Option<Validation<'a>>,
    /// For methods that read views.
    pub views: Option<&'a dyn Views>,
    /// The GPU of the encoder.
    pub gpu: Option<&'a cuda::Device>,
    /// Folder of checkpoints, for methods that go on where they were stopped.
    pub checkpoints: Option<&'a Path>,
}

impl<'a> Prepared<'a> {
    /// Documents and nothing else.
    pub fn documents(documents: &'a Inputs) -> Self {
        Prepared { documents, validation: None, views: None, gpu: None, checkpoints: None }
    }
}

pub struct Fitted {
    pub built: Built,
    /// Curves, scores, codeword usage, seconds.
    pub metrics: Value,
    /// Whether the user stopped it before its end.
    pub interrupted: bool,
}

/// The part of a text that a method reads.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Display, EnumString, VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_input)]
pub enum Input {
    /// Embeddings, or token states.
    Encoder,
    /// Sparse rows of term weights.
    Tfidf,
}

fn unknown_input(name: &str) -> Error {
    Error::unknown("input", name, Input::VARIANTS)
}
