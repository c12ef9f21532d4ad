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
    let (fours, rest) = scans.as_chunks_mut::<4>();
    fours.iter_mut().for_each(|tile| sweep(backend, blocks, positions.clone(), tile, filter));
    let (pairs, rest) = rest.as_chunks_mut::<2>();
    pairs.iter_mut().for_each(|tile| sweep(backend, blocks, positions.clone(), tile, filter));
    let (ones, _) = rest.as_chunks_mut::<1>();
    ones.iter_mut().for_each(|tile| sweep(backend, blocks, positions.clone(), tile, filter));
    scans.iter_mut().for_each(|scan| scan.finish(blocks));
}

/// Offers only the documents of `members`, a bitmap over positions of one word a block: what a selective filter leaves
/// is looked at alone.
///
/// # Panics
/// When a query has another shape, or the bitmap is not one word a block.
pub fn nearest_among(backend: Backend, blocks: &BlocksRef, members: &[u32], query: &Query, best: &mut TopK) {
    assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
    assert_eq!(members.len(), blocks.len().div_ceil(BLOCK), "a word of members a block");
    let inside = |block: usize| lanes(block, &(0..blocks.len()));
    let mut scan = Scan::new(backend, query, best);
    let mut spots = Vec::with_capacity(AT_ONCE);
    for (block, &word) in members.iter().enumerate() {
        if word & inside(block) == 0 {
            continue;
        }
        spots.push(Spot { block: block as u32, lanes: word & inside(block) });
        if spots.len() == AT_ONCE {
            visit(backend, blocks, &spots, &mut scan, None);
            spots.clear();
        }
    }
    visit(backend, blocks, &spots, &mut scan, None);
    scan.finish(blocks);
}

/// Spots set down before they are visited: enough to hide the call, few enough for a fresh threshold.
pub(super) const AT_ONCE: usize = 64;

/// Looks at every block of `positions`. Some documents may be left waiting.
fn sweep<const Q: usize>(
    backend: Backend,
    blocks: &BlocksRef,
    positions: Range<usize>,
    scans: &mut [Scan; Q],
    filter: Option<&[u64]>,
) {
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
        (count, from) = find(backend, blocks.shape(), blocks.bytes(), &tile, Places::All, from..to, &mut found);
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

/// Looks at chosen documents for one query. Some may be left waiting.
pub(super) fn visit(backend: Backend, blocks: &BlocksRef, spots: &[Spot], scan: &mut Scan, filter: Option<&[u64]>) {
    let mut from = 0;
    let mut found = [(0, [0]); FOUND];
    scan.best.spend(Effort { blocks: spots.len(), measured: 0 });
    while from < spots.len() {
        let tile = Tile { tables: [scan.bound.tables.as_slice()], thresholds: [scan.bound.threshold] };
        let places = Places::Chosen(spots);
        let count;
        (count, from) = find(backend, blocks.shape(), blocks.bytes(), &tile, places, from..spots.len(), &mut found);
        for &(place, [mask]) in &found[..count] {
            let Spot { block, lanes } = spots[place];
            if mask & lanes != 0 {
                scan.take(blocks, block as usize, mask & lanes, filter);
            }
        }
    }
}

/// Blocks looked for before their documents are summed. More would keep the loop in its registers longer, and the
/// thresholds behind the times.
const FOUND: usize = 16;
