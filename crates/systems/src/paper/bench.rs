//! A corpus made ready: texts, vectors by pooling, words, views; each made once and shared by all cells.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use micpq::corpus::{Corpus, CorpusConfig};
use micpq::encoder::{Convolution, Device, Features, Pooling, Precision, Vocabulary, Weighting};
use micpq::{Error, Result, Watch};
use rayon::prelude::*;
use train::dataset::{Dataset, LabelNames};
use train::float;
use train::passes::Passes;
use train::random::{Purpose, Stream};
use train::views::{ViewChoice, Views};

use super::plan::{CorpusPlan, Plan, locate};
use crate::inputs::{Inputs, Tokens, Words};
use crate::tfidf::LexiconConfig;

/// Documents, validation queries and queries of one corpus.
pub struct Sets {
    /// What is searched.
    pub documents: Dataset,
    /// What epochs are compared by.
    pub validation: Dataset,
    /// What is asked.
    pub queries: Dataset,
    /// Number of classes.
    pub classes: usize,
}

impl Sets {
    /// Reads a corpus; `None` where its files are not there.
    pub fn read(plan: &Plan, corpus: &CorpusPlan, data: &Path, watch: &dyn Watch) -> Result<Option<Sets>> {
        let at = |file: &Path| locate(data, file);
        let documents = at(&corpus.documents);
        let (validation, queries) = (corpus.validation.as_deref().map(at), corpus.queries.as_deref().map(at));
        let files = [Some(&documents), validation.as_ref(), queries.as_ref()];
        if let Some(missing) = files.into_iter().flatten().find(|file| !file.exists()) {
            watch.note(&format!("{}: no {}; its column stays empty", corpus.name, missing.display()));
            return Ok(None);
        }
        let mut names = LabelNames::default();
        let mut read = |file: &Path, most: Option<usize>| -> Result<Dataset> {
            let label_field = corpus.label.clone();
            let config = CorpusConfig { unique_ids: false, label_field, ..CorpusConfig::default() };
            Dataset::sample(&mut Corpus::open(file, &config)?, most.unwrap_or(usize::MAX), 0, &mut names, watch)
        };
        let mut documents = read(&documents, corpus.sample)?;
        let queries = match queries {
            Some(file) => read(&file, None)?,
            None => set_aside(&mut documents, usize::MAX, 2),
        };
        let validation = match validation {
            Some(file) => read(&file, plan.validation)?,
            None => set_aside(&mut documents, plan.validation.unwrap_or(usize::MAX), 3),
        };
        Ok(Some(Sets { documents, validation, queries, classes: names.len() }))
    }
}

/// Takes a tenth of the documents out, `most` of them at most, always the same.
fn set_aside(documents: &mut Dataset, most: usize, purpose: u64) -> Dataset {
    let count = documents.texts.len();
    let order = Stream::new(0, Purpose::Sample, &[purpose]).permutation(count);
    let (aside, rest) = order.split_at((count / 10).min(most));
    let part = |chosen: &[u32]| {
        let mut chosen = chosen.to_vec();
        chosen.sort_unstable();
        documents.select(&chosen)
    };
    let (aside, rest) = (part(aside), part(rest));
    *documents = rest;
    aside
}

impl Sets {
    /// With at most so many documents, drawn evenly.
    pub fn sampled(&self, most: usize) -> Sets {
        let mut order = Stream::new(0, Purpose::Sample, &[1]).permutation(self.documents.texts.len());
        order.truncate(most);
        order.sort_unstable();
        let documents = self.documents.select(&order);
        Sets { documents, validation: self.validation.clone(), queries: self.queries.clone(), classes: self.classes }
    }
}

/// The three sets as a system sees them.
pub struct Seen {
    /// What is searched.
    pub documents: Inputs,
    /// What epochs are compared by.
    pub validation: Inputs,
    /// What is asked.
    pub queries: Inputs,
    nearest: OnceLock<Vec<Vec<u32>>>,
}

impl Seen {
    /// Vectors of an encoder.
    pub fn vectors(features: &Features, sets: &Sets, cache: &Path, watch: &dyn Watch) -> Result<Seen> {
        let of = |set: &Dataset| -> Result<Inputs> {
            Ok(Inputs::Vectors(Passes::new(features, &set.texts, 0.0, Some(cache), watch)?.into_clean()))
        };
        Ok(Seen {
            documents: of(&sets.documents)?,
            validation: of(&sets.validation)?,
            queries: of(&sets.queries)?,
            nearest: OnceLock::new(),
        })
    }

    /// States of every token: fifty times a vector, so mostly of some documents to learn from. Where it is all of them, what
    /// is near a query is asked of the encoder's own vectors, as for every system. Documents have so many passes with dropout.
    pub fn tokens(features: &Features, sets: &Sets, own: &Seen, dropped: usize, watch: &dyn Watch) -> Result<Seen> {
        let whole = own.documents.len() == sets.documents.texts.len();
        let nearest = if whole { own.same_nearest(watch)? } else { OnceLock::new() };
        let of = |set: &Dataset, dropped: usize| -> Result<Inputs> {
            Ok(Inputs::Tokens(Tokens::new(features, &features.tokens(&set.texts)?, dropped, watch)?))
        };
        Ok(Seen {
            documents: of(&sets.documents, dropped)?,
            validation: of(&sets.validation, 0)?,
            queries: of(&sets.queries, 0)?,
            nearest,
        })
    }

    /// Vectors a convolution over token states gives: states of a whole corpus are read, pooled and forgotten. What is near
    /// a query is asked of the encoder's own vectors, as for every system.
    pub fn pooled(
        features: &Features,
        convolution: &Convolution,
        sets: &Sets,
        own: &Seen,
        watch: &dyn Watch,
    ) -> Result<Seen> {
        let encoder = features.encoder().ok_or_else(|| Error::config("token states need an encoder"))?;
        let of = |set: &Dataset| -> Result<Inputs> {
            let sequences = features.tokens(&set.texts)?;
            watch.stage("reading token states", Some(sequences.len() as u64));
            Ok(Inputs::Vectors(encoder.convolve(convolution, &sequences, watch)?))
        };
        let nearest = own.same_nearest(watch)?;
        Ok(Seen {
            documents: of(&sets.documents)?,
            validation: of(&sets.validation)?,
            queries: of(&sets.queries)?,
            nearest,
        })
    }

    /// Words.
    pub fn words(plan: &Plan, sets: &Sets, lexicon: LexiconConfig, weighting: Weighting) -> Result<Seen> {
        let vocabulary: Arc<Vocabulary> = Arc::new(lexicon.fit(&sets.documents.texts, plan.clean)?);
        let of = |set: &Dataset| {
            let terms = |text: &String| vocabulary.terms(&plan.clean.apply(text, None));
            Inputs::Words(Words::new(vocabulary.clone(), weighting, set.texts.par_iter().map(terms).collect()))
        };
        Ok(Seen {
            documents: of(&sets.documents),
            validation: of(&sets.validation),
            queries: of(&sets.queries),
            nearest: OnceLock::new(),
        })
    }

    /// What is nearest, for others that see the same texts.
    fn same_nearest(&self, watch: &dyn Watch) -> Result<OnceLock<Vec<Vec<u32>>>> {
        Ok(self.nearest(watch)?.map_or_else(OnceLock::new, |found| OnceLock::from(found.to_vec())))
    }

    /// The ten documents nearest to every query by cosine, of vectors; sought once.
    pub fn nearest(&self, watch: &dyn Watch) -> Result<Option<&[Vec<u32>]>> {
        if let (Inputs::Vectors(documents), Inputs::Vectors(queries), None) =
            (&self.documents, &self.queries, self.nearest.get())
        {
            let found = float::search(documents, queries, 10, watch)?.cosine;
            // Another cell may have been faster; both found the same.
            let _ = self.nearest.set(found);
        }
        Ok(self.nearest.get().map(Vec::as_slice))
    }
}

/// The encoder of a plan for a corpus.
pub fn encoder(
    plan: &Plan,
    corpus: &CorpusPlan,
    pooling: Pooling,
    device: Device,
    watch: &dyn Watch,
) -> Result<Features> {
    let features = Features::new(&plan.encoder, pooling, Some(corpus.max_tokens), plan.clean, false, Precision::F32)?;
    features.on(device, watch)
}

/// Views of a corpus' documents.
pub fn views(
    features: &Features,
    sets: &Sets,
    choice: ViewChoice,
    dropout: f64,
    cache: &Path,
    watch: &dyn Watch,
) -> Result<Box<dyn Views>> {
    let passes = Passes::new(features, &sets.documents.texts, dropout, Some(cache), watch)?;
    choice.prepare(&passes, cache, watch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use train::Labels;

    #[test]
    fn what_is_set_aside_is_a_tenth_and_gone_from_the_documents() {
        let all = || Dataset {
            texts: (0..205).map(|i| format!("text {i}")).collect(),
            labels: Labels::single((0..205).map(|i| i % 7).collect()),
            seen: 205,
        };
        let mut documents = all();
        let queries = set_aside(&mut documents, usize::MAX, 2);
        let validation = set_aside(&mut documents, 5, 3);
        assert_eq!((queries.texts.len(), validation.texts.len(), documents.texts.len()), (20, 5, 180));
        let mut seen: Vec<&String> =
            [&queries, &validation, &documents].into_iter().flat_map(|set| &set.texts).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 205);
        assert_eq!(set_aside(&mut all(), usize::MAX, 2).texts, queries.texts);
    }
}
