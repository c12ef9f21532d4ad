//! Routes that add, get, count and delete documents.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use engine::Progress;
use engine::corpus::{DocId, Document, Value};
use engine::duplicates::{Arrivals, DuplicatePolicy, DuplicatesConfig, Measure, OnDuplicate};
use engine::index::{Index, Record, Store};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use super::map::{Area, within};
use super::vector::Vector;
use crate::bounds;
use crate::config::ServeConfig;
use crate::extract::{Body, MayRead, MayWrite, NamedIndex, NoBody, PathPart};
use crate::hosted::Hosted;
use crate::id::Id;
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::schema;
use crate::scope::scope_of;
use crate::server::Server;
use crate::writes::scope::Scope;
use crate::writes::{Change, DocumentWithVector, Done};

/// The schema of [`Value`].
pub enum Attribute {}

described!(Attribute, {
    "description": "A value of an attribute: a boolean, a number, a string or several strings.",
    "anyOf": [
        { "type": "boolean" },
        { "type": "number" },
        { "type": "string" },
        { "type": "array", "items": { "type": "string" } },
    ],
});

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
    pub fn of(attributes: Vec<(String, Value)>) -> Attributes {
        let pair = |(name, value): (String, Value)| {
            (name, serde_json::to_value(value).expect("attribute values have a JSON form"))
        };
        Attributes(attributes.into_iter().map(pair).collect())
    }

    fn into_pairs(self) -> Answer<Vec<(String, Value)>> {
        let pair = |(name, value): (String, serde_json::Value)| match serde_json::from_value::<Value>(value) {
            Ok(value) => Ok((name, value)),
            Err(_) => Err(Problem::bad_request(format!(
                "attribute \"{name}\": give a boolean, a number, a string or a list of strings"
            ))),
        };
        self.0.into_iter().map(pair).collect()
    }
}

/// A document to store.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDocument {
    /// Id. A document with the same id is replaced.
    pub id: Id,
    /// Text. The server encodes it.
    #[schema(min_length = 1, example = "Oil prices rise as OPEC cuts its output")]
    pub text: Option<String>,
    /// Embedding by the same encoder. If it is given, the server does not encode the text.
    pub vector: Option<Vector>,
    #[serde(default)]
    pub labels: Vec<String>,
    /// Attributes, for filters.
    #[serde(default)]
    pub attributes: Attributes,
}

impl NewDocument {
    /// Checks everything that can be checked before the write.
    fn checked(self, hosted: &Hosted, max_text_bytes: usize) -> Answer<DocumentWithVector> {
        let Id(id) = self.id;
        let refuse = |code, problem: String| Err(Problem::refused(code, format!("document {id}: {problem}")));
        let text = match (self.text, &self.vector) {
            (Some(text), _) if text.is_empty() => {
                return Err(Problem::bad_request(format!(
                    "document {id}: the text is empty; give a text, or leave it out"
                )));
            }
            (Some(text), _) if text.len() > max_text_bytes => {
                return refuse(
                    Code::TooLarge,
                    format!("the text has {} bytes, more than {max_text_bytes}; split it", text.len()),
                );
            }
            (Some(text), _) => text,
            (None, Some(_)) => String::new(),
            (None, None) => {
                return refuse(Code::BadDocument, "it has neither text nor vector; give one of them".into());
            }
        };
        let index = hosted.index();
        if let Some(Vector(vector)) = &self.vector {
            check_vector(vector, index.model().inputs()).map_err(|mut problem| {
                problem.details.message = format!("document {id}: {}", problem.details.message);
                problem
            })?;
        }
        let attributes = self.attributes.into_pairs()?;
        Ok((Document { id, text, labels: self.labels, attributes }, self.vector.map(|Vector(values)| values)))
    }
}

/// Refuses a vector of the wrong width, and values that are not finite.
pub fn check_vector(vector: &[f32], width: usize) -> Answer<()> {
    let refuse = |problem: String| Err(Problem::refused(Code::BadVector, problem));
    if vector.len() != width {
        return refuse(format!(
            "the vector has {} values, but the model of this index takes {width}; use its encoder",
            vector.len()
        ));
    }
    match vector.iter().position(|x| !x.is_finite()) {
        Some(i) => refuse(format!("value {i} of the vector is too large for 32 bits; give finite numbers")),
        None => Ok(()),
    }
}

/// Documents to store.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Upsert {
    /// The documents. Either all of them are stored, or none.
    #[schema(min_items = 1, max_items = 10000)]
    #[serde(deserialize_with = "crate::extract::objects")]
    documents: Vec<NewDocument>,
    /// What to do with documents that repeat another. Default: `keep`.
    #[schema(value_type = Option<schema::OnDuplicateName>)]
    on_duplicate: Option<OnDuplicate>,
    /// What makes a duplicate. Default: `words`, or `vectors` in an index without texts.
    #[schema(value_type = Option<schema::DuplicatesBy>)]
    duplicate_by: Option<Measure>,
    /// Least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors.
    #[schema(minimum = 0.01, maximum = 1.0)]
    duplicate_threshold: Option<f32>,
}

/// The policy of a request, checked against the index.
pub fn duplicate_policy(
    hosted: &Hosted,
    access: &Access,
    on_duplicate: Option<OnDuplicate>,
    by: Option<Measure>,
    threshold: Option<f32>,
) -> Answer<DuplicatePolicy> {
    let like = DuplicatesConfig { by, threshold, ..DuplicatesConfig::default() };
    let policy = DuplicatePolicy { on_duplicate: on_duplicate.unwrap_or_default(), like };
    policy.validate().map_err(Problem::of(Code::BadQuery))?;
    if policy.on_duplicate != OnDuplicate::Keep {
        // Duplicates are looked for among all documents.
        access.expect_whole()?;
    }
    Arrivals::new(&hosted.index(), &policy).map_err(|error| Problem::conflict(Code::Unsupported, error.to_string()))?;
    Ok(policy)
}

/// The limits of a write, if the caller has any. Some are measured, which takes the disk.
pub async fn scope(server: &Arc<Server>, access: &Access, hosted: &Arc<Hosted>) -> Answer<Option<Scope>> {
    if !access.is_bounded() {
        return Ok(None);
    }
    let (server, access, hosted) = (server.clone(), access.clone(), hosted.clone());
    super::blocking(move || scope_of(&server, &access, &hosted)).await?.map(Some)
}

/// Counts a write that was refused because its key has used what it may.
pub fn count_quota(server: &Server, problem: &Problem) {
    if problem.details.code == Code::QuotaExceeded {
        server.metrics.rejected("quota");
    }
}

/// Add or replace documents
///
/// Stores all documents, or none if one of them cannot be stored. The answer comes when they are on disk and searchable. With
/// `on_duplicate`, documents that repeat one of the index or one before them are skipped, marked, or replace the older ones.
#[utoipa::path(put, path = "/v1/indexes/{index}/documents", tag = "documents", operation_id = "upsertDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Upsert, responses((status = 200, description = "The documents are stored", body = Done), Refusals))]
pub async fn upsert(
    _: MayWrite,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    Body(body): Body<Upsert>,
) -> Answer<Json<Done>> {
    let ServeConfig { max_documents, max_text_bytes, .. } = *server.settings.config();
    if body.documents.is_empty() || body.documents.len() > max_documents {
        return Err(Problem::bad_request(format!(
            "documents has {} entries; send 1 to {max_documents}, or more as a stream to documents/stream",
            body.documents.len()
        )));
    }
    let policy = duplicate_policy(&hosted, &access, body.on_duplicate, body.duplicate_by, body.duplicate_threshold)?;
    let new = body.documents.into_iter().map(|d| d.checked(&hosted, max_text_bytes)).collect::<Answer<Vec<_>>>()?;
    let scope = scope(&server, &access, &hosted).await?;
    let done = hosted.writes.change(Change::Upsert(new, policy), scope).await;
    Ok(Json(done.inspect_err(|problem| count_quota(&server, problem))?))
}

/// A document of the index.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct StoredDocument {
    id: Id,
    /// Text, if the index stores texts.
    text: Option<String>,
    labels: Vec<String>,
    attributes: Attributes,
    /// Code: the number of the codeword in each codebook.
    code: Vec<u16>,
    /// Position in the order of insertion.
    sequence: u64,
}

impl StoredDocument {
    fn of(hosted: &Hosted, record: Record) -> StoredDocument {
        let shape = hosted.index().model().shape();
        StoredDocument {
            id: Id(record.id),
            code: (0..shape.num_codebooks()).map(|m| shape.codeword(&record.code, m) as u16).collect(),
            sequence: record.sequence,
            text: record.text,
            labels: record.labels,
            attributes: Attributes::of(record.attributes),
        }
    }
}

#[derive(Deserialize)]
pub struct DocumentPath {
    id: String,
}

/// Get a document
#[utoipa::path(get, path = "/v1/indexes/{index}/documents/{id}", tag = "documents", operation_id = "getDocument",
    params(("index" = String, Path, description = "Name of the index"), ("id" = String, Path, description = "Id of the document")),
    responses((status = 200, description = "The document", body = StoredDocument), Refusals))]
pub async fn get(
    _: MayRead,
    access: Access,
    NamedIndex(hosted): NamedIndex,
    PathPart(DocumentPath { id }): PathPart<DocumentPath>,
) -> Answer<Json<StoredDocument>> {
    let Ok(id) = id.parse::<DocId>();
    match find(&hosted.index(), &access, &id)? {
        Some(record) => Ok(Json(StoredDocument::of(&hosted, record))),
        None => Err(unknown(&id)),
    }
}

/// The document of an id, if it exists for the caller.
fn find(index: &Index, access: &Access, id: &DocId) -> Answer<Option<Record>> {
    let found = match access.filter() {
        Some(filter) => index.get_within(id, filter),
        None => index.get(id),
    };
    found.map_err(Problem::of(Code::BadQuery))
}

fn unknown(id: &DocId) -> Problem {
    let shown: String = id.to_string().chars().take(80).collect();
    Problem::not_found(Code::UnknownDocument, format!("there is no document {shown} in this index"))
}

/// Delete a document
#[utoipa::path(delete, path = "/v1/indexes/{index}/documents/{id}", tag = "documents", operation_id = "deleteDocument",
    params(("index" = String, Path, description = "Name of the index"), ("id" = String, Path, description = "Id of the document")),
    responses((status = 200, description = "The document is deleted", body = Done), Refusals))]
pub async fn delete_one(
    _: MayWrite,
    access: Access,
    _: NoBody,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    PathPart(DocumentPath { id }): PathPart<DocumentPath>,
) -> Answer<Json<Done>> {
    let Ok(id) = id.parse::<DocId>();
    let scope = scope(&server, &access, &hosted).await?;
    let done = hosted.writes.change(Change::Delete(vec![id.clone()]), scope).await?;
    if done.changed == 0 {
        return Err(unknown(&id));
    }
    Ok(Json(done))
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ids {
    #[schema(max_items = 10000)]
    ids: Vec<Id>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Fetched {
    /// Documents in the order of the ids; `null` for an unknown id.
    documents: Vec<Option<StoredDocument>>,
}

/// Get several documents
#[utoipa::path(post, path = "/v1/indexes/{index}/documents/get", tag = "documents", operation_id = "getDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Ids, responses((status = 200, description = "The documents", body = Fetched), Refusals))]
pub async fn fetch(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    Body(Ids { ids }): Body<Ids>,
) -> Answer<Json<Fetched>> {
    let ServeConfig { max_documents, max_answer_bytes: max_bytes, .. } = *server.settings.config();
    Problem::bounded(&ids, "ids", max_documents)?;
    let found = super::reading(&server, move |cancel| -> Answer<Vec<Option<StoredDocument>>> {
        let (index, mut bytes) = (hosted.index(), 0);
        let mut found = Vec::with_capacity(ids.len());
        for Id(id) in &ids {
            if cancel.interrupted() {
                return Err(Problem::stopping());
            }
            let record = find(&index, &access, id)?;
            bytes += record.as_ref().and_then(|record| record.text.as_ref()).map_or(0, String::len);
            if bytes > max_bytes {
                return Err(bounds::too_long(max_bytes));
            }
            found.push(record.map(|record| StoredDocument::of(&hosted, record)));
        }
        Ok(found)
    });
    Ok(Json(Fetched { documents: found.await?? }))
}

/// Documents to delete: by ids, or by a filter.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Delete {
    /// Ids. Unknown ids are ignored.
    #[schema(max_items = 10000)]
    ids: Option<Vec<Id>>,
    /// Filter, as in a query.
    #[schema(example = "year:1987")]
    filter: Option<String>,
}

/// Delete documents by ids or filter
#[utoipa::path(post, path = "/v1/indexes/{index}/documents/delete", tag = "documents", operation_id = "deleteDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Delete, responses((status = 200, description = "The documents are deleted", body = Done), Refusals))]
pub async fn delete(
    _: MayWrite,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    Body(body): Body<Delete>,
) -> Answer<Json<Done>> {
    let change = match (body.ids, body.filter) {
        (Some(ids), None) => {
            Problem::bounded(&ids, "ids", server.settings.config().max_documents)?;
            Change::Delete(ids.into_iter().map(|Id(id)| id).collect())
        }
        (None, Some(filter)) => Change::DeleteWhere(filter),
        _ => return Err(Problem::refused(Code::BadQuery, "give either ids or a filter")),
    };
    let scope = scope(&server, &access, &hosted).await?;
    Ok(Json(hosted.writes.change(change, scope).await?))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Count {
    /// Filter, as in a query. Default: all documents.
    #[schema(example = "places:japan AND year:[1987 TO 1988]")]
    filter: Option<String>,
    /// Only documents inside this area of the map.
    area: Option<Area>,
}

/// A number of documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Counted {
    /// Number of documents that match.
    count: usize,
}

/// Count documents
#[utoipa::path(post, path = "/v1/indexes/{index}/count", tag = "documents", operation_id = "countDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Count, responses((status = 200, description = "The number", body = Counted), Refusals))]
pub async fn count(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    Body(body): Body<Count>,
) -> Answer<Json<Counted>> {
    let within = within(&server, &hosted, body.area).await?;
    let index = hosted.index();
    let count = match (access.narrowed(body.filter), within) {
        (None, None) => Ok(index.len()),
        (filter, within) => {
            let work = move |cancel: &bounds::Cancel| index.count_within(filter.as_deref(), within.as_ref(), cancel);
            super::reading(&server, work).await?
        }
    };
    let count = count.map_err(Problem::of(Code::BadQuery))?;
    Ok(Json(Counted { count }))
}

/// Refuses an index without texts.
pub fn expect_texts(hosted: &Hosted) -> Answer<()> {
    if hosted.index().store() == Store::Codes {
        return Err(Problem::conflict(
            Code::Unsupported,
            "this index stores only ids and codes; create one that stores texts (store: all)",
        ));
    }
    Ok(())
}
