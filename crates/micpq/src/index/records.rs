//! Every document of a commit, in the order of insertion: what export reads.

use std::sync::Arc;

use tantivy::DocAddress;

use super::snapshot::{Record, Snapshot};
use super::{Inner, STORE, guarded_ours};
use crate::Result;

/// The documents of one commit, one after the other. Later commits do not show.
pub struct Records {
    inner: Arc<Inner>,
    snapshot: Arc<Snapshot>,
    // Twelve bytes a document: segments interleave in the order of insertion.
    order: std::vec::IntoIter<DocAddress>,
    documents: bool,
}

impl Records {
    pub(super) fn new(inner: Arc<Inner>, documents: bool) -> Records {
        let snapshot = inner.snapshot();
        let mut order: Vec<(u64, DocAddress)> = Vec::with_capacity(snapshot.searcher().num_docs() as usize);
        let segments = snapshot.segments().iter().zip(snapshot.searcher().segment_readers());
        for (ordinal, (segment, reader)) in segments.enumerate() {
            let place =
                |document| (segment.columns.sequence.get_val(document), DocAddress::new(ordinal as u32, document));
            order.extend(reader.doc_ids_alive().map(place));
        }
        order.sort_unstable_by_key(|(sequence, _)| *sequence);
        let order = order.into_iter().map(|(_, address)| address).collect::<Vec<_>>().into_iter();
        Records { inner, snapshot, order, documents }
    }
}

impl Iterator for Records {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let address = self.order.next()?;
        let (snapshot, fields) = (&self.snapshot, &self.inner.fields);
        Some(guarded_ours(&self.inner.dir.join(STORE), || match self.documents {
            true => snapshot.record(fields, address),
            false => snapshot.bare(address),
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.order.size_hint()
    }
}

impl ExactSizeIterator for Records {}
