//! Texts and values cut to a size that an assistant can read.

use std::collections::BTreeMap;

use engine::corpus::{DocId, FILE_HASH, Value};
use rmcp::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Characters of a title.
const TITLE: usize = 200;

/// The attribute that is shown as the title.
const TITLE_ATTRIBUTE: &str = "title";

/// Entries of a list of texts.
const ENTRIES: usize = 20;

/// Attributes of a document by name.
pub type Attributes = BTreeMap<String, serde_json::Value>;

/// The id of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct Id(pub DocId);

impl TryFrom<serde_json::Value> for Id {
    type Error = String;

    fn try_from(value: serde_json::Value) -> Result<Id, String> {
        match &value {
            serde_json::Value::Number(number) => number.as_u64().map(|number| Id(DocId::Int(number))),
            // As on the command line: "5" is 5.
            serde_json::Value::String(text) => text.parse().ok().map(Id),
            _ => None,
        }
        .ok_or_else(|| format!("{value} is not an id; give the id of a hit, a string or a whole number from 0"))
    }
}

impl JsonSchema for Id {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Id".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"] })
    }
}

/// A text of at most so many characters, with a mark where it was cut.
pub fn cut(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// The beginning of a text on one line.
pub fn beginning(text: &str, max_chars: usize) -> String {
    // A word has at least one character, and a blank follows it.
    let words: Vec<&str> = text.split_whitespace().take(max_chars).collect();
    cut(&words.join(" "), max_chars)
}

/// A distance or score with as many digits as tell hits apart.
pub fn rounded(score: f32) -> f64 {
    (f64::from(score) * 1e4).round() / 1e4
}

/// Labels of at most so many characters each.
pub fn labels(labels: Vec<String>, max_chars: usize) -> Vec<String> {
    labels.iter().take(ENTRIES).map(|label| cut(label, max_chars)).collect()
}

/// The title, and the other attributes with texts of at most so many characters.
pub fn attributes(all: Vec<(String, Value)>, max_chars: usize) -> (Option<String>, Attributes) {
    let mut title = None;
    let mut others = Attributes::new();
    for (name, value) in all {
        match value {
            Value::Text(text) if name == TITLE_ATTRIBUTE => title = Some(beginning(&text, TITLE)),
            // It says only whether a file changed.
            _ if name == FILE_HASH => {}
            value => {
                others.insert(name, short(value, max_chars));
            }
        }
    }
    (title, others)
}

/// A value as JSON.
pub fn short(value: Value, max_chars: usize) -> serde_json::Value {
    match value {
        Value::Bool(v) => v.into(),
        Value::Int(v) => v.into(),
        Value::Float(v) => v.into(),
        Value::Text(v) => cut(&v, max_chars).into(),
        Value::Texts(all) => all.iter().take(ENTRIES).map(|text| cut(text, max_chars)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("Öl", 2), "Öl");
        assert_eq!(cut("Ölpreis", 2), "Öl...");
        assert_eq!(beginning("  oil\n\nprices  rise", 10), "oil prices...");
    }

    #[test]
    fn the_title_is_apart_and_internal_attributes_are_left_out() {
        let text = |s: &str| Value::Text(s.into());
        let given = vec![
            ("title".into(), text("Oil\n rises")),
            (FILE_HASH.into(), text("abc")),
            ("note".into(), text("too long")),
            ("places".into(), Value::Texts(vec!["usa".into(), "venezuela".into()])),
            ("year".into(), Value::Int(1987)),
        ];
        let (title, others) = attributes(given, 3);
        assert_eq!(title.as_deref(), Some("Oil rises"));
        let expected = serde_json::json!({ "note": "too...", "places": ["usa", "ven..."], "year": 1987 });
        assert_eq!(serde_json::to_value(others).unwrap(), expected);
    }

    #[test]
    fn ids_are_whole_numbers_or_strings() {
        let read = |json: &str| serde_json::from_str::<Id>(json).map(|id| id.0).map_err(|e| e.to_string());
        assert_eq!(read("5"), Ok(DocId::Int(5)));
        assert_eq!(read("\"5\""), Ok(DocId::Int(5)));
        assert_eq!(read("\"a/b.txt\""), Ok(DocId::Str("a/b.txt".into())));
        for wrong in ["-1", "1.5", "null", "[1]"] {
            assert!(read(wrong).unwrap_err().contains("id of a hit"), "{wrong}");
        }
    }
}
