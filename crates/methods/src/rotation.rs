//! Rotations: principal axes, their balanced allocation to codebooks, and the orthogonal Procrustes problem.

use engine::{Error, Matrix, Result};
use faer::{Mat, MatRef, Side};
use rayon::prelude::*;
use train::product::{View, multiply, multiply_add};

// Points per partial sum, and output rows per task.
const CHUNK: usize = 4096;
const ROWS: usize = 64;

pub fn mean(points: &Matrix) -> Vec<f32> {
    let parts: Vec<Vec<f64>> = points
        .as_slice()
        .par_chunks(CHUNK * points.cols())
        .map(|part| {
            let mut sum = vec![0.0f64; points.cols()];
            part.chunks_exact(points.cols()).for_each(|row| {
                sum.iter_mut().zip(row).for_each(|(s, &v)| *s += f64::from(v));
            });
            sum
        })
        .collect();
    let mut sum = vec![0.0f64; points.cols()];
    parts.iter().for_each(|p| sum.iter_mut().zip(p).for_each(|(s, v)| *s += v));
    sum.iter().map(|s| (s / points.rows().max(1) as f64) as f32).collect()
}

/// `a' b` in double precision: `[a.cols, b.cols]`.
pub fn cross(a: &Matrix, b: &Matrix) -> Vec<f64> {
    assert_eq!(a.rows(), b.rows());
    let mut out = vec![0.0f64; a.cols() * b.cols()];
    for (x, y) in a.as_slice().chunks(CHUNK * a.cols()).zip(b.as_slice().chunks(CHUNK * b.cols())) {
        let rows = x.len() / a.cols();
        let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        let y: Vec<f64> = y.iter().map(|&v| f64::from(v)).collect();
        let (x, y) = (View::new(&x, rows, a.cols()), View::new(&y, rows, b.cols()));
        out.par_chunks_mut(ROWS * b.cols()).enumerate().for_each(|(i, out)| {
            multiply_add(out, x.columns(i * ROWS, out.len() / b.cols()).transposed(), y, 1.0);
        });
    }
    out
}

pub fn identity(n: usize) -> Matrix {
    let mut out = Matrix::zeros(n, n);
    (0..n).for_each(|i| out.row_mut(i)[i] = 1.0);
    out
}

/// `a b`.
pub fn compose(a: &Matrix, b: &Matrix) -> Matrix {
    let mut out = Matrix::zeros(a.rows(), b.cols());
    let (left, right) = (View::new(a.as_slice(), a.rows(), a.cols()), View::new(b.as_slice(), b.rows(), b.cols()));
    multiply(out.as_mut_slice(), left, right, 1.0);
    out
}

/// `points axes'`: the coordinates of points along `axes [n, cols]`, after taking `centre` away.
pub fn project(points: &Matrix, centre: &[f32], axes: &Matrix) -> Matrix {
    let (cols, n) = (points.cols(), axes.rows());
    let mut out = Matrix::zeros(points.rows(), n);
    let to = View::new(axes.as_slice(), n, cols).transposed();
    let tasks = out.as_mut_slice().par_chunks_mut(CHUNK * n).zip(points.as_slice().par_chunks(CHUNK * cols));
    tasks.for_each(|(out, part)| {
        let centred: Vec<f32> =
            part.chunks_exact(cols).flat_map(|r| r.iter().zip(centre).map(|(x, c)| x - c)).collect();
        multiply(out, View::new(&centred, part.len() / cols, cols), to, 1.0);
    });
    out
}

/// Principal axes of a cloud of points.
#[derive(Clone, Debug)]
pub struct Axes {
    pub centre: Vec<f32>,
    /// Unit vectors as rows, the largest variance first: `[cols, cols]`.
    pub axes: Matrix,
    /// Variance along each axis, falling, not negative.
    pub variances: Vec<f64>,
}

impl Axes {
    pub fn of(points: &Matrix) -> Result<Axes> {
        let (n, cols) = (points.rows(), points.cols());
        if n == 0 || !points.as_slice().iter().all(|v| v.is_finite()) {
            return Err(Error::input(
                "vectors",
                if n == 0 { "there are none".to_owned() } else { "some values are not finite numbers".to_owned() },
            ));
        }
        let centre = mean(points);
        let centred = centred(points, &centre);
        let mut covariance = cross(&centred, &centred);
        covariance.iter_mut().for_each(|c| *c /= n as f64);
        let (axes, variances) = eigen(&covariance, cols)?;
        Ok(Axes { centre, axes, variances })
    }

    /// The first axes in an order for codebooks of `dim` values, `[codebooks * dim, cols]`. Each axis goes to the codebook with
    /// room whose variances have the smallest product, so that the codebooks share the variance evenly.
    pub fn allocated(&self, codebooks: usize, dim: usize) -> Matrix {
        let count = (codebooks * dim).min(self.variances.len());
        let order = allocate(&self.variances[..count], codebooks, dim);
        let mut out = Matrix::zeros(codebooks * dim, self.axes.cols());
        for (row, axis) in order.into_iter().enumerate() {
            // With fewer axes than rows the last rows of a codebook are zeros.
            if let Some(axis) = axis {
                out.row_mut(row).copy_from_slice(self.axes.row(axis));
            }
        }
        out
    }

    /// At most `max` axes, scaled to unit variance. Axes with less than a millionth of the largest variance are left out: they would
    /// magnify rounding errors.
    pub fn whitening(&self, max: usize) -> Matrix {
        let min = self.variances.first().copied().unwrap_or(0.0) * 1e-6;
        let count = self.variances.iter().take(max).take_while(|v| **v > min).count().max(1);
        let mut out = Matrix::zeros(count, self.axes.cols());
        for i in 0..count {
            let scale = 1.0 / self.variances[i].max(f64::MIN_POSITIVE).sqrt();
            out.row_mut(i).iter_mut().zip(self.axes.row(i)).for_each(|(o, a)| *o = (f64::from(*a) * scale) as f32);
        }
        out
    }
}

fn centred(points: &Matrix, centre: &[f32]) -> Matrix {
    let mut out = points.clone();
    out.as_mut_slice().par_chunks_exact_mut(centre.len()).for_each(|row| {
        row.iter_mut().zip(centre).for_each(|(v, c)| *v -= c);
    });
    out
}

/// The axis of each of the `codebooks * dim` rows; `None` where there are fewer axes.
fn allocate(variances: &[f64], codebooks: usize, dim: usize) -> Vec<Option<usize>> {
    let mut order = vec![None; codebooks * dim];
    let (mut filled, mut logs) = (vec![0usize; codebooks], vec![0.0f64; codebooks]);
    // Relative to the smallest variance every factor is at least one. A factor below one would make a codebook look emptier
    // with every axis.
    let min = variances.iter().copied().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
    for (axis, &variance) in variances.iter().enumerate() {
        let with_room = (0..codebooks).filter(|&b| filled[b] < dim);
        let Some(codebook) = with_room.min_by(|&a, &b| logs[a].total_cmp(&logs[b]).then(a.cmp(&b))) else { break };
        order[codebook * dim + filled[codebook]] = Some(axis);
        filled[codebook] += 1;
        logs[codebook] += (variance / min).max(1.0).ln();
    }
    order
}

/// Eigenvectors as rows, the largest eigenvalue first, and the eigenvalues. The largest entry of each vector is positive.
fn eigen(symmetric: &[f64], n: usize) -> Result<(Matrix, Vec<f64>)> {
    let matrix = MatRef::from_row_major_slice(symmetric, n, n);
    let found = matrix.self_adjoint_eigen(Side::Lower).map_err(|e| {
        Error::input("vectors", format!("no principal axes found ({e:?}); check that the values are finite"))
    })?;
    let (vectors, values) = (found.U(), found.S().column_vector());
    let mut axes = Matrix::zeros(n, n);
    let mut variances = Vec::with_capacity(n);
    for i in 0..n {
        let from = n - 1 - i;
        let column: Vec<f64> = (0..n).map(|j| vectors[(j, from)]).collect();
        let largest = column.iter().fold(0.0f64, |m, v| if v.abs() > m.abs() { *v } else { m });
        let sign = if largest < 0.0 { -1.0 } else { 1.0 };
        axes.row_mut(i).iter_mut().zip(&column).for_each(|(a, v)| *a = (sign * v) as f32);
        variances.push(values[from].max(0.0));
    }
    Ok((axes, variances))
}

/// The rotation `r [n, n]` with the least squared error of `points r'` from `targets`, where `product = points' targets`. With
/// `product = U S V'` it is `V U'`.
pub fn nearest_rotation(product: &[f64], n: usize) -> Result<Matrix> {
    let matrix = MatRef::from_row_major_slice(product, n, n);
    let svd = matrix
        .svd()
        .map_err(|e| Error::input("vectors", format!("no rotation found ({e:?}); check that the values are finite")))?;
    let rotation: Mat<f64> = svd.V() * svd.U().transpose();
    let mut out = Matrix::zeros(n, n);
    for i in 0..n {
        out.row_mut(i).iter_mut().enumerate().for_each(|(j, o)| *o = rotation[(i, j)] as f32);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use train::random::{Purpose, Stream};

    fn cloud(n: usize, scales: &[f32]) -> Matrix {
        let mut points = Matrix::zeros(n, scales.len());
        Stream::new(4, Purpose::Init, &[]).normal(points.as_mut_slice());
        for i in 0..n {
            points.row_mut(i).iter_mut().zip(scales).for_each(|(v, s)| *v = *v * s + 3.0);
        }
        points
    }

    #[test]
    fn axes_and_variances_of_a_stretched_cloud_are_found() {
        let found = Axes::of(&cloud(20_000, &[1.0, 5.0, 0.1, 2.0])).unwrap();
        for (i, (axis, variance)) in [(1, 25.0), (3, 4.0), (0, 1.0), (2, 0.01)].into_iter().enumerate() {
            assert!((found.variances[i] / variance - 1.0).abs() < 0.05, "{:?}", found.variances);
            assert!(found.axes.row(i)[axis] > 0.99, "{:?}", found.axes.row(i));
        }
        assert!(found.centre.iter().all(|c| (c - 3.0).abs() < 0.1));
    }

    #[test]
    fn allocation_balances_the_products_of_variances() {
        // By hand: 8 to codebook 0, 4 to codebook 1, 2 to codebook 1 (4 < 8), 1 to codebook 0, the last with room.
        assert_eq!(allocate(&[8.0, 4.0, 2.0, 1.0], 2, 2), [Some(0), Some(3), Some(1), Some(2)]);
        // Variances below one must not fill one codebook first.
        assert_eq!(allocate(&[0.8, 0.4, 0.2, 0.1], 2, 2), [Some(0), Some(3), Some(1), Some(2)]);
        assert_eq!(allocate(&[3.0, 2.0, 1.0], 2, 2), [Some(0), None, Some(1), Some(2)]);
    }

    #[test]
    fn nearest_rotation_recovers_a_rotation_and_is_orthogonal() {
        let points = cloud(500, &[1.0, 2.0, 3.0, 0.5, 1.5]);
        let turn = Axes::of(&cloud(50, &[1.0, 1.0, 1.0, 1.0, 1.0])).unwrap().axes;
        let targets = project(&points, &[0.0; 5], &turn);
        let found = nearest_rotation(&cross(&points, &targets), 5).unwrap();
        let difference = found.as_slice().iter().zip(turn.as_slice()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference < 1e-5, "{difference}");
        // The result is orthogonal for any product.
        let odd = nearest_rotation(&(0..25).map(|i| f64::from(i * 7 % 11).sin()).collect::<Vec<_>>(), 5).unwrap();
        let square = cross(&odd, &odd);
        assert!((0..25).all(|i| (square[i] - f64::from(u8::from(i % 6 == 0))).abs() < 1e-5));
    }

    #[test]
    fn whitened_points_have_unit_variance() {
        let points = cloud(20_000, &[1.0, 5.0, 0.1]);
        let axes = Axes::of(&points).unwrap();
        let white = project(&points, &axes.centre, &axes.whitening(3));
        let square = cross(&white, &white);
        assert!((0..9).all(|i| (square[i] / 20_000.0 - f64::from(u8::from(i % 4 == 0))).abs() < 1e-3));
    }
}
