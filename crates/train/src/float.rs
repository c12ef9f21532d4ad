//! Exact search over embeddings: the yardstick for search by codes.

use engine::{Error, Matrix, Progress, Result};
use kernels::scan::{Neighbour, TopK};
use rayon::prelude::*;

use crate::product::{View, multiply};

/// Queries and documents per block of the product.
const BLOCK_QUERIES: usize = 128;
const BLOCK_DOCUMENTS: usize = 1024;

/// Document numbers, best first, one list per query.
pub struct FloatResults {
    pub cosine: Vec<Vec<u32>>,
    pub euclidean: Vec<Vec<u32>>,
}

/// The `k` nearest documents of every query by cosine and by Euclidean distance; ties go by document number. One product
/// serves both rankings: `-q.d / |d|` orders like the cosine, `|d|^2 / 2 - q.d` like the Euclidean distance.
pub fn search(documents: &Matrix, queries: &Matrix, k: usize, progress: &dyn Progress) -> Result<FloatResults> {
    if documents.cols() != queries.cols() {
        let (d, q) = (documents.cols(), queries.cols());
        return Err(Error::config(format!(
            "document vectors have {d} values, query vectors {q}; use the same encoder for both"
        )));
    }
    let width = documents.cols();
    let squares: Vec<f32> =
        documents.as_slice().par_chunks(width.max(1)).map(|d| d.iter().map(|x| x * x).sum()).collect();
    // A zero vector has no direction, so it ranks last.
    let inverse_norms: Vec<f32> = squares.iter().map(|&s| if s > 0.0 { 1.0 / s.sqrt() } else { f32::NAN }).collect();
    progress.stage("searching by float vectors", Some(queries.rows() as u64));
    let blocks: Vec<_> = queries
        .as_slice()
        .par_chunks(BLOCK_QUERIES * width)
        .map(|block| {
            let rows = block.len() / width;
            let mut cosine: Vec<TopK> = (0..rows).map(|_| TopK::new(k)).collect();
            let mut euclidean: Vec<TopK> = (0..rows).map(|_| TopK::new(k)).collect();
            let mut dots = vec![0.0; BLOCK_QUERIES * BLOCK_DOCUMENTS];
            for (b, part) in documents.as_slice().chunks(BLOCK_DOCUMENTS * width).enumerate() {
                if progress.interrupted() {
                    return Err(Error::Interrupted);
                }
                let (count, first) = (part.len() / width, b * BLOCK_DOCUMENTS);
                let dots = &mut dots[..rows * count];
                multiply(dots, View::new(block, rows, width), View::new(part, count, width).transposed(), 1.0);
                for ((dots, cosine), euclidean) in dots.chunks_exact(count).zip(&mut cosine).zip(&mut euclidean) {
                    for (i, &dot) in dots.iter().enumerate() {
                        let row = first + i;
                        let angle = if inverse_norms[row].is_nan() { f32::MAX } else { -dot * inverse_norms[row] };
                        cosine.push(Neighbour { distance: angle, key: row as u32 });
                        euclidean.push(Neighbour { distance: 0.5 * squares[row] - dot, key: row as u32 });
                    }
                }
            }
            progress.advance(rows as u64);
            let lists = |heaps: Vec<TopK>| heaps.into_iter().map(keys).collect::<Vec<_>>();
            Ok((lists(cosine), lists(euclidean)))
        })
        .collect::<Result<_>>()?;
    let (cosine, euclidean): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
    Ok(FloatResults { cosine: cosine.concat(), euclidean: euclidean.concat() })
}

/// Document numbers, best first.
fn keys(heap: TopK) -> Vec<u32> {
    heap.into_sorted().into_iter().map(|n| n.key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};
    use engine::NoProgress;

    #[test]
    fn rankings_equal_brute_force() {
        let (mut documents, mut queries) = (Matrix::zeros(2100, 7), Matrix::zeros(150, 7));
        Stream::new(0, Purpose::Init, &[0]).normal(documents.as_mut_slice());
        Stream::new(0, Purpose::Init, &[1]).normal(queries.as_mut_slice());
        documents.row_mut(5).fill(0.0);
        let found = search(&documents, &queries, 20, &NoProgress).unwrap();
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
        assert!(search(&documents, &Matrix::zeros(1, 3), 5, &NoProgress).is_err());
    }
}
