//! Routes that show codes, attributes and training.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use engine::Error;
use engine::corpus::Value;
use engine::index::Facet;
use engine::query::{Hit, entropy};
use engine::topics::{self, CodewordDocuments};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Refusals;
use super::documents::{Attribute, Attributes};
use crate::bounds::Cancel;
use crate::extract::{MayRead, NamedIndex, PathPart, QueryString, WholeIndex};
use crate::id::Id;
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::server::Server;

/// Values per attribute and documents of a codeword, if no number is given.
pub const DEFAULT_VALUES: usize = 20;
pub const DEFAULT_DOCUMENTS: usize = 20;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FacetOptions {
    /// Only documents that match this filter.
    filter: Option<String>,
    /// Maximum number of values per attribute.
    #[param(minimum = 1, maximum = 1000, default = 20)]
    values: Option<usize>,
}

/// A value of an attribute.
#[derive(Debug, Serialize, ToSchema)]
pub struct FacetValue {
    #[schema(value_type = Attribute)]
    value: Value,
    /// Number of documents that have it.
    count: u64,
    /// Filter for these documents.
    filter: String,
}

/// An attribute over all documents.
#[derive(Debug, Serialize, ToSchema)]
pub struct FacetView {
    name: String,
    /// Number of documents that have it.
    documents: u64,
    /// Number of distinct values.
    distinct: u64,
    /// Smallest number, if it has numbers.
    least: Option<f64>,
    /// Greatest number, if it has numbers.
    greatest: Option<f64>,
    /// Most frequent values.
    values: Vec<FacetValue>,
}

/// All attributes and the labels.
#[derive(Debug, Serialize, ToSchema)]
pub struct Facets {
    /// Attributes, ordered by name.
    facets: Vec<FacetView>,
}

/// Attributes with their values
///
/// Every attribute with its most frequent values, and a filter for each value.
#[utoipa::path(get, path = "/v1/indexes/{index}/facets", tag = "insight", operation_id = "getFacets",
    params(("index" = String, Path, description = "Name of the index"), FacetOptions),
    responses((status = 200, description = "The attributes", body = Facets), Refusals))]
pub async fn facets(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    QueryString(options): QueryString<FacetOptions>,
) -> Answer<Json<Facets>> {
    let max_values = options.values.unwrap_or(DEFAULT_VALUES);
    if !(1..=1000).contains(&max_values) {
        return Err(Problem::bad_request(format!("values is {max_values}; give 1 to 1000")));
    }
    let index = hosted.index();
    let filter = access.narrowed(options.filter);
    let facets = super::reading(&server, move |cancel| index.facets(filter.as_deref(), max_values, cancel));
    let facets = facets.await?.map_err(Problem::of(Code::BadQuery))?;
    let view = |facet: Facet| FacetView {
        documents: facet.documents,
        distinct: facet.distinct,
        least: facet.range.map(|r| r.0),
        greatest: facet.range.map(|r| r.1),
        values: facet
            .values
            .into_iter()
            .map(|(value, count)| FacetValue { filter: Facet::filter(&facet.name, &value), value, count })
            .collect(),
        name: facet.name,
    };
    Ok(Json(Facets { facets: facets.into_iter().map(view).collect() }))
}

/// Usage of the codebooks.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Codebooks {
    documents: usize,
    /// Number of documents per codeword, one list per codebook.
    usage: Vec<Vec<u64>>,
    /// Entropy of each codebook in bits, at most log2 of the number of codewords.
    entropy: Vec<f64>,
}

/// Get the usage of the codebooks
#[utoipa::path(get, path = "/v1/indexes/{index}/codebooks", tag = "insight", operation_id = "getCodebooks",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "Number of documents per codeword", body = Codebooks), Refusals))]
pub async fn codebooks(
    _: MayRead,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
) -> Answer<Json<Codebooks>> {
    let index = hosted.index();
    let usage =
        super::reading(&server, move |cancel| index.usage(cancel)).await?.map_err(Problem::of(Code::BadQuery))?;
    let documents: u64 = usage.first().map_or(0, |counts| counts.iter().sum());
    let entropy = entropy(&usage);
    Ok(Json(Codebooks { documents: documents as usize, usage, entropy }))
}

#[derive(Deserialize)]
pub struct CodewordPath {
    codebook: usize,
    codeword: usize,
}

/// Options of a codeword.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CodewordOptions {
    /// Maximum number of documents.
    #[param(minimum = 1, maximum = 1000, default = 20)]
    documents: Option<usize>,
}

/// A document of a codeword.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Member {
    id: Id,
    /// Text, if the index stores texts.
    text: Option<String>,
    labels: Vec<String>,
    attributes: Attributes,
}

/// The documents of a codeword.
#[derive(Debug, Serialize, ToSchema)]
pub struct Codeword {
    /// Documents, the most typical of the codeword first.
    documents: Vec<Member>,
    /// Terms that characterise them, most distinctive first.
    marks: Vec<Mark>,
}

/// A term that characterises a codeword.
#[derive(Debug, Serialize, ToSchema)]
pub struct Mark {
    term: String,
    /// Share of the codeword's documents that have it, in a sample.
    inside: f64,
    /// Share of the other documents that have it, in a sample.
    outside: f64,
}

/// Get the documents and terms of a codeword
#[utoipa::path(get, path = "/v1/indexes/{index}/codebooks/{codebook}/{codeword}", tag = "insight", operation_id = "getCodeword",
    params(("index" = String, Path, description = "Name of the index"), ("codebook" = usize, Path, description = "Number of the codebook, from 0", maximum = 1023),
        ("codeword" = usize, Path, description = "Number of the codeword, from 0", maximum = 255), CodewordOptions),
    responses((status = 200, description = "Documents and terms", body = Codeword), Refusals))]
pub async fn codeword(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    PathPart(CodewordPath { codebook, codeword }): PathPart<CodewordPath>,
    QueryString(options): QueryString<CodewordOptions>,
) -> Answer<Json<Codeword>> {
    let max_documents = options.documents.unwrap_or(DEFAULT_DOCUMENTS);
    if !(1..=1000).contains(&max_documents) {
        return Err(Problem::bad_request(format!("documents is {max_documents}; give 1 to 1000")));
    }
    let index = hosted.index();
    let shape = index.model().shape();
    if codebook >= shape.num_codebooks() || codeword >= shape.codebook_size() {
        return Err(Problem::not_found(
            Code::BadQuery,
            format!(
                "this index has codebooks 0 to {} with codewords 0 to {}",
                shape.num_codebooks() - 1,
                shape.codebook_size() - 1
            ),
        ));
    }
    let work = move |cancel: &Cancel| -> engine::Result<Codeword> {
        let found = CodewordDocuments::of(&index, (codebook, codeword), access.filter(), max_documents, cancel)?;
        let member = |hit: Hit| Member {
            id: Id(hit.id),
            text: hit.text,
            labels: hit.labels,
            attributes: Attributes::of(hit.attributes),
        };
        let mark = |topics::Mark { term, inside, outside }| Mark { term, inside, outside };
        Ok(Codeword {
            documents: found.documents.into_iter().map(member).collect(),
            marks: found.marks.into_iter().map(mark).collect(),
        })
    };
    super::reading(&server, work).await?.map(Json).map_err(Problem::of(Code::BadQuery))
}

/// How the model of an index was trained.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Training {
    method: String,
    #[schema(value_type = Object)]
    options: serde_json::Value,
    /// Curves, scores and times of the training; `null` for an untrained model.
    #[schema(value_type = Option<Object>)]
    metrics: Option<serde_json::Value>,
}

/// Get the training of the model
#[utoipa::path(get, path = "/v1/indexes/{index}/training", tag = "insight", operation_id = "getTraining",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "Options and metrics of the training", body = Training), Refusals))]
pub async fn training(_: MayRead, WholeIndex(hosted): WholeIndex) -> Answer<Json<Training>> {
    let index = hosted.index();
    let path = index.dir().join("model").join("metrics.json");
    let metrics = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => serde_json::Value::Null,
        Err(e) => return Err(Problem::of(Code::Storage)(Error::io(path)(e))),
    };
    let config = &index.model().config;
    let object = |value: serde_json::Value| if value.is_object() { value } else { serde_json::json!({}) };
    Ok(Json(Training {
        method: config.method.clone(),
        options: object(config.training.clone()),
        metrics: Some(metrics).filter(serde_json::Value::is_object),
    }))
}
