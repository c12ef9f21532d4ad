//! Selected documents of a segment: those that match a filter, or those that are not deleted.

use std::borrow::Cow;

use kernels::scan::{self, BLOCK, BlocksRef, Shape};
use rayon::prelude::*;

use super::codes::{CodeBlocks, sorted};

/// When at most one document in 32 is selected, the selected codes are packed into blocks of their own. Their scan then costs
/// as much as an index of so many documents, and their codes are a few bytes each. With more, all blocks are scanned and the
/// bitmap is tested for the documents that pass.
pub(crate) const FEW: usize = 32;

/// The columns of a segment, by document number.
pub(crate) trait DocumentColumns: Sync {
    /// Bytes `8 * group ..` of each document's code, as a little-endian number.
    fn codes(&self, group: usize, documents: &[u32], values: &mut [u64]);
    fn sequences(&self, documents: &[u32], values: &mut [u64]);
}

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
    /// Only these documents. Keys are their places among the selected, in the order of insertion.
    These(BlocksRef<'a>),
    /// Every block, with a bitmap that is tested for the documents that pass.
    Ranks(&'a [u64]),
}

/// Codes of some documents, packed like those of a segment: at first in the order of insertion, which a single scan is done with
/// before they could be sorted; then sorted, with a directory of prefixes.
#[derive(Clone, Debug)]
struct Gathered {
    shape: Shape,
    /// Document numbers in the order of insertion.
    numbers: Vec<u32>,
    blocks: Vec<u8>,
    /// The place of the document at every position in the order of insertion; empty while that is the position.
    keys: Vec<[u8; 4]>,
    starts: Vec<[u8; 4]>,
}

/// Documents that are read and laid out together, and how many are worth several threads.
const BATCH: usize = 32 * BLOCK;
const MIN_PARALLEL: usize = 16 * BATCH;
/// Fewer documents than this stay as they are: all are scanned in a microsecond.
const MIN_SORTED: usize = 4096;

impl Gathered {
    /// The documents of rising numbers.
    fn new(shape: Shape, in_order: bool, mut numbers: Vec<u32>, columns: &dyn DocumentColumns) -> Gathered {
        if !in_order {
            let mut sequences = vec![0; numbers.len()];
            columns.sequences(&numbers, &mut sequences);
            let mut both: Vec<(u64, u32)> = sequences.into_iter().zip(numbers).collect();
            // A merge concatenates runs, which this sort finds.
            both.sort();
            numbers = both.into_iter().map(|(_, number)| number).collect();
        }
        let mut blocks = vec![0; shape.blocks_bytes(numbers.len())];
        let read = |(numbers, blocks): (&[u32], &mut [u8])| {
            let mut values = [0; BATCH];
            let values = &mut values[..numbers.len()];
            for group in 0..shape.code_bytes().div_ceil(8) {
                columns.codes(group, numbers, values);
                scan::lay_out(shape, group, values, blocks);
            }
        };
        let batch_bytes = shape.blocks_bytes(BATCH);
        if numbers.len() < MIN_PARALLEL {
            numbers.chunks(BATCH).zip(blocks.chunks_mut(batch_bytes)).for_each(read);
        } else {
            numbers.par_chunks(BATCH).zip(blocks.par_chunks_mut(batch_bytes)).for_each(read);
        }
        Gathered { shape, numbers, blocks, keys: Vec::new(), starts: Vec::new() }
    }

    fn is_sorted(&self) -> bool {
        !self.keys.is_empty() || self.numbers.len() < MIN_SORTED
    }

    /// The same documents, sorted by code.
    fn sorted(&self) -> Gathered {
        let view = self.view();
        let codes: Vec<u8> = (0..view.len()).flat_map(|position| view.code(position)).collect();
        self.with_positions(&view, &sorted(&codes, self.shape.code_bytes(), view.len() as u32), self.numbers.clone())
    }

    /// The documents at `positions` of these blocks, in that order, which is that of codes. `numbers` are theirs in the order of
    /// insertion, which is that of the keys at those positions.
    fn with_positions(&self, view: &BlocksRef, positions: &[u32], numbers: Vec<u32>) -> Gathered {
        let (shape, len) = (self.shape, positions.len());
        let blocks = scan::gather(view, positions);
        let mut order: Vec<(u32, u32)> = positions.iter().map(|&at| view.key(at as usize)).zip(0..).collect();
        order.sort_unstable();
        let mut keys = vec![[0; 4]; len];
        for (key, (_, position)) in order.into_iter().enumerate() {
            keys[position as usize] = (key as u32).to_le_bytes();
        }
        let starts = scan::prefix_starts(shape, &blocks, len, scan::prefix_bits(shape, len));
        Gathered { shape, numbers, blocks, keys, starts }
    }

    /// The documents for which `stays` holds.
    fn retained(&self, stays: &mut impl FnMut(u32) -> bool) -> Gathered {
        let view = self.view();
        let keep: Vec<bool> = self.numbers.iter().map(|&number| stays(number)).collect();
        let numbers = self.numbers.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(number, _)| *number).collect();
        let left: Vec<u32> = (0..view.len() as u32).filter(|&at| keep[view.key(at as usize) as usize]).collect();
        if self.keys.is_empty() {
            let blocks = scan::gather(&view, &left);
            return Gathered { shape: self.shape, numbers, blocks, keys: Vec::new(), starts: Vec::new() };
        }
        self.with_positions(&view, &left, numbers)
    }

    fn view(&self) -> BlocksRef<'_> {
        let (shape, len) = (self.shape, self.numbers.len());
        if self.keys.is_empty() {
            return BlocksRef::unsorted(shape, len, &self.blocks);
        }
        BlocksRef::new(shape, len, &self.blocks, &self.keys, &self.starts)
    }
}

impl<'a> Selection<'a> {
    /// The documents whose number's bit is set. Bits after the last document are ignored.
    ///
    /// # Panics
    /// When the bitmap ends before the last document.
    pub fn new(blocks: &CodeBlocks, numbers: &'a [u64], columns: &dyn DocumentColumns) -> Selection<'a> {
        assert!(numbers.len() >= blocks.len().div_ceil(64), "a bit for every document");
        let numbers = &numbers[..blocks.len().div_ceil(64)];
        let beyond = match (blocks.len() % 64, numbers.last()) {
            (1.., Some(last)) => (last >> (blocks.len() % 64)).count_ones() as usize,
            _ => 0,
        };
        let count = numbers.iter().map(|limb| limb.count_ones() as usize).sum::<usize>() - beyond;
        if count > blocks.len() / FEW {
            return Selection { count, kind: Kind::Many(blocks.by_rank(numbers)) };
        }
        let all = numbers.iter().enumerate().flat_map(|(i, &limb)| bits(limb).map(move |bit| i as u32 * 64 + bit));
        Selection::few(blocks, all.take(count).collect(), columns)
    }

    /// A few documents, by rising numbers.
    pub fn few(blocks: &CodeBlocks, numbers: Vec<u32>, columns: &dyn DocumentColumns) -> Selection<'static> {
        let count = numbers.len();
        let gathered = Gathered::new(blocks.view().shape(), blocks.in_rank_order(), numbers, columns);
        Selection { count, kind: Kind::Few(gathered) }
    }

    pub fn into_owned(self) -> Selection<'static> {
        let kind = match self.kind {
            Kind::Few(gathered) => Kind::Few(gathered),
            Kind::Many(ranks) => Kind::Many(Cow::Owned(ranks.into_owned())),
        };
        Selection { count: self.count, kind }
    }

    /// Whether [`Selection::sorted`] would make later scans faster.
    pub fn can_be_sorted(&self) -> bool {
        matches!(&self.kind, Kind::Few(gathered) if !gathered.is_sorted())
    }

    /// The same documents in the form that scans fastest.
    pub fn sorted(&self) -> Selection<'a> {
        let kind = match &self.kind {
            Kind::Few(gathered) => Kind::Few(gathered.sorted()),
            many @ Kind::Many(_) => many.clone(),
        };
        Selection { count: self.count, kind }
    }

    /// The selected documents for which `stays` holds. It takes a document's number.
    pub fn retained(&self, blocks: &CodeBlocks, stays: impl Fn(u32) -> bool) -> Selection<'static> {
        let mut count = 0;
        let mut check = |number: u32| {
            let stays = stays(number);
            count += usize::from(stays);
            stays
        };
        let kind = match &self.kind {
            Kind::Few(gathered) => Kind::Few(gathered.retained(&mut check)),
            Kind::Many(ranks) => {
                let limb = |(i, &limb): (usize, &u64)| {
                    let ranks = bits(limb).take_while(|&bit| i * 64 + (bit as usize) < blocks.len());
                    let left = ranks.filter(|&bit| check(blocks.number(i as u32 * 64 + bit)));
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

    /// Document numbers by key, where keys are no ranks.
    pub fn numbers(&self) -> Option<&[u32]> {
        match &self.kind {
            Kind::Few(gathered) => Some(&gathered.numbers),
            Kind::Many(_) => None,
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Few(Gathered { numbers, blocks, keys, starts, .. }) => {
                blocks.len() + 4 * (numbers.len() + keys.len() + starts.len())
            }
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

    /// Codes by number, and the order of insertion.
    struct Table<'a> {
        width: usize,
        codes: &'a [u8],
        sequences: &'a [u64],
    }

    impl DocumentColumns for Table<'_> {
        fn codes(&self, group: usize, documents: &[u32], values: &mut [u64]) {
            for (value, &number) in values.iter_mut().zip(documents) {
                let code = &self.codes[number as usize * self.width..][..self.width];
                let mut bytes = [0; 8];
                let part = &code[8 * group..self.width.min(8 * group + 8)];
                bytes[..part.len()].copy_from_slice(part);
                *value = u64::from_le_bytes(bytes);
            }
        }

        fn sequences(&self, documents: &[u32], values: &mut [u64]) {
            values.iter_mut().zip(documents).for_each(|(value, &number)| *value = self.sequences[number as usize]);
        }
    }

    /// The numbers of all selected documents, in any form.
    fn numbers(blocks: &CodeBlocks, columns: &Table, selection: &Selection) -> Vec<u32> {
        let mut numbers: Vec<u32> = match selection.only() {
            Only::These(some) => {
                // Every document with its own code, in the order of codes and then of insertion, or of insertion alone.
                let all: HashMap<u32, Vec<u8>> = blocks.iter().collect();
                let of = selection.numbers().unwrap();
                assert!(of.is_sorted_by_key(|&number| columns.sequences[number as usize]));
                let own = |at: usize| (some.code(at), some.key(at));
                let unsorted = selection.can_be_sorted() || some.len() < MIN_SORTED;
                assert!(unsorted || (1..some.len()).all(|at| own(at - 1) < own(at)));
                (0..some.len()).for_each(|at| assert_eq!(all[&of[some.key(at) as usize]], some.code(at)));
                (0..some.len()).map(|at| of[some.key(at) as usize]).collect()
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
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Few or many, numbered or not, with many equal codes.
        #[test]
        fn selection_holds_exactly_the_documents_whose_bits_are_set(
            seed in any::<u64>(), n in prop_oneof![1usize..3000, Just(300_000)], share in 1u64..400, numbered in any::<bool>(), distinct in 1u64..300,
        ) {
            let shape = CodeShape::new(6, 16, 4).unwrap();
            let mut codes = vec![0; n * 3];
            for (i, code) in codes.chunks_exact_mut(3).enumerate() {
                code.copy_from_slice(&mix(seed, mix(3, i as u64) % distinct).to_le_bytes()[..3]);
            }
            let mut order: Vec<u32> = (0..n as u32).collect();
            order.sort_by_key(|&i| mix(mix(seed, 9), u64::from(i)));
            if numbered && n > 3000 {
                // As a merge leaves them: runs that follow each other in another order.
                order.sort_unstable();
                order.rotate_left(n / 3);
            }
            let mut sequences: Vec<u64> = (0..n as u64).collect();
            let mut of_rank = codes.clone();
            if numbered {
                for (rank, &number) in order.iter().enumerate() {
                    sequences[number as usize] = rank as u64;
                    of_rank[3 * rank..3 * rank + 3].copy_from_slice(&codes[3 * number as usize..][..3]);
                }
            }
            let columns = Table { width: 3, codes: &codes, sequences: &sequences };
            let blocks = CodeBlocks::build(shape, [0; 16], &of_rank, numbered.then_some(&order));
            for round in 0..3 {
                let is_set = |i: u32| mix(mix(seed, round), u64::from(i)).is_multiple_of(share);
                let mut set = vec![0u64; n.div_ceil(64)];
                (0..n as u32).filter(|&i| is_set(i)).for_each(|i| set[i as usize / 64] |= 1 << (i % 64));
                if n % 64 != 0 {
                    set[n / 64] |= u64::MAX << (n % 64);
                }
                let expected: Vec<u32> = (0..n as u32).filter(|&i| is_set(i)).collect();
                let selection = Selection::new(&blocks, &set, &columns);
                let sorted = selection.sorted();
                prop_assert!(!sorted.can_be_sorted());
                let stays = |i: u32| !mix(seed ^ 77, u64::from(i)).is_multiple_of(3);
                let kept: Vec<u32> = expected.iter().copied().filter(|&i| stays(i)).collect();
                for selection in [selection, sorted] {
                    prop_assert_eq!(selection.count(), expected.len());
                    prop_assert_eq!(&numbers(&blocks, &columns, &selection), &expected);
                    let left = selection.retained(&blocks, stays);
                    prop_assert_eq!(left.count(), kept.len());
                    prop_assert_eq!(&numbers(&blocks, &columns, &left), &kept);
                }
            }
        }
    }
}
