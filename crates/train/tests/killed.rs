//! A killed run resumes after its last finished epoch and ends in the same model.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use engine::{Matrix, NoProgress, Progress};
use train::random::{Purpose, Stream};
use train::views::{NoiseModel, NoiseViews};
use train::{Outcome, TrainConfig, TrainRun};

const WIDTH: usize = 32;
/// Work directory of the process that is killed; set only for that process.
const VICTIM: &str = "MICPQ_TEST_VICTIM";

fn views() -> NoiseViews {
    let normal = |rows: usize, number: u64| {
        let mut out = Matrix::zeros(rows, WIDTH);
        Stream::new(5, Purpose::Init, &[number]).normal(out.as_mut_slice());
        out
    };
    let clean = normal(1500, 0);
    let passes: Vec<Matrix> = (1..4)
        .map(|number| {
            let mut pass = normal(1500, number);
            pass.as_mut_slice().iter_mut().zip(clean.as_slice()).for_each(|(e, x)| *e = x + 0.3 * *e);
            pass
        })
        .collect();
    NoiseViews::new(clean.clone(), NoiseModel::fit(&clean, &passes).unwrap()).unwrap()
}

fn config() -> TrainConfig {
    TrainConfig { hidden: 128, epochs: 25, patience: 25, ..TrainConfig::new(32) }
}

fn run(dir: Option<&Path>, progress: &dyn Progress) -> Outcome {
    TrainRun::new(&config(), &views()).checkpoint(dir).train(progress).unwrap()
}

/// Runs only in the process that the test below starts and kills.
#[test]
fn victim() {
    if let Some(dir) = std::env::var_os(VICTIM) {
        run(Some(Path::new(&dir)), &NoProgress);
    }
}

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.into());
    }
}

fn weights(outcome: &Outcome) -> Vec<u32> {
    let layers = outcome.projection.layers().iter().flat_map(|l| l.weight().iter().chain(l.bias()));
    layers.chain(outcome.codebooks.values()).map(|v| v.to_bits()).collect()
}

#[test]
fn killed_process_is_resumed_to_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim"])
        .env(VICTIM, dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let checkpoint = || {
        let files = std::fs::read_dir(dir.path()).unwrap();
        files.filter_map(std::result::Result::ok).any(|e| e.path().extension().is_some_and(|x| x == "safetensors"))
    };
    let start = Instant::now();
    while !checkpoint() && start.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // SIGKILL: no handler, no destructor.
    victim.kill().unwrap();
    victim.wait().unwrap();

    let notes = Notes::default();
    let resumed = run(Some(dir.path()), &notes);
    let notes = notes.0.into_inner().unwrap();
    assert!(notes[0].starts_with("resuming after epoch "), "{notes:?}");
    assert!(notes.len() > 1, "the process was killed before its end");
    assert_eq!(weights(&resumed), weights(&run(None, &NoProgress)));
}
