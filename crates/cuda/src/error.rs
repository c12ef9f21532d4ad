//! Errors of the GPU, its libraries and their arguments.

pub type Result<T> = std::result::Result<T, Error>;

/// An error; its message says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library of the vendor is missing.
    #[error("{library} was not found (looked for {name} where the system's loader looks{places}); {advice}")]
    Missing {
        /// The library's descriptive name.
        library: &'static str,
        /// File name of the library.
        name: &'static str,
        /// Other folders that were searched, as a part of the message.
        places: String,
        advice: &'static str,
    },
    /// A library or a chip is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// There is no such GPU.
    #[error("GPU {ordinal} does not exist: this machine has {count}{hidden}; use a number below that, or the CPU")]
    NoDevice {
        /// The requested number.
        ordinal: usize,
        count: usize,
        /// The setting that may hide GPUs, as a part of the message, or empty.
        hidden: String,
    },
    /// An encoder whose shape the kernels do not support.
    #[error("the encoder's {what} is {found}, but on a GPU it must be {expected}; use the CPU for this encoder")]
    Shape {
        /// Field of the encoder's configuration.
        what: &'static str,
        found: String,
        /// The supported values.
        expected: String,
    },
    /// A tensor could not be read, or has a wrong length.
    #[error("tensor {name}: {source}")]
    Weights { name: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// An argument does not fit the encoder.
    #[error("{0}")]
    Input(String),
    /// The GPU has too little memory, even for one sequence.
    #[error("the GPU has too little memory for {what}{}; end other programs on it, or use the CPU", memory_sizes(*needed, *free, *total))]
    Memory {
        /// The allocation that failed.
        what: String,
        /// Requested MiB.
        needed: usize,
        /// Free MiB.
        free: usize,
        /// Total MiB; 0 where the driver did not report it.
        total: usize,
    },
    /// A value left the range of the precision.
    #[error("an embedding is not finite in {precision}: the encoder's states exceed its range; use {other}")]
    Range {
        /// The precision of the computation.
        precision: &'static str,
        /// The alternative.
        other: &'static str,
    },
    /// The driver or a library refused or failed.
    #[error("{doing}: {said}; {advice}")]
    Failed {
        doing: String,
        /// The driver's or the library's message.
        said: String,
        advice: &'static str,
    },
    /// The caller stopped the work.
    #[error("interrupted")]
    Interrupted,
}

fn memory_sizes(needed: usize, free: usize, total: usize) -> String {
    if total == 0 { String::new() } else { format!(" ({needed} MiB, {free} MiB free of {total} MiB)") }
}

impl Error {
    /// Too little memory, where the sizes are unknown.
    pub(crate) fn out_of_memory(what: &str) -> Self {
        Error::Memory { what: what.into(), needed: 0, free: 0, total: 0 }
    }

    pub(crate) fn shape(what: &'static str, found: impl ToString, expected: impl Into<String>) -> Self {
        Error::Shape { what, found: found.to_string(), expected: expected.into() }
    }

    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Error::Memory { .. })
    }
}
