//! One commit, as a reader sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use tantivy::columnar::{Column, StrColumn};
use tantivy::query::Query;
use tantivy::schema::IndexRecordOption;
use tantivy::{DocAddress, DocSet, Searcher, SegmentReader, TERMINATED, TantivyDocument};

use super::filter::{Bitmap, matching};
use super::schema::{Fields, NAME, NUMBER, Stored};
use super::segment::Segment;
use super::{STORE, tantivy_error};
use crate::corpus::{DocId, Value};
use crate::model::{CodeShape, Table};
use crate::search::{self, CodeBlocks, Found, Part};
use crate::{Error, Result, Watch};

/// A document found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Its id.
    pub id: DocId,
    /// As [`Table::distance`] gives it for its code.
    pub distance: f32,
    /// Its text, where the index keeps it and it was asked for; so with the rest.
    pub text: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
    /// Its attributes.
    pub attributes: Vec<(String, Value)>,
}

/// A document as the index has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its id.
    pub id: DocId,
    /// Its packed code.
    pub code: Vec<u8>,
    /// Its place in the order of insertion.
    pub sequence: u64,
    /// Its text, where the index keeps it.
    pub text: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
    /// Its attributes.
    pub attributes: Vec<(String, Value)>,
}

/// A neighbour: where it lies, and how far.
pub(super) type Near = (DocAddress, f32);

/// The segments of one commit.
pub(crate) struct Snapshot {
    store: PathBuf,
    searcher: Searcher,
    segments: Vec<Segment>,
    ids: Vec<Ids>,
}

/// Below one document in so many, the matching ones are packed anew and scanned alone: at one in 256 that costs what
/// looking at the others costs.
const RARE: usize = 256;

impl Snapshot {
    pub fn open(
        dir: &Path,
        shape: CodeShape,
        searcher: Searcher,
        earlier: Option<&Snapshot>,
        watch: &dyn Watch,
    ) -> Result<Snapshot> {
        let store = dir.join(STORE);
        let mut segments = Vec::with_capacity(searcher.segment_readers().len());
        let mut ids = Vec::with_capacity(segments.capacity());
        for reader in searcher.segment_readers() {
            if watch.interrupted() {
                return Err(Error::Interrupted);
            }
            let known = earlier.and_then(|e| e.segments.iter().find(|s| s.id == reader.segment_id()));
            segments.push(Segment::open(dir, shape, &searcher, reader, known, watch)?);
            ids.push(super::guarded(&store, || Ids::open(reader))?);
        }
        Ok(Snapshot { store, searcher, segments, ids })
    }

    pub fn searcher(&self) -> &Searcher {
        &self.searcher
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Where the living document of an id lies.
    pub fn find(&self, fields: &Fields, id: &DocId) -> Result<Option<DocAddress>> {
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

    pub fn count(&self, query: &dyn Query) -> Result<usize> {
        let counts = self.searcher.segment_readers().iter().map(|r| Ok(matching(&self.searcher, r, query)?.count()));
        counts.sum()
    }

    /// The nearest documents of every query.
    pub fn nearest(
        &self,
        shape: CodeShape,
        tables: &[Table],
        k: usize,
        filter: Option<&dyn Query>,
    ) -> Result<Vec<Vec<Near>>> {
        search::check(shape, tables, k)?;
        let mut views = Vec::with_capacity(self.segments.len());
        for (ordinal, (segment, reader)) in self.segments.iter().zip(self.searcher.segment_readers()).enumerate() {
            let (blocks, bits) = match filter {
                None => (segment.blocks.clone(), segment.alive.clone()),
                Some(query) => {
                    let documents = matching(&self.searcher, reader, query)?;
                    let count = documents.count();
                    if count == 0 {
                        continue;
                    }
                    if count < segment.blocks.len() / RARE || count <= k {
                        (Arc::new(segment.columns.pack(Some(&documents))), None)
                    } else {
                        (segment.blocks.clone(), Some(Arc::new(segment.by_rank(documents))))
                    }
                }
            };
            let sequence = {
                let (blocks, column) = (blocks.clone(), segment.columns.sequence.clone());
                move |rank: u32| column.get_val(blocks.number(rank))
            };
            views.push(View { ordinal: ordinal as u32, blocks, bits, sequence: Box::new(sequence) });
        }
        let parts: Vec<Part> = views
            .iter()
            .map(|view| Part {
                blocks: &view.blocks,
                filter: view.bits.as_ref().map(|bits| bits.words()),
                sequence: &*view.sequence,
            })
            .collect();
        let address = |found: Found| {
            let view = &views[found.part];
            (DocAddress::new(view.ordinal, view.blocks.number(found.rank)), found.distance)
        };
        let found = search::nearest(shape, &parts, tables, k);
        Ok(found.into_iter().map(|query| query.into_iter().map(address).collect()).collect())
    }

    /// Brings the documents of neighbours.
    pub fn hits(&self, fields: &Fields, near: Vec<Vec<Near>>, documents: bool) -> Result<Vec<Vec<Hit>>> {
        let hit = |&(address, distance): &Near| {
            let id = self.id(address)?;
            let stored = if documents { self.stored(fields, address)? } else { Stored::default() };
            Ok(Hit { id, distance, text: stored.text, labels: stored.labels, attributes: stored.attributes })
        };
        let hits = |query: &Vec<Near>| query.iter().map(hit).collect();
        if near.len() > 1 { near.par_iter().map(hits).collect() } else { near.iter().map(hits).collect() }
    }

    pub fn record(&self, fields: &Fields, address: DocAddress) -> Result<Record> {
        let columns = &self.segments[address.segment_ord as usize].columns;
        let stored = self.stored(fields, address)?;
        Ok(Record {
            id: self.id(address)?,
            code: columns.code(address.doc_id),
            sequence: columns.sequence.get_val(address.doc_id),
            text: stored.text,
            labels: stored.labels,
            attributes: stored.attributes,
        })
    }

    /// Id, code and sequence alone.
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

    fn id(&self, address: DocAddress) -> Result<DocId> {
        let ids = &self.ids[address.segment_ord as usize];
        ids.get(address.doc_id).map_err(|problem| Error::format(&self.store, problem))
    }

    fn stored(&self, fields: &Fields, address: DocAddress) -> Result<Stored> {
        let Some(fields) = &fields.documents else { return Ok(Stored::default()) };
        let document: TantivyDocument = self.searcher.doc(address).map_err(|e| tantivy_error(&self.store, e))?;
        fields.stored(&document).map_err(|problem| {
            Error::format(
                &self.store,
                format!("document {} of segment {} cannot be read: {problem}", address.doc_id, address.segment_ord),
            )
        })
    }
}

/// What a part of the scan borrows from.
struct View {
    ordinal: u32,
    blocks: Arc<CodeBlocks>,
    bits: Option<Arc<Bitmap>>,
    sequence: Box<dyn Fn(u32) -> u64 + Sync>,
}

/// The columns an id comes back from.
struct Ids {
    numbers: Option<Column<u64>>,
    names: Option<StrColumn>,
}

impl Ids {
    fn open(reader: &SegmentReader) -> tantivy::Result<Ids> {
        Ok(Ids { numbers: reader.fast_fields().column_opt(NUMBER)?, names: reader.fast_fields().str(NAME)? })
    }

    fn get(&self, document: u32) -> std::result::Result<DocId, String> {
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
