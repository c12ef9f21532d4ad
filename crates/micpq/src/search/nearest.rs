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
const PRUNED: f64 = 0.5;

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
    let queries: Vec<Query> = tables.par_iter().map(|t| Query::new(shape, t.values())).collect();
    let progress: Vec<Progress> = tables
        .iter()
        .map(|_| Progress { ceiling: AtomicU32::new(f32::INFINITY.to_bits()), found: Mutex::default() })
        .collect();

    // A first ceiling, from the most promising documents of the largest part.
    if let Some(largest) = parts.iter().max_by_key(|p| p.blocks.len()) {
        queries.par_iter().zip(&progress).for_each(|(query, progress)| {
            progress.lower(scan::ceiling(&largest.blocks.view(), query, k, largest.filter));
        });
    }

    for (p, part) in parts.iter().enumerate() {
        let view = part.blocks.view();
        let passing: Vec<usize> = queries
            .par_iter()
            .zip(&progress)
            .map(|(query, progress)| scan::passing(&view, query, progress.ceiling()))
            .collect();
        let (alone, together): (Vec<usize>, Vec<usize>) =
            (0..queries.len()).partition(|&q| (passing[q] as f64) < PRUNED * view.len() as f64);

        alone.par_iter().for_each(|&q| {
            let ranges = split(view.len(), passing[q], alone.len());
            ranges.into_par_iter().for_each(|range| {
                let mut best = TopK::below(k, progress[q].ceiling());
                scan::nearest_by_prefix(backend, &view, range, &queries[q], &mut best, part.filter);
                progress[q].take(k, p, best, part.sequence);
            });
        });

        let unit = positions_of(shape, UNIT);
        let starts: Vec<usize> = (0..view.len()).step_by(unit).collect();
        // Groups as large as leave every thread one, in whole tiles.
        let group = together.len().div_ceil(rayon::current_num_threads()).next_multiple_of(4).min(GROUP);
        starts.par_iter().for_each(|&start| {
            let range = start..(start + unit).min(view.len());
            together.par_chunks(group.max(1)).for_each(|group| {
                let mut best: Vec<TopK> = group.iter().map(|&q| TopK::below(k, progress[q].ceiling())).collect();
                let queries: Vec<&Query> = group.iter().map(|&q| &queries[q]).collect();
                scan::nearest(backend, &view, range.clone(), &queries, &mut best, part.filter);
                for (&q, best) in group.iter().zip(best) {
                    progress[q].take(k, p, best, part.sequence);
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
    // Below a million documents the scan takes less than waking the other threads gains.
    let pieces = if queries < threads && passing > 1 << 20 { threads } else { 1 };
    (0..pieces).map(|i| i * len / pieces..(i + 1) * len / pieces).collect()
}
