//! Tests of all backends and scan strategies against brute force in codebook order.

use proptest::prelude::*;

use super::*;
use crate::Backend;

/// A small deterministic generator, so that failing cases can be reproduced.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = crate::dropout::mix(self.0, 1);
        self.0
    }

    fn codes(&mut self, shape: Shape, n: usize) -> Vec<u8> {
        let (width, bits) = (shape.code_bytes(), shape.codeword_bits());
        let mut codes = vec![0; n * width];
        for code in codes.chunks_exact_mut(width) {
            for m in 0..shape.num_codebooks() {
                let codeword = self.next() as usize % shape.codebook_size();
                code[m * bits / 8] |= (codeword << (m * bits % 8)) as u8;
            }
        }
        codes
    }
}

/// Kinds of tables that have broken quantised scans: flat, wide range, zero, near the largest `f32`.
fn table(shape: Shape, kind: usize, noise: &mut Noise) -> Vec<f32> {
    let mut value = |i: usize| {
        let unit = (noise.next() >> 40) as f32 / (1 << 24) as f32;
        match kind {
            0 => unit,
            1 => 1.0,
            2 => 0.0,
            3 => unit * 10f32.powi((noise.next() % 60) as i32 - 30),
            4 => f32::MAX * unit,
            5 => f32::from(u8::from(i % shape.codebook_size() != 3)),
            6 => 1000.0 + unit * 1e-3,
            // A Hamming distance, where a codebook has two codewords.
            7 => f32::from(u8::from(i % 2 == i / 2 % 3 % 2)),
            _ => f32::from_bits((noise.next() % 100) as u32),
        }
    };
    (0..shape.num_codebooks() * shape.codebook_size()).map(&mut value).collect()
}

/// Distance of a packed code by definition: codeword numbers low bits first, a sum in codebook order.
fn distance(shape: Shape, table: &[f32], code: &[u8]) -> f32 {
    let bits = shape.codeword_bits();
    let mut sum = 0.0;
    for m in 0..shape.num_codebooks() {
        let codeword = (usize::from(code[m * bits / 8]) >> (m * bits % 8)) & ((1 << bits) - 1);
        sum += table[m * shape.codebook_size() + codeword];
    }
    sum
}

struct Case {
    shape: Shape,
    codes: Vec<u8>,
    // The blocks begin at byte `offset`, so that loads are not aligned.
    bytes: Vec<u8>,
    offset: usize,
    keys: Vec<[u8; 4]>,
    starts: Vec<[u8; 4]>,
}

impl Case {
    fn new(shape: Shape, codes: Vec<u8>, offset: usize, bits: u32) -> Case {
        let width = shape.code_bytes();
        let n = codes.len() / width;
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|&i| (codes[i as usize * width..(i as usize + 1) * width].to_vec(), i));
        let packed = pack(shape, &codes, &order);
        let starts = prefix_starts(shape, &packed, n, bits);
        let mut bytes = vec![0xAA; offset];
        bytes.extend_from_slice(&packed);
        Case { shape, codes, bytes, offset, keys: order.iter().map(|i| i.to_le_bytes()).collect(), starts }
    }

    fn blocks(&self) -> BlocksRef<'_> {
        BlocksRef::new(self.shape, self.keys.len(), &self.bytes[self.offset..], &self.keys, &self.starts)
    }

    fn brute(&self, table: &[f32], k: usize, filter: Option<&[u64]>) -> Vec<Neighbour> {
        let codes = self.codes.chunks_exact(self.shape.code_bytes()).enumerate();
        let mut all: Vec<Neighbour> = codes
            .filter(|(i, _)| filter.is_none_or(|bits| bits[i / 64] >> (i % 64) & 1 == 1))
            .map(|(i, code)| Neighbour { distance: distance(self.shape, table, code), key: i as u32 })
            .collect();
        all.sort();
        all.truncate(k);
        all
    }

    fn check(&self, tables: &[Vec<f32>], k: usize, filter: Option<&[u64]>) {
        let queries: Vec<Query> = tables.iter().map(|t| Query::new(self.shape, t)).collect();
        let queries: Vec<&Query> = queries.iter().collect();
        let blocks = self.blocks();
        let expected: Vec<Vec<Neighbour>> = tables.iter().map(|t| self.brute(t, k, filter)).collect();
        for backend in Backend::available() {
            let name = backend.name();
            let case = |table: &[f32]| format!("{name} {:?} n {} k {k} table {table:?}", self.shape, self.keys.len());
            for depth in 0..3 {
                // Beginning without a limit, with that of a sample, and with that of a deeper sample.
                let begin = |query: &&Query| {
                    let sample = Sample::new(backend, &blocks, query, TopK::new(k), filter).filter(|_| depth > 0);
                    sample.map_or(TopK::new(k), |mut sample| {
                        if depth == 2 {
                            sample.deepen();
                        }
                        TopK::below(k, sample.limit())
                    })
                };
                let mut best: Vec<TopK> = queries.iter().map(begin).collect();
                let prefixes: Vec<Option<Prefixes>> = queries
                    .iter()
                    .zip(&best)
                    .map(|(q, best)| Prefixes::new(backend, &blocks, q, best.limit()))
                    .collect();
                let mut by_prefix = best.clone();
                // In two ranges; the second begins inside a block.
                let middle = blocks.len() / 2;
                for (share, range) in [0..middle, middle..blocks.len()].into_iter().enumerate() {
                    nearest(backend, &blocks, range, &queries, &mut best, filter);
                    for (prefixes, best) in prefixes.iter().zip(&mut by_prefix) {
                        prefixes.iter().for_each(|prefixes| prefixes.nearest((share, 2), best, filter));
                    }
                }
                for (((found, expected), query), prefixes) in
                    by_prefix.into_iter().zip(&expected).zip(&queries).zip(prefixes)
                {
                    assert_eq!(prefixes.is_some(), blocks.prefix_bits() > 0);
                    if let Some(prefixes) = prefixes {
                        assert!(prefixes.cost() <= blocks.len());
                        assert_eq!(&found.into_sorted(), expected, "by prefix {}", case(query.table()));
                    }
                }
                for ((found, expected), query) in best.into_iter().zip(&expected).zip(&queries) {
                    assert_eq!(&found.into_sorted(), expected, "{}", case(query.table()));
                }
            }
            // Only the filter's documents, packed in their own blocks.
            let (bytes, keys) = self.gathered(filter);
            let gathered = BlocksRef::new(self.shape, keys.len(), &bytes, &keys, &[]);
            // The same in another order than that of codes.
            let (bytes, places) = self.in_order_of_keys(filter);
            let unsorted = BlocksRef::unsorted(self.shape, places.len(), &bytes);
            for (query, expected) in queries.iter().zip(&expected) {
                let mut best = TopK::new(k);
                nearest(backend, &gathered, 0..keys.len(), &[query], std::array::from_mut(&mut best), None);
                assert_eq!(&best.into_sorted(), expected, "gathered {}", case(query.table()));
                let mut best = TopK::new(k);
                nearest(backend, &unsorted, 0..places.len(), &[query], std::array::from_mut(&mut best), None);
                let placed = |found: Neighbour| Neighbour { key: places[found.key as usize], ..found };
                let found: Vec<Neighbour> = best.into_sorted().into_iter().map(placed).collect();
                assert_eq!(&found, expected, "unsorted {}", case(query.table()));
                if lists_codes(&blocks) {
                    let mut best = TopK::new(k);
                    assert!(nearest_by_code(&blocks, query, &mut best, filter, usize::MAX));
                    assert_eq!(&best.into_sorted(), expected, "by code {}", case(query.table()));
                }
            }
        }
    }

    /// Blocks of only the filter's documents in the order of their keys, and the keys.
    fn in_order_of_keys(&self, filter: Option<&[u64]>) -> (Vec<u8>, Vec<u32>) {
        let passes = |key: u32| filter.is_none_or(|bits| bits[key as usize / 64] >> (key % 64) & 1 == 1);
        let keyed = self.keys.iter().map(|key| u32::from_le_bytes(*key)).zip(0..);
        let mut keyed: Vec<(u32, u32)> = keyed.filter(|(key, _)| passes(*key)).collect();
        keyed.sort_unstable();
        let (keys, positions): (Vec<u32>, Vec<u32>) = keyed.into_iter().unzip();
        (gather(&self.blocks(), &positions), keys)
    }

    /// Blocks and keys of only the filter's documents.
    fn gathered(&self, filter: Option<&[u64]>) -> (Vec<u8>, Vec<[u8; 4]>) {
        let passes = |key: u32| filter.is_none_or(|bits| bits[key as usize / 64] >> (key % 64) & 1 == 1);
        let positions: Vec<u32> =
            (0..self.keys.len() as u32).filter(|&p| passes(u32::from_le_bytes(self.keys[p as usize]))).collect();
        let keys = positions.iter().map(|&p| self.keys[p as usize]).collect();
        (gather(&self.blocks(), &positions), keys)
    }
}

#[test]
#[should_panic(expected = "prefixes of a limit of 3")]
fn prefixes_refuse_a_collector_with_a_larger_limit() {
    let shape = Shape::new(4, 16);
    let case = Case::new(shape, vec![0; 66], 0, 4);
    let query = Query::new(shape, &[1.0; 64]);
    let prefixes = Prefixes::new(Backend::Reference, &case.blocks(), &query, 3.0).unwrap();
    prefixes.nearest((0, 1), &mut TopK::new(1), None);
}

#[test]
#[should_panic(expected = "position 33 of 33")]
fn gather_refuses_a_position_beyond_the_last_document() {
    let case = Case::new(Shape::new(4, 16), vec![0; 66], 0, 0);
    gather(&case.blocks(), &[32, 33]);
}

#[test]
fn scan_equals_brute_force_for_0_to_65_documents() {
    let mut noise = Noise(1);
    for n in 0..=65 {
        for (codebooks, codewords) in
            [(1, 16), (4, 16), (7, 16), (16, 16), (9, 2), (32, 2), (1, 256), (3, 256), (16, 256)]
        {
            let shape = Shape::new(codebooks, codewords);
            let codes = noise.codes(shape, n);
            let case = Case::new(shape, codes, n % 32, 0);
            let tables: Vec<Vec<f32>> = (0..9).map(|kind| table(shape, kind, &mut noise)).collect();
            for k in [1, 10, n + 1] {
                case.check(&tables[..1 + n % 9], k, None);
            }
        }
    }
}

#[test]
fn scan_equals_brute_force_for_every_shape() {
    let mut noise = Noise(2);
    let others = [
        (65, 16),
        (100, 16),
        (257, 16),
        (1, 2),
        (63, 2),
        (64, 2),
        (200, 2),
        (2, 256),
        (17, 256),
        (64, 256),
        (9, 3),
        (16, 8),
        (6, 17),
        (8, 100),
    ];
    for (codebooks, codewords) in (1..=64).map(|codebooks| (codebooks, 16)).chain(others) {
        let shape = Shape::new(codebooks, codewords);
        let codes = noise.codes(shape, 300);
        let case = Case::new(shape, codes, codebooks % 32, 4);
        let tables: Vec<Vec<f32>> = (0..9).map(|kind| table(shape, kind, &mut noise)).collect();
        let filter: Vec<u64> = (0..5).map(|_| noise.next()).collect();
        case.check(&tables, 10, None);
        case.check(&tables, 10, Some(&filter));
        case.check(&tables, 10, Some(&[0; 5]));
    }
}

#[test]
fn pruned_prefixes_hold_no_neighbour() {
    let mut noise = Noise(3);
    let cases = [
        (4, 16, 16),
        (3, 16, 16),
        (8, 16, 16),
        (8, 16, 12),
        (8, 16, 8),
        (1, 16, 4),
        (2, 16, 8),
        (16, 2, 16),
        (64, 2, 12),
        (1, 256, 8),
        (2, 256, 16),
        (4, 256, 12),
    ];
    for (codebooks, codewords, bits) in cases {
        let shape = Shape::new(codebooks, codewords);
        let mut codes = noise.codes(shape, 5000);
        // Clusters: most documents share their first byte with many others.
        let width = shape.code_bytes();
        for (i, code) in codes.chunks_exact_mut(width).enumerate() {
            if i % 3 != 0 {
                code[0] &= 0x33; // a smaller codeword at every width
            }
        }
        let case = Case::new(shape, codes, 1, bits.min(width as u32 * 8));
        let mut tables: Vec<Vec<f32>> = (0..9).map(|kind| table(shape, kind, &mut noise)).collect();
        // One near codeword and many far ones: all but a few prefixes are pruned.
        tables.push(
            table(shape, 0, &mut noise)
                .iter()
                .enumerate()
                .map(|(i, v)| if i % codewords == 1 { 0.0 } else { v + 5.0 })
                .collect(),
        );
        let filter: Vec<u64> = (0..79).map(|_| noise.next() & noise.next() & noise.next()).collect();
        for k in [1, 100, 600] {
            case.check(&tables, k, None);
            case.check(&tables, k, Some(&filter));
        }
    }
}

#[test]
#[should_panic(expected = "blocks of 33 documents")]
fn short_blocks_are_refused() {
    BlocksRef::new(Shape::new(4, 16), 33, &[0; 64], &[], &[]);
}

#[test]
fn a_table_with_negative_or_non_finite_values_is_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0] {
        let mut table = [1.0; 32];
        table[17] = bad;
        let refused = std::panic::catch_unwind(|| Query::new(Shape::new(2, 16), &table)).unwrap_err();
        let message = refused.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(message.contains("finite and not negative"), "{bad}: {message:?}");
    }
}

#[test]
fn blocks_may_begin_at_any_byte() {
    let mut noise = Noise(4);
    for offset in 0..=64 {
        for (codebooks, codewords) in [(5, 16), (16, 16), (24, 2), (3, 256)] {
            let shape = Shape::new(codebooks, codewords);
            let codes = noise.codes(shape, 97);
            let tables: Vec<Vec<f32>> = (0..7).map(|_| table(shape, 0, &mut noise)).collect();
            Case::new(shape, codes, offset, 4).check(&tables, 9, None);
        }
    }
}

/// Sums at the edge of a byte: documents exactly at the limit stay, documents one step beyond may pass the byte bound but not
/// the distance, and a sum above 255 does not wrap to a small one.
#[test]
fn scan_equals_brute_force_for_sums_at_the_edge_of_a_byte() {
    let mut noise = Noise(5);
    for (codebooks, codewords) in [(2, 16), (16, 16), (64, 16), (64, 2), (4, 256)] {
        let shape = Shape::new(codebooks, codewords);
        let codes = noise.codes(shape, 400);
        for step in [1.0f32, 127.0, 128.0, 254.0, 254.5, 255.0, 256.0, 1e30] {
            let value = |noise: &mut Noise| (noise.next() % 3) as f32 * step;
            let tables: Vec<Vec<f32>> =
                (0..3).map(|_| (0..codebooks * codewords).map(|_| value(&mut noise)).collect()).collect();
            for k in [1, 7, 399] {
                Case::new(shape, codes.clone(), 0, 8).check(&tables, k, None);
            }
        }
    }
}

#[test]
fn nearest_by_code_reports_that_it_gave_up() {
    let mut noise = Noise(6);
    let shape = Shape::new(4, 16);
    let codes = noise.codes(shape, 3000);
    let case = Case::new(shape, codes, 0, 16);
    let query = Query::new(shape, &table(shape, 0, &mut noise));
    assert!(!nearest_by_code(&case.blocks(), &query, &mut TopK::new(100), None, 10));
    assert!(nearest_by_code(&case.blocks(), &query, &mut TopK::new(100), None, 1 << 16));
}

#[test]
fn a_page_begins_where_the_previous_page_ended() {
    let mut noise = Noise(8);
    for (codebooks, codewords, bits) in [(4, 16, 16), (8, 16, 12), (9, 2, 8), (2, 256, 16)] {
        let shape = Shape::new(codebooks, codewords);
        let case = Case::new(shape, noise.codes(shape, 700), 0, bits);
        let table = table(shape, 5, &mut noise);
        let (query, blocks) = (Query::new(shape, &table), case.blocks());
        let all = case.brute(&table, 700, None);
        for at in [0, 1, 350, 699] {
            // The next in the order: the same distance with the next key, which may belong to no document.
            let first = Neighbour { key: all[at].key + 1, ..all[at] };
            let expected = &all[at + 1..(at + 41).min(700)];
            for backend in Backend::available() {
                let begin = || TopK::new(40).starting(first);
                let mut found = [begin(), begin(), begin()];
                nearest(backend, &blocks, 0..700, &[&query], &mut found[..1], None);
                let prefixes = Prefixes::new(backend, &blocks, &query, f32::INFINITY).unwrap();
                prefixes.nearest((0, 1), &mut found[1], None);
                if lists_codes(&blocks) {
                    assert!(nearest_by_code(&blocks, &query, &mut found[2], None, usize::MAX));
                } else {
                    found[2] = found[1].clone();
                }
                for found in found {
                    assert_eq!(found.into_sorted(), expected, "{} {shape:?} after {at}", backend.name());
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn scan_equals_brute_force_for_random_cases(
        seed in any::<u64>(),
        codebooks in 1usize..40,
        codewords in prop_oneof![Just(2usize), Just(16), Just(16), Just(256), 2usize..=256],
        n in 0usize..700,
        k in 1usize..120,
        kinds in prop::collection::vec(0usize..9, 1..7),
        distinct in 1usize..50,
        filtered in any::<bool>(),
    ) {
        let mut noise = Noise(seed);
        let shape = Shape::new(codebooks, codewords);
        // Few distinct codes: ties are the rule.
        let pool = noise.codes(shape, distinct);
        let width = shape.code_bytes();
        let codes: Vec<u8> = (0..n)
            .flat_map(|_| {
                let i = noise.next() as usize % distinct;
                pool[i * width..(i + 1) * width].to_vec()
            })
            .collect();
        let bits = (4 * (seed % 5) as u32).min(width as u32 * 8);
        let case = Case::new(shape, codes, seed as usize % 32, bits);
        let tables: Vec<Vec<f32>> = kinds.iter().map(|&kind| table(shape, kind, &mut noise)).collect();
        let filter: Vec<u64> = (0..n.div_ceil(64)).map(|_| noise.next()).collect();
        case.check(&tables, k, filtered.then_some(filter.as_slice()));
    }
}
