//! The scan over packed codes: it finds the exact nearest documents of a query, and rejects most documents by a sum of bytes.
//!
//! A query is a distance table `[codebooks, codewords]`, and a document's distance is the sum of the table over its code **in
//! codebook order, in `f32`**. The scan also has the tables rounded down to bytes, scaled to the distance of the worst
//! neighbour so far. Their saturating sum over a document never exceeds the scaled true sum, so a document whose byte sum is
//! above the threshold cannot be a neighbour. Documents that pass are summed in `f32`. The result equals brute force on every
//! CPU; equal distances are ordered by key.
//!
//! # Layout
//!
//! Documents lie in blocks of 32, sorted by code. A block is the transpose of its documents' packed codes: byte `r` of
//! document `d` lies at `r * 32 + d`. With 16 codewords a byte holds two codebooks, the even one in the low four bits. With 2
//! codewords it holds eight codebooks, four per nibble; their sixteen combinations make a table like that of a codebook of 16
//! codewords. So one loop serves both: a byte shuffle looks up a nibble. A codebook of 256 codewords fills a byte, and its
//! table is sixteen tables of 16.

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
pub use layout::{BLOCK, BlocksRef, Keys, Shape, gather, lay_out, pack, prefix_bits, prefix_starts};
pub use nearest::nearest;
pub use postings::{lists_codes, nearest_by_code};
pub use prefix::Prefixes;
pub use sample::Sample;
pub use topk::{Effort, Neighbour, TopK};
