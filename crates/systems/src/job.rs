//! From texts to a model, whatever the system.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use micpq::encoder::{Features, WINDOW};
use micpq::model::{FeatureConfig, Model, ModelConfig};
use micpq::text::Clean;
use micpq::{Error, Matrix, Result, Watch};
use rayon::prelude::*;
use train::dataset::Dataset;
use train::passes::Passes;
use train::random::{Purpose, Stream};

use crate::aepq::Aepq;
use crate::ammi::Ammi;
use crate::bmsh::Bmsh;
use crate::config::SystemConfig;
use crate::corrsh::Corrsh;
use crate::csh::Csh;
use crate::dhim::Dhim;
use crate::inputs::{Built, Front, Inputs, Tokens, Words};
use crate::learn::{Learner, System, Validation};
use crate::method::{Input, Method};
use crate::nash::Nash;
use crate::opq::Opq;
use crate::pq::Quantizer;
use crate::two_stage::TwoStage;
use crate::vdsh::Vdsh;
use crate::wish::Wish;
use crate::{lopq, pq};

/// What a run gives.
pub struct Trained {
    /// The model.
    pub model: Model,
    /// Curves, scores, codeword usage, seconds.
    pub metrics: serde_json::Value,
    /// The vectors the model's layers take, one a text: an index of the same texts need not make them again.
    pub clean: Matrix,
    /// Token sequences, or terms, by which those vectors are found.
    pub tokens: Vec<Vec<u32>>,
    /// Whether the user stopped it before its end.
    pub interrupted: bool,
}

/// A run on text.
pub struct Job<'a> {
    /// The system and its options.
    pub config: SystemConfig,
    /// The encoder; a system that is given words needs none.
    pub features: Option<&'a Features>,
    /// Cleaning of texts that are taken by their words.
    pub clean: Clean,
    /// Rate of dropout in the encoder's views.
    pub dropout: f64,
    /// What to train on.
    pub corpus: &'a Dataset,
    /// Labelled queries by whose P@100 the best epoch is chosen; without them the loss on documents kept out decides.
    pub validation: Option<&'a Dataset>,
    /// Where vectors and views are kept.
    pub cache: &'a Path,
}

/// Rows of `points`, at most `most`, drawn evenly by the seed and in their order.
pub fn sampled(points: &Matrix, most: usize, seed: u64) -> Matrix {
    if points.rows() <= most {
        return points.clone();
    }
    let mut order = Stream::new(seed, Purpose::System, &[4]).permutation(points.rows());
    order.truncate(most);
    order.sort_unstable();
    points.select(&order.into_iter().map(|i| i as usize).collect::<Vec<_>>())
}

/// Runs a job. Stopped by the user after at least one epoch, it gives the best model so far.
pub fn run(job: &Job, watch: &dyn Watch) -> Result<Trained> {
    let config = &job.config;
    config.validate()?;
    if config.method.is_micpq() {
        return Err(Error::config(format!("{} is not trained here", config.method)));
    }
    if job.corpus.texts.len() < 2 {
        let problem = format!("has {} documents; training needs at least 2", job.corpus.texts.len());
        return Err(Error::input("corpus", problem));
    }
    if let Some(set) = job.validation
        && !(set.labelled() && job.corpus.labelled())
    {
        return Err(Error::input(
            "validation",
            "both the corpus and the validation set need a label on every document; leave --validation out to choose the best epoch without labels",
        ));
    }
    match config.input {
        Input::Tfidf => words(job, watch),
        Input::Encoder if config.method == Method::Dhim => tokens(job, watch),
        Input::Encoder => vectors(job, watch),
    }
}

fn words(job: &Job, watch: &dyn Watch) -> Result<Trained> {
    let config = &job.config;
    let begun = Instant::now();
    watch.stage("counting words", None);
    let vocabulary = Arc::new(config.lexicon.fit(&job.corpus.texts, job.clean)?);
    watch.note(&format!("{} words in the vocabulary", vocabulary.len()));
    let inputs = |set: &Dataset| {
        let terms = |text: &String| vocabulary.terms(&job.clean.apply(text, None));
        Inputs::Words(Words::new(vocabulary.clone(), config.weighting, set.texts.par_iter().map(terms).collect()))
    };
    let documents = inputs(job.corpus);
    let queries = job.validation.map(inputs);
    let counting = begun.elapsed().as_secs_f64();
    let fitted = fit(config, &documents, validation(job, queries.as_ref()).as_ref(), None, watch)?;
    let Front::Words(terms) = fitted.built.front.clone() else { unreachable!("words were its input") };
    let features = Features::of_terms(terms, job.clean);
    let Inputs::Words(words) = documents else { unreachable!("they were made above") };
    let clean = features.encode_tokens(&words.tokens, None, watch)?;
    finish(job, Some(features.config().clone()), fitted, clean, words.tokens, counting)
}

/// The encoder a system cannot do without.
fn encoder<'a>(job: &'a Job) -> Result<&'a Features> {
    let method = job.config.method;
    let features = job.features.ok_or_else(|| Error::config(format!("{method} needs an encoder; name one")))?;
    match features.encoder() {
        Some(_) => Ok(features),
        None => Err(Error::config(format!("{method} needs an encoder, not words"))),
    }
}

fn tokens(job: &Job, watch: &dyn Watch) -> Result<Trained> {
    let config = &job.config;
    let features = encoder(job)?;
    let begun = Instant::now();
    let sequences = features.tokens(&job.corpus.texts)?;
    // Token states are fifty times a vector: a large corpus is sampled.
    let mut order = Stream::new(config.seed, Purpose::System, &[4]).permutation(sequences.len());
    order.truncate(config.sample);
    order.sort_unstable();
    let chosen: Vec<Vec<u32>> = order.iter().map(|&i| sequences[i as usize].clone()).collect();
    let documents = Inputs::Tokens(Tokens::new(features, &chosen, watch)?);
    let queries = match job.validation {
        Some(set) => Some(Inputs::Tokens(Tokens::new(features, &features.tokens(&set.texts)?, watch)?)),
        None => None,
    };
    let encoding = begun.elapsed().as_secs_f64();
    let labels = job.corpus.labels.select(&order);
    let validation = job.validation.zip(queries.as_ref()).map(|(set, queries)| Validation {
        queries,
        query_labels: &set.labels,
        document_labels: &labels,
    });
    let fitted = fit(config, &documents, validation.as_ref(), None, watch)?;
    drop(documents);
    let Front::Tokens(convolution) = fitted.built.front.clone() else { unreachable!("token states were its input") };
    let learned = features.config().clone();
    let learned = FeatureConfig { width: convolution.outputs, convolution: Some(convolution.clone()), ..learned };
    watch.stage("encoding", Some(sequences.len() as u64));
    let take = |states: &[f32], row: &mut [f32]| convolution.pool(&states[convolution.inputs..], row);
    let reader = features.encoder().expect("it was looked for");
    let clean = reader.reduce(&sequences, convolution.outputs, take, watch)?;
    finish(job, Some(learned), fitted, clean, sequences, encoding)
}

fn vectors(job: &Job, watch: &dyn Watch) -> Result<Trained> {
    let config = &job.config;
    let features = encoder(job)?;
    let begun = Instant::now();
    let passes = Passes::new(features, &job.corpus.texts, job.dropout, Some(job.cache), watch)?;
    let encode = |set: &Dataset| -> Result<Inputs> {
        Ok(Inputs::Vectors(Passes::new(features, &set.texts, 0.0, Some(job.cache), watch)?.into_clean()))
    };
    let encoding = begun.elapsed().as_secs_f64();
    let described = Some(features.config().clone());
    let clean = || {
        let all: Vec<usize> = (0..job.corpus.texts.len()).collect();
        train::views::Encode::encode(&passes, &all, 0, watch)
    };
    let documents = Inputs::Vectors(clean()?);
    let queries = if config.method.is_fitted() { None } else { job.validation.map(encode).transpose()? };
    let views = match config.method.takes_views() {
        true => Some(config.views.prepare(&passes, job.cache, watch)?),
        false => None,
    };
    let fitted = fit(config, &documents, validation(job, queries.as_ref()).as_ref(), views.as_deref(), watch)?;
    drop((documents, views));
    let (clean, tokens) = passes.into_parts();
    finish(job, described, fitted, clean, tokens, encoding)
}

/// What a system became.
pub struct Fitted {
    /// Everything that turns an input into a code.
    pub built: Built,
    /// Curves, scores, codeword usage, seconds.
    pub metrics: serde_json::Value,
    /// Whether the user stopped it before its end.
    pub interrupted: bool,
}

/// Trains a system on inputs that are at hand.
pub fn fit(
    config: &SystemConfig,
    documents: &Inputs,
    validation: Option<&Validation>,
    views: Option<&dyn train::Views>,
    watch: &dyn Watch,
) -> Result<Fitted> {
    match documents {
        Inputs::Vectors(vectors) if config.method.is_fitted() => {
            watch.stage("quantizing", None);
            let begun = Instant::now();
            let found = quantize(config, &sampled(vectors, config.sample, config.seed), watch)?;
            let metrics = serde_json::json!({
                "selection": "squared error", "best": found.error, "training_seconds": begun.elapsed().as_secs_f64(),
            });
            let distance = micpq::model::Distance::Squared;
            let built = Built { front: Front::Vectors, refine: found.refine, codebooks: found.codebooks, distance };
            Ok(Fitted { built, metrics, interrupted: false })
        }
        _ => {
            let system = system(config, documents.width())?;
            let run = Learner::new(system.as_ref(), config, documents, views).run(validation, watch)?;
            let mut metrics = serde_json::json!({
                "selection": run.selection, "best": run.best, "best_epoch": run.best_epoch,
                "epochs": run.curve.len(), "codewords": run.usage,
                "training_seconds": run.curve.iter().map(|e| e.seconds).sum::<f64>(), "curve": run.curve,
            });
            if let Some(scores) = run.scores {
                metrics["precision"] = serde_json::to_value(scores.precision).expect("plain data has a JSON form");
                metrics["map"] = scores.map.into();
            }
            Ok(Fitted { built: run.built, metrics, interrupted: run.interrupted })
        }
    }
}

fn validation<'a>(job: &'a Job, queries: Option<&'a Inputs>) -> Option<Validation<'a>> {
    let (set, queries) = (job.validation?, queries?);
    Some(Validation { queries, query_labels: &set.labels, document_labels: &job.corpus.labels })
}

/// Rotation and words of the systems that are fitted, not learned.
pub fn quantize(config: &SystemConfig, points: &Matrix, watch: &dyn Watch) -> Result<Quantizer> {
    let SystemConfig { bits, dim, iterations, seed, .. } = *config;
    match config.method {
        Method::Pq => pq::fit(points, bits, dim, config.whiten, iterations, seed),
        Method::Lopq => lopq::fit(points, bits, iterations, seed),
        _ => Opq { bits, dim, rounds: config.rounds, inner: 4, last: iterations, seed }.fit(points, watch),
    }
}

/// The learned system of a configuration, for inputs of so many values.
pub fn system(config: &SystemConfig, inputs: usize) -> Result<Box<dyn System>> {
    Ok(match config.method {
        Method::Vdsh => Box::new(Vdsh::new(config, inputs)),
        Method::Nash => Box::new(Nash::new(config, inputs)),
        Method::Wish => Box::new(Wish::new(config, inputs)),
        Method::Bmsh => Box::new(Bmsh::new(config, inputs)),
        Method::Corrsh => Box::new(Corrsh::new(config, inputs)),
        Method::Ammi => Box::new(Ammi::new(config)),
        Method::Csh => Box::new(Csh::new(config)),
        Method::Dhim => Box::new(Dhim::new(config, inputs / WINDOW)),
        Method::TwoStage => Box::new(TwoStage::new(config)?),
        Method::Aepq => Box::new(Aepq::new(config, inputs)?),
        other => return Err(Error::config(format!("{other} is not a learned system of this kind"))),
    })
}

fn finish(
    job: &Job,
    features: Option<FeatureConfig>,
    fitted: Fitted,
    clean: Matrix,
    tokens: Vec<Vec<u32>>,
    encoding: f64,
) -> Result<Trained> {
    let config = &job.config;
    let Fitted { built, mut metrics, interrupted } = fitted;
    metrics["encoding_seconds"] = encoding.into();
    metrics["training_documents"] = job.corpus.texts.len().into();
    let mut training = config.record();
    if config.method.takes_views() {
        training["dropout"] = job.dropout.into();
    }
    let record = ModelConfig {
        format: micpq::model::FORMAT,
        method: config.method.name().into(),
        shape: built.codebooks.shape(),
        distance: built.distance,
        features,
        training,
    };
    let model = Model::new(record, built.refine, built.codebooks)?;
    Ok(Trained { model, metrics, clean, tokens, interrupted })
}
