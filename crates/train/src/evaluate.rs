//! Quality of search by a model's codes, beside exact search over the embeddings.

use std::time::Instant;

use engine::model::{Codebooks, Distance, DistanceTable, KindTables, Model};
use engine::search::Flat;
use engine::{Error, Matrix, Progress, Result};
use serde::Serialize;

use crate::float;
use crate::metrics::{DEPTH, Labels, Precision, Scores, Usage, recall_10_at_100};
use crate::random::{Purpose, Stream};

/// The embeddings and labels of an evaluation.
pub struct Corpus<'a> {
    pub documents: &'a Matrix,
    pub queries: &'a Matrix,
    /// Labels of the queries and of the documents.
    pub labels: Option<(&'a Labels, &'a Labels)>,
}

#[derive(Clone, Debug)]
pub struct EvaluateConfig {
    /// Distances to rank by; the result leads with the first.
    pub distances: Vec<Distance>,
    /// Whether to run exact search over the embeddings too. It is slow.
    pub float: bool,
    /// Decides the order of the database and thus of equal distances.
    pub seed: u64,
}

impl Default for EvaluateConfig {
    fn default() -> Self {
        EvaluateConfig { distances: vec![Distance::Norm, Distance::Squared], float: true, seed: 0 }
    }
}

/// Scores by one distance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranked {
    /// `norm`, `squared` or `hamming`, or `kind` for the tables by kind alone.
    pub distance: String,
    #[serde(flatten)]
    pub scores: Option<Scores>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall_10_at_100: Option<f64>,
}

/// Scores of exact search over the embeddings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FloatScores {
    pub cosine: Scores,
    pub euclidean: Scores,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EvaluateSeconds {
    /// From embeddings to codes.
    pub encode: f64,
    /// Search by codes, all distances together.
    pub search: f64,
    /// Exact search over the embeddings.
    pub float: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// By the first distance.
    #[serde(flatten)]
    pub scores: Option<Scores>,
    pub distance: Distance,
    /// By the first distance, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall_10_at_100: Option<f64>,
    /// By every requested distance.
    pub distances: Vec<Ranked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float: Option<FloatScores>,
    pub codewords: Usage,
    pub documents: usize,
    pub queries: usize,
    pub seed: u64,
    pub seconds: EvaluateSeconds,
}

impl Evaluation {
    /// Precision by the first distance; `None` without labels.
    pub fn precision(&self) -> Option<Precision> {
        self.scores.map(|s| s.precision)
    }
}

/// Measures a model.
///
/// The seed decides the order of the database, and equal distances go by position in it. So a file sorted by label has no
/// advantage, and one seed gives one result.
pub fn evaluate(
    model: &Model,
    corpus: &Corpus,
    config: &EvaluateConfig,
    progress: &dyn Progress,
) -> Result<Evaluation> {
    let (projection, codebooks) = (model.projection(), model.codebooks());
    let Some(&main) = config.distances.first() else {
        return Err(Error::config("no distance to evaluate by; give norm, squared or hamming"));
    };
    check(corpus)?;
    let (documents, queries) = (corpus.documents.rows(), corpus.queries.rows());
    let order = Stream::new(config.seed, Purpose::Database, &[]).permutation(documents);
    let rows: Vec<usize> = order.iter().map(|&i| i as usize).collect();
    let database = corpus.documents.select(&rows);
    let labels = corpus.labels.map(|(q, d)| (q, d.select(&order)));
    let score = |results: &[Vec<u32>]| labels.as_ref().map(|(q, d)| Scores::of(results, q, d)).transpose();
    let mut seconds = EvaluateSeconds::default();

    progress.stage("encoding", None);
    let start = Instant::now();
    let codes = codebooks.assign(&projection.apply(&database)?);
    let projected = projection.apply(corpus.queries)?;
    let codewords = Usage::of(codebooks.shape(), &codes);
    seconds.encode = start.elapsed().as_secs_f64();

    let float_results = if config.float {
        let start = Instant::now();
        let results = float::search(&database, corpus.queries, DEPTH, progress)?;
        seconds.float = start.elapsed().as_secs_f64();
        Some(results)
    } else {
        None
    };

    let start = Instant::now();
    let flat = Flat::new(codebooks.shape(), codes)?;
    let mut distances = Vec::new();
    let mut rank = |distance: String, search: &dyn Fn() -> Result<Vec<Vec<u32>>>| -> Result<()> {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        progress.stage(&format!("searching by {distance}"), None);
        let results = search()?;
        let recall_10_at_100 = float_results.as_ref().map(|f| recall_10_at_100(&f.cosine, &results));
        distances.push(Ranked { distance, scores: score(&results)?, recall_10_at_100 });
        Ok(())
    };
    for &distance in &config.distances {
        rank(distance.to_string(), &|| code_search(&flat, codebooks, &projected, distance, DEPTH))?;
    }
    if let Some(kinds) = model.kinds() {
        rank("kind".into(), &|| kind_search(&flat, kinds, corpus.queries, DEPTH))?;
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
        recall_10_at_100: distances[0].recall_10_at_100,
        distances,
        float,
        codewords,
        documents,
        queries,
        seed: config.seed,
        seconds,
    })
}

/// Refuses an empty corpus, labels of another length, and values that are not finite.
fn check(corpus: &Corpus) -> Result<()> {
    let (documents, queries) = (corpus.documents.rows(), corpus.queries.rows());
    if documents == 0 || queries == 0 {
        return Err(Error::input(
            "evaluation",
            format!("there are {queries} queries and {documents} documents; give at least one of each"),
        ));
    }
    if let Some((query_labels, document_labels)) = corpus.labels
        && (query_labels.len() != queries || document_labels.len() != documents)
    {
        let (q, d) = (query_labels.len(), document_labels.len());
        return Err(Error::input(
            "labels",
            format!("{q} queries and {d} documents have labels, {queries} and {documents} have embeddings"),
        ));
    }
    for (what, vectors) in [("document", corpus.documents), ("query", corpus.queries)] {
        if let Some(i) = vectors.iter().position(|row| !row.iter().all(|v| v.is_finite())) {
            return Err(Error::input(
                format!("{what} {i}"),
                "its embedding holds a value that is not a finite number; encode it again or leave it out",
            ));
        }
    }
    Ok(())
}

/// Document numbers, best first, for every projected query.
pub fn code_search(
    flat: &Flat,
    codebooks: &Codebooks,
    projected: &Matrix,
    distance: Distance,
    k: usize,
) -> Result<Vec<Vec<u32>>> {
    let tables =
        |block: &[f32]| Ok(block.chunks_exact(projected.cols()).map(|q| codebooks.table(q, distance)).collect());
    in_blocks(flat, projected, tables, k)
}

/// Document numbers, those of a query's kind first, for every query embedding.
pub fn kind_search(flat: &Flat, kinds: &KindTables, queries: &Matrix, k: usize) -> Result<Vec<Vec<u32>>> {
    in_blocks(flat, queries, |block| kinds.tables(&Matrix::from_vec(queries.cols(), block.to_vec())), k)
}

fn in_blocks(
    flat: &Flat,
    queries: &Matrix,
    tables: impl Fn(&[f32]) -> Result<Vec<DistanceTable>>,
    k: usize,
) -> Result<Vec<Vec<u32>>> {
    let mut results = Vec::with_capacity(queries.rows());
    // A distance table of 128-bit codes takes 2 kB per query. Blocks keep the tables in the cache and bound the memory.
    const QUERIES: usize = 1024;
    for block in queries.as_slice().chunks(QUERIES * queries.cols()) {
        let hits = flat.search(&tables(block)?, k)?;
        results.extend(hits.into_iter().map(|list| list.into_iter().map(|hit| hit.row as u32).collect::<Vec<_>>()));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::NoProgress;
    use engine::model::{CodeShape, Dense, ModelConfig, Projection};

    /// Two codebooks of two codewords in one dimension, at -1 and +1, behind an identity projection.
    fn sign_model() -> Model {
        let projection = Projection::new(vec![Dense::new(2, vec![1.0, 0.0, 0.0, 1.0], vec![0.0; 2]).unwrap()]).unwrap();
        let shape = CodeShape::new(2, 2, 1).unwrap();
        let codebooks = Codebooks::new(shape, vec![-1.0, 1.0, -1.0, 1.0]).unwrap();
        let config = ModelConfig {
            format: engine::model::FORMAT,
            method: "signs".into(),
            shape,
            distance: Distance::Norm,
            embedding: None,
            training: serde_json::Value::Null,
        };
        Model::new(config, projection, codebooks).unwrap()
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
    fn separable_classes_have_full_precision_under_every_distance() {
        let model = sign_model();
        let (documents, labels) = four_corners(150);
        let queries = Matrix::from_vec(2, vec![0.9, 0.8, -0.7, 0.6]);
        let query_labels = Labels::single(vec![3, 1]);
        let corpus = Corpus { documents: &documents, queries: &queries, labels: Some((&query_labels, &labels)) };
        let config = EvaluateConfig {
            distances: vec![Distance::Norm, Distance::Squared, Distance::Hamming],
            ..EvaluateConfig::default()
        };
        let result = evaluate(&model, &corpus, &config, &NoProgress).unwrap();
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
    fn tables_by_kind_are_measured_beside_the_distances() {
        let (documents, labels) = four_corners(150);
        let queries = Matrix::from_vec(2, vec![0.9, 0.8, -0.7, 0.6]);
        let query_labels = Labels::single(vec![3, 1]);
        let corpus = Corpus { documents: &documents, queries: &queries, labels: Some((&query_labels, &labels)) };
        // The first codeword of a codebook is at -1: these tables are small at the codeword of the other sign, or of the own.
        for (sign, expected) in [(1.0, 0.0), (-1.0, 100.0)] {
            let layer = Dense::new(2, vec![-sign, 0.0, sign, 0.0, 0.0, -sign, 0.0, sign], vec![0.0; 4]).unwrap();
            let model = sign_model().with_kinds(Projection::new(vec![layer]).unwrap()).unwrap();
            let result = evaluate(&model, &corpus, &EvaluateConfig::default(), &NoProgress).unwrap();
            let last = result.distances.last().unwrap();
            assert_eq!((last.distance.as_str(), last.scores.unwrap().precision.at_100), ("kind", expected));
            assert_eq!(result.distance, Distance::Norm, "the first distance leads");
        }
    }

    #[test]
    fn order_of_equal_codes_depends_on_the_seed_and_not_on_the_file() {
        // Every document has the same code, so the hits are a random hundred whatever the order of the file.
        let model = sign_model();
        let documents = Matrix::from_vec(2, [1.0, 1.0].repeat(1000));
        let labels = Labels::single((0..1000).map(|i| u32::from(i >= 500)).collect());
        let queries = Matrix::from_vec(2, vec![1.0, 1.0]);
        let query_labels = Labels::single(vec![0]);
        let corpus = Corpus { documents: &documents, queries: &queries, labels: Some((&query_labels, &labels)) };
        let run = |seed| {
            let config = EvaluateConfig { seed, float: false, ..EvaluateConfig::default() };
            evaluate(&model, &corpus, &config, &NoProgress).unwrap().precision().unwrap().at_100
        };
        assert!((30.0..70.0).contains(&run(0)), "{}", run(0));
        assert_eq!(run(0), run(0));
        assert!((1..6).any(|seed| run(seed) != run(0)));
    }

    #[test]
    fn errors_name_mismatched_inputs() {
        let model = sign_model();
        let (documents, labels) = four_corners(2);
        let queries = Matrix::from_vec(2, vec![f32::NAN, 0.8]);
        let query_labels = Labels::single(vec![3]);
        let run = |queries: &Matrix, query_labels: &Labels, config: EvaluateConfig| {
            let corpus = Corpus { documents: &documents, queries, labels: Some((query_labels, &labels)) };
            evaluate(&model, &corpus, &config, &NoProgress).unwrap_err().to_string()
        };
        assert!(run(&queries, &query_labels, EvaluateConfig::default()).contains("query 0"));
        let queries = Matrix::from_vec(2, vec![0.5, 0.8]);
        assert!(run(&queries, &labels, EvaluateConfig::default()).contains("8 queries and 8 documents have labels"));
        let none = EvaluateConfig { distances: vec![], ..EvaluateConfig::default() };
        assert!(run(&queries, &query_labels, none).contains("no distance"));
    }
}
