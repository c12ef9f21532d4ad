//! Which documents are alike: neighbours by code, judged by vectors or texts.

use std::collections::HashMap;

use kernels::squares::squared;
use rayon::prelude::*;

use super::groups::Groups;
use super::shingles::Shingles;
use super::{CHUNK, Measure};
use crate::index::{Index, RerankVectors, Walk};
use crate::model::DistanceTable;
use crate::search::Flat;
use crate::{Error, Matrix, Progress, Result};

/// Documents whose neighbours are searched at a time.
const BATCH: usize = 1024;

/// Compares documents of a walk, by their places.
pub(super) struct Judge<'a> {
    walk: &'a Walk,
    measure: Measure,
    threshold: f32,
    /// Shingles of every document, where texts decide.
    shingles: Vec<Shingles>,
}

impl<'a> Judge<'a> {
    pub fn new(walk: &'a Walk, measure: Measure, threshold: f32, progress: &dyn Progress) -> Result<Judge<'a>> {
        let shingles = if measure == Measure::Words { shingles(walk, progress)? } else { Vec::new() };
        Ok(Judge { walk, measure, threshold, shingles })
    }

    pub fn measure(&self) -> Measure {
        self.measure
    }

    pub fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Similarity of a document with others.
    pub fn similarities(&self, place: u32, others: &[u32]) -> Result<Vec<f32>> {
        match self.measure {
            _ if others.is_empty() => Ok(Vec::new()),
            Measure::Vectors => {
                let mut rows = self.vectors([place].iter().chain(others))?;
                rows.normalize_rows();
                // The cosine of unit vectors. It is exactly 1 for equal ones.
                Ok(rows.iter().skip(1).map(|row| 1.0 - squared(rows.row(0), row) / 2.0).collect())
            }
            Measure::Words => {
                let own = &self.shingles[place as usize];
                Ok(others.iter().map(|&other| own.jaccard(&self.shingles[other as usize])).collect())
            }
            Measure::Text => Ok(vec![0.0; others.len()]),
        }
    }

    /// Stored vectors, `[places, inputs]`.
    fn vectors<'p>(&self, places: impl Iterator<Item = &'p u32>) -> Result<Matrix> {
        let mut rows = Vec::new();
        let mut width = 0;
        self.walk.reader().read_rerank_vectors(places.map(|&place| self.walk.address(place as usize)), |vector| {
            width = vector.len();
            rows.extend_from_slice(vector);
        })?;
        Ok(Matrix::from_vec(width, rows))
    }

    /// Distance tables of documents: of their vectors, or of their codes where no vectors are stored.
    fn tables(&self, index: &Index, places: &[u32], codes: &[u8]) -> Result<Vec<DistanceTable>> {
        let model = index.model();
        if index.rerank_vectors() != RerankVectors::None {
            return model.tables(&self.vectors(places.iter())?, model.config.distance);
        }
        let codes = codes.chunks_exact(model.shape().code_bytes());
        Ok(codes.map(|code| model.codebooks().symmetric_table(code, model.config.distance)).collect())
    }
}

fn shingles(walk: &Walk, progress: &dyn Progress) -> Result<Vec<Shingles>> {
    progress.stage("reading words", Some(walk.len() as u64));
    let mut all = Vec::with_capacity(walk.len());
    for start in (0..walk.len()).step_by(CHUNK) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let places = start..(start + CHUNK).min(walk.len());
        let of = |place: usize| Ok(Shingles::of(&walk.get(place)?.text.unwrap_or_default()));
        all.extend(places.clone().into_par_iter().map(of).collect::<Result<Vec<_>>>()?);
        progress.advance(places.len() as u64);
    }
    Ok(all)
}

/// Joins the documents at `places` that are alike. Each is compared with the documents of its own code, with its nearest
/// `neighbours` of other codes, and where words decide with documents that share a rare pair of words.
pub(super) fn join(
    judge: &Judge,
    index: &Index,
    places: &[u32],
    neighbours: usize,
    groups: &mut Groups,
    progress: &dyn Progress,
) -> Result<()> {
    progress.stage("comparing neighbours", Some(places.len() as u64));
    let width = index.model().shape().code_bytes();
    let mut codes = judge.walk.codes()?;
    if places.len() < judge.walk.len() {
        codes = places.iter().flat_map(|&p| codes[p as usize * width..][..width].iter().copied()).collect();
    }
    let flat = Flat::new(index.model().shape(), &codes)?;
    let equal = EqualCodes::new(&codes, width);
    let shared = SharedShingles::new(judge, places);
    for (batch, first) in places.chunks(BATCH).zip((0..).step_by(BATCH)) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let tables = judge.tables(index, batch, &codes[first * width..(first + batch.len()) * width])?;
        let alike = |(row, table): (usize, &DistanceTable)| -> Result<Vec<u32>> {
            let own = equal.bucket(row);
            // The documents of the same code are the nearest; they come from the bucket instead.
            let hits = flat.search(std::slice::from_ref(table), neighbours + equal.size(row).min(MAX_EQUAL))?;
            let others = hits.into_iter().flatten().map(|hit| hit.row).filter(|&other| equal.bucket(other) != own);
            let root = groups.root(places[row]);
            let others = equal.after(row).take(MAX_EQUAL).chain(others).chain(shared.with(judge, places, row));
            // Pairs that are joined already need no comparison.
            let mut others: Vec<u32> = others.map(|row| places[row]).filter(|&o| groups.root(o) != root).collect();
            others.sort_unstable();
            others.dedup();
            let similarities = judge.similarities(places[row], &others)?;
            let pairs = others.into_iter().zip(similarities);
            Ok(pairs.filter(|(_, similarity)| *similarity >= judge.threshold).map(|(other, _)| other).collect())
        };
        let rows = first..first + batch.len();
        let alike = rows.into_par_iter().zip(&tables).map(alike).collect::<Result<Vec<_>>>()?;
        for (&place, others) in batch.iter().zip(alike) {
            others.into_iter().for_each(|other| groups.join(place, other));
        }
        progress.advance(batch.len() as u64);
    }
    Ok(())
}

/// Documents of equal code that each document is compared with. Only short codes of many documents have more.
pub(super) const MAX_EQUAL: usize = 1000;

/// Rows by code. The scan orders equal distances by insertion and would cut a copy behind `k` others of its code.
struct EqualCodes {
    /// The bucket of every row.
    buckets: Vec<u32>,
    /// Rows per bucket.
    sizes: Vec<u32>,
    /// The next row of the same code; the row itself if there is none.
    next: Vec<u32>,
}

impl EqualCodes {
    fn new(codes: &[u8], width: usize) -> EqualCodes {
        let mut known: HashMap<&[u8], u32> = HashMap::new();
        let (mut buckets, mut sizes, mut last, mut next) =
            (Vec::new(), Vec::<u32>::new(), Vec::<u32>::new(), Vec::new());
        for (code, row) in codes.chunks_exact(width).zip(0u32..) {
            let bucket = *known.entry(code).or_insert(sizes.len() as u32);
            if bucket as usize == sizes.len() {
                sizes.push(0);
                last.push(row);
            }
            sizes[bucket as usize] += 1;
            next.push(row);
            next[last[bucket as usize] as usize] = row;
            last[bucket as usize] = row;
            buckets.push(bucket);
        }
        EqualCodes { buckets, sizes, next }
    }

    fn bucket(&self, row: usize) -> u32 {
        self.buckets[row]
    }

    fn size(&self, row: usize) -> usize {
        self.sizes[self.buckets[row] as usize] as usize
    }

    /// The rows behind `row` with its code, in order.
    fn after(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(row), |&row| Some(self.next[row] as usize).filter(|&next| next != row)).skip(1)
    }
}

/// Smallest shingles of a text that are looked up in the others. Two texts with a Jaccard similarity J share none of them with
/// a probability of about (1 - J)^8: 0.02 at 0.4.
pub(super) const LOOKED_UP: usize = 8;
/// Texts with the same shingle that a text is compared with. Frequent pairs of words say little.
pub(super) const MAX_SHARED: usize = 50;

/// Rows by the smallest shingles of their texts: `(shingle, row)`, sorted. Empty where vectors decide.
///
/// A short text that was edited may have a code far from its copy's.
struct SharedShingles(Vec<(u32, u32)>);

impl SharedShingles {
    fn new(judge: &Judge, places: &[u32]) -> SharedShingles {
        let of = |(row, &place): (usize, &u32)| {
            let smallest = judge.shingles.get(place as usize).map_or(&[][..], |own| own.smallest(LOOKED_UP));
            smallest.iter().map(move |&shingle| (shingle, row as u32))
        };
        let mut all: Vec<(u32, u32)> = places.iter().enumerate().flat_map(of).collect();
        all.par_sort_unstable();
        SharedShingles(all)
    }

    /// The rows behind `row` that share a smallest shingle with it.
    fn with<'a>(&'a self, judge: &'a Judge, places: &[u32], row: usize) -> impl Iterator<Item = usize> + 'a {
        let own = judge.shingles.get(places[row] as usize).map_or(&[][..], |own| own.smallest(LOOKED_UP));
        own.iter().flat_map(move |&shingle| {
            let first = self.0.partition_point(|&entry| entry <= (shingle, row as u32));
            let behind = self.0[first..].iter().take_while(move |entry| entry.0 == shingle);
            behind.take(MAX_SHARED).map(|entry| entry.1 as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_equal_codes_follow_each_other() {
        let equal = EqualCodes::new(&[1, 2, 1, 1, 3, 2], 1);
        assert_eq!(equal.after(0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(equal.after(1).collect::<Vec<_>>(), [5]);
        assert_eq!(equal.after(4).count() + equal.after(5).count(), 0);
        assert_eq!((equal.size(3), equal.size(4), equal.bucket(2)), (3, 1, equal.bucket(0)));
    }
}
