//! Search in a browser: from the tokens of a query to the numbers of the nearest documents.
//!
//! A web export is a page, this crate as WebAssembly, and the bytes of an index. Every step is the kernel that the program
//! runs, so a page finds the same documents in the same order. `docs/format.md` has the bytes.
//!
//! This program opens an export of two documents, made by hand, and searches it:
//!
//! ```
//! use web::{MAGIC, Search, VERSION};
//!
//! // Two codebooks of 16 codewords of one value, squared distance; two documents; two tokens with vectors of one value.
//! let mut bytes = MAGIC.to_vec();
//! for number in [VERSION, 2, 16, 1, 1, 2, 2, 1] {
//!     bytes.extend(number.to_le_bytes());
//! }
//! // What a byte of each token stands for; the layer from a mean of tokens to the projected vector: weight and bias.
//! for value in [0.125, 0.125, 1.0, 1.0, 0.0, 0.0f32] {
//!     bytes.extend(value.to_le_bytes());
//! }
//! // The codewords of both codebooks: -8 to 7.
//! for value in (0..32).map(|i| (i % 16 - 8) as f32) {
//!     bytes.extend(value.to_le_bytes());
//! }
//! // The tokens are 1 and -1. Parts begin at multiples of four bytes.
//! bytes.extend([8i8, -8, 0, 0].map(i8::cast_unsigned));
//! // The codes: codeword 9, which is 1, twice; codeword 7, which is -1, twice.
//! bytes.extend([0x99, 0x77]);
//!
//! let search = Search::open(&bytes)?;
//! let hits = search.nearest(&[1], 2)?;
//! assert_eq!(hits.iter().map(|hit| (hit.key, hit.distance)).collect::<Vec<_>>(), [(1, 0.0), (0, 8.0)]);
//! # Ok::<(), web::Problem>(())
//! ```

mod bytes;
#[cfg(target_arch = "wasm32")]
mod exports;
#[cfg(not(target_arch = "wasm32"))]
mod page;
mod search;

pub use bytes::{MAGIC, Problem, VERSION};
#[cfg(not(target_arch = "wasm32"))]
pub use page::{MAP_FILE, MAP_SCRIPTS, MAP_STYLE, PAGE};
pub use search::Search;
