//! Exact search over codes: a query's table against every document's code.
//!
//! Nothing here opens a file; [`crate::index`] brings its codes here from wherever they lie.

mod flat;

pub use flat::{Flat, Hit};
