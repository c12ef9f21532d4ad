//! Search over codes held in memory: validation during training, evaluation, and small corpora.

use kernels::scan::{Neighbour, TopK};
use rayon::prelude::*;

use crate::model::{CodeShape, Table};
use crate::{Error, Result};

/// A code found by [`Flat::search`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// As [`Table::distance`] gives it.
    pub distance: f32,
    /// Number of the code, counted from the first given.
    pub row: usize,
}

/// Codes in memory, searched exactly. Equal distances are ordered by row.
#[derive(Clone, Debug)]
pub struct Flat {
    shape: CodeShape,
    codes: Vec<u8>,
}

impl Flat {
    /// Takes packed codes `[n, code_bytes]`.
    pub fn new(shape: CodeShape, codes: Vec<u8>) -> Result<Self> {
        if !codes.len().is_multiple_of(shape.code_bytes()) {
            return Err(Error::config(format!(
                "{} bytes are not a whole number of codes of {} bytes",
                codes.len(),
                shape.code_bytes()
            )));
        }
        if codes.len() / shape.code_bytes() > u32::MAX as usize {
            return Err(Error::config("more than 4,294,967,295 codes; split them"));
        }
        Ok(Flat { shape, codes })
    }

    /// Number of codes.
    pub fn len(&self) -> usize {
        self.codes.len() / self.shape.code_bytes()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// The `k` nearest codes of every query, best first; all of them when there are fewer.
    pub fn search(&self, tables: &[Table], k: usize) -> Result<Vec<Vec<Hit>>> {
        if k == 0 {
            return Err(Error::config("k is 0; ask for at least one neighbour"));
        }
        if let Some(table) = tables.iter().find(|t| t.shape() != self.shape) {
            return Err(Error::config(format!("a query of {:?} against codes of {:?}", table.shape(), self.shape)));
        }
        Ok(tables.par_iter().map(|table| self.search_one(table, k)).collect())
    }

    fn search_one(&self, table: &Table, k: usize) -> Vec<Hit> {
        let mut best = TopK::new(k);
        for (row, code) in self.codes.chunks_exact(self.shape.code_bytes()).enumerate() {
            best.push(Neighbour { distance: table.distance(code), key: row as u32 });
        }
        best.into_sorted().iter().map(|n| Hit { distance: n.distance, row: n.key as usize }).collect()
    }
}
