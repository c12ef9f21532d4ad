//! Recall on a sample, in seconds: of a model beside OPQ with as many bits, and of OPQ by bits to choose a length.

use engine::model::{Distance, Model};
use engine::{Matrix, Progress, Result};
use serde::Serialize;
use train::metrics::DEPTH;
use train::recall::RecallSample;

use crate::opq::Opq;

/// Rounds of OPQ: enough to come within a point of a full run.
const ROUNDS: usize = 8;
/// With fewer documents the first hundred are most of the corpus, and the figure means nothing.
pub const MIN_DOCUMENTS: usize = 1_000;

/// Lengths that a target chooses from.
const LENGTHS: [usize; 3] = [32, 64, 128];
/// Numbers of re-ranked candidates that a target chooses from. More would cost more than longer codes.
const DEPTHS: [usize; 6] = [50, 100, 200, 400, 800, 1600];

/// The shortest codes that reach a recall with an affordable number of re-ranked candidates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LengthChoice {
    pub bits: usize,
    pub rerank: usize,
    /// Recall@10 that OPQ has with them on the sample, 0 to 1.
    pub recall: f64,
}

impl LengthChoice {
    /// Chooses for a corpus of `documents`, of which `vectors` are a sample. A rank in the sample stands for as many times that
    /// rank in the corpus as the corpus is larger. If no length reaches `target`, the choice is the longest.
    pub fn reaching(
        target: f64,
        vectors: &Matrix,
        documents: usize,
        seed: u64,
        progress: &dyn Progress,
    ) -> Result<LengthChoice> {
        let sample = RecallSample::draw(vectors, seed, progress)?;
        let scale = documents.max(sample.searched.rows()) as f64 / sample.searched.rows() as f64;
        let mut best = LengthChoice { bits: LENGTHS[0], rerank: DEPTHS[0], recall: 0.0 };
        for bits in LENGTHS {
            progress.stage(&format!("trying {bits} bits"), None);
            let found = by_opq(&sample, bits, seed, DEPTHS[DEPTHS.len() - 1], progress)?;
            for rerank in DEPTHS {
                let recall = sample.recall(&found, ((rerank as f64 / scale) as usize).max(1));
                best = LengthChoice { bits, rerank, recall };
                if recall >= target {
                    return Ok(best);
                }
            }
        }
        Ok(best)
    }
}

/// The first `depth` documents of every query by OPQ, fitted on the documents of the sample.
fn by_opq(
    sample: &RecallSample,
    bits: usize,
    seed: u64,
    depth: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<u32>>> {
    let opq = Opq { bits, dim: 24, rounds: ROUNDS, inner: 4, last: 4, seed }.fit(&sample.searched, progress)?;
    sample.by_code(&opq.projection, &opq.codebooks, Distance::Squared, depth)
}

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
        let sample = RecallSample::draw(vectors, seed, progress)?;
        let found = sample.by_code(model.projection(), model.codebooks(), model.config.distance, DEPTH)?;
        let own = 100.0 * sample.recall(&found, DEPTH);
        let opq = if model.config.method == "opq" {
            own
        } else {
            100.0 * sample.recall(&by_opq(&sample, model.shape().bits(), seed, DEPTH, progress)?, DEPTH)
        };
        let (documents, queries) = (sample.searched.rows(), sample.queried.rows());
        Ok(Some(FloatRecall { model: own, opq, documents, queries }))
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

    /// Its meaning for a person, in one sentence.
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
    use engine::model::{Codebooks, ModelConfig, Projection};

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
    fn higher_targets_choose_longer_codes_and_larger_corpora_more_candidates() {
        let points = heaps(3000, 48);
        let choose = |target, documents| LengthChoice::reaching(target, &points, documents, 0, &NoProgress).unwrap();
        let (low, high) = (choose(0.5, 3000), choose(0.999, 3000));
        assert!(low.recall >= 0.5 && (low.bits, low.rerank) < (high.bits, high.rerank), "{low:?} {high:?}");
        let larger = choose(0.5, 30_000);
        assert!((larger.bits, larger.rerank) > (low.bits, low.rerank), "{low:?} {larger:?}");
        assert_eq!(choose(1.0, 100_000_000).bits, 128, "the longest where none is enough");
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
