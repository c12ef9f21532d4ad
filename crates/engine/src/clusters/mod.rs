//! Clusters of codes, without vectors: points, k-means, and who is far from a centre.

pub(crate) mod kmeans;
pub(crate) mod points;

use kmeans::Clusters;
use points::Nearest;

/// How far from its centre a point of each cluster may be, by Tukey's rule: at most one and a half times the distance between the
/// quartiles of the cluster's distances above the third.
pub(crate) struct Fences(pub Vec<f32>);

impl Fences {
    pub fn of(clusters: &Clusters, count: usize) -> Fences {
        let mut distances: Vec<Vec<f32>> = vec![Vec::new(); count];
        clusters.nearest.iter().for_each(|near| distances[usize::from(near.centre)].push(near.distance.sqrt()));
        let fence = |distances: &mut Vec<f32>| {
            distances.sort_unstable_by(f32::total_cmp);
            let quartile = |q: usize| distances.get(distances.len() * q / 4).copied().unwrap_or(0.0);
            let (first, third) = (quartile(1), quartile(3));
            // Where most distances are equal, the rule has nothing to go by.
            if third > first { third + 1.5 * (third - first) } else { f32::INFINITY }
        };
        Fences(distances.iter_mut().map(fence).collect())
    }

    /// Whether a point is farther from its nearest centre than its cluster reaches.
    pub fn is_outlier(&self, near: &Nearest) -> bool {
        near.distance.sqrt() > self.0[usize::from(near.centre)]
    }
}
