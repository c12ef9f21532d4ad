//! One error type for the engine, its variants grouped by who must act.

use std::io;
use std::path::{Path, PathBuf};

/// `Result` with the engine's error.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option or argument is out of range or contradicts another: the caller must ask differently.
    #[error("{0}")]
    Config(String),

    /// A document or query is not usable: the owner of the data must look at `place`.
    #[error("{place}: {problem}")]
    Input {
        /// File and line, or the name of the input.
        place: String,
        /// What was expected, what was found, and what to do.
        problem: String,
    },

    /// A file of ours or of the encoder is damaged, foreign or of another version.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file or directory.
        path: PathBuf,
        /// What was expected, what was found, and what to do.
        problem: String,
    },

    /// Another process holds what this one needs.
    #[error("{0}")]
    Busy(String),

    /// A GPU is not there, cannot be used or has failed: who keeps the machine must act, or the CPU is used.
    #[error("{0}")]
    Device(String),

    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's own word.
        source: io::Error,
    },

    /// The user asked to stop; what was finished before is kept.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// An option that cannot be honoured.
    pub fn config(problem: impl Into<String>) -> Self {
        Error::Config(problem.into())
    }

    /// Data that cannot be used, with its place.
    pub fn input(place: impl ToString, problem: impl Into<String>) -> Self {
        Error::Input { place: place.to_string(), problem: problem.into() }
    }

    /// A GPU that cannot be used.
    pub fn device(problem: impl Into<String>) -> Self {
        Error::Device(problem.into())
    }

    /// A file that is not what it should be.
    pub fn format(path: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        Error::Format { path: path.as_ref().to_path_buf(), problem: problem.into() }
    }

    /// Wraps a system error with the path it happened on: `File::open(p).map_err(Error::io(p))`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { path, source }
    }
}
