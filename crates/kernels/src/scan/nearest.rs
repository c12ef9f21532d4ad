//! Tiles of queries through blocks, every block once a tile.

use std::ops::Range;

use super::bound::{Query, Scan};
use super::find::{Places, Tile, find};
use super::layout::{BLOCK, BlocksRef, Spot, lanes};
use super::topk::{Effort, TopK};
use crate::Backend;

/// Offers the documents at `positions` to each query's collector. `filter`, a bitmap over keys, leaves only the
/// documents whose bit is set.
///
/// Queries go in tiles of four that share the reading of a block. Every collector ends with what brute force over those
/// documents would leave in it.
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
    let mut scans: Vec<Scan> = queries.iter().zip(best).map(|(query, best)| Scan::new(backend, query, best)).collect();
    let range = positions.start / BLOCK..positions.end.div_ceil(BLOCK);
    let inside = |block: usize| lanes(block, &positions);
    in_tiles(backend, blocks, Places::All, range, inside, &mut scans, filter);
    scans.iter_mut().for_each(|scan| scan.finish(blocks));
}

/// Looks at the documents at `positions` for one query. Some may be left waiting.
pub(super) fn sweep(
    backend: Backend,
    blocks: &BlocksRef,
    positions: Range<usize>,
    scan: &mut Scan,
    filter: Option<&[u64]>,
) {
    let range = positions.start / BLOCK..positions.end.div_ceil(BLOCK);
    let inside = |block: usize| lanes(block, &positions);
    look(backend, blocks, Places::All, range, &inside, std::array::from_mut(scan), filter);
}

/// Looks at chosen documents for one query. Some may be left waiting.
pub(super) fn visit(backend: Backend, blocks: &BlocksRef, spots: &[Spot], scan: &mut Scan, filter: Option<&[u64]>) {
    let lanes = |place: usize| spots[place].lanes;
    let scan = std::array::from_mut(scan);
    look(backend, blocks, Places::Chosen(spots), 0..spots.len(), &lanes, scan, filter);
}

/// Spots set down before they are visited: enough to hide the call, few enough for a fresh threshold.
pub(super) const AT_ONCE: usize = 64;

/// Four queries together as long as there are so many, then two, then one.
fn in_tiles(
    backend: Backend,
    blocks: &BlocksRef,
    places: Places,
    range: Range<usize>,
    lanes: impl Fn(usize) -> u32,
    scans: &mut [Scan],
    filter: Option<&[u64]>,
) {
    let (fours, rest) = scans.as_chunks_mut::<4>();
    fours.iter_mut().for_each(|tile| look(backend, blocks, places, range.clone(), &lanes, tile, filter));
    let (pairs, rest) = rest.as_chunks_mut::<2>();
    pairs.iter_mut().for_each(|tile| look(backend, blocks, places, range.clone(), &lanes, tile, filter));
    let (ones, _) = rest.as_chunks_mut::<1>();
    ones.iter_mut().for_each(|tile| look(backend, blocks, places, range.clone(), &lanes, tile, filter));
}

/// Looks at the blocks of every place of `range`, of which `lanes` tells the documents that count. Some may be left
/// waiting.
fn look<const Q: usize>(
    backend: Backend,
    blocks: &BlocksRef,
    places: Places,
    range: Range<usize>,
    lanes: &impl Fn(usize) -> u32,
    scans: &mut [Scan; Q],
    filter: Option<&[u64]>,
) {
    let Range { start: mut from, end: to } = range;
    let mut found = [(0, [0; Q]); FOUND];
    scans.iter_mut().for_each(|s| s.best.spend(Effort { blocks: to - from, measured: 0 }));
    while from < to {
        let tile: Tile<Q> = Tile {
            tables: std::array::from_fn(|q| scans[q].bound.tables.as_slice()),
            thresholds: std::array::from_fn(|q| scans[q].bound.threshold),
        };
        let count;
        (count, from) = find(backend, blocks.shape(), blocks.bytes(), &tile, places, from..to, &mut found);
        for (place, masks) in &found[..count] {
            let (block, inside) = (places.block(*place), lanes(*place));
            for (scan, mask) in scans.iter_mut().zip(masks) {
                if mask & inside != 0 {
                    scan.take(blocks, block, mask & inside, filter);
                }
            }
        }
    }
}

/// Blocks looked for before their documents are summed. More would keep the loop in its registers longer, and the
/// thresholds behind the times.
const FOUND: usize = 16;
