//! Every SIMD loop of micpq: the encoder's matrix products with their fused edges, and the scan over packed codes.
//!
//! Each loop has a plain-Rust reference beside it, and the CPU is looked at once, at run time. All backends give the
//! same bits: a product is one chain of fused multiply-adds over the inputs in order, a sum over a row runs in sixteen
//! lanes folded in a stated order, whatever the width of the registers. Nothing here knows a document, a file or a model.

pub mod aligned;
pub mod attention;
pub mod bf16;
pub mod dispatch;
pub mod dropout;
pub mod elementwise;
pub mod gemm;
pub mod int8;
pub mod rows;
pub mod scan;
pub mod squares;

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
mod lanes;

pub use dispatch::Backend;
