//! Statistics over all documents: the distribution of codes, and the attributes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet};
use std::hash::{BuildHasher, RandomState};

use tantivy::columnar::{Column, ColumnarReader, DynamicColumn};
use tantivy::index::SegmentComponent;
use tantivy::{Searcher, SegmentReader};

use super::filter::Bitmap;
use super::info::{self, Info};
use super::snapshot::Snapshot;
use super::{Inner, STORE};
use crate::error::Remedy;
use crate::model::CodeShape;
use crate::{Error, Progress, Result};

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Stats {
    #[serde(flatten)]
    pub info: Info,
    /// Segments, largest first.
    pub parts: Vec<SegmentStats>,
    /// Distribution of the codes of documents that are not deleted.
    pub spread: CodeStats,
    /// Number of distinct labels.
    pub labels: u64,
    /// Ordered by name.
    pub attributes: Vec<AttributeStats>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SegmentStats {
    /// Segment id in hex, as in its file names.
    pub id: String,
    /// Documents that are not deleted.
    pub documents: u32,
    /// Deleted documents that still take space.
    pub deleted: u32,
}

/// Distribution of the codes.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CodeStats {
    /// Number of distinct codes.
    pub distinct: u64,
    /// Documents that share the most frequent code.
    pub largest: u64,
    /// The most frequent code, in hex.
    pub largest_code: String,
    /// One entry per codebook.
    pub codebooks: Vec<CodebookStats>,
}

/// How evenly documents use the codewords of a codebook.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct CodebookStats {
    /// Entropy of the codeword in bits, at most `log2` of the codebook size.
    pub entropy: f64,
    /// Codewords that some document has.
    pub used: usize,
    /// Share of documents that have the most frequent codeword.
    pub top: f64,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct AttributeStats {
    /// The name used in filters.
    pub name: String,
    /// Any of `bool`, `int`, `float`, `text`, `date`.
    pub types: BTreeSet<&'static str>,
    /// Documents that have the attribute.
    pub documents: u64,
    /// Number of distinct values.
    pub distinct: u64,
}

pub(super) fn of(inner: &Inner, progress: &dyn Progress) -> Result<Stats> {
    let snapshot = inner.sound()?;
    let mut values = Values::default();
    let readers = snapshot.searcher().segment_readers();
    progress.stage("looking at attributes", Some(readers.len() as u64));
    for (ordinal, reader) in readers.iter().enumerate() {
        super::guarded_ours(&inner.dir.join(STORE), || {
            values.take(&snapshot, ordinal, reader, progress).map_err(|e| match e {
                Error::Io { source, .. } => Error::io(inner.dir.join(STORE))(source),
                other => other,
            })
        })?;
        progress.advance(1);
    }
    progress.stage("counting codes", Some(snapshot.searcher().num_docs()));
    let spread = spread(&snapshot, inner.model.shape(), progress)?;
    let parts = readers.iter().map(|r| SegmentStats {
        id: r.segment_id().uuid_string(),
        documents: r.num_docs(),
        deleted: r.num_deleted_docs(),
    });
    Ok(Stats {
        info: info::of(inner)?,
        parts: parts.collect(),
        spread,
        labels: values.labels.len() as u64,
        attributes: values.attributes.into_iter().map(|(name, seen)| seen.stats(name)).collect(),
    })
}

/// A segment's columns, by name and type.
pub(super) fn columnar(reader: &SegmentReader) -> Result<ColumnarReader> {
    let name = reader.segment_id().uuid_string() + ".fast";
    let file = reader.open_read(SegmentComponent::FastFields);
    let file = file.map_err(|e| {
        Error::format(&name, format!("cannot be read: {e}; verify the index to see what is damaged"))
            .remedied(Remedy::VerifyIndex)
    })?;
    ColumnarReader::open(file).map_err(Error::io(name))
}

/// Codes are sorted within each segment, so merging the segments puts equal codes next to each other.
fn spread(snapshot: &Snapshot, shape: CodeShape, progress: &dyn Progress) -> Result<CodeStats> {
    let alive = |searcher: &'_ Searcher, ordinal: usize, number: u32| {
        !searcher.segment_reader(ordinal as u32).is_deleted(number)
    };
    let searcher = snapshot.searcher();
    let mut lists: Vec<_> = snapshot
        .segments()
        .iter()
        .enumerate()
        .map(|(ordinal, s)| s.blocks.iter().filter(move |&(number, _)| alive(searcher, ordinal, number)))
        .collect();
    let mut heads = BinaryHeap::new();
    for (ordinal, list) in lists.iter_mut().enumerate() {
        heads.extend(list.next().map(|(_, code)| Reverse((code, ordinal))));
    }
    let mut counts = vec![vec![0u64; shape.codebook_size()]; shape.num_codebooks()];
    let mut stats = CodeStats::default();
    let (mut current, mut run, mut seen): (Vec<u8>, u64, u64) = (Vec::new(), 0, 0);
    let mut finish = |code: &[u8], run: u64| {
        if run == 0 {
            return;
        }
        stats.distinct += 1;
        if run > stats.largest {
            (stats.largest, stats.largest_code) = (run, hex::encode(code));
        }
        for (m, counts) in counts.iter_mut().enumerate() {
            counts[shape.codeword(code, m)] += run;
        }
    };
    while let Some(Reverse((code, ordinal))) = heads.pop() {
        heads.extend(lists[ordinal].next().map(|(_, code)| Reverse((code, ordinal))));
        if code != current {
            finish(&current, run);
            (current, run) = (code, 0);
        }
        run += 1;
        seen += 1;
        if seen.is_multiple_of(1 << 16) {
            progress.advance(1 << 16);
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
        }
    }
    finish(&current, run);
    stats.codebooks = counts.iter().map(|counts| codebook_stats(counts, seen)).collect();
    Ok(stats)
}

fn codebook_stats(counts: &[u64], documents: u64) -> CodebookStats {
    let share = |&n: &u64| n as f64 / documents.max(1) as f64;
    let used = counts.iter().filter(|&&n| n > 0);
    let entropy = used.clone().map(|n| -share(n) * share(n).log2()).sum::<f64>();
    // With a single codeword in use the sum is -0.
    CodebookStats { entropy: entropy.max(0.0), used: used.count(), top: counts.iter().map(share).fold(0.0, f64::max) }
}

/// Hashes of the labels and attribute values seen so far. With 64 bits, the chance that any two of 10 million values
/// collide is about 1 in 10^5.
#[derive(Default)]
struct Values {
    hasher: RandomState,
    labels: HashSet<u64>,
    attributes: BTreeMap<String, Seen>,
}

#[derive(Default)]
struct Seen {
    types: BTreeSet<&'static str>,
    documents: u64,
    values: HashSet<u64>,
}

impl Seen {
    fn stats(self, name: String) -> AttributeStats {
        AttributeStats { name, types: self.types, documents: self.documents, distinct: self.values.len() as u64 }
    }
}

impl Values {
    fn take(
        &mut self,
        snapshot: &Snapshot,
        ordinal: usize,
        reader: &SegmentReader,
        progress: &dyn Progress,
    ) -> Result<()> {
        // An attribute may have a column per type. A document with two of them is counted once.
        let mut having: BTreeMap<String, Bitmap> = BTreeMap::new();
        let columnar = columnar(reader)?;
        let columns = columnar.list_columns().map_err(Error::io("columns"))?;
        for (path, handle) in columns {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            // tantivy separates the path components of a JSON field by this character.
            let name = match path.split_once('\u{1}') {
                Some(("attributes", rest)) => rest.replace('\u{1}', "."),
                None if path == "labels" => String::new(),
                _ => continue,
            };
            let column = handle.open().map_err(Error::io("columns"))?;
            let documents = having.entry(name.clone()).or_insert_with(|| Bitmap::empty(reader.max_doc() as usize));
            let mut labels = Seen::default();
            let is_label = name.is_empty();
            let seen = if is_label { &mut labels } else { self.attributes.entry(name).or_default() };
            let hash = |value: Key| self.hasher.hash_one(value);
            let values = &mut seen.values;
            seen.types.insert(match &column {
                DynamicColumn::Bool(c) => each(c, reader, documents, |v| values.extend([hash(Key::Bool(v))])),
                DynamicColumn::I64(c) => each(c, reader, documents, |v| values.extend([hash(Key::Int(v.into()))])),
                DynamicColumn::U64(c) => each(c, reader, documents, |v| values.extend([hash(Key::Int(v.into()))])),
                DynamicColumn::F64(c) => each(c, reader, documents, |v| values.extend([hash(Key::number(v))])),
                DynamicColumn::DateTime(c) => {
                    each(c, reader, documents, |v| values.extend([hash(Key::Int(v.into_timestamp_nanos().into()))]))
                }
                DynamicColumn::Str(strings) => {
                    let mut used = vec![false; strings.dictionary().num_terms()];
                    each(strings.ords(), reader, documents, |ordinal| used[ordinal as usize] = true);
                    let mut stream = strings.dictionary().stream().map_err(Error::io("columns"))?;
                    let mut ordinal = 0;
                    while stream.advance() {
                        if used[ordinal] {
                            values.insert(hash(Key::Text(stream.key())));
                        }
                        ordinal += 1;
                    }
                    "text"
                }
                // These types are never written.
                DynamicColumn::IpAddr(_) | DynamicColumn::Bytes(_) => continue,
            });
            if is_label {
                self.labels.extend(labels.values);
            }
        }
        for (name, documents) in having {
            if let Some(seen) = self.attributes.get_mut(&name) {
                seen.documents += snapshot.documents_of(ordinal, documents).count() as u64;
            }
        }
        Ok(())
    }
}

/// A value for hashing. A whole number is the same value in an integer column and in a float column.
#[derive(Hash)]
enum Key<'a> {
    Bool(bool),
    Int(i128),
    Float(u64),
    Text(&'a [u8]),
}

impl Key<'_> {
    fn number(value: f64) -> Key<'static> {
        if value.fract() == 0.0 && value.abs() < 1e18 { Key::Int(value as i128) } else { Key::Float(value.to_bits()) }
    }
}

/// Passes every value of the documents that are not deleted to `show`, marks those documents, and returns the type
/// name.
fn each<T: TypeName>(
    column: &Column<T>,
    reader: &SegmentReader,
    documents: &mut Bitmap,
    mut show: impl FnMut(T),
) -> &'static str {
    for document in reader.doc_ids_alive() {
        let mut has = false;
        column.values_for_doc(document).for_each(|value| {
            has = true;
            show(value);
        });
        if has {
            documents.insert(document);
        }
    }
    T::NAME
}

trait TypeName: PartialOrd + Copy + std::fmt::Debug + Send + Sync + 'static {
    const NAME: &'static str;
}

impl TypeName for bool {
    const NAME: &'static str = "bool";
}
impl TypeName for i64 {
    const NAME: &'static str = "int";
}
impl TypeName for u64 {
    const NAME: &'static str = "int";
}
impl TypeName for f64 {
    const NAME: &'static str = "float";
}
impl TypeName for tantivy::DateTime {
    const NAME: &'static str = "date";
}
