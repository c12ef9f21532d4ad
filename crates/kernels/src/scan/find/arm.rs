//! NEON: `tbl` looks up a nibble for sixteen documents.

use std::arch::aarch64::*;
use std::ops::Range;

use super::{BLOCK, BlockList, Match, Shape, Tile};

/// Byte sums of the 32 documents of a block.
type Sums = [uint8x16_t; 2];

/// # Safety
/// `bytes` holds the blocks of the range's entries, and the tables of `tile` have every row. NEON itself is part of every
/// 64-bit Arm this compiles for.
pub(super) unsafe fn find<const Q: usize>(
    shape: Shape,
    bytes: &[u8],
    tile: &Tile<Q>,
    list: BlockList,
    range: Range<usize>,
    matches: &mut [Match<Q>],
) -> (usize, usize) {
    let rows = shape.code_bytes();
    let mut count = 0;
    for entry in range.clone() {
        // SAFETY: the caller vouches for the blocks of the range and for the tables.
        let sums = unsafe {
            let block = bytes.as_ptr().add(list.block(entry) * rows * BLOCK);
            if shape.table_row() == 256 { byte_sums(rows, block, tile) } else { nibble_sums(rows, block, tile) }
        };
        let mut masks = [0; Q];
        let mut any = 0;
        for q in 0..Q {
            masks[q] = passing(sums[q], tile.thresholds[q]);
            any |= masks[q];
        }
        if any != 0 {
            matches[count] = (entry, masks);
            count += 1;
            if count == matches.len() {
                return (count, entry + 1);
            }
        }
    }
    (count, range.end)
}

/// # Safety
/// `rows` rows lie at `block` and, of 32 bytes, in every table.
#[inline]
unsafe fn nibble_sums<const Q: usize>(rows: usize, block: *const u8, tile: &Tile<Q>) -> [Sums; Q] {
    // SAFETY: the caller vouches for `rows` rows of the block and of every table.
    unsafe {
        let nibble = vdupq_n_u8(15);
        let mut sums = [[vdupq_n_u8(0); 2]; Q];
        for r in 0..rows {
            let codes = [vld1q_u8(block.add(r * BLOCK)), vld1q_u8(block.add(r * BLOCK + 16))];
            let (low, high) = (codes.map(|c| vandq_u8(c, nibble)), codes.map(|c| vshrq_n_u8::<4>(c)));
            for (sums, table) in sums.iter_mut().zip(tile.tables) {
                let table = table.as_ptr().add(r * 32);
                let (even, odd) = (vld1q_u8(table), vld1q_u8(table.add(16)));
                for half in 0..2 {
                    sums[half] = vqaddq_u8(sums[half], vqtbl1q_u8(even, low[half]));
                    sums[half] = vqaddq_u8(sums[half], vqtbl1q_u8(odd, high[half]));
                }
            }
        }
        sums
    }
}

/// Codebooks of 256 codewords: four lookups in 64 bytes each; a number beyond them gives 0.
///
/// # Safety
/// `rows` rows lie at `block` and, of 256 bytes, in every table.
#[inline]
unsafe fn byte_sums<const Q: usize>(rows: usize, block: *const u8, tile: &Tile<Q>) -> [Sums; Q] {
    // SAFETY: the caller vouches for `rows` rows of the block and of every table.
    unsafe {
        let mut sums = [[vdupq_n_u8(0); 2]; Q];
        for r in 0..rows {
            for half in 0..2 {
                let codes = vld1q_u8(block.add(r * BLOCK + 16 * half));
                for (sums, table) in sums.iter_mut().zip(tile.tables) {
                    let mut value = vdupq_n_u8(0);
                    for quarter in 0..4u8 {
                        let part = vld1q_u8_x4(table.as_ptr().add(r * 256 + 64 * usize::from(quarter)));
                        value = vorrq_u8(value, vqtbl4q_u8(part, vsubq_u8(codes, vdupq_n_u8(64 * quarter))));
                    }
                    sums[half] = vqaddq_u8(sums[half], value);
                }
            }
        }
        sums
    }
}

/// One bit per document whose sum is at most the limit.
#[inline]
fn passing(sums: Sums, limit: u8) -> u32 {
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: NEON is always there; `BITS` has sixteen bytes.
    unsafe {
        let below = sums.map(|sum| vcleq_u8(sum, vdupq_n_u8(limit)));
        if vmaxvq_u8(vorrq_u8(below[0], below[1])) == 0 {
            return 0;
        }
        let bits = vld1q_u8(BITS.as_ptr());
        // Each addition of neighbours joins the bits of twice as many documents: of eight after the third.
        let pairs = vpaddq_u8(vandq_u8(below[0], bits), vandq_u8(below[1], bits));
        let fours = vpaddq_u8(pairs, pairs);
        let eights = vpaddq_u8(fours, fours);
        vgetq_lane_u32::<0>(vreinterpretq_u32_u8(eights))
    }
}

/// See [`super::at_most`].
pub(super) fn at_most(values: &[u8; 256], limits: impl Iterator<Item = Option<u8>>) -> Vec<[u64; 4]> {
    // SAFETY: eight times 32 values.
    let values: [Sums; 8] = std::array::from_fn(|i| unsafe {
        [vld1q_u8(values.as_ptr().add(32 * i)), vld1q_u8(values.as_ptr().add(32 * i + 16))]
    });
    let masks = |limit: u8| {
        let mask =
            |i: usize| u64::from(passing(values[2 * i], limit)) | u64::from(passing(values[2 * i + 1], limit)) << 32;
        std::array::from_fn(mask)
    };
    limits.map(|limit| limit.map_or([0; 4], masks)).collect()
}
