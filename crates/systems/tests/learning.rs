//! Every learned system on real text: better than its own code before training, the same again under the same seed.

use std::path::PathBuf;
use std::sync::Arc;

use micpq::corpus::{Corpus, CorpusConfig};
use micpq::encoder::{Features, Pooling, Precision};
use micpq::model::Model;
use micpq::search::Flat;
use micpq::text::Clean;
use micpq::{Matrix, Silent};
use systems::inputs::{Inputs, Words, refined};
use systems::job::{self, Job};
use systems::learn::Learner;
use systems::{Input, Method, SystemConfig};
use train::dataset::{Dataset, LabelNames};
use train::evaluate::code_search;
use train::metrics::Scores;
use train::passes::Passes;

const DOCUMENTS: usize = 2000;
const QUERIES: usize = 300;

/// Web snippets of eight kinds, split into documents and queries.
fn snippets() -> Option<(Dataset, Dataset)> {
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    let shared = std::env::var_os("MICPQ_SHARED").map_or(beside, PathBuf::from);
    let path = shared.join("data/short/searchsnippets.csv.gz");
    if !path.exists() {
        println!("skipped: no {}; name the folder above data in MICPQ_SHARED", path.display());
        return None;
    }
    let mut names = LabelNames::default();
    let mut corpus = Corpus::open(&path, &CorpusConfig::default()).unwrap();
    let mut all = Dataset::sample(&mut corpus, DOCUMENTS + QUERIES, 3, &mut names, &Silent).unwrap();
    let order: Vec<u32> =
        train::random::Stream::new(0, train::random::Purpose::Sample, &[]).permutation(all.texts.len());
    let take = |part: &[u32], all: &Dataset| Dataset {
        texts: part.iter().map(|&i| all.texts[i as usize].clone()).collect(),
        labels: all.labels.select(part),
        seen: part.len(),
    };
    let (documents, queries) = (take(&order[..DOCUMENTS], &all), take(&order[DOCUMENTS..], &all));
    all.texts.clear();
    Some((documents, queries))
}

fn encoder() -> Option<Features> {
    match Features::new("all-MiniLM-L6-v2", Pooling::Mean, Some(48), Clean::None, false, Precision::F32) {
        Ok(features) => Some(features),
        Err(problem) => {
            println!("skipped: {problem}");
            None
        }
    }
}

fn precision(learner: &Learner, queries: &Inputs, labels: (&Dataset, &Dataset)) -> f64 {
    let (built, vectors) = learner.built().unwrap();
    let flat = Flat::new(built.codebooks.shape(), built.codebooks.assign(&vectors)).unwrap();
    let asked = refined(&built.front, &built.refine, queries).unwrap();
    let found = code_search(&flat, &built.codebooks, &asked, built.distance, 100).unwrap();
    Scores::of(&found, &labels.1.labels, &labels.0.labels).unwrap().precision.at_100
}

/// P@100 before and after some epochs.
fn gain(
    config: &SystemConfig,
    inputs: &Inputs,
    queries: &Inputs,
    sets: (&Dataset, &Dataset),
    epochs: usize,
) -> (f64, f64) {
    let system = job::system(config, inputs.width()).unwrap();
    let mut learner = Learner::new(system.as_ref(), config, inputs, None);
    let before = precision(&learner, queries, sets);
    for epoch in 1..=epochs {
        let order = train::random::Stream::new(0, train::random::Purpose::Shuffle, &[epoch as u64]);
        for batch in order.permutation(inputs.len()).chunks(config.batch) {
            let loss = learner.step(batch, epoch);
            assert!(loss.is_finite(), "{} diverged in epoch {epoch}", config.method);
        }
    }
    (before, precision(&learner, queries, sets))
}

#[test]
fn words_are_learned_by_every_generative_system() {
    let Some((documents, queries)) = snippets() else { return };
    let lexicon = SystemConfig::new(Method::Nash, 32).lexicon;
    let vocabulary = Arc::new(lexicon.fit(&documents.texts, Clean::None).unwrap());
    for (method, epochs) in [
        (Method::Vdsh, 8),
        (Method::Nash, 8),
        (Method::Wish, 8),
        (Method::Bmsh, 8),
        (Method::Corrsh, 8),
        (Method::Ammi, 8),
    ] {
        let config = SystemConfig { input: Input::Tfidf, ..SystemConfig::new(method, 32) };
        let inputs = |set: &Dataset| {
            let tokens = set.texts.iter().map(|t| vocabulary.terms(t)).collect();
            Inputs::Words(Words::new(vocabulary.clone(), config.weighting, tokens))
        };
        let (before, after) = gain(&config, &inputs(&documents), &inputs(&queries), (&documents, &queries), epochs);
        println!("{method} words: {before:.1} -> {after:.1}");
        assert!(after > before + 5.0, "{method}: {before} before, {after} after");
    }
}

#[test]
fn vectors_are_learned_by_every_system() {
    let (Some((documents, queries)), Some(features)) = (snippets(), encoder()) else { return };
    let cache = tempfile::tempdir().unwrap();
    let vectors = |set: &Dataset| -> Matrix {
        Passes::new(&features, &set.texts, 0.0, Some(cache.path()), &Silent).unwrap().into_clean()
    };
    let (x, q) = (Inputs::Vectors(vectors(&documents)), Inputs::Vectors(vectors(&queries)));
    for method in [Method::Vdsh, Method::Nash, Method::Wish, Method::Bmsh, Method::Corrsh, Method::Ammi, Method::Aepq] {
        let config = SystemConfig { hidden: 256, ..SystemConfig::new(method, 32) };
        let (before, after) = gain(&config, &x, &q, (&documents, &queries), 6);
        println!("{method} vectors: {before:.1} -> {after:.1}");
        assert!(after > before, "{method}: {before} before, {after} after");
    }
    // Through the whole way, from texts: those that compare views, and those that are fitted.
    for (method, least) in
        [(Method::Csh, 60.0), (Method::TwoStage, 60.0), (Method::Pq, 50.0), (Method::Opq, 60.0), (Method::Lopq, 60.0)]
    {
        let config = SystemConfig { epochs: 4, hidden: 256, ..SystemConfig::new(method, 32) };
        let job = Job {
            config,
            features: Some(&features),
            clean: Clean::None,
            dropout: 0.3,
            corpus: &documents,
            validation: Some(&queries),
            test: Some(&queries),
            cache: cache.path(),
        };
        let (trained, (clean, _)) = job.run(&Silent).unwrap();
        let dir = cache.path().join(method.name());
        trained.model.save(&dir, &trained.metrics).unwrap();
        let model = Model::load(&dir).unwrap();
        assert_eq!((model.fingerprint(), model.shape().bits()), (trained.model.fingerprint(), 32));
        let flat = Flat::new(model.shape(), model.encode(&clean).unwrap()).unwrap();
        let Inputs::Vectors(asked) = &q else { unreachable!() };
        let tables = model.tables(asked, model.config.distance).unwrap();
        let found: Vec<Vec<u32>> = flat
            .search(&tables, 100)
            .unwrap()
            .into_iter()
            .map(|hits| hits.into_iter().map(|h| h.row as u32).collect())
            .collect();
        let score = Scores::of(&found, &queries.labels, &documents.labels).unwrap().precision.at_100;
        println!("{method} from texts: {score:.1}");
        assert!(score > least, "{method}: {score}");
    }
}

#[test]
fn a_model_of_words_is_saved_loaded_and_the_same_again() {
    let Some((documents, queries)) = snippets() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = |seed: u64| {
        let config =
            SystemConfig { input: Input::Tfidf, epochs: 2, seed, hidden: 64, ..SystemConfig::new(Method::Vdsh, 32) };
        let job = Job {
            config,
            features: None,
            clean: Clean::Faithful,
            dropout: 0.0,
            corpus: &documents,
            validation: Some(&queries),
            test: Some(&queries),
            cache: dir.path(),
        };
        job.run(&Silent).unwrap()
    };
    let (one, (clean, _)) = run(0);
    assert_eq!(one.model.fingerprint(), run(0).0.model.fingerprint());
    assert_ne!(one.model.fingerprint(), run(1).0.model.fingerprint());
    let place = dir.path().join("model");
    one.model.save(&place, &one.metrics).unwrap();
    let model = Model::load(&place).unwrap();
    assert_eq!(model.fingerprint(), one.model.fingerprint());
    let features = Features::of_model(model.config.features.as_ref().unwrap()).unwrap();
    let codes = model.encode(&features.encode(&documents.texts[..50], &Silent).unwrap()).unwrap();
    assert_eq!(codes, one.model.encode(&clean).unwrap()[..codes.len()]);
    // Medians: every bit is set in half of the documents.
    let all = model.encode(&clean).unwrap();
    let set: u32 = all.iter().map(|b| b.count_ones()).sum();
    let share = f64::from(set) / (all.len() * 8) as f64;
    assert!((share - 0.5).abs() < 0.02, "{share}");
    // A word or a weight that was changed is found.
    let file = place.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let end = bytes.len() - 3;
    bytes[end] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(Model::load(&place).unwrap_err().to_string().contains("train again"));
}
