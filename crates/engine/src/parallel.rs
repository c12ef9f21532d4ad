//! Work on every core, if there is more than one item.
//!
//! A thread outside the pool that gives it a single item waits for two wake-ups, 20 to 100 us. A text query did so five times.

use rayon::prelude::*;

use crate::Result;

/// The results of `work`, in order.
pub(crate) fn map<'a, T: Sync, U: Send>(items: &'a [T], work: impl Fn(&'a T) -> U + Sync + Send) -> Vec<U> {
    if items.len() > 1 { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}

/// The results of `work`, in order, or one of its errors.
pub(crate) fn try_map<T: Sync, U: Send>(items: &[T], work: impl Fn(&T) -> Result<U> + Sync + Send) -> Result<Vec<U>> {
    if items.len() > 1 { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}
