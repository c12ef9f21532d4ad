//! Text to token ids, with the tokens that mark its ends (`[CLS]` and `[SEP]` of BERT), through the `tokenizers` crate.

mod ascii;

use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{TruncationDirection, TruncationParams, TruncationStrategy};

use crate::{Error, Result, parallel};
use ascii::AsciiPieces;

/// A tokenizer: word pieces, byte pairs or unigrams.
#[derive(Clone)]
pub struct Tokenizer {
    // Whether the tokens that mark the ends of a text are added.
    ends: bool,
    // Left out of every text.
    dropped: Option<u32>,
    // Texts are cut after so many characters per token first, as model2vec does.
    chars_per_token: Option<usize>,
    // Truncates to the length requested last. A copy with another length takes 5 ms, more than a query may.
    inner: Arc<RwLock<Arc<tokenizers::Tokenizer>>>,
    // Truncates nothing, to count tokens.
    whole: Arc<tokenizers::Tokenizer>,
    // Reads ASCII texts, where the tokenizer is BERT's.
    pieces: Option<Arc<AsciiPieces>>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of an encoder's directory, or makes an uncased word-piece tokenizer from `vocab.txt`.
    pub fn load(dir: &Path) -> Result<Self> {
        let (json, vocab) = (dir.join("tokenizer.json"), dir.join("vocab.txt"));
        let inner = if json.exists() {
            let bytes = std::fs::read(&json).map_err(Error::io(&json))?;
            return Tokenizer::read(&bytes, &json);
        } else if vocab.exists() {
            from_vocabulary(dir, &vocab)?
        } else {
            return Err(Error::format(dir, "has neither tokenizer.json nor vocab.txt; an encoder needs one of them"));
        };
        Tokenizer::untruncated(inner, dir)
    }

    /// Reads the bytes of a `tokenizer.json`. `path` is for the message.
    pub fn read(bytes: &[u8], path: &Path) -> Result<Self> {
        // The library panics on files whose parts do not fit together, on some of them only when it encodes.
        let read = || {
            let read = tokenizers::Tokenizer::from_bytes(bytes)?;
            read.encode_fast("a text", true).map(|_| read)
        };
        let inner = std::panic::catch_unwind(read)
            .unwrap_or_else(|_| Err("its parts do not fit together".into()))
            .map_err(|e| Error::format(path, format!("not a readable tokenizer: {e}; fetch the encoder again")))?;
        Tokenizer::untruncated(inner, path)
    }

    /// The file's own padding and length are for its makers' batches; ours are packed and cut by the caller.
    fn untruncated(mut inner: tokenizers::Tokenizer, path: &Path) -> Result<Self> {
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|e| Error::format(path, format!("its tokenizer refuses to go without truncation: {e}")))?;
        let whole = Arc::new(inner);
        let pieces = AsciiPieces::of(&whole).map(Arc::new);
        Ok(Tokenizer {
            ends: true,
            dropped: None,
            chars_per_token: None,
            inner: Arc::new(RwLock::new(whole.clone())),
            whole,
            pieces,
        })
    }

    /// The token that is left out of every text.
    pub fn dropped(&self) -> Option<u32> {
        self.dropped
    }

    /// As the text of a `tokenizer.json`.
    pub fn to_json(&self) -> Result<String> {
        self.whole.to_string(false).map_err(|e| Error::config(format!("the tokenizer cannot be written: {e}")))
    }

    /// Every token, by its id; a number without a token is empty.
    pub fn tokens(&self, size: usize) -> Vec<String> {
        (0..size as u32).map(|id| self.whole.id_to_token(id).unwrap_or_default()).collect()
    }

    /// Without the tokens that mark the ends of a text, for static embeddings; `drop_unknown` leaves unknown tokens out too.
    pub fn of_words(self, dir: &Path, drop_unknown: bool) -> Result<Self> {
        if !drop_unknown {
            return Ok(Tokenizer { ends: false, ..self });
        }
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let chars_per_token = self.median_token_chars();
        Ok(Tokenizer { chars_per_token, ..self.of_known_words(&bytes, &path)? })
    }

    /// The median length of a token in characters, rounded down.
    fn median_token_chars(&self) -> Option<usize> {
        let mut lengths: Vec<usize> = self.whole.get_vocab(true).keys().map(|token| token.chars().count()).collect();
        lengths.sort_unstable();
        let (low, high) = (lengths.get(lengths.len().saturating_sub(1) / 2)?, lengths.get(lengths.len() / 2)?);
        Some((low + high) / 2)
    }

    /// Without the tokens that mark the ends of a text, and without unknown tokens. `bytes` are its `tokenizer.json`.
    pub fn of_known_words(mut self, bytes: &[u8], path: &Path) -> Result<Self> {
        let json: serde_json::Value = serde_json::from_slice(bytes)
            .map_err(|e| Error::format(path, format!("is not valid JSON: {e}; fetch the encoder again")))?;
        let model = &json["model"];
        let by_name = || self.current().token_to_id(model["unk_token"].as_str()?);
        self.dropped = model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok()).or_else(by_name);
        self.ends = false;
        Ok(self)
    }

    /// The first token id that is `size` or larger, with its token; none if the tokenizer fits a vocabulary of that size.
    pub fn beyond(&self, size: usize) -> Option<(u32, String)> {
        let current = self.current();
        let ids = size as u64..=(size as u64 + current.get_vocab_size(true) as u64).min(u64::from(u32::MAX));
        ids.map(|id| id as u32).find_map(|id| Some((id, current.id_to_token(id)?)))
    }

    fn current(&self) -> Arc<tokenizers::Tokenizer> {
        self.inner.read().clone()
    }

    /// The tokenizer that truncates to `max_tokens`.
    fn truncating(&self, max_tokens: usize) -> Result<Arc<tokenizers::Tokenizer>> {
        let current = self.current();
        if current.get_truncation().is_some_and(|truncation| truncation.max_length == max_tokens) {
            return Ok(current);
        }
        let mut cutting = (*current).clone();
        cutting
            .with_truncation(Some(TruncationParams {
                max_length: max_tokens,
                strategy: TruncationStrategy::LongestFirst,
                stride: 0,
                direction: TruncationDirection::Right,
            }))
            .map_err(|e| Error::config(format!("a limit of {max_tokens} tokens: {e}")))?;
        let cutting = Arc::new(cutting);
        *self.inner.write() = cutting.clone();
        Ok(cutting)
    }

    /// Tokens of a text of any length, with those that mark its ends.
    pub fn count(&self, text: &str) -> Result<usize> {
        let encoding = self.whole.encode_fast(text, self.ends);
        Ok(encoding.map_err(|e| Error::input("a text", format!("cannot be tokenised: {e}")))?.len())
    }

    /// Ids of every text, `[CLS] ... [SEP]`, at most `max_tokens` with those two.
    pub fn encode(&self, texts: &[impl AsRef<str> + Sync], max_tokens: usize) -> Result<Vec<Vec<u32>>> {
        Ok(self.encode_and_cut(texts, max_tokens)?.0)
    }

    /// The same, and which texts were cut.
    pub fn encode_and_cut(
        &self,
        texts: &[impl AsRef<str> + Sync],
        max_tokens: usize,
    ) -> Result<(Vec<Vec<u32>>, Vec<bool>)> {
        if self.ends && max_tokens < 3 {
            return Err(Error::config(format!(
                "at least 3 tokens are needed for [CLS], one word piece and [SEP], not {max_tokens}"
            )));
        }
        let cutting = self.truncating(max_tokens)?;
        let numbered: Vec<(usize, &str)> = texts.iter().map(AsRef::as_ref).enumerate().collect();
        let max_chars = self.chars_per_token.map(|chars| chars.saturating_mul(max_tokens));
        let ids = |&(i, text): &(usize, &str)| {
            let end = max_chars.and_then(|max| text.char_indices().nth(max)).map(|(end, _)| end);
            let text = &text[..end.unwrap_or(text.len())];
            let read = |pieces: &Arc<AsciiPieces>| pieces.encode(text, max_tokens, self.ends);
            if let Some((mut ids, cut)) = self.pieces.as_ref().and_then(read) {
                ids.retain(|id| Some(*id) != self.dropped);
                return Ok((ids, end.is_some() || cut));
            }
            let encoding = cutting
                .encode_fast(text, self.ends)
                .map_err(|e| Error::input(format!("text {i}"), format!("cannot be tokenised: {e}")))?;
            let ids: Vec<u32> = encoding.get_ids().iter().copied().filter(|id| Some(*id) != self.dropped).collect();
            Ok((ids, end.is_some() || !encoding.get_overflowing().is_empty()))
        };
        Ok(parallel::try_map(&numbered, ids)?.into_iter().unzip())
    }
}

impl Tokenizer {
    /// Tokens that `prompt` puts in front of a text, `[CLS]` among them.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let encoding = self
            .current()
            .encode(prompt, self.ends)
            .map_err(|e| Error::config(format!("the prompt \"{prompt}\" cannot be tokenised: {e}")))?;
        let ends_special = encoding.get_special_tokens_mask().last() == Some(&1);
        Ok(encoding.len() - usize::from(ends_special))
    }
}

fn from_vocabulary(dir: &Path, vocab: &Path) -> Result<tokenizers::Tokenizer> {
    let bad = |problem: String| Error::format(vocab, problem);
    let model = WordPiece::from_file(&vocab.to_string_lossy())
        .unk_token("[UNK]".into())
        .build()
        .map_err(|e| bad(format!("not a readable vocabulary: {e}")))?;
    let mut inner = tokenizers::Tokenizer::new(model);
    let id = |token: &str| {
        inner.token_to_id(token).ok_or_else(|| bad(format!("has no {token}: not the vocabulary of a BERT encoder")))
    };
    let (cls, sep) = (id("[CLS]")?, id("[SEP]")?);
    id("[UNK]")?;
    // Cased checkpoints say so; the uncased ones, which are the rule here, often say nothing.
    let lowercase = std::fs::read_to_string(dir.join("tokenizer_config.json"))
        .ok()
        .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
        .and_then(|json| json.get("do_lower_case")?.as_bool())
        .unwrap_or(true);
    inner
        .with_normalizer(Some(BertNormalizer::new(true, true, None, lowercase)))
        .map_err(|e| bad(format!("its tokens do not fit the normaliser: {e}")))?
        .with_pre_tokenizer(Some(BertPreTokenizer))
        .with_post_processor(Some(BertProcessing::new(("[SEP]".into(), sep), ("[CLS]".into(), cls))));
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_length_shares_the_tokenizer_and_lengths_do_not_interfere() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\noil\nrises\n").unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let first = tokenizer.truncating(4).unwrap();
        assert!(Arc::ptr_eq(&first, &tokenizer.clone().truncating(4).unwrap()));
        let ids = |max_tokens: usize| tokenizer.encode(&["oil rises oil", "Oil", ""], max_tokens).unwrap();
        for _ in 0..2 {
            assert_eq!(ids(4), [vec![2, 4, 5, 3], vec![2, 4, 3], vec![2, 3]]);
            assert_eq!(ids(3), [vec![2, 4, 3], vec![2, 4, 3], vec![2, 3]]);
            assert_eq!(ids(9), [vec![2, 4, 5, 4, 3], vec![2, 4, 3], vec![2, 3]]);
        }
        std::thread::scope(|scope| {
            for max_tokens in [3, 4, 9] {
                let (ids, expected) = (&ids, ids(max_tokens));
                scope.spawn(move || (0..200).for_each(|_| assert_eq!(ids(max_tokens), expected)));
            }
        });
        assert!(tokenizer.encode(&["oil"], 2).is_err());
    }

    /// Tokenizers with a small vocabulary, which reads words, pieces and punctuation.
    fn small(lowercase: bool) -> Tokenizer {
        let dir = tempfile::tempdir().unwrap();
        let vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\noil\nrises\nri\n##se\n##s\n##il\no\n##o\na\n##a\n##b\nab\n-\n.\n#\nA\n##A\n1\n##1\n";
        std::fs::write(dir.path().join("vocab.txt"), vocabulary).unwrap();
        let config = format!("{{\"do_lower_case\": {lowercase}}}");
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        Tokenizer::load(dir.path()).unwrap()
    }

    proptest::proptest! {
        #[test]
        fn ascii_texts_have_the_pieces_of_the_library(
            words in proptest::collection::vec(proptest::sample::select(vec![
                "oil", "rises", "rise", "OIL", "riss", "abab", "aAb", "xyz", " ", "  ", "\t", "\n", "\r", "\u{1}", "\0", "\u{b}", "\u{c}",
                "\u{7f}", "\u{1f}", "-", ".", "##", "#", "1", "11", "[CLS]", "[", "]", "[UNK", "caf\u{e9}", "\u{a0}", "'", "_", "~", "$", "a",
            ]), 0..40),
            long in 0usize..130, max_tokens in 3usize..60, lowercase in proptest::bool::ANY, ends in proptest::bool::ANY,
        ) {
            let mut text = words.concat();
            text.push_str(&"a".repeat(long));
            let fast = Tokenizer { ends, ..small(lowercase) };
            proptest::prop_assert!(fast.pieces.is_some());
            let library = Tokenizer { pieces: None, ..fast.clone() };
            let texts = [text.as_str(), &text[..text.len() / 2 + usize::from(!text.is_char_boundary(text.len() / 2))]];
            let (ids, cut) = fast.encode_and_cut(&texts, max_tokens).unwrap();
            let (expected, cut_by_library) = library.encode_and_cut(&texts, max_tokens).unwrap();
            proptest::prop_assert_eq!(&ids, &expected);
            for (i, text) in texts.iter().enumerate().filter(|(_, text)| text.is_ascii()) {
                proptest::prop_assert_eq!(cut[i], library.count(text).unwrap() > max_tokens, "{:?}", text);
                // Without ends the library stops where the text is full, and does not tell that there was more.
                proptest::prop_assert!(cut[i] == cut_by_library[i] || !ends && cut[i]);
            }
            // An unknown token that is left out is left out on both ways.
            let dropping = |tokenizer: &Tokenizer| Tokenizer { dropped: Some(1), ..tokenizer.clone() };
            proptest::prop_assert_eq!(
                dropping(&fast).encode(&texts, max_tokens).unwrap(), dropping(&library).encode(&texts, max_tokens).unwrap()
            );
        }
    }

    #[test]
    fn only_texts_that_the_library_must_read_go_there() {
        let pieces = small(true).pieces.unwrap();
        assert_eq!(pieces.encode("Oil rises.", 9, true), Some((vec![2, 5, 6, 18, 3], false)));
        assert_eq!(pieces.encode("Oil rises.", 4, true), Some((vec![2, 5, 6, 3], true)));
        for text in ["caf\u{e9}", "\u{a0}"] {
            assert_eq!(pieces.encode(text, 9, true), None, "{text}");
        }
        // Where the file names tokens that are looked for in the raw text, one may be in a text with their first byte.
        let mut file: serde_json::Value = serde_json::from_str(&small(true).to_json().unwrap()).unwrap();
        let token = |content: &str| {
            serde_json::json!([{
                "id": 2, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true,
            }])
        };
        file["added_tokens"] = token("[CLS]");
        let read = |file: &serde_json::Value| Tokenizer::read(file.to_string().as_bytes(), Path::new("tokenizer.json"));
        let named = read(&file).unwrap();
        let pieces = named.pieces.clone().unwrap();
        assert_eq!(pieces.encode("[CLS] oil", 9, true), None);
        assert!(pieces.encode("oil ]", 9, true).is_some());
        assert_eq!(named.encode(&["[CLS] oil"], 9).unwrap(), [vec![2, 2, 5, 3]]);
        file["added_tokens"] = token("oil");
        assert!(read(&file).unwrap().pieces.is_none());
        file["added_tokens"] = serde_json::json!([]);
        file["normalizer"] = serde_json::json!({ "type": "Lowercase" });
        assert!(read(&file).unwrap().pieces.is_none());
    }

    #[test]
    fn texts_that_are_cut_are_counted_and_those_that_just_fit_are_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\noil\nrises\n").unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let texts = ["oil rises oil", "oil rises", "", "oil oil oil oil oil"];
        for (max_tokens, cut) in [(3, [0, 1, 3].as_slice()), (4, &[0, 3]), (5, &[3]), (7, &[])] {
            let found = tokenizer.encode_and_cut(&texts, max_tokens).unwrap().1;
            assert_eq!((0..4).filter(|i| found[*i]).collect::<Vec<_>>(), cut, "{max_tokens} tokens");
        }
        assert_eq!(texts.map(|text| tokenizer.count(text).unwrap()), [5, 4, 2, 7]);
    }
}
