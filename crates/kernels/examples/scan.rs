//! How fast the scan is: `cargo run --release -p micpq-kernels --example scan [documents]`.
//!
//! One thread, top 100. "far" codes and tables are noise, where no prefix can be passed over; "near" codes come in
//! clusters, as those of real documents do.

use std::time::Instant;

use kernels::Backend;
use kernels::dropout::mix;
use kernels::scan::{BlocksRef, Query, Shape, TopK, ceiling, nearest, nearest_by_prefix, pack, passing};
use kernels::scan::{prefix_bits, prefix_starts};

const K: usize = 100;

fn main() {
    let n: usize = std::env::args().nth(1).map_or(1_000_000, |n| n.parse().expect("a number of documents"));
    let backends = Backend::available();
    println!("{n} documents, top {K}, one thread; G codes/s. Default backend: {}", Backend::active().name());
    println!("backend    books data  prefixes  bare 1  bare 4  batch 1  batch 64  alone  share");
    for books in [4, 8, 16, 32] {
        for near in [false, true] {
            let data = Data::new(Shape::new(books, 16), n, near);
            for &backend in backends.iter().filter(|&&b| b != Backend::Reference) {
                data.measure(backend, if near { "near" } else { "far" });
            }
        }
    }
}

struct Data {
    shape: Shape,
    n: usize,
    bytes: Vec<u8>,
    keys: Vec<[u8; 4]>,
    starts: Vec<[u8; 4]>,
    queries: Vec<Query>,
}

impl Data {
    fn new(shape: Shape, n: usize, near: bool) -> Data {
        let width = shape.code_bytes();
        let mut codes = vec![0u8; n * width];
        for (i, code) in codes.chunks_exact_mut(width).enumerate() {
            let own = mix(1, i as u64);
            // A cluster has about n / 1000 documents, which differ from its centre in a quarter of the books.
            let centre = mix(2, own % 1000);
            for m in 0..shape.books() {
                let noise = mix(own, m as u64);
                let word = if near && !noise.is_multiple_of(4) { mix(centre, m as u64) } else { noise >> 20 };
                code[m / 2] |= ((word & 15) << (m % 2 * 4)) as u8;
            }
        }
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|&i| {
            codes[i as usize * width..(i as usize + 1) * width].iter().take(8).fold(0u64, |a, b| a << 8 | u64::from(*b))
        });
        let bytes = pack(shape, &codes, &order);
        let starts = prefix_starts(shape, &bytes, n, prefix_bits(shape, n));
        let queries = (0..64u64)
            .map(|q| {
                let centre = mix(2, q * 13 % 1000);
                let table: Vec<f32> = (0..shape.books() as u64 * 16)
                    .map(|i| {
                        let (m, w) = (i / 16, i % 16);
                        let unit = (mix(mix(q, 7), i) >> 40) as f32 / (1 << 24) as f32;
                        // Distances as trained books give them: a near word, and others about a unit away.
                        if near && w == mix(centre, m) & 15 { 0.3 * unit } else { 0.5 + unit }
                    })
                    .collect();
                Query::new(shape, &table)
            })
            .collect();
        let keys = order.iter().map(|i| i.to_le_bytes()).collect();
        Data { shape, n, bytes, keys, starts, queries }
    }

    /// Best of several runs: others share the machine.
    fn best(&self, queries: usize, mut run: impl FnMut()) -> f64 {
        let begin = Instant::now();
        let mut least = f64::INFINITY;
        let mut runs = 0;
        while runs < 5 || begin.elapsed().as_secs_f64() < 0.3 {
            let start = Instant::now();
            run();
            least = least.min(start.elapsed().as_secs_f64());
            runs += 1;
        }
        (queries * self.n) as f64 / least / 1e9
    }

    fn measure(&self, backend: Backend, name: &str) {
        let blocks = BlocksRef::new(self.shape, self.n, &self.bytes, &self.keys, &self.starts);
        let all: Vec<&Query> = self.queries.iter().collect();
        // Below every distance nothing is rescored: the bare loop.
        let bare = |count: usize| {
            self.best(count, || {
                let mut best: Vec<TopK> = (0..count).map(|_| TopK::below(K, f32::MIN_POSITIVE)).collect();
                nearest(backend, &blocks, 0..self.n, &all[..count], &mut best, None);
                assert!(best.iter().all(TopK::is_empty));
            })
        };
        let seeded = |queries: &[&Query]| -> Vec<TopK> {
            queries.iter().map(|q| TopK::below(K, ceiling(&blocks, q, K, None))).collect()
        };
        let (bare_1, bare_4) = (bare(1), bare(4));
        let mut q = 0;
        let single = self.best(1, || {
            q = (q + 1) % 64;
            let mut best = seeded(&all[q..q + 1]);
            nearest(backend, &blocks, 0..self.n, &all[q..q + 1], &mut best, None);
        });
        let batch = self.best(64, || {
            let mut best = seeded(&all);
            let unit = (2 << 20) / self.shape.block_bytes() * 32;
            for start in (0..self.n).step_by(unit) {
                nearest(backend, &blocks, start..(start + unit).min(self.n), &all, &mut best, None);
            }
        });
        let alone = self.best(64, || {
            for query in &all {
                let mut best = seeded(&[query]);
                nearest_by_prefix(backend, &blocks, 0..self.n, query, &mut best[0], None);
            }
        });
        let share: usize = all.iter().map(|q| passing(&blocks, q, ceiling(&blocks, q, K, None))).sum();
        println!(
            "{:10} {:5} {name:5} {:8} {bare_1:7.2} {bare_4:7.2} {single:8.2} {batch:9.2} {alone:6.2}  {:.3}",
            backend.name(),
            self.shape.books(),
            self.starts.len().saturating_sub(1),
            share as f64 / (64 * self.n) as f64
        );
    }
}
