//! Word pieces of ASCII texts, without the library.
//!
//! The library keeps where every character came from, through every step, which takes most of the time of a short text: 60 to
//! 100 us of a query. An ASCII text needs none of that. Everything else goes through the library, and so does a text that may
//! hold one of the tokens that the library looks for in the raw text.

use std::collections::HashMap;

use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

/// BERT's tokenizer, for ASCII.
pub(super) struct AsciiPieces {
    lowercase: bool,
    unknown: u32,
    max_chars: usize,
    // Pieces that begin a word, and those that continue one, without their mark.
    first: HashMap<Box<[u8]>, u32>,
    rest: HashMap<Box<[u8]>, u32>,
    longest: usize,
    // The tokens at both ends of a text.
    ends: (u32, u32),
    // Bytes with which a token begins that is looked for in the raw text.
    guarded: [bool; 128],
}

impl AsciiPieces {
    /// `None` where a tokenizer has another normaliser, other words or other pieces than BERT's.
    pub fn of(tokenizer: &tokenizers::Tokenizer) -> Option<AsciiPieces> {
        let (Some(NormalizerWrapper::BertNormalizer(normal)), Some(PreTokenizerWrapper::BertPreTokenizer(_))) =
            (tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer())
        else {
            return None;
        };
        let ModelWrapper::WordPiece(model) = tokenizer.get_model() else { return None };
        if !normal.clean_text || model.continuing_subword_prefix.is_empty() {
            return None;
        }
        let mut guarded = [false; 128];
        for token in tokenizer.get_added_tokens_decoder().values() {
            let begin = *token.content.as_bytes().first()?;
            // A token that begins like a word would send every text to the library.
            if begin.is_ascii_alphanumeric() || begin.is_ascii_whitespace() {
                return None;
            }
            if let Some(guarded) = guarded.get_mut(usize::from(begin)) {
                *guarded = true;
            }
        }
        let (mut first, mut rest) = (HashMap::new(), HashMap::new());
        for (piece, id) in tokenizer.get_vocab(false) {
            if let Some(end) = piece.strip_prefix(&model.continuing_subword_prefix) {
                rest.insert(end.as_bytes().into(), id);
            }
            first.insert(piece.into_bytes().into_boxed_slice(), id);
        }
        let longest = first.keys().map(|piece| piece.len()).max()?;
        let ids = |text: &str| tokenizer.encode_fast(text, true).ok().map(|encoding| encoding.get_ids().to_vec());
        let [begin, end] = ids("")?[..] else { return None };
        let around = |ids: &[u32]| ids.len() > 2 && ids[0] == begin && ids[ids.len() - 1] == end;
        around(&ids("a")?).then_some(AsciiPieces {
            lowercase: normal.lowercase,
            unknown: *first.get(model.unk_token.as_bytes())?,
            max_chars: model.max_input_chars_per_word,
            first,
            rest,
            longest,
            ends: (begin, end),
            guarded,
        })
    }

    /// At most `max_tokens` ids of a text, its ends among them where they are wanted, and whether it has more. `None` where the
    /// library must read it.
    pub fn encode(&self, text: &str, max_tokens: usize, ends: bool) -> Option<(Vec<u32>, bool)> {
        if !text.bytes().all(|byte| self.guarded.get(usize::from(byte)).is_some_and(|guarded| !guarded)) {
            return None;
        }
        let room = max_tokens.checked_sub(usize::from(ends))?;
        let mut ids = Vec::with_capacity(max_tokens.min(text.len() / 2 + 3));
        ids.extend(ends.then_some(self.ends.0));
        let mut word = Vec::with_capacity(64);
        for byte in text.bytes() {
            let separate = byte.is_ascii_punctuation();
            if separate || matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                self.add(&word, &mut ids);
                word.clear();
                if separate {
                    self.add(&[byte], &mut ids);
                }
                if ids.len() > room {
                    break;
                }
            } else if !byte.is_ascii_control() {
                word.push(if self.lowercase { byte.to_ascii_lowercase() } else { byte });
            }
        }
        self.add(&word, &mut ids);
        let cut = ids.len() > room;
        ids.truncate(room);
        ids.extend(ends.then_some(self.ends.1));
        Some((ids, cut))
    }

    /// Appends the pieces of a word: always the longest that fits; of a word that is not made of pieces the unknown token.
    fn add(&self, word: &[u8], ids: &mut Vec<u32>) {
        if word.len() > self.max_chars {
            ids.push(self.unknown);
            return;
        }
        let (before, mut left) = (ids.len(), word);
        while !left.is_empty() {
            let pieces = if left.len() == word.len() { &self.first } else { &self.rest };
            let longest = left.len().min(self.longest);
            let Some((length, id)) = (1..=longest).rev().find_map(|n| Some((n, *pieces.get(&left[..n])?))) else {
                ids.truncate(before);
                ids.push(self.unknown);
                return;
            };
            ids.push(id);
            left = &left[length..];
        }
    }
}
