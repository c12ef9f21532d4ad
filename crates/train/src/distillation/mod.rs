//! Codes that keep more of float search than OPQ's: its answers are distilled into a product quantizer.
//!
//! The student starts at OPQ and may bend its space by a residual of one hidden layer ([`student`]). Every [`step`] compares
//! queries with a pool of documents by their hard codes, and moves the student towards the cosines of the embeddings. [`pool`]
//! draws queries and pools, and [`trainer`] runs the steps.

pub mod pool;
pub mod step;
pub mod student;
pub mod trainer;

pub use student::{Student, StudentSizes};
pub use trainer::{DistilConfig, DistillationRun, Distilled};
