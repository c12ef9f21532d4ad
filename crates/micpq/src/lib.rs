//! Document search in 16 to 128 bits a document.
//!
//! The modules are declared in the order the data travels: a [`corpus`] yields documents, their [`text`] is cleaned and
//! becomes [`tokenizer`] ids, the [`encoder`] pools them into a feature vector, the [`model`] refines the vector and
//! rounds it to a code, the [`index`] keeps codes beside ids, texts and attributes, [`search`] scans the codes, and
//! [`query`] answers what a user asks.
//!
//! Invariants, written as absences: nothing here trains (that is the crate `train`), nothing here knows HTTP or a
//! terminal, `search` opens no file, and only [`mmap`] contains `unsafe`.
#![deny(unsafe_code)]

pub mod corpus;
pub mod encoder;
pub mod formats;
pub mod index;
pub mod model;
pub mod query;
pub mod search;
pub mod text;
pub mod tokenizer;

pub mod disk;
pub mod error;
pub mod matrix;
#[allow(unsafe_code)]
pub mod mmap;
pub mod npy;
pub mod watch;

pub use error::{Error, Result};
pub use matrix::Matrix;
pub use watch::{Silent, Watch};

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
