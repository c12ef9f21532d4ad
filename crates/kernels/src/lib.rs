//! Every SIMD loop of micpq: the encoder's matrix products with their fused epilogues, and the scan over packed codes.
//!
//! Each loop has a plain-Rust reference, and the CPU's features are detected once, at run time. All backends give the same
//! bits: a product is one chain of fused multiply-adds over the inputs in order, and a sum over a row runs in sixteen lanes
//! that are folded in a stated order, for every register width. This crate knows no documents, no files and no models.

pub mod aligned;
pub mod attention;
pub mod bf16;
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
