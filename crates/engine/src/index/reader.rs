//! A reader holds one commit while a request is answered.

use std::collections::BTreeSet;
use std::sync::Arc;

use tantivy::DocAddress;
use tantivy::snippet::SnippetGenerator;

use super::files::Part;
use super::filter::{Bitmap, Filter, matching};
use super::keywords::{self, KeywordStatistics, Keywords, Scored};
use super::rerank_vectors::Cosines;
use super::schema::Stored;
use super::segment::Segment;
use super::snapshot::{Candidate, Scanned, Snapshot};
use super::{Index, Inner, STORE, guarded, guarded_ours};
use crate::Result;
use crate::corpus::DocId;
use crate::model::{DistanceTable, Model};
use crate::search::TopKRequest;

/// The query layer's view of an index: one commit, unaffected by writers.
pub(crate) struct Reader {
    pub(super) inner: Arc<Inner>,
    pub(super) snapshot: Arc<Snapshot>,
}

impl Index {
    pub(crate) fn reader(&self) -> Result<Reader> {
        Ok(Reader::new(self.inner.clone(), self.inner.sound()?))
    }
}

impl Reader {
    pub(super) fn new(inner: Arc<Inner>, snapshot: Arc<Snapshot>) -> Reader {
        Reader { inner, snapshot }
    }

    pub fn model(&self) -> &Model {
        &self.inner.model
    }

    /// Changes with every commit and merge.
    pub fn number(&self) -> u64 {
        self.snapshot.number()
    }

    /// [`Index::len`] of this commit.
    pub fn len(&self) -> usize {
        self.snapshot.documents()
    }

    /// Number of living documents.
    pub fn documents(&self) -> u64 {
        self.snapshot.searcher().num_docs()
    }

    /// Names of the attributes that some document has.
    pub fn attributes(&self) -> Result<&BTreeSet<String>> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.attributes())
    }

    /// Parses a filter. If the known attributes are given, any other name is refused.
    pub fn filter(&self, text: &str, known: Option<&BTreeSet<String>>) -> Result<Filter> {
        guarded_ours(&self.inner.dir.join(STORE), || self.inner.parse_filter_of(text, known))
    }

    /// Address of the document with this id; deleted ones are not found.
    pub fn find(&self, id: &DocId) -> Result<Option<DocAddress>> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.find(&self.inner.fields, id))
    }

    /// The insertion sequence of a row.
    pub fn sequence(&self, address: DocAddress) -> u64 {
        self.snapshot.segments()[address.segment_ord as usize].columns.sequence.get_val(address.doc_id)
    }

    /// The insertion sequence after those of all rows, deleted ones too.
    pub fn end(&self) -> u64 {
        let last = |segment: &Segment| {
            let rank = (segment.blocks.len() as u32).checked_sub(1)?;
            Some(segment.columns.sequence.get_val(segment.blocks.number(rank)) + 1)
        };
        self.snapshot.segments().iter().filter_map(last).max().unwrap_or(0)
    }

    /// Living rows that were inserted at this sequence or later, with their sequences, in that order.
    pub fn rows_since(&self, sequence: u64) -> Result<Vec<(u64, DocAddress)>> {
        self.snapshot.require(Part::Columns)?;
        guarded_ours(&self.inner.dir.join(STORE), || {
            let mut found = Vec::new();
            let readers = self.snapshot.searcher().segment_readers();
            for ((segment, reader), ordinal) in self.snapshot.segments().iter().zip(readers).zip(0u32..) {
                // Ranks follow the order of insertion, so the new rows are the last ones.
                let of = |rank: u32| {
                    let row = segment.blocks.number(rank);
                    (segment.columns.sequence.get_val(row), row)
                };
                let ranks = (0..segment.blocks.len() as u32).rev().map(of);
                let new = ranks.take_while(|(own, _)| *own >= sequence).filter(|(_, row)| !reader.is_deleted(*row));
                found.extend(new.map(|(own, row)| (own, DocAddress::new(ordinal, row))));
            }
            found.sort_unstable();
            Ok(found)
        })
    }

    /// See [`Snapshot::nearest`].
    pub fn nearest(
        &self,
        tables: &[DistanceTable],
        request: &TopKRequest,
        filter: Option<&Filter>,
    ) -> Result<Vec<(Vec<Candidate>, Vec<Scanned>)>> {
        let shape = self.inner.model.shape();
        let filter = filter.map(|filter| (filter, &self.inner.selections));
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.nearest(shape, tables, request, filter))
    }

    pub fn code(&self, address: DocAddress) -> Result<Vec<u8>> {
        guarded_ours(&self.inner.dir.join(STORE), || Ok(self.snapshot.code(address)))
    }

    /// Passes the rerank vectors of documents to `take`, in the order of `addresses`.
    pub fn read_rerank_vectors(
        &self,
        addresses: impl Iterator<Item = DocAddress>,
        mut take: impl FnMut(&[f32]),
    ) -> Result<()> {
        let (mut blocks, mut embedding) = (Vec::new(), vec![0.0; self.inner.model.inputs()]);
        guarded_ours(&self.inner.dir.join(STORE), || {
            for address in addresses {
                self.snapshot.rerank_vector(address, &mut blocks, &mut embedding)?;
                take(&embedding);
            }
            Ok(())
        })
    }

    /// Cosines of documents' rerank vectors with embeddings, `[addresses, embeddings]`.
    pub fn cosines(
        &self,
        addresses: impl Iterator<Item = DocAddress> + Clone,
        embeddings: &[&[f32]],
    ) -> Result<Vec<f32>> {
        /// Vectors that are loaded while one is compared: each is seven cache lines, and a core loads some twenty at once.
        const AHEAD: usize = 4;
        let mut cosines = Cosines::new(embeddings);
        let mut out = Vec::with_capacity(addresses.size_hint().0 * embeddings.len());
        guarded_ours(&self.inner.dir.join(STORE), || {
            let mut later = addresses.clone();
            later.by_ref().take(AHEAD).for_each(|address| self.snapshot.prefetch_rerank_vector(address));
            for address in addresses {
                if let Some(address) = later.next() {
                    self.snapshot.prefetch_rerank_vector(address);
                }
                self.snapshot.cosines(address, &mut cosines, &mut out)?;
            }
            Ok(out)
        })
    }

    /// Statistics of these stems for BM25; empty if the index stores no texts.
    pub fn statistics<'a>(&self, stems: impl Iterator<Item = &'a String> + Clone) -> Result<KeywordStatistics> {
        let Some(fields) = self.inner.fields.documents else { return Ok(KeywordStatistics::default()) };
        self.snapshot.require(Part::Terms)?;
        let readers = self.snapshot.searcher().segment_readers();
        guarded(&self.inner.dir.join(STORE), || {
            let mut statistics = KeywordStatistics { documents: self.documents(), ..KeywordStatistics::default() };
            for (segment, reader) in self.snapshot.segments().iter().zip(readers) {
                statistics.tokens += segment.tokens(|| keywords::tokens(reader, fields.text))?;
                for stem in stems.clone() {
                    let frequency = keywords::frequency(reader, fields.text, stem)?;
                    *statistics.frequencies.entry(stem.clone()).or_default() += frequency;
                }
            }
            Ok(statistics)
        })
    }

    /// The candidate for a row found by other means than its code.
    pub fn near(&self, table: &DistanceTable, address: DocAddress) -> Candidate {
        self.snapshot.near(table, address)
    }

    pub fn has_chunks(&self) -> bool {
        self.snapshot.has_chunks()
    }

    /// Chunks per document, rounded up.
    pub fn chunks_per_document(&self) -> usize {
        (self.snapshot.searcher().num_docs() as usize).div_ceil(self.snapshot.documents().max(1)).max(1)
    }

    /// The first chunk of a row's document, which stands for the document.
    pub fn first(&self, address: DocAddress) -> DocAddress {
        self.snapshot.first(address)
    }

    /// All chunks of a document, by its first.
    pub fn chunks(&self, first: DocAddress) -> impl Iterator<Item = DocAddress> + use<> {
        self.snapshot.chunks(first)
    }

    /// Which chunk of its document a row is, and where it begins in the text.
    pub fn chunk_place(&self, address: DocAddress) -> Option<(u32, u64)> {
        self.snapshot.chunk_place(address)
    }

    /// The rows of every segment that match a filter.
    pub fn matching(&self, filter: &Filter) -> Result<Vec<Bitmap>> {
        self.snapshot.require(Part::Terms)?;
        let searcher = self.snapshot.searcher();
        guarded_ours(&self.inner.dir.join(STORE), || {
            searcher.segment_readers().iter().map(|reader| matching(searcher, reader, filter)).collect()
        })
    }

    /// The best documents by BM25, best first, with their scores. Ties are ordered by insertion.
    pub fn by_keywords(
        &self,
        keywords: &Keywords,
        statistics: &KeywordStatistics,
        table: &DistanceTable,
        filter: Option<&Filter>,
        limit: usize,
    ) -> Result<Vec<(f32, Candidate)>> {
        let Some(fields) = self.inner.fields.documents else { return Ok(Vec::new()) };
        let store = self.inner.dir.join(STORE);
        self.snapshot.require(Part::Terms)?;
        let searcher = self.snapshot.searcher();
        let mut found: Vec<(Scored, u32)> = Vec::new();
        for (ordinal, (segment, reader)) in self.snapshot.segments().iter().zip(searcher.segment_readers()).enumerate()
        {
            let only = filter.map(|f| guarded_ours(&store, || matching(searcher, reader, f))).transpose()?;
            let sequence = |document| segment.columns.sequence.get_val(document);
            let best = guarded(&store, || {
                keywords::best(reader, fields.text, keywords, statistics, only.as_ref(), limit, sequence)
            })?;
            found.extend(best.into_iter().map(|scored| (scored, ordinal as u32)));
        }
        found.sort_unstable_by_key(|found| found.0);
        found.truncate(limit);
        let candidate = |(scored, ordinal): (Scored, u32)| {
            (scored.score, self.snapshot.near(table, DocAddress::new(ordinal, scored.document)))
        };
        guarded_ours(&store, || Ok(found.into_iter().map(candidate).collect()))
    }

    /// `None` if the index stores no texts.
    pub fn snippets(
        &self,
        keywords: &Keywords,
        statistics: &KeywordStatistics,
        most_chars: usize,
    ) -> Result<Option<SnippetGenerator>> {
        let Some(fields) = self.inner.fields.documents else { return Ok(None) };
        let searcher = self.snapshot.searcher();
        guarded(&self.inner.dir.join(STORE), || keywords.snippets(searcher, fields.text, statistics, most_chars))
            .map(Some)
    }

    /// The whole text of a document; `None` if the index stores no texts.
    pub fn text(&self, address: DocAddress) -> Result<Option<String>> {
        Ok(self.inner.record(&self.snapshot, address)?.text)
    }

    pub fn id(&self, address: DocAddress) -> Result<DocId> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.id(address))
    }

    pub fn stored(&self, address: DocAddress) -> Result<Stored> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.stored(&self.inner.fields, address))
    }
}
