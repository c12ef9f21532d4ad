//! Documents as bytes, for other processes. Floating-point numbers travel as their bits: JSON may round them.

use serde::{Deserialize, Serialize};

use super::{DocId, Document, Value};
use crate::{Error, Result};

#[derive(Serialize, Deserialize)]
struct WireDocument {
    id: DocId,
    text: String,
    labels: Vec<String>,
    attributes: Vec<(String, WireValue)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireValue {
    Bool(bool),
    Int(i64),
    /// Bits of an `f64`.
    Float(u64),
    Text(String),
    Texts(Vec<String>),
}

impl From<Value> for WireValue {
    fn from(value: Value) -> WireValue {
        match value {
            Value::Bool(v) => WireValue::Bool(v),
            Value::Int(v) => WireValue::Int(v),
            Value::Float(v) => WireValue::Float(v.to_bits()),
            Value::Text(v) => WireValue::Text(v),
            Value::Texts(v) => WireValue::Texts(v),
        }
    }
}

impl From<WireValue> for Value {
    fn from(value: WireValue) -> Value {
        match value {
            WireValue::Bool(v) => Value::Bool(v),
            WireValue::Int(v) => Value::Int(v),
            WireValue::Float(v) => Value::Float(f64::from_bits(v)),
            WireValue::Text(v) => Value::Text(v),
            WireValue::Texts(v) => Value::Texts(v),
        }
    }
}

/// Documents as bytes.
pub fn to_wire<'a>(documents: impl Iterator<Item = &'a Document>) -> Vec<u8> {
    let wire = documents.cloned().map(|document| WireDocument {
        id: document.id,
        text: document.text,
        labels: document.labels,
        attributes: document.attributes.into_iter().map(|(name, value)| (name, value.into())).collect(),
    });
    serde_json::to_vec(&wire.collect::<Vec<_>>()).expect("plain data has a JSON form")
}

/// Inverse of [`to_wire`].
pub fn from_wire(bytes: &[u8]) -> Result<Vec<Document>> {
    let wire: Vec<WireDocument> = serde_json::from_slice(bytes)
        .map_err(|e| Error::input("documents", format!("of another process cannot be read: {e}")))?;
    let document = |wire: WireDocument| Document {
        id: wire.id,
        text: wire.text,
        labels: wire.labels,
        attributes: wire.attributes.into_iter().map(|(name, value)| (name, value.into())).collect(),
    };
    Ok(wire.into_iter().map(document).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_return_as_they_were() {
        let values = [
            Value::Float(0.1 + 0.2),
            Value::Float(2.225_073_858_507_201e-308),
            Value::Float(123_456_789.123_456_79),
            Value::Int(i64::MIN),
            Value::Bool(true),
            Value::Text("東京 \"\u{0}".into()),
            Value::Texts(vec![]),
        ];
        let attributes = values.into_iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect();
        let ids = [DocId::Int(u64::MAX), DocId::Str("007".into())];
        let documents: Vec<Document> = ids
            .into_iter()
            .map(|id| Document {
                id,
                text: "a\nb".into(),
                labels: vec!["x".into()],
                attributes: Vec::clone(&attributes),
            })
            .collect();
        assert_eq!(from_wire(&to_wire(documents.iter())).unwrap(), documents);
        assert!(from_wire(b"[{}]").is_err());
    }
}
