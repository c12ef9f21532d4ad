//! The number of topics, where none is given.

use super::kmeans;
use super::points::Points;
use crate::{Progress, Result};

/// Points that numbers are tried on.
const SAMPLE: usize = 10_000;
/// A topic has at least so many points of the sample in the mean.
const MIN_POINTS: usize = 20;
/// Numbers that are tried. Fewer topics than the first say little about a corpus, although they are often told apart best.
const NUMBERS: [usize; 10] = [8, 11, 16, 23, 32, 45, 64, 90, 128, 181];

/// The number whose clusters are told apart best: the greatest mean of `1 - nearest / second nearest` over a sample, where both
/// are distances to centres (the simplified silhouette).
pub(super) fn number(points: &Points, seed: u64, progress: &dyn Progress) -> Result<usize> {
    let sample = points.sample(SAMPLE);
    progress.stage("choosing the number of topics", None);
    // A small index has as many topics as it has points for.
    let mut best = (f64::NEG_INFINITY, (sample.len() / MIN_POINTS).clamp(1, NUMBERS[0]));
    for count in NUMBERS.into_iter().filter(|count| count * MIN_POINTS <= sample.len()) {
        let clusters = kmeans::cluster(&sample, count, seed, progress)?;
        let width = |near: &super::points::Nearest| match near.second > 0.0 {
            true => 1.0 - f64::from(near.distance.sqrt() / near.second.sqrt()),
            false => 0.0,
        };
        let mean = clusters.nearest.iter().map(width).sum::<f64>() / sample.len() as f64;
        progress.detail(&format!("{count} topics: {mean:.4}"));
        if mean > best.0 {
            best = (mean, count);
        }
    }
    Ok(best.1)
}
