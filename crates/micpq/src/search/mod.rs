//! Exact search over codes: a query's table against every document's code.
//!
//! Nothing here opens a file; [`crate::index`] brings its codes here from wherever they lie.

mod codes;
mod flat;
mod nearest;
mod plan;
mod selection;
mod want;

pub use codes::{CodeBlocks, FORMAT as CODES_FORMAT, Owner};
pub use flat::{Flat, Hit};
pub(crate) use nearest::{Found, Part, explained};
pub use plan::{Plan, Way};
pub(crate) use selection::Selection;
pub use want::Want;
pub(crate) use want::check;
