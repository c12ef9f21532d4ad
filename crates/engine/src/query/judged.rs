//! Judged retrieval: how well each way to search an index finds what was judged relevant.
//!
//! The ways are those of a search: by code, re-ranked, hybrid and by keywords; beside them exact float search over the stored
//! vectors. All answer the same queries, encoded once as queries are.

use std::time::Instant;

use kernels::scan::Neighbour;
use serde::Serialize;

use super::ask::{Embedded, Point, Query};
use super::config::{MAX_HITS, Rerank, SearchConfig};
use super::recall::nearest_by_vectors;
use super::searcher::Searcher;
use crate::formats::trec::{Qrels, Run, Scored};
use crate::index::{RerankVectors, Store};
use crate::{Error, Matrix, Progress, Result};

/// Queries searched at a time.
const BATCH: usize = 256;

/// How an index is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedConfig {
    /// Hits of a query that are scored. Recall@100 needs 100.
    pub k: usize,
    /// Candidates that are re-ranked.
    pub rerank: usize,
    /// Weight of the keywords in the hybrid search.
    pub hybrid: f32,
}

impl Default for JudgedConfig {
    fn default() -> Self {
        JudgedConfig { k: 100, rerank: Rerank::DEFAULT, hybrid: 0.5 }
    }
}

/// The scores of one way to search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedWay {
    pub way: String,
    #[serde(flatten)]
    pub scores: Scored,
    /// Of the search alone, without encoding; many queries at a time.
    pub milliseconds_per_query: f64,
}

/// The result of [`Searcher::judge`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedReport {
    pub documents: usize,
    /// Queries that have judgements.
    pub queries: usize,
    pub ways: Vec<JudgedWay>,
    /// Why a way is missing.
    pub missing: Vec<String>,
}

impl Searcher {
    /// Answers those of the named queries that have judgements, in every way the index allows, and scores the answers as
    /// `trec_eval` does. A query is a text or a vector.
    pub fn judge(
        &self,
        queries: &[(String, Query)],
        qrels: &Qrels,
        config: &JudgedConfig,
        progress: &dyn Progress,
    ) -> Result<JudgedReport> {
        if self.indexes().len() > 1 {
            return Err(Error::config("one index is judged at a time; judge each shard by itself"));
        }
        let judged = queries.iter().filter(|(id, _)| qrels.0.contains_key(id)).cloned();
        let (ids, judged): (Vec<String>, Vec<Query>) = judged.unzip();
        if judged.is_empty() {
            return Err(Error::config(format!(
                "none of the {} queries is among the {} with judgements; use the same query ids in both",
                queries.len(),
                qrels.0.len()
            )));
        }
        let embedded = self.embed(&judged, progress)?;
        let mut report =
            JudgedReport { documents: self.documents(), queries: judged.len(), ways: Vec::new(), missing: Vec::new() };
        for (way, search) in self.ways(config, &mut report.missing) {
            search.validate()?;
            progress.stage(&way, Some(embedded.len() as u64));
            let begun = Instant::now();
            let mut found = Vec::with_capacity(embedded.len());
            for batch in embedded.chunks(BATCH) {
                for answer in self.search_embedded(batch, &search, progress)? {
                    found.push(answer.hits.iter().map(|hit| hit.id.to_string()).collect());
                }
                progress.advance(batch.len() as u64);
            }
            report.ways.push(scored(way, &ids, found, qrels, begun));
        }
        if self.index().chunk().is_some() {
            report.missing.push("exact float: a document of this index has a vector per chunk".into());
        } else if self.index().rerank_vectors() != RerankVectors::None {
            let begun = Instant::now();
            let found = self.by_vectors(&embedded, config.k, progress)?;
            report.ways.push(scored("exact float".into(), &ids, found, qrels, begun));
        }
        Ok(report)
    }

    /// The searches that this index can answer, by name.
    fn ways(&self, config: &JudgedConfig, missing: &mut Vec<String>) -> Vec<(String, SearchConfig)> {
        let JudgedConfig { k, rerank, hybrid } = *config;
        let own = SearchConfig { k, documents: false, rerank: Rerank::Off, ..SearchConfig::default() };
        let mut ways = vec![("codes".to_owned(), own.clone())];
        let mut best = own.clone();
        if self.index().rerank_vectors() == RerankVectors::None {
            missing.push("re-ranked and exact float: the index stores no rerank vectors".into());
        } else {
            best.rerank = Rerank::First(rerank.clamp(1, MAX_HITS));
            ways.push((format!("codes, {rerank} re-ranked"), best.clone()));
        }
        if self.index().store() == Store::All {
            ways.push((format!("hybrid {hybrid}"), SearchConfig { hybrid, ..best }));
            ways.push(("BM25".into(), SearchConfig { hybrid: 1.0, ..own }));
        } else {
            missing.push("hybrid and BM25: the index stores no texts".into());
        }
        ways
    }

    /// The ids of the `k` nearest documents of every query by the cosine of all stored vectors.
    fn by_vectors(&self, queries: &[Embedded], k: usize, progress: &dyn Progress) -> Result<Vec<Vec<String>>> {
        let mut rows = Matrix::default();
        for query in queries {
            let Some((Point::Embedding { embedding: vector, .. }, _)) = query.like.first() else {
                return Err(Error::config("a judged query is a text or a vector, not a document of the index"));
            };
            rows.extend(&Matrix::from_vec(vector.len(), vector.clone()));
        }
        let walk = self.index().walk()?;
        let found = nearest_by_vectors(&walk, &rows, k, progress)?;
        let id = |near: Neighbour| Ok(walk.id(near.key as usize)?.to_string());
        found.into_iter().map(|near| near.into_iter().map(id).collect()).collect()
    }
}

/// Scores ranked ids. The rank stands for the score, because equal distances are common among codes and an answer has an order.
fn scored(way: String, queries: &[String], found: Vec<Vec<String>>, qrels: &Qrels, begun: Instant) -> JudgedWay {
    let milliseconds_per_query = begun.elapsed().as_secs_f64() * 1e3 / queries.len() as f64;
    let ranked = |ids: Vec<String>| ids.into_iter().enumerate().map(|(rank, id)| (id, -(rank as f64))).collect();
    let run = Run(queries.iter().cloned().zip(found.into_iter().map(ranked)).collect());
    JudgedWay { way, scores: run.score(qrels), milliseconds_per_query }
}
