//! Every document of a commit, in the order of insertion: what export and migration read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use tantivy::DocAddress;

use super::snapshot::{Record, Snapshot};
use super::{Inner, STORE, guarded_ours};
use crate::Result;

/// The documents of one commit, one after the other. Later commits do not show.
pub struct Records {
    inner: Arc<Inner>,
    snapshot: Arc<Snapshot>,
    order: InOrder,
    left: usize,
    documents: bool,
}

impl Records {
    pub(super) fn new(inner: Arc<Inner>, documents: bool) -> Result<Records> {
        let snapshot = inner.sound()?;
        let (order, left) = (InOrder::new(&snapshot), snapshot.searcher().num_docs() as usize);
        Ok(Records { inner, snapshot, order, left, documents })
    }
}

impl Iterator for Records {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let address = self.order.next(&self.snapshot)?;
        self.left = self.left.saturating_sub(1);
        let (snapshot, fields) = (&self.snapshot, &self.inner.fields);
        Some(guarded_ours(&self.inner.dir.join(STORE), || match self.documents {
            true => snapshot.record(fields, address),
            false => snapshot.bare(address),
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Records {}

/// The living documents of a commit in the order of insertion: within a segment ranks are in that order, and segments
/// are woven together.
pub(super) struct InOrder {
    // Sequence, segment, rank and document of the next of every segment.
    heads: BinaryHeap<Reverse<(u64, usize, u32, u32)>>,
}

impl InOrder {
    pub fn new(snapshot: &Snapshot) -> InOrder {
        InOrder { heads: (0..snapshot.segments().len()).filter_map(|segment| head(snapshot, segment, 0)).collect() }
    }

    /// The next one; `snapshot` is the one it was made with.
    pub fn next(&mut self, snapshot: &Snapshot) -> Option<DocAddress> {
        let Reverse((_, segment, rank, document)) = self.heads.pop()?;
        self.heads.extend(head(snapshot, segment, rank + 1));
        Some(DocAddress::new(segment as u32, document))
    }
}

fn head(snapshot: &Snapshot, number: usize, from: u32) -> Option<Reverse<(u64, usize, u32, u32)>> {
    let (segment, reader) = (&snapshot.segments()[number], snapshot.searcher().segment_reader(number as u32));
    let mut ranks = from..segment.blocks.len() as u32;
    let rank = ranks.find(|&rank| !reader.is_deleted(segment.blocks.number(rank)))?;
    let document = segment.blocks.number(rank);
    Some(Reverse((segment.columns.sequence.get_val(document), number, rank, document)))
}
