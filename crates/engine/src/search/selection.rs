//! Selected documents of a segment: those that match a filter, or those that are not deleted.

use std::borrow::Cow;

use kernels::scan::{self, BlocksRef, Shape};

use super::codes::CodeBlocks;

/// When at most one document in 32 is selected, the selected codes are packed into blocks of their own. Their scan then costs
/// as much as an index of so many documents, and their codes are a few bytes each. With more, all blocks are scanned and the
/// bitmap is tested for the documents that pass.
const FEW: usize = 32;

/// The documents of a segment that may be found, in the form the scan reads.
#[derive(Clone, Debug)]
pub(crate) struct Selection<'a> {
    count: usize,
    kind: Kind<'a>,
}

#[derive(Clone, Debug)]
enum Kind<'a> {
    Few(Gathered),
    /// A bitmap over ranks.
    Many(Cow<'a, [u64]>),
}

/// The blocks that the scan reads.
#[derive(Clone, Copy)]
pub(super) enum Only<'a> {
    /// Only these documents. Keys are the segment's ranks.
    These(BlocksRef<'a>),
    /// Every block, with a bitmap that is tested for the documents that pass.
    Ranks(&'a [u64]),
}

/// Codes of some documents, packed like those of a segment: sorted, with a directory of prefixes.
#[derive(Clone, Debug)]
struct Gathered {
    shape: Shape,
    blocks: Vec<u8>,
    ranks: Vec<[u8; 4]>,
    starts: Vec<[u8; 4]>,
}

impl Gathered {
    /// The documents at these positions, in rising order.
    fn new(from: &BlocksRef, positions: &[u32]) -> Gathered {
        let (shape, len) = (from.shape(), positions.len());
        let blocks = scan::gather(from, positions);
        let ranks = positions.iter().map(|&position| from.key(position as usize).to_le_bytes()).collect();
        let starts = scan::prefix_starts(shape, &blocks, len, scan::prefix_bits(shape, len));
        Gathered { shape, blocks, ranks, starts }
    }

    fn view(&self) -> BlocksRef<'_> {
        BlocksRef::new(self.shape, self.ranks.len(), &self.blocks, &self.ranks, &self.starts)
    }
}

impl<'a> Selection<'a> {
    /// The documents whose number's bit is set. Bits after the last document are ignored.
    ///
    /// # Panics
    /// When the bitmap ends before the last document.
    pub fn new(blocks: &CodeBlocks, numbers: &'a [u64]) -> Selection<'a> {
        assert!(numbers.len() >= blocks.len().div_ceil(64), "a bit for every document");
        let numbers = &numbers[..blocks.len().div_ceil(64)];
        let beyond = match (blocks.len() % 64, numbers.last()) {
            (1.., Some(last)) => (last >> (blocks.len() % 64)).count_ones() as usize,
            _ => 0,
        };
        let count = numbers.iter().map(|limb| limb.count_ones() as usize).sum::<usize>() - beyond;
        let kind = if count <= blocks.len() / FEW {
            Kind::Few(Gathered::new(&blocks.view(), &blocks.positions(numbers)))
        } else {
            Kind::Many(blocks.by_rank(numbers))
        };
        Selection { count, kind }
    }

    pub fn into_owned(self) -> Selection<'static> {
        let kind = match self.kind {
            Kind::Few(gathered) => Kind::Few(gathered),
            Kind::Many(ranks) => Kind::Many(Cow::Owned(ranks.into_owned())),
        };
        Selection { count: self.count, kind }
    }

    /// The selected documents for which `stays` holds. It takes a document's number.
    pub fn retained(&self, blocks: &CodeBlocks, stays: impl Fn(u32) -> bool) -> Selection<'static> {
        let mut count = 0;
        let mut check = |rank: u32| {
            let stays = stays(blocks.number(rank));
            count += usize::from(stays);
            stays
        };
        let kind = match &self.kind {
            Kind::Few(gathered) => {
                let view = gathered.view();
                let left: Vec<u32> = (0..view.len() as u32).filter(|&at| check(view.key(at as usize))).collect();
                Kind::Few(Gathered::new(&view, &left))
            }
            Kind::Many(ranks) => {
                let limb = |(i, &limb): (usize, &u64)| {
                    let ranks = bits(limb).take_while(|&bit| i * 64 + (bit as usize) < blocks.len());
                    let left = ranks.filter(|&bit| check(i as u32 * 64 + bit));
                    left.fold(0u64, |limb, bit| limb | 1 << bit)
                };
                Kind::Many(ranks.iter().enumerate().map(limb).collect())
            }
        };
        Selection { count, kind }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether they are so few that only their own blocks are scanned.
    pub fn is_few(&self) -> bool {
        matches!(self.kind, Kind::Few(_))
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Few(Gathered { blocks, ranks, starts, .. }) => blocks.len() + 4 * (ranks.len() + starts.len()),
            Kind::Many(ranks) => size_of_val(ranks.as_ref()),
        }
    }

    pub(super) fn only(&self) -> Only<'_> {
        match &self.kind {
            Kind::Few(gathered) => Only::These(gathered.view()),
            Kind::Many(ranks) => Only::Ranks(ranks),
        }
    }
}

/// Numbers of the set bits, in rising order.
pub(super) fn bits(limb: u64) -> impl Iterator<Item = u32> {
    let next = |w: &u64| (w & (w - 1) != 0).then_some(w & (w - 1));
    std::iter::successors((limb != 0).then_some(limb), next).map(u64::trailing_zeros)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use kernels::dropout::mix;
    use proptest::prelude::*;

    use super::*;
    use crate::model::CodeShape;

    /// The numbers of all selected documents, in either form.
    fn numbers(blocks: &CodeBlocks, selection: &Selection) -> Vec<u32> {
        let mut numbers: Vec<u32> = match selection.only() {
            Only::These(some) => {
                // Every document with its own code, in the order of codes and then of ranks.
                let all: HashMap<u32, Vec<u8>> = blocks.iter().collect();
                let own = |at: usize| (some.code(at), some.key(at));
                assert!((1..some.len()).all(|at| own(at - 1) < own(at)));
                (0..some.len()).for_each(|at| assert_eq!(all[&blocks.number(some.key(at))], some.code(at)));
                (0..some.len()).map(|at| blocks.number(some.key(at))).collect()
            }
            Only::Ranks(ranks) => (0..blocks.len() as u32)
                .filter(|&rank| ranks[rank as usize / 64] >> (rank % 64) & 1 == 1)
                .map(|rank| blocks.number(rank))
                .collect(),
        };
        numbers.sort_unstable();
        numbers
    }

    proptest! {
        /// Few or many, numbered or not, with many equal codes.
        #[test]
        fn selection_holds_exactly_the_documents_whose_bits_are_set(
            seed in any::<u64>(), n in 1usize..3000, share in 1u64..400, numbered in any::<bool>(), distinct in 1u64..300,
        ) {
            let shape = CodeShape::new(6, 16, 4).unwrap();
            let mut codes = vec![0; n * 3];
            for (i, code) in codes.chunks_exact_mut(3).enumerate() {
                code.copy_from_slice(&mix(seed, mix(3, i as u64) % distinct).to_le_bytes()[..3]);
            }
            let mut order: Vec<u32> = (0..n as u32).collect();
            order.sort_by_key(|&i| mix(mix(seed, 9), u64::from(i)));
            let blocks = CodeBlocks::build(shape, [0; 16], &codes, numbered.then_some(&order));
            for round in 0..3 {
                let is_set = |i: u32| mix(mix(seed, round), u64::from(i)).is_multiple_of(share);
                let mut set = vec![0u64; n.div_ceil(64)];
                (0..n as u32).filter(|&i| is_set(i)).for_each(|i| set[i as usize / 64] |= 1 << (i % 64));
                if n % 64 != 0 {
                    set[n / 64] |= u64::MAX << (n % 64);
                }
                let expected: Vec<u32> = (0..n as u32).filter(|&i| is_set(i)).collect();
                let selection = Selection::new(&blocks, &set);
                prop_assert_eq!(selection.count(), expected.len());
                prop_assert_eq!(numbers(&blocks, &selection), expected.clone());
                let stays = |i: u32| !mix(seed ^ 77, u64::from(i)).is_multiple_of(3);
                let left = selection.retained(&blocks, stays);
                let expected: Vec<u32> = expected.into_iter().filter(|&i| stays(i)).collect();
                prop_assert_eq!(left.count(), expected.len());
                prop_assert_eq!(numbers(&blocks, &left), expected);
            }
        }
    }
}
