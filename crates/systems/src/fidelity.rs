//! How well codes keep what float search finds: of a model, and of OPQ at the same length, on a sample and in seconds.

use micpq::model::{Codebooks, Distance, Model, Refine};
use micpq::search::Flat;
use micpq::{Matrix, Result, Watch};
use serde::Serialize;
use train::evaluate::code_search;
use train::float;
use train::metrics::{DEPTH, fidelity};
use train::random::{Purpose, Stream};

use crate::opq::Opq;

/// Documents of the sample, and those of them that ask.
const SAMPLE: usize = 10_000;
const QUERIES: usize = 500;
/// Rounds of OPQ: enough to stand within a point of a full run.
const ROUNDS: usize = 8;
/// Below so many documents the first hundred are most of the corpus, and the figure says nothing.
pub const FEWEST: usize = 1_000;

/// Shares, in percent, of the ten nearest by cosine that are among the first hundred by code.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fidelity {
    /// Of the model.
    pub model: f64,
    /// Of OPQ with as many bits, fitted on the sample.
    pub opq: f64,
    /// Documents searched.
    pub documents: usize,
    /// Documents that asked; none of them is among those searched.
    pub queries: usize,
}

impl Fidelity {
    /// Measures a model on vectors of its corpus; `None` where there are too few.
    pub fn measure(model: &Model, vectors: &Matrix, seed: u64, watch: &dyn Watch) -> Result<Option<Fidelity>> {
        if vectors.rows() < FEWEST {
            return Ok(None);
        }
        let mut order = Stream::new(seed, Purpose::System, &[1]).permutation(vectors.rows());
        order.truncate(SAMPLE);
        let queries = QUERIES.min(order.len() / 10);
        let rows = |part: &[u32]| vectors.select(&part.iter().map(|&i| i as usize).collect::<Vec<_>>());
        let (asked, searched) = (rows(&order[..queries]), rows(&order[queries..]));
        let exact = float::search(&searched, &asked, 10, watch)?.cosine;
        let of = |refine: &Refine, books: &Codebooks, distance| -> Result<f64> {
            let flat = Flat::new(books.shape(), books.assign(&refine.apply(&searched)?))?;
            let found = code_search(&flat, books, &refine.apply(&asked)?, distance, DEPTH)?;
            Ok(fidelity(&exact, &found))
        };
        let own = of(model.refine(), model.codebooks(), model.config.distance)?;
        let opq = if model.config.method == "opq" {
            own
        } else {
            let peer = Opq { bits: model.shape().bits(), dim: 24, rounds: ROUNDS, inner: 4, last: 4, seed };
            let peer = peer.fit(&searched, watch)?;
            of(&peer.refine, &peer.codebooks, Distance::Squared)?
        };
        Ok(Some(Fidelity { model: own, opq, documents: searched.rows(), queries }))
    }

    /// What a person should make of it, in one sentence.
    pub fn advice(&self, method: &str) -> String {
        if method == "opq" {
            return "OPQ keeps most of float search: take it to find one particular document, and micpq to gather documents of a kind".into();
        }
        if self.opq - self.model > 5.0 {
            format!(
                "these codes gather documents of a kind; to find one particular document, --method opq keeps {:.0} points more of what float search finds",
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
    use micpq::Silent;
    use micpq::model::ModelConfig;

    fn model(method: &str, refine: Refine, books: Codebooks) -> Model {
        let config = ModelConfig {
            format: micpq::model::FORMAT,
            method: method.into(),
            shape: books.shape(),
            distance: Distance::Squared,
            features: None,
            training: serde_json::Value::Null,
        };
        Model::new(config, refine, books).unwrap()
    }

    #[test]
    fn good_codes_come_near_opq_and_bad_ones_are_told_to_take_it() {
        let points = heaps(3000, 24);
        let opq = Opq { bits: 64, dim: 24, rounds: 8, inner: 4, last: 4, seed: 0 }.fit(&points, &Silent).unwrap();
        let shape = opq.codebooks.shape();
        let good = model("other", opq.refine.clone(), opq.codebooks);
        let good = Fidelity::measure(&good, &points, 0, &Silent).unwrap().unwrap();
        assert!((good.model - good.opq).abs() < 5.0 && good.opq > 80.0, "{good:?}");
        assert!(good.advice("other").contains("as well as OPQ"));
        // Words that tell nothing apart.
        let same = Codebooks::new(shape, vec![0.0; shape.width() * shape.words()]).unwrap();
        let bad = Fidelity::measure(&model("other", opq.refine, same), &points, 0, &Silent).unwrap().unwrap();
        assert!(bad.model < 10.0, "{bad:?}");
        assert!(bad.advice("other").contains("--method opq"));
        assert_eq!((good.queries, good.documents), (300, 2700));
        let few = points.select(&(0..900).collect::<Vec<_>>());
        let same = Codebooks::new(shape, vec![0.0; shape.width() * shape.words()]).unwrap();
        let refine = Refine::new(vec![
            micpq::model::Dense::new(24, vec![0.0; 24 * shape.width()], vec![0.0; shape.width()]).unwrap(),
        ])
        .unwrap();
        assert!(Fidelity::measure(&model("other", refine, same), &few, 0, &Silent).unwrap().is_none());
    }
}
