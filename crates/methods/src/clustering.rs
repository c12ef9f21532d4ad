//! Clustering without labels, by the codewords of a codebook or by K-means, and its accuracy under the best matching.

use engine::{Error, Matrix, Result};
use serde::{Deserialize, Serialize};
use train::Labels;

use crate::kmeans::KMeans;

/// Share of documents, in percent, whose cluster is matched with their label.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Mean over codebooks.
    pub mean: f64,
    pub best: f64,
}

impl Accuracy {
    fn of(figures: &[f64]) -> Self {
        let best = figures.iter().copied().fold(0.0, f64::max);
        Accuracy { mean: figures.iter().sum::<f64>() / figures.len().max(1) as f64, best }
    }
}

/// Accuracy of clusters under the best one-to-one matching of clusters and labels, in percent.
pub fn accuracy(clusters: &[u32], labels: &Labels) -> Result<f64> {
    if clusters.is_empty() || clusters.len() != labels.len() {
        let (n, l) = (clusters.len(), labels.len());
        return Err(Error::input(
            "clustering",
            format!("{n} documents have clusters and {l} have labels; give both for every document"),
        ));
    }
    let single = |i: usize| match labels.get(i) {
        [label] => Ok(*label as usize),
        other => Err(Error::input(
            format!("document {i}"),
            format!("has {} labels; clustering is measured on documents with exactly one", other.len()),
        )),
    };
    let labels = (0..labels.len()).map(single).collect::<Result<Vec<usize>>>()?;
    let size = 1 + labels.iter().copied().chain(clusters.iter().map(|&c| c as usize)).max().unwrap_or(0);
    let mut together = vec![0i64; size * size];
    clusters.iter().zip(&labels).for_each(|(&c, &l)| together[c as usize * size + l] += 1);
    let costs: Vec<i64> = together.iter().map(|n| -n).collect();
    let hits: i64 = matching(&costs, size).iter().enumerate().map(|(c, &l)| together[c * size + l]).sum();
    Ok(100.0 * hits as f64 / labels.len() as f64)
}

/// The Hungarian method: the column of every row that minimizes the sum of `costs [n, n]`. Rows enter one by one along the
/// cheapest augmenting path; potentials keep reduced costs non-negative. O(n^3).
pub fn matching(costs: &[i64], n: usize) -> Vec<usize> {
    assert_eq!(costs.len(), n * n);
    // Rows and columns count from 1; 0 means none.
    let (mut of_row, mut of_column) = (vec![0i64; n + 1], vec![0i64; n + 1]);
    let (mut row_at, mut previous) = (vec![0usize; n + 1], vec![0usize; n + 1]);
    for row in 1..=n {
        row_at[0] = row;
        let mut column = 0;
        let (mut min_reduced, mut seen) = (vec![i64::MAX; n + 1], vec![false; n + 1]);
        while row_at[column] != 0 {
            seen[column] = true;
            let (from, mut step, mut next) = (row_at[column], i64::MAX, 0);
            for j in (1..=n).filter(|&j| !seen[j]) {
                let reduced = costs[(from - 1) * n + j - 1] - of_row[from] - of_column[j];
                if reduced < min_reduced[j] {
                    (min_reduced[j], previous[j]) = (reduced, column);
                }
                if min_reduced[j] < step {
                    (step, next) = (min_reduced[j], j);
                }
            }
            for j in 0..=n {
                if seen[j] {
                    of_row[row_at[j]] += step;
                    of_column[j] -= step;
                } else if min_reduced[j] != i64::MAX {
                    min_reduced[j] -= step;
                }
            }
            column = next;
        }
        while column != 0 {
            row_at[column] = row_at[previous[column]];
            column = previous[column];
        }
    }
    let mut columns = vec![0; n];
    (1..=n).for_each(|j| columns[row_at[j] - 1] = j - 1);
    columns
}

/// Clusters by the codeword of each codebook. `codewords` are the codeword numbers, `[n, codebooks]`.
pub fn by_codebook(codewords: &[u32], num_codebooks: usize, labels: &Labels) -> Result<Accuracy> {
    let figures: Result<Vec<f64>> = (0..num_codebooks)
        .map(|m| accuracy(&codewords.iter().skip(m).step_by(num_codebooks).copied().collect::<Vec<u32>>(), labels))
        .collect();
    Ok(Accuracy::of(&figures?))
}

/// Clusters by K-means on each of the `num_codebooks` slices of projected vectors, one slice per codebook.
pub fn by_kmeans(
    projected: &Matrix,
    num_codebooks: usize,
    classes: usize,
    seed: u64,
    labels: &Labels,
) -> Result<Accuracy> {
    let dim = projected.cols() / num_codebooks;
    let figures: Result<Vec<f64>> = (0..num_codebooks)
        .map(|m| {
            let part: Vec<f32> = projected.iter().flat_map(|row| row[m * dim..(m + 1) * dim].iter().copied()).collect();
            let means = KMeans { clusters: classes, iterations: 100, seed, address: m as u64 };
            accuracy(&means.run(&Matrix::from_vec(dim, part)).nearest, labels)
        })
        .collect();
    Ok(Accuracy::of(&figures?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The minimum cost over all permutations, by brute force.
    fn least(costs: &[i64], n: usize, row: usize, taken: &mut Vec<bool>) -> i64 {
        if row == n {
            return 0;
        }
        let mut best = i64::MAX;
        for j in 0..n {
            if !taken[j] {
                taken[j] = true;
                best = best.min(costs[row * n + j] + least(costs, n, row + 1, taken));
                taken[j] = false;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn matching_equals_brute_force(n in 1usize..7, values in proptest::collection::vec(-50i64..50, 36)) {
            let costs = &values[..n * n];
            let found = matching(costs, n);
            let mut seen = found.clone();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..n).collect::<Vec<_>>());
            let sum: i64 = found.iter().enumerate().map(|(i, &j)| costs[i * n + j]).sum();
            prop_assert_eq!(sum, least(costs, n, 0, &mut vec![false; n]));
        }
    }

    #[test]
    fn accuracy_does_not_depend_on_cluster_numbers() {
        let labels = Labels::single(vec![0, 0, 1, 1, 2, 2]);
        assert_eq!(accuracy(&[5, 5, 0, 0, 1, 1], &labels).unwrap(), 100.0);
        assert!((accuracy(&[5, 5, 5, 0, 1, 1], &labels).unwrap() - 500.0 / 6.0).abs() < 1e-9);
        // One cluster can be matched with only one label.
        assert!((accuracy(&[7; 6], &labels).unwrap() - 100.0 / 3.0).abs() < 1e-9);
        let both = by_codebook(&[5, 7, 5, 7, 0, 7, 0, 7, 1, 7, 1, 7], 2, &labels).unwrap();
        assert_eq!(both.best, 100.0);
        assert!((both.mean - 200.0 / 3.0).abs() < 1e-9);
        assert!(accuracy(&[0], &Labels::several([vec![1, 2]])).is_err());
    }
}
