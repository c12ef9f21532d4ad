//! Routes of the map of an index: make it, its points, and what is where on it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use engine::Progress;
use engine::index::Subset;
use engine::map::{self, MapConfig, MapLabel, MapTopic, NO_TOPIC};
use engine::topics;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Refusals;
use super::jobs::{Started, bad_option, start};
use super::vector::VectorBytes;
use crate::bounds::Cancel;
use crate::extract::{Body, MayAdmin, MayRead, OptionalBody, QueryString, WholeIndex};
use crate::hosted::Hosted;
use crate::id::Id;
use crate::jobs::JobView;
use crate::mapped::Mapped;
use crate::problem::{Answer, Code, Problem};
use crate::server::Server;
use crate::whole::{Whole, some_seed, some_whole};

/// The last map. The first one to ask reads its file.
async fn last_map(hosted: &Arc<Hosted>) -> Answer<Option<Arc<Mapped>>> {
    if let Some(known) = hosted.map.known() {
        return Ok(known);
    }
    let hosted = hosted.clone();
    super::blocking(move || hosted.map.get(|| hosted.index())).await
}

async fn mapped(hosted: &Arc<Hosted>) -> Answer<Arc<Mapped>> {
    last_map(hosted).await?.ok_or_else(|| {
        let name = hosted.name();
        let text = format!("index \"{name}\" has no map yet; make one with POST /v1/indexes/{name}/map");
        Problem::conflict(Code::Unsupported, text)
    })
}

/// Options of a map.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MakeMap {
    /// Number of topics that colour and label the map. Default: chosen by how well the clusters are told apart.
    #[schema(minimum = 1, maximum = 1000)]
    #[serde(deserialize_with = "some_whole")]
    topics: Option<usize>,
    /// Seed of topics and landmarks. The same seed gives the same map.
    #[schema(maximum = 1000000000, default = 1)]
    #[serde(deserialize_with = "some_seed")]
    seed: Option<u64>,
}

/// Make a map
///
/// Puts every document on a plane, similar ones near each other, in the background. The map is kept with the index until it is made
/// anew or the index gets a new model. The result of the job has the name of the map and its number of documents.
#[utoipa::path(post, path = "/v1/indexes/{index}/map", tag = "jobs", operation_id = "makeMap",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Option<MakeMap>, responses((status = 202, description = "The job is started", body = JobView), Refusals))]
pub async fn make(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
    OptionalBody(body): OptionalBody<MakeMap>,
) -> Answer<Started> {
    let config = MapConfig { topics: body.topics, seed: body.seed.unwrap_or(MapConfig::default().seed) };
    config.validate().map_err(bad_option)?;
    start("map", server, hosted, move |_, hosted, job| {
        let index = hosted.index();
        let commit = index.commit_number();
        let mapped = Mapped::new(commit, map::make(&index, &config, job)?);
        // It is served without that, too.
        if let Err(error) = map::keep(&index, &mapped.map, commit) {
            tracing::warn!(index = hosted.name(), %error, "the map is served, but cannot be kept with the index");
            job.note("the map is served, but cannot be kept with the index: the server's log says why");
        }
        let result = serde_json::json!({ "map": mapped.name(), "documents": mapped.map.len() });
        hosted.map.set(mapped);
        Ok(result)
    })
}

/// A topic of the map.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopicOfMap {
    number: usize,
    name: String,
    documents: u64,
}

/// A name on the map.
#[derive(Debug, Serialize, ToSchema)]
pub struct LabelOfMap {
    text: String,
    /// The median of the coordinates of its documents.
    x: u16,
    y: u16,
    documents: u64,
    /// It shows while the map is divided into at least so many clusters,
    from: usize,
    /// and at most so many.
    to: usize,
}

/// The last map.
#[derive(Debug, Serialize, ToSchema)]
pub struct MapAbout {
    /// Name of the map, for `area`. Equal maps have equal names.
    map: String,
    /// Number of points.
    documents: usize,
    /// Whether the index has not changed since.
    current: bool,
    /// Topics by number.
    topics: Vec<TopicOfMap>,
    /// Names of topics and of their merges.
    labels: Vec<LabelOfMap>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct MapView {
    /// `null` if no map was made since the last training.
    map: Option<MapAbout>,
}

/// Get the map of an index
#[utoipa::path(get, path = "/v1/indexes/{index}/map", tag = "insight", operation_id = "getMap",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "Topics and labels of the last map", body = MapView), Refusals))]
pub async fn show(_: MayRead, WholeIndex(hosted): WholeIndex) -> Answer<Json<MapView>> {
    let mapped = last_map(&hosted).await?;
    let topic = |t: &MapTopic| TopicOfMap { number: t.number, name: t.name.clone(), documents: t.documents };
    let label = |l: &MapLabel| LabelOfMap {
        text: l.text.clone(),
        x: l.x,
        y: l.y,
        documents: l.documents,
        from: l.from,
        to: l.to,
    };
    let about = |mapped: &Mapped| MapAbout {
        map: mapped.name(),
        documents: mapped.map.len(),
        current: mapped.commit == hosted.index().commit_number(),
        topics: mapped.map.topics.iter().map(topic).collect(),
        labels: mapped.map.labels.iter().map(label).collect(),
    };
    Ok(Json(MapView { map: mapped.as_deref().map(about) }))
}

/// Get the points of a map
///
/// Bytes, little-endian: `MICPQMAP`, the version 1 and the number of points as `u32`, the name of the map as `u64`, then all `x`,
/// all `y` and all topics as `u16`; 65535 is no topic. The first points are an even sample of all.
#[utoipa::path(get, path = "/v1/indexes/{index}/map/points", tag = "insight", operation_id = "getMapPoints",
    params(("index" = String, Path, description = "Name of the index")),
    responses(
        (status = 200, description = "The points", body = VectorBytes, content_type = "application/octet-stream"),
        (status = 304, description = "The map is that of If-None-Match"), Refusals))]
pub async fn points(_: MayRead, WholeIndex(hosted): WholeIndex, headers: HeaderMap) -> Answer<Response> {
    let mapped = mapped(&hosted).await?;
    let tag = format!("\"{}\"", mapped.name());
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if known.is_some_and(|known| known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag)) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CACHE_CONTROL, "private, no-cache".to_owned()),
        (header::ETAG, tag),
    ];
    Ok((headers, mapped.bytes.clone()).into_response())
}

/// Values that are told apart, if no number is given.
pub const DEFAULT_VALUES: usize = 250;

/// Options of the values of an attribute.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ValueOptions {
    /// Name of the attribute; `labels` are the labels.
    attribute: String,
    /// Maximum number of values that are told apart, the most frequent ones.
    #[param(minimum = 1, maximum = 10000, default = 250)]
    values: Option<usize>,
}

/// A value of an attribute on the map.
#[derive(Debug, Serialize, ToSchema)]
pub struct ValueOfMap {
    value: String,
    /// Number of documents of the index that have it.
    documents: u64,
}

/// The values of an attribute by point.
#[derive(Debug, Serialize, ToSchema)]
pub struct ValuesOfMap {
    /// The most frequent values.
    values: Vec<ValueOfMap>,
    /// Base64 of a little-endian `u16` per point: the position of its value, 65534 for another value, 65535 for none.
    points: String,
}

/// Get the values of an attribute on a map
#[utoipa::path(get, path = "/v1/indexes/{index}/map/values", tag = "insight", operation_id = "getMapValues",
    params(("index" = String, Path, description = "Name of the index"), ValueOptions),
    responses((status = 200, description = "The values", body = ValuesOfMap), Refusals))]
pub async fn values(
    _: MayRead,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
    QueryString(options): QueryString<ValueOptions>,
) -> Answer<Json<ValuesOfMap>> {
    let most = options.values.unwrap_or(DEFAULT_VALUES);
    if !(1..=10_000).contains(&most) {
        return Err(Problem::bad_request(format!("values is {most}; give 1 to 10000")));
    }
    let mapped = mapped(&hosted).await?;
    let index = hosted.index();
    let work = move |cancel: &Cancel| mapped.map.values(&index, &options.attribute, most, cancel);
    let found = super::reading(&server, work).await?.map_err(Problem::of(Code::BadQuery))?;
    let bytes: Vec<u8> = found.values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let value = |(value, documents)| ValueOfMap { value, documents };
    Ok(Json(ValuesOfMap {
        values: found.names.into_iter().map(value).collect(),
        points: BASE64_STANDARD.encode(bytes),
    }))
}

/// Points of a map.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PointsOfMap {
    /// Numbers of points.
    #[schema(max_items = 1000, value_type = Vec<u64>)]
    points: Vec<Whole>,
}

/// A document on the map.
#[derive(Debug, Serialize, ToSchema)]
pub struct DocumentOfMap {
    point: u32,
    id: Id,
    /// Its attribute `title`, or the beginning of its text; `null` if the index stores no texts.
    title: Option<String>,
    /// Number of its topic; `null` for an outlier.
    topic: Option<u16>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DocumentsOfMap {
    /// Documents in the order of the points; `null` where one was deleted since.
    documents: Vec<Option<DocumentOfMap>>,
}

/// Get the documents of points
#[utoipa::path(post, path = "/v1/indexes/{index}/map/documents", tag = "insight", operation_id = "getMapDocuments",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = PointsOfMap, responses((status = 200, description = "The documents", body = DocumentsOfMap), Refusals))]
pub async fn documents(
    _: MayRead,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
    Body(body): Body<PointsOfMap>,
) -> Answer<Json<DocumentsOfMap>> {
    Problem::bounded(&body.points, "points", 1000)?;
    let mapped = mapped(&hosted).await?;
    let count = mapped.map.len();
    let point = |&Whole(point): &Whole| match u32::try_from(point) {
        Ok(small) if (small as usize) < count => Ok(small),
        _ => {
            let text = format!("point {point} is not on the map, which has {count}");
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, Code::BadQuery, text))
        }
    };
    let points = body.points.iter().map(point).collect::<Answer<Vec<u32>>>()?;
    let index = hosted.index();
    let work = move |cancel: &Cancel| -> engine::Result<DocumentsOfMap> {
        let records = mapped.map.documents(&index, &points, cancel)?;
        let document = |(&point, record): (&u32, Option<engine::index::Record>)| {
            let record = record?;
            let topic = mapped.map.topic[point as usize];
            let topic = (topic != NO_TOPIC).then_some(topic);
            Some(DocumentOfMap { point, title: topics::title(&record), id: Id(record.id), topic })
        };
        Ok(DocumentsOfMap { documents: points.iter().zip(records).map(document).collect() })
    };
    super::reading(&server, work).await?.map(Json).map_err(Problem::of(Code::BadQuery))
}

/// Documents that are looked for on a map.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IdsOfMap {
    /// Ids of documents.
    #[schema(max_items = 10000)]
    ids: Vec<Id>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct PlacesOfMap {
    /// Points in the order of the ids; `null` for a document that is not on the map.
    points: Vec<Option<u32>>,
}

/// Get the points of documents
#[utoipa::path(post, path = "/v1/indexes/{index}/map/places", tag = "insight", operation_id = "getMapPlaces",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = IdsOfMap, responses((status = 200, description = "The points", body = PlacesOfMap), Refusals))]
pub async fn places(
    _: MayRead,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
    Body(body): Body<IdsOfMap>,
) -> Answer<Json<PlacesOfMap>> {
    Problem::bounded(&body.ids, "ids", 10_000)?;
    let mapped = mapped(&hosted).await?;
    let index = hosted.index();
    let ids: Vec<_> = body.ids.into_iter().map(|Id(id)| id).collect();
    let points = super::reading(&server, move |cancel| mapped.map.find(&index, &ids, cancel)).await?;
    Ok(Json(PlacesOfMap { points: points.map_err(Problem::of(Code::BadQuery))? }))
}

/// Only documents inside an area of the map.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Area {
    /// Name of the map that the polygon was drawn on.
    #[schema(example = "9f86d081884c7d65")]
    map: String,
    /// Corners in the coordinates of the map, 0 to 65535. Documents are inside by the even-odd rule.
    #[schema(value_type = Polygon)]
    polygon: Vec<[f64; 2]>,
}

pub enum Polygon {}

described!(Polygon, {
    "type": "array", "minItems": 3, "maxItems": map::MAX_CORNERS,
    "items": {
        "type": "array", "minItems": 2, "maxItems": 2,
        "items": { "type": "number", "minimum": -1_000_000, "maximum": 1_000_000 },
    },
});

/// The documents inside an area.
pub async fn within(server: &Server, hosted: &Arc<Hosted>, area: Option<Area>) -> Answer<Option<Subset>> {
    let Some(Area { map, polygon }) = area else { return Ok(None) };
    let mapped = mapped(hosted).await?;
    if mapped.name() != map {
        let text = format!("the area was drawn on map {map}, and the map is {} now; draw it again", mapped.name());
        return Err(Problem::conflict(Code::Unsupported, text));
    }
    let inside = super::reading(server, move |cancel| mapped.map.inside(&polygon, cancel)).await?;
    inside.map(Some).map_err(|error| Problem::bad_request(error.to_string()))
}
