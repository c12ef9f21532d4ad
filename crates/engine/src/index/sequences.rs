//! Documents by their insertion sequence, and the values of one attribute of all of them.

use std::collections::HashMap;

use tantivy::DocAddress;
use tantivy::columnar::{DynamicColumn, DynamicColumnHandle};

use super::files::Part;
use super::segment::Segment;
use super::stats::columnar;
use super::{Index, Record, STORE, guarded_ours};
use crate::corpus::DocId;
use crate::{Error, Progress, Result};

/// A number that no value has.
const NONE: u32 = u32::MAX;

/// The most frequent values of an attribute.
pub(crate) struct Categories {
    /// With their number of documents, in falling order; equally frequent ones by name.
    pub names: Vec<(String, u64)>,
    /// By insertion sequence: the position in `names`, or 65534 for another value. Documents without a value are left out.
    pub values: Vec<(u64, u16)>,
}

impl Index {
    /// The insertion sequences of documents by id; `None` where there is none.
    pub(crate) fn sequences_of(&self, ids: &[DocId], progress: &dyn Progress) -> Result<Vec<Option<u64>>> {
        let reader = self.reader()?;
        let sequence = |id: &DocId| {
            progress.go_on()?;
            Ok(reader.find(id)?.map(|address| reader.sequence(reader.first(address))))
        };
        ids.iter().map(sequence).collect()
    }

    /// The documents with these insertion sequences; `None` where one was deleted.
    pub(crate) fn at_sequences(&self, sequences: &[u64], progress: &dyn Progress) -> Result<Vec<Option<Record>>> {
        let snapshot = self.inner.sound()?;
        let readers = snapshot.searcher().segment_readers();
        let address = |sequence: u64| {
            snapshot.segments().iter().zip(readers).zip(0u32..).find_map(|((segment, reader), ordinal)| {
                let row = row_of(segment, sequence)?;
                (!reader.is_deleted(row)).then(|| DocAddress::new(ordinal, row))
            })
        };
        let record = |&sequence: &u64| {
            progress.go_on()?;
            address(sequence).map(|at| self.inner.record(&snapshot, at)).transpose()
        };
        sequences.iter().map(record).collect()
    }

    /// The values of an attribute, or of the labels, of all documents. Of several values of a document the first counts.
    pub(crate) fn categories(&self, attribute: &str, most: usize, progress: &dyn Progress) -> Result<Categories> {
        let snapshot = self.inner.snapshot();
        let (mut numbers, mut names): (HashMap<String, u32>, Vec<(String, u64)>) = (HashMap::new(), Vec::new());
        let mut found: Vec<(u64, u32)> = Vec::new();
        guarded_ours(&self.inner.dir.join(STORE), || {
            snapshot.require(Part::Columns)?;
            let readers = snapshot.searcher().segment_readers().iter();
            for ((reader, segment), ordinal) in readers.zip(snapshot.segments()).zip(0u32..) {
                progress.go_on()?;
                let unread = |e| Error::io(reader.segment_id().uuid_string() + ".fast")(e);
                let mut of_row = vec![NONE; reader.max_doc() as usize];
                for (name, handle) in columnar(reader)?.list_columns().map_err(unread)? {
                    let own = name.strip_prefix("attributes\u{1}").map(|path| path.replace('\u{1}', "."));
                    if own.as_deref().unwrap_or(&name) == attribute && (own.is_some() || name == "labels") {
                        let mut number = |text: String| {
                            *numbers.entry(text).or_insert_with_key(|text| {
                                names.push((text.clone(), 0));
                                names.len() as u32 - 1
                            })
                        };
                        read(&handle, &mut of_row, &mut number).map_err(unread)?;
                    }
                }
                for row in snapshot.firsts_alive(reader, ordinal) {
                    let number = of_row[row as usize];
                    if number != NONE {
                        names[number as usize].1 += 1;
                        found.push((segment.columns.sequence.get_val(row), number));
                    }
                }
            }
            Ok(())
        })?;
        Ok(ranked(names, &found, most))
    }
}

/// The row of a segment with an insertion sequence. Ranks follow the order of insertion.
fn row_of(segment: &Segment, sequence: u64) -> Option<u32> {
    let at = |rank: u32| segment.columns.sequence.get_val(segment.blocks.number(rank));
    let (mut low, mut high) = (0, segment.blocks.len() as u32);
    while low < high {
        let middle = low + (high - low) / 2;
        if at(middle) < sequence { low = middle + 1 } else { high = middle }
    }
    (low < segment.blocks.len() as u32 && at(low) == sequence).then(|| segment.blocks.number(low))
}

/// Reads the first value of every row that has none yet. `number` gives the number of a value.
fn read(
    handle: &DynamicColumnHandle,
    of_row: &mut [u32],
    number: &mut impl FnMut(String) -> u32,
) -> std::io::Result<()> {
    let mut take = |value: &dyn Fn(u32) -> Option<String>| {
        for (row, slot) in of_row.iter_mut().enumerate().filter(|(_, slot)| **slot == NONE) {
            if let Some(text) = value(row as u32) {
                *slot = number(text);
            }
        }
    };
    match handle.open()? {
        DynamicColumn::Bool(column) => take(&|row| Some(column.first(row)?.to_string())),
        DynamicColumn::I64(column) => take(&|row| Some(column.first(row)?.to_string())),
        DynamicColumn::U64(column) => take(&|row| Some(column.first(row)?.to_string())),
        DynamicColumn::F64(column) => take(&|row| Some(column.first(row)?.to_string())),
        DynamicColumn::Str(column) => {
            // The dictionary is read once per value, not once per document.
            let mut texts = Vec::with_capacity(column.num_terms());
            for ordinal in 0..column.num_terms() as u64 {
                let mut text = String::new();
                column.ord_to_str(ordinal, &mut text)?;
                texts.push(text);
            }
            take(&|row| texts.get(column.term_ords(row).next()? as usize).cloned());
        }
        _ => {}
    }
    Ok(())
}

/// Numbers values by how frequent they are.
fn ranked(names: Vec<(String, u64)>, found: &[(u64, u32)], most: usize) -> Categories {
    let mut order: Vec<usize> = (0..names.len()).filter(|&i| names[i].1 > 0).collect();
    order.sort_by(|&a, &b| names[b].1.cmp(&names[a].1).then_with(|| names[a].0.cmp(&names[b].0)));
    let most = most.min(usize::from(u16::MAX - 1));
    let mut rank = vec![u16::MAX - 1; names.len()];
    order.iter().take(most).enumerate().for_each(|(place, &i)| rank[i] = place as u16);
    Categories {
        names: order.into_iter().take(most).map(|i| names[i].clone()).collect(),
        values: found.iter().map(|&(sequence, number)| (sequence, rank[number as usize])).collect(),
    }
}
