//! Packed codes in the kernel's layout, as one run of bytes: in memory, or the mapped file of an index segment.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use kernels::scan::{self, BLOCK, BlocksRef, Keys, Shape};
use rayon::prelude::*;

use crate::mmap::Map;
use crate::model::CodeShape;

/// Version of the bytes below. 1: first release. 2: the directory distinguishes more prefixes, with about four documents each.
/// 3: ranks and numbers have as many bits as the number of documents needs.
pub const FORMAT: u32 = 3;

const MAGIC: &[u8; 8] = b"micpqcod";
const HEADER: usize = 64;
const OWNER: usize = HEADER - size_of::<Owner>();
/// The checksum covers everything from here on.
const CHECKED: usize = 16;

/// Bytes that a check reads at once.
const PASSED: usize = 1 << 20;

/// The owner of the codes, so that one file is not mistaken for another: a segment's number, or zeros.
pub type Owner = [u8; 16];

/// Bytes that searches read. Codes and ranks are mapped files: the system drops pages that are not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// Packed codes. A search may read all of them.
    pub codes: usize,
    /// Insertion order and numbers of documents, read for hits and for documents that may be hits.
    pub ranks: usize,
    /// Directories of prefixes.
    pub tables: usize,
    /// Results of filters that were used, and the documents that are not deleted.
    pub filters: usize,
}

impl std::ops::AddAssign for Memory {
    fn add_assign(&mut self, other: Memory) {
        self.codes += other.codes;
        self.ranks += other.ranks;
        self.tables += other.tables;
        self.filters += other.filters;
    }
}

enum Image {
    Memory(Vec<u8>),
    Mapped(Map),
}

impl std::ops::Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Image::Memory(bytes) => bytes,
            Image::Mapped(map) => map,
        }
    }
}

/// Codes sorted and packed, with the document of every position.
///
/// A document's *rank* is its position in insertion order, which decides between equal distances. Its *number* (of the
/// segment, where the codes belong to one) is the rank itself, or is looked up.
pub struct CodeBlocks {
    shape: Shape,
    len: usize,
    bits: u32,
    numbered: bool,
    image: Image,
    // The position of every number. Built by the first selective filter of codes in memory; a segment has columns instead.
    positions: OnceLock<Vec<u32>>,
}

impl std::fmt::Debug for CodeBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CodeBlocks({} documents of {:?})", self.len, self.shape)
    }
}

/// The kernel's view of a model's code shape.
pub(crate) fn kernel_shape(shape: CodeShape) -> Shape {
    Shape::new(shape.num_codebooks(), shape.codebook_size())
}

impl CodeBlocks {
    /// Sorts and packs the owner's codes `[n, code_bytes]`, which are in rank order. `numbers[rank]` is the document's number
    /// where that is not the rank.
    ///
    /// # Panics
    /// When the last code is incomplete, there are more than 2^32 - 1 codes, or there is not one number per code.
    pub fn build(shape: CodeShape, owner: Owner, codes: &[u8], numbers: Option<&[u32]>) -> CodeBlocks {
        let shape = kernel_shape(shape);
        let width = shape.code_bytes();
        assert!(codes.len().is_multiple_of(width), "whole codes");
        let len = codes.len() / width;
        let count = u32::try_from(len).expect("at most 2^32 - 1 codes");
        assert!(numbers.is_none_or(|n| n.len() == len), "a number for every code");
        let order = sorted(codes, width, count);
        let blocks = scan::pack(shape, codes, &order);
        let bits = scan::prefix_bits(shape, len);
        let starts = scan::prefix_starts(shape, &blocks, len, bits);

        let mut image = Vec::with_capacity(HEADER + blocks.len() + 8 * len + 4 * starts.len());
        image.extend_from_slice(MAGIC);
        image.extend_from_slice(&FORMAT.to_le_bytes());
        image.extend_from_slice(&[0; 4]);
        let flags = u32::from(numbers.is_some());
        for field in [shape.num_codebooks() as u32, shape.codebook_size() as u32, count, bits, flags] {
            image.extend_from_slice(&field.to_le_bytes());
        }
        image.resize(OWNER, 0);
        image.extend_from_slice(&owner);
        image.extend_from_slice(&blocks);
        image.extend(Keys::pack(order.into_iter(), Keys::bits_for(len)));
        image.extend(Keys::pack(numbers.unwrap_or(&[]).iter().copied(), Keys::bits_for(len)));
        image.extend_from_slice(starts.as_flattened());
        let crc = crc32fast::hash(&image[CHECKED..]);
        image[12..16].copy_from_slice(&crc.to_le_bytes());
        let (numbered, image) = (numbers.is_some(), Image::Memory(image));
        CodeBlocks { shape, len, bits, numbered, image, positions: OnceLock::new() }
    }

    /// Takes a mapped file of the owner's codes of `shape` after a check of its header; the error is the problem in words.
    /// The rest of the file is not read. [`CodeBlocks::check`] reads it, and must run before a scan.
    pub fn from_map(shape: CodeShape, owner: Owner, map: Map) -> std::result::Result<CodeBlocks, String> {
        let shape = kernel_shape(shape);
        let (image, positions) = (Image::Mapped(map), OnceLock::new());
        let mut blocks = CodeBlocks { shape, len: 0, bits: 0, numbered: false, image, positions };
        blocks.read_header(owner)?;
        Ok(blocks)
    }

    /// Compares the checksum; the error is the problem in words.
    pub fn check(&self) -> std::result::Result<(), String> {
        if let Image::Memory(_) = self.image {
            return Ok(());
        }
        let written = u32::from_le_bytes(self.image[12..16].try_into().expect("four bytes"));
        let mut found = crc32fast::Hasher::new();
        self.pass(CHECKED..self.image.len(), |bytes| found.update(bytes));
        let found = found.finalize();
        if written != found {
            return Err(format!("is damaged: its checksum is {found:08x}, its header says {written:08x}"));
        }
        self.check_contents()
    }

    /// Passes all bytes of a range to `take`. Those after the codes leave the memory of this process again: a search reads few of
    /// them, so that a check would cost as much memory as all searches after it.
    fn pass(&self, range: Range<usize>, mut take: impl FnMut(&[u8])) {
        for from in range.clone().step_by(PASSED) {
            let step = from..(from + PASSED).min(range.end);
            take(&self.image[step.clone()]);
            self.release(step);
        }
    }

    fn release(&self, range: Range<usize>) {
        let from = range.start.max(self.blocks_end());
        if let Image::Mapped(map) = &self.image
            && from < range.end
        {
            map.release(from..range.end);
        }
    }

    fn read_header(&mut self, owner: Owner) -> std::result::Result<(), String> {
        let bytes: &[u8] = &self.image;
        if bytes.len() < HEADER || &bytes[..8] != MAGIC {
            return Err("is not a file of code blocks".into());
        }
        let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if field(8) != FORMAT {
            return Err(format!("has format {}, this program reads {FORMAT}", field(8)));
        }
        let (num_codebooks, codebook_size) = (field(16) as usize, field(20) as usize);
        if (num_codebooks, codebook_size) != (self.shape.num_codebooks(), self.shape.codebook_size()) {
            return Err(format!(
                "holds codes of {num_codebooks} codebooks of {codebook_size} codewords, expected {} of {}",
                self.shape.num_codebooks(),
                self.shape.codebook_size()
            ));
        }
        if bytes[OWNER..HEADER] != owner {
            return Err(format!("belongs to {}, not to {}", hex::encode(&bytes[OWNER..HEADER]), hex::encode(owner)));
        }
        let (len, bits, flags) = (field(24) as usize, field(28), field(32));
        let expected = HEADER
            + self.shape.blocks_bytes(len)
            + Keys::bytes_for(len, Keys::bits_for(len)) * (1 + flags as usize % 2)
            + if bits == 0 { 0 } else { 4 * ((1 << bits.min(16)) + 1) };
        if flags > 1 || bits > 16 || bytes.len() != expected {
            return Err(format!("has {} bytes, {expected} expected for {len} documents", bytes.len()));
        }
        (self.len, self.bits, self.numbered) = (len, bits, flags == 1);
        Ok(())
    }

    /// Ranks and numbers must be in range even where the checksum agrees: the scan uses them as indexes.
    fn check_contents(&self) -> std::result::Result<(), String> {
        let inside = |keys: Keys, begin: usize| {
            // A multiple of eight keys begins at a byte.
            let step = 8 * PASSED / Keys::bits_for(self.len) / 8 * 8;
            (0..self.len).step_by(step).all(|from| {
                let to = (from + step).min(self.len);
                let inside = (from..to).all(|i| (keys.get(i) as usize) < self.len);
                let byte = |i: usize| begin + i * Keys::bits_for(self.len) / 8;
                self.release(byte(from)..byte(to).min(self.image.len()));
                inside
            })
        };
        let begin = self.blocks_end();
        let numbers = |keys: Keys| inside(keys, begin + self.keys_bytes());
        if !inside(self.ranks(), begin) || !self.numbers().is_none_or(numbers) {
            return Err("refers to a document beyond its last".into());
        }
        Ok(())
    }

    /// The bytes as they are written to a file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.image
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that searches read, by part.
    pub fn memory(&self) -> Memory {
        let codes = self.shape.blocks_bytes(self.len);
        let ranks = self.keys_bytes() * (1 + usize::from(self.numbered));
        let directory = self.image.len() - HEADER - codes - ranks;
        let positions = 4 * self.positions.get().map_or(0, Vec::len);
        Memory { codes, ranks, tables: directory + positions, filters: 0 }
    }

    /// Of [`CodeBlocks::memory`], what is in this process's memory; `None` where the system does not tell.
    pub fn resident(&self) -> Option<Memory> {
        let all = self.memory();
        let Image::Mapped(map) = &self.image else { return Some(all) };
        let codes = HEADER..self.blocks_end();
        let ranks = codes.end..codes.end + all.ranks;
        let positions = 4 * self.positions.get().map_or(0, Vec::len);
        Some(Memory {
            tables: map.resident(ranks.end..map.len())? + positions,
            codes: map.resident(codes)?,
            ranks: map.resident(ranks)?,
            filters: 0,
        })
    }

    fn blocks_end(&self) -> usize {
        HEADER + self.shape.blocks_bytes(self.len)
    }

    /// Bytes of all ranks, and of all numbers.
    fn keys_bytes(&self) -> usize {
        Keys::bytes_for(self.len, Keys::bits_for(self.len))
    }

    /// The rank of every position.
    fn ranks(&self) -> Keys<'_> {
        let from = self.blocks_end();
        Keys::new(Keys::bits_for(self.len), &self.image[from..from + self.keys_bytes()])
    }

    /// The number of every rank; `None` where numbers are ranks.
    fn numbers(&self) -> Option<Keys<'_>> {
        let from = self.blocks_end() + self.keys_bytes();
        self.numbered.then(|| Keys::new(Keys::bits_for(self.len), &self.image[from..from + self.keys_bytes()]))
    }

    /// The kernel's view. Keys are ranks.
    pub fn view(&self) -> BlocksRef<'_> {
        let starts = self.blocks_end() + self.keys_bytes() * (1 + usize::from(self.numbered));
        let (blocks, starts) = (&self.image[HEADER..self.blocks_end()], self.image[starts..].as_chunks().0);
        BlocksRef::new(self.shape, self.len, blocks, &[], starts).with_keys(self.ranks())
    }

    /// The position of the document with this number.
    pub(super) fn position(&self, number: u32) -> usize {
        self.positions.get_or_init(|| self.find_positions())[number as usize] as usize
    }

    fn find_positions(&self) -> Vec<u32> {
        let mut positions = vec![0; self.len];
        let (ranks, numbers) = (self.ranks(), self.numbers());
        for position in 0..self.len {
            let rank = ranks.get(position);
            let number = numbers.map_or(rank, |numbers| numbers.get(rank as usize));
            positions[number as usize] = position as u32;
        }
        positions
    }

    /// A bitmap over numbers as one over ranks.
    pub(super) fn by_rank<'a>(&self, numbers: &'a [u64]) -> Cow<'a, [u64]> {
        let Some(of_rank) = self.numbers() else { return Cow::Borrowed(numbers) };
        // Without a branch per document, so half of a segment takes no longer than a hundredth.
        let limb = |first: usize| {
            (first..self.len.min(first + 64)).fold(0, |limb, rank| {
                let number = of_rank.get(rank);
                limb | (numbers[number as usize / 64] >> (number % 64) & 1) << (rank - first)
            })
        };
        (0..self.len).step_by(64).map(limb).collect()
    }

    pub fn number(&self, rank: u32) -> u32 {
        self.numbers().map_or(rank, |numbers| numbers.get(rank as usize))
    }

    /// Whether numbers are ranks.
    pub fn in_rank_order(&self) -> bool {
        !self.numbered
    }

    /// Every document's number and packed code, in the order of positions.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Vec<u8>)> + '_ {
        let view = self.view();
        (0..self.len).map(move |position| (self.number(view.key(position)), view.code(position)))
    }
}

/// Ranks in the order of (code, rank), codes compared as bytes.
pub(super) fn sorted(codes: &[u8], width: usize, len: u32) -> Vec<u32> {
    let code = |rank: u32| &codes[rank as usize * width..(rank as usize + 1) * width];
    if width <= 8 {
        let mut keys: Vec<(u64, u32)> = (0..len)
            .into_par_iter()
            .map(|rank| {
                let mut bytes = [0; 8];
                bytes[..width].copy_from_slice(code(rank));
                (u64::from_be_bytes(bytes), rank)
            })
            .collect();
        keys.par_sort_unstable();
        return keys.into_iter().map(|(_, rank)| rank).collect();
    }
    let mut order: Vec<u32> = (0..len).collect();
    order.par_sort_unstable_by(|&a, &b| code(a).cmp(code(b)).then(a.cmp(&b)));
    order
}

/// Positions of a work unit of about `bytes` bytes, in whole blocks.
pub(super) fn positions_of(shape: Shape, bytes: usize) -> usize {
    (bytes / shape.block_bytes()).max(1) * BLOCK
}
