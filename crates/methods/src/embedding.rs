//! Methods of users: a function from embeddings to a projection and codebooks.

use std::time::Instant;

use engine::model::{Codebooks, Projection};
use engine::{Error, Matrix, Progress, Result};

use crate::inputs::{Built, Inputs};
use crate::method::{Fitted, Method, Prepared, Reads};
use crate::training::Training;

type Fit = dyn Fn(&Matrix, &Training) -> Result<(Projection, Codebooks)> + Send + Sync;

/// A method that needs embeddings `[documents, width]`, and bits and seed of the [`Training`]. Codes are compared by squared
/// distance.
pub struct EmbeddingMethod {
    pub name: String,
    pub fit: Box<Fit>,
}

impl EmbeddingMethod {
    pub fn new(
        name: impl Into<String>,
        fit: impl Fn(&Matrix, &Training) -> Result<(Projection, Codebooks)> + Send + Sync + 'static,
    ) -> Self {
        EmbeddingMethod { name: name.into(), fit: Box::new(fit) }
    }
}

impl Method for EmbeddingMethod {
    fn name(&self) -> &str {
        &self.name
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    fn fit(&self, training: &Training, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted> {
        let Inputs::Embeddings(embeddings) = inputs.documents else {
            return Err(Error::config(format!("{} reads embeddings alone", self.name)));
        };
        progress.stage(&format!("fitting {}", self.name), None);
        let begun = Instant::now();
        let (projection, codebooks) = (self.fit)(embeddings, training)?;
        let seconds = begun.elapsed().as_secs_f64();
        let shape = codebooks.shape();
        if shape.bits() != training.bits() {
            return Err(Error::config(format!(
                "{} gave {} codebooks of {} codewords, which is {} bits; bits is {}: set it to {}, or give other codebooks",
                self.name,
                shape.num_codebooks(),
                shape.codebook_size(),
                shape.bits(),
                training.bits(),
                shape.bits()
            )));
        }
        if (projection.inputs(), projection.outputs()) != (embeddings.cols(), shape.width()) {
            return Err(Error::config(format!(
                "{} gave a projection from {} to {} values; the embeddings have {} and the codebooks together {}",
                self.name,
                projection.inputs(),
                projection.outputs(),
                embeddings.cols(),
                shape.width()
            )));
        }
        let metrics = serde_json::json!({
            "selection": "squared error", "best": squared_error(embeddings, &projection, &codebooks)?,
            "training_seconds": seconds,
        });
        let built = Built::quantizer(projection, codebooks);
        Ok(Fitted { built, metrics, interrupted: false })
    }
}

/// Mean squared distance of the projected embeddings from their codewords.
fn squared_error(embeddings: &Matrix, projection: &Projection, codebooks: &Codebooks) -> Result<f64> {
    let projected = projection.apply(embeddings)?;
    let decoded = codebooks.decode(&projected);
    let squares = projected.as_slice().iter().zip(decoded.as_slice()).map(|(a, b)| f64::from(a - b).powi(2));
    Ok(squares.sum::<f64>() / embeddings.rows().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::NoProgress;
    use engine::model::{CodeShape, Dense};
    use train::vectors::VectorViews;

    use super::*;
    use crate::config::MethodConfig;
    use crate::pq::tests::heaps;
    use crate::{job, pq, registry};

    const VIEWS: VectorViews = VectorViews::Noise(VectorViews::NOISE);

    /// PQ of one layer as a user would write it.
    fn user_pq(embeddings: &Matrix, _: &Training) -> Result<(Projection, Codebooks)> {
        let found = pq::fit(embeddings, 32, 24, false, 25, 0)?;
        Ok((found.projection, found.codebooks))
    }

    #[test]
    fn a_registered_function_trains_the_model_of_the_built_in_method() {
        registry::register(Arc::new(EmbeddingMethod::new("user-pq", user_pq))).unwrap();
        let points = heaps(2000, 16);
        let config = MethodConfig::named("user-pq", 32).unwrap();
        let own = job::of_vectors(&config, points.clone(), &VIEWS, None, &NoProgress).unwrap();
        let built_in =
            job::of_vectors(&MethodConfig::named("pq", 32).unwrap(), points.clone(), &VIEWS, None, &NoProgress)
                .unwrap();
        assert_eq!(own.model.config.method, "user-pq");
        assert_eq!(own.model.encode(&points).unwrap(), built_in.model.encode(&points).unwrap());
        let error = |metrics: &serde_json::Value| metrics["best"].as_f64().unwrap();
        assert!((error(&own.metrics) / error(&built_in.metrics) - 1.0).abs() < 1e-4);
    }

    #[test]
    fn codebooks_and_projections_that_do_not_fit_are_refused() {
        let points = heaps(100, 16);
        let refuse = |name: &str, method: EmbeddingMethod, bits: usize, text: &str| {
            registry::register(Arc::new(method)).unwrap();
            let config = MethodConfig::named(name, bits).unwrap();
            let error = job::of_vectors(&config, points.clone(), &VIEWS, None, &NoProgress).err().unwrap().to_string();
            assert!(error.contains(text), "{error}");
        };
        refuse("user-bits", EmbeddingMethod::new("user-bits", user_pq), 64, "32 bits");
        let narrow = |_: &Matrix, _: &Training| {
            let projection = Projection::new(vec![Dense::new(15, vec![0.0; 15 * 8], vec![0.0; 8])?])?;
            Ok((projection, Codebooks::new(CodeShape::new(8, 16, 1)?, vec![0.0; 128])?))
        };
        refuse("user-width", EmbeddingMethod::new("user-width", narrow), 32, "from 15 to 8 values");
    }
}
