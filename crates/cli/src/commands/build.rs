//! `micpq build`: trains on raw text and indexes it.

use std::path::Path;

use anyhow::Result;
use engine::corpus::CorpusConfig;
use engine::encoder::Embedder;
use engine::index::IndexConfig;
use engine::model::Model;
use engine::{Error, internal};
use micpq::pipeline::{BuildConfig, Built, FillConfig, ModelSource, Source};

use super::embedder_of;
use super::index::metrics_of;
use crate::args::Build;
use crate::output;
use crate::progress::TerminalProgress;

pub fn run(args: Build, json: bool, progress: &TerminalProgress) -> Result<()> {
    if args.output.exists() && !args.force {
        return Err(Error::config(format!(
            "{} exists; choose another path, add to it with \"micpq index add\", or replace it with --force",
            args.output.display()
        ))
        .into());
    }
    let config = args.config()?;
    let given = args.model.as_deref().map(|dir| Given::load(dir, &args, progress)).transpose()?;
    let model = match &given {
        Some(given) => {
            ModelSource::Given { model: &given.model, metrics: given.metrics.clone(), embedder: Some(&given.embedder) }
        }
        None => ModelSource::Train,
    };
    // A folder can be kept up to date by "micpq sync".
    let corpus = CorpusConfig { file_hashes: args.corpus.is_dir(), ..args.source.config() };
    let built = micpq::build(Source::Corpus(&args.corpus, &corpus), &args.output)
        .model(model)
        .config(config.clone())
        .progress(progress)
        .run()
        .map_err(|error| with_next_step(error, &args, &config))?;
    progress.finish();
    report(&built, &args.output, json)
}

impl Build {
    pub fn config(&self) -> Result<BuildConfig> {
        let embedding = self.embedding.config(self.training.preset.as_deref())?;
        let training = self.training.training(embedding.pooling()?)?;
        Ok(BuildConfig {
            embedding,
            dropout: self.training.dropout(),
            sample: self.training.sample,
            cache: self.training.cache.clone(),
            index: IndexConfig {
                store: self.store,
                rerank_vectors: self.rerank_vectors,
                replace: self.force,
                ..IndexConfig::default()
            },
            language: self.texts.language,
            chunk: self.texts.chunk,
            target_recall: self.target_recall,
            query_encoder: self.query_encoder,
            fill: FillConfig { duplicates: self.duplicates.policy(), ..FillConfig::default() },
            interrupted_model: Some(internal::beside(&self.output, ".model")),
            ..BuildConfig::new(training)
        })
    }
}

/// The model of `--model` and its embedder.
struct Given {
    model: Model,
    metrics: serde_json::Value,
    embedder: Embedder,
}

impl Given {
    fn load(dir: &Path, args: &Build, progress: &TerminalProgress) -> Result<Given> {
        let model = Model::load(dir)?;
        let embedder = embedder_of(&model, args.embedding.computing, progress)?;
        Ok(Given { model, metrics: metrics_of(dir)?, embedder })
    }
}

/// Adds to an interruption how the build can continue.
fn with_next_step(error: Error, args: &Build, config: &BuildConfig) -> anyhow::Error {
    let model = config.interrupted_model.as_deref().filter(|path| path.exists());
    match (&error, model) {
        (Error::Interrupted, Some(model)) => anyhow::Error::new(error).context(format!(
            "stopped during training: the best model so far is {}; run the same command to continue, or index with this model: micpq build {} --model {} -o {}",
            model.display(),
            args.corpus.display(),
            model.display(),
            args.output.display()
        )),
        (Error::Interrupted, None) => anyhow::Error::new(error)
            .context("stopped: run the same command to continue from the cache"),
        _ => error.into(),
    }
}

fn report(built: &Built, output: &Path, json: bool) -> Result<()> {
    let info = built.index.info()?;
    let model = built.index.model();
    let code_bytes = model.shape().code_bytes();
    if json {
        return output::json(&serde_json::json!({
            "index": output, "documents": info.documents, "added": built.documents, "bits": model.shape().bits(),
            "code_bytes": code_bytes, "fingerprint": model.fingerprint(), "seconds": built.seconds,
            "texts": built.texts, "cut": built.cut, "language": info.language,
            "training_seconds": built.training_seconds, "metrics": built.metrics,
            "rerank": built.rerank, "duplicates": built.repeats,
        }));
    }
    let rerank = built.rerank.map_or_else(String::new, |depth| format!(" --rerank {}", depth.rerank));
    let codes = info.chunks.unwrap_or(info.documents);
    let chunks = info.chunks.map_or_else(String::new, |chunks| format!(" in {chunks} chunks"));
    output::line(format!(
        "{}: {} documents{chunks}, {code_bytes} bytes each for search ({} against {} as float vectors), built in {:.0} s ({:.0} s encoding and training)\nsearch it with: micpq search {} \"what you look for\"{rerank}",
        output.display(),
        info.documents,
        output::bytes((codes * code_bytes) as u64),
        output::bytes((codes * model.inputs() * 4) as u64),
        built.seconds,
        built.training_seconds,
        output.display()
    ))
}
