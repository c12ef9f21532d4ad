//! What can go wrong between here and a GPU.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library of the vendor is not on this machine.
    #[error("{library} was not found (looked for {name} where the system's loader looks{places}); {advice}")]
    Missing {
        /// The library in words.
        library: &'static str,
        /// The file looked for.
        name: &'static str,
        /// Folders searched besides.
        places: String,
        /// What to do.
        advice: &'static str,
    },
    /// A library is there and does not do.
    #[error("{0}")]
    Unsupported(String),
    /// There is no such GPU.
    #[error("GPU {ordinal} does not exist: this machine shows {count}{hidden}; use a number below that, or the CPU")]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// GPUs there are.
        count: usize,
        /// What hides others, if anything does.
        hidden: String,
    },
    /// An encoder this crate cannot compute.
    #[error("the encoder's {what} is {found}, on a GPU it must be {expected}; use the CPU for this encoder")]
    Shape {
        /// The field.
        what: &'static str,
        /// Its value.
        found: String,
        /// Values that do.
        expected: String,
    },
    /// Weights that could not be had.
    #[error("tensor {name}: {source}")]
    Weights {
        /// The tensor's name.
        name: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Arguments that do not fit the encoder.
    #[error("{0}")]
    Input(String),
    /// The GPU has too little memory, even for one sequence.
    #[error("the GPU has too little memory for {what}{}; end other programs on it, or use the CPU", room(*needed, *free, *total))]
    Memory {
        /// What did not fit.
        what: String,
        /// MiB asked for.
        needed: usize,
        /// MiB free.
        free: usize,
        /// MiB in all; 0 where the driver did not say.
        total: usize,
    },
    /// A value left the range of the precision.
    #[error("a feature is not finite in {precision}: the encoder's states leave its range; use {other}")]
    Range {
        /// What it was computed in.
        precision: &'static str,
        /// What has more range.
        other: &'static str,
    },
    /// The driver or a library refused or failed.
    #[error("{doing}: {said}; {advice}")]
    Failed {
        /// What was being done.
        doing: String,
        /// The driver's words.
        said: String,
        /// What to do.
        advice: &'static str,
    },
    /// The caller stopped it.
    #[error("interrupted")]
    Interrupted,
}

fn room(needed: usize, free: usize, total: usize) -> String {
    if total == 0 { String::new() } else { format!(" ({needed} MiB, {free} MiB free of {total} MiB)") }
}

impl Error {
    /// Memory was short where nobody knows how much was wanted.
    pub(crate) fn short(what: &str) -> Self {
        Error::Memory { what: what.into(), needed: 0, free: 0, total: 0 }
    }

    pub(crate) fn shape(what: &'static str, found: impl ToString, expected: impl Into<String>) -> Self {
        Error::Shape { what, found: found.to_string(), expected: expected.into() }
    }

    /// Whether it is only memory that was short.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Error::Memory { .. })
    }
}
