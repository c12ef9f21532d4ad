//! Training by gradient descent: epochs of steps, a validation figure after each; the best epoch wins.

use std::time::Instant;

use engine::encoder::Weighting;
use engine::model::{Codebooks, Dense, Distance};
use engine::search::Flat;
use engine::{Error, Matrix, Progress, Result};
use serde::Serialize;
use train::evaluate::code_search;
use train::metrics::{DEPTH, Scores, Usage};
use train::random::{Purpose, Stream};
use train::views::{Draw, Views};

use crate::config::MethodConfig;
use crate::entry::{Entry, Rows, Span};
use crate::graph::{Draws, Init, Loss, T2, Weight, number, tensor, values};
use crate::infomax::Gpu;
use crate::inputs::{Built, Inputs, Validation, centred, network, projected, signs};
use crate::yardstick::Row;

/// Step number of measurements: no training step reaches it.
const MEASURE: u64 = 1 << 60;
/// Epoch number of measurements: no training epoch draws its views.
const UNSEEN: usize = usize::MAX;

/// The inputs of a batch, beside the output of its first layer.
pub struct Batch<'a> {
    rows: &'a Rows<'a>,
    // For token states: number of tokens per text without `[CLS]`, and the states of `[CLS]`, [n, width].
    lengths: Vec<usize>,
    firsts: Vec<f32>,
    pub draws: Draws,
}

impl<'a> Batch<'a> {
    pub fn of(rows: &'a Rows<'a>, step: u64) -> Self {
        Batch { rows, lengths: Vec::new(), firsts: Vec::new(), draws: Draws::new(0, step) }
    }

    /// Token states: number of tokens per text without `[CLS]`, and the states of `[CLS]`.
    #[cfg(test)]
    pub fn of_tokens(rows: &'a Rows<'a>, lengths: Vec<usize>, firsts: Vec<f32>, step: u64) -> Self {
        Batch { lengths, firsts, ..Batch::of(rows, step) }
    }

    /// For token states: number of tokens per text without `[CLS]`, and the states of `[CLS]`, `[n, width]`.
    pub fn tokens(&self) -> (&[usize], &[f32]) {
        (&self.lengths, &self.firsts)
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The sparse rows, if the inputs are terms.
    pub fn terms(&self) -> Option<&[&'a Row]> {
        match self.rows {
            Rows::Dense(_) | Rows::Windows(_) => None,
            Rows::Terms(rows) => Some(rows),
        }
    }

    /// The embeddings a decoder reconstructs, `[n, inputs]`.
    ///
    /// # Panics
    /// If the inputs are terms or tokens.
    pub fn target(&self) -> T2 {
        match self.rows {
            Rows::Dense(x) => tensor(x.as_slice().to_vec(), x.rows(), x.cols()),
            Rows::Terms(_) | Rows::Windows(_) => panic!("only embeddings are reconstructed as they are"),
        }
    }
}

/// The network of a learned method: a first layer, the weights behind it, and the loss.
pub trait LearnedMethod: Send + Sync {
    /// Outputs of the first layer.
    fn outputs(&self) -> usize;

    /// Outputs of a second first layer beside it, which reads terms by their tf-idf weights. It serves training alone.
    fn weighted_outputs(&self) -> usize {
        0
    }

    /// Initial values of the first layer.
    fn init(&self) -> Init {
        Init::Linear
    }

    /// The parts of the first layer's weight that are used; default: all.
    fn spans(&self) -> Option<Vec<Span>> {
        None
    }

    /// The weights behind the first layer.
    fn weights(&self) -> Vec<Weight>;

    /// The loss of a batch whose first layers gave `a [n, outputs + weighted_outputs]`.
    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss;

    /// Changes the weights before a step.
    fn adapt(&self, _a: &T2, _weights: &mut [Weight], _batch: &Batch) {}

    /// The layers of the model behind the first, ReLU before each.
    fn layers(&self, _weights: &[Weight]) -> Result<Vec<Dense>> {
        Ok(Vec::new())
    }

    /// Whether the threshold of each bit is its median over the documents instead of 0.
    fn medians(&self) -> bool {
        false
    }

    /// The codebooks and the distance, for projected documents.
    fn codebooks(&self, _weights: &[Weight], projected: &Matrix) -> Result<(Codebooks, Distance)> {
        Ok((signs(projected.cols())?, Distance::Hamming))
    }
}

/// The record of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Epoch {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean over the epoch's documents.
    pub loss: f64,
    pub validation: f64,
    /// Seconds of training and of validation.
    pub seconds: f64,
}

pub struct Learned {
    /// From the best epoch.
    pub built: Built,
    /// Name of the validation figure.
    pub selection: &'static str,
    pub best: f64,
    /// Counted from 1.
    pub best_epoch: usize,
    /// With labelled validation queries.
    pub scores: Option<Scores>,
    pub usage: Usage,
    pub curve: Vec<Epoch>,
    /// Whether the user stopped it.
    pub interrupted: bool,
}

/// A network in training.
pub struct Learner<'a> {
    network: &'a dyn LearnedMethod,
    config: &'a MethodConfig,
    inputs: &'a Inputs,
    views: Option<&'a dyn Views>,
    // With a GPU, entry and weights here are as of the last save.
    gpu: Option<Gpu>,
    entry: Entry,
    // The second first layer.
    weighted: Option<Entry>,
    weights: Vec<Weight>,
    updates: u64,
}

impl<'a> Learner<'a> {
    /// Sets initial values. With `views` every batch holds two views of its documents.
    pub fn new(
        network: &'a dyn LearnedMethod,
        config: &'a MethodConfig,
        inputs: &'a Inputs,
        views: Option<&'a dyn Views>,
        progress: &dyn Progress,
    ) -> Self {
        let entry = Entry::new(inputs.width(), network.outputs(), network.init(), config.seed);
        let entry = match network.spans() {
            Some(spans) => entry.of_spans(spans),
            None => entry,
        };
        let weights = network.weights();
        let weighted = (network.weighted_outputs() > 0)
            .then(|| Entry::numbered(inputs.width(), network.weighted_outputs(), network.init(), config.seed, 950));
        let mut gpu = None;
        if let Inputs::TokenStates(tokens) = inputs {
            match tokens.gpu().map(|device| Gpu::new(device, config, &entry, &weights)).transpose() {
                Ok(built) => gpu = built,
                Err(problem) => progress.note(&format!("training on the CPU: {problem}")),
            }
        }
        Learner { network, config, inputs, views, gpu, entry, weighted, weights, updates: 0 }
    }

    /// The tf-idf rows of some documents, for the second first layer on terms.
    fn weighted_rows(&self, documents: &[u32]) -> Option<Vec<Row>> {
        let (Inputs::Terms(terms), Some(_)) = (self.inputs, &self.weighted) else { return None };
        Some(documents.iter().map(|&d| terms.vocabulary.row(&terms.tokens[d as usize], Weighting::Tfidf)).collect())
    }

    /// The output of the first layers, `[n, outputs + weighted_outputs]`. `weighted` are the rows of the second one, where they
    /// are others.
    fn first_layers(&self, rows: &Rows, weighted: Option<&Rows>) -> T2 {
        let a = tensor(self.entry.forward(rows), rows.len(), self.network.outputs());
        let Some(second) = &self.weighted else { return a };
        let b = tensor(second.forward(weighted.unwrap_or(rows)), rows.len(), self.network.weighted_outputs());
        T2::cat(vec![a, b], 1)
    }

    fn rows(&self, documents: &[u32], epoch: usize) -> Rows<'a> {
        match (self.inputs, self.views) {
            (_, Some(views)) => {
                let half = documents.len() * views.width();
                let mut out = vec![0.0; 2 * half];
                if epoch == 1 && self.config.clean_first_epoch {
                    let (first, second) = out.split_at_mut(half);
                    views.clean(documents, first);
                    second.copy_from_slice(first);
                } else {
                    views.pair(documents, Draw { seed: self.config.seed, epoch: epoch as u64 }, &mut out);
                }
                Rows::Dense(Matrix::from_vec(views.width(), out))
            }
            (Inputs::Embeddings(x), None) => {
                Rows::Dense(x.select(&documents.iter().map(|&d| d as usize).collect::<Vec<_>>()))
            }
            (Inputs::Terms(terms), None) => Rows::Terms(documents.iter().map(|&d| &terms.rows[d as usize]).collect()),
            (Inputs::TokenStates(tokens), None) => {
                Rows::Windows(tokens.scaled_windows(documents, pass(self.config, epoch)))
            }
        }
    }

    fn batch<'r>(&self, rows: &'r Rows<'r>, documents: &[u32], epoch: usize, step: u64) -> Batch<'r> {
        let (mut lengths, mut firsts) = (Vec::new(), Vec::new());
        if let Inputs::TokenStates(tokens) = self.inputs {
            let pass = pass(self.config, epoch);
            for &d in documents {
                lengths.push(tokens.count(d as usize) - 1);
                firsts.extend(tokens.first(d as usize, pass));
            }
            tokens.scales().first.apply_to(&mut firsts);
        }
        let draws = Draws::new(self.config.seed, step);
        Batch { rows, lengths, firsts, draws }
    }

    /// One step on some documents; its loss.
    pub fn step(&mut self, documents: &[u32], epoch: usize) -> Result<f64> {
        let rows = self.rows(documents, epoch);
        let batch = self.batch(&rows, documents, epoch, self.updates);
        if let (Some(gpu), Rows::Windows(windows)) = (&mut self.gpu, &rows) {
            let loss = gpu.loss(windows, &batch.firsts, &batch.draws)?;
            self.updates += 1;
            gpu.update(self.config.learning_rate, self.updates)?;
            return Ok(loss);
        }
        let weighted = self.weighted_rows(documents);
        let weighted = weighted.as_ref().map(|rows| Rows::Terms(rows.iter().collect()));
        let a = self.first_layers(&rows, weighted.as_ref());
        self.network.adapt(&a, &mut self.weights, &batch);
        let a = a.require_grad();
        let leaves: Vec<T2> = self.weights.iter().map(Weight::leaf).collect();
        let loss = self.network.loss(a.clone(), &leaves, &batch);
        let gradients = loss.backward();
        self.updates += 1;
        let (rate, update) = (self.config.learning_rate, self.updates);
        for (weight, leaf) in self.weights.iter_mut().zip(&leaves) {
            // A weight that is detached from the loss has no gradient.
            if let Some(gradient) = leaf.grad(&gradients) {
                weight.update(&values(gradient), rate, update);
            }
        }
        if let Some(slope) = a.grad(&gradients) {
            let [n, all] = slope.dims();
            let outputs = self.network.outputs();
            self.entry.update(&rows, &values(slope.clone().slice([0..n, 0..outputs])), rate, update);
            if let Some(second) = &mut self.weighted {
                second.update(
                    weighted.as_ref().unwrap_or(&rows),
                    &values(slope.slice([0..n, outputs..all])),
                    rate,
                    update,
                );
            }
        }
        Ok(number(&loss))
    }

    /// The loss of some documents without an update, always with the same random draws.
    pub fn measure(&mut self, documents: &[u32]) -> Result<f64> {
        let mut total = 0.0;
        for (i, part) in documents.chunks(self.config.batch.max(2)).enumerate() {
            let rows = self.rows(part, UNSEEN);
            let batch = self.batch(&rows, part, UNSEEN, MEASURE + i as u64);
            if let (Some(gpu), Rows::Windows(windows)) = (&mut self.gpu, &rows) {
                // A single text has no other to be told from; training skips such a batch too.
                let loss = if part.len() > 1 { gpu.loss(windows, &batch.firsts, &batch.draws)? } else { 0.0 };
                total += loss * part.len() as f64;
                continue;
            }
            let weighted = self.weighted_rows(part);
            let weighted = weighted.as_ref().map(|rows| Rows::Terms(rows.iter().collect()));
            let a = self.first_layers(&rows, weighted.as_ref());
            let leaves: Vec<T2> = self.weights.iter().map(|w| w.leaf().detach()).collect();
            total += number(&self.network.loss(a, &leaves, &batch)) * part.len() as f64;
        }
        Ok(total / documents.len().max(1) as f64)
    }

    /// The model of the present weights, and the documents projected by it.
    pub fn built(&mut self) -> Result<(Built, Matrix)> {
        if let Some(gpu) = &self.gpu {
            gpu.save(&mut self.entry, &mut self.weights)?;
        }
        let behind = self.network.layers(&self.weights)?;
        let folded = match self.inputs {
            Inputs::TokenStates(tokens) => Some(tokens.scales().others.folded_entry(&self.entry)),
            _ => None,
        };
        let entry = folded.as_ref().unwrap_or(&self.entry);
        let (front, mut projection) = network(entry, behind, self.inputs)?;
        let mut vectors = projected(&front, &projection, self.inputs)?;
        if self.network.medians() {
            projection = centred(projection, &vectors)?;
            vectors = projected(&front, &projection, self.inputs)?;
        }
        let (codebooks, distance) = self.network.codebooks(&self.weights, &vectors)?;
        Ok((Built { front, projection, codebooks, distance, kinds: None }, vectors))
    }

    /// Runs all epochs. Stopped by the user after at least one, it gives the best so far.
    pub fn run(mut self, validation: Option<&Validation>, progress: &dyn Progress) -> Result<Learned> {
        let config = self.config;
        let count = self.inputs.len();
        let mut held = Vec::new();
        if validation.is_none() {
            held = Stream::new(config.seed, Purpose::HeldOut, &[]).permutation(count);
            held.truncate(config.held_out.min(count / 10).max(2));
            held.sort_unstable();
        }
        let documents: Vec<u32> = (0..count as u32).filter(|d| held.binary_search(d).is_err()).collect();
        if documents.len() < 2 {
            return Err(Error::input("corpus", format!("{count} documents are too few to train on")));
        }
        let order = Stream::new(config.seed, Purpose::Database, &[]).permutation(count);
        let mut best: Option<Learned> = None;
        let (mut curve, mut stale, mut interrupted) = (Vec::new(), 0, false);
        for epoch in 1..=config.epochs {
            let start = Instant::now();
            let loss = match self.epoch(epoch, &documents, progress) {
                Err(Error::Interrupted) => {
                    interrupted = true;
                    break;
                }
                other => other?,
            };
            let (built, vectors) = self.built()?;
            let codes = built.codebooks.assign(&vectors);
            let usage = Usage::of(built.codebooks.shape(), &codes);
            let (figure, scores) = match validation {
                Some(set) => {
                    let scores = score(&built, &codes, &order, set)?;
                    (scores.precision.at_100, Some(scores))
                }
                None => (self.measure(&held)?, None),
            };
            let better = best.as_ref().is_none_or(|b| if scores.is_some() { figure > b.best } else { figure < b.best });
            let selection = if scores.is_some() { "P@100" } else { "held-out loss" };
            let seconds = start.elapsed().as_secs_f64();
            curve.push(Epoch { epoch, loss, validation: figure, seconds });
            progress.note(&format!(
                "epoch {epoch}: loss {loss:.3}, {selection} {figure:.3}{}, {:.1} of {} codewords used, {seconds:.1} s",
                if better { " (best)" } else { "" },
                usage.mean_used(),
                usage.codebook_size
            ));
            stale += 1;
            if better {
                stale = 0;
                best = Some(Learned {
                    built,
                    selection,
                    best: figure,
                    best_epoch: epoch,
                    scores,
                    usage,
                    curve: Vec::new(),
                    interrupted: false,
                });
            }
            if stale > config.patience {
                break;
            }
        }
        let best = best.ok_or(Error::Interrupted)?;
        Ok(Learned { curve, interrupted, ..best })
    }

    fn epoch(&mut self, epoch: usize, documents: &[u32], progress: &dyn Progress) -> Result<f64> {
        let config = self.config;
        progress.stage(&format!("epoch {epoch} of {}", config.epochs), Some(documents.len() as u64));
        let order = Stream::new(config.seed, Purpose::Shuffle, &[epoch as u64]).permutation(documents.len());
        let mut total = 0.0;
        for part in order.chunks(config.batch) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            progress.advance(part.len() as u64);
            // A single document has no other to be told from.
            if part.len() < 2 {
                continue;
            }
            let chosen: Vec<u32> = part.iter().map(|&i| documents[i as usize]).collect();
            let loss = self.step(&chosen, epoch)?;
            if !loss.is_finite() {
                return Err(Error::input(
                    format!("training, epoch {epoch}"),
                    format!(
                        "the loss is not a finite number: training diverged. Lower learning_rate (now {}), or check that the embeddings are finite",
                        config.learning_rate
                    ),
                ));
            }
            total += loss * part.len() as f64;
        }
        Ok(total / documents.len() as f64)
    }
}

/// The pass over token states an epoch reads: the clean one first and for measurements, then those with dropout in turn.
fn pass(config: &MethodConfig, epoch: usize) -> usize {
    let first = if config.clean_first_epoch { 2 } else { 1 };
    if config.passes == 0 || epoch < first || epoch == UNSEEN {
        return 0;
    }
    1 + (epoch - first) % config.passes
}

/// Scores of labelled queries. Codes of the documents are laid out in `order`, which decides between equal distances.
fn score(built: &Built, codes: &[u8], order: &[u32], set: &Validation) -> Result<Scores> {
    let bytes = built.codebooks.shape().code_bytes();
    let laid: Vec<u8> = order.iter().flat_map(|&d| codes[d as usize * bytes..][..bytes].iter().copied()).collect();
    let flat = Flat::new(built.codebooks.shape(), laid)?;
    let queries = projected(&built.front, &built.projection, set.queries)?;
    let found = code_search(&flat, &built.codebooks, &queries, built.distance, DEPTH)?;
    Scores::of(&found, set.query_labels, &set.document_labels.select(order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::TermRows;

    #[test]
    fn the_second_first_layer_reads_tfidf_weights_of_terms() {
        let vocabulary =
            engine::encoder::Vocabulary::new(vec!["a".into(), "b".into(), "c".into()], vec![1.0, 2.0, 3.0]);
        let tokens = vec![vec![0, 0, 1], vec![2], vec![1, 2]];
        let terms = TermRows::new(vocabulary.unwrap().into(), Weighting::Presence, tokens);
        let inputs = Inputs::Terms(terms);
        let config = MethodConfig { components: 2, ..MethodConfig::named("bmsh", 16).unwrap() };
        let network = crate::bmsh::Bmsh::new(&config, 3);
        let mut learner = Learner::new(&network, &config, &inputs, None, &engine::NoProgress);
        let first_layers = |learner: &Learner| {
            let (rows, weighted) = (learner.rows(&[0], 1), learner.weighted_rows(&[0]).unwrap());
            values(learner.first_layers(&rows, Some(&Rows::Terms(weighted.iter().collect()))).inner())
        };
        let a = first_layers(&learner);
        assert_eq!(a.len(), 16 + 2);
        // Twice a, once b: weights 2 * 1 and 1 * 2, scaled to unit length. The bits read 1 and 1.
        let root = 0.5f32.sqrt();
        let second = &learner.weighted.as_ref().unwrap().weight.values;
        for o in 0..2 {
            let expected = root * (second[o] + second[2 + o]);
            assert!((a[16 + o] - expected).abs() < 1e-6, "{o}: {} {expected}", a[16 + o]);
        }
        let first = &learner.entry.weight.values;
        assert!((0..16).all(|o| (a[o] - first[o] - first[16 + o]).abs() < 1e-6));
        // A step updates both.
        let before = (learner.entry.clone(), learner.weighted.clone().unwrap());
        learner.step(&[0, 1, 2], 1).unwrap();
        assert_ne!(learner.entry.weight, before.0.weight);
        assert_ne!(learner.weighted.as_ref().unwrap().weight, before.1.weight);
        assert_eq!(learner.built().unwrap().0.codebooks.shape().bits(), 16);
    }

    #[test]
    fn passes_with_dropout_alternate_after_a_clean_one() {
        let epochs = [1, 2, 3, 4, 5, UNSEEN];
        let clean = MethodConfig::named("dhim", 16).unwrap();
        assert_eq!(epochs.map(|epoch| pass(&clean, epoch)), [0; 6]);
        let three = MethodConfig { passes: 3, ..clean };
        assert_eq!(epochs.map(|epoch| pass(&three, epoch)), [0, 1, 2, 3, 1, 0]);
        let at_once = MethodConfig { clean_first_epoch: false, ..three };
        assert_eq!(epochs.map(|epoch| pass(&at_once, epoch)), [1, 2, 3, 1, 2, 0]);
    }
}
