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
//!
//! This program encodes a sequence of tokens with the weights of a Hugging Face directory:
//!
//! ```no_run
//! use cuda::{Activation, Bert, Device, Pooling, Precision, Shape};
//! use safetensors::SafeTensors;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // A machine without a GPU gets an error that says what is missing.
//!     let device = Device::open(0)?;
//!     println!("{} with {} MiB", device.info().name, device.info().memory >> 20);
//!
//!     // The sizes of all-MiniLM-L6-v2.
//!     let shape = Shape {
//!         hidden: 384,
//!         heads: 12,
//!         layers: 6,
//!         intermediate: 1536,
//!         vocab: 30_522,
//!         positions: 512,
//!         epsilon: 1e-12,
//!         activation: Activation::Gelu,
//!     };
//!     let file = std::fs::read("all-MiniLM-L6-v2/model.safetensors")?;
//!     let tensors = SafeTensors::deserialize(&file)?;
//!     let read = |name: &str| {
//!         let (values, _) = tensors.tensor(name)?.data().as_chunks::<4>();
//!         Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
//!     };
//!     let bert = Bert::new(&device, shape, Precision::F16, &read)?;
//!
//!     // "hello world" between [CLS] and [SEP], without dropout. The last argument counts what is done and may stop it.
//!     let mut embedding = vec![0.0; shape.hidden];
//!     let tokens: &[u32] = &[101, 7592, 2088, 102];
//!     bert.encode_views(&[tokens], Pooling::Mean, &[None], &mut [&mut embedding], &|_| true)?;
//!     println!("{:?} ...", &embedding[..4]);
//!     Ok(())
//! }
//! ```

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
