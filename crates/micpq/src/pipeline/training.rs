//! A build that trains: the model learns from a sample, and the index takes what training has encoded.

use std::path::Path;
use std::time::Instant;

use engine::corpus::Document;
use engine::encoder::Embedder;
use engine::model::Model;
use engine::{Error, Matrix, Progress, Result};
use methods::Training;
use methods::recall::{FloatRecall, LengthChoice, MIN_DOCUMENTS};
use train::dataset::{Dataset, LabelNames};
use train::job::{Trained, Vectors};
use train::passes::Passes;

use super::config::BuildConfig;
use super::fill::{Embeddings, Sampled};
use super::source::{Documents, Reader};
use super::texts::{self, chunker};
use super::{Parts, Staged, distill_new, index};

pub(super) fn train_and_index(
    reader: &mut Reader,
    to: &Path,
    given: Option<&Embedder>,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<Staged> {
    let begun = Instant::now();
    let loaded = if given.is_none() { config.encoder(progress)? } else { None };
    let encoder = given.or(loaded.as_ref()).filter(|_| config.training.needs_encoder());
    let documents = reader.again(to.parent().unwrap_or(to), progress)?;
    let sample = sample(&documents, encoder, config, progress)?;
    let (trained, vectors) = fit(&sample, encoder, config, progress)?;
    let Trained { model, mut metrics, .. } = trained;
    let recall = match config.measure_recall {
        true => measure(&model, &vectors.rows, config.training.seed(), progress)?,
        false => None,
    };
    if let Some(recall) = recall {
        progress.note(&recall.summary(&model.config.method, model.shape().bits()));
        metrics["float_recall"] = serde_json::to_value(recall).expect("plain data has a JSON form");
    }
    let fits = |embedder: &Embedder| model.config.embedding.as_ref() == Some(embedder.config());
    let own = match encoder {
        Some(embedder) if fits(embedder) => None,
        // Terms, or a pooling that was learned: the model holds them.
        _ => {
            let embedder = model.embedder(Some(config.embedding.precision), progress)?;
            Some(embedder.on(config.embedding.device, progress)?)
        }
    };
    let embedder = own.as_ref().or(encoder).expect("one of them is there");
    let training_seconds = begun.elapsed().as_secs_f64();
    let stored = |position: usize| documents.stored(position);
    let sampled = Sampled {
        embedder,
        positions: &sample.positions,
        vectors: &vectors,
        stored: documents.has_vectors().then_some(&stored),
    };
    let embeddings = Embeddings::Trained(sampled);
    let parts = Parts { model: &model, metrics: &metrics, embeddings, total: documents.total() };
    let filled = index(to, documents.iter()?, &parts, config, progress)?;
    distill_new(to, embedder, config, progress)?;
    let trained_on = sample.texts.len();
    let embedder = own.or(loaded);
    Ok(Staged { filled, metrics, trained_on, training_seconds, recall, embedder, skipped: Vec::new() })
}

/// The sample that the model is trained on: documents, or chunks where the index has them.
fn sample(
    documents: &Documents,
    encoder: Option<&Embedder>,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<Dataset> {
    let chunker = chunker(config, encoder)?;
    let what = if chunker.is_some() { "chunks" } else { "documents" };
    let draw = |texts: &mut dyn Iterator<Item = Result<Document>>| {
        let (limit, seed) = (config.sample, config.training.seed());
        texts::sample(texts, chunker.as_ref(), limit, seed, &mut LabelNames::default(), progress)
    };
    let sample = match chunker {
        None if documents.has_vectors() => with_text(documents, draw)?,
        _ => draw(&mut documents.iter()?)?,
    };
    if sample.seen > sample.texts.len() {
        progress.note(&format!("training on {} of {} {what}", sample.texts.len(), sample.seen));
    }
    Ok(sample)
}

/// A sample of the documents that have a text, with their positions among all.
fn with_text(
    documents: &Documents,
    draw: impl FnOnce(&mut dyn Iterator<Item = Result<Document>>) -> Result<Dataset>,
) -> Result<Dataset> {
    let (mut positions, mut seen) = (Vec::new(), 0);
    let mut texts = documents.iter()?.filter(|document| {
        seen += 1;
        let has_text = document.as_ref().map_or(true, |document| !document.text.trim().is_empty());
        if has_text {
            positions.push(seen - 1);
        }
        has_text
    });
    let mut sample = draw(&mut texts)?;
    drop(texts);
    if sample.texts.len() < 2 {
        return Err(Error::config(format!(
            "training compares texts and needs at least 2; only {} of {seen} documents have a text",
            sample.texts.len()
        )));
    }
    sample.positions.iter_mut().for_each(|position| *position = positions[*position]);
    Ok(sample)
}

fn fit(
    sample: &Dataset,
    encoder: Option<&Embedder>,
    config: &BuildConfig,
    progress: &dyn Progress,
) -> Result<(Trained, Vectors)> {
    let cache = config.cache_dir()?;
    let task = texts::task(sample, encoder, config, &cache);
    let training = match (config.target_recall, encoder) {
        (Some(target), Some(encoder)) => {
            let passes = Passes::new(encoder, &sample.texts, config.dropout, Some(&cache), progress)?;
            let training = of_length(target, passes.clean(), sample.seen, &config.training, progress)?;
            *task.passes.lock() = Some(passes);
            training
        }
        _ => config.training.clone(),
    };
    let (trained, vectors) = task.fit(&training, progress)?;
    if trained.interrupted {
        if let Some(path) = &config.interrupted_model {
            trained.model.save(path, &trained.metrics)?;
        }
        return Err(Error::Interrupted);
    }
    progress.note(&trained.summary());
    Ok((trained, vectors))
}

/// The training with as many bits as a recall needs, chosen on embeddings of a corpus of `documents`.
fn of_length(
    target: f64,
    embeddings: &Matrix,
    documents: usize,
    training: &Training,
    progress: &dyn Progress,
) -> Result<Training> {
    if embeddings.rows() < MIN_DOCUMENTS {
        progress.note(&format!(
            "{} documents are too few to choose bits for a recall; {} bits it is",
            embeddings.rows(),
            training.bits()
        ));
        return Ok(training.clone());
    }
    let chosen = LengthChoice::reaching(target, embeddings, documents, training.seed(), progress)?;
    let LengthChoice { bits, rerank, recall } = chosen;
    progress.note(&format!(
        "{bits} bits for a recall@10 of {target}: {} bytes per document in memory; OPQ of this length has {recall:.3} on a sample with {rerank} candidates re-ranked",
        bits / 8
    ));
    training.clone().with_option("bits", bits.into())
}

/// Terms have no float vectors to compare with.
fn measure(model: &Model, rows: &Matrix, seed: u64, progress: &dyn Progress) -> Result<Option<FloatRecall>> {
    if model.config.embedding.as_ref().is_some_and(|embedding| embedding.terms.is_some()) {
        return Ok(None);
    }
    FloatRecall::measure(model, rows, seed, progress)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use engine::encoder::EmbedderConfig;

    use super::*;

    #[derive(Default)]
    struct Tokenisings(AtomicUsize);

    impl Progress for Tokenisings {
        fn stage(&self, name: &str, _: Option<u64>) {
            if name == "tokenising" {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_build_tokenises_its_corpus_once_also_for_a_recall() {
        let dir = tempfile::tempdir().unwrap();
        let subjects = ["crude oil rises", "banks lend less", "wheat is harvested", "shares fall"];
        let document = |i: usize| Document::new(i as u64, format!("{} in town {}", subjects[i % 4], i / 4));
        let documents: Vec<Document> = (0..MIN_DOCUMENTS).map(document).collect();
        for (method, target_recall) in [("opq", None), ("opq", Some(0.5)), ("micpq", Some(0.5)), ("dhim", Some(0.5))] {
            let embedding =
                EmbedderConfig { encoder: "../engine/tests/encoders/bert".into(), ..EmbedderConfig::default() };
            let mut training = Training::named(method, 16).unwrap();
            if method != "opq" {
                training = training.with_option("epochs", 1.into()).unwrap();
            }
            let cache = dir.path().join(format!("cache-{method}-{}", target_recall.is_some()));
            let config =
                BuildConfig { embedding, cache: Some(cache.clone()), target_recall, ..BuildConfig::new(training) };
            let progress = Tokenisings::default();
            let built = crate::build(&documents[..], cache.with_extension("micpq")).config(config).progress(&progress);
            assert_eq!(built.run().unwrap().documents, MIN_DOCUMENTS);
            assert_eq!(progress.0.into_inner(), 1, "{method} {target_recall:?}");
        }
    }
}
