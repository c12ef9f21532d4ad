//! Distillation: codes for the particular document and for its kind, in one product quantizer that starts at OPQ.
//!
//! ```text
//! float search (the document) --+
//!                               +--> OPQ over all dimensions, with a residual that begins at zero
//! a short MICPQ (its kind) -----+
//! ```
//!
//! The steps are in `train::distillation`. `kind` is the one dial: at 0 only float search teaches, at 1 mostly MICPQ. On its own
//! (`auto`) it goes as far to the kind as the codes can without losing recall against OPQ.

use std::time::Instant;

use engine::encoder::Pooling;
use engine::model::Distance;
use engine::{Error, Matrix, Progress, Result};
use train::distillation::step::DistilObjective;
use train::distillation::{Balance, DistilConfig, Teachers, distil};
use train::random::{Purpose, Stream};
use train::views::{Draw, ViewChoice, Views};
use train::{TrainConfig, Validation, trainer};

use crate::config::{KindWeight, MethodConfig};
use crate::inputs::{Built, Front, Inputs};
use crate::method::{Fitted, Input, Method, Prepared, Reads};
use crate::opq::Opq;
use crate::recall::MIN_DOCUMENTS;
use crate::training::Training;

/// Global weight at `kind` 1.
const MAX_GLOBAL_WEIGHT: f64 = 4.0;
/// Global weight that `auto` begins with.
const FIRST_GLOBAL_WEIGHT: f64 = 1.0;
/// Points of recall 10@100 that `auto` keeps above the OPQ it starts at: documents it did not train on lose about as much.
const RECALL_MARGIN: f64 = 0.5;
/// Documents held out to measure recall: at most this many and a twentieth of the sample.
const MAX_HELD_OUT: usize = 500;
const LOCAL_TEMPERATURE: f64 = 0.06;
const GLOBAL_TEMPERATURE: f64 = 0.1;
const COMMITMENT: f64 = 0.02;
/// For projected embeddings of length 4.
const ASSIGNMENT_TEMPERATURE: f64 = 0.25;
/// Documents that the teacher of kinds compares in a step.
const RANDOM: usize = 1024;
/// Rotations of the OPQ that the student starts at. Eight of them instead of fifty cost two and a half points of recall at the start (DBpedia, 32 bits).
const START_ROUNDS: usize = 50;
/// Documents that OPQ is fitted on.
const START_SAMPLE: usize = 20_000;
// The teacher of kinds. Its projection is used and not its codes, so one length serves every student.
const TEACHER_BITS: usize = 32;
const TEACHER_EPOCHS: usize = 10;
/// Steps of an epoch at least: a small corpus is passed several times.
const MIN_STEPS: usize = 40;
const TEACHER_BATCH: usize = 128;

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
        &["kind", "epochs", "batch", "neighbours", "learning_rate", "hidden", "sample"]
    }

    fn defaults(&self, base: MethodConfig) -> MethodConfig {
        MethodConfig { epochs: 8, batch: 256, neighbours: 16, hidden: 384, sample: 50_000, views: VIEWS, ..base }
    }

    fn views(&self, _: Pooling) -> ViewChoice {
        VIEWS
    }

    fn assumptions(&self, _: Input) -> String {
        format!(
            "global weight {MAX_GLOBAL_WEIGHT} kind^2, or as high as recall allows (auto); teacher: {TEACHER_EPOCHS} epochs of MICPQ at {TEACHER_BITS} bits"
        )
    }

    fn fit(&self, training: &Training, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted> {
        let config = training.config()?;
        let Inputs::Embeddings(embeddings) = inputs.documents else {
            return Err(Error::config("distilled reads embeddings alone"));
        };
        let views = inputs.views.ok_or_else(|| Error::config("distilled compares views and got none"))?;
        let begun = Instant::now();
        let (sample, apart) = Sample::draw(views, config.sample, config.seed);
        let rows = |numbers: &[u32]| embeddings.select(&numbers.iter().map(|&i| i as usize).collect::<Vec<_>>());
        let (documents, held_out) = (rows(&sample.documents), rows(&apart));
        if inputs.gpu.is_some() {
            progress
                .note("MICPQ, the teacher of kinds, is trained on the GPU; OPQ and the distillation run on the CPU");
        }
        let teacher =
            trainer::train(inputs.gpu, &teacher(config), &sample, Validation::HeldOut, inputs.checkpoints, progress)?;
        if teacher.interrupted {
            return Err(Error::Interrupted);
        }
        let taught = begun.elapsed().as_secs_f64();
        let start = start(config, &documents, progress)?;
        let started = begun.elapsed().as_secs_f64();
        let teachers =
            Teachers { documents: &documents, held_out: &held_out, views: &sample, kinds: &teacher.projection };
        let opq = (&start.projection.layers()[0], &start.codebooks);
        let found = distil(&options(config, documents.rows()), opq, &teachers, inputs.checkpoints, progress)?;
        let last = found.curve.last().expect("a run gives a model after the first point of its curve");
        let metrics = serde_json::json!({
            "selection": "loss", "best": last.losses.loss, "steps": last.step, "distillation_curve": found.curve,
            "documents": documents.rows(), "training_seconds": begun.elapsed().as_secs_f64(),
            "seconds": { "teacher": taught, "opq": started - taught, "distillation": found.seconds },
        });
        let (projection, codebooks) = (found.projection, found.codebooks);
        let built = Built { front: Front::Embeddings, projection, codebooks, distance: Distance::Squared };
        Ok(Fitted { built, metrics, interrupted: found.interrupted })
    }
}

/// The options of the MICPQ that knows the kinds. It ends after its epochs: a better epoch is not worth waiting for.
fn teacher(config: &MethodConfig) -> TrainConfig {
    let mut own = TrainConfig {
        epochs: TEACHER_EPOCHS.min(config.epochs),
        patience: TEACHER_EPOCHS,
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
fn start(config: &MethodConfig, documents: &Matrix, progress: &dyn Progress) -> Result<crate::quantization::Quantizer> {
    let points = crate::quantization::sampled(documents, START_SAMPLE, config.seed);
    let dim = documents.cols();
    Opq { bits: config.bits, dim, rounds: START_ROUNDS, inner: 4, last: 10, seed: config.seed }.fit(&points, progress)
}

fn options(config: &MethodConfig, documents: usize) -> DistilConfig {
    let (global_weight, balance) = match config.kind {
        KindWeight::Fixed(kind) => (MAX_GLOBAL_WEIGHT * kind * kind, Balance::Fixed),
        // A recall among the first hundred means nothing if there are few more.
        KindWeight::Auto if documents < MIN_DOCUMENTS => (FIRST_GLOBAL_WEIGHT, Balance::Fixed),
        KindWeight::Auto => (FIRST_GLOBAL_WEIGHT, Balance::AboveStart { margin: RECALL_MARGIN }),
    };
    DistilConfig {
        objective: DistilObjective {
            local_temperature: LOCAL_TEMPERATURE,
            global_temperature: GLOBAL_TEMPERATURE,
            global_weight,
            commitment: COMMITMENT,
            assignment_temperature: ASSIGNMENT_TEMPERATURE,
        },
        balance,
        hidden: config.hidden,
        steps: config.epochs * MIN_STEPS.max(documents / config.batch),
        batch: config.batch,
        random: RANDOM,
        neighbours: config.neighbours,
        learning_rate: config.learning_rate,
        seed: config.seed,
    }
}

/// Views of some of the documents, which count from 0 here.
struct Sample<'a> {
    views: &'a dyn Views,
    documents: Vec<u32>,
}

impl<'a> Sample<'a> {
    /// At most `max` documents, drawn evenly by the seed and in their order, and some held out of them.
    fn draw(views: &'a dyn Views, max: usize, seed: u64) -> (Self, Vec<u32>) {
        let mut documents = Stream::new(seed, Purpose::Method, &[4]).permutation(views.documents());
        documents.truncate(max);
        let held_out = documents.split_off(documents.len() - MAX_HELD_OUT.min(documents.len() / 20));
        documents.sort_unstable();
        (Sample { views, documents }, held_out)
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
    use train::job::Trained;
    use train::vectors::VectorViews;

    fn trained(points: &Matrix, kind: KindWeight) -> Trained {
        let config = MethodConfig { kind, epochs: 3, ..MethodConfig::named("distilled", 16).unwrap() };
        of_vectors(&config, points.clone(), &VectorViews::Noise(0.1), None, &NoProgress).unwrap()
    }

    #[test]
    fn codes_keep_at_least_what_opq_keeps_and_the_dial_changes_them() {
        let points = heaps(1500, 24);
        let document = trained(&points, KindWeight::Fixed(0.0));
        let recall = FloatRecall::measure(&document.model, &points, 0, &NoProgress).unwrap().unwrap();
        assert!(recall.model > recall.opq - 1.0, "{recall:?}");
        let kind = trained(&points, KindWeight::Fixed(1.0));
        assert_ne!(document.model.encode(&points).unwrap(), kind.model.encode(&points).unwrap());
        assert_eq!(kind.model.config.training["kind"], 1.0);
        assert_eq!(kind.metrics["steps"], 3 * MIN_STEPS);
    }

    #[test]
    fn on_its_own_the_dial_keeps_the_recall_of_opq() {
        let points = heaps(1500, 24);
        let found = trained(&points, KindWeight::Auto);
        let recall = FloatRecall::measure(&found.model, &points, 0, &NoProgress).unwrap().unwrap();
        assert!(recall.model > recall.opq - 1.0, "{recall:?}");
        assert_eq!(found.model.config.training["kind"], "auto");
        let curve = found.metrics["distillation_curve"].as_array().unwrap();
        assert!(curve.iter().all(|point| point["recall"].is_f64()), "{curve:?}");
        // Among fewer documents a recall among the first hundred means nothing.
        let few = trained(&points.select(&(0..600).collect::<Vec<_>>()), KindWeight::Auto);
        let curve = few.metrics["distillation_curve"].as_array().unwrap();
        assert!(curve.iter().all(|point| point["global_weight"] == FIRST_GLOBAL_WEIGHT), "{curve:?}");
    }

    #[test]
    fn kind_beyond_its_range_is_refused() {
        let config = MethodConfig { kind: KindWeight::Fixed(1.5), ..MethodConfig::named("distilled", 32).unwrap() };
        assert!(config.validate().unwrap_err().to_string().contains("kind is 1.5"));
        let config = MethodConfig::named("distilled", 32).unwrap();
        assert!(config.with("kind", "much".into()).unwrap_err().to_string().contains("neither auto nor a number"));
    }
}
