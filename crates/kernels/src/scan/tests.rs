//! One test over all backends against brute force in the stated order.

use proptest::prelude::*;

use super::*;
use crate::Backend;

/// A small generator, so that the cases of a failing run can be made again.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = crate::dropout::mix(self.0, 1);
        self.0
    }

    fn codes(&mut self, shape: Shape, n: usize) -> Vec<u8> {
        let bits = shape.books() * shape.words().ilog2() as usize;
        let mut codes: Vec<u8> = (0..n * shape.code_bytes()).map(|_| self.next() as u8).collect();
        if !bits.is_multiple_of(8) {
            for code in codes.chunks_exact_mut(shape.code_bytes()) {
                code[bits / 8] &= (1 << (bits % 8)) - 1;
            }
        }
        codes
    }
}

/// Kinds of tables that have broken quantised scans: flat, far apart, zero, near the end of `f32`.
fn table(shape: Shape, kind: usize, noise: &mut Noise) -> Vec<f32> {
    let mut value = |i: usize| {
        let unit = (noise.next() >> 40) as f32 / (1 << 24) as f32;
        match kind {
            0 => unit,
            1 => 1.0,
            2 => 0.0,
            3 => unit * 10f32.powi((noise.next() % 60) as i32 - 30),
            4 => f32::MAX * unit,
            5 => f32::from(u8::from(i % shape.words() != 3)),
            6 => 1000.0 + unit * 1e-3,
            _ => f32::from_bits((noise.next() % 100) as u32),
        }
    };
    (0..shape.books() * shape.words()).map(&mut value).collect()
}

/// Distance of a packed code as the model states it: word numbers low bits first, a sum in book order.
fn distance(shape: Shape, table: &[f32], code: &[u8]) -> f32 {
    let bits = shape.words().ilog2() as usize;
    let mut sum = 0.0;
    for m in 0..shape.books() {
        let word = (usize::from(code[m * bits / 8]) >> (m * bits % 8)) & (shape.words() - 1);
        sum += table[m * shape.words() + word];
    }
    sum
}

struct Case {
    shape: Shape,
    codes: Vec<u8>,
    // Blocks begin `offset` bytes into this, so that loads are not aligned.
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
            for seeded in [false, true] {
                let mut best: Vec<TopK> = queries
                    .iter()
                    .map(|q| {
                        if seeded {
                            TopK::below(k, ceiling(backend, &blocks, q, &mut TopK::new(k), filter))
                        } else {
                            TopK::new(k)
                        }
                    })
                    .collect();
                // In two parts, the second beginning inside a block.
                let middle = blocks.len() / 2;
                let parts = [0..middle, middle..blocks.len()];
                let mut alone = best.clone();
                for part in parts {
                    nearest(backend, &blocks, part.clone(), &queries, &mut best, filter);
                    for (query, best) in queries.iter().zip(&mut alone) {
                        nearest_by_prefix(backend, &blocks, part.clone(), query, best, filter);
                    }
                }
                for ((found, expected), query) in alone.iter().zip(&expected).zip(&queries) {
                    assert_eq!(&found.clone().into_sorted(), expected, "by prefix, {} {query:?}", backend.name());
                    let limit = found.limit();
                    let near = self.codes.chunks_exact(self.shape.code_bytes());
                    let near = near.filter(|c| distance(self.shape, query.table(), c) <= limit).count();
                    assert!(passing(&blocks, query, limit) >= near);
                }
                for ((found, expected), table) in best.into_iter().zip(&expected).zip(tables) {
                    assert_eq!(
                        &found.into_sorted(),
                        expected,
                        "{} {:?} n {} k {k} seeded {seeded} table {table:?}",
                        backend.name(),
                        self.shape,
                        self.keys.len()
                    );
                }
            }
        }
    }
}

#[test]
fn every_length_of_two_blocks_and_one_is_brute_force() {
    let mut noise = Noise(1);
    for n in 0..=65 {
        for (books, words) in [(1, 16), (4, 16), (7, 16), (16, 16), (9, 2), (32, 2), (3, 256)] {
            let shape = Shape::new(books, words);
            let codes = noise.codes(shape, n);
            let case = Case::new(shape, codes, n % 32, 0);
            let tables: Vec<Vec<f32>> = (0..8).map(|kind| table(shape, kind, &mut noise)).collect();
            for k in [1, 10, n + 1] {
                case.check(&tables[..1 + n % 8], k, None);
            }
        }
    }
}

#[test]
fn every_number_of_books_is_brute_force() {
    let mut noise = Noise(2);
    for books in (1..=64).chain([65, 100, 257]) {
        let shape = Shape::new(books, 16);
        let codes = noise.codes(shape, 300);
        let case = Case::new(shape, codes, books % 32, 4);
        let tables: Vec<Vec<f32>> = (0..8).map(|kind| table(shape, kind, &mut noise)).collect();
        let filter: Vec<u64> = (0..5).map(|_| noise.next()).collect();
        case.check(&tables, 10, None);
        case.check(&tables, 10, Some(&filter));
        case.check(&tables, 10, Some(&[0; 5]));
    }
}

#[test]
fn prefixes_passed_over_hold_no_neighbour() {
    let mut noise = Noise(3);
    for (books, words, bits) in [(4, 16, 16), (8, 16, 12), (8, 16, 8), (1, 16, 4), (2, 16, 8), (16, 2, 16), (64, 2, 12)]
    {
        let shape = Shape::new(books, words);
        let mut codes = noise.codes(shape, 5000);
        // Clusters: most documents share their first byte with many others.
        let width = shape.code_bytes();
        for (i, code) in codes.chunks_exact_mut(width).enumerate() {
            if i % 3 != 0 {
                code[0] &= 0x33;
            }
        }
        let case = Case::new(shape, codes, 1, bits.min(width as u32 * 8));
        let mut tables: Vec<Vec<f32>> = (0..8).map(|kind| table(shape, kind, &mut noise)).collect();
        // A near and many far words: all but a few prefixes fall.
        tables.push(
            table(shape, 0, &mut noise)
                .iter()
                .enumerate()
                .map(|(i, v)| if i % words == 1 { 0.0 } else { v + 5.0 })
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
#[should_panic(expected = "finite and not negative")]
fn a_table_with_nan_is_refused() {
    Query::new(Shape::new(1, 16), &[f32::NAN; 16]);
}

proptest! {
    #[test]
    fn any_case_is_brute_force(
        seed in any::<u64>(),
        books in 1usize..40,
        words in prop::sample::select(vec![2usize, 16, 16, 16, 256]),
        n in 0usize..700,
        k in 1usize..120,
        kinds in prop::collection::vec(0usize..8, 1..7),
        distinct in 1usize..50,
        filtered in any::<bool>(),
    ) {
        let mut noise = Noise(seed);
        let shape = Shape::new(books, words);
        // Few distinct codes: ties are the rule.
        let some = noise.codes(shape, distinct);
        let width = shape.code_bytes();
        let codes: Vec<u8> = (0..n)
            .flat_map(|_| {
                let i = noise.next() as usize % distinct;
                some[i * width..(i + 1) * width].to_vec()
            })
            .collect();
        let bits = if words == 256 { 0 } else { (4 * (seed % 5) as u32).min(width as u32 * 8) };
        let case = Case::new(shape, codes, seed as usize % 32, bits);
        let tables: Vec<Vec<f32>> = kinds.iter().map(|&kind| table(shape, kind, &mut noise)).collect();
        let filter: Vec<u64> = (0..n.div_ceil(64)).map(|_| noise.next()).collect();
        case.check(&tables, k, filtered.then_some(filter.as_slice()));
    }
}
