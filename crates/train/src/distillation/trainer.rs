//! A run of distillation: a fixed number of steps on one cycle of the learning rate, saved every few steps.

use std::path::Path;
use std::time::Instant;

use engine::model::{Codebooks, Dense, Projection};
use engine::{Error, Matrix, Progress, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::pool::{Draws, Neighbours, RandomDraws};
use super::step::{Batch, DistilLosses, DistilObjective, DistilWorkspace};
use super::student::{Part, Student, input_factor};
use crate::checkpoint::Checkpoint;
use crate::parameters::Moments;
use crate::real::{Adam, Real};
use crate::views::{Draw, Views};

/// Steps between two checkpoints and two points of the curve.
const SAVE_STEPS: usize = 50;
/// Share of the steps in which the learning rate rises.
const WARM_UP: f64 = 0.15;
/// Values per task of an update.
const CHUNK: usize = 1 << 15;

/// Options of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistilConfig {
    pub objective: DistilObjective,
    /// Width of the residual's hidden layer.
    pub hidden: usize,
    pub steps: usize,
    /// Queries per step; every other one is a view.
    pub batch: usize,
    /// Float neighbours drawn into the pool for each query.
    pub neighbours: usize,
    /// Adam's learning rate at the top of its cycle.
    pub learning_rate: f64,
    pub seed: u64,
}

/// A point of the training curve: means over the steps since the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistilPoint {
    pub step: usize,
    #[serde(flatten)]
    pub losses: DistilLosses,
}

/// The result of a run.
pub struct Distilled {
    pub projection: Projection,
    pub codebooks: Codebooks,
    pub curve: Vec<DistilPoint>,
    /// Of all runs that led here through a checkpoint.
    pub seconds: f64,
    /// Whether the user stopped it before its last step.
    pub interrupted: bool,
}

/// The record of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    step: usize,
    curve: Vec<DistilPoint>,
    seconds: f64,
}

struct Run<'a> {
    config: &'a DistilConfig,
    // Clean embeddings, and views of the same documents.
    documents: &'a Matrix,
    views: &'a dyn Views,
    factor: f32,
    draws: Draws,
    neighbours: Neighbours,
    student: Student<f32>,
    moments: Moments<f32>,
    record: Record,
}

/// The distillation of float search over clean embeddings into a quantizer that starts at OPQ.
pub struct DistillationRun<'a> {
    config: &'a DistilConfig,
    opq: (&'a Dense, &'a Codebooks),
    documents: &'a Matrix,
    views: &'a dyn Views,
    checkpoint: Option<&'a Path>,
}

impl<'a> DistillationRun<'a> {
    /// `views` are of the same documents.
    pub fn new(
        config: &'a DistilConfig,
        opq: (&'a Dense, &'a Codebooks),
        documents: &'a Matrix,
        views: &'a dyn Views,
    ) -> Self {
        DistillationRun { config, opq, documents, views, checkpoint: None }
    }

    /// With a directory for its state, the same run resumes after it was killed and ends in the same model, byte for byte.
    pub fn checkpoint(self, checkpoint: Option<&'a Path>) -> Self {
        DistillationRun { checkpoint, ..self }
    }

    pub fn run(self, progress: &dyn Progress) -> Result<Distilled> {
        distil(self, progress)
    }
}

fn distil(distillation: DistillationRun, progress: &dyn Progress) -> Result<Distilled> {
    let DistillationRun { config, opq, documents, views, checkpoint } = distillation;
    let count = documents.rows();
    if count < 3 {
        let problem = format!("there are {count} to train on; a query is compared with others, so give at least 3");
        return Err(Error::input("documents", problem));
    }
    let factor = input_factor(documents);
    // At this scale OPQ's distances, of vectors of length 4, fall as the teacher's cosines do.
    let sharpness = 1.0 / (32.0 * config.objective.temperature);
    let student = Student::new(opq.0, opq.1, config.hidden, factor, sharpness, config.seed);
    let checkpoint = match checkpoint {
        Some(dir) => Some(Checkpoint::open(dir, fingerprint(config, documents, views, &student))?),
        None => None,
    };
    let moments = Moments::zeros(student.values.len());
    let record = Record { step: 0, curve: Vec::new(), seconds: 0.0 };
    let neighbours = Neighbours::find(documents, progress)?;
    let batch = config.batch.min(count);
    let random = RandomDraws { seed: config.seed, documents: count, batch, pool: batch };
    let draws = Draws { random, per_query: config.neighbours };
    let mut run = Run { config, documents, views, factor, draws, neighbours, student, moments, record };
    if let Some(checkpoint) = &checkpoint {
        run.resume(checkpoint, progress)?;
    }
    let interrupted = run.steps(checkpoint.as_ref(), progress)?;
    let (projection, codebooks) = run.student.model_parts(factor)?;
    Ok(Distilled { projection, codebooks, curve: run.record.curve, seconds: run.record.seconds, interrupted })
}

/// Everything that decides the states of a run.
fn fingerprint(config: &DistilConfig, documents: &Matrix, views: &dyn Views, student: &Student<f32>) -> String {
    let text = serde_json::to_string(config).expect("options have a JSON form");
    let sum = |values: &mut dyn Iterator<Item = f32>| {
        let mut hash = crc32fast::Hasher::new();
        values.for_each(|v| hash.update(&v.to_le_bytes()));
        hash.finalize()
    };
    let start = sum(&mut student.values.iter().copied());
    let documents = sum(&mut documents.as_slice().iter().copied());
    format!("distillation {text} {} {start:08x} {documents:08x}", views.fingerprint())
}

impl Run<'_> {
    fn resume(&mut self, checkpoint: &Checkpoint, progress: &dyn Progress) -> Result<()> {
        let names = ["parameters", "first", "second"];
        let Some((record, values)) = checkpoint.read::<Record, 3>(names, self.student.values.len())? else {
            return Ok(());
        };
        progress.note(&format!("resuming after step {} of an earlier run", record.step));
        let [parameters, first, second] = values;
        self.student.values = parameters;
        self.moments = Moments { first, second, updates: record.step as u64 };
        self.record = record;
        Ok(())
    }

    /// Runs the steps that are left. Returns whether the user stopped them.
    fn steps(&mut self, checkpoint: Option<&Checkpoint>, progress: &dyn Progress) -> Result<bool> {
        let steps = self.config.steps;
        progress.stage("distilling", Some(steps as u64));
        progress.advance(self.record.step as u64);
        let (mut workspace, mut gradient) = (DistilWorkspace::default(), Student::zeros(self.student.sizes));
        let mut sums = DistilLosses::default();
        let mut begun = Instant::now();
        for number in self.record.step..steps {
            if progress.interrupted() {
                // Without a point of the curve there is no model worth having.
                return if self.record.curve.is_empty() { Err(Error::Interrupted) } else { Ok(true) };
            }
            let losses = self.step(number, &mut workspace, &mut gradient)?;
            self.update(&gradient, rate(self.config.learning_rate, number, steps));
            progress.advance(1);
            sums.loss += losses.loss;
            sums.entropy += losses.entropy;
            sums.error += losses.error;
            let done = number + 1;
            if done % SAVE_STEPS == 0 || done == steps {
                let count = (done - self.record.step) as f64;
                let mean =
                    DistilLosses { loss: sums.loss / count, entropy: sums.entropy / count, error: sums.error / count };
                self.record.step = done;
                progress.detail(&format!(
                    "loss {:.3} (float search {:.3}, codes {:.2})",
                    mean.loss, mean.entropy, mean.error
                ));
                self.record.curve.push(DistilPoint { step: done, losses: mean });
                self.record.seconds += begun.elapsed().as_secs_f64();
                (sums, begun) = (DistilLosses::default(), Instant::now());
                if let Some(checkpoint) = checkpoint {
                    self.save(checkpoint)?;
                }
            }
        }
        Ok(false)
    }

    fn save(&self, checkpoint: &Checkpoint) -> Result<()> {
        let values = [
            ("parameters", &self.student.values[..]),
            ("first", &self.moments.first),
            ("second", &self.moments.second),
        ];
        checkpoint.write(&values, &self.record)
    }

    fn step(
        &self,
        number: usize,
        workspace: &mut DistilWorkspace<f32>,
        gradient: &mut Student<f32>,
    ) -> Result<DistilLosses> {
        let drawn = self.draws.step(number, &self.neighbours);
        let width = self.documents.cols();
        let pool = drawn.pool.len();
        // Every other query is a view, in a row behind the pool.
        let viewed: Vec<u32> = drawn.queries.iter().skip(1).step_by(2).copied().collect();
        // The queries' documents come first in the pool, in order.
        let asked = &drawn.pool[..drawn.queries.len()];
        let place = |query: &u32| asked.binary_search(query).expect("queries are in the pool") as u32;
        let own: Vec<u32> = drawn.queries.iter().map(place).collect();
        let mut queries = own.clone();
        queries.iter_mut().skip(1).step_by(2).zip(pool as u32..).for_each(|(query, row)| *query = row);
        let rows = |from: &Matrix, documents: &[u32]| -> Vec<f32> {
            documents.iter().flat_map(|&document| from.row(document as usize).iter().copied()).collect()
        };
        let mut x = rows(self.documents, &drawn.pool);
        if !viewed.is_empty() {
            let mut views = vec![0.0; 2 * viewed.len() * width];
            let draw = Draw { seed: self.config.seed, epoch: number as u64 };
            self.views.pair(&viewed, draw, &mut views);
            views.truncate(viewed.len() * width);
            x.extend_from_slice(&views);
        }
        x.iter_mut().for_each(|v| *v *= self.factor);
        let batch = Batch { pool, x: &x, queries: &queries, own: &own };
        let losses = workspace.step(&self.student, &self.config.objective, &batch, gradient);
        if losses.loss.is_finite() {
            return Ok(losses);
        }
        Err(Error::input(
            format!("training, step {}", number + 1),
            format!(
                "the loss is not a finite number: an embedding holds one that is not, or the run has diverged. Check the \
                 documents, or lower learning_rate (now {})",
                self.config.learning_rate
            ),
        ))
    }

    fn update(&mut self, gradient: &Student<f32>, rate: f64) {
        self.moments.updates += 1;
        for part in Part::ALL {
            let range = self.student.sizes.range(part);
            let adam = Adam { rate: rate * part.rate(), number: self.moments.updates };
            let values = self.student.values[range.clone()].par_chunks_mut(CHUNK);
            let gradient = gradient.values[range.clone()].par_chunks(CHUNK);
            let first = self.moments.first[range.clone()].par_chunks_mut(CHUNK);
            let second = self.moments.second[range].par_chunks_mut(CHUNK);
            values.zip(gradient).zip(first.zip(second)).for_each(|((x, g), (m, v))| f32::adam_all(x, g, m, v, &adam));
        }
    }
}

/// One cycle: the rate rises in a line and falls in half a cosine.
pub(crate) fn rate(top: f64, step: usize, steps: usize) -> f64 {
    let warm_up = (WARM_UP * steps as f64).max(1.0);
    let place = step as f64 + 0.5;
    if place < warm_up {
        return top * place / warm_up;
    }
    let fall = (place - warm_up) / (steps as f64 - warm_up).max(1.0);
    top * 0.5 * (1.0 + (std::f64::consts::PI * fall.min(1.0)).cos())
}

#[cfg(test)]
#[path = "trainer_tests.rs"]
mod tests;
