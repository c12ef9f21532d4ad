//! One error type for the engine. Its variants are grouped by who must act.

use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

/// What would help against an error. The text of the error says it in words; a surface adds its own command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Build an index from a corpus.
    BuildIndex,
    /// Verify the index, which tells what is damaged.
    VerifyIndex,
    /// Distil the encoder for queries.
    Distil,
    /// Pull the encoder of this name, or any.
    PullEncoder(Option<String>),
    /// Train a model.
    TrainModel,
    /// Follow the topics of the index again.
    FollowTopics,
    /// Make a key for a server.
    MakeKey,
}

/// An error: what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option or argument is out of range or contradicts another: the caller must change it.
    #[error("{}{problem}", option.as_ref().map_or_else(String::new, |name| format!("{name} ")))]
    Config {
        /// Name of the option in its config type, if one option is wrong. A surface may have another name for it.
        option: Option<String>,
        /// What is wrong, and what to do. With an option, the sentence goes on after its name.
        problem: String,
        /// What would help, where it is a command of its own.
        remedy: Option<Remedy>,
    },

    /// A filter is malformed, too large, or refers to something the index lacks: the caller must change it.
    #[error("{problem}")]
    FilterSyntax {
        /// The character at which parsing fails, counted from 0, if known.
        position: Option<usize>,
        /// The filter, what is wrong with it, and what to do.
        problem: String,
    },

    /// An answer would be larger than the caller allows: the caller must ask for less.
    #[error("{0}")]
    TooLarge(String),

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
        /// What would help, where it is a command of its own.
        remedy: Option<Remedy>,
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
    /// Several options contradict each other, or no option is to blame.
    pub fn config(problem: impl Into<String>) -> Self {
        Error::Config { option: None, problem: problem.into(), remedy: None }
    }

    /// One option is wrong. `problem` goes on after its name: "is 0; give at least 1".
    pub fn option(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Config { option: Some(name.into()), problem: problem.into(), remedy: None }
    }

    /// Refuses an option that is no number from 1 to `max`.
    pub fn check_count(option: &str, value: usize, max: usize) -> Result<()> {
        match (1..=max).contains(&value) {
            true => Ok(()),
            false => Err(Error::option(option, format!("is {value}; give 1 to {max}"))),
        }
    }

    /// An option has a value that is none of its names.
    pub fn unknown(option: &str, found: &str, known: &[&str]) -> Self {
        Error::config(format!("unknown {option} '{found}'; known: {}", known.join(", ")))
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
        Error::Format { path: path.as_ref().to_path_buf(), problem: problem.into(), remedy: None }
    }

    /// The same with what would help. Only errors of options and of files have it.
    pub fn remedied(mut self, help: Remedy) -> Self {
        if let Error::Config { remedy, .. } | Error::Format { remedy, .. } = &mut self {
            *remedy = Some(help);
        }
        self
    }

    pub fn remedy(&self) -> Option<&Remedy> {
        match self {
            Error::Config { remedy, .. } | Error::Format { remedy, .. } => remedy.as_ref(),
            _ => None,
        }
    }

    /// Whether the process or the system has no file descriptor left (EMFILE, ENFILE).
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self, Error::Io { source, .. } if cfg!(unix) && matches!(source.raw_os_error(), Some(23 | 24)))
    }

    /// Wraps a system error with its path: `File::open(p).map_err(Error::io(p))`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { path, source }
    }
}
