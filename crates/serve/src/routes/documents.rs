//! Documents in and out.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use micpq::corpus::{DocId, Document, Value};
use micpq::index::{Record, Store};
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use crate::extract::{At, Body, MayRead, MayWrite, Of, whole};
use crate::hosted::Hosted;
use crate::problem::{Answer, Code, Problem};
use crate::server::Server;
use crate::writes::{Change, Done, New};

/// Longest id in bytes, as the index has it.
const LONGEST_ID: usize = 1024;

/// A document's id: a whole number or a string. `5` and `"5"` are the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Id(pub DocId);

described!(Id, {
    "description": "A whole number or a string. `5` and `\"5\"` are the same.",
    "oneOf": [
        { "type": "integer", "minimum": 0, "maximum": u64::MAX },
        { "type": "string", "minLength": 1, "maxLength": LONGEST_ID },
    ],
});

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "an id: a whole number from 0 on, or a string of 1 to {LONGEST_ID} bytes")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Id, E> {
                Ok(Id(DocId::Int(number)))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Id, E> {
                let number = whole(number).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))?;
                Ok(Id(DocId::Int(number)))
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Id, E> {
                if name.is_empty() || name.len() > LONGEST_ID {
                    return Err(E::invalid_length(name.len(), &self));
                }
                // As everywhere without types: "5" is 5.
                let Ok(id) = name.parse();
                Ok(Id(id))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Attribute {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A string.
    Text(String),
    /// Several strings.
    Texts(Vec<String>),
}

described!(Attribute, {
    "description": "A value of an attribute: a boolean, a number, a string or several strings.",
    "anyOf": [
        { "type": "boolean" },
        { "type": "number" },
        { "type": "string" },
        { "type": "array", "items": { "type": "string" } },
    ],
});

impl From<Attribute> for Value {
    fn from(value: Attribute) -> Value {
        match value {
            Attribute::Bool(v) => Value::Bool(v),
            Attribute::Int(v) => Value::Int(v),
            Attribute::Float(v) => Value::Float(v),
            Attribute::Text(v) => Value::Text(v),
            Attribute::Texts(v) => Value::Texts(v),
        }
    }
}

impl From<Value> for Attribute {
    fn from(value: Value) -> Attribute {
        match value {
            Value::Bool(v) => Attribute::Bool(v),
            Value::Int(v) => Attribute::Int(v),
            Value::Float(v) => Attribute::Float(v),
            Value::Text(v) => Attribute::Text(v),
            Value::Texts(v) => Attribute::Texts(v),
        }
    }
}

/// Attributes by name, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attributes(serde_json::Map<String, serde_json::Value>);

described!(Attributes, {
    "description": "Attributes by name.",
    "type": "object",
    "propertyNames": { "type": "string", "minLength": 1 },
    "additionalProperties": { "$ref": "#/components/schemas/Attribute" },
});

impl Attributes {
    /// Of a stored document.
    pub fn of(attributes: Vec<(String, Value)>) -> Attributes {
        let pair = |(name, value): (String, Value)| {
            (name, serde_json::to_value(Attribute::from(value)).expect("plain data has a JSON form"))
        };
        Attributes(attributes.into_iter().map(pair).collect())
    }

    fn into_pairs(self) -> Answer<Vec<(String, Value)>> {
        let pair = |(name, value): (String, serde_json::Value)| match serde_json::from_value::<Attribute>(value) {
            Ok(value) => Ok((name, value.into())),
            Err(_) => Err(Problem::bad_request(format!(
                "attribute \"{name}\": a boolean, a number, a string or a list of strings is expected"
            ))),
        };
        self.0.into_iter().map(pair).collect()
    }
}

/// A document to be kept.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDocument {
    /// Its id; a document with the same one is replaced.
    pub id: Id,
    /// What is searched. It is encoded here.
    #[schema(min_length = 1, example = "Oil prices rise as OPEC cuts its output")]
    pub text: Option<String>,
    /// Its feature, where it was encoded elsewhere by the same encoder; then the text is not encoded.
    pub vector: Option<Vec<f32>>,
    /// Its classes.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Everything else, for filters.
    #[serde(default)]
    pub attributes: Attributes,
}

impl NewDocument {
    /// Checks what can be checked before it is written.
    fn into_new(self, hosted: &Hosted, most: usize) -> Answer<New> {
        let Id(id) = self.id;
        let refuse = |code, problem: String| Err(Problem::refused(code, format!("document {id}: {problem}")));
        let text = match (self.text, &self.vector) {
            (Some(text), _) if text.is_empty() => {
                return Err(Problem::bad_request(format!("document {id}: its text is empty")));
            }
            (Some(text), _) if text.len() > most => {
                return refuse(
                    Code::TooLarge,
                    format!("its text has {} bytes, {most} are taken; split it", text.len()),
                );
            }
            (Some(text), _) => text,
            (None, Some(_)) => String::new(),
            (None, None) => return refuse(Code::BadDocument, "it has neither text nor vector; give one".into()),
        };
        let index = hosted.index();
        if let Some(vector) = &self.vector {
            check_vector(vector, index.model().inputs()).map_err(|mut problem| {
                problem.details.message = format!("document {id}: {}", problem.details.message);
                problem
            })?;
        }
        let attributes = self.attributes.into_pairs()?;
        Ok((Document { id, text, labels: self.labels, attributes }, self.vector))
    }
}

/// Refuses a vector the model cannot take.
pub fn check_vector(vector: &[f32], width: usize) -> Answer<()> {
    let refuse = |problem: String| Err(Problem::refused(Code::BadVector, problem));
    if vector.len() != width {
        return refuse(format!("the vector has {} values, the model of this index takes {width}", vector.len()));
    }
    match vector.iter().position(|x| !x.is_finite()) {
        Some(i) => refuse(format!("value {i} of the vector is beyond what 32 bits hold; give finite numbers")),
        None => Ok(()),
    }
}

/// Documents to be kept.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Upsert {
    /// All of them are kept, or none.
    #[schema(min_items = 1, max_items = 10000)]
    #[serde(deserialize_with = "crate::extract::objects")]
    documents: Vec<NewDocument>,
}

/// What a change did. It is on disk.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// Documents added or replaced, or deleted.
    changed: usize,
    /// Documents in the index now.
    documents: usize,
}

impl From<Done> for Changed {
    fn from(done: Done) -> Changed {
        Changed { changed: done.changed, documents: done.documents }
    }
}

/// Add or replace documents
///
/// All of them or, where one cannot be kept, none. The answer comes when they are on disk and can be found.
#[utoipa::path(put, path = "/v1/indexes/{index}/documents", tag = "documents", operation_id = "upsertDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Upsert, responses((status = 200, description = "They are kept", body = Changed), Refusals))]
pub async fn upsert(
    _: MayWrite,
    State(server): State<Arc<Server>>,
    Of(hosted): Of,
    Body(body): Body<Upsert>,
) -> Answer<Json<Changed>> {
    let most = server.config.max_documents;
    if body.documents.is_empty() || body.documents.len() > most {
        return Err(Problem::bad_request(format!(
            "documents: {} of them; 1 to {most} go at once, more as a stream to documents/stream",
            body.documents.len()
        )));
    }
    let limit = server.config.max_text_bytes;
    let new = body.documents.into_iter().map(|d| d.into_new(&hosted, limit)).collect::<Answer<Vec<New>>>()?;
    Ok(Json(hosted.writes.change(Change::Upsert(new)).await?.into()))
}

/// A document as the index has it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Kept {
    /// Its id.
    id: Id,
    /// Its text, where the index keeps texts.
    text: Option<String>,
    /// Its classes.
    labels: Vec<String>,
    /// Its attributes.
    attributes: Attributes,
    /// Its code: the number of the chosen word in each book.
    code: Vec<u16>,
    /// Its place in the order of insertion.
    sequence: u64,
}

impl Kept {
    fn of(hosted: &Hosted, record: Record) -> Kept {
        let shape = hosted.index().model().shape();
        Kept {
            id: Id(record.id),
            code: (0..shape.books()).map(|m| shape.word(&record.code, m) as u16).collect(),
            sequence: record.sequence,
            text: record.text,
            labels: record.labels,
            attributes: Attributes::of(record.attributes),
        }
    }
}

#[derive(Deserialize)]
pub struct OneOf {
    id: String,
}

/// Get a document
#[utoipa::path(get, path = "/v1/indexes/{index}/documents/{id}", tag = "documents", operation_id = "getDocument",
    params(("index" = String, Path, description = "Name of the index"), ("id" = String, Path, description = "Id of the document")),
    responses((status = 200, description = "The document", body = Kept), Refusals))]
pub async fn get(_: MayRead, Of(hosted): Of, At(OneOf { id }): At<OneOf>) -> Answer<Json<Kept>> {
    let Ok(id) = id.parse::<DocId>();
    match hosted.index().get(&id).map_err(Problem::of(Code::BadQuery))? {
        Some(record) => Ok(Json(Kept::of(&hosted, record))),
        None => Err(unknown(&id)),
    }
}

fn unknown(id: &DocId) -> Problem {
    let shown: String = id.to_string().chars().take(80).collect();
    Problem::not_found(Code::UnknownDocument, format!("there is no document {shown} in this index"))
}

/// Delete a document
#[utoipa::path(delete, path = "/v1/indexes/{index}/documents/{id}", tag = "documents", operation_id = "deleteDocument",
    params(("index" = String, Path, description = "Name of the index"), ("id" = String, Path, description = "Id of the document")),
    responses((status = 200, description = "It is gone", body = Changed), Refusals))]
pub async fn delete_one(_: MayWrite, Of(hosted): Of, At(OneOf { id }): At<OneOf>) -> Answer<Json<Changed>> {
    let Ok(id) = id.parse::<DocId>();
    let done = hosted.writes.change(Change::Delete(vec![id.clone()])).await?;
    if done.changed == 0 {
        return Err(unknown(&id));
    }
    Ok(Json(done.into()))
}

/// Ids of documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ids {
    /// The ids.
    #[schema(max_items = 10000)]
    ids: Vec<Id>,
}

/// Documents by their ids.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Fetched {
    /// In the order of the ids; `null` where there is none.
    documents: Vec<Option<Kept>>,
}

/// Get several documents
#[utoipa::path(post, path = "/v1/indexes/{index}/documents/get", tag = "documents", operation_id = "getDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Ids, responses((status = 200, description = "The documents", body = Fetched), Refusals))]
pub async fn fetch(
    _: MayRead,
    State(server): State<Arc<Server>>,
    Of(hosted): Of,
    Body(Ids { ids }): Body<Ids>,
) -> Answer<Json<Fetched>> {
    limit_ids(&ids, server.config.max_documents)?;
    let found = super::blocking(move || {
        let index = hosted.index();
        let one = |Id(id): &Id| Ok(index.get(id)?.map(|record| Kept::of(&hosted, record)));
        ids.iter().map(one).collect::<micpq::Result<_>>()
    });
    Ok(Json(Fetched { documents: found.await?.map_err(Problem::of(Code::BadQuery))? }))
}

fn limit_ids(ids: &[Id], most: usize) -> Answer<()> {
    if ids.len() > most {
        return Err(Problem::bad_request(format!("ids: {} of them; at most {most} go at once", ids.len())));
    }
    Ok(())
}

/// What to delete: ids, or what matches a filter.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Delete {
    /// Ids of documents; those that are not there do not matter.
    #[schema(max_items = 10000)]
    ids: Option<Vec<Id>>,
    /// A filter, as in a query.
    #[schema(example = "year:1987")]
    filter: Option<String>,
}

/// Delete documents by ids or filter
#[utoipa::path(post, path = "/v1/indexes/{index}/documents/delete", tag = "documents", operation_id = "deleteDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Delete, responses((status = 200, description = "They are gone", body = Changed), Refusals))]
pub async fn delete(
    _: MayWrite,
    State(server): State<Arc<Server>>,
    Of(hosted): Of,
    Body(body): Body<Delete>,
) -> Answer<Json<Changed>> {
    let change = match (body.ids, body.filter) {
        (Some(ids), None) => {
            limit_ids(&ids, server.config.max_documents)?;
            Change::Delete(ids.into_iter().map(|Id(id)| id).collect())
        }
        (None, Some(filter)) => Change::DeleteWhere(filter),
        _ => return Err(Problem::refused(Code::BadQuery, "name either ids or a filter of what to delete")),
    };
    Ok(Json(hosted.writes.change(change).await?.into()))
}

/// What to count.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Count {
    /// A filter, as in a query; all documents without one.
    #[schema(example = "places:japan AND year:[1987 TO 1988]")]
    filter: Option<String>,
}

/// A number of documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Counted {
    /// So many match.
    count: usize,
}

/// Count documents
#[utoipa::path(post, path = "/v1/indexes/{index}/count", tag = "documents", operation_id = "countDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Count, responses((status = 200, description = "The number", body = Counted), Refusals))]
pub async fn count(_: MayRead, Of(hosted): Of, Body(body): Body<Count>) -> Answer<Json<Counted>> {
    let index = hosted.index();
    let count = match body.filter {
        None => index.len(),
        Some(filter) => super::blocking(move || index.count(&filter)).await?.map_err(Problem::of(Code::BadQuery))?,
    };
    Ok(Json(Counted { count }))
}

/// Refuses what needs texts of an index that has none.
pub fn expect_texts(hosted: &Hosted) -> Answer<()> {
    if hosted.index().store() == Store::Codes {
        return Err(Problem::conflict(
            Code::Unsupported,
            "this index keeps only ids and codes; build one that keeps texts (--store all)",
        ));
    }
    Ok(())
}
