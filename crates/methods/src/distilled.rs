//! Distillation: one code for the particular document and for its kind.
//!
//! ```text
//! float search (the document) --> OPQ over all dimensions, with a residual that begins at zero --> codes
//! MICPQ (its kind) ------------> tables by kind, which ask the same codes for documents of the query's kind
//! ```
//!
//! The steps are in `train::distillation` and `train::kinds`. A search chooses between both, or mixes them, with `kind`.

use std::time::Instant;

use engine::encoder::Pooling;
use engine::{Error, Matrix, Progress, Result};
use train::TrainConfig;
use train::distillation::step::DistilObjective;
use train::distillation::{DistilConfig, DistillationRun};
use train::kinds::{KindsConfig, KindsTeacher, learn};
use train::random::{Purpose, Stream};
use train::trainer::TrainRun;
use train::views::{Draw, ViewChoice, Views};

use crate::config::MethodConfig;
use crate::inputs::{Built, Inputs};
use crate::method::{Fitted, Input, Method, Prepared, Reads};
use crate::opq::Opq;
use crate::quantization::Quantizer;
use crate::training::Training;

const TEMPERATURE: f64 = 0.06;
const COMMITMENT: f64 = 0.02;
/// For projected embeddings of length 4.
const ASSIGNMENT_TEMPERATURE: f64 = 0.25;
/// Rotations of the OPQ that the student starts at. Eight of them instead of fifty cost two and a half points of recall at the
/// start (DBpedia, 32 bits).
const START_ROUNDS: usize = 50;
/// Documents that OPQ is fitted on.
const START_SAMPLE: usize = 20_000;
/// Steps of an epoch at least: a small corpus is passed several times.
const MIN_STEPS: usize = 40;

// The teacher of kinds. One length serves codes of every length. At 128 bits it takes twice as long and gains less than half a
// point of P@100 (DBpedia).
const TEACHER_BITS: usize = 64;
const TEACHER_EPOCHS: usize = 40;
const TEACHER_BATCH: usize = 128;

// The tables by kind.
const KIND_TEMPERATURE: f64 = 0.07;
const KIND_HIDDEN: usize = 512;
/// Times every document is a query, within the bounds of [`KIND_STEPS`].
const KIND_PASSES: usize = 13;
const KIND_STEPS: std::ops::RangeInclusive<usize> = 100..=1000;
const KIND_BATCH: usize = 256;
/// Documents that a query is compared with in a step.
const KIND_POOL: usize = 2048;
const KIND_RATE: f64 = 1e-3;

/// One encoder pass per document and a few for a sample: the views only roughen queries, and the teacher of kinds loses little.
const VIEWS: ViewChoice = ViewChoice::Noise(12);

pub const METHOD: Distillation = Distillation;

pub struct Distillation;

impl Method for Distillation {
    fn name(&self) -> &str {
        "distilled"
    }

    fn reads(&self) -> Reads {
        Reads { views: true, ..Reads::default() }
    }

    fn options(&self) -> &[&'static str] {
        &["epochs", "batch", "neighbours", "learning_rate", "hidden", "sample"]
    }

    fn revision(&self) -> u32 {
        2
    }

    fn defaults(&self, base: MethodConfig) -> MethodConfig {
        MethodConfig { epochs: 2, batch: 256, neighbours: 16, hidden: 384, sample: 50_000, views: VIEWS, ..base }
    }

    fn views(&self, _: Pooling) -> ViewChoice {
        VIEWS
    }

    fn assumptions(&self, _: Input) -> String {
        format!(
            "tables by kind: at most {} steps; their teacher: at most {TEACHER_EPOCHS} epochs of MICPQ at {TEACHER_BITS} bits",
            KIND_STEPS.end()
        )
    }

    fn fit(&self, training: &Training, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted> {
        let config = training.config()?;
        let Inputs::Embeddings(embeddings) = inputs.documents else {
            return Err(Error::config("distilled reads embeddings alone"));
        };
        let views = inputs.views.ok_or_else(|| Error::config("distilled compares views and got none"))?;
        if embeddings.rows() < 3 {
            let problem = format!("there are {} to train on; give at least 3", embeddings.rows());
            return Err(Error::input("documents", problem));
        }
        let begun = Instant::now();
        let sample = Sample::draw(views, config.sample, config.seed);
        let rows: Vec<usize> = sample.documents.iter().map(|&i| i as usize).collect();
        let documents = embeddings.select(&rows);
        if inputs.gpu.is_some() {
            progress.note("MICPQ, the teacher of kinds, is trained on the GPU; the other steps run on the CPU");
        }
        let teacher =
            TrainRun::new(&teacher(config), &sample).gpu(inputs.gpu).checkpoint(inputs.checkpoints).train(progress)?;
        if teacher.interrupted {
            return Err(Error::Interrupted);
        }
        let taught = begun.elapsed().as_secs_f64();
        let start = start(config, &documents, progress)?;
        let started = begun.elapsed().as_secs_f64();
        let opq = (&start.projection.layers()[0], &start.codebooks);
        let own = distillation(config, documents.rows());
        let found =
            DistillationRun::new(&own, opq, &documents, &sample).checkpoint(inputs.checkpoints).run(progress)?;
        let last = found.curve.last().expect("a run gives a model after the first point of its curve");
        let mut metrics = serde_json::json!({
            "selection": "loss", "best": last.losses.loss, "steps": last.step, "distillation_curve": found.curve,
            "documents": documents.rows(),
            "seconds": { "teacher": taught, "opq": started - taught, "distillation": found.seconds },
        });
        let mut built = Built::quantizer(found.projection, found.codebooks);
        let mut interrupted = found.interrupted;
        if !interrupted {
            let codes = built.codebooks.nearest(&built.projection.apply(&documents)?);
            let teacher = KindsTeacher {
                documents: &documents,
                views: &sample,
                codes: (&codes, built.codebooks.shape()),
                micpq: (&teacher.projection, &teacher.codebooks),
            };
            let kinds = learn(&kinds(config, documents.rows()), &teacher, inputs.checkpoints, progress)?;
            metrics["kinds_curve"] = serde_json::to_value(&kinds.curve).expect("plain data has a JSON form");
            metrics["seconds"]["kinds"] = kinds.seconds.into();
            (built.kinds, interrupted) = (Some(kinds.layers), kinds.interrupted);
        }
        metrics["training_seconds"] = begun.elapsed().as_secs_f64().into();
        Ok(Fitted { built, metrics, interrupted })
    }
}

/// The options of the MICPQ that knows the kinds.
fn teacher(config: &MethodConfig) -> TrainConfig {
    let mut own = TrainConfig {
        epochs: TEACHER_EPOCHS,
        batch: TEACHER_BATCH,
        clean_first_epoch: config.clean_first_epoch,
        views: config.views,
        seed: config.seed,
        ..TrainConfig::new(TEACHER_BITS)
    };
    own.objective.contrast_temperature = config.contrast_temperature;
    own
}

/// OPQ over all dimensions.
fn start(config: &MethodConfig, documents: &Matrix, progress: &dyn Progress) -> Result<Quantizer> {
    let points = crate::quantization::sampled(documents, START_SAMPLE, config.seed);
    let dim = documents.cols();
    Opq { bits: config.bits, dim, rounds: START_ROUNDS, inner: 4, last: 10, seed: config.seed }.fit(&points, progress)
}

fn distillation(config: &MethodConfig, documents: usize) -> DistilConfig {
    DistilConfig {
        objective: DistilObjective {
            temperature: TEMPERATURE,
            commitment: COMMITMENT,
            assignment_temperature: ASSIGNMENT_TEMPERATURE,
        },
        hidden: config.hidden,
        steps: config.epochs * MIN_STEPS.max(documents / config.batch),
        batch: config.batch,
        neighbours: config.neighbours,
        learning_rate: config.learning_rate,
        seed: config.seed,
    }
}

fn kinds(config: &MethodConfig, documents: usize) -> KindsConfig {
    KindsConfig {
        hidden: KIND_HIDDEN,
        steps: (KIND_PASSES * documents / KIND_BATCH).clamp(*KIND_STEPS.start(), *KIND_STEPS.end()),
        batch: KIND_BATCH,
        pool: KIND_POOL,
        temperature: KIND_TEMPERATURE,
        learning_rate: KIND_RATE,
        seed: config.seed,
    }
}

/// Views of some of the documents, which count from 0 here.
struct Sample<'a> {
    views: &'a dyn Views,
    documents: Vec<u32>,
}

impl<'a> Sample<'a> {
    /// At most `max` documents, drawn evenly by the seed and in their order.
    fn draw(views: &'a dyn Views, max: usize, seed: u64) -> Self {
        let mut documents = Stream::new(seed, Purpose::Method, &[4]).permutation(views.documents());
        documents.truncate(max);
        documents.sort_unstable();
        Sample { views, documents }
    }

    fn numbers(&self, documents: &[u32]) -> Vec<u32> {
        documents.iter().map(|&i| self.documents[i as usize]).collect()
    }
}

impl Views for Sample<'_> {
    fn documents(&self) -> usize {
        self.documents.len()
    }

    fn width(&self) -> usize {
        self.views.width()
    }

    fn fingerprint(&self) -> String {
        // The seed, which is part of the options, decides which documents these are.
        format!("{}/sample-{}", self.views.fingerprint(), self.documents.len())
    }

    fn clean(&self, documents: &[u32], out: &mut [f32]) {
        self.views.clean(&self.numbers(documents), out);
    }

    fn pair(&self, documents: &[u32], draw: Draw, out: &mut [f32]) {
        self.views.pair(&self.numbers(documents), draw, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::of_vectors;
    use crate::pq::tests::heaps;
    use crate::recall::FloatRecall;
    use engine::NoProgress;
    use train::vectors::VectorViews;

    #[test]
    fn codes_keep_what_opq_keeps_and_come_with_tables_by_kind() {
        let points = heaps(1500, 24);
        let config = MethodConfig { epochs: 3, ..MethodConfig::named("distilled", 16).unwrap() };
        let found = of_vectors(&config, points.clone(), &VectorViews::Noise(0.1), None, &NoProgress).unwrap();
        let recall = FloatRecall::measure(&found.model, &points, 0, &NoProgress).unwrap().unwrap();
        assert!(recall.model > recall.opq - 1.0, "{recall:?}");
        assert_eq!(found.metrics["steps"], 3 * MIN_STEPS);
        assert_eq!(found.metrics["kinds_curve"].as_array().unwrap().last().unwrap()["step"], *KIND_STEPS.start());
        let kinds = found.model.kinds().expect("tables by kind");
        assert_eq!(kinds.tables(&points.select(&[0, 1])).unwrap()[0].shape(), found.model.shape());
    }
}
