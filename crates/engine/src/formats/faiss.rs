//! FAISS's product quantizers: `IndexPQ` and `IndexPQFastScan`, with or without ids.
//!
//! FAISS searches projected vectors, not text: queries to an exported index are outputs of the projection, which
//! [`super::npz::write_projection`] writes beside it. FAISS sums squared distances, so it ranks as [`Distance::Squared`]
//! does. `IndexPQ` gives the same distances up to rounding; fast scan rounds them to bytes.
//!
//! ```text
//! header     fourcc, i32 d, i64 n, i64 2^20 twice, u8 trained, i32 metric (1: squared Euclidean)
//! quantizer  u64 d, u64 codebooks, u64 bits, u64 count, f32 centroids [codebooks][codewords][d / codebooks]
//! IxPq       header, quantizer, u64 bytes, codes, i32 search type, u8 encode signs, i32 threshold
//! IPfs       header, quantizer, i32 implementation, i32 block, i32 query block, u64 n2, u64 books2, u64 bytes, blocks
//! IxM2, IxMp header, index, u64 count, i64 ids
//! ```

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::corpus::DocId;
use crate::model::{CodeShape, Codebooks, Dense, Distance, FORMAT, Model, ModelConfig, Projection};
use crate::{Error, Result, disk};

/// How FAISS stores the codes of an exported index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `IndexPQ`: one code after the other, exact distances.
    Plain,
    /// `IndexPQFastScan`: blocks of 32 codes for SIMD, distances rounded to bytes. Codebooks of 16 codewords only.
    FastScan,
}

/// A FAISS product quantizer with codes.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductIndex {
    pub codebooks: Codebooks,
    /// Packed codes `[n, code_bytes]`.
    pub codes: Vec<u8>,
    /// The ids of an `IndexIDMap`. Without one, rows are numbered from 0.
    pub ids: Option<Vec<i64>>,
}

/// Codes in a block of fast scan.
const BLOCK: usize = 32;

/// The order of the codes of half a block in fast scan: its shuffles then give sums in order.
const ORDER: [usize; 16] = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15];

/// Maximum values of a vector. The identity projection is a square matrix of this width, 64 MiB at most, whatever the size of
/// the file.
const MAX_WIDTH: usize = 4096;

/// FAISS's own placeholder in headers.
const FILLER: i64 = 1 << 20;

impl ProductIndex {
    pub fn len(&self) -> usize {
        self.codes.len() / self.codebooks.shape().code_bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// The document id of row `i`.
    pub fn id(&self, i: usize) -> DocId {
        match &self.ids {
            None => DocId::Int(i as u64),
            Some(ids) => u64::try_from(ids[i]).map_or_else(|_| DocId::Str(ids[i].to_string()), DocId::Int),
        }
    }

    /// A model that takes the same vectors as FAISS: its projection is the identity, its distance is FAISS's.
    pub fn model(&self, source: &str) -> Result<Model> {
        let shape = self.codebooks.shape();
        let width = shape.width();
        let mut weight = vec![0.0; width * width];
        (0..width).for_each(|i| weight[i * width + i] = 1.0);
        let projection = Projection::new(vec![Dense::new(width, weight, vec![0.0; width])?])?;
        let config = ModelConfig {
            format: FORMAT,
            method: "faiss".into(),
            shape,
            distance: Distance::Squared,
            embedding: None,
            training: serde_json::json!({ "source": source }),
        };
        Model::new(config, projection, self.codebooks.clone())
    }

    /// Reads a file that `faiss.write_index` wrote.
    pub fn read(path: &Path) -> Result<ProductIndex> {
        let file = File::open(path).map_err(Error::io(path))?;
        let size = file.metadata().map_err(Error::io(path))?.len();
        let mut reader = Reader { path, input: BufReader::with_capacity(1 << 20, file), left: size };
        let index = reader.index(true)?;
        if reader.left > 0 {
            return Err(reader.damaged(&format!("{} bytes follow the index", reader.left)));
        }
        Ok(index)
    }

    /// Writes a file that `faiss.read_index` reads. The write is atomic.
    pub fn write(&self, path: &Path, layout: Layout) -> Result<()> {
        let shape = self.codebooks.shape();
        if layout == Layout::FastScan && shape.codebook_size() != 16 {
            return Err(Error::config(format!(
                "FAISS's fast scan takes codebooks of 16 codewords, this model has {}; export the plain layout",
                shape.codebook_size()
            )));
        }
        if self.ids.as_ref().is_some_and(|ids| ids.len() != self.len()) {
            return Err(Error::config("an export needs an id for every code"));
        }
        let staged = disk::StagedFile::create(path)?;
        let mut out = BufWriter::with_capacity(1 << 20, staged.file()?);
        self.write_to(&mut out, layout).and_then(|()| out.flush()).map_err(Error::io(path))?;
        staged.finish()
    }

    fn write_to(&self, out: &mut impl Write, layout: Layout) -> std::io::Result<()> {
        if self.ids.is_some() {
            self.write_header(out, b"IxM2")?;
        }
        let shape = self.codebooks.shape();
        self.write_header(out, if layout == Layout::Plain { b"IxPq" } else { b"IPfs" })?;
        for n in [shape.width(), shape.num_codebooks(), shape.codeword_bits(), self.codebooks.values().len()] {
            out.write_all(&(n as u64).to_le_bytes())?;
        }
        for value in self.codebooks.values() {
            out.write_all(&value.to_le_bytes())?;
        }
        match layout {
            Layout::Plain => {
                out.write_all(&(self.codes.len() as u64).to_le_bytes())?;
                out.write_all(&self.codes)?;
                // Search type ST_PQ, no signs, and FAISS's default threshold: the number of bits of a code plus one.
                out.write_all(&0i32.to_le_bytes())?;
                out.write_all(&[0])?;
                out.write_all(&(shape.bits() as i32 + 1).to_le_bytes())?;
            }
            Layout::FastScan => {
                let blocks = pack_blocks(shape, &self.codes);
                for n in [0i32, BLOCK as i32, 0] {
                    out.write_all(&n.to_le_bytes())?;
                }
                let (n2, books2) = (self.len().next_multiple_of(BLOCK), shape.num_codebooks().next_multiple_of(2));
                for n in [n2, books2, blocks.len()] {
                    out.write_all(&(n as u64).to_le_bytes())?;
                }
                out.write_all(&blocks)?;
            }
        }
        if let Some(ids) = &self.ids {
            out.write_all(&(ids.len() as u64).to_le_bytes())?;
            for id in ids {
                out.write_all(&id.to_le_bytes())?;
            }
        }
        Ok(())
    }

    fn write_header(&self, out: &mut impl Write, fourcc: &[u8; 4]) -> std::io::Result<()> {
        out.write_all(fourcc)?;
        out.write_all(&(self.codebooks.shape().width() as i32).to_le_bytes())?;
        out.write_all(&(self.len() as i64).to_le_bytes())?;
        out.write_all(&FILLER.to_le_bytes())?;
        out.write_all(&FILLER.to_le_bytes())?;
        out.write_all(&[1])?;
        out.write_all(&1i32.to_le_bytes())
    }
}

/// Codes in the layout of fast scan. A block holds 32 codes. Each pair of codebooks has 16 bytes with codewords of the first,
/// then 16 with those of the second. The low nibbles are codes of the first half of the block, the high ones of the second.
fn pack_blocks(shape: CodeShape, codes: &[u8]) -> Vec<u8> {
    let width = shape.code_bytes();
    let mut out = vec![0; (codes.len() / width).next_multiple_of(BLOCK) * width];
    for (block, codes) in out.chunks_exact_mut(BLOCK * width).zip(codes.chunks(BLOCK * width)) {
        let byte = |row: usize, pair: usize| codes.get(row * width + pair).copied().unwrap_or(0);
        for (pair, bytes) in block.chunks_exact_mut(32).enumerate() {
            for (j, &row) in ORDER.iter().enumerate() {
                let (low, high) = (byte(row, pair), byte(row + 16, pair));
                bytes[j] = (low & 15) | (high & 15) << 4;
                bytes[16 + j] = (low >> 4) | (high & 0xF0);
            }
        }
    }
    out
}

/// The inverse of [`pack_blocks`]. `block` is the number of codes per FAISS block: a multiple of 32.
fn unpack_blocks(shape: CodeShape, blocks: &[u8], n: usize, block: usize) -> Vec<u8> {
    let width = shape.code_bytes();
    let mut codes = vec![0; n * width];
    for row in 0..n {
        let (number, within) = (row / block, row % block);
        let (part, place) = (within / BLOCK, within % BLOCK);
        let half = place / 16;
        let j = ORDER.iter().position(|&o| o == place % 16).expect("the order holds every place once");
        for pair in 0..width {
            // Pairs of codebooks follow each other; within a pair, so do the 32-code parts of a larger block.
            let start = number * block * width + pair * block + part * 32;
            let nibble = |at: usize| (blocks[start + at] >> (4 * half)) & 15;
            codes[row * width + pair] = nibble(j) | nibble(16 + j) << 4;
        }
    }
    codes
}

/// Reads FAISS's fields and tracks the bytes left in the file, so that a damaged count allocates no memory.
struct Reader<'a> {
    path: &'a Path,
    input: BufReader<File>,
    left: u64,
}

/// The beginning of every index.
struct Header {
    kind: [u8; 4],
    width: usize,
    count: usize,
}

impl Reader<'_> {
    fn damaged(&self, what: &str) -> Error {
        Error::format(self.path, format!("is not a whole FAISS index: {what}; write it again with faiss.write_index"))
    }

    fn bytes(&mut self, count: usize) -> Result<Vec<u8>> {
        if count as u64 > self.left {
            return Err(self.damaged(&format!("{count} bytes are expected where {} are left", self.left)));
        }
        let mut bytes = vec![0; count];
        self.input.read_exact(&mut bytes).map_err(Error::io(self.path))?;
        self.left -= count as u64;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.bytes(N)?.try_into().expect("as many as were asked for"))
    }

    fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A count. A count larger than any file is damage.
    fn count(&mut self) -> Result<usize> {
        let n = u64::from_le_bytes(self.array()?);
        usize::try_from(n).ok().filter(|n| *n < 1 << 48).ok_or_else(|| self.damaged(&format!("it counts {n}")))
    }

    fn header(&mut self) -> Result<Header> {
        let kind: [u8; 4] = self.array()?;
        if !matches!(&kind, b"IxPq" | b"IPfs" | b"IxMp" | b"IxM2") {
            let name: String = kind.iter().map(|b| if b.is_ascii_graphic() { *b as char } else { '.' }).collect();
            return Err(Error::format(
                self.path,
                format!(
                    "is no FAISS index that can be read: it begins with \"{name}\"; product quantizers (IndexPQ, IndexPQFastScan) are read, alone or in an IndexIDMap"
                ),
            ));
        }
        let (width, count) = (self.i32()?, self.i64()?);
        self.array::<16>()?;
        let trained = self.array::<1>()? == [1];
        let metric = self.i32()?;
        if metric != 1 {
            return Err(Error::format(
                self.path,
                format!("uses metric {metric}; codes are compared by squared Euclidean distance (METRIC_L2, 1)"),
            ));
        }
        if !trained {
            return Err(Error::format(self.path, "is not trained: it has no centroids yet"));
        }
        let (Ok(width), Ok(count)) = (usize::try_from(width), usize::try_from(count)) else {
            return Err(self.damaged(&format!("it has {count} vectors of {width} values")));
        };
        Ok(Header { kind, width, count })
    }

    fn index(&mut self, outer: bool) -> Result<ProductIndex> {
        let header = self.header()?;
        if matches!(&header.kind, b"IxMp" | b"IxM2") {
            if !outer {
                return Err(Error::format(self.path, "has an id map inside an id map; ids of one map are read"));
            }
            let mut index = self.index(false)?;
            let count = self.count()?;
            if count != index.len() {
                return Err(self.damaged(&format!("{count} ids stand beside {} codes", index.len())));
            }
            let bytes = self.bytes(8 * count)?;
            index.ids = Some(bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect());
            return Ok(index);
        }
        let codebooks = self.quantizer(header.width)?;
        let shape = codebooks.shape();
        let expected = header.count.checked_mul(shape.code_bytes());
        let codes = if &header.kind == b"IxPq" {
            let count = self.count()?;
            if Some(count) != expected {
                return Err(self.damaged(&format!("{count} bytes of codes for {} vectors", header.count)));
            }
            let codes = self.bytes(count)?;
            self.array::<9>()?;
            codes
        } else {
            self.blocks(shape, header.count)?
        };
        Ok(ProductIndex { codebooks, codes, ids: None })
    }

    fn quantizer(&mut self, width: usize) -> Result<Codebooks> {
        let (d, num_codebooks, bits) = (self.count()?, self.count()?, self.count()?);
        let count = self.count()?;
        if num_codebooks == 0
            || d != width
            || !d.is_multiple_of(num_codebooks)
            || bits == 0
            || bits > 24
            || Some(count) != d.checked_mul(1 << bits)
        {
            return Err(self.damaged(&format!(
                "{count} centroid values, {num_codebooks} codebooks of {bits} bits, {d} of {width} values"
            )));
        }
        if d > MAX_WIDTH {
            return Err(Error::format(
                self.path,
                format!(
                    "holds vectors of {d} values, at most {MAX_WIDTH} are read; make them shorter with a PCA before the quantizer"
                ),
            ));
        }
        // The bit order of codebooks of other sizes has not been compared with FAISS.
        if !matches!(bits, 1 | 4 | 8) {
            return Err(Error::format(
                self.path,
                format!("has {bits} bits per codebook; make the quantizer with 4 or 8 bits per codebook"),
            ));
        }
        let shape = CodeShape::new(num_codebooks, 1 << bits, d / num_codebooks)
            .map_err(|e| Error::format(self.path, format!("{e}; make the quantizer with 4 or 8 bits per codebook")))?;
        let values = self.bytes(4 * count)?.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        Codebooks::new(shape, values).map_err(|e| self.damaged(&e.to_string()))
    }

    fn blocks(&mut self, shape: CodeShape, n: usize) -> Result<Vec<u8>> {
        let (_, block, _) = (self.i32()?, self.i32()?, self.i32()?);
        let (n2, books2, count) = (self.count()?, self.count()?, self.count()?);
        let block = usize::try_from(block).unwrap_or(0);
        let whole = block > 0
            && block.is_multiple_of(BLOCK)
            && Some(n2) == n.checked_next_multiple_of(block)
            && books2 == shape.num_codebooks().next_multiple_of(2)
            && Some(count) == n2.checked_mul(shape.code_bytes());
        if !whole || shape.codebook_size() != 16 {
            return Err(self
                .damaged(&format!("{count} bytes of fast scan in blocks of {block}, {n2} codes, {books2} codebooks")));
        }
        let bytes = self.bytes(count)?;
        Ok(unpack_blocks(shape, &bytes, n, block))
    }
}

#[cfg(test)]
mod tests {
    use kernels::dropout::mix;
    use proptest::prelude::*;

    use super::*;

    fn sample(num_codebooks: usize, codebook_size: usize, dim: usize, n: usize, ids: bool) -> ProductIndex {
        let shape = CodeShape::new(num_codebooks, codebook_size, dim).unwrap();
        let values = (0..num_codebooks * codebook_size * dim).map(|i| (mix(1, i as u64) >> 40) as f32 / 1e5).collect();
        let mut codes = vec![0; n * shape.code_bytes()];
        for (i, code) in codes.chunks_exact_mut(shape.code_bytes()).enumerate() {
            (0..num_codebooks)
                .for_each(|m| shape.set_codeword(code, m, mix(i as u64, m as u64) as usize % codebook_size));
        }
        let ids = ids.then(|| (0..n as i64).map(|i| 1000 - 3 * i).collect());
        ProductIndex { codebooks: Codebooks::new(shape, values).unwrap(), codes, ids }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn written_indexes_round_trip(
            num_codebooks in 1usize..20,
            codebook_size in prop::sample::select(vec![2usize, 16, 256]),
            dim in 1usize..6,
            n in 0usize..150,
            ids in any::<bool>(),
            fast in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("i.faiss");
            let index = sample(num_codebooks, codebook_size, dim, n, ids);
            if fast && codebook_size != 16 {
                prop_assert!(index.write(&path, Layout::FastScan).is_err());
            } else {
                index.write(&path, if fast { Layout::FastScan } else { Layout::Plain }).unwrap();
                prop_assert_eq!(&ProductIndex::read(&path).unwrap(), &index);
            }
        }
    }

    #[test]
    fn blocks_of_64_codes_are_read() {
        let index = sample(6, 16, 2, 130, false);
        let shape = index.codebooks.shape();
        // FAISS's layout of blocks of 64: each pair of codebooks holds the pairs of two blocks of 32.
        let small = pack_blocks(shape, &index.codes);
        let width = shape.code_bytes();
        let mut large = vec![0; 192 * width];
        for (at, bytes) in small.chunks_exact(32).enumerate() {
            let (block, pair) = (at / width, at % width);
            let start = block / 2 * 64 * width + pair * 64 + block % 2 * 32;
            large[start..start + 32].copy_from_slice(bytes);
        }
        assert_eq!(unpack_blocks(shape, &large, 130, 64), index.codes);
    }

    #[test]
    fn damage_anywhere_is_an_error_and_never_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("i.faiss");
        for layout in [Layout::Plain, Layout::FastScan] {
            sample(5, 16, 2, 40, true).write(&path, layout).unwrap();
            let whole = std::fs::read(&path).unwrap();
            for cut in (0..whole.len()).step_by(7) {
                std::fs::write(&path, &whole[..cut]).unwrap();
                assert!(ProductIndex::read(&path).is_err(), "cut at {cut}");
            }
            for at in 0..whole.len().min(400) {
                let mut bytes = whole.clone();
                bytes[at] ^= 0x80;
                std::fs::write(&path, &bytes).unwrap();
                let _ = ProductIndex::read(&path);
            }
        }
        std::fs::write(&path, [b"IxFl".as_slice(), &[0; 60]].concat()).unwrap();
        assert!(ProductIndex::read(&path).unwrap_err().to_string().contains("IxFl"));
    }

    #[test]
    fn a_small_file_of_wide_vectors_allocates_no_large_matrix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("i.faiss");
        for (codebooks, dim) in [(1, 32_768), (8, 4096), (1, MAX_WIDTH + 1)] {
            sample(codebooks, 2, dim, 0, false).write(&path, Layout::Plain).unwrap();
            let message = ProductIndex::read(&path).unwrap_err().to_string();
            assert!(message.contains(&format!("vectors of {} values, at most 4096", codebooks * dim)), "{message}");
        }
        sample(1, 2, MAX_WIDTH, 0, false).write(&path, Layout::Plain).unwrap();
        assert_eq!(ProductIndex::read(&path).unwrap().model("i.faiss").unwrap().inputs(), MAX_WIDTH);
    }

    #[test]
    fn the_model_takes_the_same_vectors_as_faiss() {
        let index = sample(4, 16, 3, 20, true);
        let model = index.model("i.faiss").unwrap();
        assert_eq!((model.inputs(), model.config.distance), (12, Distance::Squared));
        let codeword = |m: usize| index.codebooks.codebook(m).nth(3).unwrap().to_vec();
        let vector: Vec<f32> = (0..4).flat_map(codeword).collect();
        let code = model.encode(&crate::Matrix::from_vec(12, vector)).unwrap();
        assert_eq!(code, [0x33, 0x33]);
        assert_eq!(index.id(0), DocId::Int(1000));
        let negative = ProductIndex { ids: Some(vec![-5; 20]), ..index };
        assert_eq!(negative.id(3), DocId::Str("-5".into()));
    }
}
