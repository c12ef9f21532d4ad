//! Search in a browser: from the tokens of a query to the numbers of the nearest documents.
//!
//! A web export is a page, this crate as WebAssembly, and the bytes of an index. Every step is the kernel that the program
//! runs, so a page finds the same documents in the same order. `docs/format.md` has the bytes.

mod bytes;
#[cfg(target_arch = "wasm32")]
mod exports;
#[cfg(not(target_arch = "wasm32"))]
mod page;
mod search;

pub use bytes::{MAGIC, VERSION};
#[cfg(not(target_arch = "wasm32"))]
pub use page::PAGE;
pub use search::{Problem, Search};
