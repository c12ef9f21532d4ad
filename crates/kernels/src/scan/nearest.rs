//! Tiles of queries through blocks, every block once a tile.

use std::ops::Range;

use super::bound::{Query, Scan};
use super::find::{Tile, find};
use super::layout::{BLOCK, BlocksRef};
use super::topk::{Effort, TopK};
use crate::Backend;

/// Offers the documents at `positions` to each query's collector. `filter`, a bitmap over keys, leaves only the
/// documents whose bit is set.
///
/// Queries go in tiles of four that share the reading of a block. Every collector ends with what brute force over those documents would leave in it.
///
/// # Panics
/// When the numbers of queries and collectors differ, a query has another shape, `positions` reaches beyond the blocks
/// or the filter ends before a key.
pub fn nearest(
    backend: Backend,
    blocks: &BlocksRef,
    positions: Range<usize>,
    queries: &[&Query],
    best: &mut [TopK],
    filter: Option<&[u64]>,
) {
    assert_eq!(queries.len(), best.len(), "one collector a query");
    assert!(queries.iter().all(|q| q.shape() == blocks.shape()), "queries and blocks of one shape");
    assert!(positions.end <= blocks.len(), "positions {positions:?} of {} documents", blocks.len());
    if positions.is_empty() {
        return;
    }
    if blocks.shape().words() == 256 {
        for (query, best) in queries.iter().zip(best) {
            every_block(backend, blocks, positions.clone(), query, best, filter);
        }
        return;
    }
    let mut scans: Vec<Scan> = queries.iter().zip(best).map(|(query, best)| Scan::new(backend, query, best)).collect();
    let (fours, rest) = scans.as_chunks_mut::<4>();
    fours.iter_mut().for_each(|tile| sweep(backend, blocks, positions.clone(), tile, filter));
    let (pairs, rest) = rest.as_chunks_mut::<2>();
    pairs.iter_mut().for_each(|tile| sweep(backend, blocks, positions.clone(), tile, filter));
    let (ones, _) = rest.as_chunks_mut::<1>();
    ones.iter_mut().for_each(|tile| sweep(backend, blocks, positions.clone(), tile, filter));
    scans.iter_mut().for_each(|scan| scan.finish(blocks));
}

/// Lanes of `block` that lie in `positions`.
pub(super) fn lanes(block: usize, positions: &Range<usize>) -> u32 {
    let first = block * BLOCK;
    let from = positions.start.saturating_sub(first).min(BLOCK) as u32;
    let to = positions.end.saturating_sub(first).min(BLOCK) as u32;
    // Shifts in 64 bits: 32 lanes are all of a u32.
    ((1u64 << to) - (1u64 << from.min(to))) as u32
}

fn every_block(
    backend: Backend,
    blocks: &BlocksRef,
    positions: Range<usize>,
    query: &Query,
    best: &mut TopK,
    filter: Option<&[u64]>,
) {
    let mut scan = Scan::new(backend, query, best);
    for block in positions.start / BLOCK..positions.end.div_ceil(BLOCK) {
        scan.take(blocks, block, lanes(block, &positions), filter);
    }
    scan.finish(blocks);
}

/// Looks at every block of `positions`. Some documents may be left waiting.
pub(super) fn sweep<const Q: usize>(
    backend: Backend,
    blocks: &BlocksRef,
    positions: Range<usize>,
    scans: &mut [Scan; Q],
    filter: Option<&[u64]>,
) {
    let rows = blocks.shape().code_bytes();
    let mut from = positions.start / BLOCK;
    let to = positions.end.div_ceil(BLOCK);
    let mut found = [(0, [0; Q]); FOUND];
    scans.iter_mut().for_each(|s| s.best.spend(Effort { blocks: to - from, measured: 0 }));
    while from < to {
        let tile: Tile<Q> = Tile {
            tables: std::array::from_fn(|q| scans[q].bound.tables.as_slice()),
            thresholds: std::array::from_fn(|q| scans[q].bound.threshold),
        };
        let count;
        (count, from) = find(backend, rows, blocks.bytes(), &tile, from..to, &mut found);
        for (block, masks) in &found[..count] {
            let inside = lanes(*block, &positions);
            for (scan, mask) in scans.iter_mut().zip(masks) {
                if mask & inside != 0 {
                    scan.take(blocks, *block, mask & inside, filter);
                }
            }
        }
    }
}

/// Blocks looked for before their documents are summed. More would keep the loop in its registers longer, and the
/// thresholds behind the times.
const FOUND: usize = 16;
