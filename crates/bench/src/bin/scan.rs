//! Speed of the scan: `cargo run --release -p micpq-bench --bin scan [documents [codebooks]]`.
//!
//! One thread, top 100. "far" codes and tables are noise, where no prefix can be pruned; "near" codes come in clusters, like
//! those of real documents.

use std::time::Instant;

use kernels::Backend;
use kernels::dropout::mix;
use kernels::scan::{BlocksRef, Prefixes, Query, Sample, Shape, TopK, nearest, pack, prefix_bits, prefix_starts};

const K: usize = 100;

fn main() {
    let n: usize = std::env::args().nth(1).map_or(1_000_000, |n| n.parse().expect("a number of documents"));
    let backends = Backend::available();
    println!("{n} documents, top {K}, one thread; G codes/s. Default backend: {}", Backend::active().name());
    println!("backend  codebooks data  prefixes  bare 1  bare 4  full 1  full 4  prefixes  share");
    let wanted: Option<usize> = std::env::args().nth(2).map(|m| m.parse().expect("a number of codebooks"));
    for codebooks in [4, 8, 16, 32].into_iter().filter(|&m| wanted.is_none_or(|w| w == m)) {
        for near in [false, true] {
            let data = Data::new(Shape::new(codebooks, 16), n, near);
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
            // A cluster has about n / 1000 documents, which differ from its centre in a quarter of the codebooks.
            let centre = mix(2, own % 1000);
            for m in 0..shape.num_codebooks() {
                let noise = mix(own, m as u64);
                let codeword = if near && !noise.is_multiple_of(4) { mix(centre, m as u64) } else { noise >> 20 };
                code[m / 2] |= ((codeword & 15) << (m % 2 * 4)) as u8;
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
                let table: Vec<f32> = (0..shape.num_codebooks() as u64 * 16)
                    .map(|i| {
                        let (m, w) = (i / 16, i % 16);
                        let unit = (mix(mix(q, 7), i) >> 40) as f32 / (1 << 24) as f32;
                        // Distances like those of trained codebooks: a near codeword, and others about a unit away.
                        if near && w == mix(centre, m) & 15 { 0.3 * unit } else { 0.5 + unit }
                    })
                    .collect();
                Query::new(shape, &table)
            })
            .collect();
        let keys = order.iter().map(|i| i.to_le_bytes()).collect();
        Data { shape, n, bytes, keys, starts, queries }
    }

    /// G documents per second over all queries. Each group is timed separately, the best of several runs: other programs share
    /// the machine, and a long run would include their time.
    fn speed(&self, groups: std::slice::Chunks<&Query>, mut run: impl FnMut(&[&Query])) -> f64 {
        let (mut seconds, mut queries) = (0.0, 0);
        for group in groups {
            let times = (0..7).map(|_| {
                let start = Instant::now();
                run(group);
                start.elapsed().as_secs_f64()
            });
            seconds += times.fold(f64::INFINITY, f64::min);
            queries += group.len();
        }
        (queries * self.n) as f64 / seconds / 1e9
    }

    fn measure(&self, backend: Backend, name: &str) {
        let blocks = BlocksRef::new(self.shape, self.n, &self.bytes, &self.keys, &self.starts);
        let all: Vec<&Query> = self.queries.iter().collect();
        // With a limit below every distance no document is summed in f32: the bare loop.
        let bare = |size: usize| {
            self.speed(all.chunks(size), |queries| {
                let mut best: Vec<TopK> = queries.iter().map(|_| TopK::below(K, f32::MIN_POSITIVE)).collect();
                nearest(backend, &blocks, 0..self.n, queries, &mut best, None);
                assert!(best.iter().all(TopK::is_empty));
            })
        };
        let sample = |query: &Query, deep: bool| {
            let Some(mut sample) = Sample::new(backend, &blocks, query, TopK::new(K), None) else {
                return f32::INFINITY;
            };
            if deep {
                sample.deepen();
            }
            sample.limit()
        };
        let seeded = |queries: &[&Query], deep: bool| -> Vec<TopK> {
            queries.iter().map(|q| TopK::below(K, sample(q, deep))).collect()
        };
        let full = |size: usize| {
            self.speed(all.chunks(size), |queries| {
                let mut best = seeded(queries, true);
                nearest(backend, &blocks, 0..self.n, queries, &mut best, None);
            })
        };
        let by_prefix = self.speed(all.chunks(1), |query| {
            let mut best = seeded(query, false);
            match Prefixes::new(backend, &blocks, query[0], best[0].limit()) {
                Some(prefixes) => prefixes.nearest((0, 1), &mut best[0], None),
                None => nearest(backend, &blocks, 0..self.n, query, &mut best, None),
            }
        });
        let cost = |q: &&Query| Prefixes::new(backend, &blocks, q, sample(q, false)).map_or(self.n, |p| p.cost());
        let share: usize = all.iter().map(cost).sum();
        println!(
            "{:8} {:9} {name:5} {:8} {:7.2} {:7.2} {:7.2} {:7.2} {by_prefix:9.2}  {:.3}",
            backend.name(),
            self.shape.num_codebooks(),
            self.starts.len().saturating_sub(1),
            bare(1),
            bare(4),
            full(1),
            full(4),
            share as f64 / (64 * self.n) as f64
        );
    }
}
