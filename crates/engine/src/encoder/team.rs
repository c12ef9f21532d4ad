//! Threads that share the products of a batch too small to give each thread its own task, such as a single query.
//!
//! A query of ten tokens is 24 products of ten to forty microseconds. Waking a thread of the pool takes as long, so helpers
//! start once per pass and stay awake between products. No thread waits for a helper that has not started: running threads
//! take the parts of a product, and the calling thread takes parts until none is left.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};

use kernels::gemm::{Epilogue, PANEL};

use super::linear::{Linear, Rounded};

/// Parts of a product per thread. More parts balance a delayed thread; fewer parts read longer runs of weights.
const PARTS: usize = 2;
/// Minimum panels of a part.
const MIN_PANELS: usize = 4;
/// Spins before a thread yields its core.
const SPINS: u32 = 512;

/// Low bits of a ticket: parts of a product that no thread has taken. The high bits count products.
const LEFT: u64 = (1 << 16) - 1;
/// The ticket after the last product.
const OVER: u64 = u64::MAX << 16;

/// Threads that compute products together, one product after another. The weights live for `'w`.
pub struct Team<'w> {
    threads: usize,
    ticket: AtomicU64,
    done: AtomicUsize,
    product: RwLock<Option<Product<'w>>>,
    // Rows of a result interleave, so every part has its own buffer.
    results: Vec<Mutex<Vec<f32>>>,
}

/// The product that is being computed.
struct Product<'w> {
    linear: &'w Linear,
    epilogue: Epilogue<'w>,
    // [rows, inputs], in f32 and rounded for the weights.
    x: Vec<f32>,
    rounded: Rounded,
    // Panels per part.
    each: usize,
}

impl<'w> Team<'w> {
    /// One thread without helpers.
    pub fn alone() -> Self {
        Team::new(1)
    }

    fn new(threads: usize) -> Self {
        Team {
            threads,
            ticket: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            product: RwLock::new(None),
            results: (0..if threads > 1 { PARTS * threads } else { 0 }).map(|_| Mutex::default()).collect(),
        }
    }

    /// Runs `f` with a team of `threads` threads of the current pool, this one included.
    pub fn run<T>(threads: usize, f: impl FnOnce(&Team<'w>) -> T) -> T {
        /// Stops the helpers, also when `f` panics.
        struct Over<'a>(&'a AtomicU64);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(OVER, Ordering::Release);
            }
        }
        let team = Team::new(threads.clamp(1, usize::from(u16::MAX) / PARTS));
        if team.is_alone() {
            return f(&team);
        }
        rayon::in_place_scope(|scope| {
            for _ in 1..team.threads {
                scope.spawn(|_| team.help());
            }
            let _over = Over(&team.ticket);
            f(&team)
        })
    }

    pub fn is_alone(&self) -> bool {
        self.threads == 1
    }

    /// `y = epilogue(x W^T)`, `[rows, outputs]`, with the same bits as on one thread.
    pub fn multiply(&self, linear: &'w Linear, x: &[f32], y: &mut [f32], epilogue: Epilogue<'w>) {
        let (panels, outputs) = (linear.panels(), linear.outputs());
        assert_eq!(x.len() / linear.inputs() * outputs, y.len(), "a row of results for every row");
        let each = panels.div_ceil(self.results.len()).max(MIN_PANELS);
        let parts = panels.div_ceil(each);
        {
            let mut product = self.product.write().expect("a part panicked");
            let (mut own, mut rounded) = product.take().map_or_else(Default::default, |p| (p.x, p.rounded));
            own.clear();
            own.extend_from_slice(x);
            linear.round(&own, &mut rounded);
            *product = Some(Product { linear, epilogue, x: own, rounded, each });
        }
        self.done.store(0, Ordering::Relaxed);
        let turn = self.ticket.load(Ordering::Relaxed) & !LEFT;
        self.ticket.store(turn + LEFT + 1 + parts as u64, Ordering::Release);
        while let Some(part) = self.take() {
            self.compute(part);
        }
        let mut turns = 0;
        while self.done.load(Ordering::Acquire) < parts {
            wait(&mut turns);
        }
        for (part, result) in self.results[..parts].iter().enumerate() {
            let result = result.lock().expect("a part panicked");
            let span = part * each * PANEL..((part + 1) * each * PANEL).min(outputs);
            for (to, from) in y.chunks_exact_mut(outputs).zip(result.chunks_exact(span.len())) {
                to[span.clone()].copy_from_slice(from);
            }
        }
    }

    /// Takes a part of the current product.
    fn take(&self) -> Option<usize> {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        while ticket & LEFT > 0 {
            // Compares the whole ticket, so the part is of this product and never of a later one.
            match self.ticket.compare_exchange_weak(ticket, ticket - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((ticket & LEFT) as usize - 1),
                Err(now) => ticket = now,
            }
        }
        None
    }

    fn compute(&self, part: usize) {
        /// Counts the part, also when it panics: the calling thread waits for it and then finds the poisoned lock.
        struct Done<'a>(&'a AtomicUsize);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Release);
            }
        }
        let _done = Done(&self.done);
        let product = self.product.read().expect("a part panicked");
        let product = product.as_ref().expect("a part of a product");
        let mut result = self.results[part].lock().expect("a part panicked");
        let linear = product.linear;
        let panels = part * product.each..((part + 1) * product.each).min(linear.panels());
        let width = (panels.end * PANEL).min(linear.outputs()) - panels.start * PANEL;
        result.resize(product.x.len() / linear.inputs() * width, 0.0);
        linear.multiply(panels, &product.x, &product.rounded, &mut result, product.epilogue);
    }

    fn help(&self) {
        let mut turns = 0;
        while self.ticket.load(Ordering::Acquire) != OVER {
            match self.take() {
                Some(part) => {
                    self.compute(part);
                    turns = 0;
                }
                None => wait(&mut turns),
            }
        }
    }
}

fn wait(turns: &mut u32) {
    *turns += 1;
    if turns.is_multiple_of(SPINS) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::Precision;
    use crate::encoder::linear::Rows;

    fn noise(n: usize) -> Vec<f32> {
        (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
    }

    /// Compares products of several shapes on one thread and by teams, one after the other.
    fn agree(precision: Precision, threads: usize) {
        // Numbers of panels: fewer than a part takes, an incomplete one, as many as parts, many.
        let shapes = [(40, 24), (200, 40), (8 * PANEL, 200), (1000, 8)];
        let linears: Vec<Linear> =
            shapes.iter().map(|&(o, i)| Linear::new(&noise(o * i), noise(o), i, precision)).collect();
        Team::run(threads, |team| {
            for rows in [1, 10, 67] {
                for linear in &linears {
                    let x = noise(rows * linear.inputs());
                    let [mut alone, mut shared] = [0, 1].map(|_| vec![0.0; rows * linear.outputs()]);
                    linear.apply(&x, &mut alone, &mut Rows::default(), &Team::alone(), Epilogue::BiasGelu);
                    linear.apply(&x, &mut shared, &mut Rows::default(), team, Epilogue::BiasGelu);
                    assert_eq!(alone, shared, "{precision}, {threads} threads, {rows} rows");
                }
            }
        });
    }

    #[test]
    fn a_team_gives_the_same_bits_as_one_thread() {
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
            for threads in [1, 2, 3, 9] {
                agree(precision, threads);
            }
        }
    }

    #[test]
    fn all_of_more_teams_than_threads_finish() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| pool.install(|| agree(Precision::Int8, 3))));
            }
        });
    }

    #[test]
    fn a_panic_stops_the_helpers() {
        let linear = Linear::new(&noise(400 * 8), noise(400), 8, Precision::F32);
        // The calling thread panics at a result of the wrong size; any thread that takes a part panics at malformed rows.
        for (values, results) in [(8, 3), (9, 400)] {
            let (x, mut y) = (noise(values), vec![0.0; results]);
            let run = std::panic::AssertUnwindSafe(|| {
                Team::run(4, |team| linear.apply(&x, &mut y, &mut Rows::default(), team, Epilogue::Bias));
            });
            assert!(std::panic::catch_unwind(run).is_err(), "{values} values, {results} results");
        }
        agree(Precision::F32, 4);
    }
}
