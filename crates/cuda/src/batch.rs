//! Packs sequences into batches: whole sequences, back to back, no padding.

use std::ops::Range;

use crate::{Error, Result, Shape};

/// Queries that one block of the attention kernel for long sequences takes.
const ITEM_QUERIES: usize = 64;

/// The most a batch may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub tokens: usize,
    pub documents: usize,
}

impl Capacity {
    /// Room for batches of `tokens`. Documents are short when a batch holds more than one for eight tokens; then it is
    /// cut earlier.
    pub fn new(tokens: usize) -> Self {
        Capacity { tokens, documents: tokens.div_ceil(8) }
    }

    /// 32-bit words of a packed batch. A sequence is long from 33 tokens on at the earliest, so that it has an item for
    /// every 32 tokens at most.
    pub fn words(self) -> usize {
        Sections::new(self.tokens, self.documents, self.documents, self.tokens / 32).end
    }
}

/// Where the parts of a packed batch begin, in words. The parts of many words come first, so that all are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sections {
    /// `[long items]` of (first token, length, first query, document).
    pub items: usize,
    /// `[short sequences]` of (first token, length less one in the top eight bits; document).
    pub shorts: usize,
    /// `[tokens]` of (document, position).
    pub places: usize,
    /// `[tokens]`.
    pub ids: usize,
    /// `[documents + 1]` first tokens, and the end.
    pub starts: usize,
    pub end: usize,
}

impl Sections {
    fn new(tokens: usize, documents: usize, shorts: usize, items: usize) -> Self {
        let places = 4 * items + 2 * shorts;
        let ids = places + 2 * tokens;
        let starts = ids + tokens;
        Sections { items: 0, shorts: 4 * items, places, ids, starts, end: starts + documents + 1 }
    }
}

/// A packed batch's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub tokens: usize,
    pub documents: usize,
    pub shorts: usize,
    pub items: usize,
    pub sections: Sections,
}

/// Cuts sequences into batches within the capacity.
pub(crate) fn cut(sequences: &[&[u32]], capacity: Capacity) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, sequence) in sequences.iter().enumerate() {
        if i > start && (tokens + sequence.len() > capacity.tokens || i - start == capacity.documents) {
            batches.push(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += sequence.len();
    }
    if start < sequences.len() {
        batches.push(start..sequences.len());
    }
    batches
}

/// Writes a batch as the kernels read it; sequences of up to `short` tokens take the kernel for those.
pub(crate) fn pack(sequences: &[&[u32]], short: usize, to: &mut [u32]) -> Packed {
    let tokens: usize = sequences.iter().map(|s| s.len()).sum();
    let long = |s: &&&[u32]| s.len() > short;
    let items: usize = sequences.iter().filter(long).map(|s| s.len().div_ceil(ITEM_QUERIES)).sum();
    let shorts = sequences.len() - sequences.iter().filter(long).count();
    let sections = Sections::new(tokens, sequences.len(), shorts, items);
    let (to_items, rest) = to[..sections.end].split_at_mut(sections.shorts);
    let (to_shorts, rest) = rest.split_at_mut(sections.places - sections.shorts);
    let (to_places, rest) = rest.split_at_mut(sections.ids - sections.places);
    let (to_ids, to_starts) = rest.split_at_mut(sections.starts - sections.ids);
    let (mut to_items, mut to_shorts) = (to_items.chunks_exact_mut(4), to_shorts.chunks_exact_mut(2));
    let mut start = 0;
    for (document, sequence) in sequences.iter().enumerate() {
        let length = sequence.len();
        to_starts[document] = start as u32;
        to_ids[start..start + length].copy_from_slice(sequence);
        for (position, place) in to_places[2 * start..2 * (start + length)].chunks_exact_mut(2).enumerate() {
            place.copy_from_slice(&[document as u32, position as u32]);
        }
        if length <= short {
            let words = [(start | (length - 1) << 24) as u32, document as u32];
            to_shorts.next().expect("counted above").copy_from_slice(&words);
        } else {
            for (query, item) in (0..length).step_by(ITEM_QUERIES).zip(&mut to_items) {
                item.copy_from_slice(&[start as u32, length as u32, query as u32, document as u32]);
            }
        }
        start += length;
    }
    to_starts[sequences.len()] = start as u32;
    Packed { tokens, documents: sequences.len(), shorts, items, sections }
}

/// Refuses what the kernels would read past their tables for.
pub(crate) fn check(sequences: &[&[u32]], shape: &Shape) -> Result<()> {
    for (i, ids) in sequences.iter().enumerate() {
        if ids.is_empty() || ids.len() > shape.positions {
            let (found, most) = (ids.len(), shape.positions);
            return Err(Error::Input(format!("sequence {i} has {found} tokens, the encoder takes 1 to {most}")));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= shape.vocab) {
            let last = shape.vocab - 1;
            return Err(Error::Input(format!(
                "sequence {i} holds token {id}, the encoder's vocabulary ends at {last}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(lengths: &[usize]) -> Vec<Vec<u32>> {
        lengths.iter().enumerate().map(|(d, &n)| (0..n).map(|p| (d * 1000 + p) as u32).collect()).collect()
    }

    #[test]
    fn batches_hold_whole_sequences_within_the_capacity() {
        let lengths: Vec<usize> = (0..500).map(|i| 1 + i * 37 % 90).collect();
        let all = sequences(&lengths);
        let all: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
        let capacity = Capacity::new(256);
        let batches = cut(&all, capacity);
        let mut next = 0;
        for batch in &batches {
            assert_eq!(batch.start, next);
            assert!(lengths[batch.clone()].iter().sum::<usize>() <= capacity.tokens);
            assert!(batch.len() <= capacity.documents);
            // Full: one more would not have fitted.
            if let Some(more) = lengths.get(batch.end) {
                let tokens: usize = lengths[batch.clone()].iter().sum();
                assert!(tokens + more > capacity.tokens || batch.len() == capacity.documents);
            }
            next = batch.end;
            let mut words = vec![u32::MAX; capacity.words()];
            for short in [32, 64] {
                assert!(pack(&all[batch.clone()], short, &mut words).sections.end <= capacity.words());
            }
        }
        assert_eq!(next, 500);
        assert!(cut(&[], capacity).is_empty());
        let short = sequences(&[1; 100]);
        let short: Vec<&[u32]> = short.iter().map(Vec::as_slice).collect();
        assert!(cut(&short, capacity).iter().all(|b| b.len() <= 32));
    }

    #[test]
    fn a_packed_batch_says_where_everything_is() {
        let all = sequences(&[3, 130, 1, 64]);
        let all: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
        let mut words = vec![u32::MAX; Capacity { tokens: 198, documents: 4 }.words()];
        let packed = pack(&all, 32, &mut words);
        assert_eq!((packed.tokens, packed.documents, packed.shorts, packed.items), (198, 4, 2, 4));
        let s = packed.sections;
        assert_eq!(&words[s.starts..s.end], &[0, 3, 133, 134, 198]);
        let items: Vec<&[u32]> = words[..s.shorts].chunks_exact(4).collect();
        let expected: [&[u32]; 4] = [&[3, 130, 0, 1], &[3, 130, 64, 1], &[3, 130, 128, 1], &[134, 64, 0, 3]];
        assert_eq!(items, expected);
        assert_eq!(&words[s.shorts..s.places], &[2 << 24, 0, 133, 2]);
        for token in 0..198 {
            let (document, position) = (words[s.places + 2 * token], words[s.places + 2 * token + 1]);
            assert_eq!(words[s.ids + token], document * 1000 + position);
            assert_eq!(words[s.starts + document as usize] + position, token as u32);
        }
        assert!(words[s.end..].iter().all(|&w| w == u32::MAX));
        assert!(s.shorts.is_multiple_of(4) && s.places.is_multiple_of(2));
    }

    #[test]
    fn bad_sequences_are_named() {
        let shape = Shape {
            hidden: 384,
            heads: 12,
            layers: 6,
            intermediate: 1536,
            vocab: 100,
            positions: 8,
            epsilon: 1e-12,
            activation: crate::Activation::Gelu,
        };
        assert!(check(&[&[1, 99]], &shape).is_ok());
        for (bad, words) in [(&[][..], "0 tokens"), (&[1; 9][..], "9 tokens"), (&[100][..], "token 100")] {
            let said = check(&[&[1], bad], &shape).unwrap_err().to_string();
            assert!(said.contains("sequence 1") && said.contains(words), "{said}");
        }
    }
}
