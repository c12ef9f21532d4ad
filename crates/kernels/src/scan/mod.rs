//! The scan over packed codes.

mod topk;

pub use topk::{Neighbour, TopK};
