//! Exact search over codes in memory, by every code's distance.

use micpq::model::{CodeShape, Table};
use micpq::{Error, Result};
use rayon::prelude::*;

use crate::nearest::Nearest;

/// A code found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hit {
    /// Number of the code.
    pub row: usize,
}

/// Codes in memory. Equal distances are ordered by row.
pub(crate) struct Flat {
    shape: CodeShape,
    codes: Vec<u8>,
}

impl Flat {
    /// Takes packed codes `[n, code_bytes]`.
    pub fn new(shape: CodeShape, codes: Vec<u8>) -> Result<Self> {
        if !codes.len().is_multiple_of(shape.code_bytes()) {
            return Err(Error::config(format!("{} bytes are not codes of {}", codes.len(), shape.code_bytes())));
        }
        Ok(Flat { shape, codes })
    }

    /// The `k` nearest codes of every query, best first.
    pub fn search(&self, tables: &[Table], k: usize) -> Result<Vec<Vec<Hit>>> {
        Ok(tables.par_iter().map(|table| self.search_one(table, k)).collect())
    }

    fn search_one(&self, table: &Table, k: usize) -> Vec<Hit> {
        let mut nearest = Nearest::new(k);
        let codes = self.codes.chunks_exact(self.shape.code_bytes()).enumerate();
        if self.shape.words() == 16 && self.shape.books().is_multiple_of(2) {
            // Two books at a time: a byte of the code picks their sum. It is rounded otherwise than the sum in book order,
            // by less than a few units in the last place, so it decides only what is clearly too far.
            let pairs: Vec<[f32; 256]> = table
                .values()
                .chunks_exact(32)
                .map(|books| std::array::from_fn(|byte| books[byte & 15] + books[16 + (byte >> 4)]))
                .collect();
            for (row, code) in codes {
                let about: f32 = code.iter().zip(&pairs).map(|(&byte, sums)| sums[byte as usize]).sum();
                if about * (1.0 - 1e-5) <= nearest.bound() {
                    nearest.push(table.distance(code), row as u32);
                }
            }
        } else {
            codes.for_each(|(row, code)| nearest.push(table.distance(code), row as u32));
        }
        nearest.into_rows().into_iter().map(|row| Hit { row: row as usize }).collect()
    }
}
