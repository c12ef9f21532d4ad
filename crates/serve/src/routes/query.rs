//! Routes of search.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use engine::corpus::DocId;
use engine::encoder::QueryEncoder;
use engine::index::{Membership, Subset};
use engine::model::Distance;
use engine::query::{self as queries, Group, Like, MAX_HITS, Rerank, SearchConfig};
use engine::topics::CodewordTerms;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use super::documents::{Attributes, check_vector};
use super::map::{Area, within};
use super::vector::{Vector, VectorBytes};
use crate::bounds::{Cancel, too_long};
use crate::config::ServeConfig;
use crate::extract::{Body, MayRead, NamedIndex, Octets, QueryString};
use crate::hosted::Hosted;
use crate::id::Id;
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::queries::Coming;
use crate::schema;
use crate::server::Server;
use crate::whole::some_whole;

/// An example of what to find: one of `text`, `vector` and `document`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Example {
    text: Option<String>,
    /// Embedding of the index's encoder.
    vector: Option<Vector>,
    /// Id of a document of the index.
    document: Option<Id>,
    /// Weight against the other examples. Default: 1.
    #[schema(minimum = 0.000001, maximum = 1000000.0)]
    weight: Option<f64>,
}

const MAX_RADIUS: f64 = 1e30;

/// A query: one of `text`, `vector` and `document`, or several in `like`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Search {
    /// Find documents like this text.
    #[schema(example = "oil prices and the economy")]
    text: Option<String>,
    /// Find documents like this embedding of the index's encoder.
    vector: Option<Vector>,
    /// Find documents like the one with this id, which is not among the hits.
    document: Option<Id>,
    /// Find documents like several examples together.
    #[schema(min_items = 1, max_items = 100)]
    #[serde(deserialize_with = "crate::extract::some_objects")]
    like: Option<Vec<Example>>,
    /// Keywords of hybrid search and snippets. Default: the query texts.
    keywords: Option<String>,
    /// Number of hits.
    #[schema(minimum = 1, maximum = 10000, default = 10)]
    #[serde(deserialize_with = "some_whole")]
    k: Option<usize>,
    /// Only documents that match this filter: `places:japan AND year:[1987 TO 1988]`.
    filter: Option<String>,
    /// Only documents inside this area of the map.
    area: Option<Area>,
    /// Only documents whose code has at most this distance.
    #[schema(minimum = 0.0, maximum = 1e30)]
    radius: Option<f64>,
    /// Cursor: `next` of an earlier answer to the same query.
    after: Option<String>,
    /// Weight of the keywords (BM25), from 0 (only codes) to 1 (only keywords).
    #[schema(minimum = 0.0, maximum = 1.0, default = 0.0)]
    hybrid: Option<f64>,
    /// From the particular document (0) to everything of its kind (1), for an index whose model knows kinds. Above 0 nothing is
    /// re-ranked unless `rerank` says so.
    #[schema(minimum = 0.0, maximum = 1.0, default = 0.0)]
    kind: Option<f64>,
    /// How many candidates are re-ranked by the cosine of their rerank vectors. Default: `auto`.
    #[schema(value_type = Option<schema::RerankOption>)]
    rerank: Option<Rerank>,
    /// In an index with chunks, what gives a document its place: its `best` chunk, or the `sum` of its best three. Default:
    /// `best`.
    #[schema(value_type = Option<schema::GroupName>)]
    group: Option<Group>,
    /// Encoder that reads the texts: `full` (that of the documents), or `fast` (its copy in microseconds, where the index has
    /// one). Default: `full`.
    #[schema(value_type = Option<schema::QueryEncoderName>)]
    query_encoder: Option<QueryEncoder>,
    /// Distance of codes. Default: that of the model.
    #[schema(value_type = Option<schema::Distance>)]
    distance: Option<Distance>,
    /// Whether hits have text, labels and attributes.
    #[schema(default = true)]
    documents: Option<bool>,
    /// Whether hits have the part of their text that matches the keywords best.
    #[schema(default = false)]
    snippets: Option<bool>,
    /// Whether the answer has an explanation, and hits have their distance codebook by codebook.
    #[schema(default = false)]
    explain: Option<bool>,
}

impl Search {
    /// Converts to the engine's types and validates, for what exists for the caller.
    fn convert(
        self,
        hosted: &Hosted,
        access: &Access,
        limits: &ServeConfig,
        within: Option<Subset>,
    ) -> Answer<(queries::Query, SearchConfig)> {
        let one = Example { text: self.text, vector: self.vector, document: self.document, weight: None };
        let given = one.text.is_some() || one.vector.is_some() || one.document.is_some();
        let examples = match (given, self.like) {
            (true, None) => vec![one],
            (false, Some(like)) => like,
            (false, None) => {
                return Err(Problem::refused(
                    Code::BadQuery,
                    "the query is empty; give text, vector, document or like",
                ));
            }
            (true, Some(_)) => {
                return Err(Problem::refused(
                    Code::BadQuery,
                    "give one of text, vector and document, or several in like, not both",
                ));
            }
        };
        if !(1..=100).contains(&examples.len()) {
            return Err(Problem::bad_request(format!("like has {} examples; give 1 to 100", examples.len())));
        }
        let width = hosted.index().model().inputs();
        let like: Vec<(Like, f32)> =
            examples.into_iter().map(|example| example.convert(width, limits.max_text_bytes)).collect::<Answer<_>>()?;
        expect_inside(hosted, access, &like)?;
        // Checked in double precision: rounding could move a value that is just out of range into it.
        let bounded = [("radius", self.radius, MAX_RADIUS), ("hybrid", self.hybrid, 1.0), ("kind", self.kind, 1.0)];
        for (name, value, max) in bounded {
            if let Some(value) = value.filter(|value| !(0.0..=max).contains(value)) {
                return Err(Problem::bad_request(format!("{name} is {value}; give a number from 0 to {max}")));
            }
        }
        let defaults = SearchConfig::default();
        let after = match &self.after {
            Some(text) => Some(text.parse().map_err(Problem::of(Code::BadQuery))?),
            None => None,
        };
        let config = SearchConfig {
            k: self.k.unwrap_or(defaults.k),
            filter: access.narrowed(self.filter),
            within,
            radius: self.radius.map(|radius| radius as f32),
            after,
            hybrid: self.hybrid.map_or(defaults.hybrid, |hybrid| hybrid as f32),
            kind: self.kind.map_or(defaults.kind, |kind| kind as f32),
            rerank: self.rerank.unwrap_or(defaults.rerank),
            group: self.group.unwrap_or(defaults.group),
            distance: self.distance,
            documents: self.documents.unwrap_or(defaults.documents),
            snippets: self.snippets.unwrap_or(defaults.snippets),
            max_bytes: Some(limits.max_answer_bytes),
            explain: self.explain.unwrap_or(defaults.explain),
        };
        // A value out of its documented range does not have the documented form.
        config.validate().map_err(|error| Problem::bad_option(&error))?;
        let encoder = self.query_encoder.unwrap_or_default();
        Ok((queries::Query { like, keywords: self.keywords, encoder }, config))
    }
}

/// Refuses examples that are documents which do not exist for the caller.
fn expect_inside(hosted: &Hosted, access: &Access, like: &[(Like, f32)]) -> Answer<()> {
    let Some(filter) = access.filter() else { return Ok(()) };
    let ids = like.iter().filter_map(|(like, _)| if let Like::Document(id) = like { Some(id.clone()) } else { None });
    let ids: Vec<DocId> = ids.collect();
    if ids.is_empty() {
        return Ok(());
    }
    let known = hosted.index().memberships(&ids, filter).map_err(Problem::of(Code::BadQuery))?;
    match known.iter().position(|known| *known != Membership::Inside) {
        Some(place) => {
            let text = format!("there is no document {} in this index", ids[place]);
            Err(Problem::refused(Code::BadQuery, text))
        }
        None => Ok(()),
    }
}

impl Example {
    fn convert(self, width: usize, max_text_bytes: usize) -> Answer<(Like, f32)> {
        let weight = self.weight.unwrap_or(1.0);
        if !(1e-6..=1e6).contains(&weight) {
            return Err(Problem::bad_request(format!("weight is {weight}; give a number from 0.000001 to 1000000")));
        }
        let like = match (self.text, self.vector, self.document) {
            (Some(text), None, None) => {
                check_text(&text, max_text_bytes)?;
                Like::Text(text)
            }
            (None, Some(Vector(vector)), None) => {
                check_vector(&vector, width)?;
                Like::Vector(vector)
            }
            (None, None, Some(Id(id))) => Like::Document(id),
            _ => {
                let text = "an example has one of text, vector and document";
                return Err(Problem::refused(Code::BadQuery, text));
            }
        };
        Ok((like, weight as f32))
    }
}

/// Refuses a text that is too long.
pub fn check_text(text: &str, max_bytes: usize) -> Answer<()> {
    if text.len() > max_bytes {
        return Err(Problem::new(
            axum::http::StatusCode::PAYLOAD_TOO_LARGE,
            Code::TooLarge,
            format!("a text has {} bytes, more than {max_bytes}; shorten it", text.len()),
        ));
    }
    Ok(())
}

/// A part of a text with the matching keywords marked.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Snippet {
    /// The part of the text.
    text: String,
    /// Start and end of every match in it, in characters (Unicode scalar values).
    marks: Vec<[usize; 2]>,
}

/// The chunk of a document by which it was found.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Chunk {
    /// Which of the document's chunks, counted from 0.
    number: u32,
    /// How many chunks the document has.
    of: u32,
    /// Where it begins in the document's text, in bytes of UTF-8.
    start: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Hit {
    id: Id,
    /// Distance of its code to the query.
    distance: f32,
    /// Score that hits are ordered by, falling: the cosine after re-ranking, minus the distance by codes alone, or the fused
    /// score of hybrid search. Hits behind the re-ranked candidates have -1 minus the distance.
    score: f32,
    /// Text, if the index stores texts. In an index with chunks it is that of the chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The chunk by which the document was found, in an index with chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<Chunk>,
    labels: Vec<String>,
    attributes: Attributes,
    /// The part of its text that matches best, with `snippets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    snippet: Option<Snippet>,
    /// Distance codebook by codebook, with `explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    codebook_distances: Option<Vec<f32>>,
    /// Codewords that it has in common with the query, and what they stand for, with `explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<Vec<Shared>>,
}

/// A codeword that a hit has in common with its query.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Shared {
    /// Number of the codebook, from 0.
    codebook: usize,
    /// Number of the codeword, from 0.
    codeword: u8,
    /// Terms that characterise the documents of the codeword, most distinctive first.
    terms: Vec<String>,
}

/// The hits of a query, best first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// Hits of this page.
    hits: Vec<Hit>,
    /// Cursor of the next page, for `after`; `null` on the last page.
    next: Option<String>,
    /// How the query was executed, with `explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    explanation: Option<serde_json::Value>,
    /// Time of each stage in milliseconds, for the whole batch of queries.
    milliseconds: std::collections::BTreeMap<String, f64>,
}

impl Found {
    /// The answer as far as the caller may know it. `terms` are given for an explained answer.
    fn new(answer: queries::Answer, access: &Access, terms: Option<&CodewordTerms>) -> Found {
        let asked = answer.explanation.as_ref().map(|explanation| explanation.codewords.clone());
        let shared = |hit: &queries::Hit| {
            let (codewords, asked) = (hit.codewords.as_ref()?, asked.as_ref()?);
            let shared = terms?.shared(codewords, asked).into_iter();
            Some(shared.map(|s| Shared { codebook: s.codebook, codeword: s.codeword, terms: s.terms }).collect())
        };
        let hit = |hit: queries::Hit| Hit {
            shared: shared(&hit),
            id: Id(hit.id),
            distance: hit.distance,
            score: hit.score,
            text: hit.text,
            chunk: hit.chunk.map(|chunk| Chunk { number: chunk.number, of: chunk.of, start: chunk.start }),
            labels: hit.labels,
            attributes: Attributes::of(hit.attributes),
            snippet: hit.snippet.map(|snippet| Snippet {
                marks: snippet.marks_in_chars().into_iter().map(|mark| [mark.start, mark.end]).collect(),
                text: snippet.text,
            }),
            codebook_distances: hit.codebook_distances,
        };
        let stages = answer.timings.stages().into_iter();
        Found {
            hits: answer.hits.into_iter().map(hit).collect(),
            next: answer.next.map(|cursor| cursor.to_string()),
            explanation: answer.explanation.map(|mut explanation| {
                if access.filter().is_some() {
                    // Segments have numbers of all documents.
                    explanation.segments.clear();
                }
                serde_json::to_value(explanation).expect("an explanation has a JSON form")
            }),
            milliseconds: stages.map(|(stage, time)| (stage.to_owned(), time.as_secs_f64() * 1e3)).collect(),
        }
    }
}

/// Find documents
///
/// By a text, a vector, a document of the index, or several of them, with filters, pages, keywords and re-ranking.
#[utoipa::path(post, path = "/v1/indexes/{index}/query", tag = "search", operation_id = "query",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Search, responses((status = 200, description = "The hits", body = Found), Refusals))]
pub async fn query(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    request: Request,
) -> Answer<Json<Found>> {
    // Announced before the body is read, so that a batch can wait for it.
    let coming = hosted.queries.coming();
    let Body(search) = Body::<Search>::from_request(request, &server).await?;
    answer(search, &server, &access, &hosted, coming).await
}

async fn answer(
    mut search: Search,
    server: &Server,
    access: &Access,
    hosted: &Arc<Hosted>,
    coming: Coming,
) -> Answer<Json<Found>> {
    let within = within(server, hosted, search.area.take()).await?;
    let (query, config) = search.convert(hosted, access, &server.settings.config(), within)?;
    take_queries(server, access, 1)?;
    let explain = config.explain;
    let answer = hosted.queries.ask(vec![query], config, coming).await?.pop();
    let terms = codeword_terms_for(server, access, hosted, explain).await?;
    answer
        .map(|answer| Json(Found::new(answer, access, terms.as_deref())))
        .ok_or_else(|| Problem::internal("the query has no answer"))
}

/// Counts queries of a key, or refuses them.
pub fn take_queries(server: &Server, access: &Access, queries: usize) -> Answer<()> {
    access.take_queries(queries).inspect_err(|_| server.metrics.rejected("quota"))
}

/// What the codewords stand for, for an explained answer. They are words of all documents: a key with a filter is not told.
async fn codeword_terms_for(
    server: &Server,
    access: &Access,
    hosted: &Arc<Hosted>,
    explain: bool,
) -> Answer<Option<Arc<CodewordTerms>>> {
    match explain && access.filter().is_none() {
        true => codeword_terms(server, hosted).await.map(Some),
        false => Ok(None),
    }
}

/// What the codewords of an index stand for.
async fn codeword_terms(server: &Server, hosted: &Arc<Hosted>) -> Answer<Arc<CodewordTerms>> {
    let index = hosted.index();
    let documents = index.len();
    if let Some(terms) = hosted.codeword_terms.of(documents) {
        return Ok(terms);
    }
    // One request computes it, the others wait for it.
    let _alone = hosted.finding_terms.lock().await;
    if let Some(terms) = hosted.codeword_terms.of(documents) {
        return Ok(terms);
    }
    let hosted = hosted.clone();
    let work = move |cancel: &Cancel| -> engine::Result<Arc<CodewordTerms>> {
        let terms = CodewordTerms::of(&index, CodewordTerms::TERMS, cancel)?;
        Ok(hosted.codeword_terms.set(documents, terms))
    };
    super::reading(server, work).await?.map_err(Problem::of(Code::BadQuery))
}

/// Options of a query by the bytes of a vector.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VectorOptions {
    /// Number of hits.
    #[param(minimum = 1, maximum = 10000, default = 10)]
    k: Option<usize>,
    /// Only documents that match this filter.
    filter: Option<String>,
    /// Whether hits have text, labels and attributes.
    #[param(default = true)]
    documents: Option<bool>,
}

/// Find documents by the bytes of a vector
///
/// The body is an embedding of the index's encoder as little-endian 32-bit floats. It is a third of the same vector in JSON and
/// needs no parsing. All other options have their defaults.
#[utoipa::path(post, path = "/v1/indexes/{index}/query/vector", tag = "search", operation_id = "queryVector",
    params(("index" = String, Path, description = "Name of the index"), VectorOptions),
    request_body(content = VectorBytes, content_type = "application/octet-stream"),
    responses((status = 200, description = "The hits", body = Found), Refusals))]
pub async fn vector(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    QueryString(options): QueryString<VectorOptions>,
    request: Request,
) -> Answer<Json<Found>> {
    let coming = hosted.queries.coming();
    let Octets(bytes) = Octets::from_request(request, &server).await?;
    let vector = Vector::of_bytes(&bytes).map_err(|problem| {
        Problem::refused(Code::BadVector, format!("the body has {problem}; send little-endian 32-bit floats"))
    })?;
    let VectorOptions { k, filter, documents } = options;
    let search = Search { vector: Some(vector), k, filter, documents, ..Search::default() };
    answer(search, &server, &access, &hosted, coming).await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Queries, each with its own options.
    #[schema(min_items = 1, max_items = 1000)]
    #[serde(deserialize_with = "crate::extract::objects")]
    queries: Vec<Search>,
}

/// Answers to several queries.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchFound {
    /// Answers in the order of the queries.
    answers: Vec<Found>,
}

/// Find documents for several queries
///
/// The queries are encoded together, and queries with equal options share a scan. If one query fails, all fail.
#[utoipa::path(post, path = "/v1/indexes/{index}/query/batch", tag = "search", operation_id = "queryBatch",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Batch, responses((status = 200, description = "The hits of each", body = BatchFound), Refusals))]
pub async fn batch(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    Body(batch): Body<Batch>,
) -> Answer<Json<BatchFound>> {
    let limits = server.settings.config();
    let max_queries = limits.max_queries;
    let count = batch.queries.len();
    if !(1..=max_queries).contains(&count) {
        return Err(Problem::bad_request(format!("queries has {count} entries; send 1 to {max_queries}")));
    }
    let mut converted = Vec::with_capacity(count);
    for mut search in batch.queries {
        let within = within(&server, &hosted, search.area.take()).await?;
        converted.push(search.convert(&hosted, &access, &limits, within)?);
    }
    let total_hits: usize = converted.iter().map(|(_, config)| config.k).sum();
    if total_hits > 10 * MAX_HITS {
        return Err(Problem::refused(
            Code::BadQuery,
            format!("the queries ask for {total_hits} hits together; ask for at most {}", 10 * MAX_HITS),
        ));
    }
    take_queries(&server, &access, count)?;
    // Adjacent queries with equal options are one request to the queue.
    let mut groups: Vec<(SearchConfig, Vec<queries::Query>)> = Vec::new();
    for (query, config) in converted {
        match groups.last_mut() {
            // No larger than a batch of the queue, so that other callers are answered in between.
            Some((last, queries))
                if *last == config && config.after.is_none() && queries.len() < server.config.batch =>
            {
                queries.push(query);
            }
            _ => groups.push((config, vec![query])),
        }
    }
    let ask = |(config, queries)| hosted.queries.ask(queries, config, hosted.queries.coming());
    let requests: Vec<_> = groups.into_iter().map(ask).collect();
    let mut answers: Vec<queries::Answer> = Vec::with_capacity(count);
    let mut bytes = 0;
    let mut all = futures_util::stream::iter(requests).buffered(count);
    while let Some(some) = all.next().await {
        let some = some?;
        bytes += some.iter().flat_map(|answer| &answer.hits).map(queries::Hit::bytes).sum::<usize>();
        // Those that are not answered yet are cancelled.
        if bytes > limits.max_answer_bytes {
            return Err(too_long(limits.max_answer_bytes));
        }
        answers.extend(some);
    }
    let explain = answers.iter().any(|answer| answer.explanation.is_some());
    let terms = codeword_terms_for(&server, &access, &hosted, explain).await?;
    let found = |answer| Found::new(answer, &access, terms.as_deref());
    Ok(Json(BatchFound { answers: answers.into_iter().map(found).collect() }))
}
