//! Finding documents.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use micpq::query::{self as engine, Like, MOST, Rerank, SearchConfig};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use super::documents::{Attributes, Id, check_vector};
use crate::extract::{Body, MayRead, Of, Whole, some_whole};
use crate::hosted::Hosted;
use crate::problem::{Answer, Code, Problem};
use crate::server::Server;

/// What hits should be like, one of `text`, `vector` and `document`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Example {
    /// A text.
    text: Option<String>,
    /// A feature vector, as wide as the model's input.
    vector: Option<Vec<f32>>,
    /// A document of the index, by its id.
    document: Option<Id>,
    /// How much it counts beside the others; 1 unless said.
    #[schema(minimum = 0.000001, maximum = 1000000.0)]
    weight: Option<f64>,
}

/// How the first candidates are ranked again by kept features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Again {
    /// `auto` (the first 200 where the index keeps features) or `off`.
    Named(Named),
    /// So many of them.
    First(Whole),
}

described!(Again, {
    "description": "`auto` (the first 200 where the index keeps features), `off`, or how many.",
    "oneOf": [{ "type": "string", "enum": ["auto", "off"] }, { "type": "integer", "minimum": 1, "maximum": 10000 }],
});

/// `auto` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Named {
    /// The first 200 where the index keeps features.
    Auto,
    /// Codes alone.
    Off,
}

/// How codes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Distance {
    /// Sum of norms, as the authors rank.
    Norm,
    /// Sum of squares.
    Squared,
    /// Books whose words differ.
    Hamming,
}

/// The greatest distance that can be asked for.
const FARTHEST: f64 = 1e30;

/// A query: one of `text`, `vector` and `document`, or several in `like`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Search {
    /// Documents like a text.
    #[schema(example = "oil prices and the economy")]
    text: Option<String>,
    /// Documents like a feature vector, as wide as the model's input.
    vector: Option<Vec<f32>>,
    /// Documents like one of the index, which is not among the hits.
    document: Option<Id>,
    /// Documents like several examples at once.
    #[schema(min_items = 1, max_items = 100)]
    #[serde(deserialize_with = "crate::extract::some_objects")]
    like: Option<Vec<Example>>,
    /// Words of a hybrid search and of snippets; the texts above unless said.
    words: Option<String>,
    /// Hits wanted.
    #[schema(minimum = 1, maximum = 10000, default = 10)]
    #[serde(deserialize_with = "some_whole")]
    k: Option<usize>,
    /// Only documents that match: `places:japan AND year:[1987 TO 1988]`.
    filter: Option<String>,
    /// Only documents whose code is no farther than this.
    #[schema(minimum = 0.0, maximum = 1e30)]
    within: Option<f64>,
    /// `next` of an earlier answer to the same query: the hits behind those.
    after: Option<String>,
    /// Weight of the words, from 0 (codes alone) to 1 (words alone).
    #[schema(minimum = 0.0, maximum = 1.0, default = 0.0)]
    hybrid: Option<f64>,
    /// Whether the first candidates are ranked again by kept features: `auto`, `off` or how many.
    rerank: Option<Again>,
    /// How codes are compared; as the model was trained unless said.
    distance: Option<Distance>,
    /// Whether hits bring text, labels and attributes.
    #[schema(default = true)]
    documents: Option<bool>,
    /// Whether hits bring the part of their text that matches the words.
    #[schema(default = false)]
    snippets: Option<bool>,
    /// Whether the answer says how it came about, and hits each book's share of their distance.
    #[schema(default = false)]
    explain: Option<bool>,
}

impl Search {
    /// The engine's own terms, checked.
    fn convert(self, hosted: &Hosted, most_text: usize) -> Answer<(engine::Query, SearchConfig)> {
        let one = Example { text: self.text, vector: self.vector, document: self.document, weight: None };
        let given = one.text.is_some() || one.vector.is_some() || one.document.is_some();
        let examples = match (given, self.like) {
            (true, None) => vec![one],
            (false, Some(like)) => like,
            (false, None) => {
                return Err(Problem::refused(
                    Code::BadQuery,
                    "the query asks for nothing; give text, vector, document or like",
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
            return Err(Problem::bad_request(format!("like: {} examples; 1 to 100 are taken", examples.len())));
        }
        let width = hosted.index().model().inputs();
        let like = examples.into_iter().map(|example| example.convert(width, most_text)).collect::<Answer<_>>()?;
        // In the precision they were sent in: rounded, what is just beyond a bound would be on it.
        for (name, value, most) in [("within", self.within, FARTHEST), ("hybrid", self.hybrid, 1.0)] {
            if let Some(value) = value.filter(|value| !(0.0..=most).contains(value)) {
                return Err(Problem::bad_request(format!("{name} is {value}; it goes from 0 to {most}")));
            }
        }
        let defaults = SearchConfig::default();
        let after = match &self.after {
            Some(text) => Some(text.parse().map_err(Problem::of(Code::BadQuery))?),
            None => None,
        };
        let config = SearchConfig {
            k: self.k.unwrap_or(defaults.k),
            filter: self.filter,
            within: self.within.map(|within| within as f32),
            after,
            hybrid: self.hybrid.map_or(defaults.hybrid, |hybrid| hybrid as f32),
            rerank: match self.rerank {
                None => defaults.rerank,
                Some(Again::Named(Named::Auto)) => Rerank::Auto,
                Some(Again::Named(Named::Off)) => Rerank::Off,
                Some(Again::First(Whole(n))) => Rerank::First(usize::try_from(n).unwrap_or(usize::MAX)),
            },
            distance: self.distance.map(|distance| match distance {
                Distance::Norm => micpq::model::Distance::Norm,
                Distance::Squared => micpq::model::Distance::Squared,
                Distance::Hamming => micpq::model::Distance::Hamming,
            }),
            documents: self.documents.unwrap_or(defaults.documents),
            snippets: self.snippets.unwrap_or(defaults.snippets),
            explain: self.explain.unwrap_or(defaults.explain),
        };
        // Out of its documented range is another form than documented.
        config.validate().map_err(|e| Problem::bad_request(e.to_string()))?;
        Ok((engine::Query { like, words: self.words }, config))
    }
}

impl Example {
    fn convert(self, width: usize, most_text: usize) -> Answer<(Like, f32)> {
        let weight = self.weight.unwrap_or(1.0);
        if !(1e-6..=1e6).contains(&weight) {
            return Err(Problem::bad_request(format!("weight is {weight}; it goes from 0.000001 to 1000000")));
        }
        let like = match (self.text, self.vector, self.document) {
            (Some(text), None, None) => {
                check_text(&text, most_text)?;
                Like::Text(text)
            }
            (None, Some(vector), None) => {
                check_vector(&vector, width)?;
                Like::Vector(vector)
            }
            (None, None, Some(Id(id))) => Like::Document(id),
            _ => {
                let text = "an example is one of text, vector and document";
                return Err(Problem::refused(Code::BadQuery, text));
            }
        };
        Ok((like, weight as f32))
    }
}

/// Refuses a text that is too long to be one.
pub fn check_text(text: &str, most: usize) -> Answer<()> {
    if text.len() > most {
        return Err(Problem::new(
            axum::http::StatusCode::PAYLOAD_TOO_LARGE,
            Code::TooLarge,
            format!("a text has {} bytes, {most} are taken; shorten it", text.len()),
        ));
    }
    Ok(())
}

/// A part of a text with the matching words marked.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Snippet {
    /// The part.
    text: String,
    /// Begin and end of every match in it, in characters (Unicode scalar values).
    marks: Vec<[usize; 2]>,
}

/// A document found.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Hit {
    /// Its id.
    id: Id,
    /// The distance of its code to the query.
    distance: f32,
    /// What the list is ordered by, falling: minus the distance, the cosine of its kept feature, or fused ranks.
    score: f32,
    /// Its text, where the index keeps texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Its classes.
    labels: Vec<String>,
    /// Its attributes.
    attributes: Attributes,
    /// The part of its text that matches, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    snippet: Option<Snippet>,
    /// Each book's share of the distance, with `explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    shares: Option<Vec<f32>>,
}

/// The hits of a query, best first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// The page.
    hits: Vec<Hit>,
    /// `after` of the next page; `null` where this is the last.
    next: Option<String>,
    /// How the answer came about, with `explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    explanation: Option<serde_json::Value>,
    /// Milliseconds of each stage, for the batch of queries this one was answered with.
    milliseconds: std::collections::BTreeMap<String, f64>,
}

impl From<engine::Answer> for Found {
    fn from(answer: engine::Answer) -> Found {
        let hit = |hit: engine::Hit| Hit {
            id: Id(hit.id),
            distance: hit.distance,
            score: hit.score,
            text: hit.text,
            labels: hit.labels,
            attributes: Attributes::of(hit.attributes),
            snippet: hit.snippet.map(|snippet| Snippet {
                marks: snippet.marks_in_chars().into_iter().map(|mark| [mark.start, mark.end]).collect(),
                text: snippet.text,
            }),
            shares: hit.shares,
        };
        let stages = answer.timings.stages().into_iter();
        Found {
            hits: answer.hits.into_iter().map(hit).collect(),
            next: answer.next.map(|cursor| cursor.to_string()),
            explanation: answer
                .explanation
                .map(|explanation| serde_json::to_value(explanation).expect("plain data has a JSON form")),
            milliseconds: stages.map(|(stage, time)| (stage.to_owned(), time.as_secs_f64() * 1e3)).collect(),
        }
    }
}

/// Find documents
///
/// By a text, a vector, a document of the index, or several of them; with filter, paging, words and a second stage.
#[utoipa::path(post, path = "/v1/indexes/{index}/query", tag = "search", operation_id = "query",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Search, responses((status = 200, description = "The hits", body = Found), Refusals))]
pub async fn query(
    _: MayRead,
    State(server): State<Arc<Server>>,
    Of(hosted): Of,
    request: Request,
) -> Answer<Json<Found>> {
    // Counted before the body is read, so that a batch can wait for it.
    let coming = hosted.queries.coming();
    let Body(search) = Body::<Search>::from_request(request, &server).await?;
    let (query, config) = search.convert(&hosted, server.config.max_text_bytes)?;
    let answer = hosted.queries.ask(vec![query], config, coming).await?.pop();
    answer.map(|answer| Json(answer.into())).ok_or_else(|| Problem::internal("the query came back without an answer"))
}

/// Several queries.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Each with options of its own.
    #[schema(min_items = 1, max_items = 1000)]
    #[serde(deserialize_with = "crate::extract::objects")]
    queries: Vec<Search>,
}

/// Answers to several queries.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchFound {
    /// In the order of the queries.
    answers: Vec<Found>,
}

/// Find documents for several queries
///
/// They are encoded together, and those with equal options go over the codes together. One that cannot be answered
/// refuses all of them.
#[utoipa::path(post, path = "/v1/indexes/{index}/query/batch", tag = "search", operation_id = "queryBatch",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Batch, responses((status = 200, description = "The hits of each", body = BatchFound), Refusals))]
pub async fn batch(
    _: MayRead,
    State(server): State<Arc<Server>>,
    Of(hosted): Of,
    Body(batch): Body<Batch>,
) -> Answer<Json<BatchFound>> {
    let most = server.config.max_queries;
    let count = batch.queries.len();
    if !(1..=most).contains(&count) {
        return Err(Problem::bad_request(format!("queries: {count} of them; 1 to {most} go at once")));
    }
    let converted = batch.queries.into_iter().map(|search| search.convert(&hosted, server.config.max_text_bytes));
    let converted = converted.collect::<Answer<Vec<_>>>()?;
    let wanted: usize = converted.iter().map(|(_, config)| config.k).sum();
    if wanted > 10 * MOST {
        return Err(Problem::refused(
            Code::BadQuery,
            format!("the queries ask for {wanted} hits together; at most {} come at once", 10 * MOST),
        ));
    }
    // Neighbours with equal options go together; the queue joins what it takes at once.
    let mut groups: Vec<(SearchConfig, Vec<engine::Query>)> = Vec::new();
    for (query, config) in converted {
        match groups.last_mut() {
            Some((last, queries)) if *last == config && config.after.is_none() => queries.push(query),
            _ => groups.push((config, vec![query])),
        }
    }
    let asked =
        groups.into_iter().map(|(config, queries)| hosted.queries.ask(queries, config, hosted.queries.coming()));
    let answers = futures_util::future::try_join_all(asked).await?;
    Ok(Json(BatchFound { answers: answers.into_iter().flatten().map(Found::from).collect() }))
}
