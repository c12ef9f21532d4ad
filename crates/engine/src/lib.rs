//! Document search in 16 to 128 bits per document.
//!
//! The modules are declared in the order the data travels: a [`corpus`] yields documents, their [`text`] is cleaned and
//! becomes [`tokenizer`] ids, the [`encoder`] pools them into an embedding, the [`model`] projects the embedding and
//! quantizes it to a code, the [`index`] stores codes with ids, texts and attributes, [`search`] scans the codes, and
//! [`query`] answers a user's queries. [`duplicates`] finds what an
//! index holds twice, [`topics`] what it is about, a [`map`] shows it on a plane, and [`saved`] queries tell which new documents match.
//!
//! Embeddings computed elsewhere need no encoder. This program indexes three vectors with a model made by hand:
//!
//! ```
//! use engine::corpus::{DocId, Document};
//! use engine::index::{Index, IndexConfig};
//! use engine::model::{CodeShape, Codebooks, Dense, Distance, FORMAT, Model, ModelConfig, Projection};
//! use engine::query::{Query, SearchConfig, Searcher};
//! use engine::{Matrix, NoProgress};
//!
//! // Two codebooks of two codewords, -1 and 1: a code is the signs of two values. The projection changes nothing.
//! let shape = CodeShape::new(2, 2, 1)?;
//! let projection = Projection::new(vec![Dense::new(2, vec![1.0, 0.0, 0.0, 1.0], vec![0.0, 0.0])?])?;
//! let codebooks = Codebooks::new(shape, vec![-1.0, 1.0, -1.0, 1.0])?;
//! let config = ModelConfig {
//!     format: FORMAT,
//!     method: "signs".into(),
//!     shape,
//!     distance: Distance::Squared,
//!     embedding: None,
//!     training: serde_json::Value::Null,
//! };
//! let model = Model::new(config, projection, codebooks)?;
//!
//! let dir = tempfile::tempdir()?;
//! let index = Index::create(&dir.path().join("news.micpq"), &model, IndexConfig::default())?;
//! let document =
//!     |id, text: &str| Document { id: DocId::Int(id), text: text.into(), labels: vec![], attributes: vec![] };
//! let documents = [document(1, "Oil rises"), document(2, "Oil falls"), document(3, "Tea")];
//! let embeddings = Matrix::from_vec(2, vec![0.9, 0.8, 0.7, -0.9, -0.8, -0.6]);
//! let mut writer = index.writer()?;
//! writer.add_embeddings(&documents, &embeddings)?;
//! writer.commit(&NoProgress)?;
//! writer.close(&NoProgress)?;
//!
//! let config = SearchConfig { k: 2, ..SearchConfig::default() };
//! let answers = Searcher::new(index, None)?.search(&[Query::vector(vec![0.5, 1.0])], &config, &NoProgress)?;
//! assert_eq!(answers[0].hits[0].id, DocId::Int(1));
//! assert_eq!(answers[0].hits[1].text.as_deref(), Some("Oil falls"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants, written as absences: nothing here trains (that is the crate `train`), nothing here knows HTTP or a
//! terminal, `search` opens no file, and only the module `mmap` contains `unsafe`.
#![deny(unsafe_code)]
// Helpers of a feature that is off are not called.
#![cfg_attr(
    not(all(feature = "cuda", feature = "hdf5", feature = "hub", feature = "parquet")),
    allow(dead_code, unused_variables)
)]

pub mod corpus;
pub mod text;
pub mod tokenizer;

pub mod encoder;

pub mod chunk;
pub mod language;
pub mod model;

pub mod search;

mod clusters;

pub mod index;

pub mod query;

pub mod shards;

pub mod duplicates;
pub mod formats;
pub mod map;
pub mod saved;
pub mod topics;

pub mod error;
pub mod matrix;
pub mod memory;
pub mod progress;

mod disk;
#[allow(unsafe_code)]
mod mmap;
mod parallel;
#[cfg(all(test, unix))]
mod power;

/// What the other crates of this workspace share with this one: how files and directories are put in place, a memory map, documents
/// as bytes for another process, and the settings of an HTTP client. It may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::corpus::wire::{from_wire, to_wire};
    pub use crate::disk::{
        Replaces, StagedDirectory, beside, clear_folders, create_directories, parent, replace, sync_directory,
    };
    #[cfg(feature = "hub")]
    pub use crate::encoder::agent::agent_config;
    pub use crate::mmap::Map;
}

pub use error::{Error, Result};
pub use matrix::Matrix;
pub use progress::{NoProgress, Progress};
