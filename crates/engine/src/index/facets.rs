//! Facets: the values of attributes, with document counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tantivy::SegmentReader;
use tantivy::columnar::DynamicColumn;

use super::files::Part;
use super::filter::{Bitmap, Filter, matching};
use super::reader::Reader;
use super::stats::columnar;
use super::{Index, STORE, guarded_ours};
use crate::corpus::Value;
use crate::{Error, Progress, Result};

/// One attribute over all matching documents.
#[derive(Clone, Debug, PartialEq)]
pub struct Facet {
    /// The name used in filters.
    pub name: String,
    /// Matching documents that have the attribute.
    pub documents: u64,
    pub distinct: u64,
    /// The most frequent values with their document counts, in falling order. Ties are ordered by value, smaller first.
    pub values: Vec<(Value, u64)>,
    /// Smallest and largest number; `None` if no value is a number.
    pub range: Option<(f64, f64)>,
}

impl Facet {
    /// The filter `name:"value"`, with special characters of the query language escaped.
    pub fn filter(name: &str, value: &Value) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let name: String = name
            .chars()
            .flat_map(|c| if c.is_alphanumeric() || "._-".contains(c) { vec![c] } else { vec!['\\', c] })
            .collect();
        match value {
            Value::Bool(v) => format!("{name}:{v}"),
            Value::Int(v) => format!("{name}:{}", quoted(&v.to_string())),
            Value::Float(v) => format!("{name}:{}", quoted(&v.to_string())),
            Value::Text(v) => format!("{name}:{}", quoted(v)),
            Value::Texts(all) => format!("{name}:{}", quoted(&all.join(" "))),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Key {
    Bool(bool),
    Int(i64),
    /// Bits of a float, mapped so that they sort like the float.
    Float(u64),
    Text(String),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "WireSeen", into = "WireSeen")]
struct Seen {
    documents: u64,
    counts: BTreeMap<Key, u64>,
}

/// Documents, and the count of each value. Names of JSON are strings only, so values are in a list.
type WireSeen = (u64, Vec<(Key, u64)>);

impl From<WireSeen> for Seen {
    fn from((documents, counts): WireSeen) -> Seen {
        Seen { documents, counts: counts.into_iter().collect() }
    }
}

impl From<Seen> for WireSeen {
    fn from(seen: Seen) -> WireSeen {
        (seen.documents, seen.counts.into_iter().collect())
    }
}

/// How many documents have each value of each attribute. Counts of shards add up to those of one index.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FacetCounts(BTreeMap<String, Seen>);

impl FacetCounts {
    pub fn add(&mut self, other: FacetCounts) {
        for (name, other) in other.0 {
            let seen = self.0.entry(name).or_default();
            seen.documents += other.documents;
            other.counts.into_iter().for_each(|(key, count)| *seen.counts.entry(key).or_default() += count);
        }
    }

    /// The `most` frequent values of each attribute.
    pub fn facets(self, most: usize) -> Vec<Facet> {
        let seen = self.0.into_iter().filter(|(_, seen)| seen.documents > 0);
        seen.map(|(name, seen)| seen.facet(name, most)).collect()
    }
}

/// Labels are reported like an attribute of this name.
const LABELS: &str = "labels";

impl Index {
    /// The `most` frequent values of every attribute, and of the labels, among the matching documents.
    pub fn facets(&self, filter: Option<&str>, most: usize, progress: &dyn Progress) -> Result<Vec<Facet>> {
        let snapshot = self.inner.snapshot();
        let filter = guarded_ours(&self.inner.dir.join(STORE), || {
            snapshot.require(Part::Columns)?;
            filter.map(|text| self.inner.parse_filter(text, Some(&snapshot))).transpose()
        })?;
        Ok(Reader::new(self.inner.clone(), snapshot).facet_counts(filter.as_ref(), progress)?.facets(most))
    }
}

impl Reader {
    /// The values of every attribute, and of the labels, among the matching documents.
    pub fn facet_counts(&self, filter: Option<&Filter>, progress: &dyn Progress) -> Result<FacetCounts> {
        let snapshot = &self.snapshot;
        let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
        guarded_ours(&self.inner.dir.join(STORE), || {
            snapshot.require(Part::Columns)?;
            if filter.is_some() {
                snapshot.require(Part::Terms)?;
            }
            for (ordinal, reader) in snapshot.searcher().segment_readers().iter().enumerate() {
                progress.go_on()?;
                let rows = match filter {
                    Some(filter) => matching(snapshot.searcher(), reader, filter)?,
                    None => living(reader),
                };
                let documents = snapshot.documents_of(ordinal, rows);
                count(reader, &documents, &mut seen, progress)?;
            }
            Ok(())
        })?;
        Ok(FacetCounts(seen))
    }
}

fn living(reader: &SegmentReader) -> Bitmap {
    let mut bits = Bitmap::empty(reader.max_doc() as usize);
    (0..reader.max_doc()).filter(|d| !reader.is_deleted(*d)).for_each(|d| bits.insert(d));
    bits
}

fn count(
    reader: &SegmentReader,
    documents: &Bitmap,
    seen: &mut BTreeMap<String, Seen>,
    progress: &dyn Progress,
) -> Result<()> {
    let unread = |e| Error::io(reader.segment_id().uuid_string() + ".fast")(e);
    for (name, handle) in columnar(reader)?.list_columns().map_err(unread)? {
        let name = match name.strip_prefix("attributes\u{1}") {
            Some(path) => path.replace('\u{1}', "."),
            None if name == LABELS => name,
            None => continue,
        };
        progress.go_on()?;
        let seen = seen.entry(name).or_default();
        // One name can have columns of several types; each is counted by its own type.
        match handle.open().map_err(unread)? {
            DynamicColumn::Bool(column) => {
                seen.take(documents, |d| column.values_for_doc(d).map(Key::Bool).collect());
            }
            DynamicColumn::I64(column) => seen.take(documents, |d| column.values_for_doc(d).map(Key::Int).collect()),
            DynamicColumn::U64(column) => {
                seen.take(documents, |d| column.values_for_doc(d).map(|v| float(v as f64)).collect());
            }
            DynamicColumn::F64(column) => seen.take(documents, |d| column.values_for_doc(d).map(float).collect()),
            DynamicColumn::Str(column) => {
                // Counts ordinals first: the dictionary is read once per value, not once per document.
                let mut counts = vec![0u64; column.num_terms()];
                for document in documents.iter() {
                    let mut any = false;
                    let mut ordinals: Vec<u64> = column.term_ords(document).collect();
                    ordinals.dedup();
                    for ordinal in ordinals {
                        counts[ordinal as usize] += 1;
                        any = true;
                    }
                    seen.documents += u64::from(any);
                }
                let mut text = String::new();
                for (ordinal, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
                    text.clear();
                    if column.ord_to_str(ordinal as u64, &mut text).map_err(unread)? {
                        *seen.counts.entry(Key::Text(text.clone())).or_default() += count;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Maps a float to bits that sort in the same order.
fn float(value: f64) -> Key {
    let bits = value.to_bits();
    Key::Float(if bits >> 63 == 1 { !bits } else { bits | 1 << 63 })
}

fn number(bits: u64) -> f64 {
    f64::from_bits(if bits >> 63 == 1 { bits & !(1 << 63) } else { !bits })
}

impl Seen {
    fn take(&mut self, documents: &Bitmap, values: impl Fn(u32) -> Vec<Key>) {
        for document in documents.iter() {
            let mut values = values(document);
            values.sort_unstable();
            values.dedup();
            self.documents += u64::from(!values.is_empty());
            for value in values {
                *self.counts.entry(value).or_default() += 1;
            }
        }
    }

    fn facet(self, name: String, most: usize) -> Facet {
        let numbers = self.counts.keys().filter_map(|key| match key {
            Key::Int(v) => Some(*v as f64),
            Key::Float(bits) => Some(number(*bits)),
            _ => None,
        });
        let range = numbers.fold(None, |range: Option<(f64, f64)>, v| match range {
            None => Some((v, v)),
            Some((least, greatest)) => Some((least.min(v), greatest.max(v))),
        });
        let distinct = self.counts.len() as u64;
        let mut counts: Vec<(Key, u64)> = self.counts.into_iter().collect();
        // The sort is stable: equal counts stay ordered by value.
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts.truncate(most);
        let value = |key| match key {
            Key::Bool(v) => Value::Bool(v),
            Key::Int(v) => Value::Int(v),
            Key::Float(bits) => Value::Float(number(bits)),
            Key::Text(v) => Value::Text(v),
        };
        let values = counts.into_iter().map(|(key, count)| (value(key), count)).collect();
        Facet { name, documents: self.documents, distinct, values, range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_their_order_as_bits() {
        let values = [f64::NEG_INFINITY, -2.5, -0.0, 0.0, 1e-300, 3.25, f64::INFINITY];
        let keys: Vec<Key> = values.iter().map(|v| float(*v)).collect();
        assert!(keys.is_sorted());
        for (key, value) in keys.iter().zip(values) {
            let Key::Float(bits) = key else { panic!("a float") };
            assert_eq!(number(*bits).to_bits(), value.to_bits());
        }
    }
}
