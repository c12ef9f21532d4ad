//! Documents, ids and attribute values.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// One document as read. Its text is not cleaned yet.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Document {
    pub id: DocId,
    pub text: String,
    /// Its classes, if known. Two documents are relevant to each other when they share a label.
    pub labels: Vec<String>,
    /// All other fields of the row, in the row's order.
    pub attributes: Vec<(String, Value)>,
}

impl Document {
    /// A document without labels and attributes.
    pub fn new(id: impl Into<DocId>, text: impl Into<String>) -> Self {
        Document { id: id.into(), text: text.into(), labels: Vec::new(), attributes: Vec::new() }
    }
}

/// Id of a document: a number or a string, as in its corpus.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum DocId {
    /// A number. It is the row number if the corpus has no ids.
    Int(u64),
    Str(String),
}

impl DocId {
    /// The number that this id prints as, for a number and for a string of digits. `7` and `"7"` print alike, so a corpus
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

impl From<&str> for DocId {
    fn from(text: &str) -> Self {
        DocId::Str(text.into())
    }
}

impl FromStr for DocId {
    type Err = Infallible;

    /// Parses an id from a source without types, such as a CSV cell or a command line. `123` becomes a number. `007` stays a
    /// string, because a number would print as `7`.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(canonical_number(text).map_or_else(|| DocId::Str(text.to_owned()), DocId::Int))
    }
}

/// An attribute with its type. Dates stay text: RFC 3339 sorts by time.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Value {
    Bool(bool),
    Int(i64),
    /// A number with a fraction. Never NaN: that counts as absent.
    Float(f64),
    Text(String),
    /// Several strings under one name.
    Texts(Vec<String>),
}

impl Value {
    /// Infers the type of a cell: `true`, `false`, a whole number in its shortest form, or a plain decimal. Everything else is
    /// text, so `007`, `1e5` and `12.` stay as written.
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
    fn ids_parsed_from_text_print_as_written() {
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
    fn types_of_cells_are_inferred() {
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
