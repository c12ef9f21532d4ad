//! Recall you can watch: how much of exact float search an index finds, measured on its own documents.
//!
//! Sampled documents are queries, by their stored rerank vectors. Exact search over all stored vectors gives their true
//! neighbours. The share of those among the first N by code is the recall after N candidates are re-ranked, because re-ranking
//! orders them by the same vectors. Windows follow the order of insertion: documents added since training are in the last.

use std::sync::Arc;

use kernels::gemm::{Epilogue, PackedWeight};
use kernels::scan::{Neighbour, TopK};
use rayon::prelude::*;
use serde::Serialize;

use super::config::{MAX_HITS, Rerank};
use super::searcher::Searcher;
use crate::index::{RerankVectors, Walk};
use crate::search::TopKRequest;
use crate::{Error, Matrix, Progress, Result};

/// Documents compared with the queries at a time.
const BLOCK: usize = 1024;
/// Numbers of candidates that are reported, and that a target chooses from.
const DEPTHS: [usize; 9] = [50, 100, 200, 400, 800, 1600, 3200, 6400, MAX_HITS];
/// With fewer documents recall says nothing: the candidates are most of the index.
const MIN_DOCUMENTS: usize = 1000;
/// A window this much below the first one has drifted.
const DRIFT: f64 = 0.05;

/// How recall is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct RecallConfig {
    /// Documents that are queries, over all windows together.
    pub queries: usize,
    /// Neighbours that should be found.
    pub k: usize,
    /// Parts of equal size in the order of insertion.
    pub windows: usize,
    /// Candidates that a search re-ranks.
    pub rerank: usize,
}

impl Default for RecallConfig {
    fn default() -> Self {
        RecallConfig { queries: 400, k: 10, windows: 4, rerank: Rerank::DEFAULT }
    }
}

impl RecallConfig {
    pub fn validate(&self) -> Result<()> {
        Error::check_count("queries", self.queries, 100_000)?;
        Error::check_count("k", self.k, 1000)?;
        Error::check_count("windows", self.windows, 1000)?;
        Error::check_count("rerank", self.rerank, MAX_HITS)
    }
}

/// Recall with a number of candidates re-ranked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DepthRecall {
    pub rerank: usize,
    pub recall: f64,
}

/// Recall of the documents of a window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowRecall {
    /// Place of the first document in the order of insertion, counted from 0.
    pub first: usize,
    pub documents: usize,
    pub queries: usize,
    pub recall: f64,
}

/// The result of [`Searcher::recall`]. Recalls are shares, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecallReport {
    pub k: usize,
    pub documents: usize,
    pub queries: usize,
    pub rerank: usize,
    /// With `rerank` candidates re-ranked.
    pub recall: f64,
    /// The most that chance gives: standard error of `recall` over the queries.
    pub standard_error: f64,
    pub depths: Vec<DepthRecall>,
    pub windows: Vec<WindowRecall>,
    pub advice: String,
}

impl RecallReport {
    /// The smallest reported number of candidates that reaches `target`, or `None`.
    pub fn rerank_for(&self, target: f64) -> Option<DepthRecall> {
        self.depths.iter().copied().find(|depth| depth.recall >= target)
    }
}

impl Searcher {
    /// Measures recall on documents of the index. It reads every stored vector once.
    pub fn recall(&self, config: &RecallConfig, progress: &dyn Progress) -> Result<RecallReport> {
        config.validate()?;
        if self.indexes().len() > 1 {
            return Err(Error::config("recall is measured on one index; measure each shard by itself"));
        }
        self.index().expect_one_code_per_document("recall")?;
        expect_vectors(self.index().rerank_vectors())?;
        let walk = self.index().walk()?;
        expect_enough(walk.len())?;
        let windows = windows(walk.len(), config);
        let asked: Vec<usize> = windows.iter().flat_map(|w| w.queries.iter().copied()).collect();
        let queries = vectors(&walk, &asked)?;
        let exact = nearest_by_vectors(&walk, &queries, config.k + 1, progress)?;
        let others = |(found, own): (Vec<Neighbour>, &usize)| -> Vec<usize> {
            found.into_iter().map(|near| near.key as usize).filter(|place| place != own).take(config.k).collect()
        };
        let exact: Vec<Vec<usize>> = exact.into_iter().zip(&asked).map(others).collect();
        let ranks = self.ranks(&walk, &queries, &asked, &exact)?;
        Ok(report(config, walk.len(), &windows, &ranks))
    }

    /// Candidates to re-rank so that `k` hits have a recall of `target`, 0 to 1. It is measured once per commit and `k`.
    pub fn rerank_for(&self, target: f64, k: usize, progress: &dyn Progress) -> Result<DepthRecall> {
        if !(target > 0.0 && target <= 1.0) {
            return Err(Error::option("target_recall", format!("is {target}; give a share above 0 and at most 1")));
        }
        let documents = self.documents();
        if self.index().rerank_vectors() != RerankVectors::None && documents < MIN_DOCUMENTS.max(k) {
            return Ok(DepthRecall { rerank: documents.max(1), recall: 1.0 });
        }
        let place = (self.index().reader()?.number(), k);
        let known = self.measured().lock().as_ref().filter(|(at, _)| *at == place).map(|(_, report)| report.clone());
        let report = match known {
            Some(report) => report,
            None => {
                let report = Arc::new(self.recall(&RecallConfig { k, ..RecallConfig::default() }, progress)?);
                *self.measured().lock() = Some((place, report.clone()));
                report
            }
        };
        report.rerank_for(target).ok_or_else(|| {
            let best = report.depths.last().map_or(0.0, |depth| depth.recall);
            Error::option("target_recall", format!(
                "is {target}, and with {MAX_HITS} candidates re-ranked recall@{k} of this index is {best:.3}; build it \
                 with more bits, or with the method opq"
            ))
        })
    }

    /// For every query the places of its true neighbours in the order by code, counted from 0; [`MAX_HITS`] where it is beyond.
    fn ranks(&self, walk: &Walk, queries: &Matrix, asked: &[usize], exact: &[Vec<usize>]) -> Result<Vec<Vec<usize>>> {
        let (model, reader) = (self.index().model(), walk.reader());
        let projected = model.projection().apply(queries)?;
        let request = TopKRequest { k: MAX_HITS, radius: None, after: None };
        let mut ranks = Vec::with_capacity(asked.len());
        // One query at a time bounds the memory of the lists.
        for (i, exact) in exact.iter().enumerate() {
            let table = model.codebooks().table(projected.row(i), model.config.distance);
            let (near, _) = reader.nearest(&[table], &request, None)?.pop().expect("a list for the table");
            let own = walk.address(asked[i]);
            let order: std::collections::HashMap<_, usize> =
                near.iter().map(|c| c.address).filter(|address| *address != own).zip(0..).collect();
            ranks.push(exact.iter().map(|&n| order.get(&walk.address(n)).copied().unwrap_or(MAX_HITS)).collect());
        }
        Ok(ranks)
    }
}

pub(super) fn expect_enough(documents: usize) -> Result<()> {
    if documents < MIN_DOCUMENTS {
        let problem = format!("the index has {documents} documents; recall says something from {MIN_DOCUMENTS} on");
        return Err(Error::config(problem));
    }
    Ok(())
}

pub(super) fn expect_vectors(stored: RerankVectors) -> Result<()> {
    if stored == RerankVectors::None {
        return Err(Error::config(
            "the index stores no rerank vectors to compare with; build it with rerank_vectors int8 or f16",
        ));
    }
    Ok(())
}

/// A part of the documents and those of them that are queries, by their place in the order of insertion.
pub(super) struct Window {
    first: usize,
    documents: usize,
    pub queries: Vec<usize>,
}

pub(super) fn windows(documents: usize, config: &RecallConfig) -> Vec<Window> {
    let count = config.windows.min(documents);
    let each = config.queries.div_ceil(count);
    (0..count)
        .map(|window| {
            let (first, end) = (documents * window / count, documents * (window + 1) / count);
            let (size, some) = (end - first, each.min(end - first));
            // Evenly spread: the same index gives the same figure.
            let queries = (0..some).map(|i| first + (2 * i + 1) * size / (2 * some)).collect();
            Window { first, documents: size, queries }
        })
        .collect()
}

pub(super) fn vectors(walk: &Walk, places: &[usize]) -> Result<Matrix> {
    let mut rows = Matrix::default();
    for &place in places {
        let vector = walk.vector(place)?.expect("the index stores vectors, checked above");
        rows.extend(&Matrix::from_vec(vector.len(), vector));
    }
    Ok(rows)
}

/// The `k` nearest documents of every query by the cosine of all stored vectors, by their place in the order of insertion, with
/// 1 minus the cosine.
pub(super) fn nearest_by_vectors(
    walk: &Walk,
    queries: &Matrix,
    k: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<Neighbour>>> {
    progress.stage("searching by stored vectors", Some(walk.len() as u64));
    let count = queries.rows();
    let mut unit = queries.clone();
    unit.normalize_rows();
    let (weight, zeros) = (PackedWeight::new(unit.as_slice(), count, unit.cols()), vec![0.0; count]);
    let starts: Vec<usize> = (0..walk.len()).step_by(BLOCK).collect();
    let empty = || (0..count).map(|_| TopK::new(k)).collect::<Vec<TopK>>();
    let parts: Vec<Vec<TopK>> = starts
        .par_chunks(starts.len().div_ceil(rayon::current_num_threads()).max(1))
        .map(|starts| {
            let mut best = empty();
            for &start in starts {
                if progress.interrupted() {
                    return Err(Error::Interrupted);
                }
                let places: Vec<usize> = (start..(start + BLOCK).min(walk.len())).collect();
                let mut rows = vectors(walk, &places)?;
                rows.normalize_rows();
                let mut cosines = vec![0.0; places.len() * count];
                weight.multiply(rows.as_slice(), &mut cosines, places.len(), Epilogue::Bias(&zeros));
                for (row, place) in cosines.chunks_exact(count).zip(places) {
                    for (best, cosine) in best.iter_mut().zip(row) {
                        best.push(Neighbour { distance: 1.0 - cosine, key: place as u32 });
                    }
                }
                progress.advance(rows.rows() as u64);
            }
            Ok(best)
        })
        .collect::<Result<_>>()?;
    let mut best = empty();
    for part in parts {
        for (best, part) in best.iter_mut().zip(part) {
            part.into_sorted().into_iter().for_each(|neighbour| _ = best.push(neighbour));
        }
    }
    Ok(best.into_iter().map(TopK::into_sorted).collect())
}

pub(super) fn report(
    config: &RecallConfig,
    documents: usize,
    windows: &[Window],
    ranks: &[Vec<usize>],
) -> RecallReport {
    let share = |ranks: &Vec<usize>, depth: usize| {
        ranks.iter().filter(|&&rank| rank < depth).count() as f64 / ranks.len().max(1) as f64
    };
    let mean = |ranks: &[Vec<usize>], depth: usize| {
        ranks.iter().map(|r| share(r, depth)).sum::<f64>() / ranks.len().max(1) as f64
    };
    let recall = mean(ranks, config.rerank);
    let variance = ranks.iter().map(|r| (share(r, config.rerank) - recall).powi(2)).sum::<f64>();
    let mut place = 0;
    let parts = windows.iter().map(|window| {
        let own = &ranks[place..place + window.queries.len()];
        place += own.len();
        let (first, documents) = (window.first, window.documents);
        WindowRecall { first, documents, queries: own.len(), recall: mean(own, config.rerank) }
    });
    let parts: Vec<WindowRecall> = parts.collect();
    let depths: Vec<DepthRecall> =
        DEPTHS.into_iter().map(|rerank| DepthRecall { rerank, recall: mean(ranks, rerank) }).collect();
    let standard_error = variance.sqrt() / ranks.len().max(1) as f64;
    let advice = advice(&parts, recall, config.rerank, standard_error, &depths);
    let (k, queries, rerank) = (config.k, ranks.len(), config.rerank);
    RecallReport { k, documents, queries, rerank, recall, standard_error, depths, windows: parts, advice }
}

fn advice(windows: &[WindowRecall], recall: f64, rerank: usize, error: f64, depths: &[DepthRecall]) -> String {
    // The error of a window is that of the whole, with as many fewer queries.
    let chance = 2.0 * error * (2.0 * windows.len() as f64).sqrt();
    let (first, last) = (&windows[0], &windows[windows.len() - 1]);
    let fallen = first.recall - last.recall;
    if fallen > DRIFT.max(chance) {
        return format!(
            "recall fell by {:.0} points from the oldest documents to the newest: the model is older than they are; train a \
             new one on a sample of all documents and migrate the index to it",
            100.0 * fallen
        );
    }
    let enough = |depth: &&DepthRecall| depth.rerank > rerank && depth.recall >= 0.95;
    match depths.iter().find(enough) {
        _ if recall >= 0.95 => "recall is high and even over the windows; nothing to do".into(),
        Some(depth) => format!(
            "recall is even over the windows; re-rank {} candidates for a recall of {:.2}, or build with more bits",
            depth.rerank, depth.recall
        ),
        None => "recall is even over the windows; build with more bits, or with the method opq, to raise it".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_tells_drift_from_low_recall() {
        let windows = |recalls: &[f64]| -> Vec<WindowRecall> {
            let window = |&recall| WindowRecall { first: 0, documents: 10, queries: 10, recall };
            recalls.iter().map(window).collect()
        };
        let depths = [200, 800].map(|rerank| DepthRecall { rerank, recall: if rerank == 800 { 0.96 } else { 0.8 } });
        let of = |recalls: &[f64], error: f64| {
            let mean = recalls.iter().sum::<f64>() / recalls.len() as f64;
            advice(&windows(recalls), mean, 200, error, &depths)
        };
        assert!(of(&[0.9, 0.88, 0.7], 0.01).contains("fell by 20 points"));
        assert!(of(&[0.9, 0.88, 0.7], 0.1).contains("even"), "chance explains it");
        assert!(of(&[0.8, 0.81], 0.01).contains("re-rank 800"));
        assert!(of(&[0.97, 0.96], 0.01).contains("nothing to do"));
        assert!(advice(&windows(&[0.5, 0.5]), 0.5, 800, 0.01, &depths).contains("more bits"));
    }

    #[test]
    fn windows_share_documents_and_queries_evenly() {
        let windows = windows(1003, &RecallConfig { queries: 40, windows: 4, ..RecallConfig::default() });
        assert_eq!(windows.iter().map(|w| w.documents).sum::<usize>(), 1003);
        for window in &windows {
            assert!(window.queries.len() == 10 && window.queries.is_sorted_by(|a, b| a < b));
            assert!(window.queries.iter().all(|q| (window.first..window.first + window.documents).contains(q)));
        }
    }
}
