//! Every SIMD loop of micpq: the encoder's matrix products with their fused epilogues, and the scan over packed codes.
//!
//! Each loop has a plain-Rust reference, and the CPU's features are detected once, at run time. All backends give the same
//! bits: a product is one chain of fused multiply-adds over the inputs in order, and a sum over a row runs in sixteen lanes
//! that are folded in a stated order, for every register width. This crate knows no documents, no files and no models.
//!
//! This program finds the two nearest of three codes:
//!
//! ```
//! use kernels::Backend;
//! use kernels::scan::{BlocksRef, Query, Shape, TopK, nearest, pack};
//!
//! // Two codebooks of 16 codewords: a code is a byte, with the first codebook in its low four bits.
//! let shape = Shape::new(2, 16);
//! let codes = [0x21, 0x34, 0x7f];
//!
//! // Blocks hold codes in rising order; the keys say which document each of them is.
//! let mut order: Vec<u32> = (0..3).collect();
//! order.sort_by_key(|&i| codes[i as usize]);
//! let bytes = pack(shape, &codes, &order);
//! let keys: Vec<[u8; 4]> = order.iter().map(|i| i.to_le_bytes()).collect();
//! let blocks = BlocksRef::new(shape, codes.len(), &bytes, &keys, &[]);
//!
//! // The distances of a query to all codewords: 0 to the fourth of the first codebook and the third of the second, else 1.
//! let mut table = vec![1.0; 32];
//! (table[4], table[16 + 3]) = (0.0, 0.0);
//! let query = Query::new(shape, &table);
//! let mut best = [TopK::new(2)];
//! nearest(Backend::active(), &blocks, 0..blocks.len(), &[&query], &mut best, None);
//!
//! let [best] = best;
//! let found: Vec<(u32, f32)> = best.into_sorted().iter().map(|hit| (hit.key, hit.distance)).collect();
//! assert_eq!(found, [(1, 0.0), (0, 2.0)]);
//! ```

pub mod aligned;
pub mod attention;
pub mod bf16;
pub mod bytes;
pub mod dispatch;
pub mod dropout;
pub mod elementwise;
pub mod gemm;
pub mod int8;
pub mod pieces;
pub mod rows;
pub mod scan;
pub mod squares;

#[cfg(target_arch = "x86_64")]
mod amx;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod prefetch;

pub use dispatch::Backend;
