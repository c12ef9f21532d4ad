//! Posting lists of codes of at most two bytes: the directory lists the documents of every code, and codes are visited in the
//! order of their distance until there are enough documents.

use super::bound::Query;
use super::layout::{BLOCK, BlocksRef};
use super::pairs::{Levels, Pairs};
use super::topk::{Effort, Neighbour, TopK};

/// Whether the directory indexes whole codes, so that it lists the documents of each code.
pub fn lists_codes(blocks: &BlocksRef) -> bool {
    blocks.prefix_bits() as usize == 8 * blocks.shape().code_bytes()
}

/// Offers documents code by code in order of distance, and stops when no further code can matter. Returns whether it got that
/// far: it gives up after `max_codes` codes, when a scan of every block costs less.
///
/// # Panics
/// When the query has another shape, the directory does not index whole codes, or the filter ends before a key.
pub fn nearest_by_code(
    blocks: &BlocksRef,
    query: &Query,
    best: &mut TopK,
    filter: Option<&[u64]>,
    max_codes: usize,
) -> bool {
    assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
    assert!(lists_codes(blocks), "a directory of whole codes");
    let Some(levels) = Levels::of(blocks.prefix_bits()) else { return false };
    let mut full = false;
    for (visited, (excess, code)) in Pairs::new(query, levels).enumerate() {
        if excess > query.max_excess(best.limit()) {
            return true;
        }
        if visited >= max_codes {
            return false;
        }
        let list = blocks.bucket(levels.bits, code);
        if list.is_empty() {
            continue;
        }
        // All documents of a code have the distance of the first.
        let offset = list.start / BLOCK * blocks.shape().block_bytes() + list.start % BLOCK;
        let [distance] = query.distances_at(blocks.bytes(), &[offset]);
        best.add_effort(Effort { blocks: 0, measured: 1 });
        // Keys rise within a code, so the loop ends at the first key that the collector rejects.
        for key in blocks.keys_of(list) {
            let neighbour = Neighbour { distance, key };
            if !best.may_keep(neighbour) {
                break;
            }
            if filter.is_none_or(|bits| bits[key as usize / 64] >> (key % 64) & 1 == 1) {
                best.push(neighbour);
            }
        }
        if !full && best.is_full() {
            full = true;
            best.settle();
        }
    }
    true
}
