//! From texts to a model: encoder passes, views, training, and the record of it all.

use std::path::Path;
use std::time::Instant;

use micpq::encoder::Features;
use micpq::model::Model;
use micpq::{Error, Matrix, Result, Watch, hex};
use sha2::{Digest, Sha256};

use crate::config::TrainConfig;
use crate::dataset::Dataset;
use crate::passes::Passes;
use crate::selection::Validation;
use crate::trainer::train;
use crate::views::Encode;

/// A training run on text.
pub struct Job<'a> {
    /// How to train.
    pub config: TrainConfig,
    /// Rate of dropout in the encoder's views.
    pub dropout: f64,
    /// The encoder and its settings.
    pub features: &'a Features,
    /// What to train on.
    pub corpus: &'a Dataset,
    /// Labelled queries by whose P@100 the best epoch is chosen; without them the choice needs no labels.
    pub validation: Option<&'a Dataset>,
    /// Where vectors, views and checkpoints are kept.
    pub cache: &'a Path,
}

/// What a run gives.
pub struct Trained {
    /// The best model of the run.
    pub model: Model,
    /// Curves, scores, codeword usage, seconds.
    pub metrics: serde_json::Value,
    /// Clean vectors of the corpus, one a text: an index of the same texts need not encode them again.
    pub clean: Matrix,
    /// Token sequences of the corpus, by which those vectors are found.
    pub tokens: Vec<Vec<u32>>,
    /// Whether the user stopped it before its end.
    pub interrupted: bool,
}

/// Runs a job. Stopped by the user after at least one epoch, it gives the best model so far; started again with the same
/// options, it goes on where it was.
pub fn run(job: &Job, watch: &dyn Watch) -> Result<Trained> {
    job.config.validate()?;
    if job.corpus.texts.len() < 2 {
        return Err(Error::input(
            "corpus",
            format!(
                "has {} documents; training compares documents with each other and needs at least 2",
                job.corpus.texts.len()
            ),
        ));
    }
    let begun = Instant::now();
    let passes = Passes::new(job.features, &job.corpus.texts, job.dropout, Some(job.cache), watch)?;
    let encoding = begun.elapsed().as_secs_f64();
    let queries = match job.validation {
        Some(set) => Some(Passes::new(job.features, &set.texts, 0.0, Some(job.cache), watch)?.into_clean()),
        None => None,
    };
    let validation = match (job.validation, &queries) {
        (Some(set), Some(queries)) => {
            if !set.labelled() || !job.corpus.labelled() {
                return Err(Error::input(
                    "validation",
                    "both the corpus and the validation set need a label on every document; leave --validation out to choose the best epoch without labels",
                ));
            }
            Validation::Labelled { queries, query_labels: &set.labels, document_labels: &job.corpus.labels }
        }
        _ => Validation::HeldOut,
    };
    let views_begun = Instant::now();
    let views = job.config.views.prepare(&passes, job.cache, watch)?;
    let viewing = views_begun.elapsed().as_secs_f64();
    // A checkpoint directory a run: other options are another run, and runs may go on side by side.
    let options = serde_json::to_string(&job.config).expect("plain data has a JSON form");
    let labelled = job.validation.map_or(0, |set| set.texts.len());
    let name = Sha256::digest(format!("{options}|{}|{labelled}", passes.fingerprint()));
    let checkpoint = job.cache.join(format!("run-{}", hex(&name[..8])));
    let outcome = train(&job.config, views.as_ref(), validation, Some(&checkpoint), watch)?;
    drop(views);

    let mut metrics = serde_json::to_value(&outcome.metrics).expect("plain data has a JSON form");
    metrics["encoding_seconds"] = encoding.into();
    metrics["views_seconds"] = viewing.into();
    metrics["training_documents"] = job.corpus.texts.len().into();
    let mut model = outcome.model(&job.config, Some(job.features.config().clone()))?;
    model.config.training["dropout"] = job.dropout.into();
    let (clean, tokens) = passes.into_parts();
    Ok(Trained { model, metrics, clean, tokens, interrupted: outcome.interrupted })
}
