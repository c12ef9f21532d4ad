//! Rerank vectors: embeddings stored beside the codes to order the first candidates of a search again.

use kernels::Backend;
use kernels::bytes::{prefetch, product_and_square};
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantNames};
use tantivy::columnar::Column;
use tantivy::{DocId, SegmentReader};

use super::rerank_rows::RerankRows;
use super::schema::RERANK_VECTOR;
use crate::Error;

/// How rerank vectors are stored.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Display, EnumString, VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_rerank_vectors)]
pub enum RerankVectors {
    /// Not stored: search by codes only, without re-ranking.
    #[default]
    None,
    /// One byte per value and one scale per vector. The largest magnitude maps to 127.
    Int8,
    /// Half precision.
    F16,
}

fn unknown_rerank_vectors(name: &str) -> Error {
    Error::unknown("rerank_vectors", name, RerankVectors::VARIANTS)
}

/// Bytes of the scale before the values of [`RerankVectors::Int8`].
const SCALE: usize = 4;

impl RerankVectors {
    /// Bytes on disk per document for a vector of `width` values.
    pub fn bytes(self, width: usize) -> usize {
        8 * self.u64s(width)
    }

    /// Number of `u64` blocks per vector; the last is padded with zeros.
    pub(super) fn u64s(self, width: usize) -> usize {
        match self {
            RerankVectors::None => 0,
            RerankVectors::Int8 => (SCALE + width).div_ceil(8),
            RerankVectors::F16 => (2 * width).div_ceil(8),
        }
    }

    /// Max documents per segment: tantivy numbers the values of a column with 32 bits.
    pub(super) fn most_documents(self, width: usize) -> usize {
        (u32::MAX as usize).checked_div(self.u64s(width)).unwrap_or(u32::MAX as usize)
    }

    /// Packs a vector for storage. The error is the reason why a value cannot be stored.
    pub(super) fn pack(self, embedding: &[f32]) -> std::result::Result<Vec<u64>, String> {
        if let Some(i) = embedding.iter().position(|x| !x.is_finite()) {
            return Err(format!("value {i} of its embedding is {}; a embedding holds finite numbers", embedding[i]));
        }
        let mut bytes = Vec::with_capacity(self.bytes(embedding.len()));
        match self {
            RerankVectors::None => {}
            RerankVectors::Int8 => {
                let greatest = embedding.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let scale = greatest / 127.0;
                bytes.extend_from_slice(&scale.to_le_bytes());
                let inverse = if greatest > 0.0 { 127.0 / greatest } else { 0.0 };
                bytes.extend(embedding.iter().map(|x| (x * inverse).round() as i8 as u8));
            }
            RerankVectors::F16 => {
                let greatest = half::f16::MAX.to_f32();
                if let Some(i) = embedding.iter().position(|x| x.abs() > greatest) {
                    return Err(format!(
                        "value {i} of its embedding is {}; half precision ends at {greatest}, keep int8 instead",
                        embedding[i]
                    ));
                }
                bytes.extend(embedding.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()));
            }
        }
        bytes.resize(self.bytes(embedding.len()), 0);
        Ok(bytes.as_chunks::<8>().0.iter().map(|block| u64::from_le_bytes(*block)).collect())
    }

    /// A vector as it comes back from storage; as it is if none is stored.
    pub(crate) fn rounded(self, embedding: &[f32]) -> std::result::Result<Vec<f32>, String> {
        let packed = self.pack(embedding)?;
        let mut rounded = embedding.to_vec();
        self.unpack(&packed, &mut rounded);
        Ok(rounded)
    }

    /// Inverse of `pack`, up to the rounding of the storage type.
    fn unpack(self, packed: &[u64], embedding: &mut [f32]) {
        match self {
            RerankVectors::None => {}
            RerankVectors::Int8 => {
                let scale = f32::from_bits(packed[0] as u32);
                let (first, rest) = embedding.split_at_mut(SCALE.min(embedding.len()));
                let value = |byte: u8| f32::from(byte as i8) * scale;
                first.iter_mut().zip(&packed[0].to_le_bytes()[SCALE..]).for_each(|(x, &b)| *x = value(b));
                // Eight at a time, so that it vectorizes: this takes most of the time of re-ranking.
                for (values, block) in rest.chunks_mut(8).zip(&packed[1..]) {
                    values.iter_mut().zip(block.to_le_bytes()).for_each(|(x, b)| *x = value(b));
                }
            }
            RerankVectors::F16 => {
                for (values, block) in embedding.chunks_mut(4).zip(packed) {
                    let halves = block.to_le_bytes();
                    for (x, half) in values.iter_mut().zip(halves.as_chunks::<2>().0) {
                        *x = half::f16::from_le_bytes(*half).to_f32();
                    }
                }
            }
        }
    }
}

/// Embeddings that rerank vectors are compared with, and buffers.
pub(super) struct Cosines<'a> {
    // With their lengths.
    embeddings: Vec<(&'a [f32], f32)>,
    // The vector that is compared, in one of two forms.
    packed: Vec<u64>,
    bytes: Vec<i8>,
    values: Vec<f32>,
}

impl<'a> Cosines<'a> {
    pub fn new(embeddings: &[&'a [f32]]) -> Cosines<'a> {
        let embeddings = embeddings.iter().map(|embedding| (*embedding, dot(embedding, embedding).sqrt())).collect();
        Cosines { embeddings, packed: Vec::new(), bytes: Vec::new(), values: Vec::new() }
    }

    /// Appends the cosine of a packed vector with every embedding; 0 where one of both is zero. That of [`RerankVectors::Int8`]
    /// lies in `bytes`, others in `packed`.
    fn append(&mut self, kind: RerankVectors, width: usize, out: &mut Vec<f32>) {
        let cosine =
            |product: f32, lengths: f32| if lengths > 0.0 { (product / lengths).clamp(-1.0, 1.0) } else { 0.0 };
        match kind {
            RerankVectors::None => {}
            // The scale is in the product and in the length, so the bytes alone give the cosine.
            RerankVectors::Int8 => {
                let bytes = &self.bytes[SCALE..][..width];
                out.extend(self.embeddings.iter().map(|(embedding, length)| {
                    let (product, square) = product_and_square(Backend::active(), embedding, bytes);
                    cosine(product, length * (square as f32).sqrt())
                }));
            }
            RerankVectors::F16 => {
                self.values.resize(width, 0.0);
                kind.unpack(&self.packed, &mut self.values);
                let (values, own) = (&self.values, dot(&self.values, &self.values).sqrt());
                let embeddings = self.embeddings.iter();
                out.extend(embeddings.map(|(embedding, length)| cosine(dot(embedding, values), length * own)));
            }
        }
    }
}

/// Sixteen running sums: the order of additions is fixed, so the result is the same on every CPU, and the loop vectorises.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a16, a_rest) = a.as_chunks::<16>();
    let (b16, b_rest) = b.as_chunks::<16>();
    for (x, y) in a16.iter().zip(b16) {
        for i in 0..16 {
            sums[i] += x[i] * y[i];
        }
    }
    for (i, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += x * y;
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// The rerank vectors of one segment, in a mapped column.
pub(super) struct RerankColumn {
    rerank_vectors: RerankVectors,
    width: usize,
    column: Option<Column<u64>>,
    // The same values where they can be read without the column's decoder.
    rows: Option<RerankRows>,
}

impl RerankColumn {
    pub fn open(reader: &SegmentReader, rerank_vectors: RerankVectors, width: usize) -> tantivy::Result<RerankColumn> {
        let column = if rerank_vectors == RerankVectors::None {
            None
        } else {
            reader.fast_fields().column_opt::<u64>(RERANK_VECTOR)?
        };
        let rows = match &column {
            Some(column) => RerankRows::find(reader, column, rerank_vectors.u64s(width))?,
            None => None,
        };
        Ok(RerankColumn { rerank_vectors, width, column, rows })
    }

    /// Asks the CPU to load a document's vector that [`RerankColumn::cosines`] will read soon.
    #[inline]
    pub fn prefetch(&self, document: DocId) {
        if let Some(row) = self.rows.as_ref().and_then(|rows| rows.get(document)) {
            prefetch(row);
        }
    }

    /// Reads a document's vector `[width]` into `embedding`; `packed` is a reusable buffer.
    pub fn read(&self, document: u32, packed: &mut Vec<u64>, embedding: &mut [f32]) -> std::result::Result<(), String> {
        debug_assert_eq!(embedding.len(), self.width);
        self.read_packed(document, packed)?;
        self.rerank_vectors.unpack(packed, embedding);
        Ok(())
    }

    /// Appends the cosines of a document's vector with the embeddings to `out`.
    pub fn cosines(
        &self,
        document: u32,
        embeddings: &mut Cosines,
        out: &mut Vec<f32>,
    ) -> std::result::Result<(), String> {
        if self.rerank_vectors == RerankVectors::Int8 {
            self.read_bytes(document, embeddings)?;
        } else {
            self.read_packed(document, &mut embeddings.packed)?;
        }
        embeddings.append(self.rerank_vectors, self.width, out);
        Ok(())
    }

    /// Reads a vector as bytes, at once where its row is at hand.
    fn read_bytes(&self, document: u32, embeddings: &mut Cosines) -> std::result::Result<(), String> {
        let row = self.rows.as_ref().and_then(|rows| Some((rows, rows.get(document)?)));
        embeddings.bytes.resize(8 * self.rerank_vectors.u64s(self.width), 0);
        let bytes = embeddings.bytes.as_chunks_mut::<8>().0.iter_mut();
        if let Some((rows, row)) = row {
            bytes.zip(row.as_chunks::<8>().0).for_each(|(to, from)| *to = signed(rows.value(*from)));
            return Ok(());
        }
        self.read_packed(document, &mut embeddings.packed)?;
        bytes.zip(&embeddings.packed).for_each(|(to, from)| *to = signed(*from));
        Ok(())
    }

    fn read_packed(&self, document: u32, packed: &mut Vec<u64>) -> std::result::Result<(), String> {
        packed.resize(self.rerank_vectors.u64s(self.width), 0);
        let rows = self.column.as_ref().map_or(0..0, |column| column.index.value_row_ids(document));
        match &self.column {
            Some(column) if rows.len() == packed.len() => {
                column.values.get_range(u64::from(rows.start), packed);
                Ok(())
            }
            _ => Err(format!("document {document} has {} values of 64 bits, {} expected", rows.len(), packed.len())),
        }
    }
}

fn signed(block: u64) -> [i8; 8] {
    block.to_le_bytes().map(|byte| byte as i8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn unpack_inverts_pack_within_the_rounding_error(embedding in prop::collection::vec(-50.0f32..50.0, 1..100)) {
            let greatest = embedding.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            for (rerank_vectors, error) in [(RerankVectors::Int8, greatest / 127.0 * 0.5001), (RerankVectors::F16, greatest / 1024.0)] {
                let packed = rerank_vectors.pack(&embedding).unwrap();
                prop_assert_eq!(packed.len() * 8, rerank_vectors.bytes(embedding.len()));
                let mut back = vec![f32::NAN; embedding.len()];
                rerank_vectors.unpack(&packed, &mut back);
                for (a, b) in embedding.iter().zip(&back) {
                    prop_assert!((a - b).abs() <= error, "{} became {} ({})", a, b, rerank_vectors);
                }
            }
        }
    }

    #[test]
    fn pack_stores_extreme_values_or_refuses_them() {
        for rerank_vectors in [RerankVectors::Int8, RerankVectors::F16] {
            assert!(rerank_vectors.pack(&[1.0, f32::NAN]).unwrap_err().contains("value 1"));
            assert!(rerank_vectors.pack(&[f32::INFINITY]).is_err());
            let packed = rerank_vectors.pack(&[0.0; 5]).unwrap();
            let mut back = [1.0; 5];
            rerank_vectors.unpack(&packed, &mut back);
            assert_eq!(back, [0.0; 5]);
        }
        assert!(RerankVectors::F16.pack(&[1e6]).unwrap_err().contains("int8"));
        let mut back = [0.0; 2];
        RerankVectors::Int8.unpack(&RerankVectors::Int8.pack(&[1e38, -1e38]).unwrap(), &mut back);
        assert!(back[0] > 0.99e38 && back[1] < -0.99e38);
        assert_eq!(
            (RerankVectors::Int8.bytes(384), RerankVectors::F16.bytes(384), RerankVectors::None.bytes(384)),
            (392, 768, 0)
        );
        assert_eq!(RerankVectors::Int8.most_documents(384), u32::MAX as usize / 49);
    }

    #[test]
    fn cosines_equal_those_of_the_unpacked_vectors() {
        let value = |i: usize| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0;
        let own: Vec<f32> = (0..100).map(value).collect();
        let (other, zero): (Vec<f32>, _) = ((0..100).map(|i| value(i * i + 3)).collect(), vec![0.0; 100]);
        for kind in [RerankVectors::Int8, RerankVectors::F16] {
            let mut back = vec![0.0; 100];
            let mut cosines = Cosines::new(&[&own, &other, &zero]);
            cosines.packed = kind.pack(&own).unwrap();
            kind.unpack(&cosines.packed, &mut back);
            cosines.bytes = cosines.packed.iter().flat_map(|block| signed(*block)).collect();
            let mut found = Vec::new();
            cosines.append(kind, 100, &mut found);
            for (found, embedding) in found.iter().zip([&own, &other, &zero]) {
                let lengths = (dot(&back, &back) * dot(embedding, embedding)).sqrt();
                let expected = if lengths > 0.0 { dot(&back, embedding) / lengths } else { 0.0 };
                assert!((found - expected).abs() < 1e-5, "{kind}: {found} instead of {expected}");
            }
            assert!(found[0] > 0.999 && found[2] == 0.0, "{found:?}");
        }
    }

    #[test]
    fn dot_equals_a_plain_loop() {
        for n in [0, 1, 15, 16, 17, 384] {
            let a: Vec<f32> = (0..n).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..n).map(|i| ((i * 5) % 11) as f32 - 5.0).collect();
            // Small whole numbers: every order of additions gives the same.
            assert_eq!(dot(&a, &b), a.iter().zip(&b).map(|(x, y)| x * y).sum::<f32>());
        }
    }
}
