//! Exact search over codes: a query's distance table against every document's code.
//!
//! Nothing here opens a file; [`crate::index`] opens and maps its codes.

mod codes;
mod request;
mod selection;
mod nearest;
mod plan;
mod flat;

pub use codes::{CodeBlocks, FORMAT as CODES_FORMAT, Memory, Owner};
pub use flat::{Flat, Hit};
pub(crate) use nearest::{ScanHit, ScanSegment, explained};
pub use plan::{Plan, ScanStrategy};
pub use request::TopKRequest;
pub(crate) use request::check;
pub(crate) use selection::{DocumentColumns, FEW, Selection};
