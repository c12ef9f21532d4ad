//! A snapshot: one commit as a reader sees it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use sha2::{Digest, Sha256};
use tantivy::columnar::{Column, ColumnValues, StrColumn};
use tantivy::index::SegmentId;
use tantivy::schema::IndexRecordOption;
use tantivy::{DocAddress, DocSet, Searcher, SegmentReader, TERMINATED, TantivyDocument};

use super::chunks::ChunkColumns;
use super::directory::StoreDirectory;
use super::files::{Part as FilePart, StoreFile};
use super::filter::{Bitmap, Filter, matching};
use super::rerank_vectors::{Cosines, RerankColumn};
use super::schema::{Fields, Layout, NAME, NUMBER, Stored};
use super::segment::Segment;
use super::selections::Selections;
use super::{STORE, tantivy_error};
use crate::corpus::{DocId, Value};
use crate::error::Remedy;
use crate::model::{CodeShape, DistanceTable, Model};
use crate::search::{self, CodeBlocks, Plan, ScanHit, ScanSegment, Selection, TopKRequest};
use crate::{Error, Progress, Result};

/// A document as the index stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub id: DocId,
    /// Packed code.
    pub code: Vec<u8>,
    /// Position in the order of insertion.
    pub sequence: u64,
    /// `None` if the index stores no texts.
    pub text: Option<String>,
    pub labels: Vec<String>,
    pub attributes: Vec<(String, Value)>,
}

/// A document found by a search: address, distance and position in the order of insertion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub address: DocAddress,
    pub distance: f32,
    pub sequence: u64,
}

/// How the scan processed a segment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scanned {
    pub segment: String,
    pub documents: usize,
    /// Documents that match the filter and are not deleted.
    pub matching: usize,
    /// How the filter was applied; `None` without a filter.
    pub filter: Option<&'static str>,
    /// `None` if there was nothing to search.
    pub plan: Option<Plan>,
}

/// The segments of one commit.
pub(crate) struct Snapshot {
    store: PathBuf,
    searcher: Searcher,
    segments: Vec<Segment>,
    ids: Vec<Ids>,
    kept: Vec<RerankColumn>,
    // None in an index without chunks.
    chunks: Option<Vec<ChunkColumns>>,
    /// Documents of each segment that are not deleted, in an index with chunks.
    counts: Vec<usize>,
    files: Vec<[Vec<Arc<StoreFile>>; FilePart::ALL.len()]>,
    attributes: OnceLock<BTreeSet<String>>,
    number: OnceLock<u64>,
}

impl Snapshot {
    pub fn open(
        dir: &Path,
        directory: &StoreDirectory,
        model: &Model,
        layout: Layout,
        searcher: Searcher,
        earlier: Option<&Snapshot>,
        progress: &dyn Progress,
    ) -> Result<Snapshot> {
        let store = dir.join(STORE);
        let mut segments = Vec::with_capacity(searcher.segment_readers().len());
        let mut ids = Vec::with_capacity(segments.capacity());
        let mut kept = Vec::with_capacity(segments.capacity());
        let mut chunks = Vec::with_capacity(segments.capacity());
        let mut counts = Vec::new();
        let mut files = Vec::with_capacity(segments.capacity());
        for reader in searcher.segment_readers() {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let known = earlier.and_then(|e| e.segments.iter().find(|s| s.id == reader.segment_id()));
            segments.push(Segment::open(dir, model.shape(), &searcher, reader, known, progress)?);
            ids.push(super::guarded(&store, || Ids::open(reader))?);
            let kind = layout.rerank_vectors;
            kept.push(super::guarded(&store, || RerankColumn::open(reader, kind, model.inputs()))?);
            let of = |part| super::guarded(&store, || directory.files(reader.segment_id(), part));
            let columns = of(FilePart::Columns)?;
            if layout.chunk.is_some() {
                let own = super::guarded(&store, || ChunkColumns::open(reader))?;
                counts.push(match earlier.and_then(|earlier| earlier.count_of(&segments[segments.len() - 1])) {
                    Some(count) => count,
                    None => {
                        columns.iter().try_for_each(StoreFile::check_before_reading)?;
                        super::guarded_ours(&store, || {
                            Ok(reader.doc_ids_alive().filter(|&row| own.is_first(row)).count())
                        })?
                    }
                });
                chunks.push(own);
            }
            files.push([columns, of(FilePart::Terms)?, of(FilePart::Documents)?]);
        }
        directory.forget_unused();
        let chunks = layout.chunk.map(|_| chunks);
        let (attributes, number) = (OnceLock::new(), OnceLock::new());
        Ok(Snapshot { store, searcher, segments, ids, kept, chunks, counts, files, attributes, number })
    }

    /// Refuses a list of segments that gives other numbers of rows than these segments have.
    pub fn expect_rows(&self, listed: &Searcher) -> Result<()> {
        listed.segment_readers().iter().try_for_each(|reader| {
            let known = self.segments.iter().find(|segment| segment.id == reader.segment_id());
            known.map_or(Ok(()), |segment| segment.columns.expect(reader.max_doc(), &self.store))
        })
    }

    /// The number of documents of a segment, if this snapshot has it in the same state.
    fn count_of(&self, segment: &Segment) -> Option<usize> {
        let known = self.segments.iter().position(|known| known.state() == segment.state())?;
        self.counts.get(known).copied()
    }

    /// Number of documents that are not deleted.
    pub fn documents(&self) -> usize {
        match &self.chunks {
            None => self.searcher.num_docs() as usize,
            Some(_) => self.counts.iter().sum(),
        }
    }

    /// The living rows that are the first chunk of their document; all living rows without chunks.
    pub fn firsts_alive<'a>(&'a self, reader: &'a SegmentReader, ordinal: u32) -> impl Iterator<Item = u32> + 'a {
        let chunks = self.chunks.as_ref().map(|all| &all[ordinal as usize]);
        reader.doc_ids_alive().filter(move |&row| chunks.is_none_or(|chunks| chunks.number(row) == 0))
    }

    pub fn has_chunks(&self) -> bool {
        self.chunks.is_some()
    }

    /// The first chunk of a row's document; the row itself in an index without chunks.
    pub fn first(&self, address: DocAddress) -> DocAddress {
        match &self.chunks {
            None => address,
            Some(all) => {
                let first = all[address.segment_ord as usize].first(address.doc_id);
                DocAddress::new(address.segment_ord, first)
            }
        }
    }

    /// All chunks of the document whose first chunk is given.
    pub fn chunks(&self, first: DocAddress) -> impl Iterator<Item = DocAddress> + use<> {
        let rows = match &self.chunks {
            None => first.doc_id..first.doc_id + 1,
            Some(all) => all[first.segment_ord as usize].of(first.doc_id),
        };
        rows.map(move |row| DocAddress::new(first.segment_ord, row))
    }

    /// Which chunk of its document a row is, and where it begins in the text.
    pub fn chunk_place(&self, address: DocAddress) -> Option<(u32, u64)> {
        let columns = &self.chunks.as_ref()?[address.segment_ord as usize];
        Some((columns.number(address.doc_id), columns.start(address.doc_id)))
    }

    /// The documents that have one of these rows, each as its first row.
    pub fn documents_of(&self, ordinal: usize, rows: Bitmap) -> Bitmap {
        match &self.chunks {
            None => rows,
            Some(all) => all[ordinal].firsts(&rows),
        }
    }

    /// Compares the files of a part with their checksums, each once, and refuses damaged ones. Call this before reading
    /// from a part.
    pub fn require(&self, part: FilePart) -> Result<()> {
        (0..self.files.len()).try_for_each(|ordinal| self.require_of(ordinal, part))
    }

    fn require_of(&self, ordinal: usize, part: FilePart) -> Result<()> {
        self.files[ordinal][part as usize].iter().try_for_each(StoreFile::check_before_reading)
    }

    /// Compares every file of any size with its checksum now, and refuses damaged ones. Call this before writing what is in
    /// them with checksums of its own.
    pub fn check_files(&self) -> Result<()> {
        let files: Vec<&Arc<StoreFile>> = self.files.iter().flatten().flatten().collect();
        files.into_par_iter().try_for_each(|file| file.check_again())
    }

    pub fn searcher(&self) -> &Searcher {
        &self.searcher
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Checks all packed codes that were not checked before. Returns the damaged segments with the problem.
    pub fn check(&self) -> Vec<(SegmentId, String)> {
        let check = |segment: &Segment| segment.check().err().map(|problem| (segment.id, problem));
        self.segments.par_iter().filter_map(check).collect()
    }

    /// Address of the document with this id; deleted ones are not found.
    pub fn find(&self, fields: &Fields, id: &DocId) -> Result<Option<DocAddress>> {
        self.require(FilePart::Terms)?;
        let term = fields.id_term(id);
        for (ordinal, reader) in self.searcher.segment_readers().iter().enumerate() {
            let postings = reader
                .inverted_index(fields.id)
                .and_then(|index| Ok(index.read_postings(&term, IndexRecordOption::Basic)?))
                .map_err(|e| tantivy_error(&self.store, e))?;
            let Some(mut postings) = postings else { continue };
            let mut document = postings.doc();
            while document != TERMINATED {
                if !reader.is_deleted(document) {
                    return Ok(Some(DocAddress::new(ordinal as u32, document)));
                }
                document = postings.advance();
            }
        }
        Ok(None)
    }

    pub fn count(&self, filter: &Filter, progress: &dyn Progress) -> Result<usize> {
        self.require(FilePart::Terms)?;
        self.require(FilePart::Columns)?;
        let readers = self.searcher.segment_readers().iter().enumerate();
        let count = |(ordinal, reader)| {
            progress.go_on()?;
            Ok(self.documents_of(ordinal, matching(&self.searcher, reader, filter)?).count())
        };
        readers.map(count).sum()
    }

    /// Ids of the documents that match a filter.
    pub fn ids_where(&self, filter: &Filter) -> Result<Vec<DocId>> {
        self.require(FilePart::Terms)?;
        self.require(FilePart::Columns)?;
        let mut ids = Vec::new();
        for (ordinal, reader) in self.searcher.segment_readers().iter().enumerate() {
            let documents = self.documents_of(ordinal, matching(&self.searcher, reader, filter)?);
            for document in documents.iter() {
                ids.push(self.id(DocAddress::new(ordinal as u32, document))?);
            }
        }
        Ok(ids)
    }

    /// The nearest documents of every query, best first, and how each segment was searched.
    pub fn nearest(
        &self,
        shape: CodeShape,
        tables: &[DistanceTable],
        request: &TopKRequest,
        filter: Option<(&Filter, &Selections)>,
    ) -> Result<Vec<(Vec<Candidate>, Vec<Scanned>)>> {
        search::check(shape, tables, *request)?;
        self.require(FilePart::Columns)?;
        if filter.is_some() {
            self.require(FilePart::Terms)?;
        }
        let mut views = Vec::with_capacity(self.segments.len());
        let mut scanned = Vec::with_capacity(self.segments.len());
        for (ordinal, (segment, reader)) in self.segments.iter().zip(self.searcher.segment_readers()).enumerate() {
            let mut report = |matching: usize, filter: Option<&'static str>| {
                let (segment, documents) = (segment.id.uuid_string(), reader.max_doc() as usize);
                scanned.push(Scanned { segment, documents, matching, filter, plan: None });
            };
            let only = match filter {
                None => {
                    report(reader.num_docs() as usize, None);
                    segment.alive()
                }
                Some((filter, selections)) => {
                    let (selection, cached) = selections.of(&self.searcher, reader, segment, filter)?;
                    report(
                        selection.count(),
                        Some(match (selection.count(), selection.is_few(), cached) {
                            (0, ..) => "nothing matches the filter",
                            (_, true, false) => "the few that match the filter visited alone",
                            (_, true, true) => {
                                "the few that match the filter, known from an earlier search, visited alone"
                            }
                            (_, false, false) => "the filter's bitmap asked inside the scan",
                            (_, false, true) => {
                                "the filter's bitmap, known from an earlier search, asked inside the scan"
                            }
                        }),
                    );
                    if selection.count() == 0 {
                        continue;
                    }
                    Some(selection)
                }
            };
            let blocks = segment.blocks.clone();
            let number: Box<dyn Fn(u32) -> u32 + Sync> = match &only {
                Some(only) if only.is_few() => {
                    let only = only.clone();
                    Box::new(move |place| only.numbers().expect("few")[place as usize])
                }
                _ => {
                    let blocks = blocks.clone();
                    Box::new(move |rank| blocks.number(rank))
                }
            };
            views.push(View {
                ordinal: ordinal as u32,
                blocks,
                only,
                number,
                column: segment.columns.sequence.clone(),
            });
        }
        let sequences: Vec<_> =
            views.iter().map(|view| move |rank: u32| view.column.get_val((view.number)(rank))).collect();
        let parts = views.iter().zip(&sequences);
        let parts: Vec<ScanSegment> = parts
            .map(|(view, sequence)| ScanSegment { blocks: &view.blocks, only: view.only.as_deref(), sequence })
            .collect();
        let candidate = |found: ScanHit| {
            let view = &views[found.part];
            let address = DocAddress::new(view.ordinal, (view.number)(found.rank));
            Candidate { address, distance: found.distance, sequence: found.sequence }
        };
        let found = search::explained(shape, &parts, tables, *request);
        let answers = found.into_iter().map(|(found, plans)| {
            let mut scanned = scanned.clone();
            for (view, plan) in views.iter().zip(plans) {
                scanned[view.ordinal as usize].plan = Some(plan);
            }
            (found.into_iter().map(candidate).collect(), scanned)
        });
        Ok(answers.collect())
    }

    /// The candidate for a document that was found by other means than its code.
    pub fn near(&self, table: &DistanceTable, address: DocAddress) -> Candidate {
        let columns = &self.segments[address.segment_ord as usize].columns;
        let distance = table.distance(&columns.code(address.doc_id));
        Candidate { address, distance, sequence: columns.sequence.get_val(address.doc_id) }
    }

    pub fn code(&self, address: DocAddress) -> Vec<u8> {
        self.segments[address.segment_ord as usize].columns.code(address.doc_id)
    }

    /// Reads the rerank vector of a document into `embedding`; `packed` is a reusable buffer.
    pub fn rerank_vector(&self, address: DocAddress, packed: &mut Vec<u64>, embedding: &mut [f32]) -> Result<()> {
        let column = &self.kept[address.segment_ord as usize];
        column.read(address.doc_id, packed, embedding).map_err(|problem| self.damaged(address, &problem))
    }

    /// Asks the CPU to load the rerank vector of a document.
    pub fn prefetch_rerank_vector(&self, address: DocAddress) {
        self.kept[address.segment_ord as usize].prefetch(address.doc_id);
    }

    /// Appends the cosines of a document's rerank vector with embeddings to `out`.
    pub fn cosines(&self, address: DocAddress, embeddings: &mut Cosines, out: &mut Vec<f32>) -> Result<()> {
        let column = &self.kept[address.segment_ord as usize];
        column.cosines(address.doc_id, embeddings, out).map_err(|problem| self.damaged(address, &problem))
    }

    fn damaged(&self, address: DocAddress, problem: &str) -> Error {
        let segment = self.segments[address.segment_ord as usize].id.uuid_string();
        let text = format!("segment {segment}: {problem}; verify the index to see what is damaged");
        Error::format(&self.store, text).remedied(Remedy::VerifyIndex)
    }

    /// Names of the attributes that some document has.
    pub fn attributes(&self) -> Result<&BTreeSet<String>> {
        if let Some(names) = self.attributes.get() {
            return Ok(names);
        }
        self.require(FilePart::Columns)?;
        let mut names = BTreeSet::new();
        for reader in self.searcher.segment_readers() {
            let usage = reader.space_usage().map_err(Error::io(&self.store))?;
            let columns = usage.fast_fields().fields().map(|column| column.field_name());
            names.extend(columns.filter_map(|name| name.strip_prefix("attributes.")).map(str::to_owned));
        }
        Ok(self.attributes.get_or_init(|| names))
    }

    /// A number that changes with every commit and merge.
    pub fn number(&self) -> u64 {
        *self.number.get_or_init(|| {
            let mut hash = Sha256::new();
            for (id, deletes) in self.searcher.generation().segments() {
                hash.update(format!("{} {deletes:?};", id.uuid_string()));
            }
            u64::from_le_bytes(hash.finalize()[..8].try_into().expect("32 bytes"))
        })
    }

    /// The whole document of a row. The code is that of its first chunk.
    pub fn record(&self, fields: &Fields, address: DocAddress) -> Result<Record> {
        self.require_of(address.segment_ord as usize, FilePart::Columns)?;
        let address = self.first(address);
        let columns = &self.segments[address.segment_ord as usize].columns;
        let mut stored = self.stored(fields, address)?;
        if self.has_chunks() && stored.text.is_some() {
            stored.text = Some(self.whole_text(fields, address)?);
        }
        Ok(Record {
            id: self.id(address)?,
            code: columns.code(address.doc_id),
            sequence: columns.sequence.get_val(address.doc_id),
            text: stored.text,
            labels: stored.labels,
            attributes: stored.attributes,
        })
    }

    fn whole_text(&self, fields: &Fields, first: DocAddress) -> Result<String> {
        let mut parts = Vec::new();
        for address in self.chunks(first) {
            let (_, start) = self.chunk_place(address).unwrap_or_default();
            parts.push((start as usize, self.stored(fields, address)?.text.unwrap_or_default()));
        }
        crate::chunk::join(parts.into_iter()).map_err(|problem| Error::format(&self.store, problem))
    }

    /// Only id, code and sequence; reads no text.
    pub fn bare(&self, address: DocAddress) -> Result<Record> {
        let columns = &self.segments[address.segment_ord as usize].columns;
        Ok(Record {
            id: self.id(address)?,
            code: columns.code(address.doc_id),
            sequence: columns.sequence.get_val(address.doc_id),
            text: None,
            labels: Vec::new(),
            attributes: Vec::new(),
        })
    }

    pub fn id(&self, address: DocAddress) -> Result<DocId> {
        let ids = &self.ids[address.segment_ord as usize];
        ids.get(address.doc_id).map_err(|problem| Error::format(&self.store, problem))
    }

    pub fn stored(&self, fields: &Fields, address: DocAddress) -> Result<Stored> {
        let Some(fields) = &fields.documents else { return Ok(Stored::default()) };
        self.require_of(address.segment_ord as usize, FilePart::Documents)?;
        let document: TantivyDocument = self.searcher.doc(address).map_err(|e| tantivy_error(&self.store, e))?;
        fields.stored(&document).map_err(|problem| {
            Error::format(
                &self.store,
                format!("document {} of segment {} cannot be read: {problem}", address.doc_id, address.segment_ord),
            )
        })
    }
}

/// Owns what a [`ScanSegment`] borrows.
struct View {
    ordinal: u32,
    blocks: Arc<CodeBlocks>,
    only: Option<Arc<Selection<'static>>>,
    /// The document of a rank, or of a place among a few.
    number: Box<dyn Fn(u32) -> u32 + Sync>,
    column: Arc<dyn ColumnValues<u64>>,
}

/// The columns with the original ids.
pub(super) struct Ids {
    numbers: Option<Column<u64>>,
    names: Option<StrColumn>,
}

impl Ids {
    pub fn open(reader: &SegmentReader) -> tantivy::Result<Ids> {
        Ok(Ids { numbers: reader.fast_fields().column_opt(NUMBER)?, names: reader.fast_fields().str(NAME)? })
    }

    pub fn get(&self, document: u32) -> std::result::Result<DocId, String> {
        if let Some(number) = self.numbers.as_ref().and_then(|c| c.first(document)) {
            return Ok(DocId::Int(number));
        }
        let mut name = String::new();
        if let Some(names) = &self.names
            && let Some(ordinal) = names.term_ords(document).next()
            && names.ord_to_str(ordinal, &mut name).map_err(|e| e.to_string())?
        {
            return Ok(DocId::Str(name));
        }
        Err(format!("document {document} has no id"))
    }
}
