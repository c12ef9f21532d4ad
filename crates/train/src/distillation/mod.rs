//! Codes for the particular document and for its kind: two distillations into one product quantizer.
//!
//! The student starts at OPQ and may bend its space by a residual of one hidden layer ([`student`]). Every [`step`] compares
//! queries with a pool of documents by their hard codes, and moves the student towards two teachers. The local teacher is float
//! search, which knows the particular document; the global one is a trained MICPQ, which knows the kind. [`pool`] draws queries
//! and pools, [`trainer`] runs the steps, and [`balance`] says how much the global teacher counts.

pub mod balance;
pub mod pool;
pub mod step;
pub mod student;
pub mod trainer;

pub use balance::Balance;
pub use student::{Student, StudentSizes};
pub use trainer::{DistilConfig, Distilled, Teachers, distil};
