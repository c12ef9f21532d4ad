//! From texts to a model, whatever the system.

use std::sync::Arc;
use std::time::Instant;

use micpq::encoder::{Features, WINDOW};
use micpq::model::{FeatureConfig, Model, ModelConfig};
use micpq::{Error, Matrix, Result, Silent, Watch};
use rayon::prelude::*;
use train::dataset::Dataset;
use train::evaluate::{Corpus, EvaluateConfig, evaluate};
use train::job::{Trained, Vectors};
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
use crate::scale::Scale;
use crate::training::Task;
use crate::two_stage::TwoStage;
use crate::vdsh::Vdsh;
use crate::wish::Wish;
use crate::{lopq, pq};

/// A run on text.
pub(crate) struct Job<'a> {
    /// The system and its options.
    pub config: &'a SystemConfig,
    /// What to train from. Without validation queries the loss on documents kept out decides which epoch is best.
    pub task: &'a Task<'a>,
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

impl Job<'_> {
    /// Runs it, and gives the vectors the model's layers take with the model. Stopped by the user after at least one
    /// epoch, it gives the best model so far.
    pub fn run(&self, watch: &dyn Watch) -> Result<(Trained, Vectors)> {
        let config = self.config;
        config.validate()?;
        if config.method.is_micpq() {
            return Err(Error::config(format!("{} is not trained here", config.method)));
        }
        if self.task.corpus.texts.len() < 2 {
            let problem = format!("has {} documents; training needs at least 2", self.task.corpus.texts.len());
            return Err(Error::input("corpus", problem));
        }
        self.task.corpus.check_labels(self.task.validation, self.task.test)?;
        match config.input {
            Input::Tfidf => self.words(watch),
            Input::Encoder if config.method == Method::Dhim => self.tokens(watch),
            Input::Encoder => self.vectors(watch),
        }
    }

    fn words(&self, watch: &dyn Watch) -> Result<(Trained, Vectors)> {
        let config = self.config;
        let begun = Instant::now();
        watch.stage("counting words", None);
        let vocabulary = Arc::new(config.lexicon.fit(&self.task.corpus.texts, self.task.clean)?);
        watch.note(&format!("{} words in the vocabulary", vocabulary.len()));
        let inputs = |set: &Dataset| {
            let terms = |text: &String| vocabulary.terms(&self.task.clean.apply(text, None));
            Inputs::Words(Words::new(vocabulary.clone(), config.weighting, set.texts.par_iter().map(terms).collect()))
        };
        let documents = inputs(self.task.corpus);
        let queries = self.task.validation.map(inputs);
        let counting = begun.elapsed().as_secs_f64();
        let fitted = fit(config, &documents, self.against(queries.as_ref()).as_ref(), None, watch)?;
        let Front::Words(terms) = fitted.built.front.clone() else { unreachable!("words were its input") };
        let features = Features::of_terms(terms, self.task.clean);
        let Inputs::Words(words) = documents else { unreachable!("they were made above") };
        let clean = features.encode_tokens(&words.tokens, None, watch)?;
        let test = self.task.test.map(|set| features.encode(&set.texts, watch)).transpose()?;
        let trained = self.finish(features.config().clone(), fitted, &clean, test, counting)?;
        Ok((trained, (clean, words.tokens)))
    }

    /// The encoder a system cannot do without.
    fn encoder(&self) -> Result<&Features> {
        let method = self.config.method;
        let features = self.task.encoder(method)?;
        match features.encoder() {
            Some(_) => Ok(features),
            None => Err(Error::config(format!("{method} needs an encoder, not words"))),
        }
    }

    fn tokens(&self, watch: &dyn Watch) -> Result<(Trained, Vectors)> {
        let config = self.config;
        let features = self.encoder()?;
        let begun = Instant::now();
        let sequences = features.tokens(&self.task.corpus.texts)?;
        // Token states are fifty times a vector: a large corpus is sampled.
        let mut order = Stream::new(config.seed, Purpose::System, &[4]).permutation(sequences.len());
        order.truncate(config.sample);
        order.sort_unstable();
        let chosen: Vec<Vec<u32>> = order.iter().map(|&i| sequences[i as usize].clone()).collect();
        let documents = Inputs::Tokens(Tokens::new(features, &chosen, config.passes, watch)?);
        let queries = match self.task.validation {
            Some(set) => Some(Inputs::Tokens(Tokens::new(features, &features.tokens(&set.texts)?, 0, watch)?)),
            None => None,
        };
        let encoding = begun.elapsed().as_secs_f64();
        let labels = self.task.corpus.labels.select(&order);
        let validation = self.task.validation.zip(queries.as_ref()).map(|(set, queries)| Validation {
            queries,
            query_labels: &set.labels,
            document_labels: &labels,
        });
        let fitted = fit(config, &documents, validation.as_ref(), None, watch)?;
        drop(documents);
        let Front::Tokens(convolution) = fitted.built.front.clone() else {
            unreachable!("token states were its input")
        };
        let learned = features.config().clone();
        let learned = FeatureConfig { width: convolution.outputs, convolution: Some(convolution.clone()), ..learned };
        watch.stage("encoding", Some(sequences.len() as u64));
        let reader = features.encoder().expect("it was looked for");
        let clean = reader.convolve(&convolution, &sequences, watch)?;
        let test = match self.task.test {
            Some(set) => Some(reader.convolve(&convolution, &features.tokens(&set.texts)?, watch)?),
            None => None,
        };
        let trained = self.finish(learned, fitted, &clean, test, encoding)?;
        Ok((trained, (clean, sequences)))
    }

    fn vectors(&self, watch: &dyn Watch) -> Result<(Trained, Vectors)> {
        let config = self.config;
        let features = self.encoder()?;
        let begun = Instant::now();
        let passes = Passes::new(features, &self.task.corpus.texts, self.task.dropout, Some(self.task.cache), watch)?;
        let encode = |set: &Dataset| -> Result<Matrix> {
            Ok(Passes::new(features, &set.texts, 0.0, Some(self.task.cache), watch)?.into_clean())
        };
        let documents = Inputs::Vectors(passes.clean().clone());
        let queries = match self.task.validation {
            Some(set) if !config.method.is_fitted() => Some(Inputs::Vectors(encode(set)?)),
            _ => None,
        };
        let test = self.task.test.map(encode).transpose()?;
        let encoding = begun.elapsed().as_secs_f64();
        let views = match config.method.takes_views() {
            true => Some(config.views.prepare(&passes, self.task.cache, watch)?),
            false => None,
        };
        let fitted = fit(config, &documents, self.against(queries.as_ref()).as_ref(), views.as_deref(), watch)?;
        drop((documents, views));
        let (clean, tokens) = passes.into_parts();
        let trained = self.finish(features.config().clone(), fitted, &clean, test, encoding)?;
        Ok((trained, (clean, tokens)))
    }

    fn against<'q>(&'q self, queries: Option<&'q Inputs>) -> Option<Validation<'q>> {
        let (set, queries) = (self.task.validation?, queries?);
        Some(Validation { queries, query_labels: &set.labels, document_labels: &self.task.corpus.labels })
    }

    /// The model with its record, measured by the test queries where there are some.
    fn finish(
        &self,
        features: FeatureConfig,
        fitted: Fitted,
        clean: &Matrix,
        test: Option<Matrix>,
        encoding: f64,
    ) -> Result<Trained> {
        let config = self.config;
        let Fitted { built, mut metrics, interrupted } = fitted;
        metrics["encoding_seconds"] = encoding.into();
        metrics["training_documents"] = self.task.corpus.texts.len().into();
        let distance = built.distance;
        let dropout = config.method.takes_views().then_some(self.task.dropout);
        let model = modelled(config, Some(features), dropout, built)?;
        if let (Some(set), Some(queries)) = (self.task.test, &test) {
            let labels = Some((&set.labels, &self.task.corpus.labels));
            let how = EvaluateConfig { distances: vec![distance], float: false, seed: config.seed };
            let result = evaluate(
                model.refine(),
                model.codebooks(),
                &Corpus { documents: clean, queries, labels },
                &how,
                &Silent,
            )?;
            metrics["test"] = serde_json::to_value(&result).expect("plain data has a JSON form");
        }
        Ok(Trained { model, metrics, interrupted })
    }
}

/// The model a system became, with its record.
fn modelled(
    config: &SystemConfig,
    features: Option<FeatureConfig>,
    dropout: Option<f64>,
    built: Built,
) -> Result<Model> {
    let mut training = config.record();
    if let Some(rate) = dropout {
        training["dropout"] = rate.into();
    }
    training["assumptions"] = config.method.assumptions(config.input).into();
    let record = ModelConfig {
        format: micpq::model::FORMAT,
        method: config.method.name().into(),
        shape: built.codebooks.shape(),
        distance: built.distance,
        features,
        training,
    };
    Model::new(record, built.refine, built.codebooks)
}

/// A model of vectors that somebody else's encoder made. Systems that need views of a text, or its tokens, are refused.
pub fn of_vectors(config: &SystemConfig, vectors: Matrix, watch: &dyn Watch) -> Result<Trained> {
    config.validate()?;
    let method = config.method;
    if method.is_micpq() || method.takes_views() || method == Method::Dhim || config.input == Input::Tfidf {
        return Err(Error::config(format!(
            "{method} on {} is trained on texts, not on vectors; those that take vectors: pq, opq, lopq, aepq, vdsh, nash, wish, bmsh, corrsh, ammi",
            config.input
        )));
    }
    if vectors.rows() < 2 {
        return Err(Error::input("vectors", format!("there are {}; training needs at least 2", vectors.rows())));
    }
    let rows = vectors.rows();
    let Fitted { built, mut metrics, interrupted } = fit(config, &Inputs::Vectors(vectors), None, None, watch)?;
    metrics["training_documents"] = rows.into();
    Ok(Trained { model: modelled(config, None, None, built)?, metrics, interrupted })
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
        // A decoder of unit variance wants vectors of unit variance.
        Inputs::Vectors(vectors) if config.method.takes_words() => {
            let scale = Scale::of(vectors);
            let scaled = |inputs: &Inputs| match inputs {
                Inputs::Vectors(vectors) => Inputs::Vectors(scale.apply(vectors)),
                _ => unreachable!("documents and queries are seen alike"),
            };
            let queries = validation.map(|v| scaled(v.queries));
            let validation = validation.zip(queries.as_ref()).map(|(v, queries)| Validation { queries, ..*v });
            let mut fitted = learn(config, &scaled(documents), validation.as_ref(), views, watch)?;
            fitted.built.refine = scale.folded(&fitted.built.refine)?;
            Ok(fitted)
        }
        _ => learn(config, documents, validation, views, watch),
    }
}

fn learn(
    config: &SystemConfig,
    documents: &Inputs,
    validation: Option<&Validation>,
    views: Option<&dyn train::Views>,
    watch: &dyn Watch,
) -> Result<Fitted> {
    let system = system(config, documents.width())?;
    let run = Learner::new(system.as_ref(), config, documents, views, watch).run(validation, watch)?;
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
