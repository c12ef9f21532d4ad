//! Extractors of requests. Every refusal has the documented form of a problem.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::audit::AuditEntry;
use crate::bounds::{BodyBytes, parsed_bytes};
use crate::config::Role;
use crate::hosted::Hosted;
use crate::keys::Access;
use crate::problem::{Code, Problem};
use crate::server::Server;

pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Server>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(wrong_media_type());
        }
        let counted = counter(&request, server);
        let bytes = read(request, server).await?;
        count_values(&bytes, &counted, server)?;
        parse(&bytes).map(Body)
    }
}

/// A body of bytes. Without its media type it is refused: a form of another site could send it.
pub struct Octets(pub Bytes);

impl FromRequest<Arc<Server>> for Octets {
    type Rejection = Problem;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, Problem> {
        if media_type(request.headers()) != "application/octet-stream" {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Code::WrongMediaType,
                "the body must be bytes; send it with \"Content-Type: application/octet-stream\"",
            ));
        }
        read(request, server).await.map(Octets)
    }
}

/// An optional JSON body. A missing body, and `null`, are `{}`.
pub struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Server>> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, Problem> {
        let (typed, json) = (request.headers().contains_key(header::CONTENT_TYPE), is_json(request.headers()));
        if typed && !json {
            return Err(wrong_media_type());
        }
        let counted = counter(&request, server);
        let bytes = read(request, server).await?;
        count_values(&bytes, &counted, server)?;
        match bytes.trim_ascii() {
            b"" if !typed => parse(b"{}"),
            b"null" if json => parse(b"{}"),
            // A browser sends a body without media type to other sites without a preflight request.
            _ if !typed => Err(wrong_media_type()),
            body => parse(body),
        }
        .map(OptionalBody)
    }
}

/// A request without body. A body that comes anyway is not read and must be JSON: this refuses everything that a form of
/// another site can send.
pub struct NoBody;

impl FromRequestParts<Arc<Server>> for NoBody {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Server>) -> Result<Self, Problem> {
        let headers = &parts.headers;
        let empty = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0")
            && !headers.contains_key(header::TRANSFER_ENCODING);
        let untyped = !headers.contains_key(header::CONTENT_TYPE);
        if empty && untyped || is_json(headers) { Ok(NoBody) } else { Err(wrong_media_type()) }
    }
}

fn wrong_media_type() -> Problem {
    Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::WrongMediaType,
        "the body must be JSON; send it with \"Content-Type: application/json\"",
    )
}

/// The media type of the body without its parameters.
fn media_type(headers: &HeaderMap) -> String {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = media_type(headers);
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}

/// What counts the memory of a request.
fn counter(request: &Request, server: &Server) -> BodyBytes {
    request.extensions().get::<BodyBytes>().cloned().unwrap_or_else(|| BodyBytes::of(&server.bodies))
}

/// Counts the values of a JSON body before it is parsed. Refuses one whose values alone would not fit.
fn count_values(json: &[u8], counted: &BodyBytes, server: &Server) -> Result<(), Problem> {
    let (bytes, max) = (parsed_bytes(json), server.settings.config().max_bodies_bytes);
    if json.len().saturating_add(bytes) > max {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            Code::TooLarge,
            format!(
                "the values of the body would take about {bytes} bytes of memory, more than {max}; send less at once"
            ),
        ));
    }
    counted.add(bytes)
}

async fn read(request: Request, server: &Server) -> Result<Bytes, Problem> {
    let max_bytes = server.settings.config().max_body_bytes;
    let counted = counter(&request, server);
    let mut body = Limited::new(request.into_body(), max_bytes);
    // A small body is one frame and is not copied.
    let mut first = Bytes::new();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(piece) = frame.into_data() {
                    counted.add(piece.len())?;
                    if first.is_empty() && bytes.is_empty() {
                        first = piece;
                    } else {
                        bytes.extend_from_slice(&std::mem::take(&mut first));
                        bytes.extend_from_slice(&piece);
                    }
                }
            }
            Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => return Err(too_large(max_bytes)),
            Err(_) => return Err(Problem::bad_request("the body ended before its announced length; send it again")),
        }
    }
    Ok(if bytes.is_empty() { first } else { bytes.into() })
}

fn too_large(max_bytes: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        Code::TooLarge,
        format!("the body is longer than {max_bytes} bytes; send less at once, or send documents as a stream"),
    )
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Without the path to a wrong field, which costs as much as parsing itself.
    if let Ok(Object(value)) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match inner.classify() {
            serde_json::error::Category::Data if path == "." => Problem::bad_request(inner.to_string()),
            serde_json::error::Category::Data => Problem::bad_request(format!("{path}: {inner}")),
            _ => not_json(&inner),
        }
    })?;
    json.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

/// A value from a JSON object. Without it, serde would also accept a list of the fields in order.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// A list of objects.
pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|Object(value)| value).collect())
}

/// A list of objects, or null.
pub fn some_objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let all = Option::<Vec<Object<T>>>::deserialize(deserializer)?;
    Ok(all.map(|all| all.into_iter().map(|Object(value)| value).collect()))
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, Code::NotJson, format!("the body is not JSON: {error}"))
}

/// Parameters in the path.
pub struct PathPart<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Server>> for PathPart<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, server).await;
        path.map(|axum::extract::Path(value)| PathPart(value)).map_err(|e| Problem::bad_request(e.body_text()))
    }
}

/// Parameters in the query string.
pub struct QueryString<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Server>> for QueryString<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, server).await;
        query.map(|axum::extract::Query(value)| QueryString(value)).map_err(|e| Problem::bad_request(e.body_text()))
    }
}

/// The index that the path names.
pub struct NamedIndex(pub Arc<Hosted>);

#[derive(serde::Deserialize)]
struct Named {
    index: String,
}

impl FromRequestParts<Arc<Server>> for NamedIndex {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let PathPart(Named { index }) = PathPart::from_request_parts(parts, server).await?;
        let access = Access::from_request_parts(parts, server).await?;
        server.index_for(&access, &index).map(NamedIndex)
    }
}

/// The index that the path names, for what tells of all its documents or changes them: a key with a filter is refused.
pub struct WholeIndex(pub Arc<Hosted>);

impl FromRequestParts<Arc<Server>> for WholeIndex {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let NamedIndex(hosted) = NamedIndex::from_request_parts(parts, server).await?;
        Access::from_request_parts(parts, server).await?.expect_whole()?;
        Ok(WholeIndex(hosted))
    }
}

/// The indexes that the key of the request reaches. It stands behind the extractor of a role.
impl FromRequestParts<Arc<Server>> for Access {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Server>) -> Result<Self, Problem> {
        Ok(parts.extensions.get::<Access>().expect("the extractor of a role comes first").clone())
    }
}

/// Checks the key of a request, and leaves what it reaches with the request.
fn admit(parts: &mut Parts, server: &Server, role: Role) -> Result<(), Problem> {
    let keys = server.settings.keys();
    if role == Role::Admin
        && let Some(entry) = parts.extensions.get::<AuditEntry>()
    {
        entry.open(keys.name(&parts.headers));
    }
    let access = keys.check(&parts.headers, role).inspect_err(|problem| {
        if problem.status == StatusCode::TOO_MANY_REQUESTS {
            server.metrics.rejected("rate");
        }
    })?;
    if let Some(name) = &access.name {
        tracing::Span::current().record("key", name);
    }
    parts.extensions.insert(access);
    Ok(())
}

macro_rules! may {
    ($name:ident, $role:expr, $doc:literal) => {
        #[doc = $doc]
        pub struct $name;

        impl FromRequestParts<Arc<Server>> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
                admit(parts, server, $role).map(|()| $name)
            }
        }
    };
}

may!(MayRead, Role::Read, "A caller who may search and read.");
may!(MayWrite, Role::Write, "A caller who may add and delete documents.");
may!(MayAdmin, Role::Admin, "A caller who may create and drop indexes.");
