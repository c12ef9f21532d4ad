//! The scan over packed codes: the nearest documents of a query, exactly, while most of them are only looked at through
//! one byte.
//!
//! A query is a table `[books, words]` of distances to codewords, and a document's distance is the sum of the table over
//! its code **in book order, in `f32`**. The tables are also kept rounded down to bytes, scaled to the distance of the
//! worst neighbour so far; their saturating sum over a document never exceeds the scaled true sum, so a document whose
//! sum is above the threshold cannot be a neighbour. What passes is summed in `f32`. The result is that of brute force,
//! whatever the CPU; equal distances go by key.
//!
//! # Layout
//!
//! Documents lie in blocks of 32, sorted by code. A block is the transpose of its documents' packed codes: byte `r` of
//! document `d` lies at `r * 32 + d`. With 16 words a byte holds two books, the even one in the low four bits; with 2
//! words it holds eight, four to a nibble, whose sixteen combinations make a table like that of a book of 16 words. So
//! one loop serves both: a nibble is looked up by a byte shuffle. Books of 256 words fill a byte, whose table is sixteen
//! of those.

mod bound;
mod find;
mod layout;
mod nearest;
mod pairs;
mod postings;
mod prefix;
mod sample;
mod sums;
#[cfg(test)]
mod tests;
mod topk;

pub use bound::Query;
pub use layout::{BLOCK, BlocksRef, Shape, gather, pack, prefix_bits, prefix_starts};
pub use nearest::nearest;
pub use postings::{lists_codes, nearest_by_code};
pub use prefix::Prefixes;
pub use sample::Sample;
pub use topk::{Effort, Neighbour, TopK};
