//! Landmarks: vectors that stand for all documents of a map.

use std::collections::BTreeSet;

use crate::clusters::kmeans;
use crate::clusters::points::{Centres, Points};
use crate::{Progress, Result};

/// An exact layout of so many takes a few seconds.
const LANDMARKS: usize = 2000;
/// Points that landmarks are found on.
const SAMPLE: usize = 20 * LANDMARKS;
const ITERATIONS: usize = 10;

/// The distinct codes where there are few, otherwise the centres of clusters.
pub(super) fn choose(points: &Points, seed: u64, progress: &dyn Progress) -> Result<Centres> {
    let width = points.shape().width();
    if let Some(codes) = distinct(points) {
        let values = codes.into_iter().flat_map(|point| points.vector(point)).collect();
        return Ok(Centres { width, values });
    }
    progress.stage("choosing landmarks", Some(ITERATIONS as u64));
    let sample = points.sample(SAMPLE);
    Ok(kmeans::lloyd(&sample, kmeans::seeds(&sample, LANDMARKS, seed), ITERATIONS, progress)?.centres)
}

/// The distinct codes in order; `None` if there are more than landmarks.
fn distinct<'a>(points: &'a Points) -> Option<BTreeSet<&'a [u8]>> {
    let mut codes = BTreeSet::new();
    for i in 0..points.len() {
        codes.insert(points.point(i));
        if codes.len() > LANDMARKS {
            return None;
        }
    }
    Some(codes)
}
