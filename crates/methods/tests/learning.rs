//! Every learned method on real text: training improves its codes, and equal seeds give equal models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::corpus::{Corpus, CorpusConfig};
use engine::encoder::{Embedder, EmbedderConfig, Pooling, Precision};
use engine::model::Model;
use engine::search::Flat;
use engine::text::Clean;
use engine::{Matrix, NoProgress};
use methods::inputs::{Built, Inputs, TermRows, Validation, projected};
use methods::learn::Learner;
use methods::training::Task;
use methods::{GradientMethod, Input, MethodConfig, Prepared, Training, aepq, ammi, bmsh, corrsh, nash, vdsh, wish};
use train::dataset::{Dataset, LabelNames};
use train::evaluate::code_search;
use train::job::Vectors;
use train::metrics::Scores;
use train::passes::Passes;
use train::views::ViewChoice;

const DOCUMENTS: usize = 2000;
const QUERIES: usize = 300;

fn shared() -> PathBuf {
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    std::env::var_os("MICPQ_SHARED").map_or(beside, PathBuf::from)
}

/// A sample of a corpus, split into documents and queries.
fn split(path: &Path, documents: usize, queries: usize) -> (Dataset, Dataset) {
    let mut names = LabelNames::default();
    let mut corpus = Corpus::open(path, &CorpusConfig { unique_ids: false, ..CorpusConfig::default() }).unwrap();
    let all = Dataset::sample(&mut corpus, documents + queries, 3, &mut names, &NoProgress).unwrap();
    let order: Vec<u32> =
        train::random::Stream::new(0, train::random::Purpose::Sample, &[]).permutation(all.texts.len());
    let take = |part: &[u32]| Dataset {
        texts: part.iter().map(|&i| all.texts[i as usize].clone()).collect(),
        labels: all.labels.select(part),
        positions: part.iter().map(|&i| i as usize).collect(),
        seen: part.len(),
    };
    (take(&order[..documents]), take(&order[documents..]))
}

/// Web snippets of eight classes.
fn snippets() -> Option<(Dataset, Dataset)> {
    let path = shared().join("data/short/searchsnippets.csv.gz");
    if !path.exists() {
        println!("skipped: {} is missing; set MICPQ_SHARED to the folder above data", path.display());
        return None;
    }
    Some(split(&path, DOCUMENTS, QUERIES))
}

fn encoder() -> Option<Embedder> {
    match Embedder::load_local(&EmbedderConfig {
        max_tokens: Some(48),
        precision: Precision::F32,
        // As in the paper, not scaled to unit length.
        pooling: Pooling::Mean.into(),
        ..EmbedderConfig::default()
    }) {
        Ok(embedder) => Some(embedder),
        Err(problem) => {
            println!("skipped: {problem}");
            None
        }
    }
}

fn precision(built: &Built, documents: &Inputs, queries: &Inputs, labels: (&Dataset, &Dataset)) -> f64 {
    let vectors = projected(&built.front, &built.projection, documents).unwrap();
    let flat = Flat::new(built.codebooks.shape(), built.codebooks.assign(&vectors)).unwrap();
    let asked = projected(&built.front, &built.projection, queries).unwrap();
    let found = code_search(&flat, &built.codebooks, &asked, built.distance, 100).unwrap();
    Scores::of(&found, &labels.1.labels, &labels.0.labels).unwrap().precision.at_100
}

/// P@100 before and after training.
fn gain(
    method: &GradientMethod,
    config: &MethodConfig,
    inputs: &Inputs,
    queries: &Inputs,
    sets: (&Dataset, &Dataset),
) -> (f64, f64) {
    let network = (method.network)(config, inputs.width()).unwrap();
    let (untrained, _) = Learner::new(network.as_ref(), config, inputs, None, &NoProgress).built().unwrap();
    let validation = Validation { queries, query_labels: &sets.1.labels, document_labels: &sets.0.labels };
    let prepared = Prepared { validation: Some(validation), ..Prepared::documents(inputs) };
    let fitted = Training::from(config.clone()).fit(&prepared, &NoProgress).unwrap();
    (precision(&untrained, inputs, queries, sets), precision(&fitted.built, inputs, queries, sets))
}

/// 4,400 texts of the news corpus: documents and queries.
fn news() -> Option<(Dataset, Dataset)> {
    let path = shared().join("data/agnews/train.csv.gz");
    if !path.exists() {
        println!("skipped: {} is missing; set MICPQ_SHARED to the folder above data", path.display());
        return None;
    }
    Some(split(&path, 4000, 400))
}

#[test]
fn every_generative_method_learns_from_terms() {
    let Some((documents, queries)) = news() else { return };
    // 4,000 texts give few steps: hence a small vocabulary, and larger rates where the published ones are small. P@100 of four
    // even classes is 25 by chance.
    for (method, epochs, rate, min) in [
        (vdsh::METHOD, 4, 3e-3, 50.0),
        (nash::METHOD, 8, 3e-3, 50.0),
        (wish::METHOD, 5, 1e-2, 50.0),
        (bmsh::METHOD, 5, 1e-2, 50.0),
        (corrsh::METHOD, 9, 1e-2, 50.0),
        (ammi::METHOD, 2, 1e-2, 50.0),
    ] {
        let mut config = MethodConfig {
            input: Input::Tfidf,
            epochs,
            learning_rate: rate,
            ..MethodConfig::named(method.name, 32).unwrap()
        };
        config.lexicon.vocabulary = 2000;
        let vocabulary = Arc::new(config.lexicon.fit(&documents.texts, Clean::None).unwrap());
        let inputs = |set: &Dataset| {
            let tokens = set.texts.iter().map(|t| vocabulary.term_numbers(t)).collect();
            Inputs::Terms(TermRows::new(vocabulary.clone(), config.weighting, tokens))
        };
        let (before, after) = gain(&method, &config, &inputs(&documents), &inputs(&queries), (&documents, &queries));
        let method = method.name;
        println!("{method} terms: {before:.1} -> {after:.1}");
        assert!(after > before + 10.0 && after > min, "{method}: {before} before, {after} after");
    }
}

#[test]
fn every_method_learns_from_embeddings() {
    let (Some((documents, queries)), Some(embedder)) = (snippets(), encoder()) else { return };
    let cache = tempfile::tempdir().unwrap();
    let vectors = |set: &Dataset| -> Matrix {
        Passes::new(&embedder, &set.texts, 0.0, Some(cache.path()), &NoProgress).unwrap().into_clean()
    };
    let (x, q) = (Inputs::Embeddings(vectors(&documents)), Inputs::Embeddings(vectors(&queries)));
    for (method, epochs, rate) in [
        (vdsh::METHOD, 4, 3e-3),
        (nash::METHOD, 6, 3e-3),
        (wish::METHOD, 8, 1e-2),
        (bmsh::METHOD, 6, 3e-3),
        (corrsh::METHOD, 6, 5e-3),
        (ammi::METHOD, 4, 1e-2),
        (aepq::METHOD, 8, 1e-3),
    ] {
        let config =
            MethodConfig { epochs, learning_rate: rate, hidden: 256, ..MethodConfig::named(method.name, 32).unwrap() };
        let (before, after) = gain(&method, &config, &x, &q, (&documents, &queries));
        let method = method.name;
        println!("{method} embeddings: {before:.1} -> {after:.1}");
        assert!(after > before + 3.0 && after > 40.0, "{method}: {before} before, {after} after");
    }
    // From texts: methods that read views, and methods without epochs.
    for (method, min) in [("csh", 50.0), ("two-stage", 50.0), ("pq", 45.0), ("opq", 45.0), ("lopq", 45.0)] {
        // CSH starts slowly: 36 after four epochs of 2,000 documents, 62 after twenty. P@100 of eight classes is about 14 by
        // chance.
        let views = ViewChoice::Noise(4);
        let config = MethodConfig { epochs: 20, hidden: 256, views, ..MethodConfig::named(method, 32).unwrap() };
        let task = Task {
            embedder: Some(&embedder),
            clean: Clean::None,
            dropout: 0.3,
            corpus: &documents,
            validation: Some(&queries),
            test: Some(&queries),
            cache: cache.path(),
            passes: Default::default(),
        };
        let (trained, Vectors { rows: clean, .. }) = task.fit(&Training::from(config), &NoProgress).unwrap();
        let dir = cache.path().join(method);
        trained.model.save(&dir, &trained.metrics).unwrap();
        let model = Model::load(&dir).unwrap();
        assert_eq!((model.fingerprint(), model.shape().bits()), (trained.model.fingerprint(), 32));
        let flat = Flat::new(model.shape(), model.encode(&clean).unwrap()).unwrap();
        let Inputs::Embeddings(asked) = &q else { unreachable!() };
        let tables = model.tables(asked, model.config.distance).unwrap();
        let found: Vec<Vec<u32>> = flat
            .search(&tables, 100)
            .unwrap()
            .into_iter()
            .map(|hits| hits.into_iter().map(|h| h.row as u32).collect())
            .collect();
        let score = Scores::of(&found, &queries.labels, &documents.labels).unwrap().precision.at_100;
        println!("{method} from texts: {score:.1}");
        assert!(score > min, "{method}: {score}");
    }
}

#[test]
fn model_on_terms_is_reproducible_and_detects_damage() {
    let Some((documents, queries)) = snippets() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = |seed: u64| {
        let config = MethodConfig {
            input: Input::Tfidf,
            epochs: 2,
            seed,
            hidden: 64,
            ..MethodConfig::named("vdsh", 32).unwrap()
        };
        let task = Task {
            embedder: None,
            clean: Clean::Faithful,
            dropout: 0.0,
            corpus: &documents,
            validation: Some(&queries),
            test: Some(&queries),
            cache: dir.path(),
            passes: Default::default(),
        };
        task.fit(&Training::from(config), &NoProgress).unwrap()
    };
    let (one, Vectors { rows: clean, .. }) = run(0);
    assert_eq!(one.model.fingerprint(), run(0).0.model.fingerprint());
    assert_ne!(one.model.fingerprint(), run(1).0.model.fingerprint());
    let path = dir.path().join("model");
    one.model.save(&path, &one.metrics).unwrap();
    let model = Model::load(&path).unwrap();
    assert_eq!(model.fingerprint(), one.model.fingerprint());
    let embedder = Embedder::of_model(model.config.embedding.as_ref().unwrap()).unwrap();
    let codes = model.encode(&embedder.encode(&documents.texts[..50], &NoProgress).unwrap()).unwrap();
    assert_eq!(codes, one.model.encode(&clean).unwrap()[..codes.len()]);
    // Medians: every bit is set in half of the documents.
    let all = model.encode(&clean).unwrap();
    let set: u32 = all.iter().map(|b| b.count_ones()).sum();
    let share = f64::from(set) / (all.len() * 8) as f64;
    assert!((share - 0.5).abs() < 0.02, "{share}");
    // A changed byte is detected.
    let file = path.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let end = bytes.len() - 3;
    bytes[end] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(Model::load(&path).unwrap_err().to_string().contains("train again"));
}
