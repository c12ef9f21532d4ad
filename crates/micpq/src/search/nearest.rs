//! Many queries over many parts on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use kernels::Backend;
use kernels::scan::{self, BLOCK, BlocksRef, Effort, Neighbour, Query, TopK};
use rayon::prelude::*;

use super::codes::{CodeBlocks, kernel_shape, positions_of};
use super::plan::{Plan, Way};
use super::selection::{Only, Selection};
use super::want::Want;
use crate::model::{CodeShape, Table};

/// Some of the documents: a segment of an index, or all codes in memory.
pub(crate) struct Part<'a> {
    pub blocks: &'a CodeBlocks,
    /// The documents that may be found; all where there is none.
    pub only: Option<&'a Selection<'a>>,
    /// The insertion sequence of a rank, by which equal distances of different parts are ordered. Rising with the rank.
    pub sequence: &'a (dyn Fn(u32) -> u64 + Sync),
}

impl Part<'_> {
    /// The first of this part's order behind a distance and sequence.
    fn first_after(&self, (distance, sequence): (f32, u64)) -> Neighbour {
        let (mut from, mut to) = (0, self.blocks.len() as u32);
        while from < to {
            let middle = from + (to - from) / 2;
            if (self.sequence)(middle) <= sequence { from = middle + 1 } else { to = middle }
        }
        Neighbour { distance: distance + 0.0, key: from }
    }

    fn untouched(&self) -> Plan {
        let documents = self.blocks.len();
        let blocks = documents.div_ceil(BLOCK);
        let filtered = self.only.is_some();
        // Of what a filter leaves alone, that is said; of all others, the way that is taken.
        let way = match self.only {
            Some(only) if only.is_few() && only.count() == 0 => Way::Nothing,
            Some(only) if only.is_few() => Way::Selected,
            _ => Way::Blocks,
        };
        Plan { way, documents, blocks, scanned: 0, measured: 0, filtered }
    }
}

/// A document found: its distance, its place in insertion order, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    pub distance: f32,
    pub sequence: u64,
    pub part: usize,
    pub rank: u32,
}

/// Blocks of a work unit in bytes. They stay in the cache while all queries of a group pass over them; less would make
/// the rounding of tables, once a unit and query, show.
const UNIT: usize = 2 << 20;

/// Queries of a work unit at most.
const GROUP: usize = 64;

/// Cost of going by prefixes, as a share of looking at every document, below which one query goes that way. Where a first
/// byte has many that pass, its blocks are looked at in order there too, so it hardly ever costs more.
const PRUNED: f64 = 0.95;

/// The same where tiles of queries could share the reading of blocks.
const PRUNED_IN_TILE: f64 = 0.6;

/// The same, from which a deeper sample is worth its time.
const DEEPER: f64 = 0.6;

/// Codes below which one thread does all the work: about a fifth of a millisecond of it.
const SERIAL: usize = 1 << 20;

/// What the threads know of one query together.
struct Progress {
    /// Bits of a distance that `k` documents do not exceed. Distances are not negative, so their bits compare alike.
    ceiling: AtomicU32,
    found: Mutex<Vec<Found>>,
    /// What was done in each part.
    plans: Mutex<Vec<Plan>>,
}

impl Progress {
    fn ceiling(&self) -> f32 {
        f32::from_bits(self.ceiling.load(Ordering::Relaxed))
    }

    fn lower(&self, distance: f32) {
        self.ceiling.fetch_min(distance.to_bits(), Ordering::Relaxed);
    }

    /// Takes over what a scan of (some of) a part found, `sequence` giving each its place among equals.
    fn take(&self, k: usize, part: usize, best: TopK, sequence: &(dyn Fn(u32) -> u64 + Sync)) {
        self.spend(part, best.effort());
        if best.is_empty() {
            return;
        }
        let mut found = self.found.lock().expect("no thread panics while it holds this");
        found.extend(best.into_sorted().into_iter().map(|n| Found {
            distance: n.distance,
            sequence: sequence(n.key),
            part,
            rank: n.key,
        }));
        // Sooner than at twice as many, unless looking for the k-th costs more than it saves.
        if found.len() >= k.saturating_mul(2) || found.len() >= k && k <= 1024 {
            found.select_nth_unstable_by(k - 1, order);
            found.truncate(k);
            self.lower(found[k - 1].distance);
        }
    }

    fn spend(&self, part: usize, effort: Effort) {
        let mut plans = self.plans.lock().expect("no thread panics while it holds this");
        plans[part].scanned += effort.blocks;
        plans[part].measured += effort.measured;
    }

    /// Notes the way through a part, where not a filter alone has decided it.
    fn goes(&self, part: usize, way: Way) {
        let plan = &mut self.plans.lock().expect("no thread panics while it holds this")[part];
        if plan.way == Way::Blocks {
            plan.way = way;
        }
    }
}

fn order(a: &Found, b: &Found) -> std::cmp::Ordering {
    a.distance.total_cmp(&b.distance).then(a.sequence.cmp(&b.sequence))
}

/// The documents that every query wants over all parts, best first, and what was done in each part. The result is that of
/// brute force, whatever the number of threads: the order of documents is total, and a limit only passes over what lies
/// beyond it.
///
/// [`super::check`] must have let shape, tables and wish pass.
pub(crate) fn explained(
    shape: CodeShape,
    parts: &[Part],
    tables: &[Table],
    want: impl Into<Want>,
) -> Vec<(Vec<Found>, Vec<Plan>)> {
    let want: Want = want.into();
    let k = want.k;
    let shape = kernel_shape(shape);
    let backend = Backend::active();
    // What is looked at of each part: all, of which a bitmap leaves some, or what a filter leaves, packed for itself.
    let looked: Vec<(BlocksRef, Option<&[u64]>)> = parts
        .iter()
        .map(|part| match part.only.map(Selection::only) {
            None => (part.blocks.view(), None),
            Some(Only::Ranks(bits)) => (part.blocks.view(), Some(bits)),
            Some(Only::These(some)) => (some, None),
        })
        .collect();
    let documents: usize = looked.iter().map(|(view, _)| view.len()).sum();
    // Work in codes to look at. Waking the other threads, on a busy machine, takes longer than a small scan.
    let threads = rayon::current_num_threads();
    let parallel = |codes: usize| codes > SERIAL && threads > 1;
    let many = tables.len() > 1 && parallel(documents.saturating_mul(tables.len()));
    let queries: Vec<Query> = map(many, tables, |t| Query::new(shape, t.values()));
    let plans: Vec<Plan> = parts.iter().map(Part::untouched).collect();
    // Distances are below infinity, and a distance of minus zero is one of zero.
    let within = want.within.unwrap_or(f32::INFINITY) + 0.0;
    let progress: Vec<Progress> = tables
        .iter()
        .map(|_| Progress {
            ceiling: AtomicU32::new(within.to_bits()),
            found: Mutex::default(),
            plans: Mutex::new(plans.clone()),
        })
        .collect();
    // Where each part's order begins: within a part ranks rise with sequences.
    let firsts: Vec<Option<Neighbour>> = parts.iter().map(|p| want.after.map(|after| p.first_after(after))).collect();
    let collector = |q: usize, p: usize| {
        let best = TopK::below(k, progress[q].ceiling());
        match firsts[p] {
            Some(first) => best.starting(first),
            None => best,
        }
    };
    let numbers: Vec<usize> = (0..queries.len()).collect();

    // The largest part first: it gives the others the best limit.
    let mut by_size: Vec<usize> = (0..parts.len()).collect();
    by_size.sort_by_key(|&p| std::cmp::Reverse(looked[p].0.len()));
    for p in by_size {
        let part = &parts[p];
        let (view, filter) = looked[p];
        // The order within one part is that of the ranks; the column need not be asked.
        let sequence = |rank: u32| if parts.len() == 1 { u64::from(rank) } else { (part.sequence)(rank) };

        // What each query does here: nothing more, look at so many documents alone, or go with others.
        let pruned = if tables.len() < 4 { PRUNED } else { PRUNED_IN_TILE } * view.len() as f64;
        let choices: Vec<Choice> = map(many, &numbers, |&q| {
            let (query, progress) = (&queries[q], &progress[q]);
            if scan::lists_codes(&view) {
                // A code visited costs what passing over 500 documents costs.
                let mut best = collector(q, p);
                let most = view.len() / 512 + 256;
                if scan::nearest_by_code(&view, query, &mut best, filter, most) {
                    progress.goes(p, Way::PostingLists);
                    progress.take(k, p, best, &sequence);
                    return Choice::Done;
                }
                best.settle();
                progress.lower(best.limit());
                progress.spend(p, best.effort());
            }
            let known = progress.ceiling() < within;
            let sample = if known { None } else { scan::Sample::new(backend, &view, query, collector(q, p), filter) };
            let prefixes = || scan::Prefixes::new(backend, &view, query, progress.ceiling());
            let Some(mut sample) = sample else { return Choice::of(prefixes(), pruned) };
            progress.lower(sample.limit());
            let mut found = prefixes();
            let cost = found.as_ref().map_or(view.len(), scan::Prefixes::cost) as f64;
            if cost >= DEEPER * view.len() as f64 || cost >= pruned {
                sample.deepen();
                progress.lower(sample.limit());
                // Where all pass, a somewhat nearer limit will not change that for tiles.
                if cost < view.len() as f64 || pruned > cost {
                    found = prefixes();
                }
            }
            progress.spend(p, sample.effort());
            Choice::of(found, pruned)
        });

        let alone: Vec<(usize, &scan::Prefixes)> = numbers
            .iter()
            .filter_map(
                |&q| if let Choice::Alone(prefixes) = &choices[q] { Some((q, prefixes.as_ref())) } else { None },
            )
            .collect();
        each(many && alone.len() > 1, &alone, |&(q, prefixes)| {
            progress[q].goes(p, Way::Prefixes);
            // One share, unless this query alone must keep the cores busy.
            // Several a thread, since first bytes differ in what lies under them.
            let shares = if alone.len() < threads && prefixes.cost() > SERIAL { 4 * threads } else { 1 };
            let numbers: Vec<usize> = (0..shares).collect();
            each(shares > 1, &numbers, |&share| {
                let mut best = collector(q, p);
                prefixes.nearest((share, shares), &mut best, filter);
                progress[q].take(k, p, best, &sequence);
            });
        });

        let together: Vec<usize> =
            numbers.iter().copied().filter(|&q| matches!(choices[q], Choice::Together)).collect();
        let unit = positions_of(shape, UNIT);
        let starts: Vec<usize> = (0..view.len()).step_by(unit).collect();
        let spread = parallel(view.len().saturating_mul(together.len()));
        // Groups as large as leave every thread one, in whole tiles.
        let group = together.len().div_ceil(threads).next_multiple_of(4).clamp(1, GROUP);
        let groups: Vec<&[usize]> = together.chunks(group).collect();
        each(spread, &starts, |&start| {
            let range = start..(start + unit).min(view.len());
            each(spread, &groups, |group| {
                let mut best: Vec<TopK> = group.iter().map(|&q| collector(q, p)).collect();
                let queries: Vec<&Query> = group.iter().map(|&q| &queries[q]).collect();
                scan::nearest(backend, &view, range.clone(), &queries, &mut best, filter);
                for (&q, best) in group.iter().zip(best) {
                    progress[q].take(k, p, best, &sequence);
                }
            });
        });
    }

    let answer = |progress: Progress| {
        let mut found = progress.found.into_inner().expect("no thread panics while it holds this");
        found.sort_unstable_by(order);
        found.truncate(k);
        if let [part] = parts {
            found.iter_mut().for_each(|f| f.sequence = (part.sequence)(f.rank));
        }
        (found, progress.plans.into_inner().expect("no thread panics while it holds this"))
    };
    progress.into_iter().map(answer).collect()
}

/// What is left to do for a query in a part.
enum Choice<'a> {
    Done,
    /// To look at the documents under these.
    Alone(Box<scan::Prefixes<'a>>),
    Together,
}

impl<'a> Choice<'a> {
    /// Alone where that costs less than `most`.
    fn of(prefixes: Option<scan::Prefixes<'a>>, most: f64) -> Choice<'a> {
        let cheap = prefixes.filter(|prefixes| (prefixes.cost() as f64) < most);
        cheap.map_or(Choice::Together, |prefixes| Choice::Alone(Box::new(prefixes)))
    }
}

fn each<T: Sync>(parallel: bool, items: &[T], work: impl Fn(&T) + Sync + Send) {
    if parallel { items.par_iter().for_each(work) } else { items.iter().for_each(work) }
}

fn map<T: Sync, U: Send>(parallel: bool, items: &[T], work: impl Fn(&T) -> U + Sync + Send) -> Vec<U> {
    if parallel { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}
