//! A run: a fixed number of steps on one cycle of the learning rate, saved every few steps.

use std::path::Path;
use std::time::Instant;

use engine::model::{CodeShape, Codebooks, Projection};
use engine::{Error, Matrix, Progress, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::head::{Head, HeadSizes};
use super::step::{Batch, Workspace};
use crate::checkpoint::Checkpoint;
use crate::distillation::pool::RandomDraws;
use crate::distillation::student::input_factor;
use crate::distillation::trainer::rate;
use crate::parameters::Moments;
use crate::real::{Adam, Real};
use crate::views::{Draw, Views};

/// Steps between two checkpoints and two points of the curve.
const SAVE_STEPS: usize = 100;
/// Values per task of an update.
const CHUNK: usize = 1 << 15;

/// Options of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindsConfig {
    /// Width of the hidden layer.
    pub hidden: usize,
    pub steps: usize,
    /// Queries per step; every other one is a view.
    pub batch: usize,
    /// Documents that every query of a step is compared with.
    pub pool: usize,
    /// Of the teacher's cosines.
    pub temperature: f64,
    /// Adam's learning rate at the top of its cycle.
    pub learning_rate: f64,
    pub seed: u64,
}

/// What the head learns from.
pub struct KindsTeacher<'a> {
    /// Clean embeddings.
    pub documents: &'a Matrix,
    /// Views of the same documents.
    pub views: &'a dyn Views,
    /// Codeword numbers of the documents, `[documents, codebooks]`, and the shape of their codes.
    pub codes: (&'a [u32], CodeShape),
    /// A trained MICPQ. Its cosines compare a query with the codewords of a document, so its own codes are what is learned.
    pub micpq: (&'a Projection, &'a Codebooks),
}

/// A point of the training curve: the mean over the steps since the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindsPoint {
    pub step: usize,
    /// Cross entropy in nats.
    pub loss: f64,
}

/// The result of a run.
pub struct Kinds {
    /// Layers from embeddings to tables.
    pub layers: Projection,
    pub curve: Vec<KindsPoint>,
    /// Of all runs that led here through a checkpoint.
    pub seconds: f64,
    /// Whether the user stopped it before its last step.
    pub interrupted: bool,
}

/// The record of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    step: usize,
    curve: Vec<KindsPoint>,
    seconds: f64,
}

struct Run<'a> {
    config: &'a KindsConfig,
    teacher: &'a KindsTeacher<'a>,
    factor: f32,
    draws: RandomDraws,
    // Documents by the codewords of the teacher, of unit length, [documents, width].
    documents: Matrix,
    head: Head<f32>,
    moments: Moments<f32>,
    record: Record,
}

/// Learns tables by kind. With a `checkpoint` directory the same call resumes a killed run and ends in the same layers, byte for
/// byte.
pub fn learn(
    config: &KindsConfig,
    teacher: &KindsTeacher,
    checkpoint: Option<&Path>,
    progress: &dyn Progress,
) -> Result<Kinds> {
    let count = teacher.documents.rows();
    if count < 3 {
        let problem = format!("there are {count} to train on; a query is compared with others, so give at least 3");
        return Err(Error::input("documents", problem));
    }
    let shape = teacher.codes.1;
    let (projection, codebooks) = teacher.micpq;
    let mut documents = codebooks.decode(&projection.apply(teacher.documents)?);
    documents.normalize_rows();
    let sizes = HeadSizes {
        inputs: teacher.documents.cols(),
        hidden: config.hidden,
        codebooks: shape.num_codebooks(),
        codewords: shape.codebook_size(),
    };
    let checkpoint = match checkpoint {
        Some(dir) => Some(Checkpoint::open(dir, fingerprint(config, teacher))?),
        None => None,
    };
    let draws = RandomDraws { seed: config.seed, documents: count, batch: config.batch.min(count), pool: config.pool };
    let mut run = Run {
        config,
        teacher,
        factor: input_factor(teacher.documents),
        draws,
        documents,
        head: Head::new(sizes, config.seed),
        moments: Moments::zeros(sizes.parameters()),
        record: Record { step: 0, curve: Vec::new(), seconds: 0.0 },
    };
    if let Some(checkpoint) = &checkpoint {
        run.resume(checkpoint, progress)?;
    }
    let interrupted = run.steps(checkpoint.as_ref(), progress)?;
    let layers = run.head.layers(run.factor)?;
    Ok(Kinds { layers, curve: run.record.curve, seconds: run.record.seconds, interrupted })
}

/// Everything that decides the states of a run.
fn fingerprint(config: &KindsConfig, teacher: &KindsTeacher) -> String {
    let text = serde_json::to_string(config).expect("options have a JSON form");
    let sum = |values: &mut dyn Iterator<Item = f32>| {
        let mut hash = crc32fast::Hasher::new();
        values.for_each(|v| hash.update(&v.to_le_bytes()));
        hash.finalize()
    };
    let documents = sum(&mut teacher.documents.as_slice().iter().copied());
    let layers = teacher.micpq.0.layers().iter().flat_map(|l| l.weight().iter().chain(l.bias()));
    let micpq = sum(&mut layers.chain(teacher.micpq.1.values()).copied());
    let codes = crc32fast::hash(&teacher.codes.0.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    format!("kinds {text} {} {codes:08x} {documents:08x} {micpq:08x}", teacher.views.fingerprint())
}

impl Run<'_> {
    fn resume(&mut self, checkpoint: &Checkpoint, progress: &dyn Progress) -> Result<()> {
        let names = ["parameters", "first", "second"];
        let Some((record, values)) = checkpoint.read::<Record, 3>(names, self.head.values.len())? else {
            return Ok(());
        };
        progress.note(&format!("resuming after step {} of an earlier run", record.step));
        let [parameters, first, second] = values;
        self.head.values = parameters;
        self.moments = Moments { first, second, updates: record.step as u64 };
        self.record = record;
        Ok(())
    }

    /// Runs the steps that are left. Returns whether the user stopped them.
    fn steps(&mut self, checkpoint: Option<&Checkpoint>, progress: &dyn Progress) -> Result<bool> {
        let steps = self.config.steps;
        progress.stage("learning kinds", Some(steps as u64));
        progress.advance(self.record.step as u64);
        let (mut workspace, mut gradient) = (Workspace::default(), Head::zeros(self.head.sizes));
        let (mut sum, mut begun) = (0.0, Instant::now());
        for number in self.record.step..steps {
            if progress.interrupted() {
                // Without a point of the curve there are no tables worth having.
                return if self.record.curve.is_empty() { Err(Error::Interrupted) } else { Ok(true) };
            }
            sum += self.step(number, &mut workspace, &mut gradient)?;
            self.update(&gradient, rate(self.config.learning_rate, number, steps));
            progress.advance(1);
            let done = number + 1;
            if done % SAVE_STEPS == 0 || done == steps {
                let loss = sum / (done - self.record.step) as f64;
                progress.detail(&format!("loss {loss:.3}"));
                self.record.step = done;
                self.record.curve.push(KindsPoint { step: done, loss });
                self.record.seconds += begun.elapsed().as_secs_f64();
                (sum, begun) = (0.0, Instant::now());
                if let Some(checkpoint) = checkpoint {
                    let moments = [("first", &self.moments.first[..]), ("second", &self.moments.second)];
                    checkpoint.write(&[("parameters", &self.head.values), moments[0], moments[1]], &self.record)?;
                }
            }
        }
        Ok(false)
    }

    fn step(&self, number: usize, workspace: &mut Workspace<f32>, gradient: &mut Head<f32>) -> Result<f64> {
        let drawn = self.draws.step(number);
        let pool: Vec<usize> = drawn.pool.iter().map(|&document| document as usize).collect();
        let place = |query: &u32| drawn.pool.binary_search(query).expect("queries are in the pool") as u32;
        let own: Vec<u32> = drawn.queries.iter().map(place).collect();
        let mut embeddings =
            self.teacher.documents.select(&drawn.queries.iter().map(|&query| query as usize).collect::<Vec<_>>());
        // Every other query is a view.
        let viewed: Vec<u32> = drawn.queries.iter().skip(1).step_by(2).copied().collect();
        let width = embeddings.cols();
        let mut views = vec![0.0; 2 * viewed.len() * width];
        self.teacher.views.pair(&viewed, Draw { seed: self.config.seed, epoch: number as u64 }, &mut views);
        let rows = embeddings.as_mut_slice().chunks_exact_mut(width).skip(1).step_by(2);
        rows.zip(views.chunks_exact(width)).for_each(|(row, view)| row.copy_from_slice(view));
        let mut queries = self.teacher.micpq.0.apply(&embeddings)?;
        queries.normalize_rows();
        embeddings.as_mut_slice().iter_mut().for_each(|v| *v *= self.factor);
        let documents = self.documents.select(&pool);
        let codebooks = self.head.sizes.codebooks;
        let codes: Vec<u32> =
            pool.iter().flat_map(|&row| &self.teacher.codes.0[row * codebooks..][..codebooks]).copied().collect();
        let batch = Batch {
            x: embeddings.as_slice(),
            queries: queries.as_slice(),
            documents: documents.as_slice(),
            codes: &codes,
            own: &own,
        };
        let loss = workspace.step(&self.head, self.config.temperature, &batch, gradient);
        if loss.is_finite() {
            return Ok(loss);
        }
        Err(Error::input(
            format!("learning kinds, step {}", number + 1),
            "the loss is not a finite number: an embedding holds one that is not; check the documents",
        ))
    }

    fn update(&mut self, gradient: &Head<f32>, rate: f64) {
        self.moments.updates += 1;
        let adam = Adam { rate, number: self.moments.updates };
        let values = self.head.values.par_chunks_mut(CHUNK).zip(gradient.values.par_chunks(CHUNK));
        let moments = self.moments.first.par_chunks_mut(CHUNK).zip(self.moments.second.par_chunks_mut(CHUNK));
        values.zip(moments).for_each(|((x, g), (m, v))| f32::adam_all(x, g, m, v, &adam));
    }
}

#[cfg(test)]
#[path = "trainer_tests.rs"]
mod tests;
