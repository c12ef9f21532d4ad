//! Search over codes held in memory: validation during training, evaluation, and small corpora.

use super::codes::CodeBlocks;
use super::nearest::{ScanSegment, explained};
use super::{DocumentColumns, Plan, Selection, TopKRequest, check};
use crate::model::{CodeShape, DistanceTable};
use crate::{Error, Result};

/// A code found by [`Flat::search`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// As computed by [`DistanceTable::distance`].
    pub distance: f32,
    /// Number of the code, from 0.
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

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The `k` nearest codes of every query, best first; all of them when there are fewer.
    pub fn search(&self, tables: &[DistanceTable], k: usize) -> Result<Vec<Vec<Hit>>> {
        Ok(self.explained(tables, &TopKRequest::from(k), None)?.into_iter().map(|(hits, _)| hits).collect())
    }

    /// The nearest codes of every query, best first, and the plan of the scan. Only rows whose bit is set in `filter` are
    /// found. The insertion sequence of [`TopKRequest::after`] is the row.
    pub fn explained(
        &self,
        tables: &[DistanceTable],
        request: &TopKRequest,
        filter: Option<&[u64]>,
    ) -> Result<Vec<(Vec<Hit>, Plan)>> {
        check(self.shape, tables, *request)?;
        if let Some(bits) = filter.filter(|bits| bits.len() < self.len().div_ceil(64)) {
            return Err(Error::config(format!(
                "the filter has {} x 64 bits for {} codes; give a bit for every code",
                bits.len(),
                self.len()
            )));
        }
        let only = filter.map(|bits| Selection::new(&self.blocks, bits, self));
        let numbers = only.as_ref().and_then(Selection::numbers);
        let row = |key: u32| u64::from(numbers.map_or(key, |numbers| numbers[key as usize]));
        let segment = ScanSegment { blocks: &self.blocks, only: only.as_ref(), sequence: &row };
        let found = explained(self.shape, &[segment], tables, *request);
        let hit = |f: super::ScanHit| Hit { distance: f.distance, row: row(f.rank) as usize };
        Ok(found.into_iter().map(|(found, plans)| (found.into_iter().map(hit).collect(), plans[0])).collect())
    }
}

/// A row is its number and its place in the order of insertion.
impl DocumentColumns for Flat {
    fn codes(&self, group: usize, documents: &[u32], values: &mut [u64]) {
        let view = self.blocks.view();
        for (value, &row) in values.iter_mut().zip(documents) {
            let code = view.code(self.blocks.position(row));
            let bytes = code.iter().skip(8 * group).take(8);
            *value = bytes.rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        }
    }

    fn sequences(&self, documents: &[u32], values: &mut [u64]) {
        values.iter_mut().zip(documents).for_each(|(value, &row)| *value = u64::from(row));
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

    fn brute(shape: CodeShape, codes: &[u8], table: &DistanceTable, k: usize) -> Vec<Hit> {
        let codes = codes.chunks_exact(shape.code_bytes()).enumerate();
        let mut hits: Vec<Hit> = codes.map(|(row, code)| Hit { distance: table.distance(code), row }).collect();
        hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.row.cmp(&b.row)));
        hits.truncate(k);
        hits
    }

    fn check_case(shape: CodeShape, n: usize, queries: usize, k: usize, seed: u64, clusters: u64) {
        // Clusters: a code differs from its centre in about one codebook.
        let mut codes = vec![0; n * shape.code_bytes()];
        for (i, code) in codes.chunks_exact_mut(shape.code_bytes()).enumerate() {
            let centre = mix(seed, i as u64) % clusters;
            for m in 0..shape.num_codebooks() {
                let noise = mix(mix(seed, i as u64), m as u64);
                let codeword = if noise.is_multiple_of(shape.num_codebooks() as u64) {
                    noise >> 32
                } else {
                    mix(centre, m as u64)
                };
                shape.set_codeword(code, m, (codeword % shape.codebook_size() as u64) as usize);
            }
        }
        let tables: Vec<DistanceTable> = (0..queries as u64)
            .map(|q| {
                let values = (0..(shape.num_codebooks() * shape.codebook_size()) as u64)
                    .map(|i| unit(mix(mix(seed, q), i)))
                    .collect();
                DistanceTable::new(shape, values).unwrap()
            })
            .collect();
        let found = Flat::new(shape, &codes).unwrap().search(&tables, k).unwrap();
        assert_eq!(found.len(), queries);
        for (found, table) in found.iter().zip(&tables) {
            assert_eq!(found, &brute(shape, &codes, table, k));
        }
    }

    #[test]
    fn search_of_large_sets_and_many_queries_equals_brute_force() {
        check_case(CodeShape::micpq(32).unwrap(), 70_000, 9, 100, 1, 50);
        check_case(CodeShape::micpq(16).unwrap(), 300_000, 3, 100, 2, 1000);
        // More than one unit of work.
        check_case(CodeShape::micpq(64).unwrap(), 600_000, 5, 10, 3, 1 << 40);
        check_case(CodeShape::new(128, 2, 1).unwrap(), 20_000, 6, 50, 4, 200);
        check_case(CodeShape::new(8, 256, 4).unwrap(), 20_000, 6, 50, 5, 200);
        check_case(CodeShape::new(7, 40, 4).unwrap(), 9_000, 5, 50, 6, 200);
        check_case(CodeShape::new(2, 256, 4).unwrap(), 270_000, 5, 3000, 7, 5000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn search_equals_brute_force(
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        /// With pages of any length, with and without a radius and a filter.
        #[test]
        fn pages_add_up_to_the_whole_list(
            (num_codebooks, codebook_size) in prop::sample::select(vec![(4usize, 16usize), (8, 16), (16, 16), (24, 2), (2, 256)]),
            n in 1usize..3000,
            page in 1usize..900,
            steps in 1u32..50,
            seed in any::<u64>(),
            range in 0.0f32..1.2,
            filtered in any::<bool>(),
        ) {
            let shape = CodeShape::new(num_codebooks, codebook_size, 1).unwrap();
            let mut codes = vec![0; n * shape.code_bytes()];
            for (i, code) in codes.chunks_exact_mut(shape.code_bytes()).enumerate() {
                // Few distinct codes, so that ties lie across the borders of pages.
                let own = mix(seed, i as u64) % 40;
                (0..num_codebooks)
                    .for_each(|m| shape.set_codeword(code, m, mix(own, m as u64) as usize % codebook_size));
            }
            // Few distinct distances too.
            let value = |i: u64| (unit(mix(seed ^ 1, i)) * steps as f32).floor();
            let table = DistanceTable::new(shape, (0..(num_codebooks * codebook_size) as u64).map(value).collect()).unwrap();
            let filter: Vec<u64> = (0..n.div_ceil(64)).map(|i| mix(seed, i as u64)).collect();
            let filter = filtered.then_some(filter.as_slice());
            let radius = (range < 1.0).then_some(range * steps as f32 * num_codebooks as f32);
            let mut expected = brute(shape, &codes, &table, n);
            expected.retain(|h| radius.is_none_or(|r| h.distance <= r));
            expected.retain(|h| filter.is_none_or(|bits| bits[h.row / 64] >> (h.row % 64) & 1 == 1));
            let flat = Flat::new(shape, &codes).unwrap();
            let (mut all, mut after) = (Vec::new(), None);
            loop {
                let request = TopKRequest { k: page, radius, after };
                let (hits, plan) = flat.explained(std::slice::from_ref(&table), &request, filter).unwrap().remove(0);
                prop_assert!(plan.documents == n && plan.filtered == filtered);
                let Some(last) = hits.last() else { break };
                after = Some((last.distance, last.row as u64));
                all.extend(hits);
            }
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn invalid_requests_are_refused() {
        let shape = CodeShape::micpq(16).unwrap();
        let flat = Flat::new(shape, [0; 8]).unwrap();
        let table = [DistanceTable::new(shape, vec![1.0; 64]).unwrap()];
        let refuse = |request: TopKRequest| flat.explained(&table, &request, None).unwrap_err().to_string();
        let all = TopKRequest::from(usize::MAX);
        assert!(refuse(TopKRequest { radius: Some(f32::NAN), ..all }).contains("NaN"));
        assert!(refuse(TopKRequest { radius: Some(-1.0), ..all }).contains("radius"));
        assert!(refuse(TopKRequest { after: Some((f32::INFINITY, 0)), ..all }).contains("inf"));
        assert!(flat.explained(&table, &all, Some(&[])).unwrap_err().to_string().contains("filter"));
        assert_eq!(flat.explained(&table, &all, None).unwrap()[0].0.len(), 4);
        assert_eq!(
            flat.explained(&table, &TopKRequest { radius: Some(f32::INFINITY), ..all }, None).unwrap()[0].0.len(),
            4
        );
        assert!(flat.explained(&table, &TopKRequest { radius: Some(3.9), ..all }, None).unwrap()[0].0.is_empty());
    }

    #[test]
    fn partial_codes_other_shapes_and_k_0_are_refused() {
        let shape = CodeShape::micpq(16).unwrap();
        assert!(Flat::new(shape, [0; 3]).is_err());
        let flat = Flat::new(shape, [0; 4]).unwrap();
        let other = CodeShape::micpq(32).unwrap();
        let table = |shape: CodeShape| DistanceTable::new(shape, vec![1.0; shape.num_codebooks() * 16]).unwrap();
        assert!(flat.search(&[table(other)], 1).is_err());
        assert!(flat.search(&[table(shape)], 0).unwrap_err().to_string().contains("k is 0"));
        assert_eq!(flat.search(&[table(shape)], 10).unwrap()[0].len(), 2);
        assert!(flat.search(&[], 10).unwrap().is_empty());
    }
}
