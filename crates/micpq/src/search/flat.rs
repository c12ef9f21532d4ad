//! Search over codes held in memory: validation during training, evaluation, and small corpora.

use super::codes::CodeBlocks;
use super::nearest::{Part, check, nearest};
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
#[derive(Debug)]
pub struct Flat {
    shape: CodeShape,
    blocks: CodeBlocks,
}

impl Flat {
    /// Takes packed codes `[n, code_bytes]`.
    pub fn new(shape: CodeShape, codes: impl AsRef<[u8]>) -> Result<Self> {
        let codes = codes.as_ref();
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
        Ok(Flat { shape, blocks: CodeBlocks::build(shape, [0; 16], codes, None) })
    }

    /// Number of codes.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The `k` nearest codes of every query, best first; all of them when there are fewer.
    pub fn search(&self, tables: &[Table], k: usize) -> Result<Vec<Vec<Hit>>> {
        check(self.shape, tables, k)?;
        let part = Part { blocks: &self.blocks, filter: None, sequence: &u64::from };
        let found = nearest(self.shape, &[part], tables, k);
        let hits = |query: Vec<super::Found>| {
            query.into_iter().map(|f| Hit { distance: f.distance, row: f.rank as usize }).collect()
        };
        Ok(found.into_iter().map(hits).collect())
    }
}

#[cfg(test)]
mod tests {
    use kernels::dropout::mix;
    use proptest::prelude::*;

    use super::*;

    fn unit(x: u64) -> f32 {
        (x >> 40) as f32 / (1 << 24) as f32
    }

    fn brute(shape: CodeShape, codes: &[u8], table: &Table, k: usize) -> Vec<Hit> {
        let codes = codes.chunks_exact(shape.code_bytes()).enumerate();
        let mut hits: Vec<Hit> = codes.map(|(row, code)| Hit { distance: table.distance(code), row }).collect();
        hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.row.cmp(&b.row)));
        hits.truncate(k);
        hits
    }

    fn check_case(shape: CodeShape, n: usize, queries: usize, k: usize, seed: u64, clusters: u64) {
        // Clusters: a code differs from its centre in about one book.
        let mut codes = vec![0; n * shape.code_bytes()];
        for (i, code) in codes.chunks_exact_mut(shape.code_bytes()).enumerate() {
            let centre = mix(seed, i as u64) % clusters;
            for m in 0..shape.books() {
                let noise = mix(mix(seed, i as u64), m as u64);
                let word = if noise % shape.books() as u64 == 0 { noise >> 32 } else { mix(centre, m as u64) };
                shape.set_word(code, m, (word % shape.words() as u64) as usize);
            }
        }
        let tables: Vec<Table> = (0..queries as u64)
            .map(|q| {
                let values = (0..(shape.books() * shape.words()) as u64).map(|i| unit(mix(mix(seed, q), i))).collect();
                Table::new(shape, values).unwrap()
            })
            .collect();
        let found = Flat::new(shape, &codes).unwrap().search(&tables, k).unwrap();
        assert_eq!(found.len(), queries);
        for (found, table) in found.iter().zip(&tables) {
            assert_eq!(found, &brute(shape, &codes, table, k));
        }
    }

    #[test]
    fn large_sets_and_many_queries_are_brute_force() {
        check_case(CodeShape::micpq(32).unwrap(), 70_000, 9, 100, 1, 50);
        check_case(CodeShape::micpq(16).unwrap(), 300_000, 3, 100, 2, 1000);
        // More than one unit of work.
        check_case(CodeShape::micpq(64).unwrap(), 600_000, 5, 10, 3, 1 << 40);
        check_case(CodeShape::new(128, 2, 1).unwrap(), 20_000, 6, 50, 4, 200);
        check_case(CodeShape::new(8, 256, 4).unwrap(), 20_000, 6, 50, 5, 200);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_set_is_brute_force(
            bits in prop::sample::select(vec![16usize, 32, 64, 128]),
            n in 0usize..3000,
            queries in 0usize..7,
            k in 1usize..200,
            seed in any::<u64>(),
            clusters in 1u64..300,
        ) {
            check_case(CodeShape::micpq(bits).unwrap(), n, queries, k, seed, clusters);
        }
    }

    #[test]
    fn what_cannot_be_searched_is_refused() {
        let shape = CodeShape::micpq(16).unwrap();
        assert!(Flat::new(shape, &[0; 3]).is_err());
        let flat = Flat::new(shape, &[0; 4]).unwrap();
        let other = CodeShape::micpq(32).unwrap();
        let table = |shape: CodeShape| Table::new(shape, vec![1.0; shape.books() * 16]).unwrap();
        assert!(flat.search(&[table(other)], 1).is_err());
        assert!(flat.search(&[table(shape)], 0).unwrap_err().to_string().contains("k is 0"));
        assert_eq!(flat.search(&[table(shape)], 10).unwrap()[0].len(), 2);
        assert!(flat.search(&[], 10).unwrap().is_empty());
    }
}
