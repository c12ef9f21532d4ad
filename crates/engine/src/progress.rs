//! Progress and cancellation of long work, independent of terminals.

use crate::{Error, Result};

/// Receives progress and answers whether to go on. Implementations must be cheap: they are called once per batch.
pub trait Progress: Sync {
    /// A new stage begins; `total` units where the number is known.
    fn stage(&self, name: &str, total: Option<u64>) {
        let _ = (name, total);
    }

    /// `n` more units of the present stage are done.
    fn advance(&self, n: u64) {
        let _ = n;
    }

    /// A short text beside the bar: a loss, a rate.
    fn detail(&self, text: &str) {
        let _ = text;
    }

    /// A line worth keeping: a skipped row, a finished epoch.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// A note that the user must not miss: the result is less than was asked for.
    fn warn(&self, text: &str) {
        self.note(text);
    }

    /// Whether the user asked to stop. Long loops ask at every batch and return [`crate::Error::Interrupted`].
    fn interrupted(&self) -> bool {
        false
    }

    /// Ends work that nobody waits for any more.
    fn go_on(&self) -> Result<()> {
        if self.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Reports nothing and never interrupts.
pub struct NoProgress;

impl Progress for NoProgress {}
