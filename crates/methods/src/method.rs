//! A method: a name, the inputs it reads, its options, and a fit from prepared inputs to a model.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use engine::encoder::Pooling;
use engine::{Error, Progress, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::{Display, EnumString, VariantNames};
use train::Views;
use train::views::ViewChoice;

use crate::config::MethodConfig;
use crate::inputs::{Built, Inputs};
use crate::learn::Validation;
use crate::registry;
use crate::training::Training;
use crate::variants::Micpq;

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

    /// MICPQ or a variant of it, which has options of its own: [`train::TrainConfig`].
    fn variant(&self) -> Option<&Micpq> {
        None
    }

    /// Trains on prepared inputs.
    fn fit(&self, training: &Training, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted>;
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

/// A registered method. Parsed from, compared by and serialized as its name.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MethodHandle(Arc<dyn Method>);

impl MethodHandle {
    pub(crate) fn new(method: Arc<dyn Method>) -> Self {
        MethodHandle(method)
    }

    /// Whether it is MICPQ or a variant of it.
    pub fn is_micpq(&self) -> bool {
        self.variant().is_some()
    }

    /// Names of the options that count, beside method, bits, seed and input.
    pub(crate) fn option_names(&self) -> Vec<&str> {
        if self.is_micpq() {
            return Vec::new();
        }
        let reads = self.reads();
        let views: &[&str] = if reads.views { &["contrast_temperature", "views", "clean_first_epoch"] } else { &[] };
        let epochs: &[&str] =
            if reads.validation { &["epochs", "patience", "batch", "learning_rate", "held_out"] } else { &[] };
        [self.options(), views, epochs].concat()
    }
}

impl Deref for MethodHandle {
    type Target = dyn Method;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl fmt::Display for MethodHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for MethodHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for MethodHandle {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for MethodHandle {}

impl FromStr for MethodHandle {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        registry::find(name)
    }
}

impl TryFrom<String> for MethodHandle {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        registry::find(&name)
    }
}

impl From<MethodHandle> for String {
    fn from(method: MethodHandle) -> String {
        method.name().into()
    }
}
