//! The language of keyword search: how a text becomes terms.

use std::fmt;
use std::str::FromStr;

use tantivy::tokenizer::{
    Language as Stem, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer, Token,
    TokenStream, Tokenizer,
};

use crate::{Error, Result};

/// A language of keyword search. Its code is that of ISO 639-1; `any` is words of every script, without stems.
#[derive(Clone, Copy, Debug)]
pub struct Language {
    code: &'static str,
    words: Words,
}

/// How words are found.
#[derive(Clone, Copy, Debug)]
enum Words {
    /// Between blanks and punctuation, then stemmed. Stop words are left out of queries where tantivy has a list.
    Stemmed(Stem),
    /// By ICU's rules, with dictionaries for Chinese and Japanese and models for Thai, Lao, Khmer and Burmese.
    Segmented,
}

const KNOWN: [Language; 26] = {
    const fn stemmed(code: &'static str, stem: Stem) -> Language {
        Language { code, words: Words::Stemmed(stem) }
    }
    const fn segmented(code: &'static str) -> Language {
        Language { code, words: Words::Segmented }
    }
    [
        stemmed("ar", Stem::Arabic),
        stemmed("da", Stem::Danish),
        stemmed("de", Stem::German),
        stemmed("el", Stem::Greek),
        stemmed("en", Stem::English),
        stemmed("es", Stem::Spanish),
        stemmed("fi", Stem::Finnish),
        stemmed("fr", Stem::French),
        stemmed("hu", Stem::Hungarian),
        stemmed("it", Stem::Italian),
        stemmed("nl", Stem::Dutch),
        stemmed("no", Stem::Norwegian),
        stemmed("pt", Stem::Portuguese),
        stemmed("ro", Stem::Romanian),
        stemmed("ru", Stem::Russian),
        stemmed("sv", Stem::Swedish),
        stemmed("ta", Stem::Tamil),
        stemmed("tr", Stem::Turkish),
        segmented("ja"),
        segmented("km"),
        segmented("ko"),
        segmented("lo"),
        segmented("my"),
        segmented("th"),
        segmented("zh"),
        segmented("any"),
    ]
};

/// Max bytes of a term. Longer ones are not words. tantivy's `en_stem` has this limit too.
const MAX_TERM_BYTES: usize = 40;
/// The same for scripts with three bytes per character.
const MAX_SEGMENT_BYTES: usize = 120;

impl Default for Language {
    fn default() -> Self {
        Language::ENGLISH
    }
}

impl PartialEq for Language {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl Eq for Language {}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code)
    }
}

impl FromStr for Language {
    type Err = Error;

    fn from_str(code: &str) -> Result<Self> {
        let known = KNOWN.iter().find(|language| language.code == code).copied();
        known.ok_or_else(|| {
            let known: Vec<&str> = KNOWN.iter().map(|language| language.code).collect();
            Error::config(format!("unknown language '{code}'; known: {}", known.join(", ")))
        })
    }
}

impl serde::Serialize for Language {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code)
    }
}

impl<'de> serde::Deserialize<'de> for Language {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let code: std::borrow::Cow<'de, str> = serde::Deserialize::deserialize(deserializer)?;
        code.parse().map_err(serde::de::Error::custom)
    }
}

impl Language {
    pub const ENGLISH: Language = KNOWN[4];
    pub const ANY: Language = KNOWN[25];

    /// Codes of every language, for messages and schemas.
    pub fn codes() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|language| language.code)
    }

    /// The name of its analyzer in a tantivy schema. English has tantivy's own, as in indexes before there was a choice.
    pub(crate) fn analyzer_name(self) -> String {
        if self == Language::ENGLISH { "en_stem".into() } else { format!("micpq_{}", self.code) }
    }

    /// Makes the analyzer known to a tantivy index.
    pub(crate) fn register(self, index: &tantivy::Index) {
        if self != Language::ENGLISH {
            index.tokenizers().register(&self.analyzer_name(), self.analyzer(false));
        }
    }

    /// From text to terms. Queries leave out stop words; documents keep them, so that phrases can be found.
    pub(crate) fn analyzer(self, without_stop_words: bool) -> TextAnalyzer {
        match self.words {
            Words::Stemmed(stem) => {
                let plain = TextAnalyzer::builder(SimpleTokenizer::default()).dynamic();
                let mut builder =
                    plain.filter_dynamic(RemoveLongFilter::limit(MAX_TERM_BYTES)).filter_dynamic(LowerCaser);
                if without_stop_words && let Some(stop_words) = StopWordFilter::new(stem) {
                    builder = builder.filter_dynamic(stop_words);
                }
                builder.filter_dynamic(Stemmer::new(stem)).build()
            }
            Words::Segmented => {
                let plain = TextAnalyzer::builder(Segmenter).filter(RemoveLongFilter::limit(MAX_SEGMENT_BYTES));
                plain.filter(LowerCaser).build()
            }
        }
    }
}

/// Words by ICU's segmentation.
#[derive(Clone)]
struct Segmenter;

struct Segments {
    tokens: Vec<Token>,
    // One more than the current token.
    next: usize,
}

impl Tokenizer for Segmenter {
    type TokenStream<'a> = Segments;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Segments {
        let token = |(position, range): (usize, std::ops::Range<usize>)| Token {
            offset_from: range.start,
            offset_to: range.end,
            position,
            text: text[range].to_owned(),
            position_length: 1,
        };
        Segments { tokens: words(text).into_iter().enumerate().map(token).collect(), next: 0 }
    }
}

impl TokenStream for Segments {
    fn advance(&mut self) -> bool {
        self.next += 1;
        self.next <= self.tokens.len()
    }

    fn token(&self) -> &Token {
        &self.tokens[self.next - 1]
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.tokens[self.next - 1]
    }
}

/// Byte ranges of the words of a text.
fn words(text: &str) -> Vec<std::ops::Range<usize>> {
    let segmenter = icu_segmenter::WordSegmenter::new_auto(Default::default());
    let (mut words, mut start) = (Vec::new(), 0);
    for (end, kind) in segmenter.segment_str(text).iter_with_word_type() {
        if kind.is_word_like() {
            words.push(start..end);
        }
        start = end;
    }
    words
}

/// The language of an index that is to be built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LanguageChoice {
    /// That of most texts.
    #[default]
    Auto,
    Given(Language),
}

impl FromStr for LanguageChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(LanguageChoice::Auto),
            code => code.parse().map(LanguageChoice::Given),
        }
    }
}

impl fmt::Display for LanguageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LanguageChoice::Auto => f.write_str("auto"),
            LanguageChoice::Given(language) => language.fmt(f),
        }
    }
}

impl LanguageChoice {
    /// Texts that are looked at to find the language.
    pub const SAMPLE: usize = 1000;

    /// The language for these texts. Detection: the language of three quarters of the text that is reliably recognised;
    /// `any` where no language has that share; English where less than half of the text is recognised.
    pub fn of<'a>(self, texts: impl Iterator<Item = &'a str>) -> Language {
        match self {
            LanguageChoice::Given(language) => language,
            LanguageChoice::Auto => detect(texts),
        }
    }
}

fn detect<'a>(texts: impl Iterator<Item = &'a str>) -> Language {
    use std::collections::HashMap;
    /// Bytes of a text that are looked at.
    const LOOKED_AT: usize = 2000;

    let (mut bytes, mut recognised, mut all): (HashMap<&str, usize>, usize, usize) = (HashMap::new(), 0, 0);
    for text in texts.take(LanguageChoice::SAMPLE) {
        let head = &text[..(0..=LOOKED_AT.min(text.len())).rfind(|at| text.is_char_boundary(*at)).unwrap_or(0)];
        if let Some(found) = whatlang::detect(head).filter(whatlang::Info::is_reliable) {
            *bytes.entry(iso(found.lang())).or_default() += head.len();
            recognised += head.len();
        }
        all += head.len();
    }
    match bytes.into_iter().max_by_key(|(code, bytes)| (*bytes, *code)) {
        // Lists of names and numbers are taken for any language.
        _ if 2 * recognised < all => Language::ENGLISH,
        None => Language::ENGLISH,
        Some((code, bytes)) if 4 * bytes >= 3 * recognised => code.parse().unwrap_or(Language::ANY),
        Some(_) => Language::ANY,
    }
}

/// The code of a detected language; `any` where keyword search has nothing of its own for it.
fn iso(lang: whatlang::Lang) -> &'static str {
    use whatlang::Lang;
    match lang {
        Lang::Ara => "ar",
        Lang::Dan => "da",
        Lang::Deu => "de",
        Lang::Ell => "el",
        Lang::Eng => "en",
        Lang::Spa => "es",
        Lang::Fin => "fi",
        Lang::Fra => "fr",
        Lang::Hun => "hu",
        Lang::Ita => "it",
        Lang::Nld => "nl",
        Lang::Nob => "no",
        Lang::Por => "pt",
        Lang::Ron => "ro",
        Lang::Rus => "ru",
        Lang::Swe => "sv",
        Lang::Tam => "ta",
        Lang::Tur => "tr",
        Lang::Jpn => "ja",
        Lang::Khm => "km",
        Lang::Kor => "ko",
        Lang::Mya => "my",
        Lang::Tha => "th",
        Lang::Cmn => "zh",
        _ => "any",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(code: &str, text: &str, query: bool) -> Vec<String> {
        let mut analyzer = code.parse::<Language>().unwrap().analyzer(query);
        let mut terms = Vec::new();
        analyzer.token_stream(text).process(&mut |token| terms.push(token.text.clone()));
        terms
    }

    #[test]
    fn words_of_one_stem_share_a_term_in_their_language() {
        for (code, one, other) in [
            ("de", "Verzeichnisse", "Verzeichnis"),
            ("fr", "fichiers", "fichier"),
            ("en", "searching", "searches"),
            ("ru", "книги", "книга"),
        ] {
            assert_eq!(terms(code, one, false), terms(code, other, false), "{code}");
        }
        assert_ne!(terms("en", "Verzeichnisse", false), terms("en", "Verzeichnis", false));
        assert_eq!(terms("de", "die Dateien und der Ordner", true), terms("de", "Dateien Ordner", false));
    }

    #[test]
    fn languages_without_blanks_are_split_into_words() {
        assert_eq!(terms("ja", "東京都の天気を調べる。", false), ["東京", "都", "の", "天気", "を", "調べる"]);
        assert!(terms("zh", "搜索引擎可以查找文件", false).contains(&"文件".to_owned()));
        assert!(terms("th", "ภาษาไทยง่ายนิดเดียว", false).len() >= 3);
        assert_eq!(terms("any", "Oil 價格, naïve!", false).first().map(String::as_str), Some("oil"));
    }

    #[test]
    fn the_language_of_most_texts_is_found() {
        let german = "Dieses Programm kopiert Dateien und Verzeichnisse von einem Ort zu einem anderen.";
        let english = "This program copies files and directories from one place to another one.";
        let japanese = "このコマンドはファイルとディレクトリをコピーします。";
        for (texts, code) in [
            (vec![german; 4], "de"),
            (vec![english; 4], "en"),
            (vec![japanese; 4], "ja"),
            (vec![german, german, english, english], "any"),
            (vec!["", "42", "x"], "en"),
        ] {
            assert_eq!(LanguageChoice::Auto.of(texts.iter().copied()).to_string(), code);
        }
        assert!("xx".parse::<Language>().unwrap_err().to_string().contains("de, el, en"));
    }
}
