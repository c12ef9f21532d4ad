//! The places of documents: between the landmarks that are nearest to their codes.

use kernels::dropout::mix;
use rayon::prelude::*;

use crate::clusters::points::{Centres, Points};

/// Landmarks that place a document.
const NEAREST: usize = 8;
/// Landmarks that a landmark's tangent is fitted to.
const FITTED: usize = 12;
/// The greatest shift that keeps apart documents of one code, of the width of the map.
const SHIFT: f64 = 0.002;
/// At either end of an axis, one landmark of so many may be far from the others without making the map wider.
const FAR: usize = 50;
const SIDE: f64 = u16::MAX as f64;

/// The place of every document on a square. `plane` has the places of the landmarks.
pub(super) fn places(points: &Points, landmarks: &Centres, plane: &[[f64; 2]], sequences: &[u64]) -> Vec<[u16; 2]> {
    let tangents = Tangents::new(points, landmarks, plane);
    let place = |point: &[u8], near: &[(u16, f32)]| -> [f64; 2] {
        let far = f64::from(near[near.len() - 1].1);
        let (mut sum, mut total) = ([0.0; 2], 0.0);
        for &(landmark, distance) in near {
            // It vanishes for the farthest one, so that a document moves little where its nearest landmarks change.
            let weight = if far > 0.0 { (1.0 - f64::from(distance) / far).powi(3) } else { 1.0 };
            let [dx, dy] = tangents.offset(usize::from(landmark), point);
            let [x, y] = plane[usize::from(landmark)];
            sum = [sum[0] + weight * (x + dx), sum[1] + weight * (y + dy)];
            total += weight;
        }
        if total > 0.0 { sum.map(|v| v / total) } else { plane[usize::from(near[0].0)] }
    };
    let raw: Vec<[f64; 2]> = points.map_nearest::<NEAREST, _>(landmarks, place);
    on_square(&raw, plane, sequences)
}

/// The part of an axis that the map shows. Few landmarks far from all others do not make the rest small: what is farther away than
/// half the range of the others lies on the edge.
fn shown(raw: &[[f64; 2]], plane: &[[f64; 2]], axis: usize) -> (f64, f64) {
    let (low, high) =
        raw.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p[axis]), high.max(p[axis])));
    let mut sorted: Vec<f64> = plane.iter().map(|p| p[axis]).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let few = sorted.len() / FAR;
    let (first, last) = (sorted[few], sorted[sorted.len() - 1 - few]);
    let reach = (last - first) / 2.0;
    // Nothing is far from landmarks that all lie in one place.
    if reach > 0.0 { (low.max(first - reach), high.min(last + reach)) } else { (low, high) }
}

/// Scales both axes alike into a square, and shifts every document by a hash of its sequence.
fn on_square(raw: &[[f64; 2]], plane: &[[f64; 2]], sequences: &[u64]) -> Vec<[u16; 2]> {
    let (x, y) = (shown(raw, plane, 0), shown(raw, plane, 1));
    let width = (x.1 - x.0).max(y.1 - y.0);
    let scale = if width > 0.0 { (1.0 - 2.0 * SHIFT) / width } else { 0.0 };
    let middle = [f64::midpoint(x.0, x.1), f64::midpoint(y.0, y.1)];
    let edge = [x, y].map(|(low, high)| ((high - low) / 2.0).max(0.0));
    let place = |(place, &sequence): (&[f64; 2], &u64)| {
        let draw = |of: u64| (mix(sequence, of) >> 11) as f64 / (1u64 << 53) as f64;
        // Evenly over a disc.
        let (angle, radius) = (draw(1) * std::f64::consts::TAU, SHIFT * draw(2).sqrt());
        let shift = [radius * angle.cos(), radius * angle.sin()];
        let from_middle = |axis: usize| (place[axis] - middle[axis]).clamp(-edge[axis], edge[axis]);
        let on = |axis: usize| ((0.5 + from_middle(axis) * scale + shift[axis]) * SIDE).round() as u16;
        [on(0), on(1)]
    };
    raw.par_iter().zip(sequences).map(place).collect()
}

/// How places change around each landmark: a linear map that is fitted to its neighbours. The values of all codewords are kept,
/// so a document's offset is a sum over codebooks.
struct Tangents {
    codebooks: usize,
    size: usize,
    /// `[landmarks, codebooks, codewords]`.
    values: Vec<[f32; 2]>,
    /// The offset of the landmark itself, and the longest offset.
    origins: Vec<([f64; 2], f64)>,
}

impl Tangents {
    fn new(points: &Points, landmarks: &Centres, plane: &[[f64; 2]]) -> Tangents {
        let shape = points.shape();
        let fitted: Vec<(Vec<[f64; 2]>, f64)> =
            (0..landmarks.len()).into_par_iter().map(|i| fit(landmarks, plane, i)).collect();
        let (size, dim) = (shape.codebook_size(), shape.dim());
        let codewords = points.codebooks().values();
        let along = |(linear, _): &(Vec<[f64; 2]>, f64)| -> Vec<[f32; 2]> {
            let value = |(i, codeword): (usize, &[f32])| {
                let slice = &linear[i / size * dim..][..dim];
                let sum = |axis: usize| slice.iter().zip(codeword).map(|(a, &v)| a[axis] * f64::from(v)).sum::<f64>();
                [sum(0) as f32, sum(1) as f32]
            };
            codewords.chunks_exact(dim).enumerate().map(value).collect()
        };
        let origin = |(i, (linear, longest)): (usize, &(Vec<[f64; 2]>, f64))| {
            let row = landmarks.row(i);
            let sum = |axis: usize| linear.iter().zip(row).map(|(a, &v)| a[axis] * f64::from(v)).sum::<f64>();
            ([sum(0), sum(1)], *longest)
        };
        let values: Vec<[f32; 2]> = fitted.par_iter().flat_map_iter(along).collect();
        let origins = fitted.iter().enumerate().map(origin).collect();
        Tangents { codebooks: shape.num_codebooks(), size, values, origins }
    }

    /// How far a point is from a landmark on the plane.
    fn offset(&self, landmark: usize, point: &[u8]) -> [f64; 2] {
        let own = &self.values[landmark * self.codebooks * self.size..];
        let mut sum = [0.0f64; 2];
        for (m, &k) in point.iter().enumerate() {
            let [x, y] = own[m * self.size + usize::from(k)];
            sum = [sum[0] + f64::from(x), sum[1] + f64::from(y)];
        }
        let ([x, y], longest) = self.origins[landmark];
        let offset = [sum[0] - x, sum[1] - y];
        let length = offset[0].hypot(offset[1]);
        if length > longest { offset.map(|v| v * longest / length) } else { offset }
    }
}

/// The linear map from a landmark's surroundings to the plane, by ridge regression over its nearest landmarks, and the longest
/// offset: half their median distance on the plane.
fn fit(landmarks: &Centres, plane: &[[f64; 2]], i: usize) -> (Vec<[f64; 2]>, f64) {
    let own = landmarks.row(i);
    let mut near: Vec<(f32, usize)> = (0..landmarks.len())
        .filter(|&j| j != i)
        .map(|j| (kernels::squares::squared(own, landmarks.row(j)), j))
        .collect();
    near.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    near.truncate(FITTED);
    if near.is_empty() {
        return (vec![[0.0; 2]; landmarks.width], 0.0);
    }
    let difference = |j: usize| -> Vec<f64> {
        landmarks.row(j).iter().zip(own).map(|(&a, &b)| f64::from(a) - f64::from(b)).collect()
    };
    let rows: Vec<Vec<f64>> = near.iter().map(|(_, j)| difference(*j)).collect();
    let aims: Vec<[f64; 2]> = near.iter().map(|(_, j)| [0, 1].map(|a| plane[*j][a] - plane[i][a])).collect();
    let mut lengths: Vec<f64> = aims.iter().map(|[x, y]| x.hypot(*y)).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut gram: Vec<Vec<f64>> = rows.iter().map(|a| rows.iter().map(|b| dot(a, b)).collect()).collect();
    let trace: f64 = (0..rows.len()).map(|r| gram[r][r]).sum();
    let ridge = (0.1 * trace / rows.len() as f64).max(f64::MIN_POSITIVE);
    (0..rows.len()).for_each(|r| gram[r][r] += ridge);
    let solved = solve(gram, aims);
    let mut linear = vec![[0.0; 2]; landmarks.width];
    for (row, [x, y]) in rows.iter().zip(solved) {
        linear.iter_mut().zip(row).for_each(|(a, v)| *a = [a[0] + x * v, a[1] + y * v]);
    }
    (linear, lengths[lengths.len() / 2] / 2.0)
}

/// Solves `matrix * unknown = right` for a positive definite matrix by elimination.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    let n = matrix.len();
    for column in 0..n {
        let (upper, lower) = matrix.split_at_mut(column + 1);
        let pivot = &upper[column];
        let known = right[column];
        for (row, right) in lower.iter_mut().zip(&mut right[column + 1..]) {
            let factor = row[column] / pivot[column];
            row.iter_mut().zip(pivot).for_each(|(v, p)| *v -= factor * p);
            *right = [right[0] - factor * known[0], right[1] - factor * known[1]];
        }
    }
    for row in (0..n).rev() {
        let mut value = right[row];
        for column in row + 1..n {
            let (factor, known) = (matrix[row][column], right[column]);
            value = [value[0] - factor * known[0], value[1] - factor * known[1]];
        }
        right[row] = value.map(|v| v / matrix[row][row]);
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_in_space_is_continued_between_and_beyond_landmarks() {
        // Landmarks on a tilted plane, laid out flat: the linear map finds the tilt.
        let flat = |i: usize| [(i % 5) as f64, (i / 5) as f64];
        let space = |[x, y]: [f64; 2]| [x as f32, y as f32, (x + y) as f32];
        let plane: Vec<[f64; 2]> = (0..25).map(flat).collect();
        let landmarks = Centres { width: 3, values: plane.iter().flat_map(|&p| space(p)).collect() };
        let (linear, longest) = fit(&landmarks, &plane, 12);
        assert!(longest > 0.4 && longest < 1.5, "{longest}");
        let moved = |by: [f64; 2]| {
            let [x, y, z] = space(by).map(f64::from);
            [0, 1].map(|axis| linear[0][axis] * x + linear[1][axis] * y + linear[2][axis] * z)
        };
        // The ridge shrinks it a little.
        let [x, y] = moved([0.5, -0.3]);
        assert!((x - 0.5).abs() < 0.06 && (y + 0.3).abs() < 0.06, "{x} {y}");
    }

    #[test]
    fn equal_places_are_kept_apart_within_the_square() {
        let raw = vec![[3.0, 4.0]; 500];
        let sequences: Vec<u64> = (0..500).collect();
        let placed = on_square(&raw, &raw, &sequences);
        let distinct: std::collections::HashSet<_> = placed.iter().collect();
        assert!(distinct.len() > 490, "{}", distinct.len());
        let most = (SHIFT * SIDE) as i32 + 1;
        assert!(placed.iter().flatten().all(|&v| (i32::from(v) - 32768).abs() <= most));
        let two = [[0.0, 0.0], [10.0, 1.0]];
        let ends = on_square(&two, &two, &[1, 2]);
        assert!(ends[0][0] < 300 && ends[1][0] > 65200, "{ends:?}");
    }

    #[test]
    fn far_outliers_do_not_make_the_map_small() {
        let mut raw: Vec<[f64; 2]> = (0..400).map(|i| [f64::from(i % 20), f64::from(i / 20)]).collect();
        let sequences: Vec<u64> = (0..404).collect();
        let range = |placed: &[[u16; 2]], axis: usize| {
            let values = || placed.iter().map(|place| i32::from(place[axis]));
            (values().min().unwrap(), values().max().unwrap())
        };
        // Nothing is far: the map is as wide as all of it.
        let near = on_square(&raw, &raw, &sequences);
        assert!((0..2).all(|axis| range(&near, axis).0 < 300 && range(&near, axis).1 > 65_200));
        raw.extend([[1e6, 3.0], [-1e5, -1e5], [5.0, 1e9], [6.0, 700.0]]);
        let placed = on_square(&raw, &raw, &sequences);
        for axis in 0..2 {
            let (low, high) = range(&placed[..400], axis);
            // The others keep their order and half of the map or nearly.
            assert!(high - low > 29_000, "{low} {high}");
            let at = |i: usize| placed[i * if axis == 0 { 1 } else { 20 }][axis];
            assert!((1..20).all(|i| at(i - 1) < at(i)));
        }
        let edge = (2.0 * SHIFT * SIDE) as u16 + 1;
        assert!(placed[400][0] > u16::MAX - edge && placed[401][0] < edge && placed[402][1] > u16::MAX - edge);
        assert!(placed[403][1] > placed[399][1], "{placed:?}");
    }
}
