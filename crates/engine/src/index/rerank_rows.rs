//! The rows of rerank vectors in a mapped column, read without the column's decoder.
//!
//! A search re-ranks a thousand vectors that lie apart. The decoder takes their values one after the other, and cannot load the
//! next vectors meanwhile. Values of 64 bits, which is how vectors are stored, lie in the file as they are, minus the least of
//! them: so a row is a slice of the map.

use tantivy::columnar::{Column, ColumnType};
use tantivy::directory::OwnedBytes;
use tantivy::{DocId, SegmentReader};

use super::schema::RERANK_VECTOR;

/// The codec of values of equally many bits, in tantivy's files.
const BITPACKED: u8 = 0;

/// Rows of equally many values of 64 bits.
pub(super) struct RerankRows {
    bytes: OwnedBytes,
    // Where the first row begins, and the bytes of a row.
    first: usize,
    row: usize,
    // Subtracted from every value.
    least: u64,
}

impl RerankRows {
    /// The rows of a column with `values` values per document; `None` where it is stored in another way.
    pub fn find(reader: &SegmentReader, column: &Column<u64>, values: usize) -> tantivy::Result<Option<RerankRows>> {
        let Some(handle) = reader.fast_fields().dynamic_column_handle(RERANK_VECTOR, ColumnType::U64)? else {
            return Ok(None);
        };
        let count = column.values.num_vals();
        if u64::from(count) != u64::from(reader.max_doc()) * values as u64 {
            return Ok(None);
        }
        let bytes = handle.file_slice().read_bytes()?;
        let found = Layout::of(&bytes, count);
        Ok(found.map(|Layout { first, least }| RerankRows { bytes, first, row: 8 * values, least }))
    }

    /// The bytes of a document's values; [`RerankRows::value`] reads them.
    #[inline]
    pub fn get(&self, document: DocId) -> Option<&[u8]> {
        let from = self.first + document as usize * self.row;
        self.bytes.get(from..from + self.row)
    }

    #[inline]
    pub fn value(&self, bytes: [u8; 8]) -> u64 {
        u64::from_le_bytes(bytes).wrapping_add(self.least)
    }
}

/// Where a column's values are.
#[derive(Debug, PartialEq)]
struct Layout {
    first: usize,
    least: u64,
}

impl Layout {
    /// A column is an index from documents to values, a codec, the codec's head (least value, greatest common divisor, range and
    /// count, as numbers of variable length), the values, and the length of the index in four bytes.
    fn of(bytes: &[u8], count: u32) -> Option<Layout> {
        let (body, index) = bytes.split_last_chunk::<4>()?;
        let mut head = body.get(u32::from_le_bytes(*index) as usize..)?;
        let (codec, rest) = head.split_first()?;
        head = rest;
        let least = number(&mut head)?;
        let (divisor, range, stored) = (number(&mut head)?, number(&mut head)?, number(&mut head)?);
        let plain = *codec == BITPACKED && divisor == 1 && range >> 56 != 0 && stored == u64::from(count);
        let first = body.len() - head.len();
        (plain && head.len() == 8 * count as usize).then_some(Layout { first, least })
    }
}

/// A number in groups of seven bits, the lowest first; the last group has the eighth bit.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 127) << shift;
        if byte & 128 != 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoProgress;
    use crate::index::tests::{document, embeddings, model, scratch};
    use crate::index::{Index, IndexConfig, RerankVectors};
    use crate::model::CodeShape;

    #[test]
    fn rows_are_the_values_of_the_column() {
        let dir = scratch();
        let model = model(CodeShape::micpq(32).unwrap(), 1);
        let config = IndexConfig { rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() };
        let index = Index::create(&dir.path().join("index"), &model, config).unwrap();
        let mut writer = index.writer().unwrap();
        let documents: Vec<_> = (0..300).map(document).collect();
        writer.add_embeddings(&documents, &embeddings(300, 5)).unwrap();
        writer.close(&NoProgress).unwrap();
        index.reload(&NoProgress).unwrap();
        let values = RerankVectors::Int8.u64s(model.inputs());
        let snapshot = index.inner.snapshot();
        for reader in snapshot.searcher().segment_readers() {
            let column = reader.fast_fields().u64(RERANK_VECTOR).unwrap();
            let rows = RerankRows::find(reader, &column, values).unwrap().expect("values of 64 bits");
            assert!(rows.least > 0, "the least value is subtracted from the others");
            for document in 0..reader.max_doc() {
                let own: Vec<u64> = column.values_for_doc(document).collect();
                let row = rows.get(document).unwrap().as_chunks::<8>().0.iter();
                assert_eq!(row.map(|bytes| rows.value(*bytes)).collect::<Vec<u64>>(), own);
            }
            assert!(rows.get(reader.max_doc()).is_none_or(|row| row.len() < 8 * values));
            assert!(RerankRows::find(reader, &column, values + 1).unwrap().is_none());
        }
    }

    #[test]
    fn other_layouts_are_left_to_the_decoder() {
        let column = |codec: u8, divisor: u8, range: &[u8], count: u8, values: usize| {
            let mut bytes = vec![9, 9, codec, 5 | 128, divisor | 128];
            bytes.extend_from_slice(range);
            bytes.push(count | 128);
            bytes.resize(bytes.len() + values, 7);
            bytes.extend_from_slice(&2u32.to_le_bytes());
            bytes
        };
        // Nine groups of seven bits: a range of 63 bits.
        let wide = [1, 1, 1, 1, 1, 1, 1, 1, 129];
        let found = Layout::of(&column(0, 1, &wide, 3, 24), 3);
        assert_eq!(found, Some(Layout { first: 15, least: 5 }));
        for other in [
            column(2, 1, &wide, 3, 24),
            column(0, 3, &wide, 3, 24),
            column(0, 1, &[129], 3, 24),
            column(0, 1, &wide, 2, 24),
            column(0, 1, &wide, 3, 23),
            Vec::new(),
            vec![255; 12],
        ] {
            assert_eq!(Layout::of(&other, 3), None, "{other:?}");
        }
    }
}
