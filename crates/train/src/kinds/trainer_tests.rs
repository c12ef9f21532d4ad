use std::sync::atomic::{AtomicUsize, Ordering};

use engine::NoProgress;
use engine::model::Dense;

use super::*;
use crate::random::{Purpose, Stream};
use crate::vectors::VectorViews;

const WIDTH: usize = 16;

fn normal(rows: usize, cols: usize, number: u64) -> Matrix {
    let mut out = Matrix::zeros(rows, cols);
    Stream::new(9, Purpose::Init, &[number]).normal(out.as_mut_slice());
    out
}

fn run(checkpoint: Option<&Path>, progress: &dyn Progress) -> Result<Kinds> {
    let documents = normal(500, WIDTH, 0);
    let weight = normal(WIDTH, WIDTH, 1).as_slice().iter().map(|v| v / 4.0).collect();
    let projection = Projection::new(vec![Dense::new(WIDTH, weight, vec![0.1; WIDTH]).unwrap()]).unwrap();
    let shape = CodeShape::new(4, 16, 4).unwrap();
    let codebooks = |number| Codebooks::new(shape, normal(64, 4, number).as_slice().to_vec()).unwrap();
    let codes = codebooks(2).nearest(&projection.apply(&documents).unwrap());
    let noise = VectorViews::Noise(0.3);
    let (views, _) = noise.prepare(documents.as_slice(), WIDTH).unwrap();
    let config =
        KindsConfig { hidden: 24, steps: 220, batch: 64, pool: 128, temperature: 0.2, learning_rate: 1e-2, seed: 1 };
    let micpq = codebooks(3);
    let teacher =
        KindsTeacher { documents: &documents, views: &views, codes: (&codes, shape), micpq: (&projection, &micpq) };
    learn(&config, &teacher, checkpoint, progress)
}

fn weights(found: &Kinds) -> Vec<u32> {
    let layers = found.layers.layers().iter();
    layers.flat_map(|l| l.weight().iter().chain(l.bias())).map(|v| v.to_bits()).collect()
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
    assert_eq!(curve.len(), 3, "a point after 100, 200 and 220 steps");
    assert!(curve[2].loss < curve[1].loss && curve[1].loss < curve[0].loss, "{curve:?}");
}

#[test]
fn layers_do_not_depend_on_threads() {
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| weights(&run(None, &NoProgress).unwrap()))
    };
    assert!(with(1) == with(3));
}

#[test]
fn interrupted_run_is_resumed_to_the_same_layers() {
    let dir = tempfile::tempdir().unwrap();
    let stopped = run(Some(dir.path()), &After(AtomicUsize::new(130))).unwrap();
    assert!(stopped.interrupted && stopped.curve.len() == 1);
    let resumed = run(Some(dir.path()), &NoProgress).unwrap();
    assert!(!resumed.interrupted && resumed.curve.len() == 3);
    assert!(weights(&resumed) == weights(&run(None, &NoProgress).unwrap()));
    let early = run(None, &After(AtomicUsize::new(10)));
    assert!(matches!(early, Err(Error::Interrupted)), "no point of the curve, no layers");
}
