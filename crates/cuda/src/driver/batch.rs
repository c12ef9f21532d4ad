//! Packs sequences into batches: whole sequences, back to back, no padding.

use std::ops::Range;

use crate::{Error, Result, Shape};

/// Queries per block of the attention kernel for long sequences.
const ITEM_QUERIES: usize = 64;

/// Largest size of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub tokens: usize,
    pub documents: usize,
}

impl Capacity {
    /// Batches of up to `tokens` tokens. A batch has at most one document per eight tokens; batches of very short documents
    /// end earlier.
    pub fn new(tokens: usize) -> Self {
        Capacity { tokens, documents: tokens.div_ceil(8) }
    }

    /// Length of a packed batch in u32 values. A long sequence has at least 33 tokens, so there is at most one item per 32
    /// tokens.
    pub fn packed_len(self) -> usize {
        Sections::new(self.tokens, self.documents, self.documents, self.tokens / 32).end
    }
}

/// Start of each section of a packed batch, in u32 values. Sections with wide elements come first, so that all are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sections {
    /// `[long items]` of (first token, length, first query, document).
    pub items: usize,
    /// `[short sequences]` of (first token, length less one in the top eight bits; document).
    pub shorts: usize,
    /// `[tokens]` of (document, position).
    pub positions: usize,
    /// `[tokens]` of token ids.
    pub ids: usize,
    /// `[documents + 1]`: first token of each document, then the number of tokens.
    pub starts: usize,
    pub end: usize,
}

impl Sections {
    fn new(tokens: usize, documents: usize, shorts: usize, items: usize) -> Self {
        let positions = 4 * items + 2 * shorts;
        let ids = positions + 2 * tokens;
        let starts = ids + tokens;
        Sections { items: 0, shorts: 4 * items, positions, ids, starts, end: starts + documents + 1 }
    }
}

/// Sizes of a packed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub tokens: usize,
    pub documents: usize,
    pub shorts: usize,
    pub items: usize,
    pub sections: Sections,
}

/// Splits sequences into batches within the capacity.
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

/// Writes a batch in the layout of the kernels. Sequences of up to `short` tokens go to the kernel for short sequences.
pub(crate) fn pack(sequences: &[&[u32]], short: usize, to: &mut [u32]) -> Packed {
    let tokens: usize = sequences.iter().map(|s| s.len()).sum();
    let long = |s: &&&[u32]| s.len() > short;
    let items: usize = sequences.iter().filter(long).map(|s| s.len().div_ceil(ITEM_QUERIES)).sum();
    let shorts = sequences.len() - sequences.iter().filter(long).count();
    let sections = Sections::new(tokens, sequences.len(), shorts, items);
    let (to_items, rest) = to[..sections.end].split_at_mut(sections.shorts);
    let (to_shorts, rest) = rest.split_at_mut(sections.positions - sections.shorts);
    let (to_positions, rest) = rest.split_at_mut(sections.ids - sections.positions);
    let (to_ids, to_starts) = rest.split_at_mut(sections.starts - sections.ids);
    let (mut to_items, mut to_shorts) = (to_items.chunks_exact_mut(4), to_shorts.chunks_exact_mut(2));
    let mut start = 0;
    for (document, sequence) in sequences.iter().enumerate() {
        let length = sequence.len();
        to_starts[document] = start as u32;
        to_ids[start..start + length].copy_from_slice(sequence);
        for (position, to) in to_positions[2 * start..2 * (start + length)].chunks_exact_mut(2).enumerate() {
            to.copy_from_slice(&[document as u32, position as u32]);
        }
        if length <= short {
            let short = [(start | (length - 1) << 24) as u32, document as u32];
            to_shorts.next().expect("counted above").copy_from_slice(&short);
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

/// Refuses sequences for which the kernels would read past their tables.
pub(crate) fn check(sequences: &[&[u32]], shape: &Shape) -> Result<()> {
    for (i, ids) in sequences.iter().enumerate() {
        if ids.is_empty() || ids.len() > shape.positions {
            let (found, max) = (ids.len(), shape.positions);
            return Err(Error::Input(format!("sequence {i} has {found} tokens; the encoder takes 1 to {max}")));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= shape.vocab) {
            let last = shape.vocab - 1;
            return Err(Error::Input(format!(
                "sequence {i} has token {id}; the last token of the encoder's vocabulary is {last}"
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
            // Full: the next sequence would not fit.
            if let Some(more) = lengths.get(batch.end) {
                let tokens: usize = lengths[batch.clone()].iter().sum();
                assert!(tokens + more > capacity.tokens || batch.len() == capacity.documents);
            }
            next = batch.end;
            let mut buffer = vec![u32::MAX; capacity.packed_len()];
            for short in [32, 64] {
                assert!(pack(&all[batch.clone()], short, &mut buffer).sections.end <= capacity.packed_len());
            }
        }
        assert_eq!(next, 500);
        assert!(cut(&[], capacity).is_empty());
        let short = sequences(&[1; 100]);
        let short: Vec<&[u32]> = short.iter().map(Vec::as_slice).collect();
        assert!(cut(&short, capacity).iter().all(|b| b.len() <= 32));
    }

    #[test]
    fn sections_of_a_packed_batch_hold_their_values() {
        let all = sequences(&[3, 130, 1, 64]);
        let all: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
        let mut buffer = vec![u32::MAX; Capacity { tokens: 198, documents: 4 }.packed_len()];
        let packed = pack(&all, 32, &mut buffer);
        assert_eq!((packed.tokens, packed.documents, packed.shorts, packed.items), (198, 4, 2, 4));
        let s = packed.sections;
        assert_eq!(&buffer[s.starts..s.end], &[0, 3, 133, 134, 198]);
        let items: Vec<&[u32]> = buffer[..s.shorts].chunks_exact(4).collect();
        let expected: [&[u32]; 4] = [&[3, 130, 0, 1], &[3, 130, 64, 1], &[3, 130, 128, 1], &[134, 64, 0, 3]];
        assert_eq!(items, expected);
        assert_eq!(&buffer[s.shorts..s.positions], &[2 << 24, 0, 133, 2]);
        for token in 0..198 {
            let (document, position) = (buffer[s.positions + 2 * token], buffer[s.positions + 2 * token + 1]);
            assert_eq!(buffer[s.ids + token], document * 1000 + position);
            assert_eq!(buffer[s.starts + document as usize] + position, token as u32);
        }
        assert!(buffer[s.end..].iter().all(|&w| w == u32::MAX));
        assert!(s.shorts.is_multiple_of(4) && s.positions.is_multiple_of(2));
    }

    #[test]
    fn the_error_names_the_bad_sequence() {
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
        for (bad, expected) in [(&[][..], "0 tokens"), (&[1; 9][..], "9 tokens"), (&[100][..], "token 100")] {
            let message = check(&[&[1], bad], &shape).unwrap_err().to_string();
            assert!(message.contains("sequence 1") && message.contains(expected), "{message}");
        }
    }
}
