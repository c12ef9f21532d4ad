//! The number of topics, where none is given.

use kernels::dropout::mix;

use crate::clusters::kmeans;
use crate::clusters::points::{Nearest, Points};
use crate::{Progress, Result};

/// Points that numbers are tried on.
const SAMPLE: usize = 10_000;
/// A topic has at least so many points of the sample in the mean.
const MIN_POINTS: usize = 20;
/// Numbers that are tried. Fewer topics than the first say little about a corpus, although they are often told apart best.
const NUMBERS: [usize; 10] = [8, 11, 16, 23, 32, 45, 64, 90, 128, 181];

/// Halvings of the sample. How well clusters are found again is the mean over them.
const HALVINGS: u64 = 3;
/// Clusterings of a half from different seeds.
const RESTARTS: u64 = 2;
/// The least share of pairs of a cluster that the clusters of another half keep together.
const MIN_AGREEMENT: f64 = 0.25;
/// Numbers in a row whose clusters are not found again. Larger ones are not tried.
const MAX_FAILURES: usize = 2;

/// The number whose clusters are told apart best, of those whose clusters are found again in another half of the sample.
///
/// How well clusters are told apart is the mean of `1 - nearest / second nearest`, where both are distances to centres (the
/// simplified silhouette). Alone it grows again where clusters become so small that each is a few alike documents.
pub(super) fn number(points: &Points, seed: u64, progress: &dyn Progress) -> Result<usize> {
    let sample = points.sample(SAMPLE);
    let numbers: Vec<usize> = NUMBERS.into_iter().filter(|count| count * MIN_POINTS <= sample.len()).collect();
    progress.stage("choosing the number of topics", Some(numbers.len() as u64));
    let unstaged = WithoutStages(progress);
    // A small index has as many topics as it has points for.
    let mut best = (f64::NEG_INFINITY, (sample.len() / MIN_POINTS).clamp(1, NUMBERS[0]));
    let mut failures = 0;
    for count in numbers {
        let agreement = agreement(&sample, count, seed, &unstaged)?;
        progress.advance(1);
        if agreement < MIN_AGREEMENT {
            progress.detail(&format!("{count} topics: not found again ({agreement:.3})"));
            failures += 1;
            if failures == MAX_FAILURES {
                break;
            }
            continue;
        }
        failures = 0;
        let clusters = kmeans::cluster(&sample, count, seed, &unstaged)?;
        let width = |near: &Nearest| match near.second > 0.0 {
            true => 1.0 - f64::from(near.distance.sqrt() / near.second.sqrt()),
            false => 0.0,
        };
        let mean = clusters.nearest.iter().map(width).sum::<f64>() / sample.len() as f64;
        progress.detail(&format!("{count} topics: {mean:.4}, found again {agreement:.3}"));
        if mean > best.0 {
            best = (mean, count);
        }
    }
    Ok(best.1)
}

/// Passes on only whether to stop: the iterations of one clustering are no units of the whole.
struct WithoutStages<'a>(&'a dyn Progress);

impl Progress for WithoutStages<'_> {
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}

/// The share of pairs of a cluster of one half that have the same nearest centre of the other half, in the worst cluster
/// (prediction strength).
fn agreement(sample: &Points, count: usize, seed: u64, progress: &dyn Progress) -> Result<f64> {
    let mut sum = 0.0;
    for halving in 0..HALVINGS {
        let (one, other) = sample.halves(mix(seed, halving));
        let centres = kmeans::restarted(&one, count, seed, RESTARTS, progress)?.centres;
        let own = kmeans::restarted(&other, count, seed, RESTARTS, progress)?.nearest;
        sum += worst(&own, &other.nearest(&centres), count);
    }
    Ok(sum / HALVINGS as f64)
}

/// See [`agreement`]. A cluster of one point says nothing.
fn worst(own: &[Nearest], foreign: &[Nearest], count: usize) -> f64 {
    let mut together = vec![0u64; count * count];
    for (own, foreign) in own.iter().zip(foreign) {
        together[usize::from(own.centre) * count + usize::from(foreign.centre)] += 1;
    }
    let pairs = |n: u64| (n * n.saturating_sub(1)) as f64;
    let share = |row: &[u64]| {
        let all = pairs(row.iter().sum());
        if all > 0.0 { row.iter().copied().map(pairs).sum::<f64>() / all } else { 1.0 }
    };
    together.chunks_exact(count).map(share).fold(1.0, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(centres: &[u16]) -> Vec<Nearest> {
        centres.iter().map(|&centre| Nearest { centre, distance: 0.0, second: 1.0 }).collect()
    }

    #[test]
    fn the_worst_cluster_decides() {
        assert_eq!(worst(&of(&[0, 0, 0, 1, 1]), &of(&[1, 1, 1, 0, 0]), 2), 1.0);
        // Two of the three pairs of the first cluster are parted.
        assert_eq!(worst(&of(&[0, 0, 0, 1, 1]), &of(&[0, 0, 1, 1, 1]), 2), 2.0 / 6.0);
        assert_eq!(worst(&of(&[0, 0, 1]), &of(&[0, 1, 1]), 2), 0.0, "a cluster of one point counts for nothing");
    }
}
