//! The rows of a segment that are chunks of one document.
//!
//! In an index with chunks every row of the store is a chunk and has its document's id. The chunks of a document lie side by
//! side in one segment, in their order: they are added as one group, which tantivy writes to one segment; merges keep the
//! order of rows; and a delete by id takes all of them.

use std::ops::Range;
use std::sync::Arc;

use tantivy::SegmentReader;
use tantivy::columnar::ColumnValues;

use super::filter::Bitmap;
use super::schema::{CHUNK, START};

/// The columns of a segment that say which chunk of its document a row is.
pub(super) struct ChunkColumns {
    number: Arc<dyn ColumnValues<u64>>,
    start: Arc<dyn ColumnValues<u64>>,
    rows: u32,
}

impl ChunkColumns {
    pub fn open(reader: &SegmentReader) -> tantivy::Result<ChunkColumns> {
        let column = |name: &str| reader.fast_fields().column_first_or_default::<u64>(name);
        Ok(ChunkColumns { number: column(CHUNK)?, start: column(START)?, rows: reader.max_doc() })
    }

    /// Which chunk of its document a row is, counted from 0.
    pub fn number(&self, row: u32) -> u32 {
        self.number.get_val(row) as u32
    }

    /// Whether a row is the first chunk of its document.
    pub fn is_first(&self, row: u32) -> bool {
        self.number.get_val(row) == 0
    }

    /// Where a chunk begins in its document's text, in bytes.
    pub fn start(&self, row: u32) -> u64 {
        self.start.get_val(row)
    }

    /// The first chunk of a row's document.
    pub fn first(&self, row: u32) -> u32 {
        row.saturating_sub(self.number(row))
    }

    /// All chunks of the document whose first chunk is `first`.
    pub fn of(&self, first: u32) -> Range<u32> {
        let end = (first + 1..self.rows).find(|&row| self.number(row) == 0);
        first..end.unwrap_or(self.rows)
    }

    /// The first chunks of all documents that have one of these rows.
    pub fn firsts(&self, rows: &Bitmap) -> Bitmap {
        let mut firsts = Bitmap::empty(self.rows as usize);
        rows.iter().for_each(|row| firsts.insert(self.first(row)));
        firsts
    }
}
