//! What codes, attributes and training look like, for the page and for the curious.

use std::sync::{Arc, PoisonError};

use axum::Json;
use micpq::Error;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Refusals;
use super::documents::{Attribute, Attributes, Id};
use crate::extract::{Ask, At, MayRead, Of};
use crate::insight;
use crate::problem::{Answer, Code, Problem};

/// Which attributes, and how many values.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FacetOptions {
    /// Only documents that match.
    filter: Option<String>,
    /// Values of each attribute at most.
    #[param(minimum = 1, maximum = 1000, default = 20)]
    values: Option<usize>,
}

/// A value and how many documents have it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FacetValue {
    /// The value.
    value: Attribute,
    /// Documents that have it.
    count: u64,
    /// The filter that asks for it.
    filter: String,
}

/// An attribute over all documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FacetView {
    /// Its name.
    name: String,
    /// Documents that have it.
    documents: u64,
    /// Distinct values.
    distinct: u64,
    /// The least number, where it has numbers.
    least: Option<f64>,
    /// The greatest number.
    greatest: Option<f64>,
    /// The most frequent values.
    values: Vec<FacetValue>,
}

/// All attributes and the labels.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Facets {
    /// By name.
    facets: Vec<FacetView>,
}

/// Attributes with their values
///
/// What filters can be made of: every attribute, its most frequent values, and the filter that asks for each.
#[utoipa::path(get, path = "/v1/indexes/{index}/facets", tag = "insight", operation_id = "getFacets",
    params(("index" = String, Path, description = "Name of the index"), FacetOptions),
    responses((status = 200, description = "The attributes", body = Facets), Refusals))]
pub async fn facets(_: MayRead, Of(hosted): Of, Ask(options): Ask<FacetOptions>) -> Answer<Json<Facets>> {
    let most = options.values.unwrap_or(20);
    if !(1..=1000).contains(&most) {
        return Err(Problem::bad_request(format!("values is {most}; 1 to 1000 are told")));
    }
    let index = hosted.index();
    let facets = super::blocking(move || index.facets(options.filter.as_deref(), most));
    let facets = facets.await?.map_err(Problem::of(Code::BadQuery))?;
    let view = |facet: micpq::index::Facet| FacetView {
        documents: facet.documents,
        distinct: facet.distinct,
        least: facet.range.map(|r| r.0),
        greatest: facet.range.map(|r| r.1),
        values: facet
            .values
            .into_iter()
            .map(|(value, count)| {
                let value = Attribute::from(value);
                FacetValue { filter: filter_of(&facet.name, &value), value, count }
            })
            .collect(),
        name: facet.name,
    };
    Ok(Json(Facets { facets: facets.into_iter().map(view).collect() }))
}

/// `name:"value"`, with what the query language would read otherwise put in quotes.
fn filter_of(name: &str, value: &Attribute) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let name: String = name
        .chars()
        .flat_map(|c| if c.is_alphanumeric() || "._-".contains(c) { vec![c] } else { vec!['\\', c] })
        .collect();
    match value {
        Attribute::Bool(v) => format!("{name}:{v}"),
        Attribute::Int(v) => format!("{name}:{}", quoted(&v.to_string())),
        Attribute::Float(v) => format!("{name}:{}", quoted(&v.to_string())),
        Attribute::Text(v) => format!("{name}:{}", quoted(v)),
        Attribute::Texts(all) => format!("{name}:{}", quoted(&all.join(" "))),
    }
}

/// How often each word of each book is used.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Codebooks {
    /// Documents counted.
    documents: usize,
    /// Documents that have each word: a row a book.
    usage: Vec<Vec<u64>>,
    /// Entropy of each book in bits; log2 of the words is the most there can be.
    entropy: Vec<f64>,
}

/// Usage of the codebooks
#[utoipa::path(get, path = "/v1/indexes/{index}/codebooks", tag = "insight", operation_id = "getCodebooks",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "Documents of each word of each book", body = Codebooks), Refusals))]
pub async fn codebooks(_: MayRead, Of(hosted): Of) -> Answer<Json<Codebooks>> {
    let index = hosted.index();
    let usage = super::blocking(move || index.usage()).await?.map_err(Problem::of(Code::BadQuery))?;
    let documents: u64 = usage.first().map_or(0, |book| book.iter().sum());
    let bits = |count: &u64| match *count {
        0 => 0.0,
        count => {
            let share = count as f64 / documents as f64;
            -share * share.log2()
        }
    };
    let entropy = usage.iter().map(|book| book.iter().map(bits).sum()).collect();
    Ok(Json(Codebooks { documents: documents as usize, usage, entropy }))
}

#[derive(Deserialize)]
pub struct Place {
    book: usize,
    word: usize,
}

/// How much to tell of a codeword.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CodewordOptions {
    /// Documents at most.
    #[param(minimum = 1, maximum = 1000, default = 20)]
    documents: Option<usize>,
}

/// A document of a codeword.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Its id.
    id: Id,
    /// Its text, where the index keeps texts.
    text: Option<String>,
    /// Its classes.
    labels: Vec<String>,
    /// Its attributes.
    attributes: Attributes,
}

/// A word that marks a codeword.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Mark {
    /// The word.
    word: String,
    /// Share of the codeword's documents that have it, of those looked at.
    inside: f64,
    /// Share of other documents that have it.
    outside: f64,
}

/// What a codeword gathers.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Codeword {
    /// Documents that have it, in the order of insertion.
    documents: Vec<Member>,
    /// Words that tell its documents from others, the most telling first.
    marks: Vec<Mark>,
}

/// Documents looked at for marks.
const LOOKED: usize = 300;

/// Documents and words of a codeword
#[utoipa::path(get, path = "/v1/indexes/{index}/codebooks/{book}/{word}", tag = "insight", operation_id = "getCodeword",
    params(("index" = String, Path, description = "Name of the index"), ("book" = usize, Path, description = "Number of the book, from 0", maximum = 1023),
        ("word" = usize, Path, description = "Number of the word, from 0", maximum = 255), CodewordOptions),
    responses((status = 200, description = "What it gathers", body = Codeword), Refusals))]
pub async fn codeword(
    _: MayRead,
    Of(hosted): Of,
    At(Place { book, word }): At<Place>,
    Ask(options): Ask<CodewordOptions>,
) -> Answer<Json<Codeword>> {
    let most = options.documents.unwrap_or(20);
    if !(1..=1000).contains(&most) {
        return Err(Problem::bad_request(format!("documents is {most}; 1 to 1000 are told")));
    }
    let index = hosted.index();
    let shape = index.model().shape();
    if book >= shape.books() || word >= shape.words() {
        return Err(Problem::not_found(
            Code::BadQuery,
            format!("this index has books 0 to {} of words 0 to {}", shape.books() - 1, shape.words() - 1),
        ));
    }
    let work = move || -> micpq::Result<Codeword> {
        let members = insight::members(&index, book, word, most.max(LOOKED))?;
        let walk = index.walk()?;
        let step = (walk.len() / LOOKED).max(1);
        let mut others = Vec::new();
        for i in (0..walk.len()).step_by(step) {
            let record = walk.get(i)?;
            if shape.word(&record.code, book) != word {
                others.extend(record.text);
            }
        }
        let inside = members.iter().filter_map(|hit| hit.text.as_deref());
        let marks = insight::marks(inside, others.iter().map(String::as_str), 20).into_iter();
        Ok(Codeword {
            marks: marks.map(|m| Mark { word: m.word, inside: m.inside, outside: m.outside }).collect(),
            documents: members
                .into_iter()
                .take(most)
                .map(|hit| Member {
                    id: Id(hit.id),
                    text: hit.text,
                    labels: hit.labels,
                    attributes: Attributes::of(hit.attributes),
                })
                .collect(),
        })
    };
    super::blocking(work).await?.map(Json).map_err(Problem::of(Code::BadQuery))
}

/// How the model of an index was trained.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Training {
    /// The system it was trained by.
    method: String,
    /// Options of the run.
    #[schema(value_type = Object)]
    options: serde_json::Value,
    /// Curves, scores and times as the trainer wrote them; `null` where nothing was trained.
    #[schema(value_type = Option<Object>)]
    metrics: Option<serde_json::Value>,
}

/// Training curves
#[utoipa::path(get, path = "/v1/indexes/{index}/training", tag = "insight", operation_id = "getTraining",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "How its model was trained", body = Training), Refusals))]
pub async fn training(_: MayRead, Of(hosted): Of) -> Answer<Json<Training>> {
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

/// How large the map is.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MapOptions {
    /// Points at most; a larger index is sampled evenly.
    #[param(minimum = 1, maximum = 5000, default = 2000)]
    points: Option<usize>,
}

/// A document on the map.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MapPoint {
    /// Its id.
    id: Id,
    /// Along the first axis.
    x: f64,
    /// Along the second.
    y: f64,
    /// Its first label.
    label: Option<String>,
    /// The beginning of its text.
    text: Option<String>,
}

/// Documents in the plane, by the two main axes of what their codes stand for.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MapView {
    /// The documents.
    points: Vec<MapPoint>,
    /// Share of the codes' spread that each axis shows.
    shares: [f64; 2],
}

/// A map of the documents
///
/// Made once for a commit, then kept.
#[utoipa::path(get, path = "/v1/indexes/{index}/map", tag = "insight", operation_id = "getMap",
    params(("index" = String, Path, description = "Name of the index"), MapOptions),
    responses((status = 200, description = "The map", body = MapView), Refusals))]
pub async fn map(_: MayRead, Of(hosted): Of, Ask(options): Ask<MapOptions>) -> Answer<Json<MapView>> {
    const MOST: usize = 5000;
    let most = options.points.unwrap_or(2000);
    if !(1..=MOST).contains(&most) {
        return Err(Problem::bad_request(format!("points is {most}; a map has 1 to {MOST}")));
    }
    let work = move || -> micpq::Result<Arc<insight::Map>> {
        // Held while it is made: two who ask at once make it once.
        let mut kept = hosted.map.lock().unwrap_or_else(PoisonError::into_inner);
        let index = hosted.index();
        let commit = index.commit_number();
        if let Some((of, map)) = kept.as_ref()
            && *of == commit
        {
            return Ok(map.clone());
        }
        let map = Arc::new(insight::map(&index, MOST)?);
        *kept = Some((commit, map.clone()));
        Ok(map)
    };
    let map = super::blocking(work).await?.map_err(Problem::of(Code::BadQuery))?;
    let count = map.points.len().min(most);
    let point = |p: &insight::Point| MapPoint {
        id: Id(p.id.clone()),
        x: p.x,
        y: p.y,
        label: p.label.clone(),
        text: p.text.clone(),
    };
    let points = (0..count).map(|i| point(&map.points[i * map.points.len() / count])).collect();
    Ok(Json(MapView { points, shares: map.shares }))
}
