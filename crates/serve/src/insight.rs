//! Views into an index: a map of its documents, and the terms that characterise a codeword.

use std::collections::{HashMap, HashSet};

use engine::Result;
use engine::index::Index;
use engine::model::DistanceTable;
use engine::query::Rerank;
use engine::query::{Hit, SearchConfig};
use serde::Serialize;
use utoipa::ToSchema;

use crate::id::Id;

/// Documents on a plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    pub points: Vec<Point>,
    /// Share of the codes' variance on each axis.
    pub shares: [f64; 2],
}

/// A document on the map.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = MapPoint)]
pub struct Point {
    /// Id of the document.
    pub id: Id,
    /// Coordinate on the first axis.
    pub x: f64,
    /// Coordinate on the second axis.
    pub y: f64,
    /// First label of the document.
    pub label: Option<String>,
    /// Beginning of the text.
    pub text: Option<String>,
}

/// Characters of a document's text on the map.
const TEXT_CHARS: usize = 100;

/// Maps an even sample of at most `max_points` documents to the two principal axes of their decoded codes.
pub fn map(index: &Index, max_points: usize) -> Result<Map> {
    let walk = index.walk()?;
    let count = walk.len().min(max_points);
    let codebooks = index.model().codebooks();
    let shape = codebooks.shape();
    let codewords: Vec<Vec<&[f32]>> = (0..shape.num_codebooks()).map(|m| codebooks.codebook(m).collect()).collect();
    let (mut points, mut vectors) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for i in 0..count {
        let record = walk.get(i * walk.len() / count)?;
        let vector: Vec<f64> = (0..shape.num_codebooks())
            .flat_map(|m| codewords[m][shape.codeword(&record.code, m)].iter().map(|v| f64::from(*v)))
            .collect();
        vectors.push(vector);
        let text = record.text.map(|text| text.chars().take(TEXT_CHARS).collect());
        points.push(Point { id: Id(record.id), x: 0.0, y: 0.0, label: record.labels.into_iter().next(), text });
    }
    let shares = project(&mut vectors, |i, x, y| (points[i].x, points[i].y) = (x, y));
    Ok(Map { points, shares })
}

/// Calls `place` with the coordinates of every row on the two principal axes. Returns the share of variance of each axis.
fn project(rows: &mut [Vec<f64>], mut place: impl FnMut(usize, f64, f64)) -> [f64; 2] {
    let Some(width) = rows.first().map(Vec::len) else { return [0.0; 2] };
    for j in 0..width {
        let mean = rows.iter().map(|row| row[j]).sum::<f64>() / rows.len() as f64;
        rows.iter_mut().for_each(|row| row[j] -= mean);
    }
    let total: f64 = rows.iter().flatten().map(|v| v * v).sum();
    let mut coordinates = vec![[0.0; 2]; rows.len()];
    let mut shares = [0.0; 2];
    for axis in 0..2 {
        let direction = principal_axis(rows, width);
        for (row, coordinate) in rows.iter_mut().zip(&mut coordinates) {
            let along: f64 = row.iter().zip(&direction).map(|(a, b)| a * b).sum();
            coordinate[axis] = along;
            shares[axis] += along * along;
            // The rest is orthogonal to this axis. Its principal axis is the second one.
            row.iter_mut().zip(&direction).for_each(|(v, d)| *v -= along * d);
        }
    }
    coordinates.iter().enumerate().for_each(|(i, [x, y])| place(i, *x, *y));
    shares.map(|share| if total > 0.0 { share / total } else { 0.0 })
}

/// The direction of greatest variance, by power iteration. The start is fixed: the same rows give the same axis.
fn principal_axis(rows: &[Vec<f64>], width: usize) -> Vec<f64> {
    let mut axis: Vec<f64> = (0..width).map(|j| 1.0 + (j % 7) as f64 / 7.0 - (j % 3) as f64).collect();
    for _ in 0..60 {
        let mut next = vec![0.0; width];
        for row in rows {
            let along: f64 = row.iter().zip(&axis).map(|(a, b)| a * b).sum();
            next.iter_mut().zip(row).for_each(|(n, v)| *n += along * v);
        }
        let length = next.iter().map(|v| v * v).sum::<f64>().sqrt();
        if length == 0.0 {
            return vec![0.0; width];
        }
        axis = next.into_iter().map(|v| v / length).collect();
    }
    // The sign of an axis is arbitrary. A fixed choice keeps the map stable.
    let sign = axis.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).map_or(1.0, f64::signum);
    axis.iter_mut().for_each(|v| *v *= sign);
    axis
}

/// Documents whose code has `codeword` in `codebook`, in the order of insertion.
pub fn members(index: &Index, codebook: usize, codeword: usize, max_documents: usize) -> Result<Vec<Hit>> {
    let shape = index.model().shape();
    let mut values = vec![0.0; shape.num_codebooks() * shape.codebook_size()];
    let row = &mut values[codebook * shape.codebook_size()..(codebook + 1) * shape.codebook_size()];
    row.iter_mut().enumerate().for_each(|(k, value)| *value = f32::from(u8::from(k != codeword)));
    let config = SearchConfig { k: max_documents, radius: Some(0.0), rerank: Rerank::Off, ..SearchConfig::default() };
    Ok(index.search(&[DistanceTable::new(shape, values)?], &config)?.pop().unwrap_or_default())
}

/// A term that characterises a codeword.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Mark {
    pub term: String,
    /// Share of the codeword's documents that have it, in a sample.
    pub inside: f64,
    /// Share of the other documents that have it, in a sample.
    pub outside: f64,
}

/// Terms that distinguish the texts inside from those outside, most distinctive first.
pub fn marks<'a>(
    inside: impl Iterator<Item = &'a str>,
    outside: impl Iterator<Item = &'a str>,
    max_marks: usize,
) -> Vec<Mark> {
    /// The number of texts that have each term, and the number of texts.
    fn count_terms<'a>(texts: impl Iterator<Item = &'a str>) -> (HashMap<String, u32>, u32) {
        let (mut counts, mut texts_seen) = (HashMap::new(), 0);
        for text in texts {
            texts_seen += 1;
            let terms = text.split(|c: char| !c.is_alphanumeric()).filter(|term| term.chars().count() > 2);
            let terms: HashSet<String> =
                terms.filter(|term| term.chars().any(char::is_alphabetic)).map(str::to_lowercase).collect();
            terms.into_iter().for_each(|term| *counts.entry(term).or_insert(0) += 1);
        }
        (counts, texts_seen)
    }
    let (inside, members) = count_terms(inside);
    let (outside, others) = count_terms(outside);
    let share = |count: u32, of: u32| (f64::from(count) + 0.5) / (f64::from(of) + 1.0);
    let mut scored: Vec<(f64, Mark)> = inside
        .into_iter()
        // A term of one document says nothing about the codeword.
        .filter(|(_, count)| *count > 1 || members <= 2)
        .map(|(term, count)| {
            let (here, there) = (share(count, members), share(outside.get(&term).copied().unwrap_or(0), others));
            // The log-likelihood ratio of the term, weighted by its frequency inside.
            (here * (here / there).ln(), Mark { term, inside: here.min(1.0), outside: there.min(1.0) })
        })
        .filter(|(score, _)| *score > 0.0)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.term.cmp(&b.1.term)));
    scored.truncate(max_marks);
    scored.into_iter().map(|(_, mark)| mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projection_finds_the_axes_of_greatest_variance() {
        // A long cloud along (1, 1, 0), flatter along (0, 0, 1), nothing else.
        let mut rows: Vec<Vec<f64>> = (0..101)
            .map(|i| {
                let t = f64::from(i) - 50.0;
                vec![t + 3.0, t - 9.0, 10.0 * (t * 0.7).sin()]
            })
            .collect();
        let mut placed = vec![(0.0, 0.0); rows.len()];
        let shares = project(&mut rows, |i, x, y| placed[i] = (x, y));
        assert!(shares[0] > 0.9 && shares[0] + shares[1] > 0.999, "{shares:?}");
        let (first, last) = (placed[0].0, placed[100].0);
        assert!((first + last).abs() < 5.0 && (last - first).abs() > 130.0, "{first} {last}");
        assert_eq!(project(&mut [], |_, _, _| {}), [0.0; 2]);
        assert_eq!(project(&mut [vec![1.0, 2.0], vec![1.0, 2.0]], |_, x, y| assert_eq!((x, y), (0.0, 0.0))), [0.0; 2]);
    }

    #[test]
    fn marks_are_distinctive_terms_without_common_ones() {
        let inside = ["The oil price rises", "oil of the north", "crude oil and the price"];
        let outside = ["the bank and the price", "the dollar", "the wheat of the north", "a loan and the rate"];
        let marks = marks(inside.into_iter(), outside.into_iter(), 5);
        assert_eq!(marks[0].term, "oil");
        assert!(marks[0].inside > 0.8 && marks[0].outside < 0.2);
        assert!(marks.iter().all(|m| m.term != "the"), "{marks:?}");
    }
}
