//! Documents.

use serde::{Deserialize, Serialize};

/// What a document is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DocId {
    /// A number.
    Int(u64),
    /// A name.
    Str(String),
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
}

/// One document of a corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Its name, by which it is replaced and deleted.
    pub id: DocId,
    /// What is encoded.
    pub text: String,
    /// Classes, where known.
    pub labels: Vec<String>,
    /// Further fields, in the order of the source.
    pub attributes: Vec<(String, Value)>,
}
