//! Calls of the GPU, in the order the data travels: libraries, device, compiled kernels, weights, batches, training.

mod library;

mod device;
mod memory;

mod compile;
mod gemm;
mod hopper;

mod weights;

mod batch;
mod forward;

mod encode;

mod infomax;
mod layer;
mod learned;
mod training;

pub use device::{Device, devices};
pub use encode::Bert;
pub use infomax::InfoMax;
pub use layer::Layer;
pub use training::Trainer;
