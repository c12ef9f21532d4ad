//! `micpq build`: raw text in, a trained and filled index out.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use micpq::corpus::{Corpus, CorpusConfig};
use micpq::disk::{self, Making};
use micpq::encoder::Features;
use micpq::index::{Index, IndexConfig};
use micpq::model::Model;
use micpq::{Error, Matrix, Watch};
use systems::fidelity::Fidelity;
use systems::training::Task;
use train::dataset::{Dataset, LabelNames};
use train::job::Trained;

use super::index::{Known, add_all, metrics_of};
use super::{features_of, train as training};
use crate::args::Build;
use crate::output;
use crate::progress::Progress;

pub fn run(args: Build, json: bool, progress: &Progress) -> Result<()> {
    let begun = Instant::now();
    // What can be refused is refused before an hour is spent on encoding.
    if args.output.exists() && !args.force {
        return Err(Error::config(format!(
            "{} exists; name another place, add to it with \"micpq index add\", or replace it with --force",
            args.output.display()
        ))
        .into());
    }
    let training = args.training.training(args.features.pooling)?;
    // What is made on the way lies in a folder that goes with this process, or is cleared away by the next build.
    let making = Making::begin(&args.output)?;
    let spooled = spool(&args.corpus, making.folder())?;
    let path = spooled.as_deref().unwrap_or(&args.corpus);
    let source = args.source.config();

    let (model, features, known, metrics) = match &args.model {
        Some(dir) => {
            let model = Model::load(dir)?;
            let features = features_of(&model, args.features.computing, progress)?;
            (model, features, Known::default(), metrics_of(dir)?)
        }
        None => {
            let encoder = training::encoder(&training, &args.features, progress)?;
            let corpus = read(path, &source, &args, progress)?;
            let cache = super::cache_dir(args.training.cache.as_deref())?;
            let task = Task {
                features: encoder.as_ref(),
                clean: args.features.clean,
                dropout: args.training.dropout(),
                corpus: &corpus,
                validation: None,
                test: None,
                cache: &cache,
            };
            let (mut trained, (clean, tokens)) = task.fit(&training, progress)?;
            if trained.interrupted {
                let model = disk::beside(&args.output, ".model");
                trained.model.save(&model, &trained.metrics)?;
                eprintln!(
                    "stopped in training: the best model so far is {}; the same command goes on from here, or index with it at once: micpq build {} --model {} -o {}",
                    model.display(),
                    args.corpus.display(),
                    model.display(),
                    args.output.display()
                );
                return Err(Error::Interrupted.into());
            }
            progress.note(&training::summary(&trained));
            compare(&mut trained, &clean, args.training.sample_seed(), progress)?;
            let features = match encoder {
                Some(features) if trained.model.config.features.as_ref() == Some(features.config()) => features,
                // Words, or a pooling learned on the way.
                _ => features_of(&trained.model, args.features.computing, progress)?,
            };
            (trained.model, features, Known::new(&tokens, clean), trained.metrics)
        }
    };
    let trained_at = begun.elapsed().as_secs_f64();
    let added = fill(&making.path(), path, &source, &model, &features, &known, &args, &metrics, progress)?;
    making.finish()?;
    progress.finish();

    let index = Index::open(&args.output, progress)?;
    let info = index.info()?;
    let seconds = begun.elapsed().as_secs_f64();
    if json {
        return output::json(&serde_json::json!({
            "index": args.output, "documents": info.documents, "added": added, "bits": model.shape().bits(),
            "code_bytes": model.shape().code_bytes(), "fingerprint": model.fingerprint(), "seconds": seconds,
            "training_seconds": trained_at, "metrics": metrics,
        }));
    }
    output::line(format!(
        "{}: {} documents, {} bytes each for search ({} against {} as float vectors), built in {:.0} s ({:.0} s encoding and training)\nsearch it with: micpq search {} \"what you look for\"",
        args.output.display(),
        info.documents,
        model.shape().code_bytes(),
        output::bytes((info.documents * model.shape().code_bytes()) as u64),
        output::bytes((info.documents * model.inputs() * 4) as u64),
        seconds,
        trained_at,
        args.output.display()
    ))
}

/// Says how much of float search the codes keep, beside OPQ, and what that means.
fn compare(trained: &mut Trained, clean: &Matrix, seed: u64, progress: &Progress) -> Result<()> {
    // Words have no vectors of their own to be faithful to.
    if trained.model.config.features.as_ref().is_some_and(|f| f.terms.is_some()) {
        return Ok(());
    }
    let Some(found) = Fidelity::measure(&trained.model, clean, seed, progress)? else { return Ok(()) };
    trained.metrics["fidelity"] = serde_json::to_value(found)?;
    let method = &trained.model.config.method;
    progress.note(&format!(
        "of the ten nearest by float vectors, the first hundred by code hold {:.0} %{}, on {} documents and {} queries: {}",
        found.model,
        if method == "opq" { String::new() } else { format!(" (OPQ of {} bits: {:.0} %)", trained.model.shape().bits(), found.opq) },
        found.documents,
        found.queries,
        found.advice(method)
    ));
    Ok(())
}

fn read(path: &Path, source: &CorpusConfig, args: &Build, progress: &Progress) -> Result<Dataset> {
    let mut corpus = Corpus::open(path, source)?;
    let set = Dataset::sample(
        &mut corpus,
        args.training.sample,
        args.training.sample_seed(),
        &mut LabelNames::default(),
        progress,
    )?;
    if set.seen > set.texts.len() {
        progress.note(&format!("training on {} of {} documents", set.texts.len(), set.seen));
    }
    Ok(set)
}

#[allow(clippy::too_many_arguments)] // the parts of one build, each needed once
fn fill(
    partial: &Path,
    path: &Path,
    source: &CorpusConfig,
    model: &Model,
    features: &Features,
    known: &Known,
    args: &Build,
    metrics: &serde_json::Value,
    progress: &Progress,
) -> Result<u64> {
    let config = IndexConfig { store: args.store, keep: args.keep, metrics: metrics.clone(), ..IndexConfig::default() };
    let index = Index::create(partial, model, config)?;
    let mut corpus = Corpus::open(path, source)?;
    progress.stage("indexing", None);
    let added = add_all(&index, features, &mut corpus, known, 200_000, progress).map_err(|problem| {
        match problem.downcast_ref() {
            // Half an index is not left behind as a whole one: what is kept is the training.
            Some(Error::Interrupted) => anyhow::Error::new(Error::Interrupted).context(
                "stopped while indexing; the same command takes the trained model from the cache and indexes again",
            ),
            _ => problem,
        }
    })?;
    super::tell_skipped(&corpus, progress);
    Ok(added)
}

/// Standard input is read twice, once to train and once to index, so it is kept in a file meanwhile.
fn spool(corpus: &Path, folder: &Path) -> Result<Option<PathBuf>> {
    if corpus != Path::new("-") {
        return Ok(None);
    }
    let path = folder.join("input");
    let mut file = File::create(&path).map_err(Error::io(&path))?;
    std::io::copy(&mut std::io::stdin().lock(), &mut file).map_err(Error::io("standard input"))?;
    Ok(Some(path))
}
