//! Training and evaluation of micpq models.
//!
//! The modules follow the data. [`views`] of documents become batches. A [`step`] turns a batch into a loss and gradients;
//! its hard parts are [`quantizer`] and [`contrastive`]. The gradients update the [`parameters`]. The [`trainer`] runs
//! epochs of steps under a [`config`] and keeps the model that [`selection`] finds best. [`distillation`] trains codes for
//! the particular document from float search, [`kinds`] learns from a trained MICPQ to ask them for a kind, and [`query_encoder`] distils the encoder for queries. [`mod@evaluate`] measures the model
//! with the [`metrics`] of the field, beside exact [`float`] search.
//!
//! One seed gives one model, bit for bit, on any number of threads. Work is cut into pieces of fixed size, sums over pieces
//! run in a fixed order, and every random draw is a function of the seed and its address ([`random`]).
//!
//! This program trains codes of 16 bits on vectors and encodes them:
//!
//! ```
//! use engine::{Matrix, NoProgress};
//! use train::TrainConfig;
//! use train::vectors::{VectorJob, VectorViews, run};
//!
//! // 200 vectors of 8 values around ten centres.
//! let mut state = 1u64;
//! let mut uniform = || {
//!     state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
//!     (state >> 40) as f32 / (1 << 24) as f32 - 0.5
//! };
//! let centres: Vec<f32> = (0..10 * 8).map(|_| uniform()).collect();
//! let values: Vec<f32> = (0..200 * 8).map(|i| centres[i % centres.len()] + 0.1 * uniform()).collect();
//! let vectors = Matrix::from_vec(8, values);
//!
//! // A short run of a small model. Every option has its default in the config.
//! let config = TrainConfig { epochs: 3, hidden: 32, dim: 8, ..TrainConfig::new(16) };
//! let views = VectorViews::Noise(VectorViews::NOISE);
//! let job = VectorJob { config, vectors: vectors.as_slice(), width: vectors.cols(), views, cache: None };
//! let trained = run(&job, &NoProgress)?;
//! println!("{}", trained.summary());
//!
//! // A code is two bytes.
//! let codes = trained.model.encode(&vectors)?;
//! assert_eq!(codes.len(), 200 * 2);
//! # Ok::<(), engine::Error>(())
//! ```

pub mod config;
pub mod dataset;
pub mod job;
pub mod passes;
pub mod preset;
pub mod vectors;
pub mod views;

pub mod contrastive;
pub mod objective;
pub mod parameters;
pub mod quantizer;
pub mod step;

pub mod selection;
pub mod trainer;

pub mod distillation;
pub mod kinds;
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
#[cfg(test)]
mod golden;
mod gpu;
pub mod product;
mod vector_cache;

pub use checkpoint::Epoch;
pub use config::TrainConfig;
pub use evaluate::{Corpus, EvaluateConfig, Evaluation, evaluate};
pub use metrics::Labels;
pub use preset::Preset;
pub use selection::Validation;
pub use trainer::{Metrics, Outcome, Stopped, TrainRun};
pub use views::{Encode, ViewChoice, Views};
