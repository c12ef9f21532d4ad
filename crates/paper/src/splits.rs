//! The splits of a corpus: texts, and the embeddings, token states, terms and views of them that cells share.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use engine::corpus::{Corpus, CorpusConfig};
use engine::encoder::{Convolution, Device, Embedder, EmbedderConfig, Pooling, Precision, Vocabulary, Weighting};
use engine::{Error, Progress, Result};
use rayon::prelude::*;
use train::dataset::{Dataset, LabelNames};
use train::float;
use train::passes::Passes;
use train::random::{Purpose, Stream};
use train::views::{ViewChoice, Views};

use crate::plan::{CorpusPlan, Plan, locate};
use methods::inputs::{Inputs, TermRows, TokenStates};
use methods::tfidf::LexiconConfig;

/// Documents, validation queries and queries of one corpus.
pub struct Splits {
    pub documents: Dataset,
    /// Queries that choose the best epoch.
    pub validation: Dataset,
    /// Queries that measure the finished model.
    pub queries: Dataset,
    /// Number of different labels.
    pub classes: usize,
}

impl Splits {
    /// Reads a corpus; `None` where a file of it is missing.
    pub fn read(plan: &Plan, corpus: &CorpusPlan, data: &Path, progress: &dyn Progress) -> Result<Option<Splits>> {
        let at = |file: &Path| locate(data, file);
        let documents = at(&corpus.documents);
        let (validation, queries) = (corpus.validation.as_deref().map(at), corpus.queries.as_deref().map(at));
        let files = [Some(&documents), validation.as_ref(), queries.as_ref()];
        if let Some(missing) = files.into_iter().flatten().find(|file| !file.exists()) {
            progress.note(&format!("{}: {} is missing; its column stays empty", corpus.name, missing.display()));
            return Ok(None);
        }
        let mut names = LabelNames::default();
        let mut read = |file: &Path, max: Option<usize>| -> Result<Dataset> {
            let label_field = corpus.label.clone();
            let config = CorpusConfig { unique_ids: false, label_field, ..CorpusConfig::default() };
            Dataset::sample(&mut Corpus::open(file, &config)?, max.unwrap_or(usize::MAX), 0, &mut names, progress)
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
        Ok(Some(Splits { documents, validation, queries, classes: names.len() }))
    }
}

/// Moves a tenth of the documents, at most `max`, into a set of their own; always the same ones.
fn set_aside(documents: &mut Dataset, max: usize, purpose: u64) -> Dataset {
    let count = documents.texts.len();
    let order = Stream::new(0, Purpose::Sample, &[purpose]).permutation(count);
    let (aside, rest) = order.split_at((count / 10).min(max));
    let part = |chosen: &[u32]| {
        let mut chosen = chosen.to_vec();
        chosen.sort_unstable();
        documents.select(&chosen)
    };
    let (aside, rest) = (part(aside), part(rest));
    *documents = rest;
    aside
}

impl Splits {
    /// The same with at most `max` documents, drawn evenly.
    pub fn sampled(&self, max: usize) -> Splits {
        let mut order = Stream::new(0, Purpose::Sample, &[1]).permutation(self.documents.texts.len());
        order.truncate(max);
        order.sort_unstable();
        let documents = self.documents.select(&order);
        Splits { documents, validation: self.validation.clone(), queries: self.queries.clone(), classes: self.classes }
    }
}

/// The three splits as a method reads them.
pub struct EncodedSplits {
    pub documents: Inputs,
    pub validation: Inputs,
    pub queries: Inputs,
    nearest: OnceLock<Vec<Vec<u32>>>,
}

impl EncodedSplits {
    pub fn embeddings(
        embedder: &Embedder,
        splits: &Splits,
        cache: &Path,
        progress: &dyn Progress,
    ) -> Result<EncodedSplits> {
        let of = |set: &Dataset| -> Result<Inputs> {
            Ok(Inputs::Embeddings(Passes::new(embedder, &set.texts, 0.0, Some(cache), progress)?.into_clean()))
        };
        Ok(EncodedSplits {
            documents: of(&splits.documents)?,
            validation: of(&splits.validation)?,
            queries: of(&splits.queries)?,
            nearest: OnceLock::new(),
        })
    }

    /// States of every token, fifty times the size of an embedding: mostly of a sample of the documents. For all of them the
    /// exact neighbours of a query are those by embeddings, as for every method. Documents are read `passes` times more with
    /// dropout.
    pub fn token_states(
        embedder: &Embedder,
        splits: &Splits,
        own: &EncodedSplits,
        passes: usize,
        progress: &dyn Progress,
    ) -> Result<EncodedSplits> {
        let whole = own.documents.len() == splits.documents.texts.len();
        let nearest = if whole { own.same_nearest(progress)? } else { OnceLock::new() };
        let of = |set: &Dataset, passes: usize| -> Result<Inputs> {
            Ok(Inputs::TokenStates(TokenStates::new(embedder, &embedder.tokens(&set.texts)?, passes, progress)?))
        };
        Ok(EncodedSplits {
            documents: of(&splits.documents, passes)?,
            validation: of(&splits.validation, 0)?,
            queries: of(&splits.queries, 0)?,
            nearest,
        })
    }

    /// Embeddings from a learned convolution over token states. The states are pooled as they are read: those of a whole corpus
    /// do not fit into memory. The exact neighbours of a query are those by the encoder's own embeddings, as for every method.
    pub fn convolved(
        embedder: &Embedder,
        convolution: &Convolution,
        splits: &Splits,
        own: &EncodedSplits,
        progress: &dyn Progress,
    ) -> Result<EncodedSplits> {
        let encoder = embedder.encoder().ok_or_else(|| Error::config("token states need an encoder"))?;
        let of = |set: &Dataset| -> Result<Inputs> {
            let sequences = embedder.tokens(&set.texts)?;
            progress.stage("reading token states", Some(sequences.len() as u64));
            Ok(Inputs::Embeddings(encoder.convolve(convolution, &sequences, progress)?))
        };
        let nearest = own.same_nearest(progress)?;
        Ok(EncodedSplits {
            documents: of(&splits.documents)?,
            validation: of(&splits.validation)?,
            queries: of(&splits.queries)?,
            nearest,
        })
    }

    pub fn terms(plan: &Plan, splits: &Splits, lexicon: LexiconConfig, weighting: Weighting) -> Result<EncodedSplits> {
        let vocabulary: Arc<Vocabulary> = Arc::new(lexicon.fit(&splits.documents.texts, plan.clean)?);
        let of = |set: &Dataset| {
            let terms = |text: &String| vocabulary.term_numbers(&plan.clean.apply(text, None));
            Inputs::Terms(TermRows::new(vocabulary.clone(), weighting, set.texts.par_iter().map(terms).collect()))
        };
        Ok(EncodedSplits {
            documents: of(&splits.documents),
            validation: of(&splits.validation),
            queries: of(&splits.queries),
            nearest: OnceLock::new(),
        })
    }

    /// The exact neighbours, for other inputs of the same texts.
    fn same_nearest(&self, progress: &dyn Progress) -> Result<OnceLock<Vec<Vec<u32>>>> {
        Ok(self.nearest(progress)?.map_or_else(OnceLock::new, |found| OnceLock::from(found.to_vec())))
    }

    /// The ten documents nearest to every query by cosine of embeddings; computed once.
    pub fn nearest(&self, progress: &dyn Progress) -> Result<Option<&[Vec<u32>]>> {
        if let (Inputs::Embeddings(documents), Inputs::Embeddings(queries), None) =
            (&self.documents, &self.queries, self.nearest.get())
        {
            let found = float::search(documents, queries, 10, progress)?.cosine;
            // Another cell may have set it first; both found the same.
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
    progress: &dyn Progress,
) -> Result<Embedder> {
    let embedder = Embedder::load_local(&EmbedderConfig {
        encoder: plan.encoder.clone(),
        pooling: pooling.into(),
        max_tokens: Some(corpus.max_tokens),
        clean: plan.clean,
        // The published tables are single precision.
        precision: Precision::F32,
        ..EmbedderConfig::default()
    })?;
    embedder.on(device, progress)
}

/// Views of the documents.
pub fn views(
    embedder: &Embedder,
    splits: &Splits,
    choice: ViewChoice,
    dropout: f64,
    cache: &Path,
    progress: &dyn Progress,
) -> Result<Box<dyn Views>> {
    let passes = Passes::new(embedder, &splits.documents.texts, dropout, Some(cache), progress)?;
    choice.prepare(&passes, cache, progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use train::Labels;

    #[test]
    fn set_aside_moves_a_tenth_of_the_documents() {
        let all = || Dataset {
            texts: (0..205).map(|i| format!("text {i}")).collect(),
            labels: Labels::single((0..205).map(|i| i % 7).collect()),
            positions: (0..205).collect(),
            seen: 205,
        };
        let mut documents = all();
        let queries = set_aside(&mut documents, usize::MAX, 2);
        let validation = set_aside(&mut documents, 5, 3);
        assert_eq!((queries.texts.len(), validation.texts.len(), documents.texts.len()), (20, 5, 180));
        let mut encoded: Vec<&String> =
            [&queries, &validation, &documents].into_iter().flat_map(|set| &set.texts).collect();
        encoded.sort();
        encoded.dedup();
        assert_eq!(encoded.len(), 205);
        assert_eq!(set_aside(&mut all(), usize::MAX, 2).texts, queries.texts);
    }
}
