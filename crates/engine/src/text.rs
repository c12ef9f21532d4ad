//! Cleans raw text before tokenisation.

use std::borrow::Cow;

use strum::{Display, EnumString, VariantNames};

use crate::Error;

/// Cleaning of a text before the tokenizer. It is part of a model: queries must be cleaned in the same way as documents.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, Display, EnumString, VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_cleaning)]
pub enum Clean {
    /// No change. Modern encoders were trained with the tokenizer's own normalisation only.
    #[default]
    None,
    /// The cleaning of the paper's released code: ASCII letters, digits and `( ) , ! ? ' " `` ` `` only, clitics cut off,
    /// punctuation separated, lower case, and the first words only. Needed to reproduce its numbers.
    Faithful,
}

fn unknown_cleaning(name: &str) -> Error {
    Error::unknown("cleaning", name, Clean::VARIANTS)
}

impl Clean {
    /// The text that the tokenizer gets.
    ///
    /// `max_words` is the authors' `max_length`: faithful cleaning keeps that many blank-separated pieces (separated
    /// punctuation counts), and all of them if it is `None`. `Clean::None` returns the text unchanged and ignores `max_words`.
    pub fn apply(self, text: &str, max_words: Option<usize>) -> Cow<'_, str> {
        match self {
            Clean::None => Cow::Borrowed(text),
            Clean::Faithful => Cow::Owned(faithful(text, max_words.unwrap_or(usize::MAX))),
        }
    }
}

/// The released code's chain of regular expressions in one pass. One pass is enough because of three facts: every pattern
/// consists of characters that the first expression keeps; no replacement creates or destroys a match of a later pattern; and
/// blanks are folded last, so a replacement's blanks are only word boundaries. The tests compare it with the chain itself.
fn faithful(text: &str, max_words: usize) -> String {
    let bytes = text.as_bytes();
    let mut words = Words { out: Vec::with_capacity(bytes.len() + bytes.len() / 8), open: false, left: max_words };
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut taken = 1;
        let more = match rest[0] {
            byte @ (b'n' | b'\'') => {
                if begins_clitic(rest) {
                    words.close();
                }
                words.push(byte)
            }
            byte @ (b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'`') => words.push(byte.to_ascii_lowercase()),
            byte @ (b',' | b'!') => words.single(&[byte]),
            // The backslash is the authors': Python keeps an unknown escape in a replacement unchanged.
            byte @ (b'(' | b')' | b'?') => words.single(&[b'\\', byte]),
            b'"' if rest.get(1) == Some(&b'"') => {
                taken = 2;
                words.single(b"\"")
            }
            b'"' => words.push(b'"'),
            _ => {
                words.close();
                true
            }
        };
        if !more {
            break;
        }
        at += taken;
    }
    String::from_utf8(words.out).expect("only ASCII is kept")
}

/// Whether a blank is inserted here. Lower case only: the text is lower-cased after the clitics are cut.
fn begins_clitic(rest: &[u8]) -> bool {
    matches!(
        rest,
        [b'n', b'\'', b't', ..] | [b'\'', b's' | b'd', ..] | [b'\'', b'v' | b'r', b'e', ..] | [b'\'', b'l', b'l', ..]
    )
}

/// Words under construction, joined by one blank.
struct Words {
    out: Vec<u8>,
    open: bool,
    left: usize,
}

impl Words {
    /// Adds a byte to the current word or begins the next; `false` if that would exceed the maximum number of words.
    fn push(&mut self, byte: u8) -> bool {
        if !self.open {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            if !self.out.is_empty() {
                self.out.push(b' ');
            }
            self.open = true;
        }
        self.out.push(byte);
        true
    }

    /// Adds a word of its own.
    fn single(&mut self, word: &[u8]) -> bool {
        self.close();
        let wanted = word.iter().all(|&byte| self.push(byte));
        self.close();
        wanted
    }

    fn close(&mut self) {
        self.open = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The released code's chain, step by step.
    fn reference(text: &str, max_words: Option<usize>) -> String {
        let mut text: String =
            text.chars().map(|c| if c.is_ascii_alphanumeric() || "(),!?'`\"".contains(c) { c } else { ' ' }).collect();
        for clitic in ["'s", "'ve", "n't", "'re", "'d", "'ll"] {
            text = text.replace(clitic, &format!(" {clitic}"));
        }
        for (from, to) in [(",", " , "), ("!", " ! "), ("(", " \\( "), ("\"\"", " \" "), (")", " \\) "), ("?", " \\? ")]
        {
            text = text.replace(from, to);
        }
        while text.contains("  ") {
            text = text.replace("  ", " ");
        }
        let text = text.to_lowercase();
        let pieces: Vec<&str> = text.trim().split(' ').take(max_words.unwrap_or(usize::MAX)).collect();
        pieces.join(" ").to_lowercase()
    }

    #[test]
    fn faithful_cleaning_equals_the_released_code() {
        let cases = [
            (
                "Hello (world)? Don't. \"\"quoted\"\" \"single\" it's we've we'll O'Shea he'd e-mail #39;s",
                "hello \\( world \\) \\? do n't \" quoted \" \"single\" it 's we 've we 'll o'shea he 'd e mail 39 s",
            ),
            ("...", ""),
            ("", ""),
            ("   ", ""),
            ("Café A\\b", "caf a b"),
            ("I'm\tok\nnew!", "i'm ok new !"),
            ("Wall St. Bears Claw Back (Reuters)", "wall st bears claw back \\( reuters \\)"),
            ("a,b,c!!! (d)(e)??", "a , b , c ! ! ! \\( d \\) \\( e \\) \\? \\?"),
            ("'s've n't", "'s 've n't"),
            ("DON'T IT'S", "don't it's"),
            ("\"\"\"", "\" \""),
            ("日本語 text `tick`", "text `tick`"),
        ];
        for (raw, clean) in cases {
            assert_eq!(Clean::Faithful.apply(raw, None), clean, "{raw}");
            assert_eq!(reference(raw, None), clean, "{raw}");
            assert_eq!(Clean::None.apply(raw, Some(1)), raw);
        }
    }

    #[test]
    fn faithful_cleaning_keeps_the_first_words() {
        assert_eq!(Clean::Faithful.apply("One, two (three)", Some(5)), "one , two \\( three");
        assert_eq!(Clean::Faithful.apply("One, two (three)", Some(1)), "one");
        assert_eq!(Clean::Faithful.apply("One", Some(0)), "");
    }

    #[test]
    fn clean_names_round_trip() {
        for clean in [Clean::None, Clean::Faithful] {
            assert_eq!(clean.to_string().parse::<Clean>().unwrap(), clean);
        }
        assert!("Faithful!".parse::<Clean>().unwrap_err().to_string().contains("known: none, faithful"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn one_pass_equals_the_chain(
            // Mostly characters that occur in patterns, so that patterns meet and overlap.
            text in "[nNstTvrel'd\"(),!?` .é日A9]{0,40}",
            max_words in proptest::option::of(0usize..12),
        ) {
            prop_assert_eq!(Clean::Faithful.apply(&text, max_words).into_owned(), reference(&text, max_words));
        }
    }
}
