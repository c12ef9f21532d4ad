//! Exact search by the feature vectors themselves: the yardstick beside every code.

use kernels::scan::{Neighbour, TopK};
use micpq::{Error, Matrix, Result, Watch};
use rayon::prelude::*;

use crate::product::{View, multiply};

/// Queries and documents of one block of the product.
const QUERIES: usize = 128;
const DOCUMENTS: usize = 1024;

/// Document numbers, best first, one list a query.
pub struct FloatResults {
    /// By cosine similarity.
    pub cosine: Vec<Vec<u32>>,
    /// By Euclidean distance.
    pub euclidean: Vec<Vec<u32>>,
}

/// The `k` nearest documents of every query by cosine and by Euclidean distance; equal ones by document number. One product
/// serves both: `-q.d / |d|` and `|d|^2 / 2 - q.d` rank as the two distances do.
pub fn search(documents: &Matrix, queries: &Matrix, k: usize, watch: &dyn Watch) -> Result<FloatResults> {
    if documents.cols() != queries.cols() {
        let (d, q) = (documents.cols(), queries.cols());
        return Err(Error::config(format!("documents have vectors of {d} values, queries of {q}; use one encoder")));
    }
    let width = documents.cols();
    let squares: Vec<f32> =
        documents.as_slice().par_chunks(width.max(1)).map(|d| d.iter().map(|x| x * x).sum()).collect();
    // A vector of zeros has no direction: it comes last of all.
    let inverse: Vec<f32> = squares.iter().map(|&s| if s > 0.0 { 1.0 / s.sqrt() } else { f32::NAN }).collect();
    watch.stage("searching by float vectors", Some(queries.rows() as u64));
    let blocks: Vec<_> = queries
        .as_slice()
        .par_chunks(QUERIES * width)
        .map(|block| {
            let rows = block.len() / width;
            let mut cosine: Vec<TopK> = (0..rows).map(|_| TopK::new(k)).collect();
            let mut euclidean: Vec<TopK> = (0..rows).map(|_| TopK::new(k)).collect();
            let mut dots = vec![0.0; QUERIES * DOCUMENTS];
            for (b, part) in documents.as_slice().chunks(DOCUMENTS * width).enumerate() {
                if watch.interrupted() {
                    return Err(Error::Interrupted);
                }
                let (count, first) = (part.len() / width, b * DOCUMENTS);
                let dots = &mut dots[..rows * count];
                multiply(dots, View::new(block, rows, width), View::new(part, count, width).transposed(), 1.0);
                for ((dots, cosine), euclidean) in dots.chunks_exact(count).zip(&mut cosine).zip(&mut euclidean) {
                    for (i, &dot) in dots.iter().enumerate() {
                        let row = first + i;
                        let angle = if inverse[row].is_nan() { f32::MAX } else { -dot * inverse[row] };
                        cosine.push(Neighbour { distance: angle, key: row as u32 });
                        euclidean.push(Neighbour { distance: 0.5 * squares[row] - dot, key: row as u32 });
                    }
                }
            }
            watch.advance(rows as u64);
            let rows = |found: Vec<TopK>| found.into_iter().map(keys).collect::<Vec<_>>();
            Ok((rows(cosine), rows(euclidean)))
        })
        .collect::<Result<_>>()?;
    let (cosine, euclidean): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
    Ok(FloatResults { cosine: cosine.concat(), euclidean: euclidean.concat() })
}

/// Document numbers, best first.
fn keys(found: TopK) -> Vec<u32> {
    found.into_sorted().into_iter().map(|n| n.key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};
    use micpq::Silent;

    #[test]
    fn both_rankings_are_those_of_the_plain_formulas() {
        let (mut documents, mut queries) = (Matrix::zeros(2100, 7), Matrix::zeros(150, 7));
        Stream::new(0, Purpose::Init, &[0]).normal(documents.as_mut_slice());
        Stream::new(0, Purpose::Init, &[1]).normal(queries.as_mut_slice());
        documents.row_mut(5).fill(0.0);
        let found = search(&documents, &queries, 20, &Silent).unwrap();
        for q in [0, 77, 127, 128, 149] {
            let rank = |distance: &dyn Fn(&[f32], &[f32]) -> f64| {
                let mut order: Vec<(f64, u32)> =
                    documents.iter().enumerate().map(|(i, d)| (distance(queries.row(q), d), i as u32)).collect();
                order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                order[..20].iter().map(|o| o.1).collect::<Vec<_>>()
            };
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
            let norm = |a: &[f32]| dot(a, a).sqrt();
            let cosine = |a: &[f32], b: &[f32]| if norm(b) == 0.0 { 9.0 } else { -dot(a, b) / norm(a) / norm(b) };
            let euclidean =
                |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt();
            assert_eq!(found.cosine[q], rank(&cosine), "query {q}");
            assert_eq!(found.euclidean[q], rank(&euclidean), "query {q}");
        }
        assert!(search(&documents, &Matrix::zeros(1, 3), 5, &Silent).is_err());
    }
}
