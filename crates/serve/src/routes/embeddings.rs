//! Embeddings and codes of texts, in the format of OpenAI's API.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine;
use engine::encoder::{Embedder, Role};
use engine::model::Model;
use engine::{Error, Matrix, NoProgress, Progress};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use super::query::{check_text, take_queries};
use crate::bounds::{Caller, Cancel, slices};
use crate::config::ServeConfig;
use crate::extract::{Body, MayRead};
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::server::Server;
use crate::whole::some_whole;

/// One text or several, or their token ids.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Input {
    One(String),
    Several(Vec<String>),
    Tokens(Vec<Token>),
    SeveralTokens(Vec<Vec<Token>>),
}

/// A token id. JSON also writes it as `5.0`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(transparent)]
pub struct Token(u32);

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = some_whole(deserializer)?.ok_or_else(|| serde::de::Error::custom("null is not a token id"))?;
        Ok(Token(number))
    }
}

described!(Input, {
    "description": "One text or several, or the token ids of one text or several, with the tokens that mark its ends.",
    "oneOf": [
        { "type": "string", "minLength": 1 },
        { "type": "array", "minItems": 1, "maxItems": 1000, "items": { "type": "string", "minLength": 1 } },
        { "type": "array", "minItems": 1, "maxItems": 65536, "items": { "type": "integer", "minimum": 0, "maximum": 4294967295u32 } },
        { "type": "array", "minItems": 1, "maxItems": 1000, "items":
            { "type": "array", "minItems": 1, "maxItems": 65536, "items": { "type": "integer", "minimum": 0, "maximum": 4294967295u32 } } },
    ],
});

/// What a text is: encoders with prompts put another one in front of queries than of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputType {
    #[default]
    Document,
    Query,
}

/// Texts, or the tokens of texts.
enum Texts {
    Raw(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

fn ids(tokens: Vec<Token>) -> Vec<u32> {
    tokens.into_iter().map(|token| token.0).collect()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// A list of numbers.
    #[default]
    Float,
    /// Base64 of little-endian 32-bit floats, or of the bytes of a packed code.
    Base64,
}

/// Texts to encode.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Embed {
    /// One text or several.
    #[schema(example = "oil prices and the economy")]
    input: Input,
    /// Name of an index, for embeddings of its encoder. With the suffix `/code`: codes, a codeword number per codebook.
    #[schema(example = "news")]
    model: String,
    /// What the texts are: documents (default) or queries.
    #[serde(default)]
    input_type: InputType,
    #[serde(default)]
    encoding_format: Encoding,
    /// If given, it must be the number of values of a vector.
    #[schema(minimum = 1, maximum = 65536)]
    #[serde(default, deserialize_with = "some_whole")]
    dimensions: Option<usize>,
    /// Ignored. OpenAI's clients may send it.
    #[serde(default)]
    user: Option<String>,
}

/// An embedding or a code.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Values {
    Numbers(Vec<f32>),
    Packed(String),
}

/// The embedding or code of one text.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    object: String,
    /// Position of the text in the request, from 0.
    index: usize,
    /// Embedding or code.
    embedding: Values,
}

/// Number of tokens.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Number of tokens of all texts, after truncation to the encoder's maximum length.
    prompt_tokens: usize,
    /// The same as `prompt_tokens`.
    total_tokens: usize,
}

/// Embeddings or codes of texts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Embedded {
    /// Always `list`.
    object: String,
    /// One per text, in their order.
    data: Vec<Embedding>,
    /// Model of the request.
    model: String,
    /// Number of tokens.
    usage: Usage,
}

/// Token sequences between two looks at whether the caller is still there.
const TOKEN_SLICE: usize = 32;

/// Encode texts
///
/// Compatible with OpenAI's `POST /v1/embeddings`. The model is an index: its embeddings, or its codes.
#[utoipa::path(post, path = "/v1/embeddings", tag = "embeddings", operation_id = "createEmbeddings",
    request_body = Embed, responses((status = 200, description = "Embeddings or codes", body = Embedded), Refusals))]
pub async fn embed(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    Body(body): Body<Embed>,
) -> Answer<Json<Embedded>> {
    let texts = Texts::of(body.input, &server.settings.config())?;
    let role = match body.input_type {
        InputType::Document => Role::Document,
        InputType::Query => Role::Query,
    };
    let (name, code) = match body.model.strip_suffix("/code") {
        Some(name) => (name.to_owned(), true),
        None => (body.model.clone(), false),
    };
    let hosted = server.index_for(&access, &name)?;
    let searcher = hosted.searcher();
    let shape = searcher.index().model().shape();
    let length = if code { shape.num_codebooks() } else { searcher.index().model().inputs() };
    if let Some(dimensions) = body.dimensions.filter(|d| *d != length) {
        return Err(Problem::refused(
            Code::BadQuery,
            format!("{} has {length} dimensions, not {dimensions}; leave dimensions out", body.model),
        ));
    }
    take_queries(&server, &access, texts.len())?;
    let packed = body.encoding_format == Encoding::Base64;
    let turn = server.embeddings.take().await?;
    // Encoding stops with its caller: this future is dropped when the caller disconnects or the request times out.
    let (_caller, cancel) = Caller::new();
    let (data, tokens) = super::blocking(move || -> engine::Result<(Vec<Values>, usize)> {
        let _turn = turn;
        let (vectors, tokens) = texts.encode(searcher.embedder(&NoProgress)?, role, &cancel)?;
        let model = searcher.index().model();
        Ok((if code { codes(model, &vectors, packed)? } else { embeddings(&vectors, packed) }, tokens))
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

impl Texts {
    fn len(&self) -> usize {
        match self {
            Texts::Raw(texts) => texts.len(),
            Texts::Tokens(tokens) => tokens.len(),
        }
    }

    /// Refuses more texts than the server takes, empty ones and too long ones.
    fn of(input: Input, config: &ServeConfig) -> Answer<Texts> {
        let texts = match input {
            Input::One(text) => Texts::Raw(vec![text]),
            Input::Several(texts) => Texts::Raw(texts),
            Input::Tokens(tokens) => Texts::Tokens(vec![ids(tokens)]),
            Input::SeveralTokens(tokens) => Texts::Tokens(tokens.into_iter().map(ids).collect()),
        };
        let max_texts = config.max_queries;
        let count = texts.len();
        let empty = match &texts {
            Texts::Raw(texts) => texts.iter().any(String::is_empty),
            Texts::Tokens(tokens) => tokens.iter().any(Vec::is_empty),
        };
        if !(1..=max_texts).contains(&count) || empty {
            return Err(Problem::bad_request(format!(
                "input has {count} texts; send 1 to {max_texts}, none of them empty"
            )));
        }
        if let Texts::Raw(texts) = &texts {
            texts.iter().try_for_each(|text| check_text(text, config.max_text_bytes))?;
        }
        Ok(texts)
    }

    /// Embeddings, and the number of tokens.
    fn encode(&self, embedder: &Embedder, role: Role, cancel: &Cancel) -> engine::Result<(Matrix, usize)> {
        let (mut rows, mut count) = (Vec::new(), 0);
        let mut encode = |tokens: &[Vec<u32>]| -> engine::Result<()> {
            if cancel.interrupted() {
                return Err(Error::Interrupted);
            }
            count += tokens.iter().map(Vec::len).sum::<usize>();
            rows.extend_from_slice(embedder.encode_tokens_of(role, tokens, cancel)?.as_slice());
            Ok(())
        };
        match self {
            Texts::Raw(texts) => {
                slices(texts).try_for_each(|slice| encode(&embedder.tokens_of(role, slice)?))?;
            }
            Texts::Tokens(tokens) => tokens.chunks(TOKEN_SLICE).try_for_each(encode)?,
        }
        Ok((Matrix::from_vec(embedder.width(), rows), count))
    }
}

fn base64(bytes: &[u8]) -> Values {
    Values::Packed(base64::engine::general_purpose::STANDARD.encode(bytes))
}

fn embeddings(vectors: &Matrix, packed: bool) -> Vec<Values> {
    let bytes = |row: &[f32]| base64(&row.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    vectors.iter().map(|row| if packed { bytes(row) } else { Values::Numbers(row.to_vec()) }).collect()
}

fn codes(model: &Model, vectors: &Matrix, packed: bool) -> engine::Result<Vec<Values>> {
    let (codes, shape) = (model.encode(vectors)?, model.shape());
    let numbers =
        |code: &[u8]| Values::Numbers((0..shape.num_codebooks()).map(|m| shape.codeword(code, m) as f32).collect());
    let values = |code: &[u8]| if packed { base64(code) } else { numbers(code) };
    Ok(codes.chunks_exact(shape.code_bytes()).map(values).collect())
}

/// A model for embeddings.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelView {
    /// Name of the model.
    id: String,
    /// Always `model`.
    object: String,
    /// Always `micpq`.
    owned_by: String,
    /// Always 0: the time is unknown.
    created: u64,
}

/// The models for embeddings.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    object: String,
    /// Two models per index: its embeddings and its codes.
    data: Vec<ModelView>,
}

/// List models for embeddings
#[utoipa::path(get, path = "/v1/models", tag = "embeddings", operation_id = "listModels",
    responses((status = 200, description = "The models", body = ModelList), Refusals))]
pub async fn models(_: MayRead, access: Access, State(server): State<Arc<Server>>) -> Answer<Json<ModelList>> {
    let reached = server.indexes().into_iter().filter(|hosted| access.reaches(hosted.name()));
    let names = reached.flat_map(|h| [h.name().to_owned(), format!("{}/code", h.name())]);
    let view = |id| ModelView { id, object: "model".into(), owned_by: "micpq".into(), created: 0 };
    Ok(Json(ModelList { object: "list".into(), data: names.map(view).collect() }))
}
