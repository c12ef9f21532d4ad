//! Document search in 16 to 128 bits per document.
//!
//! micpq trains on your own texts without labels, turns every document into a code of 2 to 16 bytes, and searches the codes
//! exactly. [`build`] goes from a corpus to an [`Index`]; a [`Searcher`] answers a [`Query`]; a [`Model`] is the trained
//! part. Everything else is a module: [`corpus`] reads documents, [`encoder`] embeds texts, [`index`] stores and updates,
//! [`query`] asks, [`pipeline`] has the steps of a build, [`methods`] every way to train.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use micpq::pipeline::{BuildConfig, ModelSource, Source};
//! use micpq::{CorpusConfig, NoProgress, Query, Result, SearchConfig, Searcher, Training, build};
//!
//! fn main() -> Result<()> {
//!     let (corpus, output) = (Path::new("news.jsonl"), Path::new("news.micpq"));
//!
//!     // Train on the documents and index them. Every option has its default in its config type.
//!     let config = BuildConfig::new(Training::named("micpq", 64)?);
//!     let read = CorpusConfig::default();
//!     let built = build(Source::Corpus(corpus, &read), output, ModelSource::Train, &config, &NoProgress)?;
//!     println!("{} documents in {:.0} s", built.documents, built.seconds);
//!
//!     // Ask. The encoder is loaded when the first text comes.
//!     let searcher = Searcher::open(output, &NoProgress)?;
//!     let search = SearchConfig { k: 5, filter: Some("year:[1987 TO 1988]".into()), ..SearchConfig::default() };
//!     let answers = searcher.search(&[Query::text("oil prices and the economy")], &search, &NoProgress)?;
//!     for hit in &answers[0].hits {
//!         println!("{:.3} {} {}", hit.score, hit.id, hit.text.as_deref().unwrap_or_default());
//!     }
//!     Ok(())
//! }
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
pub use {methods, train};

pub mod pipeline;
pub mod vectors;

pub use engine::corpus::{Corpus, CorpusConfig, DocId, Document, Value};
pub use engine::encoder::{Embedder, EmbedderConfig};
pub use engine::index::{Index, IndexConfig, IndexWriter};
pub use engine::model::Model;
pub use engine::query::{Hit, Query, SearchConfig, Searcher};
pub use methods::Training;
pub use pipeline::{BuildConfig, build};
