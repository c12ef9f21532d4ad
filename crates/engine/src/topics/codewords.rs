//! What codewords stand for: terms that are more frequent in the documents of a codeword than in others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use rayon::prelude::*;
use serde::Serialize;

use super::names;
use crate::index::Index;
use crate::language::Language;
use crate::model::CodeShape;
use crate::query::{CodeAndText, Delivery, Replies, Survey};
use crate::{Error, Progress, Result};

/// Documents whose texts are read.
const SAMPLE: usize = 3000;
/// Texts read between two looks at whether to stop.
const CHUNK: usize = 256;
/// A term of fewer documents of the sample characterises nothing.
const MIN_DOCUMENTS: usize = 5;
/// A term characterises a codeword if it is at least so many times as frequent there as elsewhere.
const MIN_LIFT: f64 = 1.5;

/// The terms of all codewords of an index, from an even sample of its documents.
#[derive(Clone, Debug, PartialEq)]
pub struct CodewordTerms {
    codewords: usize,
    /// `[codebooks, codewords]`, the most characteristic first.
    terms: Vec<Vec<String>>,
}

/// A codeword that a hit has in common with its query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedCodeword {
    pub codebook: usize,
    pub codeword: u8,
    /// What it stands for.
    pub terms: Vec<String>,
}

impl CodewordTerms {
    /// Terms per codeword, where nobody asks for another number.
    pub const TERMS: usize = 6;

    /// Terms of the current commit, at most `most` per codeword. None if the index stores no texts.
    pub fn of(index: &Index, most: usize, progress: &dyn Progress) -> Result<CodewordTerms> {
        let walk = index.walk()?;
        let places = places(walk.len());
        progress.stage("reading texts", Some(places.len() as u64));
        let mut sample = Vec::with_capacity(places.len());
        for part in places.chunks(CHUNK) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let one = |&place: &usize| {
                let record = walk.get(place)?;
                Ok(stemmed((record.code, record.text), walk.language()))
            };
            sample.extend(part.par_iter().map(one).collect::<Result<Vec<_>>>()?);
            progress.advance(part.len() as u64);
        }
        Ok(CodewordTerms::of_sample(index.model().shape(), &sample, most))
    }

    /// The terms of all documents of some shards, those of one index that has them all. `language` is that of the terms.
    pub fn of_shards<F: Fn(Vec<Delivery>) -> Result<Replies> + Sync>(
        survey: &Survey<F>,
        language: Language,
        most: usize,
    ) -> Result<CodewordTerms> {
        let mut sample = Vec::new();
        survey.texts(places, |texts| {
            let stemmed: Vec<_> = texts.into_par_iter().map(|text| stemmed(text, language)).collect();
            sample.extend(stemmed);
        })?;
        Ok(CodewordTerms::of_sample(survey.model().shape(), &sample, most))
    }

    fn of_sample(shape: CodeShape, sample: &[Stemmed], most: usize) -> CodewordTerms {
        let vocabulary = Vocabulary::of(sample);
        let codewords = shape.codebook_size();
        let terms = (0..shape.num_codebooks())
            .into_par_iter()
            .flat_map_iter(|m| vocabulary.characteristic(sample, codewords, most, |code| shape.codeword(code, m)));
        CodewordTerms { codewords, terms: terms.collect() }
    }

    /// The codewords that a hit has in common with its query, both by codebook, with their terms.
    pub fn shared(&self, hit: &[u8], query: &[u8]) -> Vec<SharedCodeword> {
        let common = hit.iter().zip(query).enumerate().filter(|(_, (own, asked))| own == asked);
        let with_terms = |(codebook, (&codeword, _)): (usize, (&u8, &u8))| {
            let terms = self.terms.get(codebook * self.codewords + usize::from(codeword)).cloned().unwrap_or_default();
            SharedCodeword { codebook, codeword, terms }
        };
        common.map(with_terms).collect()
    }
}

/// The terms of an index that changes. They are found again when a quarter of the documents came or went.
#[derive(Default)]
pub struct LatestTerms {
    // With the number of documents that they were found in.
    found: Mutex<Option<(usize, Arc<CodewordTerms>)>>,
}

impl LatestTerms {
    /// The terms for an index that has so many documents now; `None` if they must be found.
    pub fn of(&self, documents: usize) -> Option<Arc<CodewordTerms>> {
        let found = self.found.lock();
        let (then, terms) = found.as_ref()?;
        (4 * documents.abs_diff(*then) <= *then).then(|| terms.clone())
    }

    pub fn set(&self, documents: usize, terms: CodewordTerms) -> Arc<CodewordTerms> {
        let terms = Arc::new(terms);
        *self.found.lock() = Some((documents, terms.clone()));
        terms
    }

    /// Forgets the terms, of a model that is no longer used.
    pub fn clear(&self) {
        *self.found.lock() = None;
    }
}

/// A document of the sample: its code, and its stems with how each is written.
type Stemmed = (Vec<u8>, BTreeMap<String, String>);

fn stemmed((code, text): CodeAndText, language: Language) -> Stemmed {
    (code, names::stems(&text.unwrap_or_default(), language))
}

/// The places of the sample in the order of insertion.
fn places(documents: usize) -> Vec<usize> {
    let count = documents.min(SAMPLE);
    (0..count).map(|i| i * documents / count).collect()
}

/// Frequent stems of a sample: a number, how it is written most often, and its documents.
struct Vocabulary<'a> {
    numbers: HashMap<&'a str, usize>,
    written: Vec<&'a str>,
    documents: Vec<u32>,
}

impl<'a> Vocabulary<'a> {
    fn of(sample: &'a [Stemmed]) -> Vocabulary<'a> {
        let mut forms: BTreeMap<&str, BTreeMap<&str, u32>> = BTreeMap::new();
        for (stem, word) in sample.iter().flat_map(|(_, stems)| stems) {
            *forms.entry(stem).or_default().entry(word).or_default() += 1;
        }
        let documents = |forms: &BTreeMap<&str, u32>| forms.values().sum::<u32>();
        forms.retain(|_, forms| documents(forms) as usize >= MIN_DOCUMENTS);
        // The first of equally frequent words: the alphabet decides.
        let most_frequent = |forms: &BTreeMap<&'a str, u32>| {
            forms.iter().rev().max_by_key(|(_, count)| **count).map_or("", |(word, _)| *word)
        };
        Vocabulary {
            numbers: forms.keys().enumerate().map(|(number, stem)| (*stem, number)).collect(),
            written: forms.values().map(most_frequent).collect(),
            documents: forms.values().map(documents).collect(),
        }
    }

    /// The terms of every codeword of a codebook.
    fn characteristic(
        &self,
        sample: &[Stemmed],
        codewords: usize,
        most: usize,
        codeword: impl Fn(&[u8]) -> usize,
    ) -> Vec<Vec<String>> {
        let width = self.written.len();
        let (mut inside, mut members) = (vec![0u32; codewords * width], vec![0u32; codewords]);
        for (code, stems) in sample {
            let own = codeword(code).min(codewords - 1);
            members[own] += 1;
            let numbers: BTreeSet<usize> = stems.keys().filter_map(|s| self.numbers.get(s.as_str()).copied()).collect();
            numbers.into_iter().for_each(|number| inside[own * width + number] += 1);
        }
        let share = |count: u32, of: u32| (f64::from(count) + 0.5) / (f64::from(of) + 1.0);
        let all = sample.len() as u32;
        let best = |k: usize| -> Vec<String> {
            let own = &inside[k * width..][..width];
            let score = |(number, &count): (usize, &u32)| {
                let (here, there) = (share(count, members[k]), share(self.documents[number] - count, all - members[k]));
                // The log-likelihood ratio of the term, weighted by its frequency inside.
                (count > 1 && here > MIN_LIFT * there).then(|| (here * (here / there).ln(), self.written[number]))
            };
            let mut scored: Vec<(f64, &str)> = own.iter().enumerate().filter_map(score).collect();
            scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
            scored.into_iter().take(most).map(|(_, word)| word.to_owned()).collect()
        };
        (0..codewords).map(best).collect()
    }
}
