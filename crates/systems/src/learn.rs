//! The run of a learned system: epochs of steps, a figure after each, the best weights kept.

use std::time::Instant;

use micpq::model::{Codebooks, Dense, Distance};
use micpq::search::Flat;
use micpq::{Error, Matrix, Result, Watch};
use serde::Serialize;
use train::Labels;
use train::evaluate::code_search;
use train::metrics::{DEPTH, Scores, Usage};
use train::random::{Purpose, Stream};
use train::views::{Draw, Views};

use crate::config::SystemConfig;
use crate::entry::{Entry, Rows, Span};
use crate::graph::{Draws, Init, Loss, T2, Weight, number, tensor, values};
use crate::infomax::Gpu;
use crate::inputs::{Built, Inputs, centred, network, refined, signs};
use crate::yardstick::Row;

/// Draws of measurements: no step has a number this large.
const MEASURE: u64 = 1 << 60;
/// The epoch of measurements: its draw of views is one that no epoch makes.
const UNSEEN: usize = usize::MAX;

/// A batch, beside the output of its first layer.
pub struct Batch<'a> {
    rows: &'a Rows<'a>,
    // Of token states: tokens of every text but the first, and the states of the first, [n, width].
    lengths: Vec<usize>,
    firsts: Vec<f32>,
    /// Random draws of this step.
    pub draws: Draws,
}

impl<'a> Batch<'a> {
    /// Rows with the draws of a step.
    pub fn of(rows: &'a Rows<'a>, step: u64) -> Self {
        Batch { rows, lengths: Vec::new(), firsts: Vec::new(), draws: Draws::new(0, step) }
    }

    /// Token states with the draws of a step: how many tokens each text has without the first, and the states of those.
    #[cfg(test)]
    pub fn of_tokens(rows: &'a Rows<'a>, lengths: Vec<usize>, firsts: Vec<f32>, step: u64) -> Self {
        Batch { lengths, firsts, ..Batch::of(rows, step) }
    }

    /// Of token states: how many tokens each text has without the first, and the states of the first, `[n, width]`.
    pub fn tokens(&self) -> (&[usize], &[f32]) {
        (&self.lengths, &self.firsts)
    }

    /// Rows of the batch.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The sparse rows, where the inputs are words.
    pub fn words(&self) -> Option<&[&'a Row]> {
        match self.rows {
            Rows::Dense(_) | Rows::Windows(_) => None,
            Rows::Words(rows) => Some(rows),
        }
    }

    /// The vectors a decoder should give back, `[n, inputs]`.
    ///
    /// # Panics
    /// When the inputs are words or tokens.
    pub fn target(&self) -> T2 {
        match self.rows {
            Rows::Dense(x) => tensor(x.as_slice().to_vec(), x.rows(), x.cols()),
            Rows::Words(_) | Rows::Windows(_) => panic!("only vectors are given back as they are"),
        }
    }
}

/// A learned system: a first layer, weights behind it, a loss.
pub trait System: Send + Sync {
    /// Outputs of the first layer.
    fn outputs(&self) -> usize;

    /// Of those, how many the code is made from.
    fn used(&self) -> usize {
        self.outputs()
    }

    /// First values of the first layer.
    fn init(&self) -> Init {
        Init::Linear
    }

    /// The parts of the first layer's weight that are used, where it is not all of it.
    fn spans(&self) -> Option<Vec<Span>> {
        None
    }

    /// The weights behind the first layer.
    fn weights(&self) -> Vec<Weight>;

    /// The loss of a batch whose first layer gave `a [n, outputs]`.
    fn loss(&self, a: T2, w: &[T2], batch: &Batch) -> Loss;

    /// What is to be done to the weights before a step.
    fn adapt(&self, _a: &T2, _weights: &mut [Weight], _batch: &Batch) {}

    /// The layers a document passes behind the first, ReLU before each.
    fn layers(&self, _weights: &[Weight]) -> Result<Vec<Dense>> {
        Ok(Vec::new())
    }

    /// Whether bits are cut at their medians over the documents instead of at 0.
    fn medians(&self) -> bool {
        false
    }

    /// The words of the code, for documents refined to `refined`, and how codes are compared.
    fn books(&self, _weights: &[Weight], refined: &Matrix) -> Result<(Codebooks, Distance)> {
        Ok((signs(refined.cols())?, Distance::Hamming))
    }
}

/// What is known of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Epoch {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean over the epoch's documents.
    pub loss: f64,
    /// The validation figure.
    pub validation: f64,
    /// Seconds of training and of validation.
    pub seconds: f64,
}

/// Labelled queries by which epochs are compared.
pub struct Validation<'a> {
    /// The queries.
    pub queries: &'a Inputs,
    /// Their labels.
    pub query_labels: &'a Labels,
    /// Labels of the documents.
    pub document_labels: &'a Labels,
}

/// A finished run.
pub struct Learned {
    /// The best of its epochs.
    pub built: Built,
    /// What epochs were compared by.
    pub selection: &'static str,
    /// The best of it.
    pub best: f64,
    /// The epoch it was reached in.
    pub best_epoch: usize,
    /// Scores on the validation queries.
    pub scores: Option<Scores>,
    /// How documents' codes use the books.
    pub usage: Usage,
    /// Every epoch.
    pub curve: Vec<Epoch>,
    /// Whether the user stopped it.
    pub interrupted: bool,
}

/// A run under way.
pub struct Learner<'a> {
    system: &'a dyn System,
    config: &'a SystemConfig,
    inputs: &'a Inputs,
    views: Option<&'a dyn Views>,
    // With a GPU, entry and weights are as they last were asked for.
    gpu: Option<Gpu>,
    entry: Entry,
    weights: Vec<Weight>,
    updates: u64,
}

impl<'a> Learner<'a> {
    /// Before the first step. With `views` every batch holds two views of its documents.
    pub fn new(
        system: &'a dyn System,
        config: &'a SystemConfig,
        inputs: &'a Inputs,
        views: Option<&'a dyn Views>,
        watch: &dyn Watch,
    ) -> Self {
        let entry = Entry::new(inputs.width(), system.outputs(), system.init(), config.seed);
        let entry = match system.spans() {
            Some(spans) => entry.of_spans(spans),
            None => entry,
        };
        let weights = system.weights();
        let mut gpu = None;
        if let Inputs::Tokens(tokens) = inputs {
            match tokens.gpu().map(|device| Gpu::new(device, config, &entry, &weights)).transpose() {
                Ok(made) => gpu = made,
                Err(problem) => watch.note(&format!("training on the CPU: {problem}")),
            }
        }
        Learner { system, config, inputs, views, gpu, entry, weights, updates: 0 }
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
            (Inputs::Vectors(x), None) => {
                Rows::Dense(x.select(&documents.iter().map(|&d| d as usize).collect::<Vec<_>>()))
            }
            (Inputs::Words(words), None) => Rows::Words(documents.iter().map(|&d| &words.rows[d as usize]).collect()),
            (Inputs::Tokens(tokens), None) => Rows::Windows(tokens.scaled_windows(documents, pass(self.config, epoch))),
        }
    }

    /// The batch of some documents, whose first layer reads `rows`.
    fn batch<'r>(&self, rows: &'r Rows<'r>, documents: &[u32], epoch: usize, step: u64) -> Batch<'r> {
        let (mut lengths, mut firsts) = (Vec::new(), Vec::new());
        if let Inputs::Tokens(tokens) = self.inputs {
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
        let a = tensor(self.entry.forward(&rows), rows.len(), self.system.outputs());
        self.system.adapt(&a, &mut self.weights, &batch);
        let a = a.require_grad();
        let leaves: Vec<T2> = self.weights.iter().map(Weight::leaf).collect();
        let loss = self.system.loss(a.clone(), &leaves, &batch);
        let gradients = loss.backward();
        self.updates += 1;
        let (rate, update) = (self.config.learning_rate, self.updates);
        for (weight, leaf) in self.weights.iter_mut().zip(&leaves) {
            // What a system has taken out of its loss has no gradient.
            if let Some(gradient) = leaf.grad(&gradients) {
                weight.update(&values(gradient), rate, update);
            }
        }
        if let Some(slope) = a.grad(&gradients) {
            self.entry.update(&rows, &values(slope), rate, update);
        }
        Ok(number(&loss))
    }

    /// The loss of some documents without a step, always under the same draws.
    pub fn measure(&mut self, documents: &[u32]) -> Result<f64> {
        let mut total = 0.0;
        for (i, part) in documents.chunks(self.config.batch.max(2)).enumerate() {
            let rows = self.rows(part, UNSEEN);
            let batch = self.batch(&rows, part, UNSEEN, MEASURE + i as u64);
            if let (Some(gpu), Rows::Windows(windows)) = (&mut self.gpu, &rows) {
                // One text alone is told from none, on a GPU as in training.
                let loss = if part.len() > 1 { gpu.loss(windows, &batch.firsts, &batch.draws)? } else { 0.0 };
                total += loss * part.len() as f64;
                continue;
            }
            let a = tensor(self.entry.forward(&rows), rows.len(), self.system.outputs());
            let leaves: Vec<T2> = self.weights.iter().map(|w| w.leaf().detach()).collect();
            total += number(&self.system.loss(a, &leaves, &batch)) * part.len() as f64;
        }
        Ok(total / documents.len().max(1) as f64)
    }

    /// The model the weights amount to, and the documents refined by it.
    pub fn built(&mut self) -> Result<(Built, Matrix)> {
        if let Some(gpu) = &self.gpu {
            gpu.save(&mut self.entry, &mut self.weights)?;
        }
        let behind = self.system.layers(&self.weights)?;
        let folded = match self.inputs {
            Inputs::Tokens(tokens) => Some(tokens.scales().others.folded_entry(&self.entry)),
            _ => None,
        };
        let entry = folded.as_ref().unwrap_or(&self.entry);
        let (front, mut refine) = network(entry, self.system.used(), behind, self.inputs)?;
        let mut vectors = refined(&front, &refine, self.inputs)?;
        if self.system.medians() {
            refine = centred(refine, &vectors)?;
            vectors = refined(&front, &refine, self.inputs)?;
        }
        let (codebooks, distance) = self.system.books(&self.weights, &vectors)?;
        Ok((Built { front, refine, codebooks, distance }, vectors))
    }

    /// All epochs. Stopped by the user after at least one, it gives the best so far.
    pub fn run(mut self, validation: Option<&Validation>, watch: &dyn Watch) -> Result<Learned> {
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
            let loss = match self.epoch(epoch, &documents, watch) {
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
            watch.note(&format!(
                "epoch {epoch}: loss {loss:.3}, {selection} {figure:.3}{}, {:.1} of {} words used, {seconds:.1} s",
                if better { " (best)" } else { "" },
                usage.mean_used(),
                usage.words
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

    fn epoch(&mut self, epoch: usize, documents: &[u32], watch: &dyn Watch) -> Result<f64> {
        let config = self.config;
        watch.stage(&format!("epoch {epoch} of {}", config.epochs), Some(documents.len() as u64));
        let order = Stream::new(config.seed, Purpose::Shuffle, &[epoch as u64]).permutation(documents.len());
        let mut total = 0.0;
        for part in order.chunks(config.batch) {
            if watch.interrupted() {
                return Err(Error::Interrupted);
            }
            watch.advance(part.len() as u64);
            // One document has nothing to be told from.
            if part.len() < 2 {
                continue;
            }
            let chosen: Vec<u32> = part.iter().map(|&i| documents[i as usize]).collect();
            let loss = self.step(&chosen, epoch)?;
            if !loss.is_finite() {
                return Err(Error::input(
                    format!("training, epoch {epoch}"),
                    format!(
                        "the loss is not a finite number: the run has diverged. Lower learning_rate (now {}), or look whether the vectors are finite",
                        config.learning_rate
                    ),
                ));
            }
            total += loss * part.len() as f64;
        }
        Ok(total / documents.len() as f64)
    }
}

/// The pass over token states an epoch reads: the clean one first and for measurements, then those with dropout by turns.
fn pass(config: &SystemConfig, epoch: usize) -> usize {
    let first = if config.clean_first_epoch { 2 } else { 1 };
    if config.passes == 0 || epoch < first || epoch == UNSEEN {
        return 0;
    }
    1 + (epoch - first) % config.passes
}

/// Scores of labelled queries against documents of given codes, laid out in `order`.
fn score(built: &Built, codes: &[u8], order: &[u32], set: &Validation) -> Result<Scores> {
    let bytes = built.codebooks.shape().code_bytes();
    let laid: Vec<u8> = order.iter().flat_map(|&d| codes[d as usize * bytes..][..bytes].iter().copied()).collect();
    let flat = Flat::new(built.codebooks.shape(), laid)?;
    let queries = refined(&built.front, &built.refine, set.queries)?;
    let found = code_search(&flat, &built.codebooks, &queries, built.distance, DEPTH)?;
    Scores::of(&found, set.query_labels, &set.document_labels.select(order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Method;

    #[test]
    fn passes_with_dropout_come_by_turns_after_a_clean_one() {
        let epochs = [1, 2, 3, 4, 5, UNSEEN];
        let clean = SystemConfig::new(Method::Dhim, 16);
        assert_eq!(epochs.map(|epoch| pass(&clean, epoch)), [0; 6]);
        let three = SystemConfig { passes: 3, ..clean };
        assert_eq!(epochs.map(|epoch| pass(&three, epoch)), [0, 1, 2, 3, 1, 0]);
        let at_once = SystemConfig { clean_first_epoch: false, ..three };
        assert_eq!(epochs.map(|epoch| pass(&at_once, epoch)), [1, 2, 3, 1, 2, 0]);
    }
}
