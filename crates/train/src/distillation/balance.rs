//! How much the global teacher counts: a fixed weight, or as much as the codes bear without losing recall.

use engine::{Matrix, Progress, Result};
use serde::{Deserialize, Serialize};

use super::student::Student;
use crate::recall::RecallSample;

/// How far the logarithm of the weight moves per point of recall, at each point of the curve.
const GAIN: f64 = 0.2;
/// Bounds of the weight.
const MIN_WEIGHT: f64 = 0.02;
const MAX_WEIGHT: f64 = 4.0;

/// Documents that recall is measured on: the first hundred by code are one in a hundred of them.
const MAX_SEARCHED: usize = 10_000;

/// How the weight of the global teacher is set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// It keeps its first value.
    Fixed,
    /// It rises while the recall of held-out documents is more than `margin` points above that of the start, which is OPQ, and
    /// falls otherwise. So a corpus whose kinds agree with float search gets more of the kind than one whose kinds do not.
    AboveStart { margin: f64 },
}

impl Balance {
    /// The weight after one that gave `gained` points of recall over the start.
    pub fn next(self, weight: f64, gained: f64) -> f64 {
        match self {
            Balance::Fixed => weight,
            Balance::AboveStart { margin } => (weight * (GAIN * (gained - margin)).exp()).clamp(MIN_WEIGHT, MAX_WEIGHT),
        }
    }
}

/// Measures recall 10@100 of the codes of a student.
pub(super) struct Recall {
    sample: RecallSample,
    /// In percent, with the student that it was made with.
    pub at_start: f64,
}

impl Recall {
    pub fn new(
        documents: &Matrix,
        held_out: &Matrix,
        start: &Student<f32>,
        factor: f32,
        progress: &dyn Progress,
    ) -> Result<Recall> {
        // Every n-th document: documents come in a random order or in that of their corpus, and both are spread so.
        let every = documents.rows().div_ceil(MAX_SEARCHED);
        let searched = documents.select(&(0..documents.rows()).step_by(every).collect::<Vec<_>>());
        let sample = RecallSample::new(searched, held_out.clone(), progress)?;
        let mut recall = Recall { sample, at_start: 0.0 };
        recall.at_start = recall.of(start, factor)?;
        Ok(recall)
    }

    pub fn of(&self, student: &Student<f32>, factor: f32) -> Result<f64> {
        let (projection, codebooks) = student.model_parts(factor)?;
        self.sample.recall_of(&projection, &codebooks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_rises_above_the_margin_falls_below_it_and_is_bounded() {
        let balance = Balance::AboveStart { margin: 0.5 };
        assert_eq!(balance.next(1.0, 0.5), 1.0);
        assert!(balance.next(1.0, 2.0) > 1.0 && balance.next(1.0, 0.0) < 1.0);
        assert_eq!((balance.next(1.0, 50.0), balance.next(1.0, -50.0)), (MAX_WEIGHT, MIN_WEIGHT));
        assert_eq!(Balance::Fixed.next(0.7, -50.0), 0.7);
    }
}
