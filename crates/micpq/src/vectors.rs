//! Training on embeddings that the user computed elsewhere.

use std::path::Path;

use engine::{Error, Matrix, Progress, Result};
use methods::Training;
use methods::training::named;
use train::job::Trained;
use train::vectors::{VectorJob, VectorViews};

/// Trains a model on `vectors` `[documents, width]`. Some methods compare views: the user's own, or noise around each vector.
pub fn train_on_vectors(
    training: &Training,
    vectors: &[f32],
    width: usize,
    views: Option<VectorViews>,
    cache: &Path,
    progress: &dyn Progress,
) -> Result<Trained> {
    let trained = match training {
        Training::Other(config) => {
            if matches!(views, Some(VectorViews::Given(_))) && !config.method.reads().views {
                return Err(Error::config(format!("{} takes no views; leave them out", config.method)));
            }
            let rows = Matrix::from_vec(width, vectors.to_vec());
            let views = views.unwrap_or(VectorViews::Noise(VectorViews::NOISE));
            methods::job::of_vectors(config, rows, &views, Some(&cache.join("runs")), progress)?
        }
        Training::Micpq(method, config) => {
            let views = views.unwrap_or(VectorViews::Noise(VectorViews::NOISE));
            let job = VectorJob { config: (**config).clone(), vectors, width, views, cache: Some(cache) };
            named(train::vectors::run(&job, progress)?, method)
        }
    };
    // The checkpoint stays, and the same call goes on from it.
    if trained.interrupted { Err(Error::Interrupted) } else { Ok(trained) }
}
