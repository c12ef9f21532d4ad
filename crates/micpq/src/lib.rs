//! Document search in 16 to 128 bits per document.
//!
//! micpq trains on your own texts without labels, turns every document into a code of 2 to 16 bytes, and searches the codes
//! exactly. [`build`] goes from a corpus to an [`Index`]; a [`Searcher`] answers a [`Query`]; a [`Model`] is the trained
//! part. Everything else is a module: [`corpus`] reads documents, [`encoder`] embeds texts, [`index`] stores and updates,
//! [`query`] asks, [`pipeline`] has the steps of a build, [`methods`] every way to train.
//!
//! ```
//! use micpq::{BuildConfig, Document, EmbedderConfig, NoProgress, Query, SearchConfig, Searcher, Training};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let subjects = ["crude oil rises", "banks lend less", "wheat is harvested", "shares fall"];
//! let documents: Vec<Document> =
//!     (0..80u64).map(|i| Document::new(i, format!("{} in town {}", subjects[i as usize % 4], i / 4))).collect();
//!
//! // Train on the documents and index them. `build("news.jsonl", "news.micpq").run()` does it with a file and the defaults; here
//! // is a tiny encoder, and a method that is fitted in a moment.
//! let dir = tempfile::tempdir()?;
//! let embedding = EmbedderConfig { encoder: "../engine/tests/encoders/bert".into(), ..EmbedderConfig::default() };
//! let training = Training::named("opq", 32)?;
//! let config = BuildConfig { embedding, cache: Some(dir.path().join("cache")), ..BuildConfig::new(training) };
//! let built = micpq::build(&documents[..], dir.path().join("news.micpq")).config(config).run()?;
//! assert_eq!(built.documents, 80);
//!
//! // Ask. The encoder is loaded when the first text comes.
//! let searcher = Searcher::open(&dir.path().join("news.micpq"), &NoProgress)?;
//! let search = SearchConfig { k: 5, hybrid: 0.5, ..SearchConfig::default() };
//! let answers = searcher.search(&[Query::text("wheat is harvested in town 7")], &search, &NoProgress)?;
//! assert_eq!(answers[0].hits.len(), 5);
//! assert!(answers[0].hits[0].text.as_deref().unwrap().contains("wheat"));
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! All are on by default. A program that needs none of them compiles faster with `default-features = false`; what is missing
//! then is an error that names its feature.
//!
//! | feature | what it adds |
//! |---|---|
//! | `cuda` | encoding and training on an NVIDIA GPU; CUDA is loaded at run time |
//! | `hub` | encoders from the hub, embeddings of services |
//! | `parquet` | documents from Parquet and Arrow files, exports to them |
//! | `hdf5` | vectors from HDF5 files |
#![deny(unsafe_code)]

pub use engine::{Error, Matrix, NoProgress, Progress, Result};
pub use engine::{chunk, corpus, encoder, formats, index, language, model, query, search, shards, text};
pub use methods;

/// What training by hand needs: its options, datasets, views and measures. The steps of training are in the crate
/// `micpq-train`.
pub mod train {
    pub use ::train::{config, dataset, evaluate, job, metrics, preset, recall, vectors, views};
}

pub mod pipeline;
pub mod vectors;

pub use engine::corpus::{Corpus, CorpusConfig, DocId, Document, Value};
pub use engine::encoder::{Embedder, EmbedderConfig};
pub use engine::index::{Index, IndexConfig, IndexWriter};
pub use engine::model::Model;
pub use engine::query::{Hit, Query, SearchConfig, Searcher};
pub use methods::Training;
pub use pipeline::{Build, BuildConfig, Built, build};
