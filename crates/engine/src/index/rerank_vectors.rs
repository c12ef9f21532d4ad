//! Rerank vectors: embeddings stored beside the codes to order the first candidates of a search again.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantNames};
use tantivy::SegmentReader;
use tantivy::columnar::Column;

use super::schema::FEATURE;
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

/// The rerank vectors of one segment, in a mapped column.
pub(super) struct RerankColumn {
    rerank_vectors: RerankVectors,
    width: usize,
    column: Option<Column<u64>>,
}

impl RerankColumn {
    pub fn open(reader: &SegmentReader, rerank_vectors: RerankVectors, width: usize) -> tantivy::Result<RerankColumn> {
        let column = if rerank_vectors == RerankVectors::None {
            None
        } else {
            reader.fast_fields().column_opt::<u64>(FEATURE)?
        };
        Ok(RerankColumn { rerank_vectors, width, column })
    }

    /// Reads a document's vector `[width]` into `embedding`; `packed` is a reusable buffer.
    pub fn read(&self, document: u32, packed: &mut Vec<u64>, embedding: &mut [f32]) -> std::result::Result<(), String> {
        debug_assert_eq!(embedding.len(), self.width);
        packed.resize(self.rerank_vectors.u64s(self.width), 0);
        let rows = self.column.as_ref().map_or(0..0, |column| column.index.value_row_ids(document));
        match &self.column {
            Some(column) if rows.len() == packed.len() => {
                column.values.get_range(u64::from(rows.start), packed);
                self.rerank_vectors.unpack(packed, embedding);
                Ok(())
            }
            _ => Err(format!("document {document} has {} values of 64 bits, {} expected", rows.len(), packed.len())),
        }
    }
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
}
