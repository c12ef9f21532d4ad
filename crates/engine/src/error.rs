//! One error type for the engine. Its variants are grouped by who must act.

use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

/// An error: what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option or argument is out of range or contradicts another: the caller must change it.
    #[error("{0}")]
    Config(String),

    /// A filter is malformed, too large, or refers to something the index lacks: the caller must change it.
    #[error("{problem}")]
    FilterSyntax {
        /// The character at which parsing fails, counted from 0, if known.
        position: Option<usize>,
        /// The filter, what is wrong with it, and what to do.
        problem: String,
    },

    /// A document or query is not usable: the owner of the data must look at `place`.
    #[error("{place}: {problem}")]
    Input {
        /// File and line, or the name of the input.
        place: String,
        /// What was expected, what was found, and what to do.
        problem: String,
    },

    /// A file of micpq or of the encoder is damaged, of another format or of another version.
    #[error("{}: {problem}", path.display())]
    Format {
        path: PathBuf,
        /// What was expected, what was found, and what to do.
        problem: String,
    },

    /// Another process holds a resource that this one needs.
    #[error("{0}")]
    Busy(String),

    /// A GPU is missing, cannot be used or has failed: the owner of the machine must act, or the CPU is used.
    #[error("{0}")]
    Device(String),

    /// The operating system returned an error.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },

    /// The user asked to stop. Finished work is not lost.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub fn config(problem: impl Into<String>) -> Self {
        Error::Config(problem.into())
    }

    /// An option has a value that is none of its names.
    pub fn unknown(option: &str, found: &str, known: &[&str]) -> Self {
        Error::Config(format!("unknown {option} '{found}'; known: {}", known.join(", ")))
    }

    pub fn filter(position: Option<usize>, problem: impl Into<String>) -> Self {
        Error::FilterSyntax { position, problem: problem.into() }
    }

    pub fn input(place: impl ToString, problem: impl Into<String>) -> Self {
        Error::Input { place: place.to_string(), problem: problem.into() }
    }

    pub fn device(problem: impl Into<String>) -> Self {
        Error::Device(problem.into())
    }

    pub fn format(path: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        Error::Format { path: path.as_ref().to_path_buf(), problem: problem.into() }
    }

    /// Wraps a system error with its path: `File::open(p).map_err(Error::io(p))`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { path, source }
    }
}
