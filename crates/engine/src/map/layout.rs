//! The places of landmarks: t-SNE (van der Maaten and Hinton 2008), exact, from the two principal axes.
//!
//! Sums run in a fixed order and every row is computed by one thread, so the layout does not depend on threads.

use rayon::prelude::*;

use crate::clusters::points::Centres;
use crate::{Error, Progress, Result};

/// Neighbours that a landmark is kept near to, in effect.
const PERPLEXITY: f64 = 30.0;
/// Iterations with stronger attraction, which bring neighbours together before clusters part.
const EARLY: usize = 250;
const EXAGGERATION: f64 = 12.0;
const ITERATIONS: usize = 750;
/// Fewer landmarks have no neighbourhoods: their principal axes are the layout.
const MIN_LANDMARKS: usize = 8;
/// Lanes of a sum; fixed, so that every machine adds in the same order.
const LANES: usize = 8;

/// The place of every landmark.
pub(super) fn lay_out(landmarks: &Centres, progress: &dyn Progress) -> Result<Vec<[f64; 2]>> {
    let start = principal_axes(landmarks);
    if landmarks.len() < MIN_LANDMARKS {
        return Ok(start);
    }
    progress.stage("laying out landmarks", Some(ITERATIONS as u64));
    let affinities = Affinities::of(landmarks);
    Descent::new(&start).run(&affinities, progress)
}

/// Coordinates on the two principal axes, which power iteration finds. The start is fixed: the same vectors give the same axes.
pub(super) fn principal_axes(landmarks: &Centres) -> Vec<[f64; 2]> {
    let (n, width) = (landmarks.len(), landmarks.width);
    let mut rows: Vec<f64> = landmarks.values.iter().map(|&v| f64::from(v)).collect();
    for j in 0..width {
        let mean = (0..n).map(|i| rows[i * width + j]).sum::<f64>() / n as f64;
        (0..n).for_each(|i| rows[i * width + j] -= mean);
    }
    let mut coordinates = vec![[0.0; 2]; n];
    for axis in 0..2 {
        let direction = principal_axis(&rows, width);
        for (row, place) in rows.chunks_exact_mut(width).zip(&mut coordinates) {
            let along: f64 = row.iter().zip(&direction).map(|(a, b)| a * b).sum();
            place[axis] = along;
            // The rest is orthogonal to this axis. Its principal axis is the second one.
            row.iter_mut().zip(&direction).for_each(|(v, d)| *v -= along * d);
        }
    }
    coordinates
}

fn principal_axis(rows: &[f64], width: usize) -> Vec<f64> {
    let mut axis: Vec<f64> = (0..width).map(|j| 1.0 + (j % 7) as f64 / 7.0 - (j % 3) as f64).collect();
    for _ in 0..60 {
        let mut next = vec![0.0; width];
        for row in rows.chunks_exact(width) {
            let along: f64 = row.iter().zip(&axis).map(|(a, b)| a * b).sum();
            next.iter_mut().zip(row).for_each(|(n, v)| *n += along * v);
        }
        let length = next.iter().map(|v| v * v).sum::<f64>().sqrt();
        if length == 0.0 {
            return vec![0.0; width];
        }
        axis = next.into_iter().map(|v| v / length).collect();
    }
    // The sign of an axis is arbitrary. A fixed choice keeps the map stable.
    let sign = axis.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).map_or(1.0, f64::signum);
    axis.iter_mut().for_each(|v| *v *= sign);
    axis
}

/// How much each landmark belongs near each other: symmetric, and 1 in sum. Far pairs have none.
struct Affinities {
    rows: Vec<Vec<(u32, f64)>>,
}

impl Affinities {
    fn of(landmarks: &Centres) -> Affinities {
        let n = landmarks.len();
        let perplexity = PERPLEXITY.min((n - 1) as f64 / 3.0);
        let neighbours = ((3.0 * perplexity) as usize).clamp(1, n - 1);
        let conditional = |i: usize| -> Vec<(u32, f64)> {
            let mut near: Vec<(f64, u32)> = (0..n as u32)
                .filter(|&j| j as usize != i)
                .map(|j| (f64::from(kernels::squares::squared(landmarks.row(i), landmarks.row(j as usize))), j))
                .collect();
            near.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            near.truncate(neighbours);
            weights(&near, perplexity)
        };
        let one_way: Vec<Vec<(u32, f64)>> = (0..n).into_par_iter().map(conditional).collect();
        let mut rows = one_way.clone();
        for (i, row) in one_way.iter().enumerate() {
            row.iter().for_each(|&(j, p)| rows[j as usize].push((i as u32, p)));
        }
        for row in &mut rows {
            row.sort_unstable_by_key(|(j, _)| *j);
            row.dedup_by(|second, first| {
                let same = first.0 == second.0;
                first.1 += if same { second.1 } else { 0.0 };
                same
            });
            row.iter_mut().for_each(|(_, p)| *p /= 2.0 * n as f64);
        }
        Affinities { rows }
    }
}

/// Gaussian weights of neighbours at squared distances, as wide as the perplexity wants; 1 in sum.
fn weights(near: &[(f64, u32)], perplexity: f64) -> Vec<(u32, f64)> {
    let first = near[0].0;
    let at = |beta: f64| -> (Vec<f64>, f64) {
        let raw: Vec<f64> = near.iter().map(|(d, _)| (-(d - first) * beta).exp()).collect();
        let total: f64 = raw.iter().sum();
        let entropy = total.ln() + beta * near.iter().zip(&raw).map(|((d, _), w)| (d - first) * w).sum::<f64>() / total;
        (raw.into_iter().map(|w| w / total).collect(), entropy)
    };
    let (mut low, mut high, mut beta) = (0.0, f64::INFINITY, 1.0);
    for _ in 0..64 {
        let (_, entropy) = at(beta);
        if entropy > perplexity.ln() {
            low = beta;
            beta = if high.is_finite() { f64::midpoint(beta, high) } else { 2.0 * beta };
        } else {
            high = beta;
            beta = f64::midpoint(low, beta);
        }
    }
    near.iter().zip(at(beta).0).map(|((_, j), w)| (*j, w)).collect()
}

/// Gradient descent with momentum and a step per coordinate.
struct Descent {
    /// Coordinates, x then y.
    at: [Vec<f64>; 2],
    velocity: [Vec<f64>; 2],
    gains: [Vec<f64>; 2],
}

impl Descent {
    fn new(start: &[[f64; 2]]) -> Descent {
        let n = start.len();
        // A small start: forces are smooth only near the origin.
        let spread = (start.iter().map(|p| p[0] * p[0]).sum::<f64>() / n as f64).sqrt();
        let scale = if spread > 0.0 { 1e-4 / spread } else { 0.0 };
        let axis = |a: usize| -> Vec<f64> {
            // Landmarks at one place would stay there for ever.
            start.iter().enumerate().map(|(i, p)| p[a] * scale + 1e-8 * ((i * (a + 7)) % 101) as f64).collect()
        };
        let filled = |value: f64| [vec![value; n], vec![value; n]];
        Descent { at: [axis(0), axis(1)], velocity: filled(0.0), gains: filled(1.0) }
    }

    fn run(mut self, affinities: &Affinities, progress: &dyn Progress) -> Result<Vec<[f64; 2]>> {
        let n = self.at[0].len();
        let rate = (n as f64 / EXAGGERATION / 4.0).max(50.0);
        for iteration in 0..ITERATIONS {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let early = iteration < EARLY;
            let gradient = self.gradient(affinities, if early { EXAGGERATION } else { 1.0 });
            self.step(&gradient, rate, if early { 0.5 } else { 0.8 });
            progress.advance(1);
        }
        Ok((0..n).map(|i| [self.at[0][i], self.at[1][i]]).collect())
    }

    fn gradient(&self, affinities: &Affinities, exaggeration: f64) -> Vec<[f64; 2]> {
        let [xs, ys] = &self.at;
        let repulsions: Vec<[f64; 3]> =
            (0..xs.len()).into_par_iter().map(|i| repulsion(xs[i], ys[i], xs, ys)).collect();
        // Without the landmark itself, whose closeness is 1.
        let total: f64 = repulsions.iter().map(|r| r[0] - 1.0).sum::<f64>().max(f64::MIN_POSITIVE);
        let row = |i: usize| {
            let (mut gx, mut gy) = (0.0, 0.0);
            for &(j, p) in &affinities.rows[i] {
                let (dx, dy) = (xs[i] - xs[j as usize], ys[i] - ys[j as usize]);
                let force = exaggeration * p / (1.0 + dx * dx + dy * dy);
                gx += force * dx;
                gy += force * dy;
            }
            let [_, rx, ry] = repulsions[i];
            [4.0 * (gx - rx / total), 4.0 * (gy - ry / total)]
        };
        (0..xs.len()).into_par_iter().map(row).collect()
    }

    fn step(&mut self, gradient: &[[f64; 2]], rate: f64, momentum: f64) {
        for axis in 0..2 {
            let (at, velocity, gains) = (&mut self.at[axis], &mut self.velocity[axis], &mut self.gains[axis]);
            for (i, slope) in gradient.iter().map(|g| g[axis]).enumerate() {
                let against = slope * velocity[i] < 0.0;
                gains[i] = if against { gains[i] + 0.2 } else { (gains[i] * 0.8).max(0.01) };
                velocity[i] = momentum * velocity[i] - rate * gains[i] * slope;
                at[i] += velocity[i];
            }
            let mean = at.iter().sum::<f64>() / at.len() as f64;
            at.iter_mut().for_each(|v| *v -= mean);
        }
    }
}

/// The sum of closenesses of a place to all landmarks, and the force that pushes it away from them.
fn repulsion(x: f64, y: f64, xs: &[f64], ys: &[f64]) -> [f64; 3] {
    let mut sums = [[0.0; LANES]; 3];
    let mut add = |lane: usize, other_x: f64, other_y: f64| {
        let (dx, dy) = (x - other_x, y - other_y);
        let close = 1.0 / (1.0 + dx * dx + dy * dy);
        sums[0][lane] += close;
        sums[1][lane] += close * close * dx;
        sums[2][lane] += close * close * dy;
    };
    let (full_x, rest_x) = xs.as_chunks::<LANES>();
    let (full_y, rest_y) = ys.as_chunks::<LANES>();
    for (some_x, some_y) in full_x.iter().zip(full_y) {
        (0..LANES).for_each(|lane| add(lane, some_x[lane], some_y[lane]));
    }
    rest_x.iter().zip(rest_y).enumerate().for_each(|(lane, (&x, &y))| add(lane, x, y));
    sums.map(|lanes| lanes.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principal_axes_are_those_of_greatest_variance() {
        // A long cloud along (1, 1, 0), flatter along (0, 0, 1), nothing else.
        let values: Vec<f32> = (0..101)
            .flat_map(|i| {
                let t = i as f32 - 50.0;
                [t + 3.0, t - 9.0, 10.0 * (t * 0.7).sin()]
            })
            .collect();
        let placed = principal_axes(&Centres { width: 3, values });
        let variance = |axis: usize| placed.iter().map(|p| p[axis] * p[axis]).sum::<f64>();
        let total: f64 = variance(0) + variance(1);
        assert!(variance(0) > 0.9 * total && variance(1) > 0.0, "{} {}", variance(0), variance(1));
        let (first, last) = (placed[0][0], placed[100][0]);
        assert!((first + last).abs() < 5.0 && (last - first).abs() > 130.0, "{first} {last}");
        assert_eq!(principal_axes(&Centres { width: 2, values: vec![1.0, 2.0, 1.0, 2.0] }), [[0.0; 2]; 2]);
    }

    #[test]
    fn weights_have_the_perplexity_that_is_asked_for() {
        let near: Vec<(f64, u32)> = (0..90).map(|j| (f64::from(j * j) * 0.01 + 5.0, j)).collect();
        for perplexity in [5.0, 30.0] {
            let weights = weights(&near, perplexity);
            let entropy: f64 = weights.iter().map(|(_, w)| if *w > 0.0 { -w * w.ln() } else { 0.0 }).sum();
            assert!((entropy.exp() - perplexity).abs() < 1e-6, "{}", entropy.exp());
            assert!((weights.iter().map(|(_, w)| w).sum::<f64>() - 1.0).abs() < 1e-12);
        }
        // Equal distances: nothing to choose.
        let equal = weights(&[(2.0, 0), (2.0, 1), (2.0, 2)], 1.0);
        assert!(equal.iter().all(|(_, w)| (w - 1.0 / 3.0).abs() < 1e-12));
    }

    #[test]
    fn a_gradient_step_is_that_of_the_definition() {
        let landmarks = Centres { width: 2, values: (0..40).map(|i| ((i * 37 % 23) as f32).sin()).collect() };
        let affinities = Affinities::of(&landmarks);
        let total: f64 = affinities.rows.iter().flatten().map(|(_, p)| p).sum();
        assert!((total - 1.0).abs() < 1e-12, "{total}");
        let start: Vec<[f64; 2]> = (0..20).map(|i| [f64::from(i) * 0.31, f64::from(i * i % 7)]).collect();
        let mut descent = Descent::new(&start);
        descent.at = [start.iter().map(|p| p[0]).collect(), start.iter().map(|p| p[1]).collect()];
        // The cost: the Kullback-Leibler divergence of closenesses from affinities.
        let cost = |at: &[Vec<f64>; 2]| {
            let close =
                |i: usize, j: usize| 1.0 / (1.0 + (at[0][i] - at[0][j]).powi(2) + (at[1][i] - at[1][j]).powi(2));
            let pairs = (0..20).flat_map(|i| (0..20).map(move |j| (i, j))).filter(|(i, j)| i != j);
            let all: f64 = pairs.map(|(i, j)| close(i, j)).sum();
            let cell = |(i, row): (usize, &Vec<(u32, f64)>)| -> f64 {
                row.iter().map(|&(j, p)| p * (p / (close(i, j as usize) / all)).ln()).sum()
            };
            affinities.rows.iter().enumerate().map(cell).sum::<f64>()
        };
        let gradient = descent.gradient(&affinities, 1.0);
        for i in [0, 7, 19] {
            for axis in 0..2 {
                let mut moved = descent.at.clone();
                moved[axis][i] += 1e-5;
                let above = cost(&moved);
                moved[axis][i] -= 2e-5;
                let slope = (above - cost(&moved)) / 2e-5;
                assert!((slope - gradient[i][axis]).abs() < 1e-6, "{i} {axis}: {slope} {}", gradient[i][axis]);
            }
        }
    }
}
