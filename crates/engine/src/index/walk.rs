//! Iterates over all documents of one commit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use tantivy::DocAddress;
use tantivy::columnar::StrColumn;

use super::files::Part;
use super::reader::Reader;
use super::snapshot::{Record, Snapshot};
use super::{Index, Inner, RerankVectors, STORE, guarded_ours, tantivy_error};
use crate::corpus::{DocId, Document};
use crate::language::Language;
use crate::{Error, Progress, Result};

/// The documents of one commit in the order of insertion, without deleted ones. Later commits are not seen.
pub struct Walk {
    pub(super) inner: Arc<Inner>,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) order: Vec<DocAddress>,
}

impl Index {
    /// Takes the current commit. Uses 8 bytes per document for the order.
    pub fn walk(&self) -> Result<Walk> {
        self.reader()?.walk()
    }

    /// The rerank vector of a document, of its first chunk where there are chunks; `None` if there is no such document or the
    /// index stores no vectors.
    pub fn vector(&self, id: &DocId) -> Result<Option<Vec<f32>>> {
        let snapshot = self.inner.sound()?;
        let address = guarded_ours(&self.inner.dir.join(STORE), || snapshot.find(&self.inner.fields, id))?;
        address.map_or(Ok(None), |address| self.inner.vector(&snapshot, address))
    }

    /// An iterator over [`Index::walk`]. Without `documents` it returns only ids, codes and sequence numbers, and reads
    /// no text.
    pub fn records(&self, documents: bool) -> Result<Records> {
        Ok(Records { walk: self.walk()?, next: 0, documents })
    }

    /// The id of every document with its values of some text attributes, in the order of `names`. Reads columns only.
    pub fn text_attributes(&self, names: &[&str]) -> Result<Vec<(DocId, Vec<Option<String>>)>> {
        let (snapshot, store) = (self.inner.snapshot(), self.inner.dir.join(STORE));
        guarded_ours(&store, || {
            snapshot.require(Part::Columns)?;
            let mut all = Vec::new();
            for (reader, ordinal) in snapshot.searcher().segment_readers().iter().zip(0u32..) {
                let column = |name: &&str| reader.fast_fields().str(&format!("attributes.{name}"));
                let columns: Vec<Option<StrColumn>> =
                    names.iter().map(column).collect::<tantivy::Result<_>>().map_err(|e| tantivy_error(&store, e))?;
                for row in snapshot.firsts_alive(reader, ordinal) {
                    let value = |column: &Option<StrColumn>| -> std::io::Result<Option<String>> {
                        let Some(column) = column else { return Ok(None) };
                        let Some(ordinal) = column.term_ords(row).next() else { return Ok(None) };
                        let mut text = String::new();
                        Ok(column.ord_to_str(ordinal, &mut text)?.then_some(text))
                    };
                    let values =
                        columns.iter().map(value).collect::<std::io::Result<_>>().map_err(Error::io(&store))?;
                    all.push((snapshot.id(DocAddress::new(ordinal, row))?, values));
                }
            }
            Ok(all)
        })
    }

    /// A number that changes with every commit and merge.
    pub fn commit_number(&self) -> u64 {
        self.inner.snapshot().number()
    }

    /// Documents per codeword of each codebook, without deleted ones: `[num_codebooks][codebook_size]`.
    pub fn usage(&self, progress: &dyn Progress) -> Result<Vec<Vec<u64>>> {
        Reader::new(self.inner.clone(), self.inner.snapshot()).usage(progress)
    }
}

impl Reader {
    /// All documents of this commit. Uses 8 bytes per document for the order.
    pub fn walk(&self) -> Result<Walk> {
        let snapshot = &self.snapshot;
        let is_first = |address: &DocAddress| snapshot.first(*address) == *address;
        let order = guarded_ours(&self.inner.dir.join(STORE), || Ok(in_order(snapshot).filter(is_first).collect()))?;
        Ok(Walk { inner: self.inner.clone(), snapshot: snapshot.clone(), order })
    }

    /// See [`Index::usage`].
    pub fn usage(&self, progress: &dyn Progress) -> Result<Vec<Vec<u64>>> {
        let snapshot = &self.snapshot;
        let shape = self.inner.model.shape();
        guarded_ours(&self.inner.dir.join(STORE), || {
            snapshot.require(Part::Columns)?;
            let mut counts = vec![vec![0; shape.codebook_size()]; shape.num_codebooks()];
            for (ordinal, segment) in snapshot.segments().iter().enumerate() {
                if progress.interrupted() {
                    return Err(Error::Interrupted);
                }
                let reader = snapshot.searcher().segment_reader(ordinal as u32);
                for (code, document) in segment.columns.codes().chunks_exact(shape.code_bytes()).zip(0u32..) {
                    if !reader.is_deleted(document) {
                        counts
                            .iter_mut()
                            .enumerate()
                            .for_each(|(m, codewords)| codewords[shape.codeword(code, m)] += 1);
                    }
                }
            }
            Ok(counts)
        })
    }
}

/// A chunk as it is stored: its bytes of the text, its code and its packed rerank vector, empty if the index stores none.
pub(super) struct StoredChunk {
    pub range: Range<usize>,
    pub code: Vec<u8>,
    pub vector: Vec<u64>,
}

impl Walk {
    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The language of the terms.
    pub(crate) fn language(&self) -> Language {
        self.inner.manifest.layout().language
    }

    /// Compares every file of this commit with its checksum now. Call this before writing its documents to another index, whose
    /// checksums would hide damage from then on.
    pub fn check_files(&self) -> Result<()> {
        self.snapshot.check_files()
    }

    /// The `i`-th document. Panics if `i` is out of range.
    pub fn get(&self, i: usize) -> Result<Record> {
        self.inner.record(&self.snapshot, self.order[i])
    }

    /// The id and the insertion sequence of the `i`-th document; reads nothing else.
    pub(crate) fn id_and_sequence(&self, i: usize) -> Result<(DocId, u64)> {
        let record = guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.bare(self.order[i]))?;
        Ok((record.id, record.sequence))
    }

    /// The packed codes of all documents, `[len, code_bytes]`.
    pub fn codes(&self) -> Result<Vec<u8>> {
        let width = self.inner.model.shape().code_bytes();
        guarded_ours(&self.inner.dir.join(STORE), || {
            let segments: Vec<Vec<u8>> = self.snapshot.segments().iter().map(|s| s.columns.codes()).collect();
            let mut all = Vec::with_capacity(self.order.len() * width);
            for address in &self.order {
                let at = address.doc_id as usize * width;
                all.extend_from_slice(&segments[address.segment_ord as usize][at..at + width]);
            }
            Ok(all)
        })
    }

    /// A reader of the same commit.
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(self.inner.clone(), self.snapshot.clone())
    }

    /// How many documents were inserted before this sequence.
    pub(crate) fn before(&self, sequence: u64) -> usize {
        let columns = |address: &DocAddress| &self.snapshot.segments()[address.segment_ord as usize].columns;
        self.order.partition_point(|address| columns(address).sequence.get_val(address.doc_id) < sequence)
    }

    /// Where the `i`-th document is in this commit.
    pub(crate) fn address(&self, i: usize) -> DocAddress {
        self.order[i]
    }

    /// The rerank vector of the `i`-th document; `None` if the index stores no vectors.
    pub fn vector(&self, i: usize) -> Result<Option<Vec<f32>>> {
        self.inner.vector(&self.snapshot, self.order[i])
    }

    /// The id of the `i`-th document; reads nothing else.
    pub(crate) fn id(&self, i: usize) -> Result<DocId> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.id(self.order[i]))
    }

    /// The chunks of the `i`-th document as they are stored; one without chunks.
    pub(super) fn chunks(&self, i: usize) -> Result<Vec<StoredChunk>> {
        let has_vectors = self.inner.manifest.rerank_vectors() != RerankVectors::None;
        let mut unpacked = vec![0.0; self.inner.model.inputs()];
        let chunk = |address: DocAddress| {
            let mut vector = Vec::new();
            if has_vectors {
                self.snapshot.rerank_vector(address, &mut vector, &mut unpacked)?;
            }
            let start = self.snapshot.chunk_place(address).map_or(0, |(_, start)| start as usize);
            let text = self.snapshot.stored(&self.inner.fields, address)?.text;
            let range = start..start + text.map_or(0, |text| text.len());
            Ok(StoredChunk { range, code: self.snapshot.code(address), vector })
        };
        let addresses = self.snapshot.chunks(self.order[i]);
        guarded_ours(&self.inner.dir.join(STORE), || addresses.map(chunk).collect())
    }

    /// Refuses an index that cannot be encoded again: it has documents without text and stores no vectors.
    pub fn expect_texts_or_vectors(&self) -> Result<()> {
        match self.inner.manifest.rerank_vectors() {
            RerankVectors::None => self.expect_texts("the index stores no vectors"),
            _ => Ok(()),
        }
    }

    /// Refuses documents without text. `why` says why their vectors cannot be used instead. Reads every document.
    pub(super) fn expect_texts(&self, why: &str) -> Result<()> {
        let mut count = 0;
        for &address in &self.order {
            count += usize::from(self.inner.record(&self.snapshot, address)?.is_without_text());
        }
        if count == 0 {
            return Ok(());
        }
        Err(Error::config(format!(
            "{count} of {} documents have no text to encode again, and {why}; add them again with their texts, or delete them",
            self.order.len()
        )))
    }
}

impl Inner {
    /// The rerank vector of a document, with the precision it is stored in.
    pub(super) fn vector(&self, snapshot: &Snapshot, address: DocAddress) -> Result<Option<Vec<f32>>> {
        if self.manifest.rerank_vectors() == RerankVectors::None {
            return Ok(None);
        }
        let mut vector = vec![0.0; self.model.inputs()];
        guarded_ours(&self.dir.join(STORE), || snapshot.rerank_vector(address, &mut Vec::new(), &mut vector))?;
        Ok(Some(vector))
    }
}

impl From<Record> for Document {
    fn from(record: Record) -> Document {
        let Record { id, text, labels, attributes, .. } = record;
        Document { id, text: text.unwrap_or_default(), labels, attributes }
    }
}

impl Record {
    /// Whether there is no text to encode: the document came as a user vector.
    pub fn is_without_text(&self) -> bool {
        self.text.as_deref().is_none_or(|text| text.trim().is_empty())
    }
}

/// Iterator over a [`Walk`].
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

/// The rows of a commit in the order of insertion, without deleted ones: documents, or all chunks of each. Ranks within a
/// segment are in that order, so the segments are merged.
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
