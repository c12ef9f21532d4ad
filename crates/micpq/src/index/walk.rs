//! All documents of one commit, one after the other: for those who need every text or every code.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
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
    /// Takes the present commit. Costs 8 bytes a document for the order.
    pub fn walk(&self) -> Result<Walk> {
        let snapshot = self.inner.sound()?;
        let order = guarded_ours(&self.inner.dir.join(STORE), || Ok(in_order(&snapshot).collect()))?;
        Ok(Walk { inner: self.inner.clone(), snapshot, order })
    }

    /// The same one by one; without `documents` only ids, codes and places, which costs no text.
    pub fn records(&self, documents: bool) -> Result<Records> {
        Ok(Records { walk: self.walk()?, next: 0, documents })
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
        self.inner.record(&self.snapshot, self.order[i])
    }
}

/// A [`Walk`] from its first document to its last.
pub struct Records {
    walk: Walk,
    next: usize,
    documents: bool,
}

impl Iterator for Records {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let &address = self.walk.order.get(self.next)?;
        self.next += 1;
        let Walk { inner, snapshot, .. } = &self.walk;
        Some(match self.documents {
            true => inner.record(snapshot, address),
            false => guarded_ours(&inner.dir.join(STORE), || snapshot.bare(address)),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.walk.order.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Records {}

/// The living documents of a commit in the order of insertion: within a segment ranks are in that order, and segments
/// are woven together.
pub(super) fn in_order(snapshot: &Snapshot) -> impl Iterator<Item = DocAddress> + '_ {
    let next = move |ordinal: usize, from: u32| {
        let (segment, reader) = (&snapshot.segments()[ordinal], snapshot.searcher().segment_reader(ordinal as u32));
        let mut ranks = from..segment.blocks.len() as u32;
        let rank = ranks.find(|&rank| !reader.is_deleted(segment.blocks.number(rank)))?;
        let document = segment.blocks.number(rank);
        Some(Reverse((segment.columns.sequence.get_val(document), ordinal, rank, document)))
    };
    let mut heads: BinaryHeap<_> = (0..snapshot.segments().len()).filter_map(|ordinal| next(ordinal, 0)).collect();
    std::iter::from_fn(move || {
        let Reverse((_, ordinal, rank, document)) = heads.pop()?;
        heads.extend(next(ordinal, rank + 1));
        Some(DocAddress::new(ordinal as u32, document))
    })
}
