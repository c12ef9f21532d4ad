//! Exact nearest codes of many queries over many segments, on all cores.

use std::sync::atomic::{AtomicU32, Ordering};

use kernels::Backend;
use kernels::scan::{self, BLOCK, BlocksRef, Effort, Neighbour, Query, Shape, TopK};
use parking_lot::Mutex;
use rayon::prelude::*;

use super::codes::{CodeBlocks, kernel_shape, positions_of};
use super::plan::{Plan, ScanStrategy};
use super::request::TopKRequest;
use super::selection::{Only, Selection};
use crate::model::{CodeShape, DistanceTable};

/// A segment of an index, or all codes in memory.
pub(crate) struct ScanSegment<'a> {
    pub blocks: &'a CodeBlocks,
    /// The documents that may be found; `None` is all of them.
    pub only: Option<&'a Selection<'a>>,
    /// Insertion sequence of a rank; with a selection of a few documents, of a place among them. It orders equal distances of
    /// different segments, and rises with the rank.
    pub sequence: &'a (dyn Fn(u32) -> u64 + Sync),
}

impl ScanSegment<'_> {
    /// The first neighbour of this segment's order after a distance and sequence.
    fn first_after(&self, (distance, sequence): (f32, u64)) -> Neighbour {
        let (mut from, mut to) =
            (0, self.only.and_then(Selection::numbers).map_or(self.blocks.len(), <[u32]>::len) as u32);
        while from < to {
            let middle = from + (to - from) / 2;
            if (self.sequence)(middle) <= sequence { from = middle + 1 } else { to = middle }
        }
        Neighbour { distance: distance + 0.0, key: from }
    }

    /// The plan before anything is scanned. A selective filter decides the strategy; otherwise the scan may still change it.
    fn initial_plan(&self) -> Plan {
        let documents = self.blocks.len();
        let blocks = documents.div_ceil(BLOCK);
        let filtered = self.only.is_some();
        let strategy = match self.only {
            Some(only) if only.is_few() && only.count() == 0 => ScanStrategy::Nothing,
            Some(only) if only.is_few() => ScanStrategy::Selected,
            _ => ScanStrategy::Blocks,
        };
        Plan { strategy, documents, blocks, scanned: 0, measured: 0, filtered }
    }

    /// The blocks to scan, and a bitmap over ranks where only some of their documents may be found. The documents of a
    /// selective filter have blocks of their own.
    fn view(&self) -> (BlocksRef<'_>, Option<&[u64]>) {
        match self.only.map(Selection::only) {
            None => (self.blocks.view(), None),
            Some(Only::Ranks(bits)) => (self.blocks.view(), Some(bits)),
            Some(Only::These(some)) => (some, None),
        }
    }
}

/// A document found: `part` is the number of its segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScanHit {
    pub distance: f32,
    pub sequence: u64,
    pub part: usize,
    /// Or the place among a few selected documents.
    pub rank: u32,
}

/// Blocks of a work unit in bytes. They stay in the cache while all queries of a group pass over them. In smaller units the
/// rounding of tables, once per unit and query, would show.
const UNIT_BYTES: usize = 2 << 20;

const MAX_GROUP_QUERIES: usize = 64;

/// One query is scanned by prefixes when that costs less than this share of scanning every document. Where a first byte has
/// many documents that pass, its blocks are scanned in order there too, so prefixes hardly ever cost more.
const MAX_PREFIX_COST: f64 = 0.95;

/// The same where tiles of queries could share the reading of blocks.
const MAX_PREFIX_COST_IN_TILE: f64 = 0.6;

/// From this share on a deeper sample is worth its time.
const MIN_COST_OF_DEEP_SAMPLE: f64 = 0.6;

/// Up to this many codes one thread does all the work: about a fifth of a millisecond.
const MAX_SERIAL_CODES: usize = 1 << 20;

/// State of one query that its threads share.
struct QueryState {
    /// Bits of a distance that at least `k` documents do not exceed. Distances are not negative, so their bits compare alike.
    ceiling: AtomicU32,
    found: Mutex<Vec<ScanHit>>,
    // [segments]
    plans: Mutex<Vec<Plan>>,
}

impl QueryState {
    fn ceiling(&self) -> f32 {
        f32::from_bits(self.ceiling.load(Ordering::Relaxed))
    }

    fn lower_ceiling(&self, distance: f32) {
        self.ceiling.fetch_min(distance.to_bits(), Ordering::Relaxed);
    }

    /// Adds what a scan of (some of) a segment found.
    fn add(&self, k: usize, part: usize, best: TopK, sequence: impl Fn(u32) -> u64) {
        self.add_effort(part, best.effort());
        if best.is_empty() {
            return;
        }
        let mut found = self.found.lock();
        found.extend(best.into_sorted().into_iter().map(|n| ScanHit {
            distance: n.distance,
            sequence: sequence(n.key),
            part,
            rank: n.key,
        }));
        // For a small k the k-th is cheap to find, so the ceiling falls sooner than at twice as many.
        if found.len() >= k.saturating_mul(2) || found.len() >= k && k <= 1024 {
            found.select_nth_unstable_by(k - 1, order);
            found.truncate(k);
            self.lower_ceiling(found[k - 1].distance);
        }
    }

    fn add_effort(&self, part: usize, effort: Effort) {
        let mut plans = self.plans.lock();
        plans[part].scanned += effort.blocks;
        plans[part].measured += effort.measured;
    }

    /// Records the strategy in a segment, unless a filter has decided it.
    fn set_strategy(&self, part: usize, strategy: ScanStrategy) {
        let plan = &mut self.plans.lock()[part];
        if plan.strategy == ScanStrategy::Blocks {
            plan.strategy = strategy;
        }
    }
}

fn order(a: &ScanHit, b: &ScanHit) -> std::cmp::Ordering {
    a.distance.total_cmp(&b.distance).then(a.sequence.cmp(&b.sequence))
}

/// The nearest documents of every query over all segments, best first, with the plan of each segment. The result is that of
/// brute force for any number of threads: the order of documents is total, and a limit only skips what lies beyond it.
///
/// [`super::check`] must have accepted shape, tables and request.
pub(crate) fn explained(
    shape: CodeShape,
    parts: &[ScanSegment],
    tables: &[DistanceTable],
    request: impl Into<TopKRequest>,
) -> Vec<(Vec<ScanHit>, Vec<Plan>)> {
    let scan = Scan::new(shape, parts, tables, request.into());
    // The largest segment first: it gives the others the best limit.
    let mut by_size: Vec<usize> = (0..parts.len()).collect();
    by_size.sort_by_key(|&part| std::cmp::Reverse(scan.views[part].0.len()));
    for part in by_size {
        let choices = scan.choose_strategies(part);
        scan.scan_prefixes(part, &choices);
        scan.scan_blocks(part, &choices);
    }
    scan.into_answers()
}

/// One scan of all segments for all queries.
struct Scan<'a> {
    backend: Backend,
    shape: Shape,
    k: usize,
    radius: f32,
    threads: usize,
    /// Whether queries are spread over threads.
    spread_queries: bool,
    // [segments]
    segments: &'a [ScanSegment<'a>],
    views: Vec<(BlocksRef<'a>, Option<&'a [u64]>)>,
    firsts: Vec<Option<Neighbour>>,
    // [queries]
    queries: Vec<Query>,
    states: Vec<QueryState>,
}

impl<'a> Scan<'a> {
    fn new(
        shape: CodeShape,
        segments: &'a [ScanSegment<'a>],
        tables: &[DistanceTable],
        request: TopKRequest,
    ) -> Scan<'a> {
        let shape = kernel_shape(shape);
        let views: Vec<_> = segments.iter().map(ScanSegment::view).collect();
        let documents: usize = views.iter().map(|(view, _)| view.len()).sum();
        let threads = rayon::current_num_threads();
        let spread_queries = tables.len() > 1 && is_parallel(threads, documents.saturating_mul(tables.len()));
        let plans: Vec<Plan> = segments.iter().map(ScanSegment::initial_plan).collect();
        // Distances are below infinity. Adding 0 turns minus zero into zero.
        let radius = request.radius.unwrap_or(f32::INFINITY) + 0.0;
        let state = |_| QueryState {
            ceiling: AtomicU32::new(radius.to_bits()),
            found: Mutex::default(),
            plans: Mutex::new(plans.clone()),
        };
        Scan {
            backend: Backend::active(),
            shape,
            k: request.k,
            radius,
            threads,
            spread_queries,
            segments,
            views,
            firsts: segments.iter().map(|s| request.after.map(|after| s.first_after(after))).collect(),
            queries: map(spread_queries, tables, |t| Query::new(shape, t.values())),
            states: tables.iter().map(state).collect(),
        }
    }

    fn collector(&self, q: usize, part: usize) -> TopK {
        let best = TopK::below(self.k, self.states[q].ceiling());
        match self.firsts[part] {
            Some(first) => best.starting(first),
            None => best,
        }
    }

    fn add(&self, q: usize, part: usize, best: TopK) {
        // Within one segment ranks order as sequences do, so the column is read only for the final hits.
        let single = self.segments.len() == 1;
        let sequence = |rank: u32| if single { u64::from(rank) } else { (self.segments[part].sequence)(rank) };
        self.states[q].add(self.k, part, best, sequence);
    }

    fn choose_strategies(&self, part: usize) -> Vec<Choice<'_>> {
        let numbers: Vec<usize> = (0..self.queries.len()).collect();
        map(self.spread_queries, &numbers, |&q| {
            if self.scan_posting_lists(q, part) { Choice::Done } else { self.choose(q, part) }
        })
    }

    /// Visits codes in order of distance where the segment lists them. `false` where too many would have to be visited;
    /// the limit found so far stays.
    fn scan_posting_lists(&self, q: usize, part: usize) -> bool {
        let (view, filter) = self.views[part];
        if !scan::lists_codes(&view) {
            return false;
        }
        let mut best = self.collector(q, part);
        // A visited code costs as much as skipping over 500 documents.
        let max_codes = view.len() / 512 + 256;
        if scan::nearest_by_code(&view, &self.queries[q], &mut best, filter, max_codes) {
            self.states[q].set_strategy(part, ScanStrategy::PostingLists);
            self.add(q, part, best);
            return true;
        }
        best.settle();
        self.states[q].lower_ceiling(best.limit());
        self.states[q].add_effort(part, best.effort());
        false
    }

    /// Prefixes or every block, by the cost that a limit from a sample predicts.
    fn choose(&self, q: usize, part: usize) -> Choice<'_> {
        let (view, filter) = self.views[part];
        let (query, state) = (&self.queries[q], &self.states[q]);
        let share = if self.queries.len() < 4 { MAX_PREFIX_COST } else { MAX_PREFIX_COST_IN_TILE };
        let max_cost = share * view.len() as f64;
        let known = state.ceiling() < self.radius;
        let sample =
            if known { None } else { scan::Sample::new(self.backend, &view, query, self.collector(q, part), filter) };
        let prefixes = || scan::Prefixes::new(self.backend, &view, query, state.ceiling());
        let Some(mut sample) = sample else { return Choice::new(prefixes(), max_cost) };
        state.lower_ceiling(sample.limit());
        let mut found = prefixes();
        let cost = found.as_ref().map_or(view.len(), scan::Prefixes::cost) as f64;
        if cost >= MIN_COST_OF_DEEP_SAMPLE * view.len() as f64 || cost >= max_cost {
            sample.deepen();
            state.lower_ceiling(sample.limit());
            // Where all documents pass, a slightly lower limit does not change that for tiles.
            if cost < view.len() as f64 || max_cost > cost {
                found = prefixes();
            }
        }
        state.add_effort(part, sample.effort());
        Choice::new(found, max_cost)
    }

    fn scan_prefixes(&self, part: usize, choices: &[Choice]) {
        let filter = self.views[part].1;
        let chosen: Vec<(usize, &scan::Prefixes)> = choices
            .iter()
            .enumerate()
            .filter_map(|(q, choice)| if let Choice::Prefixes(p) = choice { Some((q, p.as_ref())) } else { None })
            .collect();
        each(self.spread_queries && chosen.len() > 1, &chosen, |&(q, prefixes)| {
            self.states[q].set_strategy(part, ScanStrategy::Prefixes);
            // One share, unless this query alone must keep the cores busy. Then several per thread, since first bytes differ
            // in how many documents they have.
            let busy = chosen.len() < self.threads && prefixes.cost() > MAX_SERIAL_CODES;
            let shares = if busy { 4 * self.threads } else { 1 };
            let numbers: Vec<usize> = (0..shares).collect();
            each(shares > 1, &numbers, |&share| {
                let mut best = self.collector(q, part);
                prefixes.nearest((share, shares), &mut best, filter);
                self.add(q, part, best);
            });
        });
    }

    fn scan_blocks(&self, part: usize, choices: &[Choice]) {
        let (view, filter) = self.views[part];
        let chosen: Vec<usize> = (0..choices.len()).filter(|&q| matches!(choices[q], Choice::Blocks)).collect();
        let unit = positions_of(self.shape, UNIT_BYTES);
        let starts: Vec<usize> = (0..view.len()).step_by(unit).collect();
        let spread = is_parallel(self.threads, view.len().saturating_mul(chosen.len()));
        // Groups as large as leave every thread one, in whole tiles.
        let group = chosen.len().div_ceil(self.threads).next_multiple_of(4).clamp(1, MAX_GROUP_QUERIES);
        let groups: Vec<&[usize]> = chosen.chunks(group).collect();
        each(spread, &starts, |&start| {
            let range = start..(start + unit).min(view.len());
            each(spread, &groups, |group| {
                let mut best: Vec<TopK> = group.iter().map(|&q| self.collector(q, part)).collect();
                let queries: Vec<&Query> = group.iter().map(|&q| &self.queries[q]).collect();
                scan::nearest(self.backend, &view, range.clone(), &queries, &mut best, filter);
                for (&q, best) in group.iter().zip(best) {
                    self.add(q, part, best);
                }
            });
        });
    }

    fn into_answers(self) -> Vec<(Vec<ScanHit>, Vec<Plan>)> {
        let answer = |state: QueryState| {
            let mut found = state.found.into_inner();
            found.sort_unstable_by(order);
            found.truncate(self.k);
            if let [segment] = self.segments {
                found.iter_mut().for_each(|f| f.sequence = (segment.sequence)(f.rank));
            }
            (found, state.plans.into_inner())
        };
        self.states.into_iter().map(answer).collect()
    }
}

/// The rest of the work for a query in a segment.
enum Choice<'a> {
    Done,
    Prefixes(Box<scan::Prefixes<'a>>),
    Blocks,
}

impl<'a> Choice<'a> {
    fn new(prefixes: Option<scan::Prefixes<'a>>, max_cost: f64) -> Choice<'a> {
        let cheap = prefixes.filter(|prefixes| (prefixes.cost() as f64) < max_cost);
        cheap.map_or(Choice::Blocks, |prefixes| Choice::Prefixes(Box::new(prefixes)))
    }
}

/// Whether a scan of so many codes is worth several threads. On a busy machine, waking them takes longer than a small scan.
fn is_parallel(threads: usize, codes: usize) -> bool {
    codes > MAX_SERIAL_CODES && threads > 1
}

fn each<T: Sync>(parallel: bool, items: &[T], work: impl Fn(&T) + Sync + Send) {
    if parallel { items.par_iter().for_each(work) } else { items.iter().for_each(work) }
}

fn map<T: Sync, U: Send>(parallel: bool, items: &[T], work: impl Fn(&T) -> U + Sync + Send) -> Vec<U> {
    if parallel { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}
