//! From vectors of any encoder to a model.

use std::path::Path;

use micpq::{Error, Result, Watch};

use crate::config::TrainConfig;
use crate::job::Trained;
use crate::selection::Validation;
use crate::trainer::train;
use crate::views::{BroughtViews, Views};

/// How views of brought vectors come about.
#[derive(Clone, Debug)]
pub enum VectorViews<'a> {
    /// Noise of so many times the spread of the vectors themselves.
    Noise(f64),
    /// Views the user brought too, `[n, width]` each, at least two.
    Given(Vec<&'a [f32]>),
}

impl VectorViews<'_> {
    /// The noise taken unless another is asked for: two views of a document stay nearer to each other than to most other
    /// documents, and yet differ in every direction the vectors spread in.
    pub const NOISE: f64 = 0.5;
}

/// A training run on vectors.
pub struct VectorJob<'a> {
    /// How to train; its `views` do not apply.
    pub config: TrainConfig,
    /// `[n, width]`, one vector a document.
    pub vectors: &'a [f32],
    /// Values in a vector.
    pub width: usize,
    /// What is compared in training.
    pub views: VectorViews<'a>,
    /// Where checkpoints are kept; without it a run that was stopped begins anew.
    pub cache: Option<&'a Path>,
}

/// Runs a job. Its model takes vectors, not text.
pub fn run(job: &VectorJob, watch: &dyn Watch) -> Result<Trained> {
    job.config.validate()?;
    watch.stage("preparing views", None);
    let (views, record) = match &job.views {
        VectorViews::Noise(scale) => (BroughtViews::noisy(job.vectors, job.width, *scale)?, format!("spread:{scale}")),
        VectorViews::Given(views) => {
            (BroughtViews::given(job.vectors, job.width, views.clone())?, format!("given:{}", views.len()))
        }
    };
    if views.documents() < 3 {
        return Err(Error::input(
            "vectors",
            format!(
                "there are {}; training compares documents with each other and holds one out, so it needs at least 3",
                views.documents()
            ),
        ));
    }
    let checkpoints = job.cache.map(|dir| dir.join("runs"));
    let outcome = train(None, &job.config, &views, Validation::HeldOut, checkpoints.as_deref(), watch)?;
    let mut metrics = serde_json::to_value(&outcome.metrics).expect("plain data has a JSON form");
    metrics["training_documents"] = views.documents().into();
    let mut model = outcome.model(&job.config, None)?;
    model.config.training["views"] = record.into();
    Ok(Trained { model, metrics, interrupted: outcome.interrupted })
}
