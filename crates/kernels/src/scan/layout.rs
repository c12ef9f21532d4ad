//! Blocks of packed codes, and the directory of their prefixes.

use std::ops::Range;

/// Documents in a block: the byte lanes of an AVX2 register.
pub const BLOCK: usize = 32;

/// Codebooks and codewords of the codes in a set of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    num_codebooks: usize,
    codebook_size: usize,
}

impl Shape {
    /// # Panics
    /// When there is no codebook, or a codebook does not have 2 to 256 codewords.
    pub fn new(num_codebooks: usize, codebook_size: usize) -> Self {
        assert!((2..=256).contains(&codebook_size), "codebooks have 2 to 256 codewords, not {codebook_size}");
        assert!(num_codebooks > 0, "a code has at least one codebook");
        Shape { num_codebooks, codebook_size }
    }

    pub fn num_codebooks(self) -> usize {
        self.num_codebooks
    }

    pub fn codebook_size(self) -> usize {
        self.codebook_size
    }

    /// Bits of a codeword number: one for 2 codewords, four for up to 16, eight for more. The scan looks up nibbles and bytes,
    /// which no other width fills.
    pub fn codeword_bits(self) -> usize {
        match self.codebook_size {
            2 => 1,
            ..=16 => 4,
            _ => 8,
        }
    }

    /// Values a packed codeword number may have: 2, 16 or 256.
    pub(super) fn cells(self) -> usize {
        1 << self.codeword_bits()
    }

    /// Bytes of a packed code: the rows of a block.
    pub fn code_bytes(self) -> usize {
        (self.num_codebooks * self.codeword_bits()).div_ceil(8)
    }

    /// Bytes of a query's byte table for one row of a block: 16 values for each of two nibbles, or 256 for a byte.
    pub(super) fn table_row(self) -> usize {
        if self.cells() == 256 { 256 } else { 32 }
    }

    pub fn block_bytes(self) -> usize {
        self.code_bytes() * BLOCK
    }

    /// Bytes of the blocks of `documents` documents; the last block is padded with zeros.
    pub fn blocks_bytes(self, documents: usize) -> usize {
        documents.div_ceil(BLOCK) * self.block_bytes()
    }
}

/// Numbers of equally many bits, packed without gaps, the lowest bit first.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    bits: usize,
    bytes: &'a [u8],
}

impl<'a> Keys<'a> {
    /// Bits of a number below `len`.
    pub fn bits_for(len: usize) -> usize {
        (usize::BITS - len.saturating_sub(1).leading_zeros()).max(1) as usize
    }

    /// Bytes of `count` numbers of `bits` bits.
    pub fn bytes_for(count: usize, bits: usize) -> usize {
        (count * bits).div_ceil(8)
    }

    /// # Panics
    /// When a number has more than 32 bits.
    pub fn new(bits: usize, bytes: &'a [u8]) -> Self {
        assert!(bits <= 32, "keys of {bits} bits");
        Keys { bits, bytes }
    }

    /// Packs numbers.
    ///
    /// # Panics
    /// When a number has more than `bits` bits.
    pub fn pack(numbers: impl ExactSizeIterator<Item = u32>, bits: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Keys::bytes_for(numbers.len(), bits) + 8);
        let (mut pending, mut count) = (0u64, 0);
        for number in numbers {
            assert!(bits == 32 || number >> bits == 0, "{number} has more than {bits} bits");
            pending |= u64::from(number) << count;
            count += bits;
            while count >= 8 {
                bytes.push(pending as u8);
                pending >>= 8;
                count -= 8;
            }
        }
        if count > 0 {
            bytes.push(pending as u8);
        }
        bytes
    }

    /// # Panics
    /// When there is no number `i`.
    #[inline]
    pub fn get(self, i: usize) -> u32 {
        let (at, shift) = (i * self.bits / 8, i * self.bits % 8);
        // A number of 32 bits at any bit lies within five bytes.
        let window = match self.bytes[at..].first_chunk::<8>() {
            Some(eight) => u64::from_le_bytes(*eight),
            None => self.bytes[at..].iter().rev().fold(0, |window, &byte| window << 8 | u64::from(byte)),
        };
        (window >> shift & ((1 << self.bits) - 1)) as u32
    }
}

/// Borrowed packed blocks, in memory or in a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct BlocksRef<'a> {
    shape: Shape,
    len: usize,
    bytes: &'a [u8],
    /// Without bits the position is the key.
    keys: Keys<'a>,
    starts: &'a [[u8; 4]],
    sorted: bool,
}

impl<'a> BlocksRef<'a> {
    /// `bytes` are the blocks of `len` documents sorted by code, then by key. `keys` gives each position's key as a
    /// little-endian number; without keys, the position is the key. `starts` is the result of [`prefix_starts`]; without it,
    /// prefixes are not used.
    ///
    /// # Panics
    /// When a length does not fit the others.
    pub fn new(shape: Shape, len: usize, bytes: &'a [u8], keys: &'a [[u8; 4]], starts: &'a [[u8; 4]]) -> Self {
        assert!(u32::try_from(len).is_ok(), "positions are 32-bit numbers, and there are {len} documents");
        assert_eq!(bytes.len(), shape.blocks_bytes(len), "blocks of {len} documents of {shape:?}");
        assert!(keys.is_empty() || keys.len() == len, "{} keys for {len} documents", keys.len());
        assert!(
            starts.is_empty() || (starts.len() - 1).is_power_of_two() && starts.len() <= 1 + (1 << 16),
            "{} prefix starts are not a power of two and one",
            starts.len()
        );
        let keys = Keys { bits: if keys.is_empty() { 0 } else { 32 }, bytes: keys.as_flattened() };
        BlocksRef { shape, len, bytes, keys, starts, sorted: true }
    }

    /// Blocks of documents in any order, without keys: the position is the key.
    ///
    /// # Panics
    /// When a length does not fit the other.
    pub fn unsorted(shape: Shape, len: usize, bytes: &'a [u8]) -> Self {
        BlocksRef { sorted: false, ..BlocksRef::new(shape, len, bytes, &[], &[]) }
    }

    /// The same blocks with these keys.
    ///
    /// # Panics
    /// When there is not a key for every position.
    pub fn with_keys(self, keys: Keys<'a>) -> Self {
        assert!(keys.bytes.len() >= Keys::bytes_for(self.len, keys.bits), "a key for every document");
        BlocksRef { keys, ..self }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn block(&self, i: usize) -> &'a [u8] {
        let size = self.shape.block_bytes();
        &self.bytes[i * size..(i + 1) * size]
    }

    /// Whether all documents of a full block of sorted codes have the same one: the first and the last decide it.
    #[inline]
    pub(super) fn has_one_code(&self, block: usize) -> bool {
        self.sorted
            && (block + 1) * BLOCK <= self.len
            && self.block(block).as_chunks::<BLOCK>().0.iter().all(|row| row[0] == row[BLOCK - 1])
    }

    /// The packed code at a position.
    pub fn code(&self, position: usize) -> Vec<u8> {
        self.code_at(position).copied().collect()
    }

    fn code_at(&self, position: usize) -> impl Iterator<Item = &'a u8> {
        assert!(position < self.len, "position {position} of {} documents", self.len);
        self.block(position / BLOCK).iter().skip(position % BLOCK).step_by(BLOCK)
    }

    #[inline]
    pub fn key(&self, position: usize) -> u32 {
        if self.keys.bits == 0 { position as u32 } else { self.keys.get(position) }
    }

    /// Bits of the prefixes in the directory; 0 without a directory.
    pub fn prefix_bits(&self) -> u32 {
        if self.starts.is_empty() { 0 } else { (self.starts.len() - 1).ilog2() }
    }

    /// Positions whose code begins with `prefix`, a number of `bits` bits; at most the bits of the directory.
    #[inline]
    pub(super) fn bucket(&self, bits: u32, prefix: usize) -> Range<usize> {
        let finer = self.prefix_bits() - bits;
        let at = |i: usize| (u32::from_le_bytes(self.starts[i << finer]) as usize).min(self.len);
        at(prefix)..at(prefix + 1)
    }

    #[inline]
    pub(super) fn keys_of(&self, positions: Range<usize>) -> impl Iterator<Item = u32> + '_ {
        positions.map(|position| self.key(position))
    }
}

/// Documents of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockLanes {
    pub block: u32,
    /// One bit per document of the block.
    pub lanes: u32,
}

/// Appends the blocks and lanes of the documents at `positions`. Lanes of the last block in `selected` are merged.
#[inline]
pub(super) fn select_positions(positions: Range<usize>, selected: &mut Vec<BlockLanes>) {
    if positions.is_empty() {
        return;
    }
    let (first, last) = (positions.start / BLOCK, (positions.end - 1) / BLOCK);
    // Lanes from the first position on, and lanes up to the last position.
    let from = u32::MAX << (positions.start % BLOCK);
    let to = u32::MAX >> (BLOCK - 1 - (positions.end - 1) % BLOCK);
    let lanes = if first == last { from & to } else { from };
    match selected.last_mut() {
        Some(last) if last.block == first as u32 => last.lanes |= lanes,
        _ => selected.push(BlockLanes { block: first as u32, lanes }),
    }
    if first < last {
        selected.extend((first + 1..last).map(|block| BlockLanes { block: block as u32, lanes: u32::MAX }));
        selected.push(BlockLanes { block: last as u32, lanes: to });
    }
}

/// Lanes of `block` that lie in `positions`.
#[inline]
pub(super) fn lanes(block: usize, positions: &Range<usize>) -> u32 {
    let first = block * BLOCK;
    let from = positions.start.saturating_sub(first).min(BLOCK) as u32;
    let to = positions.end.saturating_sub(first).min(BLOCK) as u32;
    // Shifts in 64 bits: 32 lanes are all of a u32.
    ((1u64 << to) - (1u64 << from.min(to))) as u32
}

/// Blocks of the codes `[n, code_bytes]`, in the order of the row numbers in `order`.
///
/// # Panics
/// When `codes` is not a whole number of codes or an index of `order` lies beyond them.
pub fn pack(shape: Shape, codes: &[u8], order: &[u32]) -> Vec<u8> {
    let width = shape.code_bytes();
    assert!(codes.len().is_multiple_of(width), "{} bytes are not a whole number of {width}-byte codes", codes.len());
    transpose(shape, order, |row| codes[row as usize * width..(row as usize + 1) * width].iter())
}

/// Blocks of only the documents at `positions`, in that order.
///
/// # Panics
/// When a position lies beyond the last document.
pub fn gather(from: &BlocksRef, positions: &[u32]) -> Vec<u8> {
    transpose(from.shape(), positions, |position| from.code_at(position as usize))
}

/// Bytes of a code that are laid out together: those of a `u64`.
const GROUP: usize = 8;

/// Writes bytes `8 * group ..` of codes, each given as a little-endian number, into the blocks of as many documents.
///
/// # Panics
/// When the blocks are not those of so many documents, or codes have no such group.
pub fn lay_out(shape: Shape, group: usize, values: &[u64], blocks: &mut [u8]) {
    assert_eq!(blocks.len(), shape.blocks_bytes(values.len()), "blocks of {} documents", values.len());
    let rows =
        shape.code_bytes().checked_sub(group * GROUP).filter(|rows| *rows > 0).expect("bytes of the codes").min(GROUP);
    for (block, values) in blocks.chunks_exact_mut(shape.block_bytes()).zip(values.chunks(BLOCK)) {
        let rows = &mut block[group * GROUP * BLOCK..][..rows * BLOCK];
        for (at, eight) in values.chunks(GROUP).enumerate() {
            let mut square = [0; GROUP];
            square[..eight.len()].copy_from_slice(eight);
            for (row, line) in rows.chunks_exact_mut(BLOCK).zip(transposed(square)) {
                row[at * GROUP..][..GROUP].copy_from_slice(&line.to_le_bytes());
            }
        }
    }
}

/// The transpose of eight times eight bytes: halves of the square change places, then quarters, then bytes.
fn transposed(mut square: [u64; GROUP]) -> [u64; GROUP] {
    for (step, mask) in [(4, 0x0000_0000_ffff_ffff), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ff_u64)] {
        let bits = 8 * step as u32;
        for i in (0..GROUP).filter(|i| i & step == 0) {
            let change = (square[i] >> bits ^ square[i + step]) & mask;
            square[i + step] ^= change;
            square[i] ^= change << bits;
        }
    }
    square
}

/// Blocks of the codes that `code` returns for each number in `order`.
fn transpose<'c, C: Iterator<Item = &'c u8>>(shape: Shape, order: &[u32], code: impl Fn(u32) -> C) -> Vec<u8> {
    let mut bytes = vec![0; shape.blocks_bytes(order.len())];
    for (block, numbers) in bytes.chunks_exact_mut(shape.block_bytes()).zip(order.chunks(BLOCK)) {
        for (lane, &number) in numbers.iter().enumerate() {
            for (row, &byte) in code(number).enumerate() {
                block[row * BLOCK + lane] = byte;
            }
        }
    }
    bytes
}

/// Leading bits of the code that the directory of `len` documents should index: as many as leave four documents per prefix on
/// average, so that the directory has at most a byte per document. Whole nibbles, at most two bytes.
pub fn prefix_bits(shape: Shape, len: usize) -> u32 {
    let max_bits = (shape.code_bytes() as u32 * 8).min(16);
    [16, 12, 8, 4].into_iter().find(|&bits| bits <= max_bits && len >> bits >= 4).unwrap_or(0)
}

/// The first position of each prefix of `bits` bits in sorted blocks, as little-endian numbers, then the number of documents.
///
/// The prefix is the most significant bits of the first two bytes of the code, read as a big-endian number: the order in which
/// codes compare.
pub fn prefix_starts(shape: Shape, bytes: &[u8], len: usize, bits: u32) -> Vec<[u8; 4]> {
    if bits == 0 {
        return Vec::new();
    }
    let mut starts = Vec::with_capacity((1 << bits) + 1);
    for position in 0..len {
        let block = position / BLOCK * shape.block_bytes() + position % BLOCK;
        let second = if shape.code_bytes() > 1 { bytes[block + BLOCK] } else { 0 };
        let prefix = usize::from(u16::from_be_bytes([bytes[block], second]) >> (16 - bits));
        while starts.len() <= prefix {
            starts.push((position as u32).to_le_bytes());
        }
    }
    starts.resize((1 << bits) + 1, (len as u32).to_le_bytes());
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_as_numbers_are_laid_out_like_codes_as_bytes() {
        for (codebooks, size) in [(4, 16), (6, 16), (16, 16), (20, 16), (12, 256), (24, 256), (40, 2)] {
            let shape = Shape::new(codebooks, size);
            let width = shape.code_bytes();
            for len in [1, 7, 32, 33, 100] {
                let codes: Vec<u8> = (0..len * width).map(|i| crate::dropout::mix(5, i as u64) as u8).collect();
                let mut blocks = vec![0; shape.blocks_bytes(len)];
                for group in 0..width.div_ceil(8) {
                    let number = |code: &[u8]| {
                        let mut bytes = [0; 8];
                        let part = &code[8 * group..width.min(8 * group + 8)];
                        bytes[..part.len()].copy_from_slice(part);
                        u64::from_le_bytes(bytes)
                    };
                    let values: Vec<u64> = codes.chunks_exact(width).map(number).collect();
                    lay_out(shape, group, &values, &mut blocks);
                }
                let order: Vec<u32> = (0..len as u32).collect();
                assert!(blocks == pack(shape, &codes, &order), "{len} codes of {shape:?}");
            }
        }
    }

    #[test]
    fn packed_keys_are_read_back_at_every_width() {
        for bits in 1..=32 {
            let greatest = u32::MAX >> (32 - bits);
            for count in [0, 1, 2, 7, 8, 33, 1000] {
                let numbers: Vec<u32> = (0..count)
                    .map(|i| if i % 3 == 0 { greatest } else { crate::dropout::mix(7, i) as u32 & greatest })
                    .collect();
                let bytes = Keys::pack(numbers.iter().copied(), bits);
                assert_eq!(bytes.len(), Keys::bytes_for(numbers.len(), bits));
                let keys = Keys::new(bits, &bytes);
                assert!(
                    numbers.iter().enumerate().all(|(i, &number)| keys.get(i) == number),
                    "{bits} bits, {count} numbers"
                );
            }
        }
        assert_eq!([0, 1, 2, 3, 256, 257].map(Keys::bits_for), [1, 1, 1, 2, 8, 9]);
    }
}
