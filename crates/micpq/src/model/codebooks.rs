//! Codebooks: the nearest word of each book, and a query's distances to all words.

use kernels::Backend;
use kernels::squares::{squared, squared_distances};
use rayon::prelude::*;

use super::CodeShape;
use crate::{Error, Matrix, Result};

/// How a query's refined vector is compared with a document's codewords, summed over books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distance {
    /// Sum of unsquared Euclidean norms: what the authors' code ranks by.
    Norm,
    /// Sum of squared distances: what the paper writes, and product quantization's usual distance.
    Squared,
    /// Number of books in which the query's own nearest word differs: code against code.
    Hamming,
}

impl std::fmt::Display for Distance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Distance::Norm => "norm",
            Distance::Squared => "squared",
            Distance::Hamming => "hamming",
        })
    }
}

impl std::str::FromStr for Distance {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "norm" => Ok(Distance::Norm),
            "squared" => Ok(Distance::Squared),
            "hamming" => Ok(Distance::Hamming),
            _ => Err(Error::config(format!("unknown distance '{name}'; known: norm, squared, hamming"))),
        }
    }
}

/// One query's distances to every word: `[books, words]`, all finite and not negative.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    shape: CodeShape,
    values: Vec<f32>,
}

impl Table {
    /// Takes `[books, words]` distances.
    pub fn new(shape: CodeShape, values: Vec<f32>) -> Result<Self> {
        assert_eq!(values.len(), shape.books() * shape.words());
        match values.iter().position(|v| !v.is_finite() || *v < 0.0) {
            None => Ok(Table { shape, values }),
            Some(i) => Err(Error::config(format!(
                "distance of the query to word {} of book {} is {}: the query vector holds a value that is not a finite number",
                i % shape.words(),
                i / shape.words(),
                values[i]
            ))),
        }
    }

    /// The shape of the codes it measures.
    pub fn shape(&self) -> CodeShape {
        self.shape
    }

    /// `[books, words]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Distance of one packed code: the sum over books **in book order, in `f32`**. Every fast path must give exactly
    /// this value.
    pub fn distance(&self, code: &[u8]) -> f32 {
        let words = self.shape.words();
        let mut sum = 0.0;
        for m in 0..self.shape.books() {
            sum += self.values[m * words + self.shape.word(code, m).min(words - 1)];
        }
        sum
    }

    /// Each book's part of the distance of one packed code, in book order.
    pub fn shares(&self, code: &[u8]) -> Vec<f32> {
        let words = self.shape.words();
        (0..self.shape.books()).map(|m| self.values[m * words + self.shape.word(code, m)]).collect()
    }
}

/// `M` books of `K` words: `[books, words, dim]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Codebooks {
    shape: CodeShape,
    words: Vec<f32>,
}

impl Codebooks {
    /// Takes `[books, words, dim]` values.
    pub fn new(shape: CodeShape, words: Vec<f32>) -> Result<Self> {
        let expected = shape.books() * shape.words() * shape.dim();
        if words.len() != expected {
            return Err(Error::config(format!("codebooks hold {} values, {expected} expected", words.len())));
        }
        if let Some(i) = words.iter().position(|v| !v.is_finite()) {
            return Err(Error::config(format!("codebooks hold {} at position {i}", words[i])));
        }
        Ok(Codebooks { shape, words })
    }

    /// Shape of the codes.
    pub fn shape(&self) -> CodeShape {
        self.shape
    }

    /// `[books, words, dim]`.
    pub fn values(&self) -> &[f32] {
        &self.words
    }

    /// The words of one book, in order.
    pub fn book(&self, m: usize) -> impl ExactSizeIterator<Item = &[f32]> {
        let size = self.shape.words() * self.shape.dim();
        self.words[m * size..(m + 1) * size].chunks_exact(self.shape.dim())
    }

    /// The nearest word of every book for every refined vector: packed codes `[n, code_bytes]`. The first of equally
    /// near words wins, as in the authors' `argmin`.
    pub fn assign(&self, refined: &Matrix) -> Vec<u8> {
        assert_eq!(refined.cols(), self.shape.width());
        let bytes = self.shape.code_bytes();
        let mut codes = vec![0; refined.rows() * bytes];
        codes.par_chunks_exact_mut(bytes).enumerate().for_each(|(i, code)| self.assign_one(refined.row(i), code));
        codes
    }

    /// The number of the nearest word of every book, one by one: `[n, books]`.
    pub fn nearest(&self, refined: &Matrix) -> Vec<u32> {
        assert_eq!(refined.cols(), self.shape.width());
        let mut words = vec![0; refined.rows() * self.shape.books()];
        words.par_chunks_exact_mut(self.shape.books()).enumerate().for_each(|(i, words)| {
            let distances = self.squares(refined.row(i));
            let books = distances.chunks_exact(self.shape.words());
            words.iter_mut().zip(books).for_each(|(word, distances)| *word = least(distances) as u32);
        });
        words
    }

    fn assign_one(&self, refined: &[f32], code: &mut [u8]) {
        for (m, distances) in self.squares(refined).chunks_exact(self.shape.words()).enumerate() {
            self.shape.set_word(code, m, least(distances));
        }
    }

    /// Distances of a refined query to every word.
    ///
    /// # Panics
    /// When the query's width is another one. Values that are not finite are the caller's to refuse: see [`Table::new`].
    pub fn table(&self, refined: &[f32], distance: Distance) -> Table {
        assert_eq!(refined.len(), self.shape.width());
        let values = match distance {
            Distance::Squared => self.squares(refined),
            Distance::Norm => {
                let mut values = self.squares(refined);
                values.iter_mut().for_each(|v| *v = v.sqrt());
                values
            }
            Distance::Hamming => {
                let mut code = vec![0; self.shape.code_bytes()];
                self.assign_one(refined, &mut code);
                return self.symmetric_table(&code, Distance::Hamming);
            }
        };
        Table { shape: self.shape, values }
    }

    /// Distances of a **document's code** to every word: search by example, code against code.
    pub fn symmetric_table(&self, code: &[u8], distance: Distance) -> Table {
        let mut values = Vec::with_capacity(self.shape.books() * self.shape.words());
        for m in 0..self.shape.books() {
            let own = self.shape.word(code, m).min(self.shape.words() - 1);
            let own_word = self.book(m).nth(own).expect("a packed word number is below K").to_vec();
            for (k, word) in self.book(m).enumerate() {
                values.push(match distance {
                    Distance::Hamming => f32::from(u8::from(k != own)),
                    Distance::Squared => squared(&own_word, word),
                    Distance::Norm => squared(&own_word, word).sqrt(),
                });
            }
        }
        Table { shape: self.shape, values }
    }

    /// Squared distances to every word, `[books, words]`.
    fn squares(&self, refined: &[f32]) -> Vec<f32> {
        let (dim, words) = (self.shape.dim(), self.shape.words());
        let mut values = vec![0.0; self.shape.books() * words];
        let books = refined.chunks_exact(dim).zip(self.words.chunks_exact(words * dim));
        for ((slice, book), values) in books.zip(values.chunks_exact_mut(words)) {
            squared_distances(Backend::active(), slice, book, values);
        }
        values
    }
}

/// The place of the least value, the first of equals.
fn least(values: &[f32]) -> usize {
    let (mut best, mut place) = (f32::INFINITY, 0);
    for (k, &value) in values.iter().enumerate() {
        if value < best {
            (best, place) = (value, k);
        }
    }
    place
}
