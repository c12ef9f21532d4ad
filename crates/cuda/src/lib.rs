//! The encoder's forward pass and the steps of training on an NVIDIA GPU.
//!
//! CUDA is loaded at its first use: the build needs nothing of it, and a machine without a GPU gets an [`Error`] that says
//! what is missing. Token ids go in and embeddings come out; this crate knows no documents and no files. `driver::library` finds
//! the vendor's libraries, [`Device`] is an opened GPU, [`Bert`] has an encoder's weights on it, and
//! [`Bert::encode_views`] encodes batches. [`Trainer`] is a model in training, [`Layer`] is a layer of filters over token
//! states, and [`InfoMax`] is DHIM's training on such a layer.
//!
//! A row of the result depends only on its own tokens and, with dropout, on its document number. Dropout masks equal those
//! of the CPU, bit for bit: a (key, document) pair is the same view on every device.

// Without the driver only the values at the surface are used.
#![cfg_attr(not(feature = "driver"), allow(dead_code))]

mod error;
mod shape;
mod values;

#[cfg(feature = "driver")]
mod driver;

// The same names, for a build without CUDA.
#[cfg(not(feature = "driver"))]
#[path = "absent.rs"]
mod driver;

pub use driver::{Bert, Device, InfoMax, Layer, Trainer, devices};
pub use error::{Error, Result};
pub use shape::{Activation, Dropout, Pooling, Precision, Shape};
pub use values::{
    DeviceInfo, InfoMaxHead, InfoMaxStep, LayerPart, Report, Source, Texts, TrainingAdam, TrainingLosses,
    TrainingObjective, TrainingShape,
};
