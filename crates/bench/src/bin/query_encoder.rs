//! Losses and costs of a fast query encoder: `query_encoder INDEX QUERIES [LABEL_FIELD [QUERY_FIELD]]`.
//!
//! Prints JSON: P@100 by code of labelled queries, recall@10 against exact float search by the full encoder, with and without
//! re-ranking, for the full and the fast query encoder, and the time of one query from its text to its distance table, on one
//! thread. QUERY_FIELD is the attribute that is asked, such as a title; default: the text.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use engine::corpus::{Corpus, CorpusConfig, DocId, Document, Value};
use engine::encoder::{QueryEncoder, Role};
use engine::index::RerankVectors;
use engine::query::{Query, Rerank, SearchConfig, Searcher};
use engine::{Error, Matrix, NoProgress, Result};
use serde_json::json;
use train::float;

const TIMED: usize = 2000;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [index, queries, rest @ ..] = &args[..] else {
        eprintln!("usage: query_encoder INDEX QUERIES [LABEL_FIELD [QUERY_FIELD]]");
        std::process::exit(2);
    };
    let label_field = rest.first().filter(|name| !name.is_empty()).cloned();
    let searcher = Searcher::open(Path::new(index), &NoProgress)?;
    let config = CorpusConfig { label_field, unique_ids: false, ..CorpusConfig::default() };
    let asked: Vec<Document> = Corpus::open(Path::new(queries), &config)?.collect::<Result<_>>()?;
    let texts: Vec<String> = asked.iter().map(|document| question(document, rest.get(1))).collect();

    let database = Database::read(&searcher)?;
    let truth = {
        let embedder = searcher.embedder(&NoProgress)?;
        let vectors = embedder.encode_as(Role::Query, &texts, &NoProgress)?;
        // The float yardstick: the full encoder on both sides, without codes.
        let documents = embedder.encode(&database.texts, &NoProgress)?;
        float::search(&documents, &vectors, 10, &NoProgress)?.cosine
    };
    let mut rows = Vec::new();
    for encoder in [QueryEncoder::Full, QueryEncoder::Fast] {
        let by_code = search(&searcher, &texts, encoder, Rerank::Off, 100, &database)?;
        let reranked = match searcher.index().rerank_vectors() {
            RerankVectors::None => None,
            _ => Some(search(&searcher, &texts, encoder, Rerank::Auto, 10, &database)?),
        };
        rows.push(json!({
            "query_encoder": encoder,
            "p100": precision(&by_code, &asked, &database),
            "recall_10": reranked.map(|found| recall(&found, &truth)),
            "recall_10_at_100": recall(&by_code, &truth),
            "microseconds": microseconds(&searcher, &texts, encoder)?,
        }));
    }
    let words: usize = texts.iter().map(|text| text.split_whitespace().count()).sum();
    let fast = searcher.fast_encoder()?;
    println!(
        "{}",
        json!({
            "documents": database.ids.len(), "queries": texts.len(), "words": words as f64 / texts.len() as f64,
            "bits": searcher.index().model().shape().bits(), "width": fast.width(), "learned_from": fast.info().documents,
            "seed": fast.info().seed, "backend": kernels::Backend::active().name(), "rows": rows,
        })
    );
    Ok(())
}

/// The text that is asked.
fn question(document: &Document, field: Option<&String>) -> String {
    let attribute = field.and_then(|name| document.attributes.iter().find(|(known, _)| known == name));
    match attribute {
        Some((_, Value::Text(text))) if !text.trim().is_empty() => text.clone(),
        _ => document.text.clone(),
    }
}

/// The documents of the index, in the order of insertion.
struct Database {
    ids: HashMap<DocId, u32>,
    texts: Vec<String>,
    labels: Vec<Vec<String>>,
}

impl Database {
    fn read(searcher: &Searcher) -> Result<Database> {
        let mut database = Database { ids: HashMap::new(), texts: Vec::new(), labels: Vec::new() };
        for record in searcher.index().records(true)? {
            let record = record?;
            database.ids.insert(record.id, database.texts.len() as u32);
            database.texts.push(record.text.ok_or_else(|| Error::config("the index stores no texts"))?);
            database.labels.push(record.labels);
        }
        Ok(database)
    }
}

fn search(
    searcher: &Searcher,
    texts: &[String],
    encoder: QueryEncoder,
    rerank: Rerank,
    k: usize,
    database: &Database,
) -> Result<Vec<Vec<u32>>> {
    let config = SearchConfig { k, rerank, documents: false, ..SearchConfig::default() };
    let mut found = Vec::with_capacity(texts.len());
    for batch in texts.chunks(256) {
        let queries: Vec<Query> = batch.iter().map(|text| Query { encoder, ..Query::text(text) }).collect();
        for answer in searcher.search(&queries, &config, &NoProgress)? {
            found.push(answer.hits.iter().map(|hit| database.ids[&hit.id]).collect());
        }
    }
    Ok(found)
}

/// Share of the hits that have a label of the query, over queries that have one.
fn precision(found: &[Vec<u32>], asked: &[Document], database: &Database) -> f64 {
    let shares: Vec<f64> = found
        .iter()
        .zip(asked)
        .filter(|(_, query)| !query.labels.is_empty())
        .map(|(hits, query)| {
            let same = |hit: &&u32| database.labels[**hit as usize].iter().any(|label| query.labels.contains(label));
            hits.iter().filter(same).count() as f64 / hits.len().max(1) as f64
        })
        .collect();
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

fn recall(found: &[Vec<u32>], truth: &[Vec<u32>]) -> f64 {
    let share = |(hits, truth): (&Vec<u32>, &Vec<u32>)| {
        truth.iter().filter(|document| hits.contains(document)).count() as f64 / truth.len().max(1) as f64
    };
    found.iter().zip(truth).map(share).sum::<f64>() / found.len().max(1) as f64
}

/// Median time from a text to its distance table, in microseconds, on one thread: tokens and encoder; and all of it.
fn microseconds(searcher: &Searcher, texts: &[String], encoder: QueryEncoder) -> Result<serde_json::Value> {
    let model = searcher.index().model();
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    let timed = if encoder == QueryEncoder::Fast { TIMED } else { TIMED / 10 };
    let mut times: [Vec<f64>; 2] = Default::default();
    alone.install(|| -> Result<()> {
        for i in 0..timed + 50 {
            let text = [&texts[i % texts.len()]];
            let begun = Instant::now();
            let (encoded, all) = match encoder {
                QueryEncoder::Full => {
                    let vectors: Matrix = searcher.embedder(&NoProgress)?.encode_as(Role::Query, &text, &NoProgress)?;
                    let encoded = begun.elapsed();
                    std::hint::black_box(model.tables(&vectors, model.config.distance)?);
                    (encoded, begun.elapsed())
                }
                QueryEncoder::Fast => {
                    let fast = searcher.fast_encoder()?;
                    let (_, projected) = fast.encode(&fast.tokens(&text)?);
                    let encoded = begun.elapsed();
                    std::hint::black_box(model.codebooks().table(projected.row(0), model.config.distance));
                    (encoded, begun.elapsed())
                }
            };
            // The first queries load pages into memory.
            if i >= 50 {
                times[0].push(encoded.as_secs_f64() * 1e6);
                times[1].push(all.as_secs_f64() * 1e6);
            }
        }
        Ok(())
    })?;
    let at = |times: &mut Vec<f64>, share: f64| {
        times.sort_unstable_by(f64::total_cmp);
        times[(share * (times.len() - 1) as f64) as usize]
    };
    let [mut encoded, mut all] = times;
    Ok(json!({ "encoded": at(&mut encoded, 0.5), "table": at(&mut all, 0.5), "table_p99": at(&mut all, 0.99) }))
}
