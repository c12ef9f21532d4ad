//! Training on embeddings that the user computed elsewhere.

use std::path::Path;

use engine::{Error, Progress, Result};
use methods::Training;
pub use methods::UserVectors;
use train::job::Trained;

/// Trains a model on user vectors. `cache` takes checkpoints: an interrupted training continues from them.
pub fn train_on_vectors<'a>(
    training: &Training,
    vectors: impl Into<UserVectors<'a>>,
    cache: &Path,
    progress: &dyn Progress,
) -> Result<Trained> {
    let trained = training.method().train_on_vectors(training, &vectors.into(), cache, progress)?;
    // The checkpoint stays, and the same call goes on from it.
    if trained.interrupted { Err(Error::Interrupted) } else { Ok(trained) }
}
