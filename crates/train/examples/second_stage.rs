//! What the second stage of a search gains and costs: `second_stage MODEL DATABASE QUERIES CACHE [LABEL_FIELD [DOCUMENTS]]`.
//!
//! Prints JSON: P@100 and fidelity of test queries, the share of near-duplicates (half of a document's words, or a view of it
//! under dropout) that find their document first, latency and bytes; by codes alone, with features kept as int8 and as f16,
//! and by exact float search. `benchmarks/second-stage/run` calls it.

use std::path::Path;
use std::time::{Duration, Instant};

use kernels::dropout::mix;
use micpq::corpus::{Corpus, CorpusConfig, DocId, Document};
use micpq::encoder::{Dropout, Features};
use micpq::index::{Index, IndexConfig, Keep, Store};
use micpq::model::Model;
use micpq::query::{Query, Rerank, SearchConfig, Searcher};
use micpq::{Matrix, Result, Silent};
use serde_json::{Value, json};
use train::dataset::{Dataset, LabelNames};
use train::float;
use train::metrics::{Scores, fidelity};
use train::passes::Passes;

/// Documents whose near-duplicates are looked for.
const DUPLICATES: usize = 2000;
/// Queries timed, one by one.
const TIMED: usize = 200;
/// Candidates ranked again, beside the default.
const DEPTHS: [usize; 3] = [50, 200, 1000];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, database, queries, cache, rest @ ..] = &args[..] else {
        eprintln!("usage: second_stage MODEL DATABASE QUERIES CACHE [LABEL_FIELD [DOCUMENTS]]");
        std::process::exit(2);
    };
    let label = rest.first().filter(|name| !name.is_empty()).cloned();
    let most = rest.get(1).map_or(usize::MAX, |n| n.parse().expect("a number of documents"));
    let model = Model::load(Path::new(model))?;
    let features = Features::for_model(&model, None, &Silent)?;
    let mut names = LabelNames::default();
    let mut read = |path: &str| -> Result<(Dataset, Matrix)> {
        let config = CorpusConfig { label_field: label.clone(), unique_ids: false, ..CorpusConfig::default() };
        let mut corpus = Corpus::open(Path::new(path), &config)?;
        let set = Dataset::sample(&mut corpus, most, 0, &mut names, &Silent)?;
        let vectors = Passes::new(&features, &set.texts, 0.0, Some(Path::new(cache)), &Silent)?.into_clean();
        Ok((set, vectors))
    };
    let (documents, vectors) = read(database)?;
    let (asked, questions) = read(queries)?;
    let duplicates = Duplicates::new(&features, &documents, Path::new(cache))?;

    let exact = float::search(&vectors, &questions, 100, &Silent)?.cosine;
    let scores = |found: &[Vec<u32>]| -> Result<Value> {
        Ok(json!({
            "p100": Scores::of(found, &asked.labels, &documents.labels)?.precision.at_100,
            "fidelity": fidelity(&exact, found),
        }))
    };
    let mut rows = Vec::new();
    let mut exact_row = scores(&exact)?;
    exact_row["search"] = json!("exact float");
    exact_row["bytes"] = json!(4 * model.inputs());
    for (name, queries) in &duplicates.queries {
        let found = float::search(&vectors, queries, 1, &Silent)?.cosine;
        exact_row[*name] = json!(duplicates.found(&documents, &found));
    }
    rows.push(exact_row);

    let place = tempfile::tempdir().expect("a temporary directory");
    let searchers = [Keep::Int8, Keep::F16]
        .map(|keep| index(&place.path().join(keep.to_string()), &model, keep, &documents, &vectors))
        .into_iter()
        .collect::<Result<Vec<Searcher>>>()?;
    let mut ways: Vec<(&Searcher, Rerank)> = vec![(&searchers[0], Rerank::Off)];
    ways.extend(searchers.iter().flat_map(|s| DEPTHS.map(|n| (s, Rerank::First(n)))));
    let times = latencies(&ways, &questions)?;
    for ((searcher, rerank), time) in ways.iter().zip(times) {
        let found = search(searcher, &questions, *rerank, 100)?;
        let mut row = scores(&found)?;
        let keep = if *rerank == Rerank::Off { Keep::None } else { searcher.index().keep() };
        row["search"] = json!(match keep {
            Keep::None => "codes alone".to_owned(),
            keep => format!("first {rerank} again by {keep}"),
        });
        row["bytes"] = json!(model.shape().code_bytes() + keep.bytes(model.inputs()));
        row["microseconds"] = json!(time.as_secs_f64() * 1e6);
        for (name, queries) in &duplicates.queries {
            row[*name] = json!(duplicates.found(&documents, &search(searcher, queries, *rerank, 1)?));
        }
        rows.push(row);
    }
    println!(
        "{}",
        json!({
            "bits": model.shape().bits(), "documents": documents.texts.len(), "queries": asked.texts.len(),
            "duplicates": duplicates.rows.len(), "encoder": features.config().encoder,
            "precision": features.config().precision, "model": model.fingerprint(),
            "backend": kernels::Backend::active().name(), "rows": rows,
        })
    );
    Ok(())
}

fn index(dir: &Path, model: &Model, keep: Keep, documents: &Dataset, vectors: &Matrix) -> Result<Searcher> {
    let config = IndexConfig { store: Store::Codes, keep, ..IndexConfig::default() };
    let index = Index::create(dir, model, config)?;
    let mut writer = index.writer()?;
    let rows: Vec<usize> = (0..documents.texts.len()).collect();
    for chunk in rows.chunks(4096) {
        let some: Vec<Document> = chunk
            .iter()
            .map(|&i| Document { id: DocId::Int(i as u64), text: String::new(), labels: vec![], attributes: vec![] })
            .collect();
        writer.add_features(&some, &vectors.select(chunk))?;
    }
    writer.compact(&Silent)?;
    writer.close(&Silent)?;
    Searcher::new(index, None)
}

fn search(searcher: &Searcher, queries: &Matrix, rerank: Rerank, k: usize) -> Result<Vec<Vec<u32>>> {
    let config = SearchConfig { k, rerank, documents: false, ..SearchConfig::default() };
    let mut found = Vec::with_capacity(queries.rows());
    let rows: Vec<&[f32]> = queries.iter().collect();
    for batch in rows.chunks(256) {
        let batch: Vec<Query> = batch.iter().map(|row| Query::vector(row.to_vec())).collect();
        found.extend(searcher.search(&batch, &config, &Silent)?.into_iter().map(|answer| {
            let number = |id: &DocId| match id {
                DocId::Int(n) => *n as u32,
                DocId::Str(_) => unreachable!("all were put in by number"),
            };
            answer.hits.iter().map(|hit| number(&hit.id)).collect::<Vec<u32>>()
        }));
    }
    Ok(found)
}

/// The median time of one query of ten hits by its vector, the ways taking turns so that they share what else the machine
/// does.
fn latencies(ways: &[(&Searcher, Rerank)], queries: &Matrix) -> Result<Vec<Duration>> {
    let mut times = vec![Vec::new(); ways.len()];
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    for i in 0..TIMED + 20 {
        let query = [Query::vector(queries.row(i % queries.rows()).to_vec())];
        for ((searcher, rerank), times) in ways.iter().zip(&mut times) {
            let config = SearchConfig { rerank: *rerank, documents: false, ..SearchConfig::default() };
            let spent = alone.install(|| -> Result<Duration> {
                let begun = Instant::now();
                searcher.search(&query, &config, &Silent)?;
                Ok(begun.elapsed())
            })?;
            // The first ones bring pages in.
            if i >= 20 {
                times.push(spent);
            }
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    Ok(times.into_iter().map(median).collect())
}

/// Documents, and other forms of the same.
struct Duplicates {
    rows: Vec<usize>,
    queries: Vec<(&'static str, Matrix)>,
}

impl Duplicates {
    /// Half of a document's words, from a place that its number decides, and one pass under dropout.
    fn new(features: &Features, documents: &Dataset, cache: &Path) -> Result<Duplicates> {
        let long = |i: &usize| documents.texts[*i].split_whitespace().count() >= 8;
        let mut rows: Vec<usize> = (0..documents.texts.len()).filter(long).collect();
        rows.sort_unstable_by_key(|&i| mix(7, i as u64));
        rows.truncate(DUPLICATES);
        let crop = |&i: &usize| {
            let words: Vec<&str> = documents.texts[i].split_whitespace().collect();
            let from = mix(8, i as u64) as usize % (words.len() - words.len() / 2 + 1);
            words[from..from + words.len() / 2].join(" ")
        };
        let crops: Vec<String> = rows.iter().map(crop).collect();
        let cropped = Passes::new(features, &crops, 0.0, Some(cache), &Silent)?.into_clean();
        let texts: Vec<&str> = rows.iter().map(|&i| documents.texts[i].as_str()).collect();
        let numbers: Vec<u64> = rows.iter().map(|&i| i as u64).collect();
        let dropout = Dropout::new(0.3, 1, 1, &numbers);
        let views = features.encode_tokens(&features.tokens(&texts)?, Some(dropout), &Silent)?;
        Ok(Duplicates { rows, queries: vec![("crop", cropped), ("view", views)] })
    }

    /// Percent of them whose first hit is their document, or one of the very same text.
    fn found(&self, documents: &Dataset, results: &[Vec<u32>]) -> f64 {
        let hit = |(row, result): &(&usize, &Vec<u32>)| {
            result.first().is_some_and(|&first| documents.texts[first as usize] == documents.texts[**row])
        };
        100.0 * self.rows.iter().zip(results).filter(hit).count() as f64 / self.rows.len().max(1) as f64
    }
}
