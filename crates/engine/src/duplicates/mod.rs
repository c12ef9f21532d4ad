//! Duplicates of an index: equal texts, and texts that say almost the same.
//!
//! Equal texts are found by their SHA-256. For the others, codes give the candidates: each document's nearest ones, by the
//! exact scan. Words decide, by the Jaccard similarity of word pairs; or the stored vectors, by cosine. Pairs that are alike
//! join into groups, and the first document of a group represents it.
//!
//! New documents are compared in the same way before they are added ([`Arrivals`]).

mod arrivals;
mod change;
mod groups;
mod lately;
mod likeness;
mod pairs;
mod policy;
mod shingles;

use std::collections::HashMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use strum::{EnumString, VariantNames};

use crate::corpus::DocId;
use crate::index::{Index, RerankVectors, Store, Walk};
use crate::{Error, Progress, Result};
pub use arrivals::Arrivals;
pub use change::{Deleted, delete, mark};
use groups::Groups;
use likeness::text_hash;
use pairs::Judge;
pub use policy::{DUPLICATE_OF, DuplicatePolicy, OnDuplicate, Repeat, Repeats};

/// Documents read at a time.
const CHUNK: usize = 4096;

/// How duplicates are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DuplicatesConfig {
    /// The measure. `None`: words, or vectors in an index that stores no texts.
    pub by: Option<Measure>,
    /// The least similarity of two duplicates, 0 to 1. `None`: [`Measure::threshold`]. Equal texts need none.
    pub threshold: Option<f32>,
    /// Nearest documents by code that are compared with each document.
    pub neighbours: usize,
}

impl Default for DuplicatesConfig {
    fn default() -> Self {
        DuplicatesConfig { by: None, threshold: None, neighbours: 100 }
    }
}

impl DuplicatesConfig {
    pub fn validate(&self) -> Result<()> {
        if let Some(threshold) = self.threshold
            && !(threshold > 0.0 && threshold <= 1.0)
        {
            return Err(Error::option("threshold", format!("is {threshold}; give a similarity above 0 and at most 1")));
        }
        Error::check_count("neighbours", self.neighbours, 1000)
    }
}

/// The measure of likeness of two documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, EnumString, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_measure)]
pub enum Measure {
    /// The texts are equal.
    Text,
    /// The Jaccard similarity of the texts' word pairs: copies that were edited.
    Words,
    /// The cosine of the stored vectors: also other words for the same.
    Vectors,
}

fn unknown_measure(name: &str) -> Error {
    Error::unknown("measure", name, Measure::VARIANTS)
}

impl Measure {
    /// The default threshold, measured on news with planted copies (edited, truncated, upper case, reordered sentences):
    /// benchmarks/results/dedup.md.
    pub fn threshold(self) -> f32 {
        match self {
            Measure::Text => 1.0,
            Measure::Words => 0.4,
            Measure::Vectors => 0.9,
        }
    }

    /// The threshold given, or the default. Equal texts need none.
    fn threshold_or(self, given: Option<f32>) -> f32 {
        given.filter(|_| self != Measure::Text).unwrap_or(self.threshold())
    }

    fn of(index: &Index, config: &DuplicatesConfig) -> Result<Measure> {
        let (texts, vectors) = (index.store() == Store::All, index.rerank_vectors() != RerankVectors::None);
        let by = config.by.unwrap_or(if texts { Measure::Words } else { Measure::Vectors });
        if by == Measure::Vectors {
            index.expect_one_code_per_document("a comparison by vectors")?;
        }
        match by {
            Measure::Text | Measure::Words if !texts => Err(Error::config(
                "the index stores no texts to compare; build it with store all, or compare vectors if it has them",
            )),
            Measure::Vectors if !vectors && !texts => Err(Error::config(
                "the index stores neither texts nor rerank vectors, and codes alone do not tell duplicates from documents of \
                 a kind; build it with store all, or with rerank_vectors int8 or f16",
            )),
            Measure::Vectors if !vectors => Err(Error::config(
                "the index stores no rerank vectors to compare; build it with rerank_vectors int8 or f16, or compare words",
            )),
            _ => Ok(by),
        }
    }
}

/// A document that repeats the representative of its group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Duplicate {
    pub id: DocId,
    /// Whether its text equals that of the representative.
    pub exact: bool,
    /// Similarity with the representative. It may be below the threshold: then a third document is like both.
    pub similarity: f32,
    /// Insertion sequence when the duplicates were found. It tells whether the document was replaced since.
    #[serde(skip)]
    pub(crate) sequence: u64,
}

/// Documents that say the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DuplicateGroup {
    /// The document that was inserted first.
    pub representative: DocId,
    /// The others, in the order of insertion.
    pub duplicates: Vec<Duplicate>,
    #[serde(skip)]
    pub(crate) sequence: u64,
}

/// The result of [`find`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Duplicates {
    /// Documents of the index.
    pub documents: usize,
    pub measure: Measure,
    pub threshold: f32,
    /// Duplicates whose text equals that of their representative.
    pub exact: usize,
    /// The other duplicates.
    pub near: usize,
    /// In the order of insertion of their representatives.
    pub groups: Vec<DuplicateGroup>,
}

/// Finds the duplicates of the current commit. The result depends on the documents alone, not on threads or segments.
pub fn find(index: &Index, config: &DuplicatesConfig, progress: &dyn Progress) -> Result<Duplicates> {
    config.validate()?;
    let measure = Measure::of(index, config)?;
    let threshold = measure.threshold_or(config.threshold);
    let walk = index.walk()?;
    let mut groups = Groups::new(walk.len());
    let equal = match index.store() {
        Store::All => equal_texts(&walk, &mut groups, progress)?,
        Store::Codes => (0..walk.len() as u32).collect(),
    };
    let judge = Judge::new(&walk, measure, threshold, progress)?;
    if measure != Measure::Text {
        // Copies of a text are left out: they would fill the lists of neighbours.
        let first: Vec<u32> = (0..walk.len() as u32).filter(|&place| equal[place as usize] == place).collect();
        pairs::join(&judge, index, &first, config.neighbours, &mut groups, progress)?;
    }
    report(&walk, &judge, &equal, groups, progress)
}

/// Joins documents of equal texts. Returns the first document with the text of each; a document without text is its own.
fn equal_texts(walk: &Walk, groups: &mut Groups, progress: &dyn Progress) -> Result<Vec<u32>> {
    progress.stage("reading texts", Some(walk.len() as u64));
    let mut first: HashMap<[u8; 16], u32> = HashMap::with_capacity(walk.len());
    let mut equal: Vec<u32> = (0..walk.len() as u32).collect();
    for start in (0..walk.len()).step_by(CHUNK) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let end = (start + CHUNK).min(walk.len());
        let hash = |place: usize| Ok(walk.get(place)?.text.as_deref().and_then(text_hash));
        let hashes = (start..end).into_par_iter().map(hash).collect::<Result<Vec<_>>>()?;
        for (place, hash) in (start..end).zip(hashes) {
            let Some(hash) = hash else { continue };
            let own = *first.entry(hash).or_insert(place as u32);
            equal[place] = own;
            groups.join(own, place as u32);
        }
        progress.advance((end - start) as u64);
    }
    Ok(equal)
}

fn report(
    walk: &Walk,
    judge: &Judge,
    equal: &[u32],
    mut groups: Groups,
    progress: &dyn Progress,
) -> Result<Duplicates> {
    let found = groups.several();
    progress.stage("comparing groups", Some(found.len() as u64));
    let group = |places: &Vec<u32>| -> Result<DuplicateGroup> {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let representative = places[0];
        let (id, sequence) = walk.id_and_sequence(representative as usize)?;
        let others: Vec<u32> = places[1..].iter().copied().filter(|&p| equal[p as usize] != representative).collect();
        let mut similarities = judge.similarities(representative, &others)?.into_iter();
        let duplicates = places[1..].iter().map(|&place| {
            let (id, sequence) = walk.id_and_sequence(place as usize)?;
            let exact = equal[place as usize] == representative;
            let similarity = if exact { 1.0 } else { similarities.next().expect("one for each of the others") };
            Ok(Duplicate { id, exact, similarity, sequence })
        });
        let duplicates = duplicates.collect::<Result<_>>()?;
        progress.advance(1);
        Ok(DuplicateGroup { representative: id, duplicates, sequence })
    };
    let groups = found.par_iter().map(group).collect::<Result<Vec<_>>>()?;
    let all = groups.iter().flat_map(|group| &group.duplicates);
    let (exact, total) = (all.clone().filter(|duplicate| duplicate.exact).count(), all.count());
    let (measure, threshold) = (judge.measure(), judge.threshold());
    Ok(Duplicates { documents: walk.len(), measure, threshold, exact, near: total - exact, groups })
}

#[cfg(test)]
mod arrivals_tests;
#[cfg(test)]
pub(crate) mod tests;
