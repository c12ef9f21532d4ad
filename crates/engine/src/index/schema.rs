//! The tantivy schema, and conversion of documents to and from its fields.

use std::collections::BTreeMap;
use std::ops::Range;

use tantivy::schema::{
    FAST, Field, IndexRecordOption, JsonObjectOptions, OwnedValue, STORED, Schema, TextFieldIndexing, TextOptions,
    Value as _,
};
use tantivy::{TantivyDocument, Term};

use super::RerankVectors;
use super::manifest::Store;
use crate::chunk::ChunkSizes;
use crate::corpus::{DocId, Document, Value};
use crate::language::Language;
use crate::model::CodeShape;
use crate::{Error, Result};

/// Max bytes of an id. tantivy silently does not index a term of 65,530 bytes.
const LONGEST_ID: usize = 1024;

/// The options that decide the fields of an index, as its manifest records them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Layout {
    pub store: Store,
    pub rerank_vectors: RerankVectors,
    pub language: Language,
    pub chunk: Option<ChunkSizes>,
}

/// The fields of the store. Internal names begin with `_`, so that they hide no attribute of a document.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    pub id: Field,
    pub name: Field,
    pub number: Field,
    pub sequence: Field,
    pub codes: Vec<Field>,
    pub embedding: Option<Field>,
    pub chunk: Option<ChunkFields>,
    pub documents: Option<DocumentFields>,
}

/// The fields of an index with chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkFields {
    number: Field,
    start: Field,
}

/// The fields that `Store::Codes` leaves out.
#[derive(Clone, Copy, Debug)]
pub(super) struct DocumentFields {
    pub text: Field,
    pub labels: Field,
    pub attributes: Field,
    pub rest: Field,
}

pub(super) const SEQUENCE: &str = "_sequence";
pub(super) const NAME: &str = "_name";
pub(super) const NUMBER: &str = "_number";
pub(super) const RERANK_VECTOR: &str = "_feature";
pub(super) const CHUNK: &str = "_chunk";
pub(super) const START: &str = "_start";

/// Name of the column with bytes `8 i .. 8 i + 8` of the code.
pub(super) fn code_column(i: usize) -> String {
    format!("_code{i}")
}

/// Number of columns per code.
pub(super) fn code_columns(shape: CodeShape) -> usize {
    shape.code_bytes().div_ceil(8)
}

pub(super) fn build(shape: CodeShape, layout: Layout) -> (Schema, Fields) {
    let mut schema = Schema::builder();
    let exact = TextFieldIndexing::default()
        .set_tokenizer("raw")
        .set_index_option(IndexRecordOption::Basic)
        .set_fieldnorms(false);
    let terms = |tokenizer: &str| {
        TextFieldIndexing::default().set_tokenizer(tokenizer).set_index_option(IndexRecordOption::WithFreqsAndPositions)
    };
    // Both kinds of id are found by their text; the original id comes back from its own column.
    let id = schema.add_text_field("id", TextOptions::default().set_indexing_options(exact.clone()));
    let name = schema.add_text_field(NAME, TextOptions::default().set_fast("raw"));
    let number = schema.add_u64_field(NUMBER, FAST);
    let sequence = schema.add_u64_field(SEQUENCE, FAST);
    let codes = (0..code_columns(shape)).map(|i| schema.add_u64_field(&code_column(i), FAST)).collect();
    let documents = (layout.store == Store::All).then(|| DocumentFields {
        text: schema.add_text_field(
            "text",
            TextOptions::default().set_indexing_options(terms(&layout.language.analyzer_name())).set_stored(),
        ),
        labels: schema
            .add_text_field("labels", TextOptions::default().set_indexing_options(exact.clone()).set_fast("raw")),
        attributes: schema.add_json_field(
            "attributes",
            JsonObjectOptions::default()
                .set_indexing_options(terms("default"))
                .set_fast("raw")
                .set_expand_dots_enabled(),
        ),
        // Original labels and attributes with their order and types, which an inverted index does not preserve.
        rest: schema.add_text_field("_rest", STORED),
    });
    // Many values per document in one column. They lie side by side, so a vector is one range of a mapped file, and
    // commits, merges, deletes and checksums treat it like any other column.
    let embedding = (layout.rerank_vectors != RerankVectors::None).then(|| schema.add_u64_field(RERANK_VECTOR, FAST));
    let chunk = layout
        .chunk
        .map(|_| ChunkFields { number: schema.add_u64_field(CHUNK, FAST), start: schema.add_u64_field(START, FAST) });
    (schema.build(), Fields { id, name, number, sequence, codes, embedding, chunk, documents })
}

/// The text an id is looked up by.
pub(super) fn id_text(id: &DocId) -> String {
    match id {
        DocId::Int(n) => n.to_string(),
        DocId::Str(s) => s.clone(),
    }
}

impl Fields {
    pub fn id_term(&self, id: &DocId) -> Term {
        Term::from_field_text(self.id, &id_text(id))
    }

    /// A chunk of a document as tantivy stores it; the whole document as its only chunk in an index without chunks.
    /// `embedding` is its packed rerank vector, empty if the index stores none.
    pub fn document(
        &self,
        document: &Document,
        (number, range): (usize, Range<usize>),
        code: &[u8],
        embedding: &[u64],
        sequence: u64,
    ) -> Result<TantivyDocument> {
        let mut out = TantivyDocument::default();
        match &document.id {
            DocId::Int(n) => out.add_u64(self.number, *n),
            DocId::Str(s) => {
                check_id(s)?;
                out.add_text(self.name, s);
            }
        }
        out.add_text(self.id, id_text(&document.id));
        out.add_u64(self.sequence, sequence);
        for (field, bytes) in self.codes.iter().zip(code.chunks(8)) {
            let mut block = [0; 8];
            block[..bytes.len()].copy_from_slice(bytes);
            out.add_u64(*field, u64::from_le_bytes(block));
        }
        if let Some(field) = self.embedding {
            embedding.iter().for_each(|&block| out.add_u64(field, block));
        }
        if let Some(fields) = &self.chunk {
            out.add_u64(fields.number, number as u64);
            out.add_u64(fields.start, range.start as u64);
        }
        if let Some(fields) = &self.documents {
            out.add_text(fields.text, &document.text[range]);
            document.labels.iter().for_each(|label| out.add_text(fields.labels, label));
            let attributes = attributes_object(document)?;
            if !attributes.is_empty() {
                out.add_object(fields.attributes, attributes);
            }
            // Filters need them at every chunk; hits read them from the first.
            if number == 0 && (!document.labels.is_empty() || !document.attributes.is_empty()) {
                let rest = serde_json::to_string(&(&document.labels, &document.attributes))
                    .map_err(|e| Error::input(id_text(&document.id), format!("cannot be kept as JSON: {e}")))?;
                out.add_text(fields.rest, rest);
            }
        }
        Ok(out)
    }
}

fn check_id(id: &str) -> Result<()> {
    if id.is_empty() {
        return Err(Error::input("a document", "has an empty id; give it one"));
    }
    if id.len() > LONGEST_ID {
        let begin: String = id.chars().take(40).collect();
        return Err(Error::input(
            format!("{begin}..."),
            format!("an id of {} bytes; at most {LONGEST_ID} are kept", id.len()),
        ));
    }
    Ok(())
}

fn attributes_object(document: &Document) -> Result<BTreeMap<String, OwnedValue>> {
    let mut object: BTreeMap<String, OwnedValue> = BTreeMap::new();
    for (name, value) in &document.attributes {
        let refuse = |problem: String| Err(Error::input(id_text(&document.id), problem));
        if name.is_empty() || name.chars().any(char::is_control) {
            return refuse(format!(
                "has an attribute named {name:?}; a name is not empty and has no control characters"
            ));
        }
        let value = match value {
            Value::Bool(b) => OwnedValue::Bool(*b),
            Value::Int(i) => OwnedValue::I64(*i),
            Value::Float(x) if x.is_finite() => OwnedValue::F64(*x),
            Value::Float(x) => return refuse(format!("has {x} as attribute \"{name}\"; a number must be finite")),
            Value::Text(s) => OwnedValue::Str(s.clone()),
            Value::Texts(all) => OwnedValue::Array(all.iter().cloned().map(OwnedValue::Str).collect()),
        };
        // An attribute given twice has both values, like a list.
        match object.get_mut(name) {
            None => drop(object.insert(name.clone(), value)),
            Some(OwnedValue::Array(values)) => values.push(value),
            Some(first) => *first = OwnedValue::Array(vec![std::mem::replace(first, OwnedValue::Null), value]),
        }
    }
    Ok(object)
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stored {
    pub text: Option<String>,
    pub labels: Vec<String>,
    pub attributes: Vec<(String, Value)>,
}

impl DocumentFields {
    pub fn stored(&self, document: &TantivyDocument) -> std::result::Result<Stored, String> {
        let string = |field| document.get_first(field).and_then(|v| v.as_str().map(str::to_owned));
        let (labels, attributes) = match string(self.rest) {
            Some(json) => serde_json::from_str(&json).map_err(|e| e.to_string())?,
            None => Default::default(),
        };
        Ok(Stored { text: string(self.text), labels, attributes })
    }
}
