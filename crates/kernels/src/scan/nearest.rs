//! The scan of blocks by tiles of queries; a tile reads every block once.

use std::ops::Range;

use super::bound::{Query, Scan};
use super::find::{BlockList, Tile, find};
use super::layout::{BLOCK, BlockLanes, BlocksRef, lanes};
use super::topk::{Effort, TopK};
use crate::Backend;

/// Offers the documents at `positions` to each query's collector. `filter`, a bitmap over keys, excludes the documents whose
/// bit is not set.
///
/// Queries are scanned in tiles of four that share the loads of a block. Every collector ends with the result of brute force
/// over these documents.
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
    assert_eq!(queries.len(), best.len(), "one collector per query");
    assert!(queries.iter().all(|q| q.shape() == blocks.shape()), "queries and blocks of one shape");
    assert!(positions.end <= blocks.len(), "positions {positions:?} of {} documents", blocks.len());
    if positions.is_empty() {
        return;
    }
    let mut scans: Vec<Scan> = queries.iter().zip(best).map(|(query, best)| Scan::new(backend, query, best)).collect();
    let range = positions.start / BLOCK..positions.end.div_ceil(BLOCK);
    let inside = |block: usize| lanes(block, &positions);
    scan_in_tiles(backend, blocks, BlockList::All, range, inside, &mut scans, filter);
    scans.iter_mut().for_each(|scan| scan.finish(blocks));
}

/// Scans the documents at `positions` for one query. Some may stay pending.
pub(super) fn scan_range(
    backend: Backend,
    blocks: &BlocksRef,
    positions: Range<usize>,
    scan: &mut Scan,
    filter: Option<&[u64]>,
) {
    let range = positions.start / BLOCK..positions.end.div_ceil(BLOCK);
    let inside = |block: usize| lanes(block, &positions);
    scan_tile(backend, blocks, BlockList::All, range, &inside, std::array::from_mut(scan), filter);
}

/// Scans selected documents for one query. Some may stay pending.
pub(super) fn scan_selected(
    backend: Backend,
    blocks: &BlocksRef,
    selected: &[BlockLanes],
    scan: &mut Scan,
    filter: Option<&[u64]>,
) {
    let lanes = |entry: usize| selected[entry].lanes;
    let scan = std::array::from_mut(scan);
    scan_tile(backend, blocks, BlockList::Selected(selected), 0..selected.len(), &lanes, scan, filter);
}

/// Blocks selected before a scan of them: enough to hide the call, few enough that the threshold stays current.
pub(super) const SELECTED_BLOCKS: usize = 64;

/// Tiles of four queries, then of two, then of one.
fn scan_in_tiles(
    backend: Backend,
    blocks: &BlocksRef,
    list: BlockList,
    range: Range<usize>,
    lanes: impl Fn(usize) -> u32,
    scans: &mut [Scan],
    filter: Option<&[u64]>,
) {
    let (fours, rest) = scans.as_chunks_mut::<4>();
    fours.iter_mut().for_each(|tile| scan_tile(backend, blocks, list, range.clone(), &lanes, tile, filter));
    let (pairs, rest) = rest.as_chunks_mut::<2>();
    pairs.iter_mut().for_each(|tile| scan_tile(backend, blocks, list, range.clone(), &lanes, tile, filter));
    let (ones, _) = rest.as_chunks_mut::<1>();
    ones.iter_mut().for_each(|tile| scan_tile(backend, blocks, list, range.clone(), &lanes, tile, filter));
}

/// Scans the blocks of every entry of `range`; `lanes` gives an entry's documents. Some documents may stay pending.
fn scan_tile<const Q: usize>(
    backend: Backend,
    blocks: &BlocksRef,
    list: BlockList,
    range: Range<usize>,
    lanes: &impl Fn(usize) -> u32,
    scans: &mut [Scan; Q],
    filter: Option<&[u64]>,
) {
    let Range { start: mut from, end: to } = range;
    let mut matches = [(0, [0; Q]); MAX_MATCHES];
    scans.iter_mut().for_each(|s| s.best.add_effort(Effort { blocks: to - from, measured: 0 }));
    while from < to {
        let tile: Tile<Q> = Tile {
            tables: std::array::from_fn(|q| scans[q].bound.tables.as_slice()),
            thresholds: std::array::from_fn(|q| scans[q].bound.threshold),
        };
        let count;
        (count, from) = find(backend, blocks.shape(), blocks.bytes(), &tile, list, from..to, &mut matches);
        for (entry, masks) in &matches[..count] {
            let (block, inside) = (list.block(*entry), lanes(*entry));
            for (scan, mask) in scans.iter_mut().zip(masks) {
                if mask & inside != 0 {
                    scan.take(blocks, block, mask & inside, filter);
                }
            }
        }
    }
}

/// Matching blocks collected before their documents are summed. More would keep the loop in registers longer, with staler
/// thresholds.
const MAX_MATCHES: usize = 16;
