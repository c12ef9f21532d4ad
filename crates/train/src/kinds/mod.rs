//! Tables by kind: which codewords do the documents have that a trained MICPQ puts beside a query?
//!
//! ```text
//! x_q -- ReLU(W1 x + b1) -- W2 u + b2 = T_q [codebooks, codewords]       s_qd = - sum over codebooks of T_q at the code of d
//! loss: cross entropy of softmax(s_q) to softmax(cosine of q and d in the space of the teacher / temperature)
//! ```
//!
//! The codes are fixed, so what they keep of the particular document stays as it is; only the query is asked in another way.
//! [`head`] holds the parameters, [`step`] one step over a batch of queries and random documents, [`trainer`] the run.

pub mod head;
pub mod step;
pub mod trainer;

pub use head::{Head, HeadSizes};
pub use trainer::{Kinds, KindsConfig, KindsTeacher, learn};
