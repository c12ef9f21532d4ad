//! Codebooks: the nearest codeword of each, and a query's distances to all codewords.

use kernels::Backend;
use kernels::squares::{squared, squared_distances};
use rayon::prelude::*;
use strum::{Display, EnumString, VariantNames};

use super::CodeShape;
use crate::{Error, Matrix, Result};

/// How a query's projected vector is compared with a document's codewords, summed over codebooks.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, Display, EnumString, VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_distance)]
pub enum Distance {
    /// Sum of unsquared Euclidean norms: what the authors' code ranks by.
    Norm,
    /// Sum of squared distances: what the paper writes, and product quantization's usual distance.
    Squared,
    /// Number of codebooks in which the query's own nearest codeword differs: code against code.
    Hamming,
}

fn unknown_distance(name: &str) -> Error {
    Error::unknown("distance", name, Distance::VARIANTS)
}

/// One query's distances to every codeword: `[codebooks, codewords]`, all finite and not negative.
#[derive(Clone, Debug, PartialEq)]
pub struct DistanceTable {
    shape: CodeShape,
    values: Vec<f32>,
}

impl DistanceTable {
    /// Takes distances `[codebooks, codewords]`.
    pub fn new(shape: CodeShape, values: Vec<f32>) -> Result<Self> {
        assert_eq!(values.len(), shape.num_codebooks() * shape.codebook_size());
        match values.iter().position(|v| !v.is_finite() || *v < 0.0) {
            None => Ok(DistanceTable { shape, values }),
            Some(i) => Err(Error::config(format!(
                "distance of the query to codeword {} of codebook {} is {}: the query vector holds a value that is not a finite number",
                i % shape.codebook_size(),
                i / shape.codebook_size(),
                values[i]
            ))),
        }
    }

    pub fn shape(&self) -> CodeShape {
        self.shape
    }

    /// `[codebooks, codewords]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Distance of one packed code: the sum over codebooks **in order, in `f32`**. Every fast path must give exactly
    /// this value.
    pub fn distance(&self, code: &[u8]) -> f32 {
        let size = self.shape.codebook_size();
        let mut sum = 0.0;
        for m in 0..self.shape.num_codebooks() {
            sum += self.values[m * size + self.shape.codeword(code, m).min(size - 1)];
        }
        sum
    }

    /// Distance of one packed code by codebook.
    pub fn codebook_distances(&self, code: &[u8]) -> Vec<f32> {
        let size = self.shape.codebook_size();
        (0..self.shape.num_codebooks()).map(|m| self.values[m * size + self.shape.codeword(code, m)]).collect()
    }
}

/// `M` codebooks of `K` codewords: `[codebooks, codewords, dim]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Codebooks {
    shape: CodeShape,
    codewords: Vec<f32>,
}

impl Codebooks {
    /// Takes `[codebooks, codewords, dim]` values.
    pub fn new(shape: CodeShape, codewords: Vec<f32>) -> Result<Self> {
        let expected = shape.num_codebooks() * shape.codebook_size() * shape.dim();
        if codewords.len() != expected {
            return Err(Error::config(format!("codebooks hold {} values, {expected} expected", codewords.len())));
        }
        if let Some(i) = codewords.iter().position(|v| !v.is_finite()) {
            return Err(Error::config(format!("codebooks hold {} at position {i}", codewords[i])));
        }
        Ok(Codebooks { shape, codewords })
    }

    pub fn shape(&self) -> CodeShape {
        self.shape
    }

    /// `[codebooks, codewords, dim]`.
    pub fn values(&self) -> &[f32] {
        &self.codewords
    }

    /// The codewords of codebook `m`, in order.
    pub fn codebook(&self, m: usize) -> impl ExactSizeIterator<Item = &[f32]> {
        let size = self.shape.codebook_size() * self.shape.dim();
        self.codewords[m * size..(m + 1) * size].chunks_exact(self.shape.dim())
    }

    /// The nearest codeword of every codebook for every projected vector: packed codes `[n, code_bytes]`. The first of equally
    /// near codewords wins, as in the authors' `argmin`.
    pub fn assign(&self, projected: &Matrix) -> Vec<u8> {
        assert_eq!(projected.cols(), self.shape.width());
        let bytes = self.shape.code_bytes();
        let mut codes = vec![0; projected.rows() * bytes];
        codes.par_chunks_exact_mut(bytes).enumerate().for_each(|(i, code)| self.assign_one(projected.row(i), code));
        codes
    }

    /// Numbers of the nearest codewords, unpacked: `[n, codebooks]`.
    pub fn nearest(&self, projected: &Matrix) -> Vec<u32> {
        assert_eq!(projected.cols(), self.shape.width());
        let mut numbers = vec![0; projected.rows() * self.shape.num_codebooks()];
        numbers.par_chunks_exact_mut(self.shape.num_codebooks()).enumerate().for_each(|(i, numbers)| {
            let distances = self.squares(projected.row(i));
            let codebooks = distances.chunks_exact(self.shape.codebook_size());
            numbers.iter_mut().zip(codebooks).for_each(|(number, distances)| *number = argmin(distances) as u32);
        });
        numbers
    }

    /// Every projected vector as the concatenation of its nearest codewords, `[n, width]`.
    pub fn decode(&self, projected: &Matrix) -> Matrix {
        let (size, dim) = (self.shape.codebook_size(), self.shape.dim());
        let numbers = self.nearest(projected);
        let mut out = Matrix::zeros(projected.rows(), self.shape.width());
        let rows = out.as_mut_slice().par_chunks_exact_mut(self.shape.width());
        rows.zip(numbers.par_chunks_exact(self.shape.num_codebooks())).for_each(|(row, numbers)| {
            for (m, (part, &number)) in row.chunks_exact_mut(dim).zip(numbers).enumerate() {
                part.copy_from_slice(&self.codewords[(m * size + number as usize) * dim..][..dim]);
            }
        });
        out
    }

    fn assign_one(&self, projected: &[f32], code: &mut [u8]) {
        for (m, distances) in self.squares(projected).chunks_exact(self.shape.codebook_size()).enumerate() {
            self.shape.set_codeword(code, m, argmin(distances));
        }
    }

    /// Distances of a projected query to every codeword.
    ///
    /// # Panics
    /// When the query's width is another one. Values that are not finite are the caller's to refuse: see [`DistanceTable::new`].
    pub fn table(&self, projected: &[f32], distance: Distance) -> DistanceTable {
        assert_eq!(projected.len(), self.shape.width());
        let values = match distance {
            Distance::Squared => self.squares(projected),
            Distance::Norm => {
                let mut values = self.squares(projected);
                values.iter_mut().for_each(|v| *v = v.sqrt());
                values
            }
            Distance::Hamming => {
                let mut code = vec![0; self.shape.code_bytes()];
                self.assign_one(projected, &mut code);
                return self.symmetric_table(&code, Distance::Hamming);
            }
        };
        DistanceTable { shape: self.shape, values }
    }

    /// Distances of a **document's code** to every codeword: search by example, code against code.
    pub fn symmetric_table(&self, code: &[u8], distance: Distance) -> DistanceTable {
        let mut values = Vec::with_capacity(self.shape.num_codebooks() * self.shape.codebook_size());
        for m in 0..self.shape.num_codebooks() {
            let own = self.shape.codeword(code, m).min(self.shape.codebook_size() - 1);
            let own_codeword = self.codebook(m).nth(own).expect("a packed codeword number is below K").to_vec();
            for (k, codeword) in self.codebook(m).enumerate() {
                values.push(match distance {
                    Distance::Hamming => f32::from(u8::from(k != own)),
                    Distance::Squared => squared(&own_codeword, codeword),
                    Distance::Norm => squared(&own_codeword, codeword).sqrt(),
                });
            }
        }
        DistanceTable { shape: self.shape, values }
    }

    /// Squared distances to every codeword, `[codebooks, codewords]`.
    fn squares(&self, projected: &[f32]) -> Vec<f32> {
        let (dim, size) = (self.shape.dim(), self.shape.codebook_size());
        let mut values = vec![0.0; self.shape.num_codebooks() * size];
        let codebooks = projected.chunks_exact(dim).zip(self.codewords.chunks_exact(size * dim));
        for ((slice, codebook), values) in codebooks.zip(values.chunks_exact_mut(size)) {
            squared_distances(Backend::active(), slice, codebook, values);
        }
        values
    }
}

/// Index of the smallest value, the first of equals.
fn argmin(values: &[f32]) -> usize {
    let (mut best, mut place) = (f32::INFINITY, 0);
    for (k, &value) in values.iter().enumerate() {
        if value < best {
            (best, place) = (value, k);
        }
    }
    place
}
