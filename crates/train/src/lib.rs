//! Training and evaluation of micpq models.
//!
//! The modules follow the data. [`views`] of documents become batches. A [`step`] turns a batch into a loss and gradients;
//! its hard parts are [`quantizer`] and [`contrastive`]. The gradients update the [`parameters`]. The [`trainer`] runs
//! epochs of steps under a [`config`] and keeps the model that [`selection`] finds best. [`distillation`] trains codes for
//! the particular document and its kind from a trained MICPQ and float search. [`query_encoder`] distils the encoder for queries. [`mod@evaluate`] measures the model
//! with the [`metrics`] of the field, beside exact [`float`] search.
//!
//! One seed gives one model, bit for bit, on any number of threads. Work is cut into pieces of fixed size, sums over pieces
//! run in a fixed order, and every random draw is a function of the seed and its address ([`random`]).

pub mod config;
pub mod dataset;
pub mod job;
pub mod passes;
pub mod preset;
pub mod vectors;
pub mod views;

pub mod contrastive;
pub mod parameters;
pub mod quantizer;
pub mod step;

pub mod selection;
pub mod trainer;

pub mod distillation;
pub mod query_encoder;

pub mod evaluate;
pub mod float;
pub mod metrics;
pub mod recall;

pub mod random;
pub mod real;
pub mod untrained;

mod checkpoint;
mod cholesky;
mod gpu;
pub mod product;
mod vector_cache;

pub use checkpoint::Epoch;
pub use config::TrainConfig;
pub use evaluate::{Corpus, EvaluateConfig, Evaluation, evaluate};
pub use metrics::Labels;
pub use preset::Preset;
pub use selection::Validation;
pub use trainer::{Metrics, Outcome, Stopped, train};
pub use views::{Encode, ViewChoice, Views};
