//! Stems of the texts, counted by classes of documents.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tantivy::postings::Postings;
use tantivy::schema::IndexRecordOption;
use tantivy::{DocSet, TERMINATED};

use super::files::Part;
use super::{STORE, Walk, tantivy_error};
use crate::{Error, Progress, Result};

/// Stems between two looks at whether to stop.
const CHUNK: usize = 4096;

impl Walk {
    /// Terms of the texts, counted in every segment.
    pub(crate) fn num_terms(&self) -> Result<u64> {
        let Some(fields) = self.inner.fields.documents else { return Ok(0) };
        self.snapshot.require(Part::Terms)?;
        let store = self.inner.dir.join(STORE);
        super::guarded_ours(&store, || {
            let readers = self.snapshot.searcher().segment_readers().iter();
            let count = |reader: &tantivy::SegmentReader| {
                let inverted = reader.inverted_index(fields.text).map_err(|e| tantivy_error(&store, e))?;
                Ok(inverted.terms().num_terms() as u64)
            };
            readers.map(count).sum()
        })
    }

    /// Calls `take(stem, counts)` for the stems that at least `min_documents` documents have, in alphabetical order. `counts` has
    /// the occurrences in each of `count` classes; `classes` has the class of every document, `None` if it has none. Nothing
    /// is called if the index stores no texts.
    ///
    /// The dictionaries of the segments are merged as they are read, so the memory does not grow with the vocabulary.
    pub(crate) fn count_stems(
        &self,
        classes: &[Option<u16>],
        count: usize,
        min_documents: u64,
        mut take: impl FnMut(&str, &[u64]),
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some(fields) = self.inner.fields.documents else { return Ok(()) };
        self.snapshot.require(Part::Terms)?;
        let store = self.inner.dir.join(STORE);
        let readers = self.snapshot.searcher().segment_readers();
        let mut of_document: Vec<Vec<Option<u16>>> = readers.iter().map(|r| vec![None; r.max_doc() as usize]).collect();
        for (address, &class) in self.order.iter().zip(classes) {
            of_document[address.segment_ord as usize][address.doc_id as usize] = class;
        }
        super::guarded_ours(&store, || {
            let failed = |e: std::io::Error| Error::io(&store)(e);
            let opened = readers.iter().map(|r| r.inverted_index(fields.text).map_err(|e| tantivy_error(&store, e)));
            let inverted = opened.collect::<Result<Vec<_>>>()?;
            let streams = inverted.iter().map(|i| i.terms().stream().map_err(failed));
            let mut streams = streams.collect::<Result<Vec<_>>>()?;
            let mut heads: BinaryHeap<Reverse<(Vec<u8>, usize)>> = BinaryHeap::new();
            for (segment, stream) in streams.iter_mut().enumerate() {
                heads.extend(stream.advance().then(|| Reverse((stream.key().to_vec(), segment))));
            }
            let mut counts = vec![0; count];
            let (mut seen, mut read) = (0, 0);
            while let Some(Reverse((stem, _))) = heads.peek() {
                let stem = stem.clone();
                let mut having = Vec::new();
                while let Some(Reverse((_, segment))) = heads.peek().filter(|head| head.0.0 == stem) {
                    let segment = *segment;
                    heads.pop();
                    read += 1;
                    having.push((segment, streams[segment].value().clone()));
                    let stream = &mut streams[segment];
                    heads.extend(stream.advance().then(|| Reverse((stream.key().to_vec(), segment))));
                }
                seen += 1;
                if seen % CHUNK == 0 {
                    progress.advance(std::mem::take(&mut read));
                    if progress.interrupted() {
                        return Err(Error::Interrupted);
                    }
                }
                let documents: u64 = having.iter().map(|(_, info)| u64::from(info.doc_freq)).sum();
                let Some(stem) = std::str::from_utf8(&stem).ok().filter(|_| documents >= min_documents) else {
                    continue;
                };
                counts.fill(0);
                for (segment, info) in having {
                    let option = IndexRecordOption::WithFreqs;
                    let mut postings = inverted[segment].read_postings_from_terminfo(&info, option).map_err(failed)?;
                    while postings.doc() != TERMINATED {
                        if let Some(class) = of_document[segment][postings.doc() as usize] {
                            counts[usize::from(class)] += u64::from(postings.term_freq());
                        }
                        postings.advance();
                    }
                }
                take(stem, &counts);
            }
            progress.advance(read);
            Ok(())
        })
    }
}
