//! The documents that a writer added since its last commit, which no search finds yet.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use super::likeness::Likeness;
use super::pairs::{LOOKED_UP, MAX_EQUAL, MAX_SHARED};
use crate::corpus::DocId;
use crate::model::DistanceTable;

/// A document since the last commit.
pub(super) struct Late {
    pub id: DocId,
    pub likeness: Likeness,
    /// Neither left out, nor deleted, nor replaced since.
    pub alive: bool,
}

#[derive(Default)]
pub(super) struct Lately {
    pub rows: Vec<Late>,
    codes: Vec<u8>,
    by_text: HashMap<[u8; 16], Vec<u32>>,
    by_shingle: HashMap<u32, Vec<u32>>,
    /// The living row of an id, by its text: the ids `5` and `"5"` are the same.
    by_id: HashMap<String, u32>,
    /// Committed documents that are deleted or replaced, by the texts of their ids.
    gone: HashSet<String>,
}

impl Lately {
    /// Adds a document that is compared, but not yet one of the index.
    pub fn push(&mut self, id: &DocId, likeness: Likeness, code: &[u8]) {
        let row = self.rows.len() as u32;
        if let Some(text) = likeness.text {
            self.by_text.entry(text).or_default().push(row);
        }
        for &shingle in likeness.shingles.smallest(LOOKED_UP) {
            self.by_shingle.entry(shingle).or_default().push(row);
        }
        self.codes.extend_from_slice(code);
        self.rows.push(Late { id: id.clone(), likeness, alive: false });
    }

    /// Makes a row part of the index; it replaces the document with the same id.
    pub fn accept(&mut self, row: u32) {
        let id = self.rows[row as usize].id.to_string();
        self.rows[row as usize].alive = true;
        if let Some(old) = self.by_id.insert(id.clone(), row) {
            self.rows[old as usize].alive = false;
        }
        self.gone.insert(id);
    }

    /// Deletes the document with this id, committed or not.
    pub fn delete(&mut self, id: &DocId) {
        let id = id.to_string();
        if let Some(row) = self.by_id.remove(&id) {
            self.rows[row as usize].alive = false;
        }
        self.gone.insert(id);
    }

    /// Whether a document with this id was added since the commit.
    pub fn has(&self, id: &DocId) -> bool {
        self.by_id.contains_key(&id.to_string())
    }

    /// Whether the committed document with this id is deleted or replaced.
    pub fn is_gone(&self, id: &DocId) -> bool {
        self.gone.contains(&id.to_string())
    }

    /// The rows before `row` that may be like it: those of equal text, of shared word pairs, of equal code, and the nearest
    /// `neighbours` by code. `undecided` is the first row that may still become one of the index.
    pub fn candidates(&self, row: u32, table: &DistanceTable, neighbours: usize, undecided: u32) -> Vec<u32> {
        let own = &self.rows[row as usize].likeness;
        let before = |rows: Option<&Vec<u32>>, most: usize| -> Vec<u32> {
            rows.into_iter().flatten().copied().take_while(|&other| other < row).take(most).collect()
        };
        let mut found = before(own.text.and_then(|text| self.by_text.get(&text)), usize::MAX);
        for shingle in own.shingles.smallest(LOOKED_UP) {
            found.extend(before(self.by_shingle.get(shingle), MAX_SHARED));
        }
        found.extend(self.nearest(row, table, neighbours, undecided));
        found.retain(|&other| other >= undecided || self.rows[other as usize].alive);
        found.sort_unstable();
        found.dedup();
        found
    }

    fn nearest(&self, row: u32, table: &DistanceTable, neighbours: usize, undecided: u32) -> Vec<u32> {
        let width = table.shape().code_bytes();
        let code = |row: u32| &self.codes[row as usize * width..][..width];
        let (mut equal, mut others): (Vec<u32>, Vec<(f32, u32)>) = (Vec::new(), Vec::new());
        for other in (0..row).filter(|&other| other >= undecided || self.rows[other as usize].alive) {
            if code(other) == code(row) {
                equal.push(other);
            } else {
                others.push((table.distance(code(other)), other));
            }
        }
        equal.truncate(MAX_EQUAL);
        if others.len() > neighbours {
            let nearer = |a: &(f32, u32), b: &(f32, u32)| -> Ordering { a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)) };
            others.select_nth_unstable_by(neighbours, nearer);
            others.truncate(neighbours);
        }
        equal.extend(others.into_iter().map(|(_, other)| other));
        equal
    }
}
