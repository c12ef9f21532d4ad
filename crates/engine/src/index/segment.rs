//! A segment's packed codes: read from their file, or built from the columns.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tantivy::columnar::{ColumnValues, ColumnarReader, DynamicColumn};
use tantivy::directory::FileSlice;
use tantivy::fastfield::AliveBitSet;
use tantivy::index::{SegmentComponent, SegmentId};
use tantivy::{Searcher, SegmentReader};

use super::filter::Bitmap;
use super::schema::{SEQUENCE, code_column, code_columns};
use super::{CODES, STORE};
use crate::disk::{self, Durable};
use crate::mmap::Map;
use crate::model::CodeShape;
use crate::search::{CodeBlocks, DocumentColumns, Memory, Owner, Selection};
use crate::{Error, Progress, Result};

/// Path of a segment's packed codes.
pub(super) fn codes_path(dir: &Path, segment: SegmentId) -> PathBuf {
    dir.join(CODES).join(format!("{}.codes", segment.uuid_string()))
}

/// The segment id in the header of its packed codes: the 16 bytes that its name spells in hex.
pub(super) fn owner(segment: SegmentId) -> Owner {
    let name = segment.uuid_string();
    std::array::from_fn(|i| u8::from_str_radix(&name[2 * i..2 * i + 2], 16).expect("32 hex digits"))
}

/// A segment's columns: insertion sequence and code.
#[derive(Clone)]
pub(super) struct Columns {
    owner: Owner,
    shape: CodeShape,
    len: u32,
    pub sequence: Arc<dyn ColumnValues<u64>>,
    codes: Vec<Arc<dyn ColumnValues<u64>>>,
}

impl Columns {
    pub fn open(reader: &SegmentReader, shape: CodeShape) -> tantivy::Result<Columns> {
        let column = |name: &str| reader.fast_fields().column_first_or_default::<u64>(name);
        Ok(Columns {
            owner: owner(reader.segment_id()),
            shape,
            len: reader.max_doc(),
            sequence: column(SEQUENCE)?,
            codes: (0..code_columns(shape)).map(|i| column(&code_column(i))).collect::<tantivy::Result<_>>()?,
        })
    }

    /// Refuses columns with another number of values than the list of segments says. The list has no checksum; the columns
    /// have one.
    pub fn expect(&self, documents: u32, store: &Path) -> Result<()> {
        let values = std::iter::once(&self.sequence).chain(&self.codes).map(|column| column.num_vals());
        match values.chain([self.len]).find(|found| *found != documents) {
            None => Ok(()),
            Some(found) => {
                let id = hex::encode(self.owner);
                let problem = format!("segment {id} has {found} documents, not {documents}");
                Err(super::files::damaged(&store.join(super::SEGMENTS), &problem))
            }
        }
    }

    /// Reads a column file before its segment is committed.
    fn from_file(file: FileSlice, segment: SegmentId, shape: CodeShape) -> std::io::Result<Columns> {
        let columnar = ColumnarReader::open(file)?;
        let column = |name: &str| {
            let handles = columnar.read_columns(name)?;
            let columns = handles.iter().map(|h| h.open()).collect::<std::io::Result<Vec<_>>>()?;
            let values = columns.into_iter().find_map(|column| match column {
                DynamicColumn::U64(values) => Some(values.first_or_default_col(0)),
                _ => None,
            });
            values.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, format!("no column {name}")))
        };
        Ok(Columns {
            owner: owner(segment),
            shape,
            len: columnar.num_docs(),
            sequence: column(SEQUENCE)?,
            codes: (0..code_columns(shape)).map(|i| column(&code_column(i))).collect::<std::io::Result<_>>()?,
        })
    }

    pub fn code(&self, document: u32) -> Vec<u8> {
        let mut code: Vec<u8> = self.codes.iter().flat_map(|c| c.get_val(document).to_le_bytes()).collect();
        code.truncate(self.shape.code_bytes());
        code
    }

    /// The packed codes of all documents, `[documents, code_bytes]`.
    pub fn codes(&self) -> Vec<u8> {
        let width = self.shape.code_bytes();
        let mut all = vec![0; self.len as usize * width];
        // Reads a column in batches: value by value costs several times as much.
        const BATCH: usize = 4096;
        let mut values = [0u64; BATCH];
        for (c, column) in self.codes.iter().enumerate() {
            let bytes = (width - 8 * c).min(8);
            for (batch, codes) in all.chunks_mut(BATCH * width).enumerate() {
                let values = &mut values[..codes.len() / width];
                column.get_range((batch * BATCH) as u64, values);
                for (code, value) in codes.chunks_exact_mut(width).zip(values.iter()) {
                    code[8 * c..8 * c + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
                }
            }
        }
        all
    }

    pub fn sequences(&self) -> Vec<u64> {
        let mut all = vec![0; self.len as usize];
        self.sequence.get_range(0, &mut all);
        all
    }

    /// Packs the codes of all documents. Ranks follow the order of insertion.
    pub fn pack(&self) -> CodeBlocks {
        let (mut numbers, mut codes): (Vec<u32>, Vec<u8>) = ((0..self.len).collect(), self.codes());
        let sequences = self.sequences();
        if !sequences.is_sorted() {
            // A merge concatenates segments in any order.
            let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
            order.sort_unstable_by_key(|&i| (sequences[i as usize], i));
            let width = self.shape.code_bytes();
            codes = order
                .iter()
                .flat_map(|&i| codes[i as usize * width..(i as usize + 1) * width].iter().copied())
                .collect();
            numbers = order.iter().map(|&i| numbers[i as usize]).collect();
        }
        let in_order = numbers.iter().enumerate().all(|(rank, &number)| rank == number as usize);
        CodeBlocks::build(self.shape, self.owner, &codes, (!in_order).then_some(&numbers))
    }
}

impl DocumentColumns for Columns {
    fn codes(&self, group: usize, documents: &[u32], values: &mut [u64]) {
        self.codes[group].get_vals(documents, values);
    }

    fn sequences(&self, documents: &[u32], values: &mut [u64]) {
        self.sequence.get_vals(documents, values);
    }
}

/// A segment ready to be searched.
pub(super) struct Segment {
    pub id: SegmentId,
    pub columns: Columns,
    pub blocks: Arc<CodeBlocks>,
    alive: Option<Arc<Alive>>,
    /// Sum of the lengths of the living documents, once a hybrid search needed it.
    tokens: Arc<OnceLock<u64>>,
    delete_opstamp: Option<u64>,
    /// Result of checking every byte of the packed codes; empty before the check. Shared with later states of the
    /// segment.
    checked: Arc<OnceLock<std::result::Result<(), String>>>,
}

impl Segment {
    /// Opens a segment, reusing what an `earlier` state of it has loaded.
    pub fn open(
        dir: &Path,
        shape: CodeShape,
        searcher: &Searcher,
        reader: &SegmentReader,
        earlier: Option<&Segment>,
        progress: &dyn Progress,
    ) -> Result<Segment> {
        let store = dir.join(STORE);
        let damaged = earlier.is_some_and(|segment| matches!(segment.checked.get(), Some(Err(_))));
        let earlier = earlier.filter(|_| !damaged);
        let (columns, blocks, checked) = match earlier {
            Some(segment) => {
                segment.columns.expect(reader.max_doc(), &store)?;
                (segment.columns.clone(), segment.blocks.clone(), segment.checked.clone())
            }
            None => {
                let columns = super::guarded(&store, || Columns::open(reader, shape))?;
                columns.expect(reader.max_doc(), &store)?;
                let blocks = open_blocks(dir, shape, searcher, reader, &columns, damaged, progress)?;
                (columns, Arc::new(blocks), Arc::default())
            }
        };
        let delete_opstamp = reader.delete_opstamp();
        let (alive, tokens) = match earlier {
            Some(segment) if segment.delete_opstamp == delete_opstamp => {
                (segment.alive.clone(), segment.tokens.clone())
            }
            _ => (Alive::new(reader), Arc::default()),
        };
        Ok(Segment { id: reader.segment_id(), columns, blocks, alive, tokens, delete_opstamp, checked })
    }

    /// Changes when documents of the segment are deleted.
    pub fn state(&self) -> (SegmentId, Option<u64>) {
        (self.id, self.delete_opstamp)
    }

    /// The documents that are not deleted; `None` if nothing is deleted.
    pub fn alive(&self) -> Option<Arc<Selection<'static>>> {
        self.alive.as_ref().map(|alive| alive.selection(&self.blocks, &self.columns))
    }

    /// Sum of the lengths of the living documents; `count` is called once.
    pub fn tokens(&self, count: impl FnOnce() -> tantivy::Result<u64>) -> tantivy::Result<u64> {
        match self.tokens.get() {
            Some(&tokens) => Ok(tokens),
            None => count().map(|tokens| *self.tokens.get_or_init(|| tokens)),
        }
    }

    /// Bytes that searches read, by part.
    pub fn memory(&self) -> Memory {
        let alive = self.alive.as_ref().and_then(|alive| alive.selection.get());
        Memory { filters: alive.map_or(0, |selection| selection.bytes()), ..self.blocks.memory() }
    }

    /// Of [`Segment::memory`], what is in this process's memory; `None` where the system does not tell.
    pub fn resident(&self) -> Option<Memory> {
        Some(Memory { filters: self.memory().filters, ..self.blocks.resident()? })
    }

    /// Checks every byte of the packed codes, once. Opening an index reads none of them, so it takes milliseconds for
    /// any size, and the first search reads them anyway.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.checked.get_or_init(|| self.blocks.check()).clone()
    }
}

/// The documents of a segment that are not deleted. The selection for the scan is built by the first search.
struct Alive {
    documents: AliveBitSet,
    selection: OnceLock<Arc<Selection<'static>>>,
}

impl Alive {
    fn new(reader: &SegmentReader) -> Option<Arc<Alive>> {
        let documents = reader.alive_bitset()?.clone();
        Some(Arc::new(Alive { documents, selection: OnceLock::new() }))
    }

    fn selection(&self, blocks: &CodeBlocks, columns: &Columns) -> Arc<Selection<'static>> {
        let make = || {
            let mut bits = Bitmap::empty(blocks.len());
            (0..blocks.len() as u32).filter(|&d| self.documents.is_alive(d)).for_each(|d| bits.insert(d));
            // Every search reads it, so the first one waits until it is in order.
            Arc::new(Selection::new(blocks, bits.blocks(), columns).sorted().into_owned())
        };
        self.selection.get_or_init(make).clone()
    }
}

/// Reads the packed codes of a segment from their file, or builds them if the file is missing, unusable or known to be
/// `damaged`.
fn open_blocks(
    dir: &Path,
    shape: CodeShape,
    searcher: &Searcher,
    reader: &SegmentReader,
    columns: &Columns,
    damaged: bool,
    progress: &dyn Progress,
) -> Result<CodeBlocks> {
    let path = codes_path(dir, reader.segment_id());
    let documents = reader.max_doc() as usize;
    if !damaged {
        match read_blocks(&path, shape, columns.owner, documents) {
            Ok(Some(blocks)) => return Ok(blocks),
            Ok(None) => {}
            Err(problem) => progress.note(&format!("{}: {problem}; made again from the store", path.display())),
        }
    }
    // The columns are read whole here, so damage in them must be detected here.
    let store = dir.join(STORE);
    let file = PathBuf::from(format!("{}.{}", reader.segment_id().uuid_string(), SegmentComponent::FastFields));
    let unharmed = super::guarded(&store, || Ok(searcher.index().directory().validate_checksum(&file)?))?;
    if !unharmed {
        return Err(Error::format(
            store.join(file),
            "is damaged: its checksum is another; restore the index from a copy or build it again",
        ));
    }
    let blocks = super::guarded_ours(&store, || Ok(columns.pack()))?;
    // Not synced: the checksum detects a file torn by a crash.
    match disk::put(&path, blocks.as_bytes(), Durable::No).and_then(|()| Map::open(&path)) {
        // The mapped file is shared with other processes; memory is not.
        Ok(map) => Ok(CodeBlocks::from_map(shape, columns.owner, map).unwrap_or(blocks)),
        // A read-only directory can still be searched.
        Err(_) => Ok(blocks),
    }
}

/// Packs the codes of a segment that was just written, from its column file.
pub(super) fn pack_file(dir: &Path, shape: CodeShape, segment: SegmentId, columns: FileSlice) -> Result<()> {
    let store = dir.join(STORE);
    super::guarded_ours(&store, || {
        let columns = Columns::from_file(columns, segment, shape).map_err(Error::io(&store))?;
        disk::put(&codes_path(dir, segment), columns.pack().as_bytes(), Durable::No)
    })
}

/// Reads the packed codes from a file. `None` if the file does not exist; an error if it cannot be used.
pub(super) fn read_blocks(
    path: &Path,
    shape: CodeShape,
    owner: Owner,
    documents: usize,
) -> std::result::Result<Option<CodeBlocks>, String> {
    let map = match Map::open(path) {
        Ok(map) => map,
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    let blocks = CodeBlocks::from_map(shape, owner, map)?;
    if blocks.len() != documents {
        return Err(format!("holds {} documents, the segment has {documents}", blocks.len()));
    }
    Ok(Some(blocks))
}
