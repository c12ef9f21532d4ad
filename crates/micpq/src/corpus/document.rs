//! What a corpus yields.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// One document as it was read, its text not yet cleaned.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Its name in the index.
    pub id: DocId,
    /// What is searched.
    pub text: String,
    /// Its classes, where known: two documents are relevant to each other when they share one.
    pub labels: Vec<String>,
    /// Everything else the row held, in the row's order.
    pub attributes: Vec<(String, Value)>,
}

/// The name of a document: a number or a string, as its corpus has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum DocId {
    /// A number; the row's own where the corpus gives no id.
    Int(u64),
    /// Any other name.
    Str(String),
}

impl DocId {
    /// The number this id is written as, be it a number or a string of digits: `7` and `"7"` print alike, so a corpus
    /// must not hold both.
    pub(super) fn as_number(&self) -> Option<u64> {
        match self {
            DocId::Int(number) => Some(*number),
            DocId::Str(name) => canonical_number(name),
        }
    }
}

/// The number whose decimal form is exactly `text`: not `007`, not `+7`.
fn canonical_number(text: &str) -> Option<u64> {
    let digits = text.as_bytes();
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) && (digits[0] != b'0' || digits.len() == 1);
    plain.then(|| text.parse().ok()).flatten()
}

impl fmt::Display for DocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DocId::Int(number) => number.fmt(f),
            DocId::Str(name) => name.fmt(f),
        }
    }
}

impl From<u64> for DocId {
    fn from(number: u64) -> Self {
        DocId::Int(number)
    }
}

impl FromStr for DocId {
    type Err = Infallible;

    /// From a place without types, such as a CSV cell or a command line: `123` is a number, `007` is not, for it would
    /// come back as `7`.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(canonical_number(text).map_or_else(|| DocId::Str(text.to_owned()), DocId::Int))
    }
}

/// An attribute with its type. Dates stay text: RFC 3339 sorts as it reads.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction; never NaN, which counts as absent.
    Float(f64),
    /// A string.
    Text(String),
    /// Several strings under one name.
    Texts(Vec<String>),
}

impl Value {
    /// The type a cell without types shows: `true`, `false`, a whole number in its shortest form, a plain decimal;
    /// text otherwise, so `007`, `1e5` and `12.` stay as written.
    pub(super) fn infer(cell: String) -> Value {
        match cell.as_str() {
            "true" | "True" | "TRUE" => return Value::Bool(true),
            "false" | "False" | "FALSE" => return Value::Bool(false),
            _ => {}
        }
        let magnitude = cell.strip_prefix('-').unwrap_or(&cell);
        if canonical_number(magnitude).is_some() && cell != "-0" {
            return cell.parse().map_or(Value::Text(cell), Value::Int);
        }
        if let Some((whole, fraction)) = magnitude.split_once('.')
            && canonical_number(whole).is_some()
            && !fraction.is_empty()
            && fraction.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = cell.parse()
        {
            return Value::Float(number);
        }
        Value::Text(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_from_text_keep_how_they_print() {
        for (text, id) in [
            ("123", DocId::Int(123)),
            ("0", DocId::Int(0)),
            ("18446744073709551615", DocId::Int(u64::MAX)),
            ("18446744073709551616", DocId::Str("18446744073709551616".into())),
            ("007", DocId::Str("007".into())),
            ("-5", DocId::Str("-5".into())),
            ("+5", DocId::Str("+5".into())),
            ("", DocId::Str(String::new())),
            ("a/b.txt", DocId::Str("a/b.txt".into())),
        ] {
            let parsed: DocId = text.parse().unwrap();
            assert_eq!(parsed, id);
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn cells_show_their_type() {
        let text = |s: &str| Value::Text(s.into());
        for (cell, value) in [
            ("true", Value::Bool(true)),
            ("False", Value::Bool(false)),
            ("12", Value::Int(12)),
            ("-12", Value::Int(-12)),
            ("9223372036854775808", text("9223372036854775808")),
            ("1.50", Value::Float(1.5)),
            ("-0.25", Value::Float(-0.25)),
            ("007", text("007")),
            ("-0", text("-0")),
            ("1e5", text("1e5")),
            (".5", text(".5")),
            ("12.", text("12.")),
            ("1.2.3", text("1.2.3")),
            ("nan", text("nan")),
            ("2020-01-01", text("2020-01-01")),
        ] {
            assert_eq!(Value::infer(cell.into()), value, "{cell}");
        }
    }
}
