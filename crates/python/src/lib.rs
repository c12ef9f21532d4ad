//! The native half of the Python package `micpq`.
//!
//! `python/micpq/` is the API: names, types, docstrings. It checks the types of arguments. Options arrive here as JSON text
//! and convert into the engine's config types, which check their values.
//!
//! Invariants: no long work holds the interpreter's lock; Ctrl-C or a [`work::Stop`] stops every long call; every error is one
//! of the package's classes; no panic ends the interpreter.

mod answers;
mod arrays;
mod documents;
mod errors;
mod formats;
mod index;
mod methods;
mod model;
mod options;
mod shards;
mod training;
mod work;

use pyo3::prelude::*;

#[pymodule]
mod _micpq {
    #[pymodule_export]
    use crate::documents::Documents;
    #[pymodule_export]
    use crate::formats::{read_vectors, score};
    #[pymodule_export]
    use crate::index::Index;
    #[pymodule_export]
    use crate::methods::{paper, register_method};
    #[pymodule_export]
    use crate::model::{Flat, Model};
    #[pymodule_export]
    use crate::shards::{
        CorpusParts, Merger, Shard, language_of, language_sample, next_sequence_at, read_manifest, route, verify_shard,
        write_manifest,
    };
    #[pymodule_export]
    use crate::training::{ViewEncoder, build, build_defaults, train, train_vectors};
    #[pymodule_export]
    use crate::work::{Stop, set_threads, threads};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
