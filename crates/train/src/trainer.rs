//! A training run: epochs of steps, validation after each, and the model of the best epoch.

use std::path::Path;
use std::time::Instant;

use engine::encoder::EmbeddingConfig;
use engine::model::{Codebooks, Model, ModelConfig, Projection};
use engine::{Error, Progress, Result};
use serde::Serialize;

use crate::checkpoint::{Best, Checkpoint, Epoch, State};
use crate::config::TrainConfig;
use crate::gpu::Gpu;
use crate::metrics::{Precision, Usage};
use crate::parameters::{Moments, Parameters, Sizes};
use crate::random::{Purpose, Stream};
use crate::selection::{Validation, ValidationMetric, Validator};
use crate::step::{Losses, Noise, Workspace};
use crate::views::{Draw, Views};

/// Norm that `clip_first_step` clips the first gradient to.
const FIRST_GRADIENT_NORM: f64 = 10.0;
/// Steps on the CPU between two reports of the loss.
const CPU_DETAIL_STEPS: usize = 16;
/// Steps on the GPU between two readings of the losses.
const GPU_LOSS_STEPS: usize = 64;
/// A run counts as collapsed only after this many epochs and updates: at the start nearly all documents share one codeword.
const MIN_COLLAPSE_EPOCHS: usize = 5;
const MIN_COLLAPSE_UPDATES: u64 = 500;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stopped {
    /// The validation metric did not improve for more than `patience` epochs.
    Patience,
    Epochs,
    Interrupted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrainSeconds {
    pub training: f64,
    pub validation: f64,
}

/// The record of a run, for `metrics.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metrics {
    /// Name of the validation metric.
    pub selection: &'static str,
    /// Best value of the validation metric.
    pub best: f64,
    /// Epoch of the model, counted from 1.
    pub best_epoch: usize,
    pub epochs: usize,
    /// Precision on labelled validation queries, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Mean average precision on labelled validation queries, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<f64>,
    pub codewords: Usage,
    pub documents: usize,
    /// Name of the GPU; `None` for a run on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    pub stopped: Stopped,
    pub seconds: TrainSeconds,
    pub curve: Vec<Epoch>,
}

/// The result of a run.
pub struct Outcome {
    pub projection: Projection,
    pub codebooks: Codebooks,
    pub metrics: Metrics,
    /// Whether the user stopped the run. The model is then the best of the finished epochs.
    pub interrupted: bool,
}

impl Outcome {
    /// The model. `embedding` tells how an encoder computes its inputs; `None` for user vectors.
    pub fn model(&self, config: &TrainConfig, embedding: Option<EmbeddingConfig>) -> Result<Model> {
        let record = ModelConfig {
            format: engine::model::FORMAT,
            method: "micpq".into(),
            shape: self.codebooks.shape(),
            distance: config.distance,
            embedding,
            training: serde_json::to_value(config).expect("options have a JSON form"),
        };
        Model::new(record, self.projection.clone(), self.codebooks.clone())
    }
}

/// A training run of one model.
pub struct TrainRun<'a> {
    config: &'a TrainConfig,
    views: &'a dyn Views,
    validation: Validation<'a>,
    gpu: Option<&'a cuda::Device>,
    checkpoint: Option<&'a Path>,
}

impl<'a> TrainRun<'a> {
    /// On a CPU, with documents held out for validation, from the beginning.
    pub fn new(config: &'a TrainConfig, views: &'a dyn Views) -> Self {
        TrainRun { config, views, validation: Validation::HeldOut, gpu: None, checkpoint: None }
    }

    pub fn validation(self, validation: Validation<'a>) -> Self {
        TrainRun { validation, ..self }
    }

    /// Trains on this GPU if the model fits on it.
    pub fn gpu(self, gpu: Option<&'a cuda::Device>) -> Self {
        TrainRun { gpu, ..self }
    }

    /// Saves the state in this directory after every epoch. The same run then resumes after it was killed and ends in the same
    /// model, byte for byte.
    pub fn checkpoint(self, checkpoint: Option<&'a Path>) -> Self {
        TrainRun { checkpoint, ..self }
    }

    /// Trains the model. When interrupted, it returns the best model of the finished epochs, or [`Error::Interrupted`] when no
    /// epoch is finished.
    pub fn train(self, progress: &dyn Progress) -> Result<Outcome> {
        train(self, progress)
    }
}

fn train(run: TrainRun, progress: &dyn Progress) -> Result<Outcome> {
    let TrainRun { config, views, validation, gpu, checkpoint } = run;
    config.validate()?;
    let sizes = config.sizes(views.width())?;
    let validator = Validator::new(config, views, validation)?;
    let documents = validator.training_documents();
    if documents.len() < 2 {
        let problem = format!(
            "there are {} to train on; the contrastive loss needs at least two, and one more is held out",
            documents.len()
        );
        return Err(Error::input("documents", problem));
    }
    if config.slices && sizes.inputs.min(sizes.hidden) < sizes.code.num_codebooks() {
        return Err(Error::option(
            "slices",
            format!(
                "is true, but {} codebooks cannot each have a part of {} values and {} hidden ones",
                sizes.code.num_codebooks(),
                sizes.inputs,
                sizes.hidden
            ),
        ));
    }
    let on_gpu = |device| {
        if config.slices {
            return Err("a projection by slices has no GPU kernels".to_owned());
        }
        Gpu::new(device, config, sizes).map_err(|problem| problem.to_string())
    };
    let gpu = gpu.and_then(|device| match on_gpu(device) {
        Ok(gpu) => Some(gpu),
        Err(problem) => {
            progress.note(&format!("training on the CPU: {problem}"));
            None
        }
    });
    let checkpoint = match checkpoint {
        Some(dir) => Some(Checkpoint::open(dir, fingerprint(config, views, &validator, gpu.is_some()))?),
        None => None,
    };
    let saved = checkpoint.as_ref().map(|c| c.load(sizes)).transpose()?.flatten();
    if let Some(state) = &saved {
        progress.note(&format!("resuming after epoch {} of an earlier run", state.epoch));
    }
    let state = saved.unwrap_or_else(|| initial_state(sizes, config));
    let executor = match gpu {
        None => Executor::Cpu(Box::new(Cpu { gradient: Parameters::zeros(sizes), workspace: Workspace::default() })),
        Some(mut gpu) => {
            gpu.load(&state.parameters, &state.moments)?;
            Executor::Gpu(Box::new(gpu))
        }
    };
    let mut run = Run { config, views, validator, documents, executor, embeddings: Vec::new(), state };
    let stopped = run.epochs(checkpoint.as_ref(), progress)?;
    run.finish(stopped, progress)
}

/// Everything that decides the states of a run. The number of epochs does not.
fn fingerprint(config: &TrainConfig, views: &dyn Views, validator: &Validator, gpu: bool) -> String {
    let deciding = TrainConfig { epochs: 0, patience: 0, ..config.clone() };
    let text = serde_json::to_string(&deciding).expect("options have a JSON form");
    // A GPU sums in another order.
    let executor = if gpu { " cuda" } else { "" };
    format!("{text} {} {}{executor}", views.fingerprint(), validator.fingerprint())
}

fn initial_state(sizes: Sizes, config: &TrainConfig) -> State {
    let init = if config.slices { Parameters::init_slices } else { Parameters::init };
    State {
        parameters: init(sizes, config.seed),
        moments: Moments::zeros(sizes.len()),
        epoch: 0,
        stale: 0,
        best: None,
        curve: Vec::new(),
        training_seconds: 0.0,
        validation_seconds: 0.0,
    }
}

struct Run<'a> {
    config: &'a TrainConfig,
    views: &'a dyn Views,
    validator: Validator<'a>,
    documents: Vec<u32>,
    executor: Executor,
    // Two views of the current batch, [2, batch, width].
    embeddings: Vec<f32>,
    state: State,
}

/// Computes the steps.
enum Executor {
    Cpu(Box<Cpu>),
    Gpu(Box<Gpu>),
}

/// Buffers of steps on the CPU.
struct Cpu {
    gradient: Parameters<f32>,
    workspace: Workspace<f32>,
}

impl Cpu {
    /// One step and its update. A loss that is not finite updates nothing.
    fn step(&mut self, config: &TrainConfig, state: &mut State, embeddings: &[f32]) -> Losses {
        let noise = Noise::Drawn { seed: config.seed, step: state.moments.updates };
        let losses = self.workspace.step(&state.parameters, &config.objective, embeddings, noise, &mut self.gradient);
        if losses.loss.is_finite() {
            if config.slices {
                self.gradient.keep_slices();
            }
            if clips(config, state) {
                self.gradient.clip(FIRST_GRADIENT_NORM);
            }
            state.moments.update(&mut state.parameters, &self.gradient, config.learning_rate);
        }
        losses
    }
}

/// Queues one step and its update on the GPU. `share` and `number` are those of [`Gpu::step`].
fn queue_step(
    gpu: &mut Gpu,
    config: &TrainConfig,
    state: &mut State,
    embeddings: &[f32],
    share: f64,
    number: u64,
) -> Result<()> {
    gpu.step(embeddings, config.seed, state.moments.updates, share, number)?;
    if clips(config, state) {
        gpu.clip(state.parameters.sizes, FIRST_GRADIENT_NORM)?;
    }
    state.moments.updates += 1;
    gpu.update(config.learning_rate, state.moments.updates)
}

/// Whether the gradient of the next update is clipped.
fn clips(config: &TrainConfig, state: &State) -> bool {
    config.clip_first_step && state.moments.updates == 0
}

impl Run<'_> {
    /// Runs epochs until one of the reasons to stop, and saves the state after each.
    fn epochs(&mut self, checkpoint: Option<&Checkpoint>, progress: &dyn Progress) -> Result<Stopped> {
        loop {
            if self.state.stale > self.config.patience {
                return Ok(Stopped::Patience);
            }
            if self.state.epoch >= self.config.epochs {
                return Ok(Stopped::Epochs);
            }
            match self.epoch(progress) {
                Ok(()) => {}
                Err(Error::Interrupted) => return Ok(Stopped::Interrupted),
                Err(other) => return Err(other),
            }
            if let Some(checkpoint) = checkpoint {
                checkpoint.save(&self.state)?;
            }
        }
    }

    /// One epoch and its validation. An interrupted epoch is lost; the best model is then one of the epochs before.
    fn epoch(&mut self, progress: &dyn Progress) -> Result<()> {
        let number = self.state.epoch + 1;
        let start = Instant::now();
        progress.stage(&format!("epoch {number} of {}", self.config.epochs), Some(self.documents.len() as u64));
        let losses = self.steps(number, progress)?;
        if let Executor::Gpu(gpu) = &self.executor {
            gpu.save(&mut self.state.parameters, &mut self.state.moments)?;
        }
        let training_seconds = start.elapsed().as_secs_f64();
        let (metric, usage) = self.validate(number)?;
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let seconds = start.elapsed().as_secs_f64();
        self.state.training_seconds += training_seconds;
        self.state.validation_seconds += seconds - training_seconds;
        let collapsed =
            usage.collapsed() && number >= MIN_COLLAPSE_EPOCHS && self.state.moments.updates >= MIN_COLLAPSE_UPDATES;
        let epoch = Epoch {
            epoch: number,
            losses,
            validation: metric.value,
            codewords: usage.mean_used(),
            distinct: usage.distinct,
            seconds,
        };
        let codebook_size = usage.codebook_size;
        let better = self.record(epoch.clone(), metric, usage);
        progress.note(&self.epoch_note(&epoch, codebook_size, better));
        if collapsed { Err(self.collapse_error(number)) } else { Ok(()) }
    }

    /// The steps of an epoch; returns the mean losses.
    fn steps(&mut self, number: usize, progress: &dyn Progress) -> Result<Losses> {
        let config = self.config;
        let order = Stream::new(config.seed, Purpose::Shuffle, &[number as u64]).permutation(self.documents.len());
        let order: Vec<u32> = order.into_iter().map(|i| self.documents[i as usize]).collect();
        let mut total = Losses::default();
        for (i, batch) in order.chunks(config.batch).enumerate() {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            progress.advance(batch.len() as u64);
            // One document has no negatives: a last batch of one contributes nothing.
            if batch.len() < 2 {
                continue;
            }
            self.gather(number, batch);
            let share = batch.len() as f64 / order.len() as f64;
            let shown = match &mut self.executor {
                Executor::Cpu(cpu) => {
                    let losses = cpu.step(config, &mut self.state, &self.embeddings);
                    if !losses.loss.is_finite() {
                        return Err(self.divergence_error(number, i, batch));
                    }
                    total.loss += share * losses.loss;
                    total.contrastive += share * losses.contrastive;
                    total.information += share * losses.information;
                    (i % CPU_DETAIL_STEPS == 0).then_some(losses)
                }
                Executor::Gpu(gpu) => {
                    queue_step(gpu, config, &mut self.state, &self.embeddings, share, i as u64 + 1)?;
                    // Reading the losses waits for the queued steps, so it is done rarely.
                    if i % GPU_LOSS_STEPS == GPU_LOSS_STEPS - 1 {
                        let sums = self.gpu_losses(number, &order, false)?;
                        let done = ((i + 1) * config.batch) as f64 / order.len() as f64;
                        Some(Losses {
                            loss: sums.loss / done,
                            contrastive: sums.contrastive / done,
                            information: sums.information / done,
                        })
                    } else {
                        None
                    }
                }
            };
            if let Some(losses) = shown {
                progress.detail(&format!(
                    "loss {:.3} (contrastive {:.3}, information {:.3})",
                    losses.loss, losses.contrastive, losses.information
                ));
            }
        }
        match self.executor {
            Executor::Cpu(_) => Ok(total),
            Executor::Gpu(_) => self.gpu_losses(number, &order, true),
        }
    }

    /// Sums of the losses of an epoch's steps on the GPU so far. The `end` of the epoch clears them.
    fn gpu_losses(&mut self, number: usize, order: &[u32], end: bool) -> Result<Losses> {
        let Executor::Gpu(gpu) = &mut self.executor else { unreachable!("the CPU returns the losses of each step") };
        let (sums, failed) = gpu.losses(end)?;
        let Some(step) = failed else { return Ok(sums) };
        let step = step as usize - 1;
        let batch = order.chunks(self.config.batch).nth(step).expect("a step of this epoch");
        self.gather(number, batch);
        Err(self.divergence_error(number, step, batch))
    }

    /// Writes two views of a batch to `embeddings`.
    fn gather(&mut self, number: usize, batch: &[u32]) {
        let half = batch.len() * self.views.width();
        self.embeddings.resize(2 * half, 0.0);
        if number == 1 && self.config.clean_first_epoch {
            let (first, second) = self.embeddings.split_at_mut(half);
            self.views.clean(batch, first);
            second.copy_from_slice(first);
        } else {
            let draw = Draw { seed: self.config.seed, epoch: number as u64 };
            self.views.pair(batch, draw, &mut self.embeddings);
        }
    }

    /// The validation metric of the current parameters, and their codeword usage.
    fn validate(&mut self, number: usize) -> Result<(ValidationMetric, Usage)> {
        let (projection, codebooks) = self.state.parameters.model_parts().map_err(|e| {
            Error::input(
                format!("training, epoch {number}"),
                format!("{e}: the run has diverged; lower learning_rate (now {})", self.config.learning_rate),
            )
        })?;
        self.validator.measure(&projection, &codebooks, &mut |clean| match &mut self.executor {
            Executor::Cpu(_) => Ok(codebooks.assign(&projection.apply(clean)?)),
            Executor::Gpu(gpu) => gpu.codes(clean),
        })
    }

    /// Adds a finished epoch to the state. Returns whether it is the best so far.
    fn record(&mut self, epoch: Epoch, metric: ValidationMetric, usage: Usage) -> bool {
        let state = &mut self.state;
        state.epoch = epoch.epoch;
        let better = state.best.as_ref().is_none_or(|best| self.validator.improves(metric.value, best.metric));
        if better {
            state.best = Some(Best {
                epoch: epoch.epoch,
                metric: metric.value,
                scores: metric.scores,
                usage,
                parameters: state.parameters.values.clone(),
            });
            state.stale = 0;
        } else {
            state.stale += 1;
        }
        state.curve.push(epoch);
        better
    }

    fn epoch_note(&self, epoch: &Epoch, codebook_size: usize, better: bool) -> String {
        let seconds_so_far = self.state.training_seconds + self.state.validation_seconds;
        let seconds_left = (self.config.epochs - epoch.epoch) as f64 * seconds_so_far / epoch.epoch as f64;
        format!(
            "epoch {}: loss {:.3} (contrastive {:.3}, information {:.3}), {} {:.2}{}, {:.1} of {codebook_size} codewords used, \
             {:.1} s, at most {} left",
            epoch.epoch,
            epoch.losses.loss,
            epoch.losses.contrastive,
            epoch.losses.information,
            self.validator.name(),
            epoch.validation,
            if better { " (best)" } else { "" },
            epoch.codewords,
            epoch.seconds,
            duration(seconds_left)
        )
    }

    fn collapse_error(&self, epoch: usize) -> Error {
        let objective = &self.config.objective;
        Error::input(
            format!("training, epoch {epoch}"),
            format!(
                "the codebooks have collapsed: most of them assign the same codeword to every document. Raise prob_weight \
                 (now {}), lower learning_rate (now {}) or tau (now {}), or check whether the embeddings differ at all",
                objective.prob_weight, self.config.learning_rate, objective.tau
            ),
        )
    }

    /// Why the loss of a batch in `embeddings` is not finite. `step` counts from 0.
    fn divergence_error(&self, epoch: usize, step: usize, batch: &[u32]) -> Error {
        let origin = format!("training, epoch {epoch}, step {}", step + 1);
        let width = self.views.width();
        match self.embeddings.chunks_exact(width).position(|row| !row.iter().all(|v| v.is_finite())) {
            Some(row) => {
                let document = batch[row % batch.len()];
                Error::input(
                    origin,
                    format!(
                        "the embedding of document {document} holds a value that is not a finite number; check the \
                         document, or use another encoder"
                    ),
                )
            }
            None => Error::input(
                origin,
                format!(
                    "the loss is not a finite number: the run has diverged. Lower learning_rate (now {}), or scale the \
                     embeddings to unit length",
                    self.config.learning_rate
                ),
            ),
        }
    }

    fn finish(self, stopped: Stopped, progress: &dyn Progress) -> Result<Outcome> {
        let interrupted = stopped == Stopped::Interrupted;
        let state = self.state;
        let Some(best) = state.best else { return Err(Error::Interrupted) };
        let parameters = Parameters { sizes: state.parameters.sizes, values: best.parameters };
        let (projection, codebooks) = parameters.model_parts()?;
        if interrupted {
            progress.note(&format!("stopped in epoch {}; the model is from epoch {}", state.epoch + 1, best.epoch));
        }
        if best.usage.collapsed() {
            progress.note(
                "most codebooks assign the same codeword to every document: train longer, on more documents, or raise \
                 prob_weight",
            );
        }
        let metrics = Metrics {
            selection: self.validator.name(),
            best: best.metric,
            best_epoch: best.epoch,
            epochs: state.epoch,
            precision: best.scores.map(|s| s.precision),
            map: best.scores.map(|s| s.map),
            codewords: best.usage,
            documents: self.documents.len(),
            gpu: match &self.executor {
                Executor::Cpu(_) => None,
                Executor::Gpu(gpu) => Some(gpu.name().to_owned()),
            },
            stopped,
            seconds: TrainSeconds { training: state.training_seconds, validation: state.validation_seconds },
            curve: state.curve,
        };
        Ok(Outcome { projection, codebooks, metrics, interrupted })
    }
}

fn duration(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else if seconds < 5400.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

#[cfg(test)]
#[path = "trainer_tests.rs"]
mod tests;
