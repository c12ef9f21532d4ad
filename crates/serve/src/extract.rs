//! From a request to what a handler needs, each refusal in the one documented form.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::config::Role;
use crate::hosted::Hosted;
use crate::problem::{Code, Problem};
use crate::server::Server;

/// A JSON body.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Server>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Code::WrongMediaType,
                "the body must be JSON; send it with \"Content-Type: application/json\"",
            ));
        }
        let bytes = read(request, server.config.max_body_bytes).await?;
        parse(&bytes).map(Body)
    }
}

/// A JSON body that may be left out, which is the same as `{}`.
pub struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Server>> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, Problem> {
        let typed = request.headers().contains_key(header::CONTENT_TYPE);
        if typed {
            return Body::from_request(request, server).await.map(|Body(value)| OptionalBody(value));
        }
        let bytes = read(request, server.config.max_body_bytes).await?;
        parse(if bytes.is_empty() { b"{}" } else { &bytes }).map(OptionalBody)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}

async fn read(request: Request, most: usize) -> Result<Bytes, Problem> {
    match Limited::new(request.into_body(), most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large(most)),
        Err(_) => Err(Problem::bad_request("the body ended before its announced length; send it again")),
    }
}

/// A body over the limit.
pub fn too_large(most: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        Code::TooLarge,
        format!("the body is longer than {most} bytes; send less at once, or many documents as a stream"),
    )
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
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

/// A value that stands as a JSON object: serde would also take the fields of a struct as a list, in their order.
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

/// A whole number from 0 on. JSON has one kind of number, so `10.0` is 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct Whole(pub u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Whole;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a whole number from 0 on")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Whole, E> {
                Ok(Whole(number))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Whole, E> {
                whole(number).map(Whole).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// The whole number a float is, where it is one from 0 on that floats hold exactly or that fits into 64 bits.
pub fn whole(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&number)).then_some(number as u64)
}

/// A whole number of any width, or null.
pub fn some_whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let refuse = |number| D::Error::custom(format!("{number} is more than this field holds"));
    let number = Option::<Whole>::deserialize(deserializer)?;
    number.map(|Whole(number)| T::try_from(number).map_err(|_| refuse(number))).transpose()
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

/// Parts of the path.
pub struct At<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Server>> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, server).await;
        path.map(|axum::extract::Path(value)| At(value)).map_err(|e| Problem::bad_request(e.body_text()))
    }
}

/// Options behind the question mark.
pub struct Ask<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Server>> for Ask<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, server).await;
        query.map(|axum::extract::Query(value)| Ask(value)).map_err(|e| Problem::bad_request(e.body_text()))
    }
}

/// The index a path names.
pub struct Of(pub Arc<Hosted>);

#[derive(serde::Deserialize)]
struct Named {
    index: String,
}

impl FromRequestParts<Arc<Server>> for Of {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let At(Named { index }) = At::from_request_parts(parts, server).await?;
        server.index(&index).map(Of)
    }
}

macro_rules! may {
    ($name:ident, $role:expr, $doc:literal) => {
        #[doc = $doc]
        pub struct $name;

        impl FromRequestParts<Arc<Server>> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
                if let Some(name) = server.keys.check(&parts.headers, $role)? {
                    tracing::Span::current().record("key", name);
                }
                Ok($name)
            }
        }
    };
}

may!(MayRead, Role::Read, "A caller who may search and look.");
may!(MayWrite, Role::Write, "A caller who may add and delete documents.");
may!(MayAdmin, Role::Admin, "A caller who may make and drop indexes.");
