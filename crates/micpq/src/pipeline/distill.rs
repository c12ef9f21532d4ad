//! A fast query encoder for a model: from the texts of its index, or of a corpus.

use std::path::Path;

use engine::corpus::Document;
use engine::encoder::Embedder;
use engine::index::{Index, Store};
use engine::model::{FastEncoder, Model};
use engine::{Error, Progress, Result};
use train::dataset::{Dataset, LabelNames};
use train::query_encoder::{self, DistillConfig};

use super::source::{Reader, Source};

/// A model that gets a query encoder.
#[derive(Clone, Copy)]
pub struct DistillTarget<'a> {
    pub model: &'a Model,
    /// Its directory.
    pub dir: &'a Path,
    /// Its encoder.
    pub embedder: &'a Embedder,
}

/// Distils the encoder of an index on its stored texts, and puts the query encoder into its model directory.
pub fn distill_index(
    index: &Index,
    embedder: &Embedder,
    config: &DistillConfig,
    progress: &dyn Progress,
) -> Result<FastEncoder> {
    query_encoder::expect_encoder(index.model())?;
    if index.store() == Store::Codes {
        return Err(Error::config(format!(
            "{} stores no texts to distil on; name the corpus it was built from",
            index.dir().display()
        )));
    }
    let texts = index.records(true)?.map(|record| record.map(|record| Document { labels: vec![], ..record.into() }));
    let target = DistillTarget { model: index.model(), dir: &index.model_dir(), embedder };
    distill(target, texts, config, progress)
}

/// Distils the encoder of a model on a corpus, and puts the query encoder into the model's directory.
pub fn distill_corpus(
    target: DistillTarget,
    source: Source,
    config: &DistillConfig,
    progress: &dyn Progress,
) -> Result<FastEncoder> {
    query_encoder::expect_encoder(target.model)?;
    let mut documents = Reader::open(source)?;
    let distilled = distill(target, documents.by_ref(), config, progress)?;
    documents.skipped(progress);
    Ok(distilled)
}

fn distill(
    target: DistillTarget,
    documents: impl Iterator<Item = Result<Document>>,
    config: &DistillConfig,
    progress: &dyn Progress,
) -> Result<FastEncoder> {
    config.validate()?;
    let names = &mut LabelNames::default();
    let sample = Dataset::sample_of(documents, config.documents, config.seed, names, progress)?;
    let distilled = query_encoder::distill(target.model, target.embedder, &sample.texts, config, progress)?;
    distilled.save(target.dir)?;
    Ok(distilled)
}
