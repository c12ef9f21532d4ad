//! Exact search without codes, the yardstick: by cosine, Euclidean distance, whitened embeddings, and sparse rows of terms.

use engine::{Error, Matrix, Progress, Result};
use kernels::scan::{Neighbour, TopK};
use rayon::prelude::*;
use serde::Serialize;
use train::Labels;
use train::float;
use train::metrics::{DEPTH, Scores};

use crate::rotation::{Axes, project};

/// A sparse row: distinct terms in rising order with their weights.
pub type Row = Vec<(u32, f32)>;

/// Scores of exact search over embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Exact {
    pub cosine: Scores,
    pub euclidean: Scores,
    /// By cosine of the whitened embeddings.
    pub whitened: Scores,
}

/// Scores of exact search. Embeddings are whitened by the mean and covariance of the documents.
pub fn exact(
    documents: &Matrix,
    queries: &Matrix,
    labels: (&Labels, &Labels),
    progress: &dyn Progress,
) -> Result<Exact> {
    let plain = float::search(documents, queries, DEPTH, progress)?;
    let axes = Axes::of(documents)?;
    let white = axes.whitening(documents.cols());
    let documents = project(documents, &axes.centre, &white);
    let queries = project(queries, &axes.centre, &white);
    let whitened = float::search(&documents, &queries, DEPTH, progress)?;
    let score = |found: &[Vec<u32>]| Scores::of(found, labels.0, labels.1);
    Ok(Exact { cosine: score(&plain.cosine)?, euclidean: score(&plain.euclidean)?, whitened: score(&whitened.cosine)? })
}

/// The `k` documents with the largest inner product with each query, equal ones by number. For rows of unit length this is the
/// cosine. Posting lists limit the work to the terms of the query.
pub fn sparse(
    documents: &[Row],
    queries: &[Row],
    terms: usize,
    k: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<u32>>> {
    let mut postings: Vec<Vec<(u32, f32)>> = vec![Vec::new(); terms];
    for (i, row) in documents.iter().enumerate() {
        row.iter().for_each(|&(term, weight)| postings[term as usize].push((i as u32, weight)));
    }
    progress.stage("searching by terms", Some(queries.len() as u64));
    let blocks: Result<Vec<Vec<Vec<u32>>>> = queries
        .par_chunks(64)
        .map(|block| {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let mut sums = vec![0.0f32; documents.len()];
            let found = block.iter().map(|query| {
                sums.fill(0.0);
                for &(term, weight) in query {
                    postings[term as usize].iter().for_each(|&(d, w)| sums[d as usize] += weight * w);
                }
                let mut best = TopK::new(k);
                sums.iter().enumerate().for_each(|(i, &s)| {
                    best.push(Neighbour { distance: -s, key: i as u32 });
                });
                best.into_sorted().into_iter().map(|n| n.key).collect()
            });
            let found = found.collect();
            progress.advance(block.len() as u64);
            Ok(found)
        })
        .collect();
    Ok(blocks?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::NoProgress;

    #[test]
    fn sparse_search_orders_by_inner_product() {
        let documents = vec![vec![(0, 1.0)], vec![(0, 0.6), (1, 0.8)], vec![(1, 1.0)], vec![]];
        let queries = vec![vec![(0, 1.0)], vec![(1, 1.0)], vec![]];
        let found = sparse(&documents, &queries, 2, 3, &NoProgress).unwrap();
        assert_eq!(found, [vec![0, 1, 2], vec![2, 1, 0], vec![0, 1, 2]]);
    }

    #[test]
    fn whitening_finds_labels_in_a_direction_of_small_variance() {
        // The label is a direction of small variance; plain distances see mostly the other direction.
        let (mut rows, mut labels) = (Vec::new(), Vec::new());
        for i in 0..600 {
            let noise = ((i * 37 % 101) as f32 - 50.0) * 10.0;
            rows.extend([noise, if i % 2 == 0 { 1.0 } else { -1.0 }]);
            labels.push(i as u32 % 2);
        }
        let points = Matrix::from_vec(2, rows);
        let labels = Labels::single(labels);
        let found = exact(&points, &points, (&labels, &labels), &NoProgress).unwrap();
        assert!(found.whitened.precision.at_100 > 80.0, "{found:?}");
        assert!(found.euclidean.precision.at_100 < 60.0, "{found:?}");
    }
}
