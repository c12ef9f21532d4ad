//! What every record of options has in common, so that a method may have one of its own.

use std::any::Any;

use engine::Result;
use serde_json::Value;
use train::views::ViewChoice;

use super::Input;

/// The options of a method. [`super::config::MethodConfig`] serves most methods; MICPQ and its variants have
/// [`train::TrainConfig`].
pub trait MethodOptions: Any + Send + Sync {
    fn bits(&self) -> usize;

    fn seed(&self) -> u64;

    fn input(&self) -> Input;

    /// How views are made, for a method that reads them.
    fn views(&self) -> ViewChoice;

    /// The options with one of them changed, by the name it is recorded under.
    fn with_option(&self, name: &str, value: Value) -> Result<Box<dyn MethodOptions>>;

    /// The default options of the same method and length for another input.
    fn reading(&self, input: Input) -> Result<Box<dyn MethodOptions>>;

    /// Returns an error for the first option that is out of its range.
    fn validate(&self) -> Result<()>;

    /// The options as a model records them. Their order is part of the names of the paper's cells.
    fn record(&self) -> Value;

    fn boxed(&self) -> Box<dyn MethodOptions>;
}

impl Clone for Box<dyn MethodOptions> {
    fn clone(&self) -> Self {
        self.as_ref().boxed()
    }
}
