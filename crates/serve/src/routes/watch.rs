//! Routes of saved queries: save, list, remove, and the new documents that match.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::NoProgress;
use engine::saved::{self, MatchRequest, SavedQuery, Start, Threshold};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::Refusals;
use super::vector::Vector;
use crate::extract::{Body, MayRead, MayWrite, NamedIndex, NoBody, PathPart, QueryString};
use crate::hosted::Hosted;
use crate::id::Id;
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::server::Server;

/// Matches of one answer at most.
const MAX_MATCHES: usize = 10_000;

/// A query to save: a text or a vector with a threshold, a filter, or both.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSavedQuery {
    /// Text. It is encoded once, now.
    #[schema(min_length = 1, max_length = 65536, example = "strikes at ports")]
    text: Option<String>,
    /// Embedding of the index's encoder, instead of a text.
    vector: Option<Vector>,
    /// Filter that a document must pass, as in a query.
    #[schema(example = "places:japan")]
    filter: Option<String>,
    /// Least cosine of the query and the stored vector of a document. The index must store rerank vectors.
    #[schema(minimum = -1.0, maximum = 1.0, example = 0.5)]
    cosine: Option<f32>,
    /// Greatest distance of a document's code.
    #[schema(minimum = 0.0)]
    distance: Option<f32>,
}

impl NewSavedQuery {
    fn checked(self, name: String) -> Answer<SavedQuery> {
        let threshold = Threshold::of(self.cosine, self.distance).map_err(Problem::of(Code::BadQuery))?;
        if self.text.is_some() && self.vector.is_some() {
            return Err(Problem::refused(Code::BadQuery, "give either a text or a vector"));
        }
        let vector = self.vector.map(|Vector(values)| values);
        let query = SavedQuery { name, text: self.text, filter: self.filter, threshold, vector, since: 0 };
        query.validate().map_err(|error| Problem::refused(Code::BadQuery, error.to_string()))?;
        Ok(query)
    }
}

/// A saved query.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SavedQueryView {
    name: String,
    /// Text; `null` for a vector, and for a filter alone.
    text: Option<String>,
    filter: Option<String>,
    /// Least cosine of a match.
    cosine: Option<f32>,
    /// Greatest distance of a match.
    distance: Option<f32>,
    /// Documents at this position in the order of insertion, and later ones, are new to it.
    since: u64,
}

impl From<SavedQuery> for SavedQueryView {
    fn from(query: SavedQuery) -> SavedQueryView {
        let (cosine, distance) = query.limits();
        let SavedQuery { name, text, filter, since, .. } = query;
        SavedQueryView { name, text, filter, cosine, distance, since }
    }
}

/// The saved queries of an index.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SavedQueryList {
    /// Queries, by name.
    queries: Vec<SavedQueryView>,
}

/// List saved queries
#[utoipa::path(get, path = "/v1/indexes/{index}/watch", tag = "watch", operation_id = "listSavedQueries",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "The saved queries", body = SavedQueryList), Refusals))]
pub async fn list(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
) -> Answer<Json<SavedQueryList>> {
    let queries = super::reading(&server, move |_| saved::list(&hosted.index())).await?;
    let queries = queries.map_err(Problem::of(Code::BadQuery))?;
    let names = Names::of(&access);
    let own = queries.into_iter().filter_map(|query| Some(SavedQuery { name: names.told(&query.name)?, ..query }));
    Ok(Json(SavedQueryList { queries: own.map(SavedQueryView::from).collect() }))
}

/// The names of the saved queries that exist for a caller. Those of keys with one filter are stored under a prefix of that
/// filter, so that keys with another filter neither see nor replace them.
struct Names {
    prefix: Option<String>,
}

impl Names {
    fn of(access: &Access) -> Names {
        let of = |filter: &str| format!("f{}.", &hex::encode(Sha256::digest(filter.as_bytes()))[..16]);
        Names { prefix: access.filter().map(of) }
    }

    fn stored(&self, name: &str) -> String {
        format!("{}{name}", self.prefix.as_deref().unwrap_or_default())
    }

    /// The name that the caller gave; `None` for a query that does not exist for him.
    fn told(&self, stored: &str) -> Option<String> {
        stored.strip_prefix(self.prefix.as_deref().unwrap_or_default()).map(str::to_owned)
    }
}

#[derive(Deserialize)]
pub struct QueryPath {
    name: String,
}

/// Save a query
///
/// The query lies with the index, encoded. Documents that are added from now on, and pass its filter and its threshold, are
/// its matches: `GET /v1/indexes/{index}/matches` tells them. A query with the same name is replaced and begins anew.
#[utoipa::path(put, path = "/v1/indexes/{index}/watch/{name}", tag = "watch", operation_id = "saveQuery",
    params(("index" = String, Path, description = "Name of the index"),
        ("name" = String, Path, description = "Name of the query", min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]*$")),
    request_body = NewSavedQuery, responses((status = 200, description = "The query is on disk", body = SavedQueryView), Refusals))]
pub async fn save(
    _: MayWrite,
    access: Access,
    NamedIndex(hosted): NamedIndex,
    PathPart(QueryPath { name }): PathPart<QueryPath>,
    Body(body): Body<NewSavedQuery>,
) -> Answer<Json<SavedQueryView>> {
    let names = Names::of(&access);
    let query = body.checked(names.stored(&name))?;
    let saved = exclusive(hosted, move |writer| {
        let searcher = writer.searcher();
        saved::save(&searcher, writer.writer()?, query, &NoProgress)
    });
    let (query, _) = saved.await?;
    Ok(Json(SavedQuery { name, ..query }.into()))
}

/// Remove a saved query
#[utoipa::path(delete, path = "/v1/indexes/{index}/watch/{name}", tag = "watch", operation_id = "removeSavedQuery",
    params(("index" = String, Path, description = "Name of the index"), ("name" = String, Path, description = "Name of the query")),
    responses((status = 204, description = "The query is removed"), Refusals))]
pub async fn remove(
    _: MayWrite,
    access: Access,
    _: NoBody,
    NamedIndex(hosted): NamedIndex,
    PathPart(QueryPath { name }): PathPart<QueryPath>,
) -> Answer<StatusCode> {
    let own = Names::of(&access).stored(&name);
    let removed = exclusive(hosted, move |writer| {
        let index = writer.index();
        saved::remove(writer.writer()?, &index, &own)
    });
    if removed.await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    let shown: String = name.chars().take(80).collect();
    Err(Problem::not_found(Code::UnknownSavedQuery, format!("no saved query of this index is named {shown}")))
}

/// Runs work between two commits: the writer's lock keeps other programs from saving meanwhile.
async fn exclusive<T: Send + 'static>(
    hosted: Arc<Hosted>,
    work: impl FnOnce(&mut crate::writes::WriterThread) -> engine::Result<T> + Send + 'static,
) -> Answer<T> {
    let done = super::blocking(move || hosted.writes.run_exclusive_blocking(work)).await??;
    done.map_err(Problem::of(Code::BadQuery))
}

/// Which matches to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MatchOptions {
    /// `next` of the answer before. Default: all matches since each query was saved.
    #[param(min_length = 1, max_length = 100)]
    after: Option<String>,
    /// About how many matches; all of a document are told together.
    #[param(minimum = 1, maximum = 10000, default = 1000)]
    limit: Option<usize>,
    /// Only matches of this query.
    #[param(min_length = 1, max_length = 100)]
    name: Option<String>,
    /// Also documents that were there before a query was saved, to try it.
    #[serde(default)]
    all: bool,
}

/// New documents that match saved queries.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MatchList {
    /// In the order of insertion of their documents, then of the names of queries.
    matches: Vec<MatchView>,
    /// Where the next request begins.
    next: String,
    /// Whether there are more matches now.
    more: bool,
}

/// A document that matches a saved query.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MatchView {
    /// Name of the query.
    query: String,
    id: Id,
    /// Cosine of the stored vector; of the best chunk of a long text. `null` for a filter alone, and without stored vectors.
    cosine: Option<f32>,
    /// Distance of the code; of the nearest chunk. `null` for a filter alone.
    distance: Option<f32>,
}

/// List matches of saved queries
///
/// Compares the documents that were added since the place `after` with every saved query. Each answer has the place where the
/// next one begins, so a client that stores it misses no document, also over restarts. A document that is updated is new. After
/// a restore, a migration or a training the place is refused; ask without one.
#[utoipa::path(get, path = "/v1/indexes/{index}/matches", tag = "watch", operation_id = "listMatches",
    params(("index" = String, Path, description = "Name of the index"), MatchOptions),
    responses((status = 200, description = "The matches", body = MatchList), Refusals))]
pub async fn matches(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    QueryString(options): QueryString<MatchOptions>,
) -> Answer<Json<MatchList>> {
    let defaults = MatchRequest::default();
    let limit = options.limit.unwrap_or(defaults.limit);
    if !(1..=MAX_MATCHES).contains(&limit) {
        return Err(Problem::bad_request(format!("limit is {limit}; give 1 to {MAX_MATCHES}")));
    }
    let start = match (options.after, options.all) {
        (Some(_), true) => return Err(Problem::refused(Code::BadQuery, "give either after or all")),
        (Some(place), false) => Start::After(
            place.parse().map_err(|error: engine::Error| Problem::refused(Code::BadQuery, error.to_string()))?,
        ),
        (None, true) => Start::All,
        (None, false) => Start::Saved,
    };
    let names = Names::of(&access);
    let request = MatchRequest {
        start,
        limit,
        name: options.name.map(|name| names.stored(&name)),
        prefix: names.prefix.clone(),
        within: access.filter().map(str::to_owned),
    };
    let found = super::reading(&server, move |cancel| saved::matches(&hosted.searcher(), &request, cancel)).await?;
    let found = found.map_err(Problem::of(Code::BadQuery))?;
    let view = |one: saved::Match| {
        Some(MatchView { query: names.told(&one.query)?, id: Id(one.id), cosine: one.cosine, distance: one.distance })
    };
    let matches = found.matches.into_iter().filter_map(view).collect();
    Ok(Json(MatchList { matches, next: found.next.to_string(), more: found.more }))
}
