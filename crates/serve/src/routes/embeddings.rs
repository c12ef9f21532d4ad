//! Vectors and codes of texts, in the form OpenAI's clients ask for.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine;
use micpq::Silent;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use super::query::check_text;
use crate::extract::{Body, MayRead, some_whole};
use crate::problem::{Answer, Code, Problem};
use crate::server::Server;

/// One text or several.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Input {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

described!(Input, {
    "description": "One text or several.",
    "oneOf": [
        { "type": "string", "minLength": 1 },
        { "type": "array", "minItems": 1, "maxItems": 1000, "items": { "type": "string", "minLength": 1 } },
    ],
});

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// A list of numbers.
    #[default]
    Float,
    /// Little-endian 32-bit floats, or the bytes of a packed code, in base64.
    Base64,
}

/// Texts to be encoded.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Embed {
    /// The texts.
    #[schema(example = "oil prices and the economy")]
    input: Input,
    /// Name of an index: its encoder's features. With `/code` behind it: its codes, a word's number for each book.
    #[schema(example = "news")]
    model: String,
    /// How vectors are written.
    #[serde(default)]
    encoding_format: Encoding,
    /// If given, it must be the length vectors have.
    #[schema(minimum = 1, maximum = 65536)]
    #[serde(default, deserialize_with = "some_whole")]
    dimensions: Option<usize>,
    /// Taken and not used, as OpenAI's clients may send it.
    #[serde(default)]
    user: Option<String>,
}

/// A vector or code.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Values {
    /// As numbers.
    Numbers(Vec<f32>),
    /// In base64.
    Packed(String),
}

/// The vector or code of one text.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Embedding {
    /// `embedding`.
    object: String,
    /// Number of the text, from 0.
    index: usize,
    /// Its vector or code.
    embedding: Values,
}

/// Tokens that were read.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Tokens of all texts, after cutting them to the encoder's length.
    prompt_tokens: usize,
    /// The same.
    total_tokens: usize,
}

/// Vectors or codes of texts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Embedded {
    /// `list`.
    object: String,
    /// One for each text, in their order.
    data: Vec<Embedding>,
    /// As it was asked for.
    model: String,
    /// Tokens that were read.
    usage: Usage,
}

/// Encode texts
///
/// As OpenAI's `POST /v1/embeddings` does. The model is an index: its encoder's features, or its codes.
#[utoipa::path(post, path = "/v1/embeddings", tag = "embeddings", operation_id = "createEmbeddings",
    request_body = Embed, responses((status = 200, description = "Vectors or codes", body = Embedded), Refusals))]
pub async fn embed(_: MayRead, State(server): State<Arc<Server>>, Body(body): Body<Embed>) -> Answer<Json<Embedded>> {
    let texts = match body.input {
        Input::One(text) => vec![text],
        Input::Several(texts) => texts,
    };
    let most = server.config.max_queries;
    if !(1..=most).contains(&texts.len()) || texts.iter().any(String::is_empty) {
        return Err(Problem::bad_request(format!(
            "input: {} texts; 1 to {most} go at once, none of them empty",
            texts.len()
        )));
    }
    texts.iter().try_for_each(|text| check_text(text, server.config.max_text_bytes))?;
    let (name, code) = match body.model.strip_suffix("/code") {
        Some(name) => (name.to_owned(), true),
        None => (body.model.clone(), false),
    };
    let hosted = server.index(&name)?;
    let searcher = hosted.searcher();
    let shape = searcher.index().model().shape();
    let length = if code { shape.books() } else { searcher.index().model().inputs() };
    if let Some(dimensions) = body.dimensions.filter(|d| *d != length) {
        return Err(Problem::refused(
            Code::BadQuery,
            format!("{} has {length} dimensions, not {dimensions}; leave them out", body.model),
        ));
    }
    let packed = body.encoding_format == Encoding::Base64;
    // A ticket of the streams' kind would be too many: encoding here is bounded by the blocking threads and the time limit.
    let (data, tokens) = super::blocking(move || -> micpq::Result<(Vec<Values>, usize)> {
        let features = searcher.features(&Silent)?;
        let tokens = features.tokens(&texts)?;
        let count = tokens.iter().map(Vec::len).sum();
        let vectors = features.encode_tokens(&tokens, None, &Silent)?;
        let base64 = |bytes: &[u8]| Values::Packed(base64::engine::general_purpose::STANDARD.encode(bytes));
        let data = if code {
            let codes = searcher.index().model().encode(&vectors)?;
            let numbers =
                |code: &[u8]| Values::Numbers((0..shape.books()).map(|m| shape.word(code, m) as f32).collect());
            codes.chunks_exact(shape.code_bytes()).map(|c| if packed { base64(c) } else { numbers(c) }).collect()
        } else {
            let bytes = |row: &[f32]| base64(&row.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
            vectors.iter().map(|row| if packed { bytes(row) } else { Values::Numbers(row.to_vec()) }).collect()
        };
        Ok((data, count))
    })
    .await?
    .map_err(Problem::of(Code::BadQuery))?;
    let entry = |(index, embedding)| Embedding { object: "embedding".into(), index, embedding };
    Ok(Json(Embedded {
        object: "list".into(),
        data: data.into_iter().enumerate().map(entry).collect(),
        model: body.model,
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    }))
}

/// A model that can be asked for embeddings.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelView {
    /// Its name.
    id: String,
    /// `model`.
    object: String,
    /// `micpq`.
    owned_by: String,
    /// Not known: 0.
    created: u64,
}

/// Models that can be asked for embeddings.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    object: String,
    /// Each index twice: its features and its codes.
    data: Vec<ModelView>,
}

/// List models for embeddings
#[utoipa::path(get, path = "/v1/models", tag = "embeddings", operation_id = "listModels",
    responses((status = 200, description = "The models", body = ModelList), Refusals))]
pub async fn models(_: MayRead, State(server): State<Arc<Server>>) -> Answer<Json<ModelList>> {
    let names = server.indexes().into_iter().flat_map(|h| [h.name().to_owned(), format!("{}/code", h.name())]);
    let view = |id| ModelView { id, object: "model".into(), owned_by: "micpq".into(), created: 0 };
    Ok(Json(ModelList { object: "list".into(), data: names.map(view).collect() }))
}
