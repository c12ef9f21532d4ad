//! A few documents looked at alone: what a selective filter leaves.

use super::bound::{Query, Scan};
use super::layout::{BLOCK, BlocksRef, Spot, lanes};
use super::nearest::visit_within;
use super::pairs::Levels;
use super::topk::TopK;
use crate::Backend;

/// Offers the documents at `spots`, of which blocks rise, to the query's collector. Those with the best first byte come
/// first: in the order of codes, in which they lie, the limit would fall so late that most had to be measured. Of `shares`
/// callers that divide them, this is number `number`.
///
/// # Panics
/// When the query has another shape, blocks do not rise, a spot lies beyond the last document, or there is no such share.
pub fn nearest_among(
    backend: Backend,
    blocks: &BlocksRef,
    spots: &[Spot],
    (number, shares): (usize, usize),
    query: &Query,
    best: &mut TopK,
) {
    assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
    assert!(number < shares, "share {number} of {shares}");
    assert!(spots.is_sorted_by(|a, b| a.block < b.block), "blocks of spots rise");
    let inside = |spot: &Spot| spot.lanes & !lanes(spot.block as usize, &(0..blocks.len())) == 0;
    assert!(spots.last().is_none_or(inside), "a spot lies beyond the last of {} documents", blocks.len());
    let mut scan = Scan::new(backend, query, best);
    match Levels::of(blocks.prefix_bits().min(8)) {
        None => {
            let part = number * blocks.len() / shares..(number + 1) * blocks.len() / shares;
            visit_within(backend, blocks, spots, &part, &mut scan);
        }
        Some(levels) => {
            let excess = Levels::fold(query.byte_excess(0), levels.first, f64::min);
            let mut order: Vec<(u64, usize)> =
                (number..levels.first).step_by(shares).map(|first| (excess[first].to_bits(), first)).collect();
            order.sort_unstable();
            for (excess, first) in order {
                if f64::from_bits(excess) > query.room(scan.best.limit()) {
                    break;
                }
                let positions = blocks.bucket(levels.bits, first);
                if positions.is_empty() {
                    continue;
                }
                let from = spots.partition_point(|spot| (spot.block as usize) < positions.start / BLOCK);
                let count = spots[from..].partition_point(|spot| spot.block as usize <= (positions.end - 1) / BLOCK);
                visit_within(backend, blocks, &spots[from..from + count], &positions, &mut scan);
            }
        }
    }
    scan.finish(blocks);
}
