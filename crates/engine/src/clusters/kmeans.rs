//! K-means over codes: k-means++ seeds and Lloyd's iterations on a sample, then on all points.

use kernels::dropout::mix;

use super::points::{Centres, Nearest, Points};
use crate::{Error, Progress, Result};

/// Points that seeds are drawn from and most iterations run on.
const SAMPLE: usize = 50_000;
/// Clusterings of the sample from different seeds; the one with the least error is used.
const RESTARTS: u64 = 4;
const SAMPLE_ITERATIONS: usize = 30;
/// Iterations over all points, when there are more than the sample.
const ITERATIONS: usize = 8;

/// Clusters of points.
pub(crate) struct Clusters {
    pub centres: Centres,
    /// By point.
    pub nearest: Vec<Nearest>,
}

impl Clusters {
    /// Sum of the squared distances to the centres.
    pub fn error(&self) -> f64 {
        self.nearest.iter().map(|near| f64::from(near.distance)).sum()
    }
}

/// How far progress goes in [`cluster`].
pub(crate) fn iterations(points: usize) -> u64 {
    RESTARTS * SAMPLE_ITERATIONS as u64 + if points > SAMPLE { ITERATIONS as u64 } else { 0 }
}

/// Clusters points around `count` centres.
pub(crate) fn cluster(points: &Points, count: usize, seed: u64, progress: &dyn Progress) -> Result<Clusters> {
    restarted(points, count, seed, RESTARTS, progress)
}

/// [`cluster`] with another number of clusterings from different seeds.
pub(crate) fn restarted(
    points: &Points,
    count: usize,
    seed: u64,
    restarts: u64,
    progress: &dyn Progress,
) -> Result<Clusters> {
    let sample = points.sample(SAMPLE);
    let mut best: Option<Clusters> = None;
    for restart in 0..restarts {
        let found = lloyd(&sample, seeds(&sample, count, mix(seed, restart)), SAMPLE_ITERATIONS, progress)?;
        if best.as_ref().is_none_or(|best| found.error() < best.error()) {
            best = Some(found);
        }
    }
    let best = best.expect("at least one restart");
    if sample.len() == points.len() { Ok(best) } else { lloyd(points, best.centres, ITERATIONS, progress) }
}

/// Lloyd's iterations, fewer if nothing moves any more; progress goes on as if all were done.
pub(crate) fn lloyd(
    points: &Points,
    mut centres: Centres,
    iterations: usize,
    progress: &dyn Progress,
) -> Result<Clusters> {
    let mut nearest = points.nearest(&centres);
    for done in 1..=iterations {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let histograms = points.histograms(&nearest, centres.len());
        let mut moved = points.means(&histograms, &centres);
        fill_empty(points, &histograms, &nearest, &mut moved);
        let again = points.nearest(&moved);
        let settled = again.iter().zip(&nearest).all(|(a, b)| a.centre == b.centre);
        (centres, nearest) = (moved, again);
        progress.advance(if settled { (iterations - done + 1) as u64 } else { 1 });
        if settled {
            break;
        }
    }
    Ok(Clusters { centres, nearest })
}

/// Moves the centre of an empty cluster to the point that is farthest from its own centre.
fn fill_empty(points: &Points, histograms: &[u32], nearest: &[Nearest], centres: &mut Centres) {
    let size = histograms.len() / centres.len();
    let empty: Vec<usize> =
        (0..centres.len()).filter(|&c| histograms[c * size..(c + 1) * size].iter().all(|&n| n == 0)).collect();
    if empty.is_empty() {
        return;
    }
    let mut far: Vec<usize> = (0..nearest.len()).collect();
    far.sort_by(|&a, &b| nearest[b].distance.total_cmp(&nearest[a].distance).then(a.cmp(&b)));
    // Equal codes would fill two clusters with the same point.
    let mut taken: Vec<&[u8]> = Vec::new();
    let mut far = far.into_iter().map(|i| points.point(i));
    for c in empty {
        let Some(point) = far.find(|point| !taken.contains(point)) else { return };
        taken.push(point);
        let width = centres.width;
        centres.values[c * width..][..width].copy_from_slice(&points.vector(point));
    }
}

/// K-means++: each centre is a point drawn with probability proportional to its squared distance from those before.
pub(crate) fn seeds(points: &Points, count: usize, seed: u64) -> Centres {
    let draw = |i: u64| (mix(seed, i) >> 11) as f64 / (1u64 << 53) as f64;
    let width = points.shape().width();
    let mut centres = Centres { width, values: points.vector(points.point((draw(0) * points.len() as f64) as usize)) };
    let mut distances = vec![f32::INFINITY; points.len()];
    while centres.len() < count {
        let last = Centres { width, values: centres.row(centres.len() - 1).to_vec() };
        for (distance, near) in distances.iter_mut().zip(points.nearest(&last)) {
            *distance = distance.min(near.distance);
        }
        let total: f64 = distances.iter().map(|&d| f64::from(d)).sum();
        let (aim, mut sum) = (draw(centres.len() as u64) * total, 0.0);
        let chosen = distances.iter().position(|&d| {
            sum += f64::from(d);
            d > 0.0 && sum > aim
        });
        // Where every point is a centre already, one is repeated; its cluster stays empty.
        let chosen = chosen.unwrap_or(centres.len() % points.len());
        centres.values.extend(points.vector(points.point(chosen)));
    }
    centres
}
