//! The run: epochs of steps, a figure after each, the best model kept.

use std::path::Path;
use std::time::Instant;

use micpq::model::{Codebooks, FeatureConfig, Model, ModelConfig, Refine};
use micpq::{Error, Result, Watch};
use serde::Serialize;

use crate::checkpoint::{Best, Checkpoint, Epoch, State};
use crate::config::TrainConfig;
use crate::gpu::Gpu;
use crate::metrics::{Precision, Usage};
use crate::parameters::{Moments, Parameters};
use crate::random::{Purpose, Stream};
use crate::selection::{Judge, Validation};
use crate::step::{Losses, Noise, Workspace};
use crate::views::{Draw, Views};

/// Length the first gradient is clipped to, where that is asked for.
const CLIP: f64 = 10.0;
/// Steps on a GPU after which their losses are looked at.
const LOOKED_AFTER: usize = 64;
/// Before so many epochs and updates a code may still be finding its words: at the start nearly all documents share one.
const SETTLED_EPOCHS: usize = 5;
const SETTLED_UPDATES: u64 = 500;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stopped {
    /// The figure had not improved for longer than `patience`.
    Patience,
    /// All epochs were run.
    Epochs,
    /// The user asked.
    Interrupted,
}

/// Seconds of each part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrainSeconds {
    /// Steps.
    pub training: f64,
    /// Measuring after each epoch.
    pub validation: f64,
}

/// The record of a run, for `metrics.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metrics {
    /// What epochs were compared by.
    pub selection: &'static str,
    /// The best of it.
    pub best: f64,
    /// The epoch it was reached in: the model's.
    pub best_epoch: usize,
    /// Epochs run.
    pub epochs: usize,
    /// Precision on the validation queries, in percent, where they had labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Mean average precision of them, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<f64>,
    /// How the documents' codes use the books.
    pub codewords: Usage,
    /// Documents trained on.
    pub documents: usize,
    /// The GPU the steps ran on, where one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Why it ended.
    pub stopped: Stopped,
    /// Where the time went.
    pub seconds: TrainSeconds,
    /// Every epoch.
    pub curve: Vec<Epoch>,
}

/// What a run leaves.
pub struct Outcome {
    /// The learned layers.
    pub refine: Refine,
    /// The learned books.
    pub codebooks: Codebooks,
    /// The record.
    pub metrics: Metrics,
    /// Whether the user stopped it; the model is then the best of the epochs that were finished.
    pub interrupted: bool,
}

impl Outcome {
    /// The model, with how its vectors come about where an encoder made them.
    pub fn model(&self, config: &TrainConfig, features: Option<FeatureConfig>) -> Result<Model> {
        let record = ModelConfig {
            format: micpq::model::FORMAT,
            method: "micpq".into(),
            shape: self.codebooks.shape(),
            distance: config.distance,
            features,
            training: serde_json::to_value(config).expect("options have a JSON form"),
        };
        Model::new(record, self.refine.clone(), self.codebooks.clone())
    }
}

/// Trains a model, on a GPU where one is given and has room for it.
///
/// With a `checkpoint` directory the state is kept after every epoch, and the same call goes on where a killed one stopped,
/// to the same model byte for byte. Asked to stop, it returns the best model of the epochs finished, or
/// [`Error::Interrupted`] when there is none yet.
pub fn train(
    gpu: Option<&cuda::Device>,
    config: &TrainConfig,
    views: &dyn Views,
    validation: Validation,
    checkpoint: Option<&Path>,
    watch: &dyn Watch,
) -> Result<Outcome> {
    config.validate()?;
    let sizes = config.sizes(views.width())?;
    let judge = Judge::new(config, views, validation)?;
    let documents = judge.training_documents();
    if documents.len() < 2 {
        let problem = format!("{} to train on: contrast needs at least two, and one more is held out", documents.len());
        return Err(Error::input("documents", problem));
    }
    let gpu = gpu.and_then(|device| match Gpu::new(device, config, sizes) {
        Ok(gpu) => Some(gpu),
        Err(problem) => {
            watch.note(&format!("training on the CPU: {problem}"));
            None
        }
    });
    let checkpoint = match checkpoint {
        Some(dir) => Some(Checkpoint::open(dir, fingerprint(config, views, &judge, gpu.is_some()))?),
        None => None,
    };
    let fresh = || State {
        parameters: Parameters::init(sizes, config.seed),
        moments: Moments::zeros(sizes.len()),
        epoch: 0,
        stale: 0,
        best: None,
        curve: Vec::new(),
        training_seconds: 0.0,
        validation_seconds: 0.0,
    };
    let kept = checkpoint.as_ref().map(|c| c.load(sizes)).transpose()?.flatten();
    if let Some(state) = &kept {
        watch.note(&format!("going on after epoch {} of an earlier run", state.epoch));
    }
    let state = kept.unwrap_or_else(fresh);
    let mut run = Run {
        config,
        views,
        judge,
        documents,
        place: match gpu {
            None => Place::Cpu(Box::new(Cpu { gradient: Parameters::zeros(sizes), workspace: Workspace::default() })),
            Some(mut gpu) => {
                gpu.load(&state.parameters, &state.moments)?;
                Place::Gpu(Box::new(gpu))
            }
        },
        features: Vec::new(),
        state,
    };
    let stopped = loop {
        if run.state.stale > config.patience {
            break Stopped::Patience;
        }
        if run.state.epoch >= config.epochs {
            break Stopped::Epochs;
        }
        match run.epoch(watch) {
            Ok(()) => {}
            Err(Error::Interrupted) => break Stopped::Interrupted,
            Err(other) => return Err(other),
        }
        if let Some(checkpoint) = &checkpoint {
            checkpoint.save(&run.state)?;
        }
    };
    run.finish(stopped, watch)
}

/// Everything that decides the states a run passes through; how many of them it makes does not.
fn fingerprint(config: &TrainConfig, views: &dyn Views, judge: &Judge, gpu: bool) -> String {
    let deciding = TrainConfig { epochs: 0, patience: 0, ..config.clone() };
    let text = serde_json::to_string(&deciding).expect("options have a JSON form");
    // A GPU sums in another order.
    let place = if gpu { " cuda" } else { "" };
    format!("{text} {} {}{place}", views.fingerprint(), judge.fingerprint())
}

struct Run<'a> {
    config: &'a TrainConfig,
    views: &'a dyn Views,
    judge: Judge<'a>,
    documents: Vec<u32>,
    place: Place,
    features: Vec<f32>,
    state: State,
}

/// Where steps are computed.
enum Place {
    Cpu(Box<Cpu>),
    Gpu(Box<Gpu>),
}

/// The buffers of steps on the CPU.
struct Cpu {
    gradient: Parameters<f32>,
    workspace: Workspace<f32>,
}

impl Run<'_> {
    /// One epoch and its figure. Interrupted, the epoch is lost: the best model is that of the epochs before.
    fn epoch(&mut self, watch: &dyn Watch) -> Result<()> {
        let number = self.state.epoch + 1;
        let start = Instant::now();
        watch.stage(&format!("epoch {number} of {}", self.config.epochs), Some(self.documents.len() as u64));
        let losses = self.steps(number, watch)?;
        if let Place::Gpu(gpu) = &self.place {
            gpu.save(&mut self.state.parameters, &mut self.state.moments)?;
        }
        let trained = start.elapsed().as_secs_f64();
        let (refine, codebooks) = self.state.parameters.model_parts().map_err(|e| {
            Error::input(
                format!("training, epoch {number}"),
                format!("{e}: the run has diverged; lower the learning rate"),
            )
        })?;
        let (figure, usage) = self.judge.measure(&refine, &codebooks, &mut |clean| match &mut self.place {
            Place::Cpu(_) => Ok(codebooks.assign(&refine.apply(clean)?)),
            Place::Gpu(gpu) => gpu.codes(clean),
        })?;
        if watch.interrupted() {
            return Err(Error::Interrupted);
        }
        let seconds = start.elapsed().as_secs_f64();
        let state = &mut self.state;
        state.epoch = number;
        state.training_seconds += trained;
        state.validation_seconds += seconds - trained;
        let better = state.best.as_ref().is_none_or(|best| self.judge.improves(figure.value, best.figure));
        state.curve.push(Epoch {
            epoch: number,
            losses,
            validation: figure.value,
            codewords: usage.mean_used(),
            distinct: usage.distinct,
            seconds,
        });
        let collapsed = usage.collapsed() && number >= SETTLED_EPOCHS && state.moments.updates >= SETTLED_UPDATES;
        let words = format!("{:.1} of {} words used", usage.mean_used(), usage.words);
        if better {
            let (epoch, figure, scores) = (number, figure.value, figure.scores);
            state.best = Some(Best { epoch, figure, scores, usage, parameters: state.parameters.values.clone() });
            state.stale = 0;
        } else {
            state.stale += 1;
        }
        let left =
            (self.config.epochs - number) as f64 * (state.training_seconds + state.validation_seconds) / number as f64;
        watch.note(&format!(
            "epoch {number}: loss {:.3} (contrastive {:.3}, information {:.3}), {} {:.2}{}, {words}, {seconds:.1} s, at most {} left",
            losses.loss,
            losses.contrastive,
            losses.information,
            self.judge.name(),
            figure.value,
            if better { " (best)" } else { "" },
            duration(left)
        ));
        if collapsed {
            let o = &self.config.objective;
            return Err(Error::input(
                format!("training, epoch {number}"),
                format!(
                    "the codebooks have collapsed: most books give every document the same word. Raise prob_weight (now {}), \
                     lower learning_rate (now {}) or tau (now {}), or look whether the vectors differ at all",
                    o.prob_weight, self.config.learning_rate, o.tau
                ),
            ));
        }
        Ok(())
    }

    /// The steps of an epoch; returns the mean losses.
    fn steps(&mut self, number: usize, watch: &dyn Watch) -> Result<Losses> {
        let config = self.config;
        let order = Stream::new(config.seed, Purpose::Shuffle, &[number as u64]).permutation(self.documents.len());
        let order: Vec<u32> = order.into_iter().map(|i| self.documents[i as usize]).collect();
        let mut total = Losses::default();
        for (i, batch) in order.chunks(config.batch).enumerate() {
            if watch.interrupted() {
                return Err(Error::Interrupted);
            }
            watch.advance(batch.len() as u64);
            // One document has nothing to be told from: a last batch of one contributes nothing.
            if batch.len() < 2 {
                continue;
            }
            self.gather(number, batch);
            let (state, share) = (&mut self.state, batch.len() as f64 / order.len() as f64);
            let first = config.clip_first_step && state.moments.updates == 0;
            let losses = match &mut self.place {
                Place::Cpu(cpu) => {
                    let Cpu { gradient, workspace } = &mut **cpu;
                    let noise = Noise::Drawn { seed: config.seed, step: state.moments.updates };
                    let losses = workspace.step(&state.parameters, &config.objective, &self.features, noise, gradient);
                    if !losses.loss.is_finite() {
                        return Err(self.diverged(number, i, batch));
                    }
                    if first {
                        gradient.clip(CLIP);
                    }
                    state.moments.update(&mut state.parameters, gradient, config.learning_rate);
                    total.loss += share * losses.loss;
                    total.contrastive += share * losses.contrastive;
                    total.information += share * losses.information;
                    (i % 16 == 0).then_some(losses)
                }
                Place::Gpu(gpu) => {
                    gpu.step(&self.features, config.seed, state.moments.updates, share, i as u64 + 1)?;
                    if first {
                        gpu.clip(state.parameters.sizes, CLIP)?;
                    }
                    state.moments.updates += 1;
                    gpu.update(config.learning_rate, state.moments.updates)?;
                    // Asking waits for the steps on their way, and so is done now and then.
                    if i % LOOKED_AFTER == LOOKED_AFTER - 1 {
                        let sums = self.looked_at(number, &order, false)?;
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
            if let Some(losses) = losses {
                watch.detail(&format!(
                    "loss {:.3} (contrastive {:.3}, information {:.3})",
                    losses.loss, losses.contrastive, losses.information
                ));
            }
        }
        match self.place {
            Place::Cpu(_) => Ok(total),
            Place::Gpu(_) => self.looked_at(number, &order, true),
        }
    }

    /// Losses of an epoch's steps on a GPU so far; of all of them at its `end`.
    fn looked_at(&mut self, number: usize, order: &[u32], end: bool) -> Result<Losses> {
        let Place::Gpu(gpu) = &mut self.place else { unreachable!("the CPU's losses are known at once") };
        let (sums, failed) = gpu.losses(end)?;
        let Some(step) = failed else { return Ok(sums) };
        let step = step as usize - 1;
        let batch = order.chunks(self.config.batch).nth(step).expect("a step of this epoch");
        self.gather(number, batch);
        Err(self.diverged(number, step, batch))
    }

    /// Two views of a batch into `features`.
    fn gather(&mut self, number: usize, batch: &[u32]) {
        let half = batch.len() * self.views.width();
        self.features.resize(2 * half, 0.0);
        if number == 1 && self.config.clean_first_epoch {
            let (first, second) = self.features.split_at_mut(half);
            self.views.clean(batch, first);
            second.copy_from_slice(first);
        } else {
            let draw = Draw { seed: self.config.seed, epoch: number as u64 };
            self.views.pair(batch, draw, &mut self.features);
        }
    }

    fn diverged(&self, epoch: usize, step: usize, batch: &[u32]) -> Error {
        let place = format!("training, epoch {epoch}, step {}", step + 1);
        let width = self.views.width();
        match self.features.chunks_exact(width).position(|row| !row.iter().all(|v| v.is_finite())) {
            Some(row) => {
                let document = batch[row % batch.len()];
                Error::input(
                    place,
                    format!(
                        "the vector of document {document} holds a value that is not a finite number; look at the document, or use another encoder"
                    ),
                )
            }
            None => Error::input(
                place,
                format!(
                    "the loss is not a finite number: the run has diverged. Lower learning_rate (now {}), or scale the vectors \
                     to unit length",
                    self.config.learning_rate
                ),
            ),
        }
    }

    fn finish(self, stopped: Stopped, watch: &dyn Watch) -> Result<Outcome> {
        let interrupted = stopped == Stopped::Interrupted;
        let state = self.state;
        let Some(best) = state.best else { return Err(Error::Interrupted) };
        let parameters = Parameters { sizes: state.parameters.sizes, values: best.parameters };
        let (refine, codebooks) = parameters.model_parts()?;
        if interrupted {
            watch.note(&format!("stopped in epoch {}; the model is that of epoch {}", state.epoch + 1, best.epoch));
        }
        if best.usage.collapsed() {
            watch.note(
                "most books give every document the same word: train longer, on more documents, or raise prob_weight",
            );
        }
        let metrics = Metrics {
            selection: self.judge.name(),
            best: best.figure,
            best_epoch: best.epoch,
            epochs: state.epoch,
            precision: best.scores.map(|s| s.precision),
            map: best.scores.map(|s| s.map),
            codewords: best.usage,
            documents: self.documents.len(),
            gpu: match &self.place {
                Place::Cpu(_) => None,
                Place::Gpu(gpu) => Some(gpu.name().to_owned()),
            },
            stopped,
            seconds: TrainSeconds { training: state.training_seconds, validation: state.validation_seconds },
            curve: state.curve,
        };
        Ok(Outcome { refine, codebooks, metrics, interrupted })
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
