use std::sync::atomic::{AtomicUsize, Ordering};

use engine::NoProgress;
use engine::model::CodeShape;

use super::*;
use crate::random::{Purpose, Stream};
use crate::vectors::VectorViews;

const WIDTH: usize = 16;

fn normal(rows: usize, cols: usize, number: u64) -> Matrix {
    let mut out = Matrix::zeros(rows, cols);
    Stream::new(9, Purpose::Init, &[number]).normal(out.as_mut_slice());
    out
}

fn dense(inputs: usize, outputs: usize, number: u64) -> Dense {
    let scale = 1.0 / (inputs as f32).sqrt();
    let weight = normal(outputs, inputs, number).as_slice().iter().map(|v| v * scale).collect();
    Dense::new(inputs, weight, vec![0.1; outputs]).unwrap()
}

fn config() -> DistilConfig {
    DistilConfig {
        objective: DistilObjective { temperature: 0.1, commitment: 0.02, assignment_temperature: 0.25 },
        hidden: 12,
        steps: 120,
        batch: 64,
        neighbours: 4,
        learning_rate: 1e-3,
        seed: 1,
    }
}

/// Codebooks of documents' slices stand for those of OPQ.
fn run(checkpoint: Option<&Path>, progress: &dyn Progress) -> Result<Distilled> {
    let (documents, start) = (normal(500, WIDTH, 0), dense(WIDTH, WIDTH, 1));
    let shape = CodeShape::new(4, 16, 4).unwrap();
    let rows = Projection::new(vec![start.clone()]).unwrap().apply(&documents).unwrap();
    let words = (0..4).flat_map(|m| (0..16).flat_map(move |k| (0..4).map(move |i| (k, 4 * m + i))));
    let codebooks = Codebooks::new(shape, words.map(|(k, i)| rows.row(k)[i]).collect()).unwrap();
    let noise = VectorViews::Noise(0.3);
    let (views, _) = noise.prepare(documents.as_slice(), WIDTH).unwrap();
    DistillationRun::new(&config(), (&start, &codebooks), &documents, &views).checkpoint(checkpoint).run(progress)
}

fn weights(found: &Distilled) -> Vec<u32> {
    let layers = found.projection.layers().iter().flat_map(|l| l.weight().iter().chain(l.bias()));
    layers.chain(found.codebooks.values()).map(|v| v.to_bits()).collect()
}

/// Interrupts after a number of steps.
struct After(AtomicUsize);

impl Progress for After {
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) == 0
    }
}

#[test]
fn loss_falls() {
    let curve = run(None, &NoProgress).unwrap().curve;
    let (first, last) = (&curve[0].losses, &curve[curve.len() - 1].losses);
    assert_eq!(curve.len(), 3, "a point after 50, 100 and 120 steps");
    assert!(last.entropy < first.entropy, "{first:?} {last:?}");
}

#[test]
fn model_does_not_depend_on_threads() {
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| weights(&run(None, &NoProgress).unwrap()))
    };
    assert!(with(1) == with(3));
}

#[test]
fn interrupted_run_is_resumed_to_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    // The search for neighbours asks once for every block of queries, four here.
    let stopped = run(Some(dir.path()), &After(AtomicUsize::new(4 + 70))).unwrap();
    assert!(stopped.interrupted && stopped.curve.len() == 1);
    let resumed = run(Some(dir.path()), &NoProgress).unwrap();
    assert!(!resumed.interrupted && resumed.curve.len() == 3);
    assert!(weights(&resumed) == weights(&run(None, &NoProgress).unwrap()));
    let early = run(None, &After(AtomicUsize::new(4 + 10)));
    assert!(matches!(early, Err(Error::Interrupted)), "no point of the curve, no model");
}

#[test]
fn student_at_the_start_is_opq() {
    let (start, documents) = (dense(WIDTH, WIDTH, 1), normal(50, WIDTH, 0));
    let shape = CodeShape::new(4, 16, 4).unwrap();
    let codebooks = Codebooks::new(shape, normal(16, 16, 5).as_slice().to_vec()).unwrap();
    let factor = input_factor(&documents);
    let student = Student::new(&start, &codebooks, 7, factor, 1.0, 0);
    let (projection, scaled) = student.model_parts(factor).unwrap();
    let plain = codebooks.assign(&Projection::new(vec![start]).unwrap().apply(&documents).unwrap());
    assert_eq!(scaled.assign(&projection.apply(&documents).unwrap()), plain);
}
