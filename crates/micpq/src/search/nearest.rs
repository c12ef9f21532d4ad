//! Many queries over many parts on all cores.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use kernels::Backend;
use kernels::scan::{self, Query, TopK};
use rayon::prelude::*;

use super::codes::{CodeBlocks, kernel_shape, positions_of};
use crate::model::{CodeShape, Table};
use crate::{Error, Result};

/// Some of the documents: a segment of an index, or all codes in memory.
pub(crate) struct Part<'a> {
    pub blocks: &'a CodeBlocks,
    /// A bitmap over ranks; only documents whose bit is set are found.
    pub filter: Option<&'a [u64]>,
    /// The insertion sequence of a rank, by which equal distances of different parts are ordered. Rising with the rank.
    pub sequence: &'a (dyn Fn(u32) -> u64 + Sync),
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

/// Share of documents under passing prefixes below which a query is scanned alone, prefix by prefix.
const PRUNED: f64 = 0.75;

/// Codes below which one thread does all the work: about a fifth of a millisecond of it.
const SERIAL: usize = 1 << 20;

/// What the threads know of one query together.
struct Progress {
    /// Bits of a distance that `k` documents do not exceed. Distances are not negative, so their bits compare alike.
    ceiling: AtomicU32,
    found: Mutex<Vec<Found>>,
}

impl Progress {
    fn ceiling(&self) -> f32 {
        f32::from_bits(self.ceiling.load(Ordering::Relaxed))
    }

    fn lower(&self, distance: f32) {
        self.ceiling.fetch_min(distance.to_bits(), Ordering::Relaxed);
    }

    fn take(&self, k: usize, part: usize, best: TopK, sequence: &(dyn Fn(u32) -> u64 + Sync)) {
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
        if found.len() > k.saturating_mul(2) {
            keep_best(&mut found, k);
            self.lower(found[k - 1].distance);
        }
    }
}

fn keep_best(found: &mut Vec<Found>, k: usize) {
    let order = |a: &Found, b: &Found| a.distance.total_cmp(&b.distance).then(a.sequence.cmp(&b.sequence));
    found.sort_unstable_by(order);
    found.truncate(k);
}

/// Refuses what cannot be searched for.
pub(crate) fn check(shape: CodeShape, tables: &[Table], k: usize) -> Result<()> {
    if k == 0 {
        return Err(Error::config("k is 0; ask for at least one neighbour"));
    }
    for (i, table) in tables.iter().enumerate() {
        if table.shape() != shape {
            return Err(Error::config(format!(
                "query {i} measures codes of {:?}, these are of {shape:?}; make it with the model of these codes",
                table.shape()
            )));
        }
        if let Some(v) = table.values().iter().find(|v| !v.is_finite() || **v < 0.0) {
            return Err(Error::config(format!(
                "query {i} has a distance of {v} to a codeword: its vector holds a value that is not a finite number"
            )));
        }
    }
    Ok(())
}

/// The `k` nearest documents of every query over all parts, best first. The result is that of brute force, whatever
/// the number of threads: the order of documents is total, and a limit only passes over what lies beyond it.
///
/// [`check`] must have let shape, tables and `k` pass.
pub(crate) fn nearest(shape: CodeShape, parts: &[Part], tables: &[Table], k: usize) -> Vec<Vec<Found>> {
    let shape = kernel_shape(shape);
    let backend = Backend::active();
    let documents: usize = parts.iter().map(|p| p.blocks.len()).sum();
    // Work in codes to look at. Waking the other threads, on a busy machine, takes longer than a small scan.
    let parallel = |codes: usize| codes > SERIAL && rayon::current_num_threads() > 1;
    let many = tables.len() > 1 && parallel(documents.saturating_mul(tables.len()));
    let queries: Vec<Query> = map(many, tables, |t| Query::new(shape, t.values()));
    let progress: Vec<Progress> = tables
        .iter()
        .map(|_| Progress { ceiling: AtomicU32::new(f32::INFINITY.to_bits()), found: Mutex::default() })
        .collect();
    let numbers: Vec<usize> = (0..queries.len()).collect();

    // A first ceiling, from the most promising documents of the largest part.
    if let Some(largest) = parts.iter().max_by_key(|p| p.blocks.len()) {
        each(many, &numbers, |&q| {
            progress[q].lower(scan::ceiling(backend, &largest.blocks.view(), &queries[q], k, largest.filter));
        });
    }

    for (p, part) in parts.iter().enumerate() {
        let view = part.blocks.view();
        // The order within one part is that of the ranks; the column need not be asked.
        let sequence = |rank: u32| if parts.len() == 1 { u64::from(rank) } else { (part.sequence)(rank) };
        let passing = map(many, &numbers, |&q| scan::passing(&view, &queries[q], progress[q].ceiling()));
        let (alone, together): (Vec<usize>, Vec<usize>) =
            numbers.iter().partition(|&&q| (passing[q] as f64) < PRUNED * view.len() as f64);

        each(many && alone.len() > 1, &alone, |&q| {
            let ranges = split(view.len(), passing[q], alone.len());
            each(ranges.len() > 1, &ranges, |range| {
                let mut best = TopK::below(k, progress[q].ceiling());
                scan::nearest_by_prefix(backend, &view, range.clone(), &queries[q], &mut best, part.filter);
                progress[q].take(k, p, best, &sequence);
            });
        });

        let unit = positions_of(shape, UNIT);
        let starts: Vec<usize> = (0..view.len()).step_by(unit).collect();
        let spread = parallel(view.len().saturating_mul(together.len()));
        // Groups as large as leave every thread one, in whole tiles.
        let group = together.len().div_ceil(rayon::current_num_threads()).next_multiple_of(4).clamp(1, GROUP);
        let groups: Vec<&[usize]> = together.chunks(group).collect();
        each(spread, &starts, |&start| {
            let range = start..(start + unit).min(view.len());
            each(spread, &groups, |group| {
                let mut best: Vec<TopK> = group.iter().map(|&q| TopK::below(k, progress[q].ceiling())).collect();
                let queries: Vec<&Query> = group.iter().map(|&q| &queries[q]).collect();
                scan::nearest(backend, &view, range.clone(), &queries, &mut best, part.filter);
                for (&q, best) in group.iter().zip(best) {
                    progress[q].take(k, p, best, &sequence);
                }
            });
        });
    }

    progress
        .into_iter()
        .map(|progress| {
            let mut found = progress.found.into_inner().expect("no thread panics while it holds this");
            keep_best(&mut found, k);
            found
        })
        .collect()
}

/// Ranges of positions for one query that goes alone: one, unless it alone must keep the cores busy.
fn split(len: usize, passing: usize, queries: usize) -> Vec<Range<usize>> {
    let threads = rayon::current_num_threads();
    let pieces = if queries < threads && passing > SERIAL { threads } else { 1 };
    (0..pieces).map(|i| i * len / pieces..(i + 1) * len / pieces).collect()
}

fn each<T: Sync>(parallel: bool, items: &[T], work: impl Fn(&T) + Sync + Send) {
    if parallel { items.par_iter().for_each(work) } else { items.iter().for_each(work) }
}

fn map<T: Sync, U: Send>(parallel: bool, items: &[T], work: impl Fn(&T) -> U + Sync + Send) -> Vec<U> {
    if parallel { items.par_iter().map(work).collect() } else { items.iter().map(work).collect() }
}
