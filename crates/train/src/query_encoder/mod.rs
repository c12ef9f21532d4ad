//! Distils an encoder and a projection into a query encoder that takes microseconds.
//!
//! The encoder embeds short pieces of documents ([`texts`]) and every token by itself, so that words which no document has get
//! vectors too. A table of token vectors learns to predict those embeddings and their projections ([`fit`]).

mod fit;
mod texts;

use engine::encoder::{Architecture, Embedder, Role};
use engine::model::{Dense, FastEncoder, FastInfo, FastParts, Model};
use engine::{Error, Matrix, Progress, Result};
use rayon::prelude::*;

use crate::random::{Purpose, Stream};
use fit::{Examples, Layer, Schedule, Start, Student};

/// How a query encoder is distilled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistillConfig {
    /// Documents whose pieces it learns from, at most.
    pub documents: usize,
    /// Values of a token vector.
    pub width: usize,
    /// The first values of a token vector, which predict the projected vector. A web export has only these.
    pub code_width: usize,
    pub epochs: usize,
    /// Learning rate of Adam, which falls to nothing.
    pub learning_rate: f64,
    pub seed: u64,
}

impl Default for DistillConfig {
    fn default() -> Self {
        DistillConfig { documents: 20_000, width: 256, code_width: 64, epochs: 4, learning_rate: 2e-3, seed: 0 }
    }
}

impl DistillConfig {
    pub fn validate(&self) -> Result<()> {
        Error::check_count("documents", self.documents, 10_000_000)?;
        Error::check_count("width", self.width, 4096)?;
        Error::check_count("code_width", self.code_width, self.width)?;
        Error::check_count("epochs", self.epochs, 1000)?;
        if !(self.learning_rate > 0.0 && self.learning_rate <= 1.0) {
            return Err(Error::option(
                "learning_rate",
                format!("is {}; give a number above 0 and at most 1", self.learning_rate),
            ));
        }
        Ok(())
    }
}

/// Refuses a model that has no encoder to distil, before any work.
pub fn expect_encoder(model: &Model) -> Result<()> {
    let Some(embedding) = &model.config.embedding else {
        return Err(Error::config(
            "this model was trained on user vectors: it has no encoder to distil. Search it with vectors",
        ));
    };
    if embedding.terms.is_some() {
        return Err(Error::config(
            "this model reads terms and has no encoder to distil: its queries take microseconds as they are",
        ));
    }
    if embedding.service.is_some() {
        return Err(Error::config(
            "the encoder of this model is a service, whose tokens are not known here: it cannot be distilled",
        ));
    }
    Ok(())
}

/// Texts encoded between two looks at `progress`.
const CHUNK: usize = 4096;

/// Distils the encoder and the projection of `model` on the texts of documents.
pub fn distill(
    model: &Model,
    embedder: &Embedder,
    documents: &[String],
    config: &DistillConfig,
    progress: &dyn Progress,
) -> Result<FastEncoder> {
    config.validate()?;
    expect_encoder(model)?;
    let encoder = embedder.encoder().ok_or_else(|| Error::config("there is no encoder to distil"))?;
    if encoder.config().architecture == Architecture::Static {
        return Err(Error::config(format!(
            "encoder {} is a table of token vectors already: its queries take microseconds as they are",
            embedder.config().encoder
        )));
    }
    let order = Stream::new(config.seed, Purpose::Sample, &[]).permutation(documents.len());
    let chosen = order.iter().take(config.documents).map(|&i| i as usize);
    let pieces: Vec<String> = chosen.flat_map(|i| texts::pieces(i, &documents[i], config.seed)).collect();
    if pieces.is_empty() {
        return Err(Error::config("there is no text to distil on; give documents with texts"));
    }
    // Every token by itself comes first, then the pieces.
    let vocabulary = encoder.config().vocab_size;
    let singles = singles(embedder, vocabulary)?;
    let mut tokens: Vec<Vec<u32>> = (0..vocabulary as u32).map(|id| vec![id]).collect();
    tokens.extend(FastEncoder::tokens_of(embedder, &pieces)?);
    let asked = singles.into_iter().chain(embedder.tokens_of(Role::Query, &pieces)?).collect::<Vec<_>>();
    let embeddings = embed(embedder, &asked, progress)?;
    let projected = model.projection().apply(&embeddings)?;
    let table = first_table(&embeddings, vocabulary, config);
    let scaling = [Scaling::of(&embeddings), Scaling::of(&projected)];
    let targets = vec![scaled(&embeddings, &scaling[0]), scaled(&projected, &scaling[1])];
    let examples = Examples { tokens, targets };
    let layers = [(config.width, embeddings.cols()), (config.code_width, projected.cols())];
    let schedule = Schedule { epochs: config.epochs, rate: config.learning_rate, seed: config.seed };
    let mut student =
        Student::fit(Start { table, width: config.width, layers: &layers }, &examples, schedule, progress)?;
    let (table, scales) = student.quantize(&examples);
    let dense = |number: usize| {
        let (Layer { inputs, weight, bias }, Scaling { mean, spread }) = (&student.layers[number], &scaling[number]);
        let bias = bias.iter().zip(mean).map(|(value, mean)| value * spread + mean).collect();
        Dense::new(*inputs, weight.iter().map(|value| value * spread).collect(), bias)
    };
    let parts = FastParts { embedding: dense(0)?, projected: dense(1)?, table, scales };
    let info = FastInfo {
        model: model.fingerprint().to_owned(),
        encoder_sha256: embedder.config().encoder_sha256.clone(),
        documents: documents.len().min(config.documents),
        seed: config.seed,
    };
    FastEncoder::new(model, encoder.tokenizer(), parts, info)
}

/// Every token by itself, between the ends and behind the prompt of a query.
fn singles(embedder: &Embedder, vocabulary: usize) -> Result<Vec<Vec<u32>>> {
    let empty = embedder.tokens_of(Role::Query, &[""])?.pop().expect("one text was given");
    let prompt = embedder.config().query_prompt.as_deref().unwrap_or_default();
    let encoder = embedder.encoder().expect("the caller has seen it");
    let before = encoder.tokenizer().prompt_tokens(prompt)?.min(empty.len());
    let single = |id: u32| [&empty[..before], &[id], &empty[before..]].concat();
    Ok((0..vocabulary as u32).map(single).collect())
}

fn embed(embedder: &Embedder, tokens: &[Vec<u32>], progress: &dyn Progress) -> Result<Matrix> {
    // Texts of one length share a task without waiting for longer ones.
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by_key(|&i| tokens[i].len());
    progress.stage("encoding pieces of documents", Some(tokens.len() as u64));
    let mut out = Matrix::zeros(tokens.len(), embedder.width());
    for chunk in order.chunks(CHUNK) {
        let sequences: Vec<&[u32]> = chunk.iter().map(|&i| tokens[i].as_slice()).collect();
        let rows = embedder.encode_tokens_of(Role::Query, &sequences, progress)?;
        for (&i, row) in chunk.iter().zip(rows.iter()) {
            out.row_mut(i).copy_from_slice(row);
        }
    }
    Ok(out)
}

/// The first table: embeddings of single tokens, mapped to `width` values by a random projection.
fn first_table(embeddings: &Matrix, vocabulary: usize, config: &DistillConfig) -> Vec<f32> {
    let (inputs, width) = (embeddings.cols(), config.width);
    let mut random = vec![0.0; inputs * width];
    Stream::new(config.seed, Purpose::Init, &[]).normal(&mut random);
    let tokens = Matrix::from_vec(inputs, embeddings.as_slice()[..vocabulary * inputs].to_vec());
    let Scaling { mean, spread } = Scaling::of(&tokens);
    let scale = 1.0 / (spread * (inputs as f32).sqrt());
    let centred: Vec<f32> = tokens.iter().flat_map(|row| row.iter().zip(&mean).map(|(v, m)| (v - m) * scale)).collect();
    let mut table = vec![0.0; vocabulary * width];
    let rows = table.par_chunks_mut(64 * width).zip(centred.par_chunks(64 * inputs));
    rows.for_each(|(table, rows)| {
        let rows = crate::product::View::new(rows, rows.len() / inputs, inputs);
        crate::product::multiply(table, rows, crate::product::View::new(&random, inputs, width), 1.0);
    });
    table
}

/// Mean and root mean square deviation of a value.
struct Scaling {
    mean: Vec<f32>,
    spread: f32,
}

impl Scaling {
    fn of(rows: &Matrix) -> Scaling {
        let (n, cols) = (rows.rows() as f64, rows.cols());
        let (mut mean, mut square) = (vec![0.0f64; cols], 0.0f64);
        for row in rows.iter() {
            mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value) / n);
        }
        for row in rows.iter() {
            square += row.iter().zip(&mean).map(|(value, mean)| (f64::from(*value) - mean).powi(2)).sum::<f64>() / n;
        }
        let spread = (square / cols as f64).sqrt();
        Scaling {
            mean: mean.into_iter().map(|value| value as f32).collect(),
            spread: if spread > 0.0 { spread as f32 } else { 1.0 },
        }
    }
}

/// The rows with mean 0 and variance 1 in all.
fn scaled(rows: &Matrix, scaling: &Scaling) -> Vec<f32> {
    let values = rows.iter().flat_map(|row| row.iter().zip(&scaling.mean));
    values.map(|(value, mean)| (value - mean) / scaling.spread).collect()
}
