//! Recall against float search on a sample, in seconds.

use engine::model::{Codebooks, Distance, Projection};
use engine::search::Flat;
use engine::{Matrix, Progress, Result};

use crate::evaluate::code_search;
use crate::float;
use crate::random::{Purpose, Stream};

// Documents of a drawn sample, and how many of them are queries.
const SAMPLE: usize = 10_000;
const QUERIES: usize = 500;

/// Documents that are searched, others that are queries, and the ten nearest of each.
pub struct RecallSample {
    pub searched: Matrix,
    pub queried: Matrix,
    nearest: Vec<Vec<u32>>,
}

impl RecallSample {
    pub fn new(searched: Matrix, queried: Matrix, progress: &dyn Progress) -> Result<RecallSample> {
        let nearest = float::search(&searched, &queried, 10, progress)?.cosine;
        Ok(RecallSample { searched, queried, nearest })
    }

    /// At most 10,000 of the rows, at most 500 of them queries.
    pub fn draw(vectors: &Matrix, seed: u64, progress: &dyn Progress) -> Result<RecallSample> {
        let mut order = Stream::new(seed, Purpose::Method, &[1]).permutation(vectors.rows());
        order.truncate(SAMPLE);
        let queries = QUERIES.min(order.len() / 10);
        let rows = |part: &[u32]| vectors.select(&part.iter().map(|&i| i as usize).collect::<Vec<_>>());
        RecallSample::new(rows(&order[queries..]), rows(&order[..queries]), progress)
    }

    /// The first `depth` documents of every query by code.
    pub fn by_code(
        &self,
        projection: &Projection,
        codebooks: &Codebooks,
        distance: Distance,
        depth: usize,
    ) -> Result<Vec<Vec<u32>>> {
        let flat = Flat::new(codebooks.shape(), codebooks.assign(&projection.apply(&self.searched)?))?;
        code_search(&flat, codebooks, &projection.apply(&self.queried)?, distance, depth)
    }

    /// The share of the ten nearest among the first `depth` found, 0 to 1.
    pub fn recall(&self, found: &[Vec<u32>], depth: usize) -> f64 {
        let shares = self.nearest.iter().zip(found).map(|(nearest, found)| {
            let found = &found[..depth.min(found.len())];
            nearest.iter().filter(|document| found.contains(document)).count() as f64 / nearest.len().max(1) as f64
        });
        shares.sum::<f64>() / found.len().max(1) as f64
    }
}
