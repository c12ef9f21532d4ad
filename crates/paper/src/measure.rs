//! The figures of a trained method, measured with the queries of a corpus.

use std::time::Instant;

use engine::model::{Codebooks, Distance};
use engine::search::Flat;
use engine::{Matrix, Progress, Result};
use train::Labels;
use train::evaluate::code_search;
use train::metrics::{DEPTH, Scores, Usage, recall_10_at_100, relevant};
use train::random::{Purpose, Stream};

use crate::cell::{Case, Figures};
use crate::splits::{EncodedSplits, Splits};
use methods::inputs::{Built, Front, Inputs, projected};
use methods::rotation::{Axes, project};
use methods::yardstick;

/// Depths of the precision-recall curve.
const DEPTHS: [usize; 11] = [1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
/// Queries of that curve: its lists are up to 5,000 long.
const CURVE_QUERIES: usize = 500;
/// Documents on the map of codes.
const MAP_POINTS: usize = 600;
/// Queries of the case study, hits per query, and characters per text.
const CASES: [usize; 3] = [0, 1, 2];
const HITS: usize = 3;
const TEXT_CHARS: usize = 220;

/// Figures of search by codes.
pub fn codes(built: &Built, encoded: &EncodedSplits, splits: &Splits, progress: &dyn Progress) -> Result<Figures> {
    let count = encoded.documents.len();
    let shape = built.codebooks.shape();
    let begun = Instant::now();
    let vectors = projected(&built.front, &built.projection, &encoded.documents)?;
    let codes = built.codebooks.assign(&vectors);
    let encoding = begun.elapsed().as_secs_f64() * 1e6 / count as f64;
    drop(vectors);
    // Codes lie in an order drawn once. Equal distances are ordered by position, so the order of the file would count.
    let order = Stream::new(0, Purpose::Database, &[]).permutation(count);
    let bytes = shape.code_bytes();
    let laid: Vec<u8> = order.iter().flat_map(|&d| codes[d as usize * bytes..][..bytes].iter().copied()).collect();
    let usage = histogram(&built.codebooks, &laid);
    let map_points = code_map(&built.codebooks, &laid, &order, &splits.documents.labels)?;
    let flat = Flat::new(shape, laid)?;
    let asked = projected(&built.front, &built.projection, &encoded.queries)?;
    let labels = splits.documents.labels.select(&order);
    let begun = Instant::now();
    let found = code_search(&flat, &built.codebooks, &asked, built.distance, DEPTH)?;
    let searching = begun.elapsed().as_secs_f64() * 1e6 / asked.rows() as f64;
    let scores = Scores::of(&found, &splits.queries.labels, &labels)?;
    let mut others = Vec::new();
    for distance in [Distance::Norm, Distance::Squared, Distance::Hamming] {
        // Hamming distance means little for codebooks of more than two codewords; codebooks of one dimension have one order.
        let apt = shape.dim() > 1 && (distance != Distance::Hamming || shape.codebook_size() == 2);
        if distance != built.distance && apt {
            let found = code_search(&flat, &built.codebooks, &asked, distance, DEPTH)?;
            let score = Scores::of(&found, &splits.queries.labels, &labels)?.precision.at_100;
            others.push((distance.to_string(), score));
        }
    }
    let deep = asked.select(&(0..asked.rows().min(CURVE_QUERIES)).collect::<Vec<_>>());
    let deepest = DEPTHS[DEPTHS.len() - 1].min(count);
    let lists = code_search(&flat, &built.codebooks, &deep, built.distance, deepest)?;
    let back: Vec<Vec<u32>> = found.iter().map(|l| l.iter().map(|&row| order[row as usize]).collect()).collect();
    let recall = encoded.nearest(progress)?.map(|exact| recall_10_at_100(exact, &back));
    let layers: usize = built.projection.layers().iter().map(|l| l.weight().len() + l.bias().len()).sum();
    let front = match &built.front {
        Front::Embeddings => 0,
        Front::Terms(terms) => terms.layer().weight.len() + terms.layer().bias.len(),
        Front::Convolution(convolution) => convolution.weight().len() + convolution.bias().len(),
    };
    let cells = built.projection.cells().map_or(0, |c| c.centres().len() + c.rotations().len());
    Ok(Figures {
        precision: [scores.precision.at_1, scores.precision.at_10, scores.precision.at_100],
        hits: hits(&found, &splits.queries.labels, &labels),
        map: scores.map,
        others,
        recall,
        curve: curve(&lists, &splits.queries.labels, &labels),
        usage,
        map_points,
        cases: cases(&back, splits),
        microseconds: (encoding, searching),
        bytes: (bytes, 4 * (layers + front + cells + built.codebooks.values().len())),
        sizes: (count, asked.rows()),
        ..Figures::default()
    })
}

/// Figures of exact search: by cosine, with other distances beside it.
pub fn float(encoded: &EncodedSplits, splits: &Splits, progress: &dyn Progress) -> Result<Figures> {
    let labels = (&splits.queries.labels, &splits.documents.labels);
    let begun = Instant::now();
    let (found, others, bytes) = match (&encoded.documents, &encoded.queries) {
        (Inputs::Embeddings(documents), Inputs::Embeddings(queries)) => {
            let found = train::float::search(documents, queries, DEPTH, progress)?;
            let exact = yardstick::exact(documents, queries, labels, progress)?;
            let others = vec![
                ("euclidean".to_owned(), exact.euclidean.precision.at_100),
                ("whitened".to_owned(), exact.whitened.precision.at_100),
            ];
            (found.cosine, others, documents.cols() * 4)
        }
        (Inputs::Terms(documents), Inputs::Terms(queries)) => {
            let terms = documents.vocabulary.len();
            let each = documents.rows.iter().map(Vec::len).sum::<usize>() * 8 / documents.rows.len().max(1);
            (yardstick::sparse(&documents.rows, &queries.rows, terms, DEPTH, progress)?, Vec::new(), each)
        }
        _ => unreachable!("documents and queries are inputs of one kind"),
    };
    let searching = begun.elapsed().as_secs_f64() * 1e6 / found.len() as f64;
    let scores = Scores::of(&found, labels.0, labels.1)?;
    Ok(Figures {
        precision: [scores.precision.at_1, scores.precision.at_10, scores.precision.at_100],
        hits: hits(&found, labels.0, labels.1),
        map: scores.map,
        others,
        curve: curve(&found[..found.len().min(CURVE_QUERIES)], labels.0, labels.1),
        cases: cases(&found, splits),
        microseconds: (0.0, searching),
        bytes: (bytes, 0),
        sizes: (encoded.documents.len(), encoded.queries.len()),
        ..Figures::default()
    })
}

/// Relevant documents among the first 100 of every query.
fn hits(lists: &[Vec<u32>], queries: &Labels, documents: &Labels) -> Vec<u8> {
    let of = |(q, list): (usize, &Vec<u32>)| {
        list.iter().take(DEPTH).filter(|&&d| relevant(queries.get(q), documents.get(d as usize))).count() as u8
    };
    lists.iter().enumerate().map(of).collect()
}

/// Recall and precision at growing depths, mean over queries, in percent.
fn curve(lists: &[Vec<u32>], queries: &Labels, documents: &Labels) -> Vec<(f64, f64)> {
    let longest = lists.iter().map(Vec::len).min().unwrap_or(0);
    let possible: Vec<usize> = (0..lists.len())
        .map(|q| (0..documents.len()).filter(|&d| relevant(queries.get(q), documents.get(d))).count())
        .collect();
    DEPTHS
        .iter()
        .filter(|&&depth| depth <= longest)
        .map(|&depth| {
            let (mut recall, mut precision) = (0.0, 0.0);
            for (q, list) in lists.iter().enumerate() {
                let hits =
                    list[..depth].iter().filter(|&&d| relevant(queries.get(q), documents.get(d as usize))).count();
                recall += hits as f64 / possible[q].max(1) as f64;
                precision += hits as f64 / depth as f64;
            }
            let n = lists.len().max(1) as f64 / 100.0;
            (recall / n, precision / n)
        })
        .collect()
}

fn histogram(codebooks: &Codebooks, codes: &[u8]) -> Vec<Vec<usize>> {
    let shape = codebooks.shape();
    let mut counts = vec![vec![0; shape.codebook_size()]; shape.num_codebooks()];
    for code in codes.chunks_exact(shape.code_bytes()) {
        counts.iter_mut().enumerate().for_each(|(m, count)| count[shape.codeword(code, m)] += 1);
    }
    debug_assert_eq!(Usage::of(shape, codes).used.len(), counts.len());
    counts
}

/// The first documents along the two principal axes of their decoded codes.
fn code_map(codebooks: &Codebooks, codes: &[u8], order: &[u32], labels: &Labels) -> Result<Vec<(f32, f32, u32)>> {
    let shape = codebooks.shape();
    let count = MAP_POINTS.min(order.len());
    let mut decoded = Matrix::zeros(count, shape.width());
    for (i, code) in codes.chunks_exact(shape.code_bytes()).take(count).enumerate() {
        for (m, part) in decoded.row_mut(i).chunks_exact_mut(shape.dim()).enumerate() {
            part.copy_from_slice(
                codebooks.codebook(m).nth(shape.codeword(code, m)).expect("a packed codeword is below K"),
            );
        }
    }
    let axes = Axes::of(&decoded)?;
    let mut two = Matrix::zeros(2, shape.width());
    (0..2.min(shape.width())).for_each(|i| two.row_mut(i).copy_from_slice(axes.axes.row(i)));
    let flat = project(&decoded, &axes.centre, &two);
    let class = |i: usize| labels.get(order[i] as usize).first().copied().unwrap_or(0);
    Ok(flat.iter().enumerate().map(|(i, p)| (p[0], p[1], class(i))).collect())
}

fn cases(found: &[Vec<u32>], splits: &Splits) -> Vec<Case> {
    let short = |text: &str| text.chars().take(TEXT_CHARS).collect::<String>();
    let some = CASES.iter().filter(|&&q| q < found.len());
    some.map(|&q| {
        let own = splits.queries.labels.get(q);
        let hits = found[q].iter().take(HITS).map(|&d| {
            let d = d as usize;
            (short(&splits.documents.texts[d]), relevant(own, splits.documents.labels.get(d)))
        });
        Case { query: short(&splits.queries.texts[q]), class: own.first().copied().unwrap_or(0), found: hits.collect() }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_has_recall_and_precision_at_each_depth() {
        // Documents 0, 2, 4 of class 0; the list finds 0, 1, 2, 3, 4.
        let documents = Labels::single(vec![0, 1, 0, 1, 0]);
        let found = curve(&[vec![0, 1, 2, 3, 4]], &Labels::single(vec![0]), &documents);
        assert_eq!(found.len(), 2);
        assert!((found[0].0 - 100.0 / 3.0).abs() < 1e-9 && (found[0].1 - 100.0).abs() < 1e-9);
        assert!((found[1].0 - 100.0).abs() < 1e-9 && (found[1].1 - 60.0).abs() < 1e-9);
        let (list, queries) = (vec![0, 1, 2, 3, 4], Labels::single(vec![0]));
        assert_eq!(hits(std::slice::from_ref(&list), &queries, &documents), [3]);
        // The mean of the hits is P@100, also of fewer documents than a hundred.
        let scores = Scores::of(&[list], &queries, &documents).unwrap();
        let figures = Figures { hits: vec![3], sizes: (5, 1), ..Figures::default() };
        assert!((3.0 * figures.hits_scale().unwrap() - scores.precision.at_100).abs() < 1e-9, "{scores:?}");
    }
}
