//! From texts or embeddings to a model: prepares the inputs a method reads, fits it, measures the model and records it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use engine::encoder::{Embedder, EmbeddingConfig};
use engine::model::{Model, ModelConfig};
use engine::{Error, Matrix, NoProgress, Progress, Result};
use rayon::prelude::*;
use train::dataset::Dataset;
use train::evaluate::{Corpus, EvaluateConfig, evaluate};
use train::job::{Trained, Vectors};
use train::passes::Passes;
use train::random::{Purpose, Stream};
use train::vectors::VectorViews;

use super::config::MethodConfig;
use super::registry::registry;
use super::training::{Task, Training};
use super::{Fitted, Input, Prepared, Reads};
use crate::inputs::{Built, Front, Inputs, TermRows, TokenStates, Validation};

/// From texts to a model: what [`Method::train`] does by default.
///
/// [`Method::train`]: super::Method::train
pub(crate) fn train(training: &Training, task: &Task, progress: &dyn Progress) -> Result<(Trained, Vectors)> {
    let config = training.config()?;
    config.validate()?;
    if task.corpus.texts.len() < 2 {
        let problem = format!("has {} documents; training needs at least 2", task.corpus.texts.len());
        return Err(Error::input("corpus", problem));
    }
    task.corpus.check_labels(task.validation, task.test)?;
    if task.validation.is_some() && !config.method.reads().validation {
        progress
            .note(&format!("{} has no epochs to choose from, so the validation queries are not used", config.method));
    }
    let job = Job { training, config, task };
    match config.input {
        Input::Tfidf => job.terms(progress),
        Input::Encoder if config.method.reads().token_states => job.token_states(progress),
        Input::Encoder => job.embeddings(progress),
    }
}

struct Job<'a, 't> {
    training: &'a Training,
    config: &'a MethodConfig,
    task: &'a Task<'t>,
}

impl Job<'_, '_> {
    fn terms(&self, progress: &dyn Progress) -> Result<(Trained, Vectors)> {
        let config = self.config;
        let begun = Instant::now();
        progress.stage("counting terms", None);
        let vocabulary = Arc::new(config.lexicon.fit(&self.task.corpus.texts, self.task.clean)?);
        progress.note(&format!("{} terms in the vocabulary", vocabulary.len()));
        let inputs = |set: &Dataset| {
            let terms = |text: &String| vocabulary.term_numbers(&self.task.clean.apply(text, None));
            Inputs::Terms(TermRows::new(
                vocabulary.clone(),
                config.weighting,
                set.texts.par_iter().map(terms).collect(),
            ))
        };
        let documents = inputs(self.task.corpus);
        let queries = self.task.validation.map(inputs);
        let counting = begun.elapsed().as_secs_f64();
        let fitted = self.fit(&documents, self.validation(queries.as_ref()), None, progress)?;
        let Front::Terms(terms) = fitted.built.front.clone() else { return Err(self.wrong_front()) };
        let embedder = Embedder::of_terms(terms, self.task.clean);
        let Inputs::Terms(rows) = documents else { unreachable!("built above") };
        let clean = embedder.encode_tokens(&rows.tokens, None, progress)?;
        let test = self.task.test.map(|set| embedder.encode(&set.texts, progress)).transpose()?;
        let trained = self.finish(embedder.config().clone(), fitted, &clean, test, counting)?;
        let cut = vec![false; rows.tokens.len()];
        Ok((trained, Vectors { rows: clean, tokens: rows.tokens, cut }))
    }

    fn encoder(&self) -> Result<&Embedder> {
        let method = self.training.method();
        let embedder = self.task.encoder(method.name())?;
        match &embedder.config().terms {
            None => Ok(embedder),
            Some(_) => {
                Err(Error::config(format!("{method} needs an encoder, and this embedder reads terms; name an encoder")))
            }
        }
    }

    fn token_states(&self, progress: &dyn Progress) -> Result<(Trained, Vectors)> {
        let config = self.config;
        let embedder = self.encoder()?;
        let begun = Instant::now();
        let (sequences, cut) = match self.task.passes.lock().take() {
            Some(passes) => {
                let (_, sequences, cut) = passes.into_parts();
                (sequences, cut)
            }
            None => {
                progress.stage("tokenising", None);
                embedder.tokens_and_cut(&self.task.corpus.texts)?
            }
        };
        // Token states are fifty times the size of an embedding: a large corpus is sampled.
        let mut order = Stream::new(config.seed, Purpose::Method, &[4]).permutation(sequences.len());
        order.truncate(config.sample);
        order.sort_unstable();
        let chosen: Vec<Vec<u32>> = order.iter().map(|&i| sequences[i as usize].clone()).collect();
        let documents = Inputs::TokenStates(TokenStates::new(embedder, &chosen, config.passes, progress)?);
        let queries = match self.task.validation {
            Some(set) => {
                Some(Inputs::TokenStates(TokenStates::new(embedder, &embedder.tokens(&set.texts)?, 0, progress)?))
            }
            None => None,
        };
        let encoding = begun.elapsed().as_secs_f64();
        let labels = self.task.corpus.labels.select(&order);
        let validation = self.task.validation.zip(queries.as_ref()).map(|(set, queries)| Validation {
            queries,
            query_labels: &set.labels,
            document_labels: &labels,
        });
        let fitted = self.fit(&documents, validation, None, progress)?;
        drop(documents);
        let Front::Convolution(convolution) = fitted.built.front.clone() else { return Err(self.wrong_front()) };
        let learned = embedder.config().clone();
        // It reads token states: what the encoder's directory does after pooling has no part in it.
        let learned = EmbeddingConfig {
            width: convolution.outputs,
            convolution: Some(convolution.clone()),
            unit_length: false,
            steps: Vec::new(),
            dimensions: None,
            ..learned
        };
        progress.stage("encoding", Some(sequences.len() as u64));
        let reader = embedder.encoder().expect("it has an encoder, checked above");
        let clean = reader.convolve(&convolution, &sequences, progress)?;
        let test = match self.task.test {
            Some(set) => Some(reader.convolve(&convolution, &embedder.tokens(&set.texts)?, progress)?),
            None => None,
        };
        let trained = self.finish(learned, fitted, &clean, test, encoding)?;
        Ok((trained, Vectors { rows: clean, tokens: sequences, cut }))
    }

    fn embeddings(&self, progress: &dyn Progress) -> Result<(Trained, Vectors)> {
        let embedder = self.encoder()?;
        let begun = Instant::now();
        let passes = match self.task.passes.lock().take() {
            Some(passes) => passes,
            None => Passes::new(embedder, &self.task.corpus.texts, self.task.dropout, Some(self.task.cache), progress)?,
        };
        let encode = |set: &Dataset| -> Result<Matrix> {
            Ok(Passes::new(embedder, &set.texts, 0.0, Some(self.task.cache), progress)?.into_clean())
        };
        let documents = Inputs::Embeddings(passes.clean().clone());
        let queries = match self.task.validation {
            Some(set) if self.training.method().reads().validation => Some(Inputs::Embeddings(encode(set)?)),
            _ => None,
        };
        let test = self.task.test.map(encode).transpose()?;
        let encoding = begun.elapsed().as_secs_f64();
        let views = match self.training.views() {
            Some(choice) => Some(choice.prepare(&passes, self.task.cache, progress)?),
            None => None,
        };
        let fitted = self.fit(&documents, self.validation(queries.as_ref()), views.as_deref(), progress)?;
        if !matches!(fitted.built.front, Front::Embeddings) {
            return Err(self.wrong_front());
        }
        drop((documents, views));
        let (rows, tokens, cut) = passes.into_parts();
        let trained = self.finish(embedder.config().clone(), fitted, &rows, test, encoding)?;
        Ok((trained, Vectors { rows, tokens, cut }))
    }

    /// A defect of the method: its first layer does not read the inputs it was trained on.
    fn wrong_front(&self) -> Error {
        Error::config(format!("{} gave layers for another kind of input than it read", self.training.method()))
    }

    fn fit(
        &self,
        documents: &Inputs,
        validation: Option<Validation>,
        views: Option<&dyn train::Views>,
        progress: &dyn Progress,
    ) -> Result<Fitted> {
        let gpu = self.task.embedder.and_then(Embedder::gpu);
        let checkpoints = self.task.cache.join("runs");
        let inputs = Prepared { documents, validation, views, gpu, checkpoints: Some(&checkpoints) };
        self.training.fit(&inputs, progress)
    }

    fn validation<'q>(&'q self, queries: Option<&'q Inputs>) -> Option<Validation<'q>> {
        let (set, queries) = (self.task.validation?, queries?);
        Some(Validation { queries, query_labels: &set.labels, document_labels: &self.task.corpus.labels })
    }

    /// The model with its record, measured by the test queries if there are some.
    fn finish(
        &self,
        embedding: EmbeddingConfig,
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
        let dropout = config.method.reads().views.then_some(self.task.dropout);
        let model = recorded(config, Some(embedding), dropout, built)?;
        if let (Some(set), Some(queries)) = (self.task.test, &test) {
            let labels = Some((&set.labels, &self.task.corpus.labels));
            let how = EvaluateConfig { distances: vec![distance], float: false, seed: config.seed };
            let result = evaluate(&model, &Corpus { documents: clean, queries, labels }, &how, &NoProgress)?;
            metrics["test"] = serde_json::to_value(&result).expect("plain data has a JSON form");
        }
        Ok(Trained { model, metrics, interrupted })
    }
}

/// The model with the record of its training.
fn recorded(
    config: &MethodConfig,
    embedding: Option<EmbeddingConfig>,
    dropout: Option<f64>,
    built: Built,
) -> Result<Model> {
    let mut training = config.record();
    if let Some(rate) = dropout {
        training["dropout"] = rate.into();
    }
    training["assumptions"] = config.method.assumptions(config.input).into();
    let record = ModelConfig {
        format: engine::model::FORMAT,
        method: config.method.name().into(),
        shape: built.codebooks.shape(),
        distance: built.distance,
        embedding,
        training,
    };
    let model = Model::new(record, built.projection, built.codebooks)?;
    match built.kinds {
        Some(layers) => model.with_kinds(layers),
        None => Ok(model),
    }
}

/// Embeddings `[documents, width]`, and how a method that compares views gets them: the user's own, or noise around each
/// vector.
pub struct UserVectors<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) width: usize,
    views: Option<VectorViews<'a>>,
}

impl<'a> UserVectors<'a> {
    pub fn new(values: &'a [f32], width: usize) -> Self {
        UserVectors { values, width, views: None }
    }

    pub fn views(self, views: VectorViews<'a>) -> Self {
        UserVectors { views: Some(views), ..self }
    }

    /// The views, noise by default.
    pub(crate) fn given_or_noise(&self) -> VectorViews<'a> {
        self.views.clone().unwrap_or(VectorViews::Noise(VectorViews::NOISE))
    }
}

impl<'a> From<&'a Matrix> for UserVectors<'a> {
    fn from(rows: &'a Matrix) -> Self {
        UserVectors::new(rows.as_slice(), rows.cols())
    }
}

/// From user vectors to a model: what [`Method::train_on_vectors`] does by default.
///
/// [`Method::train_on_vectors`]: super::Method::train_on_vectors
pub(crate) fn train_on_vectors(
    training: &Training,
    vectors: &UserVectors,
    cache: &Path,
    progress: &dyn Progress,
) -> Result<Trained> {
    let config = training.config()?;
    if matches!(vectors.views, Some(VectorViews::Given(_))) && !config.method.reads().views {
        return Err(Error::config(format!("{} takes no views; leave them out", config.method)));
    }
    let rows = Matrix::from_vec(vectors.width, vectors.values.to_vec());
    of_vectors(config, rows, &vectors.given_or_noise(), Some(&cache.join("runs")), progress)
}

/// Trains on user vectors. A method that compares views gets `views`; one that reads tokens or terms is refused.
pub fn of_vectors(
    config: &MethodConfig,
    vectors: Matrix,
    views: &VectorViews,
    checkpoints: Option<&Path>,
    progress: &dyn Progress,
) -> Result<Trained> {
    config.validate()?;
    let reads_vectors = |reads: Reads| !reads.token_states;
    if !reads_vectors(config.method.reads()) || config.input == Input::Tfidf {
        let all = registry();
        let able: Vec<&str> = all.iter().filter(|m| reads_vectors(m.reads())).map(|m| m.name()).collect();
        return Err(Error::config(format!(
            "{} on {} is trained on texts, not on vectors; those that take vectors: {}",
            config.method,
            config.input,
            able.join(", ")
        )));
    }
    if vectors.rows() < 2 {
        return Err(Error::input("vectors", format!("there are {}; training needs at least 2", vectors.rows())));
    }
    let rows = vectors.rows();
    let training = Training::from(config.clone());
    // The views borrow the vectors, and the documents own theirs.
    let clean = if config.method.reads().views { vectors.clone() } else { Matrix::default() };
    let prepared = match config.method.reads().views {
        true => Some(views.prepare(clean.as_slice(), vectors.cols())?),
        false => None,
    };
    let documents = Inputs::Embeddings(vectors);
    let inputs = Prepared {
        views: prepared.as_ref().map(|(views, _)| views as &dyn train::Views),
        checkpoints,
        ..Prepared::documents(&documents)
    };
    let Fitted { built, mut metrics, interrupted } = training.fit(&inputs, progress)?;
    metrics["training_documents"] = rows.into();
    let mut model = recorded(config, None, None, built)?;
    if let Some((_, record)) = prepared {
        model.config.training["views"] = record.into();
    }
    Ok(Trained { model, metrics, interrupted })
}
