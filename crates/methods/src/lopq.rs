//! Locally optimised product quantization: a coarse cell first, then codebooks along axes of the cell's own.
//!
//! The cell's number is codebook 0 of the code (16 cells, 4 bits), so that codes have as many bits as those of other methods; the
//! other codebooks share the rest. Sixteen centroids span fifteen dimensions, so a head of at least fifteen values, the
//! coordinates in that span, keeps the distances to them exactly. The tail is the embedding along its principal axes. In each
//! cell it is taken relative to the cell's mean and rotated to the cell's own axes, allocated to codebooks as in OPQ. A cell
//! with fewer documents than dimensions is not rotated. All cells share the codewords.

use engine::model::{Cells, CodeShape, Codebooks, Projection};
use engine::{Error, Matrix, Result};

use crate::kmeans::KMeans;
use crate::pq::{codewords, rotate};
use crate::quantization::{Quantization, Quantizer};
use crate::rotation::{Axes, compose, identity, mean, project};

/// Number of cells: the codewords of codebook 0.
const CELLS: usize = 16;
/// Largest number of values of the tail: every cell stores a square matrix of them.
const MAX_TAIL: usize = 256;

pub const METHOD: Quantization = Quantization {
    name: "lopq",
    options: &["iterations", "sample"],
    assumptions: "16 cells whose number is 4 of the code's bits",
    fit: |config, points, _| fit(points, config.bits, config.iterations, config.seed),
};

pub fn fit(points: &Matrix, bits: usize, iterations: usize, seed: u64) -> Result<Quantizer> {
    let count = (bits / 4).saturating_sub(1);
    if count == 0 {
        return Err(Error::option("bits", format!("is {bits}; lopq needs 4 for the cell and at least 4 more")));
    }
    // A head of fifteen values, or of all values of narrower embeddings.
    let min = (CELLS - 1).min(points.cols());
    let dim = (MAX_TAIL.min(points.cols()).div_ceil(count)).clamp(min, 24.max(min));
    let shape = CodeShape::new(count + 1, CELLS, dim)?;
    let axes = Axes::of(points)?;
    let tail = shape.width() - dim;
    let mut plain = Matrix::zeros(tail, points.cols());
    for i in 0..tail.min(points.cols()) {
        plain.row_mut(i).copy_from_slice(axes.axes.row(i));
    }
    let tails = project(points, &axes.centre, &plain);
    let coarse = KMeans { clusters: CELLS, iterations, seed, address: u64::MAX }.run(&tails);
    let span = span(&coarse.centroids, dim)?;
    let origin = vec![0.0; tail];
    let heads = project(&coarse.centroids, &origin, &span);

    let (mut centres, mut rotations) = (Vec::new(), Vec::new());
    let mut local = Matrix::zeros(points.rows(), tail);
    for cell in 0..CELLS as u32 {
        let members: Vec<usize> = (0..points.rows()).filter(|&i| coarse.nearest[i] == cell).collect();
        let own = tails.select(&members);
        let centre = if members.is_empty() { coarse.centroids.row(cell as usize).to_vec() } else { mean(&own) };
        let rotation = if members.len() > tail { Axes::of(&own)?.allocated(count, dim) } else { identity(tail) };
        let rotated = project(&own, &centre, &rotation);
        members.iter().zip(rotated.iter()).for_each(|(&i, row)| local.row_mut(i).copy_from_slice(row));
        centres.extend(centre);
        rotations.extend_from_slice(rotation.as_slice());
    }
    let (local_codewords, error) = codewords(&local, CodeShape::new(count, CELLS, dim)?, iterations, seed, None);

    // [head, tail] in one layer: the head's axes are combinations of the tail's.
    let mut all = compose(&span, &plain);
    all.extend(&plain);
    let cells = Cells::new(dim, tail, heads.as_slice().to_vec(), centres, rotations)?;
    Ok(Quantizer {
        projection: Projection::with_cells(vec![rotate(&axes.centre, &all)?], cells)?,
        codebooks: Codebooks::new(shape, [heads.as_slice(), &local_codewords].concat())?,
        error: error / points.rows() as f64,
    })
}

/// `[dim, width]`: unit vectors that span the centroids around their mean.
fn span(centroids: &Matrix, dim: usize) -> Result<Matrix> {
    let axes = Axes::of(centroids)?;
    let mut out = Matrix::zeros(dim, centroids.cols());
    for i in 0..dim.min(centroids.cols()).min(CELLS - 1) {
        out.row_mut(i).copy_from_slice(axes.axes.row(i));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pq;
    use engine::Matrix;
    use train::random::{Purpose, Stream};

    /// Sixteen distant clusters, each a plane of its own.
    fn discs(n: usize, width: usize) -> Matrix {
        let mut points = Matrix::zeros(n, width);
        let mut draws = vec![0.0f32; n * 2];
        Stream::new(1, Purpose::Init, &[]).normal(&mut draws);
        for i in 0..n {
            let (heap, row) = (i % 16, points.row_mut(i));
            row[heap % width] += 60.0;
            row[(heap / 3) % width] += 25.0;
            let mut wide = vec![0.0f32; 2 * width];
            Stream::new(2, Purpose::Init, &[heap as u64]).normal(&mut wide);
            for j in 0..width {
                row[j] += draws[2 * i] * wide[j] + draws[2 * i + 1] * wide[width + j];
            }
        }
        points
    }

    #[test]
    fn codebook_0_is_the_cell_and_local_axes_halve_the_error_of_pq() {
        let points = discs(4800, 20);
        let found = fit(&points, 32, 25, 0).unwrap();
        let shape = found.codebooks.shape();
        assert_eq!((shape.bits(), shape.num_codebooks()), (32, 8));
        let projected = found.projection.apply(&points).unwrap();
        let codes = found.codebooks.assign(&projected);
        let cells = found.projection.cells().unwrap();
        // Codebook 0 is the cell whose axes the rest of the code uses.
        for (code, row) in codes.chunks_exact(4).zip(projected.iter()) {
            assert_eq!(shape.codeword(code, 0), cells.cell(row));
        }
        let plain = pq::fit(&points, 32, 24, false, 25, 0).unwrap();
        assert!(found.error < 0.5 * plain.error, "{} {}", found.error, plain.error);
    }

    #[test]
    fn heads_keep_the_distances_to_all_centroids() {
        let mut centroids = Matrix::zeros(16, 40);
        Stream::new(0, Purpose::Init, &[]).normal(centroids.as_mut_slice());
        let mut point = Matrix::zeros(1, 40);
        Stream::new(0, Purpose::Init, &[1]).normal(point.as_mut_slice());
        let span = span(&centroids, 15).unwrap();
        let (heads, head) = (project(&centroids, &[0.0; 40], &span), project(&point, &[0.0; 40], &span));
        let squared = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
        let gap = |c: usize| squared(point.row(0), centroids.row(c)) - squared(head.row(0), heads.row(c));
        assert!((1..16).all(|c| (gap(c) - gap(0)).abs() < 1e-3));
    }
}
