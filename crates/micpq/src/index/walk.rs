//! All documents of one commit, one after the other: for those who need every text or every code.

use std::sync::Arc;

use tantivy::DocAddress;

use super::snapshot::{Record, Snapshot};
use super::{Index, Inner, STORE, guarded_ours};
use crate::Result;

/// The living documents of one commit in the order of insertion. What is written meanwhile is not seen.
pub struct Walk {
    inner: Arc<Inner>,
    snapshot: Arc<Snapshot>,
    order: Vec<DocAddress>,
}

impl Index {
    /// Takes the present commit. Costs 16 bytes a document for the order.
    pub fn walk(&self) -> Result<Walk> {
        let snapshot = self.inner.snapshot();
        let order = guarded_ours(&self.inner.dir.join(STORE), || {
            let mut order: Vec<(u64, DocAddress)> = Vec::with_capacity(snapshot.searcher().num_docs() as usize);
            for (ordinal, segment) in snapshot.segments().iter().enumerate() {
                let reader = snapshot.searcher().segment_reader(ordinal as u32);
                let living =
                    segment.columns.sequences().into_iter().zip(0u32..).filter(|(_, d)| !reader.is_deleted(*d));
                order.extend(living.map(|(sequence, document)| (sequence, DocAddress::new(ordinal as u32, document))));
            }
            order.sort_unstable_by_key(|(sequence, _)| *sequence);
            Ok(order.into_iter().map(|(_, address)| address).collect())
        })?;
        Ok(Walk { inner: self.inner.clone(), snapshot, order })
    }

    /// A number that changes with every commit and merge.
    pub fn commit_number(&self) -> u64 {
        self.inner.snapshot().number()
    }

    /// How many living documents have each word of each book: `[books][words]`.
    pub fn usage(&self) -> Result<Vec<Vec<u64>>> {
        let snapshot = self.inner.snapshot();
        let shape = self.inner.model.shape();
        guarded_ours(&self.inner.dir.join(STORE), || {
            let mut counts = vec![vec![0; shape.words()]; shape.books()];
            for (ordinal, segment) in snapshot.segments().iter().enumerate() {
                let reader = snapshot.searcher().segment_reader(ordinal as u32);
                for (code, document) in segment.columns.codes().chunks_exact(shape.code_bytes()).zip(0u32..) {
                    if !reader.is_deleted(document) {
                        counts.iter_mut().enumerate().for_each(|(m, words)| words[shape.word(code, m)] += 1);
                    }
                }
            }
            Ok(counts)
        })
    }
}

impl Walk {
    /// Documents.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The `i`-th document.
    pub fn get(&self, i: usize) -> Result<Record> {
        let store = self.inner.dir.join(STORE);
        guarded_ours(&store, || self.snapshot.record(&self.inner.fields, self.order[i]))
    }
}
