//! Locally optimised product quantization: a coarse cell first, then books in axes of the cell's own.
//!
//! The cell's number is book 0 of the code (16 cells, 4 bits), so equal bits are equal: the other books share what is
//! left. Sixteen centroids span fifteen dimensions, so their distances to a vector are kept exactly by a head of at least
//! fifteen values: the vector's coordinates in the span. The tail is the vector along its principal axes; in each cell it is
//! taken relative to the cell's mean and turned to the cell's own axes, allocated to books like those of OPQ. A cell with
//! fewer documents than dimensions is not turned. The words of the books are shared by all cells.

use micpq::model::{Cells, CodeShape, Codebooks, Refine};
use micpq::{Error, Matrix, Result};

use crate::kmeans::KMeans;
use crate::pq::{Quantizer, books, rotate};
use crate::rotation::{Axes, compose, identity, mean, project};

/// Cells: the words of book 0.
const CELLS: usize = 16;
/// Values of a tail: every cell keeps a square of them.
const TAIL: usize = 256;

/// Fits `points`.
pub fn fit(points: &Matrix, bits: usize, iterations: usize, seed: u64) -> Result<Quantizer> {
    let count = (bits / 4).saturating_sub(1);
    if count == 0 {
        return Err(Error::config(format!("LOPQ spends 4 bits on the cell and needs more than {bits}")));
    }
    // A head of fifteen values, or as many as there are where the vectors are narrower.
    let least = (CELLS - 1).min(points.cols());
    let dim = (TAIL.min(points.cols()).div_ceil(count)).clamp(least, 24.max(least));
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
    let nowhere = vec![0.0; tail];
    let heads = project(&coarse.centroids, &nowhere, &span);

    let (mut centres, mut rotations) = (Vec::new(), Vec::new());
    let mut local = Matrix::zeros(points.rows(), tail);
    for cell in 0..CELLS as u32 {
        let members: Vec<usize> = (0..points.rows()).filter(|&i| coarse.nearest[i] == cell).collect();
        let own = tails.select(&members);
        let centre = if members.is_empty() { coarse.centroids.row(cell as usize).to_vec() } else { mean(&own) };
        let turn = if members.len() > tail { Axes::of(&own)?.allocated(count, dim) } else { identity(tail) };
        let placed = project(&own, &centre, &turn);
        members.iter().zip(placed.iter()).for_each(|(&i, row)| local.row_mut(i).copy_from_slice(row));
        centres.extend(centre);
        rotations.extend_from_slice(turn.as_slice());
    }
    let (words, error) = books(&local, CodeShape::new(count, CELLS, dim)?, iterations, seed, None);

    // [head, tail] in one layer: the head's axes are combinations of the tail's.
    let mut all = compose(&span, &plain);
    all.extend(&plain);
    let cells = Cells::new(dim, tail, heads.as_slice().to_vec(), centres, rotations)?;
    Ok(Quantizer {
        refine: Refine::with_cells(vec![rotate(&axes.centre, &all)?], cells)?,
        codebooks: Codebooks::new(shape, [heads.as_slice(), &words].concat())?,
        error: error / points.rows() as f64,
    })
}

/// `[dim, width]`: unit vectors that span the centroids as they lie around their mean.
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
    use micpq::Matrix;
    use train::random::{Purpose, Stream};

    /// Sixteen far heaps, each flat in directions of its own: what local axes are for.
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
    fn cells_come_first_and_local_axes_beat_cutting() {
        let points = discs(4800, 20);
        let found = fit(&points, 32, 25, 0).unwrap();
        let shape = found.codebooks.shape();
        assert_eq!((shape.bits(), shape.books()), (32, 8));
        let refined = found.refine.apply(&points).unwrap();
        let codes = found.codebooks.assign(&refined);
        let cells = found.refine.cells().unwrap();
        // What book 0 says is the cell whose axes the rest of the code is in.
        for (code, row) in codes.chunks_exact(4).zip(refined.iter()) {
            assert_eq!(shape.word(code, 0), cells.cell(row));
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
