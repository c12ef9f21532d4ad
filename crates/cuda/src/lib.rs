//! The encoder's forward pass and the steps of training on an NVIDIA GPU.
//!
//! CUDA is loaded at its first use: the build needs nothing of it, and a machine without a GPU gets an [`Error`] that says
//! what is missing. Token ids go in and embeddings come out; this crate knows no documents and no files. [`library`] finds
//! the vendor's libraries, [`Device`] is an opened GPU, [`Bert`] has an encoder's weights on it, and
//! [`Bert::encode_views`] encodes batches. [`Trainer`] is a model in training, [`Layer`] is a layer of filters over token
//! states, and [`InfoMax`] is DHIM's training on such a layer.
//!
//! A row of the result depends only on its own tokens and, with dropout, on its document number. Dropout masks equal those
//! of the CPU, bit for bit: a (key, document) pair is the same view on every device.

mod error;

mod library;

mod device;
mod memory;

mod compile;
mod gemm;
mod hopper;

mod shape;
mod weights;

mod batch;
mod forward;

mod encode;

mod infomax;
mod layer;
mod learned;
mod training;

pub use device::{Device, DeviceInfo, devices};
pub use encode::{Bert, Report};
pub use error::{Error, Result};
pub use infomax::{InfoMax, InfoMaxHead, InfoMaxStep};
pub use layer::{Layer, LayerPart, Texts};
pub use learned::TrainingAdam;
pub use shape::{Activation, Dropout, Pooling, Precision, Shape};
pub use training::{Trainer, TrainingLosses, TrainingObjective, TrainingShape};
pub use weights::Source;
