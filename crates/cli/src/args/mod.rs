//! Flags as the user types them. They only convert into the config types of the engine and the trainer, which validate.

mod build;
mod corpus;
#[cfg(test)]
mod defaults_tests;
mod duplicates;
mod embedding;
mod index;
mod machine;
mod models;
mod search;
mod training;

use std::sync::OnceLock;

use engine::encoder::Device;

pub use build::{Build, Sync, TextArgs};
pub use corpus::CorpusArgs;
pub use duplicates::DuplicateArgs;
pub use embedding::{ComputingArgs, EmbeddingArgs};
pub use index::{CopyArgs, Index};
pub use machine::{CacheCommand, EncoderCommand, Serve};
pub use models::{Encode, Eval, Paper, Train};
pub use search::Search;
pub use training::TrainingArgs;

/// The value of `--device`. It holds for the whole process, like the number of threads.
static DEVICE: OnceLock<Device> = OnceLock::new();

pub fn device() -> Device {
    DEVICE.get().copied().unwrap_or_default()
}

pub fn set_device(device: Device) {
    DEVICE.get_or_init(|| device);
}
