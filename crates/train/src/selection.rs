//! Selection of the best epoch by a validation metric on the codes.

use engine::model::{Codebooks, Distance, DistanceTable, Projection};
use engine::search::Flat;
use engine::{Error, Matrix, Result};
use rayon::prelude::*;

use crate::config::TrainConfig;
use crate::evaluate::code_search;
use crate::metrics::{DEPTH, Labels, Scores, Usage};
use crate::random::{Purpose, Stream};
use crate::views::{Draw, Views};

/// How epochs are compared.
#[derive(Clone, Copy)]
pub enum Validation<'a> {
    /// P@100 of labelled queries among the training documents, as in the authors' code.
    Labelled { queries: &'a Matrix, query_labels: &'a Labels, document_labels: &'a Labels },
    /// Without labels: some documents are held out of training. A noisy view of each is a query for the document itself,
    /// by its code. The metric is the mean logarithm of the document's rank.
    HeldOut,
}

/// Documents encoded per call.
const CHUNK: usize = 4096;
/// Epoch number of the views that are held-out queries; no real epoch reaches it.
const QUERY_EPOCH: u64 = u64::MAX;

/// Computes the packed codes of embeddings.
pub(crate) type Coder<'a> = dyn FnMut(&Matrix) -> Result<Vec<u8>> + 'a;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValidationMetric {
    pub value: f64,
    /// `None` without labels.
    pub scores: Option<Scores>,
}

/// Validation after each epoch, with everything prepared that does not change between epochs.
pub(crate) struct Validator<'a> {
    views: &'a dyn Views,
    distance: Distance,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Labelled { queries: &'a Matrix, query_labels: &'a Labels, order: Vec<u32>, labels: Labels },
    HeldOut { documents: Vec<u32>, queries: Matrix },
}

impl<'a> Validator<'a> {
    /// Checks the validation set against the views.
    pub fn new(config: &TrainConfig, views: &'a dyn Views, validation: Validation<'a>) -> Result<Self> {
        let count = views.documents();
        let kind = match validation {
            Validation::Labelled { queries, query_labels, document_labels } => {
                if queries.rows() == 0 || queries.rows() != query_labels.len() {
                    let (rows, labels) = (queries.rows(), query_labels.len());
                    return Err(Error::input(
                        "validation",
                        format!("{rows} queries have embeddings, {labels} have labels; give a label for every query"),
                    ));
                }
                if queries.cols() != views.width() {
                    let (found, expected) = (queries.cols(), views.width());
                    let problem = format!(
                        "query embeddings have {found} values, training embeddings {expected}; use one encoder"
                    );
                    return Err(Error::input("validation", problem));
                }
                if document_labels.len() != count {
                    let problem = format!("{} documents have labels, expected {count}", document_labels.len());
                    return Err(Error::input("validation", problem));
                }
                if let Some(i) = queries.iter().position(|row| !row.iter().all(|v| v.is_finite())) {
                    let problem =
                        "its embedding holds a value that is not a finite number; encode it again or leave it out";
                    return Err(Error::input(format!("validation query {i}"), problem));
                }
                let order = Stream::new(config.seed, Purpose::Database, &[]).permutation(count);
                let labels = document_labels.select(&order);
                Kind::Labelled { queries, query_labels, order, labels }
            }
            Validation::HeldOut => {
                let mut documents = Stream::new(config.seed, Purpose::HeldOut, &[]).permutation(count);
                documents.truncate(config.held_out.min(count / 10).max(1));
                documents.sort_unstable();
                let mut pair = vec![0.0; 2 * documents.len() * views.width()];
                views.pair(&documents, Draw { seed: config.seed, epoch: QUERY_EPOCH }, &mut pair);
                pair.truncate(documents.len() * views.width());
                Kind::HeldOut { documents, queries: Matrix::from_vec(views.width(), pair) }
            }
        };
        Ok(Validator { views, distance: config.distance, kind })
    }

    /// All documents that are not held out.
    pub fn training_documents(&self) -> Vec<u32> {
        let all = 0..self.views.documents() as u32;
        match &self.kind {
            Kind::Labelled { .. } => all.collect(),
            Kind::HeldOut { documents, .. } => all.filter(|d| documents.binary_search(d).is_err()).collect(),
        }
    }

    /// Name of the metric.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Labelled { .. } => "P@100",
            Kind::HeldOut { .. } => "mean log-rank",
        }
    }

    /// Whether `value` is strictly better than `best`.
    pub fn improves(&self, value: f64, best: f64) -> bool {
        match self.kind {
            Kind::Labelled { .. } => value > best,
            Kind::HeldOut { .. } => value < best,
        }
    }

    /// Identifies the validation set, for checkpoints.
    pub fn fingerprint(&self) -> String {
        match &self.kind {
            Kind::Labelled { queries, query_labels, labels, .. } => {
                let bytes: Vec<u8> = queries.as_slice().iter().flat_map(|v| v.to_le_bytes()).collect();
                let (queries, documents) = (query_labels.checksum(), labels.checksum());
                format!("labelled/{:08x}/{queries:08x}/{documents:08x}", crc32fast::hash(&bytes))
            }
            Kind::HeldOut { documents, .. } => format!("held-out/{}", documents.len()),
        }
    }

    /// Packed codes of the documents in `order`.
    fn codes(&self, order: &[u32], coder: &mut Coder) -> Result<Vec<u8>> {
        let mut codes = Vec::new();
        for documents in order.chunks(CHUNK) {
            let mut clean = Matrix::zeros(documents.len(), self.views.width());
            self.views.clean(documents, clean.as_mut_slice());
            codes.extend(coder(&clean)?);
        }
        Ok(codes)
    }

    /// The metric of a model and its codeword usage. `coder` encodes the clean embeddings of the documents.
    pub fn measure(
        &self,
        projection: &Projection,
        codebooks: &Codebooks,
        coder: &mut Coder,
    ) -> Result<(ValidationMetric, Usage)> {
        let shape = codebooks.shape();
        match &self.kind {
            Kind::Labelled { queries, query_labels, order, labels } => {
                let codes = self.codes(order, coder)?;
                let usage = Usage::of(shape, &codes);
                let flat = Flat::new(shape, codes)?;
                let results = code_search(&flat, codebooks, &projection.apply(queries)?, self.distance, DEPTH)?;
                let scores = Scores::of(&results, query_labels, labels)?;
                Ok((ValidationMetric { value: scores.precision.at_100, scores: Some(scores) }, usage))
            }
            Kind::HeldOut { documents, queries } => {
                let order: Vec<u32> = (0..self.views.documents() as u32).collect();
                let codes = self.codes(&order, coder)?;
                let usage = Usage::of(shape, &codes);
                let projected = projection.apply(queries)?;
                let log_ranks: Vec<f64> = documents
                    .par_iter()
                    .enumerate()
                    .map(|(i, &document)| {
                        let table = codebooks.table(projected.row(i), self.distance);
                        expected_rank(&table, &codes, document as usize).ln()
                    })
                    .collect();
                let value = log_ranks.iter().sum::<f64>() / log_ranks.len() as f64;
                Ok((ValidationMetric { value, scores: None }, usage))
            }
        }
    }
}

/// Rank of `document` among all packed `codes`, counted from 1; the mean over all orders of the documents at its distance.
fn expected_rank(table: &DistanceTable, codes: &[u8], document: usize) -> f64 {
    let sums = byte_sums(table);
    let distance = |code: &[u8]| -> f32 { code.iter().zip(&sums).map(|(&b, s)| s[b as usize]).sum() };
    let bytes = table.shape().code_bytes();
    let target = distance(&codes[document * bytes..(document + 1) * bytes]);
    let (mut nearer, mut equal) = (0u64, 0u64);
    for code in codes.chunks_exact(bytes) {
        let other = distance(code);
        nearer += u64::from(other < target);
        equal += u64::from(other == target);
    }
    // The document itself is among the equal ones.
    1.0 + nearer as f64 + (equal as f64 - 1.0) / 2.0
}

/// For every byte of a code and each of its values, the sum of the distances of the codebooks in that byte. A distance then
/// takes half the look-ups with 16 codewords and an eighth with 2. The sums round in another order than
/// [`DistanceTable::distance`], but in the same order for all codes, so equal codes have equal distances and ranks are right.
fn byte_sums(table: &DistanceTable) -> Vec<[f32; 256]> {
    let shape = table.shape();
    let per_byte = 8 / shape.codeword_bits();
    (0..shape.code_bytes())
        .map(|byte| {
            std::array::from_fn(|value| {
                let codebooks = (byte * per_byte..shape.num_codebooks().min((byte + 1) * per_byte)).enumerate();
                codebooks
                    .map(|(i, m)| {
                        table.values()[m * shape.codebook_size()
                            + ((value >> (i * shape.codeword_bits())) & (shape.codebook_size() - 1))]
                    })
                    .sum()
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::CodeShape;

    #[test]
    fn sums_by_byte_equal_the_distances_of_the_table() {
        for (codebooks, codewords) in [(8, 16), (7, 16), (5, 2), (24, 2), (3, 256)] {
            let shape = CodeShape::new(codebooks, codewords, 2).unwrap();
            let values = (0..codebooks * codewords).map(|i| (i * 37 % 101) as f32 / 10.0).collect();
            let table = DistanceTable::new(shape, values).unwrap();
            let sums = byte_sums(&table);
            for i in 0..50 {
                let mut code = vec![0; shape.code_bytes()];
                (0..codebooks).for_each(|m| shape.set_codeword(&mut code, m, (i * 7 + m * 5) % codewords));
                let by_byte: f32 = code.iter().zip(&sums).map(|(&b, s)| s[b as usize]).sum();
                assert!((by_byte - table.distance(&code)).abs() < 1e-3, "{codebooks} codebooks of {codewords}");
            }
        }
    }
}
