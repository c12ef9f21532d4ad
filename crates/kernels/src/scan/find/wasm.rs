//! SIMD128 of WebAssembly: a swizzle looks up a nibble for sixteen documents.

use std::arch::wasm32::*;
use std::ops::Range;

use super::{BLOCK, BlockList, Match, Shape, Tile};

/// Byte sums of the 32 documents of a block.
type Sums = [v128; 2];

/// Tables of nibbles only: codebooks of 256 codewords take the plain loop.
///
/// # Safety
/// `bytes` holds the blocks of the range's entries, and the tables of `tile` have every row of 32 bytes.
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
        let sums = unsafe { sums(rows, bytes.as_ptr().add(list.block(entry) * rows * BLOCK), tile) };
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
unsafe fn sums<const Q: usize>(rows: usize, block: *const u8, tile: &Tile<Q>) -> [Sums; Q] {
    let nibble = u8x16_splat(15);
    let mut sums = [[u8x16_splat(0); 2]; Q];
    for r in 0..rows {
        // SAFETY: the caller vouches for `rows` rows of the block.
        let codes = unsafe { [v128_load(block.add(r * BLOCK).cast()), v128_load(block.add(r * BLOCK + 16).cast())] };
        let (low, high) = (codes.map(|c| v128_and(c, nibble)), codes.map(|c| u8x16_shr(c, 4)));
        for (sums, table) in sums.iter_mut().zip(tile.tables) {
            // SAFETY: and of every table.
            let (even, odd) = unsafe {
                let table = table.as_ptr().add(r * 32);
                (v128_load(table.cast()), v128_load(table.add(16).cast()))
            };
            for half in 0..2 {
                sums[half] = u8x16_add_sat(sums[half], u8x16_swizzle(even, low[half]));
                sums[half] = u8x16_add_sat(sums[half], u8x16_swizzle(odd, high[half]));
            }
        }
    }
    sums
}

/// One bit per document whose sum is at most the limit.
#[inline]
fn passing(sums: Sums, limit: u8) -> u32 {
    let [low, high] = sums.map(|sum| u32::from(u8x16_bitmask(u8x16_le(sum, u8x16_splat(limit)))));
    low | high << 16
}
