//! A fast query encoder for a model: from the texts of its index, or of a corpus.

use std::path::Path;

use engine::corpus::{Corpus, CorpusConfig, Document};
use engine::encoder::{Embedder, FastEncoder};
use engine::index::{Index, Store};
use engine::model::Model;
use engine::{Error, Progress, Result};
use train::dataset::{Dataset, LabelNames};
use train::query_encoder::{self, DistillConfig};

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
    let texts = index.records(true)?.map(|record| {
        let record = record?;
        Ok(Document { id: record.id, text: record.text.unwrap_or_default(), labels: vec![], attributes: vec![] })
    });
    distill(index.model(), &index.model_dir(), texts, embedder, config, progress)
}

/// Distils the encoder of the model at `dir` on a corpus, and puts the query encoder into `dir`.
pub fn distill_corpus(
    model: &Model,
    dir: &Path,
    corpus: (&Path, &CorpusConfig),
    embedder: &Embedder,
    config: &DistillConfig,
    progress: &dyn Progress,
) -> Result<FastEncoder> {
    query_encoder::expect_encoder(model)?;
    let mut opened = Corpus::open(corpus.0, corpus.1)?;
    let distilled = distill(model, dir, opened.by_ref(), embedder, config, progress)?;
    super::report_skipped(&opened, progress);
    Ok(distilled)
}

fn distill(
    model: &Model,
    dir: &Path,
    documents: impl Iterator<Item = Result<Document>>,
    embedder: &Embedder,
    config: &DistillConfig,
    progress: &dyn Progress,
) -> Result<FastEncoder> {
    config.validate()?;
    let names = &mut LabelNames::default();
    let sample = Dataset::sample_of(documents, config.documents, config.seed, names, progress)?;
    let distilled = query_encoder::distill(model, embedder, &sample.texts, config, progress)?;
    distilled.save(dir)?;
    Ok(distilled)
}
