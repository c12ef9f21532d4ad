//! What the sorted order is good for: the first two bytes of a code bound its distance, so that whole prefixes are
//! passed over unseen, and the most promising ones are looked at first.

use super::bound::{Bound, Query, Scan};
use super::find::at_most;
use super::layout::{BlocksRef, set_down};
use super::nearest::{AT_ONCE, nearest, visit};
use super::pairs::Levels;
use super::topk::TopK;
use crate::Backend;

/// The least sums of bytes under each value of the two levels, at the present scale.
struct Sums {
    levels: Levels,
    first: Vec<u8>,
    // Values beyond the level's last are never asked for.
    second: [u8; 256],
}

impl Sums {
    fn of(bound: &Bound, query: &Query, levels: Levels) -> Sums {
        let mut second = [0; 256];
        if levels.second > 1 {
            let sums = Levels::fold(bound.byte_sums(query, 1), levels.second, u8::min);
            second[..levels.second].copy_from_slice(&sums);
        }
        Sums { levels, first: Levels::fold(bound.byte_sums(query, 0), levels.first, u8::min), second }
    }

    /// The second values under `first` whose sum is at most the threshold, a bit each.
    fn passing(&self, backend: Backend, first: usize, threshold: u8) -> [u64; 4] {
        let Some(room) = threshold.checked_sub(self.first[first]) else { return [0; 4] };
        let mut masks = at_most(backend, &self.second, room);
        for (i, mask) in masks.iter_mut().enumerate() {
            let inside = self.levels.second.saturating_sub(64 * i);
            if inside < 64 {
                *mask &= (1 << inside) - 1;
            }
        }
        masks
    }
}

/// About how many documents lie under prefixes that a limit does not rule out: the share by which a caller chooses
/// between [`nearest_by_prefix`] and [`nearest`]. Documents of one first byte are taken to be spread evenly.
pub fn passing(backend: Backend, blocks: &BlocksRef, query: &Query, limit: f32) -> usize {
    assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
    let Some(levels) = Levels::of(blocks.prefix_bits()) else { return blocks.len() };
    let mut bound = Bound::open(query);
    bound.tighten(query, limit);
    let sums = Sums::of(&bound, query, levels);
    let coarse = Levels::of(levels.bits.min(8)).expect("a directory");
    let documents = |first: usize| {
        let masks = sums.passing(backend, first, bound.threshold);
        let passing: u32 = masks.iter().map(|m| m.count_ones()).sum();
        blocks.bucket(coarse.bits, first).len() * passing as usize / levels.second
    };
    (0..levels.first).map(documents).sum()
}

/// As [`nearest`] for one query, but only prefixes the limit does not rule out are looked at, those with the best first
/// byte first. Of `shares` callers that divide the documents, this is number `share`.
///
/// # Panics
/// As [`nearest`], or when there is no such share.
pub fn nearest_by_prefix(
    backend: Backend,
    blocks: &BlocksRef,
    (share, shares): (usize, usize),
    query: &Query,
    best: &mut TopK,
    filter: Option<&[u64]>,
) {
    assert_eq!(query.shape(), blocks.shape(), "queries and blocks of one shape");
    assert!(share < shares, "share {share} of {shares}");
    let Some(levels) = Levels::of(blocks.prefix_bits()) else {
        let part = share * blocks.len() / shares..(share + 1) * blocks.len() / shares;
        return nearest(backend, blocks, part, &[query], std::slice::from_mut(best), filter);
    };
    let exact = Levels::fold(query.byte_excess(0), levels.first, f64::min);
    let mut order: Vec<usize> = (0..levels.first).collect();
    order.sort_unstable_by_key(|&i| (exact[i].to_bits(), i));
    let mut scan = Scan::new(backend, query, best);
    let mut sums = Sums::of(&scan.bound, query, levels);
    let mut spots = Vec::with_capacity(4 * AT_ONCE);
    for first in order.into_iter().skip(share).step_by(shares) {
        let masks = sums.passing(backend, first, scan.bound.threshold);
        for (word, mut mask) in masks.into_iter().enumerate() {
            while mask != 0 {
                // Neighbouring prefixes that pass are one run of positions.
                let begin = mask.trailing_zeros();
                let count = (!(mask >> begin)).trailing_zeros();
                mask &= (u64::MAX << begin).checked_shl(count).unwrap_or(0);
                let prefix = first * levels.second + word * 64 + begin as usize;
                let (one, last) = (blocks.bucket(levels.bits, prefix), prefix + count as usize - 1);
                set_down(one.start..blocks.bucket(levels.bits, last).end, &mut spots);
            }
        }
        if spots.len() >= AT_ONCE {
            let scale = scan.bound.scale();
            visit(backend, blocks, &spots, &mut scan, filter);
            spots.clear();
            if scan.bound.scale() != scale {
                sums = Sums::of(&scan.bound, query, levels);
            }
        }
    }
    visit(backend, blocks, &spots, &mut scan, filter);
    scan.finish(blocks);
}
