//! How well codes keep the particular document and its kind: `document_and_kind DATABASE QUERIES CACHE RUN...`, where a run is
//! `METHOD:BITS:SEED[:NAME=VALUE,...]`.
//!
//! Trains each method as `micpq build` does (all-MiniLM-L6-v2, views noise:12) and prints a JSON line: P@100 by codes, and recall
//! 10@N, the share of the ten nearest by float search among the first N by code. With N candidates re-ranked by float vectors
//! recall 10@N is recall@10. `hits` has both figures of every query, for paired tests. `encoding_seconds` is the time of the clean
//! embeddings when the cache did not have them; `seconds` of a run are without it. No run resumes another: checkpoints are
//! removed first. `benchmarks/document-and-kind/run` calls it.

use std::path::Path;
use std::time::Instant;

use engine::corpus::{Corpus, CorpusConfig};
use engine::encoder::{Embedder, EmbedderConfig};
use engine::search::Flat;
use engine::text::Clean;
use engine::{Error, Matrix, NoProgress, Progress, Result};
use methods::training::Task;
use methods::{Training, find};
use serde_json::{Map, Value, json};
use train::dataset::{Dataset, LabelNames};
use train::float;
use train::metrics::{Labels, Scores};
use train::passes::Passes;
use train::views::ViewChoice;

/// Numbers of candidates by code.
const DEPTHS: [usize; 5] = [100, 200, 400, 800, 1600];
/// Weights of the tables by kind, for a method that learns them.
const WEIGHTS: [f32; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
const VIEWS: ViewChoice = ViewChoice::Noise(12);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [database, queries, cache, runs @ ..] = &args[..] else {
        eprintln!("usage: document_and_kind DATABASE QUERIES CACHE METHOD:BITS:SEED[:NAME=VALUE,...] ...");
        std::process::exit(2);
    };
    let cache = Path::new(cache);
    let embedder = Embedder::load(&EmbedderConfig::default(), &Notes)?;
    let mut names = LabelNames::default();
    let mut read = |path: &str| -> Result<Dataset> {
        let columns = vec!["label".to_owned(), "text".to_owned()];
        let config = CorpusConfig { header: Some(false), columns, ..CorpusConfig::default() };
        Dataset::read(&mut Corpus::open(Path::new(path), &config)?, &mut names, &NoProgress)
    };
    let (documents, asked) = (read(database)?, read(queries)?);
    let vectors = |set: &Dataset| -> Result<Matrix> {
        Ok(Passes::new(&embedder, &set.texts, 0.0, Some(cache), &NoProgress)?.into_clean())
    };
    let begun = Instant::now();
    let rows = vectors(&documents)?;
    let encoding = begun.elapsed().as_secs_f64();
    let questions = vectors(&asked)?;
    let exact = float::search(&rows, &questions, 100, &NoProgress)?.cosine;
    let about = json!({ "database": name(database), "documents": rows.rows(), "queries": questions.rows() });
    let mut line = about.clone();
    line["run"] = json!("float");
    line["encoding_seconds"] = json!(encoding);
    line["p100"] = json!(Scores::of(&exact, &asked.labels, &documents.labels)?.precision.at_100);
    println!("{line}");
    for run in runs {
        let training = parse(run)?;
        let task = Task {
            embedder: Some(&embedder),
            clean: Clean::None,
            dropout: 0.3,
            corpus: &documents,
            validation: None,
            test: None,
            cache,
            passes: Default::default(),
        };
        let checkpoints = cache.join("runs");
        if checkpoints.exists() {
            std::fs::remove_dir_all(&checkpoints).map_err(Error::io(&checkpoints))?;
        }
        let begun = Instant::now();
        let (trained, _) = task.fit(&training, &Notes)?;
        let mut line = about.clone();
        line["run"] = json!(run);
        line["seconds"] = json!(begun.elapsed().as_secs_f64());
        line["parts"] = trained.metrics["seconds"].clone();
        let (projection, codebooks) = (trained.model.projection(), trained.model.codebooks());
        let flat = Flat::new(codebooks.shape(), codebooks.assign(&projection.apply(&rows)?))?;
        let deepest = DEPTHS[DEPTHS.len() - 1];
        let tables = trained.model.tables(&questions, trained.model.config.distance)?;
        let kinds = trained.model.kinds().map(|kinds| kinds.tables(&questions)).transpose()?;
        for weight in WEIGHTS {
            let tables = match &kinds {
                None if weight > 0.0 => continue,
                None => tables.clone(),
                Some(kinds) => tables.iter().zip(kinds).map(|(own, kind)| own.with_kind(kind, weight)).collect(),
            };
            let found = flat.search(&tables, deepest)?;
            let rows = found.into_iter().map(|hits| hits.into_iter().map(|hit| hit.row as u32).collect());
            let measured = measure(&rows.collect::<Vec<_>>(), &exact, &asked.labels, &documents.labels)?;
            line["kind"] = json!(weight);
            measured.into_iter().for_each(|(name, value)| line[name] = value);
            println!("{line}");
        }
    }
    Ok(())
}

fn measure(found: &[Vec<u32>], exact: &[Vec<u32>], asked: &Labels, labels: &Labels) -> Result<Map<String, Value>> {
    let first: Vec<Vec<u32>> = found.iter().map(|list| list[..100.min(list.len())].to_vec()).collect();
    let mut out = Map::new();
    out.insert("p100".into(), json!(Scores::of(&first, asked, labels)?.precision.at_100));
    let kept = |depth: usize| -> Vec<usize> {
        let kept = found.iter().zip(exact).map(|(found, exact)| {
            let found = &found[..depth.min(found.len())];
            exact[..10].iter().filter(|document| found.contains(document)).count()
        });
        kept.collect()
    };
    for depth in DEPTHS {
        let share = kept(depth).iter().sum::<usize>() as f64 / (10 * found.len()) as f64;
        out.insert(format!("recall_10_at_{depth}"), json!(100.0 * share));
    }
    let of_kind = first.iter().enumerate().map(|(query, list)| {
        let own = asked.get(query);
        list.iter().filter(|&&document| labels.get(document as usize).iter().any(|label| own.contains(label))).count()
    });
    out.insert("hits".into(), json!({ "of_kind": of_kind.collect::<Vec<_>>(), "nearest": kept(100) }));
    Ok(out)
}

/// `METHOD:BITS:SEED[:NAME=VALUE,...]`
fn parse(run: &str) -> Result<Training> {
    let wrong = || Error::config(format!("run '{run}': write METHOD:BITS:SEED[:NAME=VALUE,...]"));
    let parts: Vec<&str> = run.splitn(4, ':').collect();
    let [method, bits, seed, options @ ..] = &parts[..] else { return Err(wrong()) };
    let (bits, seed): (usize, u64) = (bits.parse().map_err(|_| wrong())?, seed.parse().map_err(|_| wrong())?);
    let method = find(method)?;
    let pairs = options.iter().flat_map(|o| o.split(',')).map(|pair| {
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        Ok((name, serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()))))
    });
    let pairs: Vec<(&str, Value)> = pairs.collect::<Result<_>>()?;
    let mut training = Training::new(method, bits).with_option("seed", Value::from(seed))?;
    if training.views().is_some() {
        training = training.with_option("views", VIEWS.to_string().into())?;
    }
    let training = pairs.into_iter().try_fold(training, |training, (name, value)| training.with_option(name, value))?;
    training.validate()?;
    Ok(training)
}

fn name(path: &str) -> String {
    Path::new(path).file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Notes to standard error, so that a long run can be watched.
struct Notes;

impl Progress for Notes {
    fn note(&self, text: &str) {
        eprintln!("{text}");
    }

    fn detail(&self, text: &str) {
        eprintln!("{text}");
    }
}
