//! How well a model's codes find documents, beside exact search by the vectors they were made from.

use std::time::Instant;

use micpq::model::{Codebooks, Distance, Refine};
use micpq::search::Flat;
use micpq::{Error, Matrix, Result, Watch};
use serde::Serialize;

use crate::float;
use crate::metrics::{DEPTH, Labels, Precision, Scores, Usage, fidelity};
use crate::random::{Purpose, Stream};

/// What is searched, for what.
pub struct Corpus<'a> {
    /// Feature vectors of the documents.
    pub documents: &'a Matrix,
    /// Feature vectors of the queries.
    pub queries: &'a Matrix,
    /// Labels of queries and of documents, where there are any.
    pub labels: Option<(&'a Labels, &'a Labels)>,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct EvaluateConfig {
    /// Distances to rank by; the first is the one the result leads with.
    pub distances: Vec<Distance>,
    /// Whether to search by the vectors too: slow, and the yardstick.
    pub float: bool,
    /// Decides the order of the database, and with it the order of equal distances.
    pub seed: u64,
}

impl Default for EvaluateConfig {
    fn default() -> Self {
        EvaluateConfig { distances: vec![Distance::Norm, Distance::Squared], float: true, seed: 0 }
    }
}

/// One distance's scores.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranked {
    /// `norm`, `squared`, `hamming`, `cosine` or `euclidean`.
    pub distance: String,
    /// Against labels, in percent.
    #[serde(flatten)]
    pub scores: Option<Scores>,
    /// Share, in percent, of the ten nearest by cosine among the first hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fidelity: Option<f64>,
}

/// Scores of exact search by the vectors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FloatScores {
    /// By cosine.
    pub cosine: Scores,
    /// By Euclidean distance.
    pub euclidean: Scores,
}

/// Seconds of each part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EvaluateSeconds {
    /// Vectors to codes.
    pub encode: f64,
    /// Search over codes, all distances.
    pub search: f64,
    /// Search over vectors.
    pub float: f64,
}

/// Everything measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Against labels, by the first distance, in percent.
    #[serde(flatten)]
    pub scores: Option<Scores>,
    /// The first distance.
    pub distance: Distance,
    /// Share, in percent, of the ten nearest by cosine among the code's first hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fidelity: Option<f64>,
    /// The same for every distance asked for.
    pub distances: Vec<Ranked>,
    /// Exact search on the same vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float: Option<FloatScores>,
    /// How the documents' codes use the books.
    pub codewords: Usage,
    /// Number of documents.
    pub documents: usize,
    /// Number of queries.
    pub queries: usize,
    /// Decides the order of equal distances.
    pub seed: u64,
    /// Where the time went.
    pub seconds: EvaluateSeconds,
}

impl Evaluation {
    /// Precision by the first distance, where there were labels.
    pub fn precision(&self) -> Option<Precision> {
        self.scores.map(|s| s.precision)
    }
}

/// Measures a model.
///
/// The database is laid out in an order drawn from the seed, and equal distances go by place in it: a file sorted by label
/// gains nothing by it, and one seed gives one result.
pub fn evaluate(
    refine: &Refine,
    codebooks: &Codebooks,
    corpus: &Corpus,
    config: &EvaluateConfig,
    watch: &dyn Watch,
) -> Result<Evaluation> {
    let Some(&main) = config.distances.first() else {
        return Err(Error::config("no distance to evaluate by; name norm, squared or hamming"));
    };
    let (documents, queries) = (corpus.documents.rows(), corpus.queries.rows());
    if documents == 0 || queries == 0 {
        return Err(Error::input(
            "evaluation",
            format!("{queries} queries against {documents} documents: nothing to measure"),
        ));
    }
    if let Some((of_queries, of_documents)) = corpus.labels
        && (of_queries.len() != queries || of_documents.len() != documents)
    {
        let (q, d) = (of_queries.len(), of_documents.len());
        return Err(Error::input(
            "labels",
            format!("{q} queries and {d} documents have labels, {queries} and {documents} have vectors"),
        ));
    }
    for (what, vectors) in [("document", corpus.documents), ("query", corpus.queries)] {
        if let Some(i) = vectors.iter().position(|row| !row.iter().all(|v| v.is_finite())) {
            return Err(Error::input(format!("{what} {i}"), "its vector holds a value that is not a finite number"));
        }
    }
    let order = Stream::new(config.seed, Purpose::Database, &[]).permutation(documents);
    let places: Vec<usize> = order.iter().map(|&i| i as usize).collect();
    let database = corpus.documents.select(&places);
    let labels = corpus.labels.map(|(q, d)| (q, d.select(&order)));
    let score = |results: &[Vec<u32>]| labels.as_ref().map(|(q, d)| Scores::of(results, q, d)).transpose();
    let mut seconds = EvaluateSeconds::default();

    watch.stage("encoding", None);
    let start = Instant::now();
    let codes = codebooks.assign(&refine.apply(&database)?);
    let refined = refine.apply(corpus.queries)?;
    let codewords = Usage::of(codebooks.shape(), &codes);
    seconds.encode = start.elapsed().as_secs_f64();

    let float_results = if config.float {
        let start = Instant::now();
        let results = float::search(&database, corpus.queries, DEPTH, watch)?;
        seconds.float = start.elapsed().as_secs_f64();
        Some(results)
    } else {
        None
    };

    let start = Instant::now();
    let flat = Flat::new(codebooks.shape(), codes)?;
    let mut distances = Vec::new();
    for &distance in &config.distances {
        if watch.interrupted() {
            return Err(Error::Interrupted);
        }
        watch.stage(&format!("searching by {distance}"), None);
        let results = code_search(&flat, codebooks, &refined, distance, DEPTH)?;
        distances.push(Ranked {
            distance: distance.to_string(),
            scores: score(&results)?,
            fidelity: float_results.as_ref().map(|f| fidelity(&f.cosine, &results)),
        });
    }
    seconds.search = start.elapsed().as_secs_f64();
    let float = match (&float_results, &labels) {
        (Some(f), Some((q, d))) => {
            Some(FloatScores { cosine: Scores::of(&f.cosine, q, d)?, euclidean: Scores::of(&f.euclidean, q, d)? })
        }
        _ => None,
    };
    Ok(Evaluation {
        scores: distances[0].scores,
        distance: main,
        fidelity: distances[0].fidelity,
        distances,
        float,
        codewords,
        documents,
        queries,
        seed: config.seed,
        seconds,
    })
}

/// Document numbers, best first, for every refined query.
pub fn code_search(
    flat: &Flat,
    codebooks: &Codebooks,
    refined: &Matrix,
    distance: Distance,
    k: usize,
) -> Result<Vec<Vec<u32>>> {
    let mut results = Vec::with_capacity(refined.rows());
    // Tables of 128-bit codes take 2 kB a query: a block at a time keeps them in the cache and the memory bounded.
    const QUERIES: usize = 1024;
    for block in refined.as_slice().chunks(QUERIES * refined.cols()) {
        let tables: Vec<_> = block.chunks_exact(refined.cols()).map(|q| codebooks.table(q, distance)).collect();
        let hits = flat.search(&tables, k)?;
        results.extend(hits.into_iter().map(|list| list.into_iter().map(|hit| hit.row as u32).collect::<Vec<_>>()));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use micpq::Silent;
    use micpq::model::{CodeShape, Dense};

    /// Two books of two words, one dimension each, words at -1 and +1; the refinement changes nothing.
    fn sign_model() -> (Refine, Codebooks) {
        let refine = Refine::new(vec![Dense::new(2, vec![1.0, 0.0, 0.0, 1.0], vec![0.0; 2]).unwrap()]).unwrap();
        let shape = CodeShape::new(2, 2, 1).unwrap();
        (refine, Codebooks::new(shape, vec![-1.0, 1.0, -1.0, 1.0]).unwrap())
    }

    fn four_corners(each: usize) -> (Matrix, Labels) {
        let mut rows = Vec::new();
        let mut labels = Vec::new();
        for (label, (x, y)) in [(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)].into_iter().enumerate() {
            for i in 0..each {
                rows.extend([x * (1.0 + i as f32 / 1000.0), y]);
                labels.push(label as u32);
            }
        }
        (Matrix::from_vec(2, rows), Labels::single(labels))
    }

    #[test]
    fn separable_classes_score_full_marks_under_every_distance() {
        let (refine, codebooks) = sign_model();
        let (documents, labels) = four_corners(150);
        let queries = Matrix::from_vec(2, vec![0.9, 0.8, -0.7, 0.6]);
        let of_queries = Labels::single(vec![3, 1]);
        let corpus = Corpus { documents: &documents, queries: &queries, labels: Some((&of_queries, &labels)) };
        let config = EvaluateConfig {
            distances: vec![Distance::Norm, Distance::Squared, Distance::Hamming],
            ..EvaluateConfig::default()
        };
        let result = evaluate(&refine, &codebooks, &corpus, &config, &Silent).unwrap();
        assert_eq!(result.precision().unwrap().at_100, 100.0);
        assert_eq!(result.distances.len(), 3);
        assert!(result.distances.iter().all(|d| d.scores.unwrap().precision.at_100 == 100.0));
        assert_eq!(result.float.as_ref().unwrap().euclidean.precision.at_100, 100.0);
        assert_eq!((result.codewords.used.clone(), result.codewords.distinct), (vec![2, 2], 4));
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(json["precision"]["100"], 100.0);
        assert_eq!(json["distance"], "norm");
        assert_eq!(json["float"]["cosine"]["precision"]["10"], 100.0);
    }

    #[test]
    fn equal_codes_are_ordered_by_the_seed_and_not_by_the_file() {
        // Every document has the same code: what is found is a random hundred, whatever the file's order.
        let (refine, codebooks) = sign_model();
        let documents = Matrix::from_vec(2, [1.0, 1.0].repeat(1000));
        let labels = Labels::single((0..1000).map(|i| u32::from(i >= 500)).collect());
        let queries = Matrix::from_vec(2, vec![1.0, 1.0]);
        let of_queries = Labels::single(vec![0]);
        let corpus = Corpus { documents: &documents, queries: &queries, labels: Some((&of_queries, &labels)) };
        let run = |seed| {
            let config = EvaluateConfig { seed, float: false, ..EvaluateConfig::default() };
            evaluate(&refine, &codebooks, &corpus, &config, &Silent).unwrap().precision().unwrap().at_100
        };
        assert!((30.0..70.0).contains(&run(0)), "{}", run(0));
        assert_eq!(run(0), run(0));
        assert!((1..6).any(|seed| run(seed) != run(0)));
    }

    #[test]
    fn mismatched_inputs_are_named() {
        let (refine, codebooks) = sign_model();
        let (documents, labels) = four_corners(2);
        let queries = Matrix::from_vec(2, vec![f32::NAN, 0.8]);
        let of_queries = Labels::single(vec![3]);
        let run = |queries: &Matrix, of_queries: &Labels, config: EvaluateConfig| {
            let corpus = Corpus { documents: &documents, queries, labels: Some((of_queries, &labels)) };
            evaluate(&refine, &codebooks, &corpus, &config, &Silent).unwrap_err().to_string()
        };
        assert!(run(&queries, &of_queries, EvaluateConfig::default()).contains("query 0"));
        let queries = Matrix::from_vec(2, vec![0.5, 0.8]);
        assert!(run(&queries, &labels, EvaluateConfig::default()).contains("8 queries and 8 documents have labels"));
        let none = EvaluateConfig { distances: vec![], ..EvaluateConfig::default() };
        assert!(run(&queries, &of_queries, none).contains("no distance"));
    }
}
