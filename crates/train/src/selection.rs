//! Which epoch's model is kept: a figure measured after each, through the codes.

use micpq::model::{Codebooks, Distance, Refine, Table};
use micpq::search::Flat;
use micpq::{Error, Matrix, Result};
use rayon::prelude::*;

use crate::config::TrainConfig;
use crate::evaluate::code_search;
use crate::metrics::{DEPTH, Labels, Scores, Usage};
use crate::random::{Purpose, Stream};
use crate::views::{Draw, Views};

/// How epochs are compared.
#[derive(Clone, Copy)]
pub enum Validation<'a> {
    /// Precision of the first hundred results of labelled queries among the training documents, as the authors do.
    Labelled {
        /// Feature vectors of the validation queries.
        queries: &'a Matrix,
        /// Their labels.
        query_labels: &'a Labels,
        /// Labels of the training documents.
        document_labels: &'a Labels,
    },
    /// Without labels: documents are kept out of training, and a noisy view of each must find the document itself through
    /// its code. The figure is the mean logarithm of its rank.
    HeldOut,
}

/// Documents encoded at a time.
const CHUNK: usize = 4096;
/// The draw of the views that ask for held-out documents: no epoch has this number.
const QUESTION: u64 = u64::MAX;

/// Packed codes of vectors.
pub(crate) type Coder<'a> = dyn FnMut(&Matrix) -> Result<Vec<u8>> + 'a;

/// A figure; `higher` says which way is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub value: f64,
    /// Precision at 1, 10, 100 and the like, where there are labels.
    pub scores: Option<Scores>,
}

/// Validation with everything laid out that does not change from epoch to epoch.
pub(crate) struct Judge<'a> {
    views: &'a dyn Views,
    distance: Distance,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Labelled { queries: &'a Matrix, query_labels: &'a Labels, order: Vec<u32>, labels: Labels },
    HeldOut { documents: Vec<u32>, questions: Matrix },
}

impl<'a> Judge<'a> {
    /// Checks the validation set against the views.
    pub fn new(config: &TrainConfig, views: &'a dyn Views, validation: Validation<'a>) -> Result<Self> {
        let count = views.documents();
        let kind = match validation {
            Validation::Labelled { queries, query_labels, document_labels } => {
                if queries.rows() == 0 || queries.rows() != query_labels.len() {
                    let (rows, labels) = (queries.rows(), query_labels.len());
                    return Err(Error::input(
                        "validation",
                        format!("{rows} queries have vectors, {labels} have labels"),
                    ));
                }
                if queries.cols() != views.width() {
                    let (found, expected) = (queries.cols(), views.width());
                    let problem = format!("queries have {found} values, training vectors {expected}; use one encoder");
                    return Err(Error::input("validation", problem));
                }
                if document_labels.len() != count {
                    let problem = format!("{} documents have labels, there are {count}", document_labels.len());
                    return Err(Error::input("validation", problem));
                }
                if let Some(i) = queries.iter().position(|row| !row.iter().all(|v| v.is_finite())) {
                    let problem = "its vector holds a value that is not a finite number";
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
                views.pair(&documents, Draw { seed: config.seed, epoch: QUESTION }, &mut pair);
                pair.truncate(documents.len() * views.width());
                Kind::HeldOut { documents, questions: Matrix::from_vec(views.width(), pair) }
            }
        };
        Ok(Judge { views, distance: config.distance, kind })
    }

    /// The documents to train on.
    pub fn training_documents(&self) -> Vec<u32> {
        let all = 0..self.views.documents() as u32;
        match &self.kind {
            Kind::Labelled { .. } => all.collect(),
            Kind::HeldOut { documents, .. } => all.filter(|d| documents.binary_search(d).is_err()).collect(),
        }
    }

    /// What the figure is called.
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

    /// Tells this validation set from another, for checkpoints.
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

    /// Codes of the documents in `order`, by whatever computes them.
    fn codes(&self, order: &[u32], code: &mut Coder) -> Result<Vec<u8>> {
        let mut codes = Vec::new();
        for documents in order.chunks(CHUNK) {
            let mut clean = Matrix::zeros(documents.len(), self.views.width());
            self.views.clean(documents, clean.as_mut_slice());
            codes.extend(code(&clean)?);
        }
        Ok(codes)
    }

    /// The figure of a model, and how its codes use their words; `code` gives the packed codes of clean vectors.
    pub fn measure(&self, refine: &Refine, codebooks: &Codebooks, code: &mut Coder) -> Result<(Figure, Usage)> {
        let shape = codebooks.shape();
        match &self.kind {
            Kind::Labelled { queries, query_labels, order, labels } => {
                let codes = self.codes(order, code)?;
                let usage = Usage::of(shape, &codes);
                let flat = Flat::new(shape, codes)?;
                let results = code_search(&flat, codebooks, &refine.apply(queries)?, self.distance, DEPTH)?;
                let scores = Scores::of(&results, query_labels, labels)?;
                Ok((Figure { value: scores.precision.at_100, scores: Some(scores) }, usage))
            }
            Kind::HeldOut { documents, questions } => {
                let order: Vec<u32> = (0..self.views.documents() as u32).collect();
                let codes = self.codes(&order, code)?;
                let usage = Usage::of(shape, &codes);
                let refined = refine.apply(questions)?;
                let logs: Vec<f64> = documents
                    .par_iter()
                    .enumerate()
                    .map(|(i, &document)| {
                        let sums = byte_sums(&codebooks.table(refined.row(i), self.distance));
                        let distance =
                            |code: &[u8]| -> f32 { code.iter().zip(&sums).map(|(&b, s)| s[b as usize]).sum() };
                        let bytes = shape.code_bytes();
                        let own = distance(&codes[document as usize * bytes..(document as usize + 1) * bytes]);
                        let (mut nearer, mut equal) = (0u64, 0u64);
                        for code in codes.chunks_exact(bytes) {
                            let other = distance(code);
                            nearer += u64::from(other < own);
                            equal += u64::from(other == own);
                        }
                        // Its own code is among the equal; a document is as likely first of them as last.
                        (1.0 + nearer as f64 + (equal as f64 - 1.0) / 2.0).ln()
                    })
                    .collect();
                let value = logs.iter().sum::<f64>() / logs.len() as f64;
                Ok((Figure { value, scores: None }, usage))
            }
        }
    }
}

/// For every byte of a code, the sum of the table over the books it holds: half the look-ups of the plain sum with 16 words, an
/// eighth with 2. The sums are rounded in another order than [`Table::distance`]'s, alike for all codes, which is what a rank
/// needs: equal codes stay equal.
fn byte_sums(table: &Table) -> Vec<[f32; 256]> {
    let shape = table.shape();
    let each = 8 / shape.word_bits();
    (0..shape.code_bytes())
        .map(|byte| {
            std::array::from_fn(|value| {
                let books = (byte * each..shape.books().min((byte + 1) * each)).enumerate();
                books
                    .map(|(i, m)| {
                        table.values()[m * shape.words() + ((value >> (i * shape.word_bits())) & (shape.words() - 1))]
                    })
                    .sum()
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use micpq::model::CodeShape;

    #[test]
    fn sums_by_byte_are_the_tables() {
        for (books, words) in [(8, 16), (7, 16), (5, 2), (24, 2), (3, 256)] {
            let shape = CodeShape::new(books, words, 2).unwrap();
            let table = Table::new(shape, (0..books * words).map(|i| (i * 37 % 101) as f32 / 10.0).collect()).unwrap();
            let sums = byte_sums(&table);
            for i in 0..50 {
                let mut code = vec![0; shape.code_bytes()];
                (0..books).for_each(|m| shape.set_word(&mut code, m, (i * 7 + m * 5) % words));
                let by_byte: f32 = code.iter().zip(&sums).map(|(&b, s)| s[b as usize]).sum();
                assert!((by_byte - table.distance(&code)).abs() < 1e-3, "{books} books of {words}");
            }
        }
    }
}
