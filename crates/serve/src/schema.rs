//! Schemas of the engine's types, which have no notion of OpenAPI: an empty enum describes each, and fields name it with
//! `value_type`.

use engine::query::MAX_HITS;
use strum::VariantNames;

/// Gives a type a hand-written schema.
macro_rules! described {
    ($name:ty, $($json:tt)+) => {
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                serde_json::from_value(serde_json::json!($($json)+)).expect("a schema")
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

pub enum Distance {}

described!(Distance, {
    "description": "Distance of codes: `norm` (sum of norms, as the paper's authors rank), `squared` (sum of squares) or \
                    `hamming` (number of codebooks whose codewords differ).",
    "type": "string",
    "enum": engine::model::Distance::VARIANTS,
});

pub enum RerankOption {}

described!(RerankOption, {
    "description": "How many candidates are re-ranked: `auto` (1000 if the index stores rerank vectors), `off`, or a number.",
    "oneOf": [{ "type": "string", "enum": ["auto", "off"] }, { "type": "integer", "minimum": 1, "maximum": MAX_HITS }],
});

pub enum OnErrorName {}

described!(OnErrorName, {
    "description": "What to do with a line that cannot be used: `stop` the stream, as `auto` does, or `skip` and count it.",
    "type": "string",
    "enum": engine::corpus::OnError::VARIANTS,
});

pub enum GroupName {}

described!(GroupName, {
    "description": "What gives a document its place in an index with chunks.",
    "type": "string",
    "enum": engine::query::Group::VARIANTS,
});

pub enum QueryEncoderName {}

described!(QueryEncoderName, {
    "description": "Which encoder reads the texts of a query.",
    "type": "string",
    "enum": engine::encoder::QueryEncoder::VARIANTS,
});

pub enum DuplicatesBy {}

described!(DuplicatesBy, {
    "description": "What decides whether two documents are alike.",
    "type": "string",
    "enum": engine::duplicates::Measure::VARIANTS,
});

pub enum OnDuplicateName {}

described!(OnDuplicateName, {
    "description": "What to do with a new document that repeats one of the index or one before it: `keep` it, `skip` it (a \
                    document with a known id is an update, and stored), `mark` it with the attribute `duplicate_of`, or \
                    `replace` the older ones.",
    "type": "string",
    "enum": engine::duplicates::OnDuplicate::VARIANTS,
});

pub enum Store {}

described!(Store, {
    "description": "What an index stores of a document: `all` (id, code, text, labels and attributes, with the terms of \
                    texts) or `codes` (only id and code).",
    "type": "string",
    "enum": engine::index::Store::VARIANTS,
});

pub enum RerankVectors {}

described!(RerankVectors, {
    "description": "How an index stores embeddings for re-ranking: `none`, `int8` (a byte per value) or `f16` (two bytes \
                    per value).",
    "type": "string",
    "enum": engine::index::RerankVectors::VARIANTS,
});

pub enum Sizes {}

described!(Sizes, {
    "description": "Bytes on disk by part.",
    "type": "object",
    "required": ["columns", "documents", "terms", "codes", "rerank_vectors", "model", "other"],
    "properties": {
        "columns": bytes("Columns of ids, codes and attributes."),
        "documents": bytes("Texts, labels and attributes."),
        "terms": bytes("The inverted index."),
        "codes": bytes("Packed codes."),
        "rerank_vectors": bytes("Rerank vectors."),
        "model": bytes("The model."),
        "other": bytes("Everything else."),
    },
});

fn bytes(description: &str) -> serde_json::Value {
    serde_json::json!({ "type": "integer", "format": "int64", "minimum": 0, "description": description })
}
