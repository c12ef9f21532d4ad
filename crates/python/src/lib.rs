//! The native half of the Python package `micpq`.
//!
//! Python's side (`python/micpq/`) has the names, types and words a user meets; here the work is done. Arguments arrive
//! checked for their kind, options as JSON text that converts into the engine's own config types, which check the rest.
//!
//! Invariants: nothing long runs under the interpreter's lock, every long call can be stopped by Ctrl-C or a [`work::Stop`],
//! an error is one of the package's classes, and no panic of ours ends the interpreter.

mod answers;
mod arrays;
mod documents;
mod errors;
mod formats;
mod index;
mod model;
mod options;
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
    use crate::model::{Flat, Model};
    #[pymodule_export]
    use crate::training::{build, train, train_vectors};
    #[pymodule_export]
    use crate::work::{Stop, set_threads, threads};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
