//! Methods fitted to embeddings at once, without epochs: PQ, OPQ and LOPQ.

use std::time::Instant;

use engine::model::{Codebooks, Projection};
use engine::{Error, Matrix, Progress, Result};
use train::random::{Purpose, Stream};

use crate::config::MethodConfig;
use crate::inputs::{Built, Inputs};
use crate::method::{Fitted, Input, Method, Prepared, Reads};
use crate::training::Training;

/// A projection and codebooks fitted to embeddings.
pub struct Quantizer {
    /// One dense layer: the rotation.
    pub projection: Projection,
    pub codebooks: Codebooks,
    /// Mean squared distance of the rotated embeddings from their codewords.
    pub error: f64,
}

/// A method that fits a [`Quantizer`] to a sample of the embeddings.
pub struct Quantization {
    pub name: &'static str,
    /// Fields of [`MethodConfig`] that count for this method.
    pub options: &'static [&'static str],
    /// Decisions of ours where the literature is silent.
    pub assumptions: &'static str,
    pub fit: fn(&MethodConfig, &Matrix, &dyn Progress) -> Result<Quantizer>,
}

/// At most `max` rows of `points`, drawn evenly by the seed and in their order.
pub fn sampled(points: &Matrix, max: usize, seed: u64) -> Matrix {
    if points.rows() <= max {
        return points.clone();
    }
    let mut order = Stream::new(seed, Purpose::Method, &[4]).permutation(points.rows());
    order.truncate(max);
    order.sort_unstable();
    points.select(&order.into_iter().map(|i| i as usize).collect::<Vec<_>>())
}

impl Method for Quantization {
    fn name(&self) -> &str {
        self.name
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn options(&self) -> &[&'static str] {
        self.options
    }

    fn assumptions(&self, _: Input) -> String {
        self.assumptions.into()
    }

    fn fit(&self, training: &Training, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted> {
        let config = training.config()?;
        let Inputs::Embeddings(embeddings) = inputs.documents else {
            return Err(Error::config(format!("{} reads embeddings alone", self.name)));
        };
        progress.stage("quantizing", None);
        let begun = Instant::now();
        let found = (self.fit)(config, &sampled(embeddings, config.sample, config.seed), progress)?;
        let metrics = serde_json::json!({
            "selection": "squared error", "best": found.error, "training_seconds": begun.elapsed().as_secs_f64(),
        });
        let Quantizer { projection, codebooks, .. } = found;
        let built = Built::quantizer(projection, codebooks);
        Ok(Fitted { built, metrics, interrupted: false })
    }
}
