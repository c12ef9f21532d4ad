//! K-means: k-means++ seeds, Lloyd's iterations, no cluster left empty.

use engine::Matrix;
use kernels::scan::{Neighbour, TopK};
use rayon::prelude::*;
use train::random::{Purpose, Stream};

/// Points per task. Fixed, so that sums do not depend on the number of threads.
const CHUNK: usize = 2048;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KMeans {
    pub clusters: usize,
    /// Limit; fewer if the clusters stop changing.
    pub iterations: usize,
    /// Of the first centroids.
    pub seed: u64,
    /// Distinguishes clusterings with the same seed: the number of the codebook.
    pub address: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Clusters {
    /// `[clusters, dim]`.
    pub centroids: Matrix,
    /// The nearest centroid of every point; the first of equally near ones.
    pub nearest: Vec<u32>,
    /// Sum of the squared distances of points to their centroids.
    pub error: f64,
}

impl KMeans {
    /// Clusters `points` from k-means++ centroids: each is drawn with probability proportional to the squared distance from the
    /// centroids before it.
    pub fn run(&self, points: &Matrix) -> Clusters {
        self.improve(points, self.seeds(points))
    }

    /// Lloyd's iterations from given centroids.
    pub fn improve(&self, points: &Matrix, mut centroids: Matrix) -> Clusters {
        assert!(points.rows() > 0 && points.cols() == centroids.cols() && centroids.rows() == self.clusters);
        let mut before: Option<Vec<u32>> = None;
        for _ in 0..self.iterations {
            let (nearest, distances) = assign(points, &centroids);
            if before.as_ref() == Some(&nearest) {
                break;
            }
            centroids = means(points, &nearest, &distances, &centroids);
            before = Some(nearest);
        }
        let (nearest, distances) = assign(points, &centroids);
        let error = distances.chunks(CHUNK).map(|c| c.iter().map(|&d| f64::from(d)).sum::<f64>()).sum();
        Clusters { centroids, nearest, error }
    }

    fn seeds(&self, points: &Matrix) -> Matrix {
        let stream = Stream::new(self.seed, Purpose::Method, &[0, self.address]);
        let n = points.rows();
        let mut centroids = Matrix::zeros(0, points.cols());
        let mut distances = vec![f32::INFINITY; n];
        let mut chosen = stream.below(0, n as u64) as usize;
        for k in 1..=self.clusters {
            let seed = Matrix::from_vec(points.cols(), points.row(chosen).to_vec());
            distances.par_iter_mut().with_min_len(CHUNK).enumerate().for_each(|(i, d)| {
                *d = d.min(squared(points.row(i), seed.row(0)));
            });
            centroids.extend(&seed);
            if k == self.clusters {
                break;
            }
            let total: f64 = distances.iter().map(|&d| f64::from(d)).sum();
            let draw = (stream.bits(k as u64) >> 11) as f64 / (1u64 << 53) as f64 * total;
            let mut sum = 0.0;
            // If all points are centroids already, this one repeats a point, and Lloyd's iterations find it empty.
            chosen = k % n;
            for (i, &d) in distances.iter().enumerate() {
                sum += f64::from(d);
                if d > 0.0 && sum > draw {
                    chosen = i;
                    break;
                }
            }
        }
        centroids
    }
}

fn squared(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum()
}

/// The nearest centroid of every point, and the squared distance to it.
pub fn assign(points: &Matrix, centroids: &Matrix) -> (Vec<u32>, Vec<f32>) {
    let (dim, k) = (centroids.cols(), centroids.rows());
    // [dim, clusters], so that the inner loop vectorises over clusters.
    let mut transposed = vec![0.0f32; dim * k];
    for (c, centroid) in centroids.iter().enumerate() {
        centroid.iter().enumerate().for_each(|(j, &v)| transposed[j * k + c] = v);
    }
    let halves: Vec<f32> = centroids.iter().map(|c| 0.5 * c.iter().map(|v| v * v).sum::<f32>()).collect();
    let mut nearest = vec![0u32; points.rows()];
    let mut distances = vec![0.0f32; points.rows()];
    let tasks = nearest.par_chunks_mut(CHUNK).zip(distances.par_chunks_mut(CHUNK));
    tasks.zip(points.as_slice().par_chunks(CHUNK * dim)).for_each(|((nearest, distances), points)| {
        let mut scores = vec![0.0f32; k];
        for ((near, distance), point) in nearest.iter_mut().zip(distances).zip(points.chunks_exact(dim)) {
            scores.copy_from_slice(&halves);
            for (&x, row) in point.iter().zip(transposed.chunks_exact(k)) {
                scores.iter_mut().zip(row).for_each(|(s, c)| *s -= x * c);
            }
            let (best, _) = scores.iter().enumerate().fold(
                (0, f32::INFINITY),
                |best, (i, &s)| {
                    if s < best.1 { (i, s) } else { best }
                },
            );
            *near = best as u32;
            // Twice the score plus the square of the point would be the small difference of large numbers.
            *distance = squared(point, centroids.row(best));
        }
    });
    (nearest, distances)
}

/// Means of the clusters. Empty clusters take the points that are farthest from their centroids.
fn means(points: &Matrix, nearest: &[u32], distances: &[f32], old: &Matrix) -> Matrix {
    let (dim, k) = (old.cols(), old.rows());
    let parts: Vec<(Vec<f64>, Vec<usize>)> = points
        .as_slice()
        .par_chunks(CHUNK * dim)
        .zip(nearest.par_chunks(CHUNK))
        .map(|(points, nearest)| {
            let (mut sums, mut counts) = (vec![0.0f64; k * dim], vec![0usize; k]);
            for (point, &c) in points.chunks_exact(dim).zip(nearest) {
                let c = c as usize;
                counts[c] += 1;
                sums[c * dim..(c + 1) * dim].iter_mut().zip(point).for_each(|(s, &x)| *s += f64::from(x));
            }
            (sums, counts)
        })
        .collect();
    let (mut sums, mut counts) = (vec![0.0f64; k * dim], vec![0usize; k]);
    for (part, count) in &parts {
        sums.iter_mut().zip(part).for_each(|(s, p)| *s += p);
        counts.iter_mut().zip(count).for_each(|(s, p)| *s += p);
    }
    let mut centroids = Matrix::zeros(k, dim);
    for (c, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let row = centroids.row_mut(c).iter_mut().zip(&sums[c * dim..]);
        row.for_each(|(v, s)| *v = (s / count as f64) as f32);
    }
    let empty: Vec<usize> = (0..k).filter(|&c| counts[c] == 0).collect();
    if !empty.is_empty() {
        let mut farthest = TopK::new(empty.len());
        distances.iter().enumerate().for_each(|(i, &d)| {
            farthest.push(Neighbour { distance: -d, key: i as u32 });
        });
        let mut from = farthest.into_sorted().into_iter().filter(|n| n.distance < 0.0);
        for c in empty {
            // With fewer different points than clusters the rest stay where they are.
            match from.next() {
                Some(point) => centroids.row_mut(c).copy_from_slice(points.row(point.key as usize)),
                None => centroids.row_mut(c).copy_from_slice(old.row(c)),
            }
        }
    }
    centroids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blobs(each: usize) -> Matrix {
        let mut points = Matrix::zeros(each * 3, 2);
        Stream::new(1, Purpose::Init, &[]).normal(points.as_mut_slice());
        for i in 0..each * 3 {
            let centre = [[0.0, 0.0], [20.0, 0.0], [0.0, 20.0]][i % 3];
            points.row_mut(i).iter_mut().zip(centre).for_each(|(v, c)| *v += c);
        }
        points
    }

    const THREE: KMeans = KMeans { clusters: 3, iterations: 25, seed: 0, address: 0 };

    #[test]
    fn separate_clusters_are_found_from_every_seed() {
        let points = blobs(1500);
        for seed in 0..5 {
            let found = KMeans { seed, ..THREE }.run(&points);
            for i in 0..3 {
                let own = found.nearest[i];
                assert!((0..1500).all(|j| found.nearest[3 * j + i] == own));
            }
            // The variance of a standard normal in two dimensions.
            assert!((found.error / 4500.0 - 2.0).abs() < 0.15, "{}", found.error / 4500.0);
        }
    }

    #[test]
    fn error_falls_with_iterations_and_threads_change_nothing() {
        let points = blobs(1500);
        let error = |iterations| KMeans { clusters: 7, iterations, ..THREE }.run(&points).error;
        let errors: Vec<f64> = (0..12).map(error).collect();
        assert!(errors.windows(2).all(|w| w[1] <= w[0] * (1.0 + 1e-6)), "{errors:?}");
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| KMeans { clusters: 7, ..THREE }.run(&points))
        };
        assert_eq!(run(1), run(3));
    }

    #[test]
    fn empty_clusters_are_filled_and_fewer_points_than_clusters_work() {
        let points = blobs(50);
        // Two centroids far from every point: plain Lloyd iterations would leave them empty.
        let start = Matrix::from_vec(2, vec![0.0, 0.0, 1e6, 1e6, -1e6, 1e6]);
        let found = THREE.improve(&points, start);
        assert!((0..3).all(|c| found.nearest.contains(&c)), "{:?}", found.centroids);
        let two = Matrix::from_vec(1, vec![1.0, 2.0, 1.0, 2.0]);
        let found = KMeans { clusters: 16, ..THREE }.run(&two);
        assert_eq!(found.error, 0.0);
    }
}
