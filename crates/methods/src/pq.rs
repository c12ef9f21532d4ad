//! Product quantization: the embedding is cut into slices, one per codebook, with K-means in each.

use engine::model::{CodeShape, Codebooks, Dense, Projection};
use engine::{Matrix, Result};
use rayon::prelude::*;

use crate::kmeans::KMeans;
use crate::quantization::{Quantization, Quantizer};
use crate::rotation::{Axes, identity, project};

pub const METHOD: Quantization = Quantization {
    name: "pq",
    options: &["dim", "iterations", "sample", "whiten"],
    assumptions: "",
    fit: |config, points, _| fit(points, config.bits, config.dim, config.whiten, config.iterations, config.seed),
};

/// The shape of codes of `bits`: codebooks of 16 codewords with `width / codebooks` values each, at most `dim`.
pub fn shape(bits: usize, width: usize, dim: usize) -> Result<CodeShape> {
    let codebooks = bits / 4;
    CodeShape::new(codebooks, 16, width.div_ceil(codebooks.max(1)).min(dim).max(1))
}

/// Columns `start .. start + dim` of the points.
fn slice(points: &Matrix, start: usize, dim: usize) -> Matrix {
    Matrix::from_vec(dim, points.iter().flat_map(|row| row[start..start + dim].iter().copied()).collect())
}

/// The codewords of every codebook and their squared error, for points `[n, shape.width()]`. K-means begins with `start`, or with
/// k-means++.
pub fn codewords(
    points: &Matrix,
    shape: CodeShape,
    iterations: usize,
    seed: u64,
    start: Option<&[f32]>,
) -> (Vec<f32>, f64) {
    assert_eq!(points.cols(), shape.width());
    let (dim, size) = (shape.dim(), shape.codebook_size());
    let found: Vec<(Vec<f32>, f64)> = (0..shape.num_codebooks())
        .into_par_iter()
        .map(|m| {
            let part = slice(points, m * dim, dim);
            let means = KMeans { clusters: size, iterations, seed, address: m as u64 };
            let clusters = match start {
                Some(start) => {
                    let values = size * dim;
                    means.improve(&part, Matrix::from_vec(dim, start[m * values..(m + 1) * values].to_vec()))
                }
                None => means.run(&part),
            };
            (clusters.centroids.as_slice().to_vec(), clusters.error)
        })
        .collect();
    let error = found.iter().map(|(_, error)| error).sum();
    (found.into_iter().flat_map(|(codewords, _)| codewords).collect(), error)
}

/// A layer `x -> axes (x - centre)`.
pub fn rotate(centre: &[f32], axes: &Matrix) -> Result<Dense> {
    let bias = axes
        .iter()
        .map(|axis| -axis.iter().zip(centre).map(|(a, c)| f64::from(*a) * f64::from(*c)).sum::<f64>() as f32);
    Dense::new(axes.cols(), axes.as_slice().to_vec(), bias.collect())
}

/// Cuts points into slices as they are, with codebooks wide enough to hold all values. With `whiten` it cuts them along principal
/// axes of unit variance, as many as codebooks of `dim` values hold.
pub fn fit(points: &Matrix, bits: usize, dim: usize, whiten: bool, iterations: usize, seed: u64) -> Result<Quantizer> {
    let width = points.cols();
    let shape = shape(bits, width, if whiten { dim } else { width })?;
    let (centre, mut axes) = if whiten {
        let axes = Axes::of(points)?;
        let white = axes.whitening(shape.width());
        (axes.centre, white)
    } else {
        (vec![0.0; width], identity(width))
    };
    // The last codebooks are filled up with zeros.
    let missing = shape.width() - axes.rows();
    if missing > 0 {
        axes.extend(&Matrix::zeros(missing, width));
    }
    let rotated = project(points, &centre, &axes);
    let (values, error) = codewords(&rotated, shape, iterations, seed, None);
    Ok(Quantizer {
        projection: Projection::new(vec![rotate(&centre, &axes)?])?,
        codebooks: Codebooks::new(shape, values)?,
        error: error / points.rows() as f64,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use train::random::{Purpose, Stream};

    /// Points in clusters, stretched and rotated.
    pub(crate) fn heaps(n: usize, width: usize) -> Matrix {
        let mut centres = Matrix::zeros(20, width);
        Stream::new(5, Purpose::Init, &[0]).normal(centres.as_mut_slice());
        let mut points = Matrix::zeros(n, width);
        Stream::new(5, Purpose::Init, &[1]).normal(points.as_mut_slice());
        let mut rotation = Matrix::zeros(width, width);
        Stream::new(5, Purpose::Init, &[2]).normal(rotation.as_mut_slice());
        for i in 0..n {
            let centre = centres.row(i % 20).to_vec();
            let row = points.row_mut(i);
            row.iter_mut().enumerate().for_each(|(j, v)| *v = (*v * 0.4 + centre[j]) * 0.85f32.powi(j as i32));
        }
        project(&points, &vec![0.0; width], &rotation)
    }

    #[test]
    fn error_equals_the_distance_of_decoded_codes() {
        let points = heaps(3000, 30);
        for whiten in [false, true] {
            let found = fit(&points, 32, 24, whiten, 25, 0).unwrap();
            let shape = found.codebooks.shape();
            let projected = found.projection.apply(&points).unwrap();
            let codes = found.codebooks.assign(&projected);
            let mut error = 0.0;
            for (code, row) in codes.chunks_exact(shape.code_bytes()).zip(projected.iter()) {
                for m in 0..shape.num_codebooks() {
                    let codeword = found.codebooks.codebook(m).nth(shape.codeword(code, m)).unwrap();
                    let part = &row[m * shape.dim()..(m + 1) * shape.dim()];
                    error += part.iter().zip(codeword).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
                }
            }
            assert!((error / 3000.0 / found.error - 1.0).abs() < 1e-4, "{} {}", error / 3000.0, found.error);
        }
    }

    #[test]
    fn more_bits_leave_less_error() {
        let points = heaps(2000, 32);
        let error = |bits| fit(&points, bits, 24, false, 25, 0).unwrap().error;
        let errors = [16, 32, 64, 128].map(error);
        assert!(errors.windows(2).all(|w| w[1] < 0.8 * w[0]), "{errors:?}");
    }

    #[test]
    fn shapes_hold_all_values_up_to_the_limit() {
        assert_eq!(shape(64, 384, 384).unwrap(), CodeShape::new(16, 16, 24).unwrap());
        assert_eq!(shape(128, 384, 24).unwrap(), CodeShape::new(32, 16, 12).unwrap());
        assert_eq!(shape(32, 384, 24).unwrap(), CodeShape::new(8, 16, 24).unwrap());
        assert_eq!(shape(64, 50, 50).unwrap().width(), 64);
        assert!(shape(2, 10, 10).is_err());
    }
}
