//! What an index looks like from inside: a map of its documents, and the words that mark a codeword.

use std::collections::{HashMap, HashSet};

use micpq::Result;
use micpq::corpus::DocId;
use micpq::index::{Hit, Index, SearchConfig};
use micpq::model::Table;
use micpq::query::Rerank;

/// Documents in the plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// The points.
    pub points: Vec<Point>,
    /// Share of the spread of codes that each axis shows.
    pub shares: [f64; 2],
}

/// One document in the plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its id.
    pub id: DocId,
    /// Along the first axis.
    pub x: f64,
    /// Along the second.
    pub y: f64,
    /// Its first label.
    pub label: Option<String>,
    /// The beginning of its text.
    pub text: Option<String>,
}

/// Characters of a text on the map.
const TITLE: usize = 100;

/// Places an even sample of at most `most` documents by the two main axes of what their codes stand for.
pub fn map(index: &Index, most: usize) -> Result<Map> {
    let walk = index.walk()?;
    let count = walk.len().min(most);
    let books = index.model().codebooks();
    let shape = books.shape();
    let words: Vec<Vec<&[f32]>> = (0..shape.books()).map(|m| books.book(m).collect()).collect();
    let (mut points, mut vectors) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for i in 0..count {
        let record = walk.get(i * walk.len() / count)?;
        let vector: Vec<f64> = (0..shape.books())
            .flat_map(|m| words[m][shape.word(&record.code, m)].iter().map(|v| f64::from(*v)))
            .collect();
        vectors.push(vector);
        let text = record.text.map(|text| text.chars().take(TITLE).collect());
        points.push(Point { id: record.id, x: 0.0, y: 0.0, label: record.labels.into_iter().next(), text });
    }
    let shares = project(&mut vectors, |i, x, y| (points[i].x, points[i].y) = (x, y));
    Ok(Map { points, shares })
}

/// Hands over the coordinates of every row on the two main axes, and returns the share of the spread each shows.
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
        let direction = main_axis(rows, width);
        for (row, place) in rows.iter_mut().zip(&mut coordinates) {
            let along: f64 = row.iter().zip(&direction).map(|(a, b)| a * b).sum();
            place[axis] = along;
            shares[axis] += along * along;
            // What is left is spread across this axis: its main axis is the second.
            row.iter_mut().zip(&direction).for_each(|(v, d)| *v -= along * d);
        }
    }
    coordinates.iter().enumerate().for_each(|(i, [x, y])| place(i, *x, *y));
    shares.map(|share| if total > 0.0 { share / total } else { 0.0 })
}

/// The direction of greatest spread, by power iteration from a fixed start: the same rows give the same axis.
fn main_axis(rows: &[Vec<f64>], width: usize) -> Vec<f64> {
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
    // Signs mean nothing; this one makes the picture stay as it was.
    let sign = axis.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).map_or(1.0, f64::signum);
    axis.iter_mut().for_each(|v| *v *= sign);
    axis
}

/// Documents that have word `word` in book `book`, in the order of insertion.
pub fn members(index: &Index, book: usize, word: usize, most: usize) -> Result<Vec<Hit>> {
    let shape = index.model().shape();
    let mut values = vec![0.0; shape.books() * shape.words()];
    let row = &mut values[book * shape.words()..(book + 1) * shape.words()];
    row.iter_mut().enumerate().for_each(|(k, value)| *value = f32::from(u8::from(k != word)));
    let config = SearchConfig { k: most, within: Some(0.0), rerank: Rerank::Off, ..SearchConfig::default() };
    Ok(index.search(&[Table::new(shape, values)?], &config)?.pop().unwrap_or_default())
}

/// A word with its share of the codeword's documents and of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The word.
    pub word: String,
    /// Share of the members that have it.
    pub inside: f64,
    /// Share of the others that have it.
    pub outside: f64,
}

/// Words that tell some texts from others, the most telling first.
pub fn marks<'a>(
    inside: impl Iterator<Item = &'a str>,
    outside: impl Iterator<Item = &'a str>,
    most: usize,
) -> Vec<Mark> {
    fn counted<'a>(texts: impl Iterator<Item = &'a str>) -> (HashMap<String, u32>, u32) {
        let (mut counts, mut texts_seen) = (HashMap::new(), 0);
        for text in texts {
            texts_seen += 1;
            let words = text.split(|c: char| !c.is_alphanumeric()).filter(|w| w.chars().count() > 2);
            let words: HashSet<String> =
                words.filter(|w| w.chars().any(char::is_alphabetic)).map(str::to_lowercase).collect();
            words.into_iter().for_each(|word| *counts.entry(word).or_insert(0) += 1);
        }
        (counts, texts_seen)
    }
    let (inside, members) = counted(inside);
    let (outside, others) = counted(outside);
    let share = |count: u32, of: u32| (f64::from(count) + 0.5) / (f64::from(of) + 1.0);
    let mut scored: Vec<(f64, Mark)> = inside
        .into_iter()
        // A word of one document marks that document.
        .filter(|(_, count)| *count > 1 || members <= 2)
        .map(|(word, count)| {
            let (here, there) = (share(count, members), share(outside.get(&word).copied().unwrap_or(0), others));
            // How much a document's having the word speaks for the codeword, times how often it has.
            (here * (here / there).ln(), Mark { word, inside: here.min(1.0), outside: there.min(1.0) })
        })
        .filter(|(score, _)| *score > 0.0)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.word.cmp(&b.1.word)));
    scored.truncate(most);
    scored.into_iter().map(|(_, mark)| mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_axes_are_those_of_the_spread() {
        // A long cloud along (1, 1, 0), flatter along (0, 0, 1), nothing else.
        let mut rows: Vec<Vec<f64>> = (0..101)
            .map(|i| {
                let t = i as f64 - 50.0;
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
    fn words_that_tell_come_before_words_everywhere() {
        let inside = ["The oil price rises", "oil of the north", "crude oil and the price"];
        let outside = ["the bank and the price", "the dollar", "the wheat of the north", "a loan and the rate"];
        let marks = marks(inside.into_iter(), outside.into_iter(), 5);
        assert_eq!(marks[0].word, "oil");
        assert!(marks[0].inside > 0.8 && marks[0].outside < 0.2);
        assert!(marks.iter().all(|m| m.word != "the"), "{marks:?}");
    }
}
