//! The encoder's forward pass and the steps of training on an NVIDIA GPU.
//!
//! CUDA is loaded when it is first asked for: nothing of it is needed to build, and a machine without a GPU gets an
//! [`Error`] that says what is missing. Token ids go in and features come out; this crate knows no documents and no
//! files. [`library`] finds the vendor's libraries, [`Device`] is an opened GPU, [`Bert`] holds an encoder's weights on
//! it and [`Bert::encode_views`] takes batches through it; [`Trainer`] is a model in training;
//! [`Layer`] reads token states, and [`InfoMax`] is DHIM's training behind one.
//!
//! A row of the result depends on its own tokens (and, with dropout, on its own number) alone. Dropout masks are those
//! of the CPU, bit for bit: a (key, document) pair is one view wherever it is computed.

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
