//! Scaling of every value to mean 0 and variance 1.
//!
//! A Gaussian decoder of unit variance weighs reconstruction against the divergence of the code. Embeddings of another scale make one
//! of the two vanish: with raw embeddings of a sentence encoder the code carries nothing. The scale becomes part of the model's
//! first layer. DHIM's token states are scaled too.

use engine::model::{Dense, Projection};
use engine::{Matrix, Result};

use crate::entry::Entry;

/// Mean and inverse standard deviation of every value.
pub struct Scale {
    mean: Vec<f32>,
    factor: Vec<f32>,
}

impl Scale {
    pub fn of(points: &Matrix) -> Self {
        Scale::of_rows(points.cols(), std::iter::once(points.as_slice()))
    }

    /// From rows of `width` values; a part holds any number of them.
    pub fn of_rows<P: AsRef<[f32]>>(width: usize, parts: impl Iterator<Item = P> + Clone) -> Self {
        let mut sums = vec![0.0f64; width];
        let mut count = 0;
        for part in parts.clone() {
            for row in part.as_ref().chunks_exact(width) {
                sums.iter_mut().zip(row).for_each(|(s, x)| *s += f64::from(*x));
                count += 1;
            }
        }
        let mean: Vec<f32> = sums.iter().map(|s| (s / f64::from(count.max(1))) as f32).collect();
        let mut squares = vec![0.0f64; width];
        for part in parts {
            for row in part.as_ref().chunks_exact(width) {
                squares.iter_mut().zip(row.iter().zip(&mean)).for_each(|(s, (x, m))| *s += f64::from(x - m).powi(2));
            }
        }
        let deviation = |s: &f64| (s / f64::from(count.max(1))).sqrt();
        // A constant value carries nothing and becomes 0.
        let factor = squares.iter().map(|s| if deviation(s) > 1e-6 { (1.0 / deviation(s)) as f32 } else { 0.0 });
        Scale { factor: factor.collect(), mean }
    }

    pub fn apply(&self, points: &Matrix) -> Matrix {
        let mut out = points.clone();
        self.apply_to(out.as_mut_slice());
        out
    }

    /// Scales rows in place.
    pub fn apply_to(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.mean.len()) {
            row.iter_mut().zip(self.mean.iter().zip(&self.factor)).for_each(|(x, (m, f))| *x = (*x - m) * f);
        }
    }

    /// A first layer for windows of scaled rows, as a layer for windows of unscaled rows.
    pub fn folded_entry(&self, entry: &Entry) -> Entry {
        let outputs = entry.weight.shape[1];
        let mut folded = entry.clone();
        let mut shift = vec![0.0f64; outputs];
        for (i, row) in folded.weight.values.chunks_exact_mut(outputs).enumerate() {
            let (mean, factor) = (self.mean[i % self.mean.len()], self.factor[i % self.mean.len()]);
            for (w, s) in row.iter_mut().zip(&mut shift) {
                *w *= factor;
                *s += f64::from(*w) * f64::from(mean);
            }
        }
        folded.bias.values.iter_mut().zip(shift).for_each(|(b, s)| *b -= s as f32);
        folded
    }

    /// Layers for scaled embeddings, as layers for unscaled ones: `W D (x - m) + b`.
    pub fn folded(&self, projection: &Projection) -> Result<Projection> {
        let mut layers = projection.layers().to_vec();
        let first = &layers[0];
        let mut weight = first.weight().to_vec();
        let mut bias = first.bias().to_vec();
        for (row, bias) in weight.chunks_exact_mut(first.inputs()).zip(&mut bias) {
            row.iter_mut().zip(&self.factor).for_each(|(w, f)| *w *= f);
            let shift: f64 = row.iter().zip(&self.mean).map(|(w, m)| f64::from(*w) * f64::from(*m)).sum();
            *bias -= shift as f32;
        }
        layers[0] = Dense::new(first.inputs(), weight, bias)?;
        Projection::new(layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Rows;
    use crate::graph::Init;
    use train::random::{Purpose, Stream};

    #[test]
    fn folded_entry_gives_the_same_on_unscaled_windows() {
        let mut states = Matrix::zeros(300, 3);
        Stream::new(2, Purpose::Init, &[]).normal(states.as_mut_slice());
        states.as_mut_slice().chunks_exact_mut(3).for_each(|row| (row[0], row[2]) = (row[0] - 9.0, row[2] * 20.0));
        let scale = Scale::of_rows(3, states.as_slice().chunks(30));
        let entry = Entry::new(6, 4, Init::Linear, 1);
        // Two rows per window.
        let (raw, scaled) = (states.as_slice().to_vec(), scale.apply(&states).as_slice().to_vec());
        let [a, b] = [(&entry, scaled), (&scale.folded_entry(&entry), raw)]
            .map(|(entry, values)| entry.forward(&Rows::Dense(Matrix::from_vec(6, values))));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4));
    }

    #[test]
    fn scaled_values_have_unit_variance_and_folded_layers_give_the_same() {
        let mut points = Matrix::zeros(500, 4);
        Stream::new(0, Purpose::Init, &[]).normal(points.as_mut_slice());
        for row in points.as_mut_slice().chunks_exact_mut(4) {
            (row[0], row[1], row[3]) = (row[0] * 30.0 + 5.0, row[1] * 0.01 - 2.0, 7.0);
        }
        let scale = Scale::of(&points);
        let scaled = scale.apply(&points);
        for j in 0..3 {
            let square: f64 = scaled.iter().map(|r| f64::from(r[j]).powi(2)).sum::<f64>() / 500.0;
            assert!((square - 1.0).abs() < 1e-3, "{square}");
        }
        assert!(scaled.iter().all(|r| r[3] == 0.0), "a constant says nothing");
        let mut weight = vec![0.0; 12];
        Stream::new(1, Purpose::Init, &[]).normal(&mut weight);
        let projection = Projection::new(vec![Dense::new(4, weight, vec![0.1, 0.2, 0.3]).unwrap()]).unwrap();
        let (a, b) = (projection.apply(&scaled).unwrap(), scale.folded(&projection).unwrap().apply(&points).unwrap());
        assert!(a.as_slice().iter().zip(b.as_slice()).all(|(a, b)| (a - b).abs() < 2e-3));
    }
}
