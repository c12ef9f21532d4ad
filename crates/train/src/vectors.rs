//! Training on user vectors: embeddings of any encoder.

use std::path::Path;

use engine::{Error, Progress, Result};

use crate::config::TrainConfig;
use crate::job::Trained;
use crate::trainer::TrainRun;
use crate::views::{UserVectorViews, Views};

/// Where the views of user vectors come from.
#[derive(Clone, Debug)]
pub enum VectorViews<'a> {
    /// Noise with this factor times the standard deviation of the vectors.
    Noise(f64),
    /// Views the user computed, `[n, width]` each, at least two.
    Given(Vec<&'a [f32]>),
}

impl VectorViews<'_> {
    /// Default noise. Two views of a document stay nearer to each other than to most other documents, and still differ in
    /// every direction in which the vectors vary.
    pub const NOISE: f64 = 0.5;

    /// Views of `vectors [n, width]`, and how a model records them.
    pub fn prepare<'v>(&'v self, vectors: &'v [f32], width: usize) -> Result<(UserVectorViews<'v>, String)> {
        Ok(match self {
            VectorViews::Noise(scale) => (UserVectorViews::noisy(vectors, width, *scale)?, format!("spread:{scale}")),
            VectorViews::Given(views) => {
                (UserVectorViews::given(vectors, width, views.clone())?, format!("given:{}", views.len()))
            }
        })
    }
}

/// A training run on user vectors.
pub struct VectorJob<'a> {
    /// Its `views` option is ignored.
    pub config: TrainConfig,
    /// `[n, width]`, one vector per document.
    pub vectors: &'a [f32],
    pub width: usize,
    pub views: VectorViews<'a>,
    /// Directory of checkpoints; without it an interrupted run starts from the beginning.
    pub cache: Option<&'a Path>,
}

/// Trains a model. The model encodes vectors, not text.
pub fn run(job: &VectorJob, progress: &dyn Progress) -> Result<Trained> {
    job.config.validate()?;
    progress.stage("preparing views", None);
    let (views, record) = job.views.prepare(job.vectors, job.width)?;
    if views.documents() < 3 {
        return Err(Error::input(
            "vectors",
            format!(
                "there are {}; training compares documents and holds one out, so give at least 3",
                views.documents()
            ),
        ));
    }
    let checkpoints = job.cache.map(|dir| dir.join("runs"));
    let outcome = TrainRun::new(&job.config, &views).checkpoint(checkpoints.as_deref()).train(progress)?;
    let mut metrics = serde_json::to_value(&outcome.metrics).expect("plain data has a JSON form");
    metrics["training_documents"] = views.documents().into();
    let mut model = outcome.model(&job.config, None)?;
    model.config.training["views"] = record.into();
    Ok(Trained { model, metrics, interrupted: outcome.interrupted })
}
