//! Recall 10@100 of a model, and of OPQ with as many bits, on a sample; it takes seconds.

use engine::model::{Codebooks, Distance, Model, Projection};
use engine::search::Flat;
use engine::{Matrix, Progress, Result};
use serde::Serialize;
use train::evaluate::code_search;
use train::float;
use train::metrics::{DEPTH, recall_10_at_100};
use train::random::{Purpose, Stream};

use crate::opq::Opq;

// Documents of the sample, and how many of them are queries.
const SAMPLE: usize = 10_000;
const QUERIES: usize = 500;
/// Rounds of OPQ: enough to come within a point of a full run.
const ROUNDS: usize = 8;
/// With fewer documents the first hundred are most of the corpus, and the figure means nothing.
pub const MIN_DOCUMENTS: usize = 1_000;

/// Recall 10@100 in percent: the share of the ten nearest by cosine that are among the first hundred by code.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FloatRecall {
    pub model: f64,
    /// Of OPQ with as many bits, fitted on the sample.
    pub opq: f64,
    pub documents: usize,
    /// None of them is among the documents.
    pub queries: usize,
}

impl FloatRecall {
    /// Measures a model on embeddings of its corpus; `None` if there are fewer than [`MIN_DOCUMENTS`].
    pub fn measure(model: &Model, vectors: &Matrix, seed: u64, progress: &dyn Progress) -> Result<Option<FloatRecall>> {
        if vectors.rows() < MIN_DOCUMENTS {
            return Ok(None);
        }
        let mut order = Stream::new(seed, Purpose::Method, &[1]).permutation(vectors.rows());
        order.truncate(SAMPLE);
        let queries = QUERIES.min(order.len() / 10);
        let rows = |part: &[u32]| vectors.select(&part.iter().map(|&i| i as usize).collect::<Vec<_>>());
        let (queried, searched) = (rows(&order[..queries]), rows(&order[queries..]));
        let exact = float::search(&searched, &queried, 10, progress)?.cosine;
        let of = |projection: &Projection, codebooks: &Codebooks, distance| -> Result<f64> {
            let flat = Flat::new(codebooks.shape(), codebooks.assign(&projection.apply(&searched)?))?;
            let found = code_search(&flat, codebooks, &projection.apply(&queried)?, distance, DEPTH)?;
            Ok(recall_10_at_100(&exact, &found))
        };
        let own = of(model.projection(), model.codebooks(), model.config.distance)?;
        let opq = if model.config.method == "opq" {
            own
        } else {
            let peer = Opq { bits: model.shape().bits(), dim: 24, rounds: ROUNDS, inner: 4, last: 4, seed };
            let peer = peer.fit(&searched, progress)?;
            of(&peer.projection, &peer.codebooks, Distance::Squared)?
        };
        Ok(Some(FloatRecall { model: own, opq, documents: searched.rows(), queries }))
    }

    /// The figures and what they mean, in one sentence.
    pub fn summary(&self, method: &str, bits: usize) -> String {
        let peer = if method == "opq" { String::new() } else { format!(" (OPQ of {bits} bits: {:.0} %)", self.opq) };
        format!(
            "of the ten nearest by float vectors, the first hundred by code hold {:.0} %{peer}, on {} documents and {} queries: {}",
            self.model,
            self.documents,
            self.queries,
            self.advice(method)
        )
    }

    /// What a person should make of it, in one sentence.
    pub fn advice(&self, method: &str) -> String {
        if method == "opq" {
            return "OPQ keeps most of float search: take it to find one particular document, and micpq to gather documents of a kind".into();
        }
        if self.opq - self.model > 5.0 {
            format!(
                "these codes gather documents of a kind; to find one particular document, the method opq keeps {:.0} points more of what float search finds",
                self.opq - self.model
            )
        } else {
            "these codes keep what float search finds about as well as OPQ does: good for one particular document as well as for its kind".into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pq::tests::heaps;
    use engine::NoProgress;
    use engine::model::ModelConfig;

    fn model(method: &str, projection: Projection, codebooks: Codebooks) -> Model {
        let config = ModelConfig {
            format: engine::model::FORMAT,
            method: method.into(),
            shape: codebooks.shape(),
            distance: Distance::Squared,
            embedding: None,
            training: serde_json::Value::Null,
        };
        Model::new(config, projection, codebooks).unwrap()
    }

    #[test]
    fn good_codes_come_near_opq_and_bad_ones_are_advised_to_use_it() {
        let points = heaps(3000, 24);
        let opq = Opq { bits: 64, dim: 24, rounds: 8, inner: 4, last: 4, seed: 0 }.fit(&points, &NoProgress).unwrap();
        let shape = opq.codebooks.shape();
        let good = model("other", opq.projection.clone(), opq.codebooks);
        let good = FloatRecall::measure(&good, &points, 0, &NoProgress).unwrap().unwrap();
        assert!((good.model - good.opq).abs() < 5.0 && good.opq > 80.0, "{good:?}");
        assert!(good.advice("other").contains("as well as OPQ"));
        // Codewords that are all equal.
        let same = Codebooks::new(shape, vec![0.0; shape.width() * shape.codebook_size()]).unwrap();
        let bad =
            FloatRecall::measure(&model("other", opq.projection, same), &points, 0, &NoProgress).unwrap().unwrap();
        assert!(bad.model < 10.0, "{bad:?}");
        assert!(bad.advice("other").contains("the method opq keeps"));
        assert_eq!((good.queries, good.documents), (300, 2700));
        let few = points.select(&(0..900).collect::<Vec<_>>());
        let same = Codebooks::new(shape, vec![0.0; shape.width() * shape.codebook_size()]).unwrap();
        let projection = Projection::new(vec![
            engine::model::Dense::new(24, vec![0.0; 24 * shape.width()], vec![0.0; shape.width()]).unwrap(),
        ])
        .unwrap();
        assert!(FloatRecall::measure(&model("other", projection, same), &few, 0, &NoProgress).unwrap().is_none());
    }
}
