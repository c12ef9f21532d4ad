//! Threads that share the products of a batch too small to give each thread its own task, such as a single query.
//!
//! A query of ten tokens is 24 products of ten to forty microseconds. Waking a thread of the pool takes as long, so helpers
//! start once per pass and stay awake between products. [`wake`] starts them before the text of a query is read, so that they
//! are there when the pass begins. No thread waits for a helper: running threads take the parts of a product, and the calling
//! thread takes parts until none is left.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use kernels::gemm::PANEL;

use super::linear::{Linear, Rounded};
use super::transformer::Activation;

/// Parts of a product per thread. More parts balance a delayed thread; fewer parts read longer runs of weights.
const PARTS: usize = 2;
/// Minimum panels of a part.
const MIN_PANELS: usize = 4;
/// Spins before a thread yields its core.
const SPINS: u32 = 512;
/// How long helpers wait for their first product: a request is read and tokenised in less.
const PATIENCE: Duration = Duration::from_micros(500);

/// Low bits of a ticket: parts of a product that no thread has taken. The high bits count products.
const LEFT: u64 = (1 << 16) - 1;
/// The ticket after the last product.
const OVER: u64 = u64::MAX << 16;

/// The team that was woken for a pass to come.
static STANDING: Mutex<Option<Arc<Team>>> = Mutex::new(None);

/// Threads that compute products together, one product after another.
pub struct Team {
    threads: usize,
    ticket: AtomicU64,
    done: AtomicUsize,
    product: RwLock<Option<Product>>,
    // Rows of a result interleave, so every part has its own buffer.
    results: Vec<Mutex<Vec<f32>>>,
}

/// The product that is being computed.
struct Product {
    linear: Arc<Linear>,
    activation: Option<Activation>,
    rows: usize,
    // [rows, inputs], in f32 where the weights are, and rounded where they are.
    x: Vec<f32>,
    rounded: Rounded,
    // Panels per part.
    each: usize,
}

/// Wakes the helpers of a team of `threads` threads for a pass that begins soon. A thread that sleeps takes 50 to 100 us to wake,
/// as long as it takes to tokenise a query.
pub fn wake(threads: usize) {
    if threads < 2 {
        return;
    }
    // Whoever holds it takes the team, or leaves one.
    let Ok(mut standing) = STANDING.try_lock() else { return };
    if standing.as_ref().is_none_or(|team| team.threads != threads || team.is_over())
        && let Some(other) = standing.replace(Team::start(threads))
    {
        other.end();
    }
}

/// The team that stands ready, where it has so many threads.
fn standing(threads: usize) -> Option<Arc<Team>> {
    let team = STANDING.try_lock().ok()?.take()?;
    if team.threads == threads && !team.is_over() {
        return Some(team);
    }
    team.end();
    None
}

impl Team {
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

    /// A team with helpers of the current pool.
    fn start(threads: usize) -> Arc<Team> {
        let team = Arc::new(Team::new(threads));
        for _ in 1..threads {
            let team = team.clone();
            rayon::spawn(move || team.help());
        }
        team
    }

    /// Runs `f` with a team of `threads` threads of the current pool, this one included.
    pub fn run<T>(threads: usize, f: impl FnOnce(&Team) -> T) -> T {
        /// Ends the team, also when `f` panics. Nobody waits for the helpers: one may not even have started.
        struct Ends(Arc<Team>);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        let threads = threads.clamp(1, usize::from(u16::MAX) / PARTS);
        if threads == 1 {
            return f(&Team::alone());
        }
        let team = Ends(standing(threads).unwrap_or_else(|| Team::start(threads)));
        f(&team.0)
    }

    pub fn is_alone(&self) -> bool {
        self.threads == 1
    }

    fn is_over(&self) -> bool {
        self.ticket.load(Ordering::Acquire) == OVER
    }

    fn end(&self) {
        self.ticket.store(OVER, Ordering::Release);
    }

    /// `y = activation(x W^T + bias)`, `[rows, outputs]`, with the same bits as on one thread.
    pub fn multiply(&self, linear: &Arc<Linear>, x: &[f32], y: &mut [f32], activation: Option<Activation>) {
        let (panels, outputs, rows) = (linear.panels(), linear.outputs(), x.len() / linear.inputs());
        assert_eq!(rows * outputs, y.len(), "a row of results for every row");
        let each = panels.div_ceil(self.results.len()).max(MIN_PANELS);
        let parts = panels.div_ceil(each);
        {
            let mut product = self.product.write().expect("a part panicked");
            let (mut own, mut rounded) = product.take().map_or_else(Default::default, |p| (p.x, p.rounded));
            own.clear();
            if linear.is_float() {
                own.extend_from_slice(x);
            }
            linear.round(x, &mut rounded);
            *product = Some(Product { linear: linear.clone(), activation, rows, x: own, rounded, each });
        }
        self.done.store(0, Ordering::Relaxed);
        let mut ticket = self.ticket.load(Ordering::Relaxed);
        // A team whose helpers lost their patience is over, and goes on without them.
        let next = |ticket: u64| (if ticket == OVER { 0 } else { ticket & !LEFT }) + LEFT + 1 + parts as u64;
        while let Err(now) =
            self.ticket.compare_exchange_weak(ticket, next(ticket), Ordering::Release, Ordering::Relaxed)
        {
            ticket = now;
        }
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
        let linear = &product.linear;
        let panels = part * product.each..((part + 1) * product.each).min(linear.panels());
        let width = (panels.end * PANEL).min(linear.outputs()) - panels.start * PANEL;
        result.resize(product.rows * width, 0.0);
        linear.multiply(panels, &product.x, &product.rounded, &mut result, product.activation);
    }

    fn help(&self) {
        let (begun, mut turns) = (Instant::now(), 0);
        loop {
            match self.ticket.load(Ordering::Acquire) {
                OVER => break,
                // No product yet.
                0 if turns % SPINS == SPINS - 1 && begun.elapsed() > PATIENCE => {
                    let _ = self.ticket.compare_exchange(0, OVER, Ordering::AcqRel, Ordering::Acquire);
                }
                _ => {}
            }
            match self.take() {
                Some(part) => {
                    // A panic of a part is the calling thread's to report.
                    let part = std::panic::AssertUnwindSafe(|| self.compute(part));
                    if std::panic::catch_unwind(part).is_err() {
                        break;
                    }
                    turns = 0;
                }
                None => wait(&mut turns),
            }
        }
    }
}

fn wait(turns: &mut u32) {
    *turns = turns.wrapping_add(1);
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
        let linear = |&(o, i): &(usize, usize)| Arc::new(Linear::new(&noise(o * i), noise(o), i, precision));
        let linears: Vec<Arc<Linear>> = shapes.iter().map(linear).collect();
        Team::run(threads, |team| {
            for rows in [1, 10, 67] {
                for linear in &linears {
                    let x = noise(rows * linear.inputs());
                    let [mut alone, mut shared] = [0, 1].map(|_| vec![0.0; rows * linear.outputs()]);
                    let gelu = Some(Activation::Gelu);
                    linear.apply(&x, &mut alone, &mut Rows::default(), &Team::alone(), gelu);
                    linear.apply(&x, &mut shared, &mut Rows::default(), team, gelu);
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
    fn a_team_that_was_woken_early_is_used_and_one_that_waited_too_long_is_replaced() {
        // A pool of its own, whose only other thread can be watched.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        pool.install(|| {
            for pause in [Duration::ZERO, Duration::from_micros(50), 4 * PATIENCE] {
                // Other tests of this process may take the team; then this one starts its own.
                wake(2);
                std::thread::sleep(pause);
                agree(Precision::Int8, 2);
            }
            let late = Team::start(2);
            while !late.is_over() {
                std::thread::yield_now();
            }
            let linear = Arc::new(Linear::new(&noise(400 * 8), noise(400), 8, Precision::F32));
            let (x, mut y, mut alone) = (noise(16), vec![0.0; 800], vec![0.0; 800]);
            linear.apply(&x, &mut alone, &mut Rows::default(), &Team::alone(), None);
            linear.apply(&x, &mut y, &mut Rows::default(), &late, None);
            assert_eq!(y, alone, "a team without helpers computes alone");
        });
    }

    #[test]
    fn no_team_waits_for_a_pool_that_is_busy() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let (begin, blocked) = std::sync::mpsc::channel::<()>();
        pool.spawn(move || blocked.recv().unwrap_or(()));
        // The only thread of the pool ends after this one.
        let linear = Arc::new(Linear::new(&noise(400 * 8), noise(400), 8, Precision::F32));
        let (x, mut y) = (noise(8), vec![0.0; 400]);
        let team = Arc::new(Team::new(2));
        let helper = team.clone();
        pool.spawn(move || helper.help());
        linear.apply(&x, &mut y, &mut Rows::default(), &team, None);
        team.end();
        begin.send(()).unwrap();
    }

    #[test]
    fn a_panic_stops_the_helpers() {
        let linear = Arc::new(Linear::new(&noise(400 * 8), noise(400), 8, Precision::F32));
        // The calling thread panics at a result of the wrong size; any thread that takes a part panics at malformed rows.
        for (values, results) in [(8, 3), (9, 400)] {
            let (x, mut y) = (noise(values), vec![0.0; results]);
            let run = std::panic::AssertUnwindSafe(|| {
                Team::run(4, |team| linear.apply(&x, &mut y, &mut Rows::default(), team, None));
            });
            assert!(std::panic::catch_unwind(run).is_err(), "{values} values, {results} results");
        }
        agree(Precision::F32, 4);
    }
}
