//! Training on embeddings that the user computed elsewhere.

use std::path::Path;

use engine::{Error, Matrix, Progress, Result};
use methods::Training;
use methods::training::named;
use train::job::Trained;
use train::vectors::{VectorJob, VectorViews};

/// Embeddings `[documents, width]`, and how a method that compares views gets them: the user's own, or noise around each
/// vector.
pub struct UserVectors<'a> {
    values: &'a [f32],
    width: usize,
    views: Option<VectorViews<'a>>,
}

impl<'a> UserVectors<'a> {
    pub fn new(values: &'a [f32], width: usize) -> Self {
        UserVectors { values, width, views: None }
    }

    pub fn views(self, views: VectorViews<'a>) -> Self {
        UserVectors { views: Some(views), ..self }
    }
}

impl<'a> From<&'a Matrix> for UserVectors<'a> {
    fn from(rows: &'a Matrix) -> Self {
        UserVectors::new(rows.as_slice(), rows.cols())
    }
}

/// Trains a model on user vectors. `cache` takes checkpoints: an interrupted training continues from them.
pub fn train_on_vectors<'a>(
    training: &Training,
    vectors: impl Into<UserVectors<'a>>,
    cache: &Path,
    progress: &dyn Progress,
) -> Result<Trained> {
    let UserVectors { values: vectors, width, views } = vectors.into();
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
