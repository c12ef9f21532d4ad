//! Gain and cost of re-ranking: `rerank MODEL DATABASE QUERIES CACHE [LABEL_FIELD [DOCUMENTS]]`.
//!
//! Prints JSON: P@100 and recall 10@100 of test queries, the share of near-duplicates (half of a document's terms, or a view
//! of it under dropout) that find their document first, latency and bytes. It compares codes alone, rerank vectors as int8
//! and as f16, and exact float search. `benchmarks/second-stage/run` calls it.

use std::path::Path;
use std::time::{Duration, Instant};

use engine::corpus::{Corpus, CorpusConfig, DocId, Document};
use engine::encoder::{Dropout, Embedder};
use engine::index::{Index, IndexConfig, RerankVectors, Store};
use engine::model::Model;
use engine::query::{Query, Rerank, SearchConfig, Searcher};
use engine::{Matrix, NoProgress, Result};
use kernels::dropout::mix;
use serde_json::{Value, json};
use train::dataset::{Dataset, LabelNames};
use train::float;
use train::metrics::{Scores, recall_10_at_100};
use train::passes::Passes;

/// Documents whose near-duplicates are queries.
const DUPLICATES: usize = 2000;
/// Timed queries; each is searched alone.
const TIMED: usize = 200;
/// Numbers of re-ranked candidates.
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
    let embedder = model.embedder(None, &NoProgress)?;
    let mut names = LabelNames::default();
    let mut read = |path: &str| -> Result<(Dataset, Matrix)> {
        let config = CorpusConfig { label_field: label.clone(), unique_ids: false, ..CorpusConfig::default() };
        let mut corpus = Corpus::open(Path::new(path), &config)?;
        let set = Dataset::sample(&mut corpus, most, 0, &mut names, &NoProgress)?;
        let vectors = Passes::new(&embedder, &set.texts, 0.0, Some(Path::new(cache)), &NoProgress)?.into_clean();
        Ok((set, vectors))
    };
    let (documents, vectors) = read(database)?;
    let (asked, questions) = read(queries)?;
    let duplicates = Duplicates::new(&embedder, &documents, Path::new(cache))?;

    let exact = float::search(&vectors, &questions, 100, &NoProgress)?.cosine;
    let scores = |found: &[Vec<u32>]| -> Result<Value> {
        Ok(json!({
            "p100": Scores::of(found, &asked.labels, &documents.labels)?.precision.at_100,
            "recall_10_at_100": recall_10_at_100(&exact, found),
        }))
    };
    let mut rows = Vec::new();
    let mut exact_row = scores(&exact)?;
    exact_row["search"] = json!("exact float");
    exact_row["bytes"] = json!(4 * model.inputs());
    for (name, queries) in &duplicates.queries {
        let found = float::search(&vectors, queries, 1, &NoProgress)?.cosine;
        exact_row[*name] = json!(duplicates.found(&documents, &found));
    }
    rows.push(exact_row);

    let place = tempfile::tempdir().expect("a temporary directory");
    let searchers = [RerankVectors::Int8, RerankVectors::F16]
        .map(|keep| index(&place.path().join(keep.to_string()), &model, keep, &documents, &vectors))
        .into_iter()
        .collect::<Result<Vec<Searcher>>>()?;
    let mut ways: Vec<(&Searcher, Rerank)> = vec![(&searchers[0], Rerank::Off)];
    ways.extend(searchers.iter().flat_map(|s| DEPTHS.map(|n| (s, Rerank::First(n)))));
    let times = latencies(&ways, &questions)?;
    for ((searcher, rerank), time) in ways.iter().zip(times) {
        let found = search(searcher, &questions, *rerank, 100)?;
        let mut row = scores(&found)?;
        let keep = if *rerank == Rerank::Off { RerankVectors::None } else { searcher.index().rerank_vectors() };
        row["search"] = json!(match keep {
            RerankVectors::None => "codes alone".to_owned(),
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
            "duplicates": duplicates.rows.len(), "encoder": embedder.config().encoder,
            "precision": embedder.config().precision, "model": model.fingerprint(),
            "backend": kernels::Backend::active().name(), "rows": rows,
        })
    );
    Ok(())
}

fn index(
    dir: &Path,
    model: &Model,
    rerank_vectors: RerankVectors,
    documents: &Dataset,
    vectors: &Matrix,
) -> Result<Searcher> {
    let config = IndexConfig { store: Store::Codes, rerank_vectors, ..IndexConfig::default() };
    let index = Index::create(dir, model, config)?;
    let mut writer = index.writer()?;
    let rows: Vec<usize> = (0..documents.texts.len()).collect();
    for chunk in rows.chunks(4096) {
        let some: Vec<Document> = chunk
            .iter()
            .map(|&i| Document { id: DocId::Int(i as u64), text: String::new(), labels: vec![], attributes: vec![] })
            .collect();
        writer.add_embeddings(&some, &vectors.select(chunk))?;
    }
    writer.compact(&NoProgress)?;
    writer.close(&NoProgress)?;
    Searcher::new(index, None)
}

fn search(searcher: &Searcher, queries: &Matrix, rerank: Rerank, k: usize) -> Result<Vec<Vec<u32>>> {
    let config = SearchConfig { k, rerank, documents: false, ..SearchConfig::default() };
    let mut found = Vec::with_capacity(queries.rows());
    let rows: Vec<&[f32]> = queries.iter().collect();
    for batch in rows.chunks(256) {
        let batch: Vec<Query> = batch.iter().map(|row| Query::vector(row.to_vec())).collect();
        found.extend(searcher.search(&batch, &config, &NoProgress)?.into_iter().map(|answer| {
            let number = |id: &DocId| match id {
                DocId::Int(n) => *n as u32,
                DocId::Str(_) => unreachable!("all were put in by number"),
            };
            answer.hits.iter().map(|hit| number(&hit.id)).collect::<Vec<u32>>()
        }));
    }
    Ok(found)
}

/// Median time of one query by its vector with ten hits. The configurations alternate, so other load on the machine
/// affects all of them alike.
fn latencies(ways: &[(&Searcher, Rerank)], queries: &Matrix) -> Result<Vec<Duration>> {
    let mut times = vec![Vec::new(); ways.len()];
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    for i in 0..TIMED + 20 {
        let query = [Query::vector(queries.row(i % queries.rows()).to_vec())];
        for ((searcher, rerank), times) in ways.iter().zip(&mut times) {
            let config = SearchConfig { rerank: *rerank, documents: false, ..SearchConfig::default() };
            let spent = alone.install(|| -> Result<Duration> {
                let begun = Instant::now();
                searcher.search(&query, &config, &NoProgress)?;
                Ok(begun.elapsed())
            })?;
            // The first queries load pages into memory.
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

/// Documents and near-duplicates of them.
struct Duplicates {
    rows: Vec<usize>,
    queries: Vec<(&'static str, Matrix)>,
}

impl Duplicates {
    /// Each document has two near-duplicates: half of its terms, from a position that its number decides, and a view under
    /// dropout.
    fn new(embedder: &Embedder, documents: &Dataset, cache: &Path) -> Result<Duplicates> {
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
        let cropped = Passes::new(embedder, &crops, 0.0, Some(cache), &NoProgress)?.into_clean();
        let texts: Vec<&str> = rows.iter().map(|&i| documents.texts[i].as_str()).collect();
        let numbers: Vec<u64> = rows.iter().map(|&i| i as u64).collect();
        let dropout = Dropout::new(0.3, 1, 1, &numbers);
        let views = embedder.encode_tokens(&embedder.tokens(&texts)?, Some(dropout), &NoProgress)?;
        Ok(Duplicates { rows, queries: vec![("crop", cropped), ("view", views)] })
    }

    /// Percentage of queries whose first hit is their document or one with the same text.
    fn found(&self, documents: &Dataset, results: &[Vec<u32>]) -> f64 {
        let hit = |(row, result): &(&usize, &Vec<u32>)| {
            result.first().is_some_and(|&first| documents.texts[first as usize] == documents.texts[**row])
        };
        100.0 * self.rows.iter().zip(results).filter(hit).count() as f64 / self.rows.len().max(1) as f64
    }
}
