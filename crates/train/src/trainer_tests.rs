use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use engine::{Matrix, NoProgress};

use super::*;
use crate::evaluate::{Corpus, EvaluateConfig, evaluate};
use crate::metrics::Labels;
use crate::views::{NoiseModel, NoiseViews};

const WIDTH: usize = 24;
const CLASSES: usize = 8;

/// Normally distributed vectors around one centre per class.
fn clustered(documents: usize, first: u64) -> (Matrix, Labels) {
    let mut rows = Matrix::zeros(documents, WIDTH);
    let mut labels = Vec::new();
    for i in 0..documents {
        let class = (first + i as u64) % CLASSES as u64;
        let mut centre = [0.0; WIDTH];
        Stream::new(77, Purpose::Init, &[class]).normal(&mut centre);
        let row = rows.row_mut(i);
        Stream::new(78, Purpose::Init, &[first + i as u64]).normal(row);
        row.iter_mut().zip(centre).for_each(|(x, c)| *x = 0.7 * *x + 0.6 * c);
        labels.push(class as u32);
    }
    (rows, Labels::single(labels))
}

fn noise_views(clean: &Matrix) -> NoiseViews {
    let passes: Vec<Matrix> = (0..4)
        .map(|r| {
            let mut noise = vec![0.0; clean.as_slice().len()];
            Stream::new(79, Purpose::Init, &[r]).normal(&mut noise);
            Matrix::from_vec(WIDTH, clean.as_slice().iter().zip(&noise).map(|(x, e)| 0.95 * x + 0.4 * e).collect())
        })
        .collect();
    NoiseViews::new(clean.clone(), NoiseModel::fit(clean, &passes).unwrap()).unwrap()
}

fn small() -> TrainConfig {
    let mut config = TrainConfig { hidden: 64, dim: 8, epochs: 6, batch: 32, ..TrainConfig::new(16) };
    config.objective.tau = 5.0;
    config
}

fn bytes(outcome: &Outcome, config: &TrainConfig) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    outcome.model(config, None).unwrap().write_into(dir.path(), &serde_json::Value::Null).unwrap();
    std::fs::read(dir.path().join("model.safetensors")).unwrap()
}

/// Interrupts at the n-th check.
struct StopAfter(AtomicI64);

impl Progress for StopAfter {
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) <= 0
    }
}

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.into());
    }
}

#[test]
fn trained_codes_beat_chance_untrained_codes_and_float_search() {
    let (documents, labels) = clustered(1600, 0);
    let (queries, query_labels) = clustered(200, 50_000);
    let (validation, validation_labels) = clustered(100, 90_000);
    let views = noise_views(&documents);
    let config = TrainConfig { epochs: 12, ..small() };
    let labelled =
        Validation::Labelled { queries: &validation, query_labels: &validation_labels, document_labels: &labels };
    let measure = |model: &Model| {
        let corpus = Corpus { documents: &documents, queries: &queries, labels: Some((&query_labels, &labels)) };
        evaluate(model, &corpus, &EvaluateConfig::default(), &NoProgress).unwrap()
    };
    let (projection, codebooks) = Parameters::init(config.sizes(WIDTH).unwrap(), 0).model_parts().unwrap();
    let record = ModelConfig {
        format: engine::model::FORMAT,
        method: "micpq".into(),
        shape: codebooks.shape(),
        distance: config.distance,
        embedding: None,
        training: serde_json::Value::Null,
    };
    let untrained = Model::new(record, projection, codebooks).unwrap();
    let before = measure(&untrained).precision().unwrap().at_100;
    let mut found = Vec::new();
    for validation in [labelled, Validation::HeldOut] {
        let outcome = TrainRun::new(&config, &views).validation(validation).train(&NoProgress).unwrap();
        let after = measure(&outcome.model(&config, None).unwrap());
        let float = after.float.as_ref().unwrap().cosine.precision.at_100;
        let after = after.precision().unwrap().at_100;
        println!("chance 12.5, untrained {before:.1}, trained {after:.1}, float cosine {float:.1}");
        assert!(after > before + 20.0, "untrained {before:.1}, trained {after:.1}");
        assert!(after > float, "float {float:.1}, trained {after:.1}");
        let curve = &outcome.metrics.curve;
        assert!(curve[curve.len() - 1].losses.loss < curve[0].losses.loss);
        found.push(outcome.metrics);
    }
    assert_eq!(found[0].selection, "P@100");
    assert_eq!(found[0].precision.unwrap().at_100, found[0].best);
    assert_eq!((found[1].selection, found[1].precision), ("mean log-rank", None));
    assert_eq!(found[1].documents, 1600 - 160);
    assert!(found[1].best < found[1].curve[0].validation, "the log-rank falls");
}

#[test]
fn one_seed_gives_one_model_on_any_number_of_threads() {
    let (documents, _) = clustered(200, 0);
    let views = noise_views(&documents);
    let config = TrainConfig { epochs: 2, ..small() };
    let run = |threads: usize, config: &TrainConfig| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap()
            .install(|| bytes(&TrainRun::new(config, &views).train(&NoProgress).unwrap(), config))
    };
    let expected = run(1, &config);
    assert_eq!(run(2, &config), expected);
    assert_eq!(run(4, &config), expected);
    assert_ne!(run(1, &TrainConfig { seed: 1, ..config.clone() }), expected);
}

#[test]
fn interrupted_run_resumes_to_the_same_model() {
    let (documents, _) = clustered(200, 0);
    let views = noise_views(&documents);
    let config = small();
    let whole = TrainRun::new(&config, &views).train(&NoProgress).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // Stopped twice in the middle of an epoch. The steps of that epoch are lost, as with kill -9.
    for checks in [17, 11] {
        let progress = StopAfter(AtomicI64::new(checks));
        let outcome = TrainRun::new(&config, &views).checkpoint(Some(dir.path())).train(&progress).unwrap();
        assert!(outcome.interrupted);
    }
    let resumed = TrainRun::new(&config, &views).checkpoint(Some(dir.path())).train(&NoProgress).unwrap();
    assert!(!resumed.interrupted);
    assert_eq!(resumed.metrics.curve.len(), whole.metrics.curve.len());
    assert_eq!(bytes(&resumed, &config), bytes(&whole, &config));
    // A finished run trains no further.
    let progress = Notes::default();
    let repeated = TrainRun::new(&config, &views).checkpoint(Some(dir.path())).train(&progress).unwrap();
    assert_eq!(bytes(&repeated, &config), bytes(&whole, &config));
    assert!(progress.0.lock().unwrap().iter().any(|n| n.contains("after epoch 6")));
}

#[test]
fn runs_share_a_directory_and_damaged_or_foreign_checkpoints_are_refused() {
    let (documents, _) = clustered(100, 0);
    let views = noise_views(&documents);
    let config = TrainConfig { epochs: 1, ..small() };
    let dir = tempfile::tempdir().unwrap();
    let run = |config: &TrainConfig| TrainRun::new(config, &views).checkpoint(Some(dir.path())).train(&NoProgress);
    let files = || {
        let all = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
        all.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).collect::<Vec<_>>()
    };
    run(&config).unwrap();
    let path = files().remove(0);
    run(&TrainConfig { seed: 9, ..config.clone() }).unwrap();
    assert_eq!(files().len(), 2, "another seed is another run");
    let other = files().into_iter().find(|p| *p != path).unwrap();

    let fails = |expected: &str| {
        let error = run(&config).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    let last = bad.len() - 5;
    bad[last] ^= 1;
    std::fs::write(&path, bad).unwrap();
    fails("checksum differs");
    std::fs::write(&path, &good[..good.len() / 2]).unwrap();
    fails("not a usable checkpoint");
    std::fs::copy(&other, &path).unwrap();
    fails("other options");
    // More epochs continue the same run.
    std::fs::write(&path, &good).unwrap();
    assert_eq!(run(&TrainConfig { epochs: 2, ..config.clone() }).unwrap().metrics.curve.len(), 2);
    assert_eq!(files().len(), 2);

    let lock = std::fs::File::options().write(true).open(path.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(run(&config).err().unwrap(), Error::Busy(_)));
}

#[test]
fn interruption_returns_the_best_model_or_an_error_before_the_first_epoch() {
    let (documents, _) = clustered(200, 0);
    let views = noise_views(&documents);
    let config = small();
    let progress = StopAfter(AtomicI64::new(3));
    let error = TrainRun::new(&config, &views).train(&progress).err().unwrap();
    assert!(matches!(error, Error::Interrupted));
    let progress = StopAfter(AtomicI64::new(10));
    let outcome = TrainRun::new(&config, &views).train(&progress).unwrap();
    assert!(outcome.interrupted && outcome.metrics.stopped == Stopped::Interrupted);
    let one = TrainConfig { epochs: 1, ..small() };
    let expected = TrainRun::new(&one, &views).train(&NoProgress).unwrap();
    assert_eq!(bytes(&outcome, &config), bytes(&expected, &config), "the model of the one finished epoch");
}

#[test]
fn patience_ends_a_run_that_no_longer_improves() {
    let (documents, _) = clustered(120, 0);
    let views = noise_views(&documents);
    // The rate is too small to change a code, so no epoch after the first can be strictly better.
    let config = TrainConfig { epochs: 50, patience: 2, learning_rate: 1e-9, ..small() };
    let outcome = TrainRun::new(&config, &views).train(&NoProgress).unwrap();
    assert_eq!(outcome.metrics.stopped, Stopped::Patience);
    let metrics = outcome.metrics;
    assert_eq!(metrics.curve.len(), metrics.best_epoch + 3);
}

/// Clean vectors only.
struct Plain(Matrix);

impl Views for Plain {
    fn documents(&self) -> usize {
        self.0.rows()
    }

    fn width(&self) -> usize {
        self.0.cols()
    }

    fn fingerprint(&self) -> String {
        "plain".into()
    }

    fn clean(&self, documents: &[u32], out: &mut [f32]) {
        let rows: Vec<usize> = documents.iter().map(|&d| d as usize).collect();
        out.copy_from_slice(self.0.select(&rows).as_slice());
    }

    fn pair(&self, documents: &[u32], _draw: Draw, out: &mut [f32]) {
        let (first, second) = out.split_at_mut(documents.len() * self.width());
        self.clean(documents, first);
        second.copy_from_slice(first);
    }
}

#[test]
fn nan_in_an_embedding_stops_the_run_and_names_the_document() {
    let (mut documents, _) = clustered(100, 0);
    documents.row_mut(42)[3] = f32::NAN;
    let views = Plain(documents);
    // The seed decides which documents are held out. At least one of two seeds trains on document 42.
    let errors: Vec<String> = (0..2)
        .filter_map(|seed| TrainRun::new(&TrainConfig { seed, ..small() }, &views).train(&NoProgress).err())
        .map(|e| e.to_string())
        .collect();
    assert!(errors.iter().any(|e| e.contains("document 42") && e.contains("epoch 1")), "{errors:?}");
}

#[test]
fn divergence_error_names_the_learning_rate() {
    let (mut documents, _) = clustered(100, 0);
    // The vectors are finite, their products are not.
    documents.as_mut_slice().iter_mut().for_each(|v| *v = 3e38 * v.signum());
    let error = TrainRun::new(&small(), &Plain(documents)).train(&NoProgress).err().unwrap().to_string();
    assert!(error.contains("diverged") && error.contains("learning_rate"), "{error}");
}

#[test]
fn collapse_error_names_epoch_and_option() {
    // All documents are equal, so no code can tell them apart.
    let documents = Matrix::from_vec(WIDTH, vec![0.25; 800 * WIDTH]);
    let mut config = TrainConfig { batch: 4, epochs: 20, patience: 20, ..small() };
    config.objective.prob_weight = 0.0;
    let error = TrainRun::new(&config, &Plain(documents)).train(&NoProgress).err().unwrap().to_string();
    assert!(error.contains("collapsed") && error.contains("epoch 5") && error.contains("prob_weight"), "{error}");
}

#[test]
fn last_batch_of_one_and_corpus_of_three_train_and_corpus_of_two_is_refused() {
    let (documents, _) = clustered(38, 0);
    // 38 documents minus 3 held out: batches of 34 and 1.
    let config = TrainConfig { batch: 34, epochs: 2, ..small() };
    TrainRun::new(&config, &noise_views(&documents)).train(&NoProgress).unwrap();
    let (three, _) = clustered(3, 0);
    TrainRun::new(&config, &noise_views(&three)).train(&NoProgress).unwrap();
    let (two, _) = clustered(2, 0);
    let error = TrainRun::new(&config, &noise_views(&two)).train(&NoProgress).err().unwrap().to_string();
    assert!(error.contains("at least two"), "{error}");
}

#[test]
fn validation_set_that_does_not_fit_is_refused() {
    let (documents, labels) = clustered(40, 0);
    let views = noise_views(&documents);
    let narrow = Matrix::zeros(3, 5);
    let three = Labels::single(vec![0, 1, 2]);
    let fails = |queries: &Matrix, query_labels: &Labels, document_labels: &Labels, expected: &str| {
        let validation = Validation::Labelled { queries, query_labels, document_labels };
        let error =
            TrainRun::new(&small(), &views).validation(validation).train(&NoProgress).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    fails(&narrow, &three, &labels, "use one encoder");
    fails(&documents, &three, &labels, "40 queries have embeddings, 3 have labels");
    fails(&documents, &labels, &three, "3 documents have labels");
}

#[test]
fn options_of_the_authors_code_change_the_model() {
    let (documents, _) = clustered(150, 0);
    let views = noise_views(&documents);
    let base = TrainConfig { epochs: 1, ..small() };
    let run = |config: &TrainConfig| bytes(&TrainRun::new(config, &views).train(&NoProgress).unwrap(), config);
    let expected = run(&base);
    assert_ne!(run(&TrainConfig { clean_first_epoch: false, ..base.clone() }), expected);
    // A gradient of norm above 10 is clipped; its norm shows in the moments of later steps.
    let mut steep = base;
    steep.objective.prob_weight = 200.0;
    assert_ne!(run(&TrainConfig { clip_first_step: true, ..steep.clone() }), run(&steep));
}
