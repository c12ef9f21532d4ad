//! The texts a query encoder learns from: short pieces of documents, because queries are short.

use std::ops::Range;

use crate::random::{Purpose, Stream};

/// Words of the pieces of a document, each from one of these ranges: a few keywords, a phrase, a sentence, a paragraph.
const WORDS: [Range<u64>; 5] = [1..4, 2..7, 4..13, 10..31, 24..65];
/// Words of a document's beginning, which is often its title, at most.
const HEAD: usize = 24;

/// The beginning of a document up to its first full stop, and a piece of every length from a place that the seed draws. The same document and seed give the
/// same pieces.
pub fn pieces(document: usize, text: &str, seed: u64) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() {
        return Vec::new();
    }
    let ends = |word: &&str| word.ends_with(['.', '!', '?']);
    let head = words.iter().position(ends).map_or(words.len(), |end| end + 1).min(HEAD);
    let stream = Stream::new(seed, Purpose::Pieces, &[document as u64]);
    let mut pieces = vec![words[..head].join(" ")];
    for (i, range) in WORDS.iter().enumerate() {
        let drawn = range.start + stream.below(2 * i as u64, range.end - range.start);
        let length = words.len().min(drawn as usize);
        let start = stream.below(2 * i as u64 + 1, (words.len() - length + 1) as u64) as usize;
        pieces.push(words[start..start + length].join(" "));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_parts_of_the_document_and_depend_on_the_seed_alone() {
        let text =
            "Oil prices rise. The price of crude rose by two dollars a barrel on Monday as members met in Geneva";
        let drawn = pieces(3, text, 7);
        assert_eq!(drawn.len(), 1 + WORDS.len());
        assert_eq!(drawn[0], "Oil prices rise.");
        assert!(drawn.iter().all(|piece| text.contains(piece.as_str()) && !piece.is_empty()));
        assert_eq!(drawn, pieces(3, text, 7));
        assert_ne!(drawn, pieces(3, text, 8));
        assert_ne!(drawn, pieces(4, text, 7));
        assert!(pieces(0, " \n", 7).is_empty());
        assert_eq!(pieces(0, "tea", 7), vec!["tea"; 1 + WORDS.len()]);
    }
}
