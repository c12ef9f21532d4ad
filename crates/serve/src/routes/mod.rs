//! What is served under which path, and what happens to every request on its way.

/// A type whose form in the description is written by hand.
macro_rules! described {
    ($name:ty, $($json:tt)+) => {
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                serde_json::from_value(serde_json::json!($($json)+)).expect("a schema")
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

mod documents;
mod embeddings;
mod guide;
mod indexes;
mod insight;
mod jobs;
mod page;
mod query;
mod stream;
mod system;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tracing::Instrument;
use utoipa::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::problem::{Code, Problem};
use crate::server::Server;

#[cfg(test)]
pub use documents::{Id, NewDocument};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "micpq",
        description = "Document search in 16 to 128 bits a document. Errors have one form, `{\"error\": {\"code\", \"message\"}}`: \
                       400 means another form than documented here, 422 a well-formed request that this index cannot meet.",
        license(name = "MIT", identifier = "MIT")
    ),
    tags(
        (name = "indexes", description = "Make, look at, copy and drop indexes"),
        (name = "documents", description = "Add, get, count and delete documents"),
        (name = "search", description = "Find documents"),
        (name = "insight", description = "What codes, attributes and training look like"),
        (name = "jobs", description = "Long work in the background"),
        (name = "embeddings", description = "Vectors and codes of texts, as OpenAI's clients ask for them"),
        (name = "system", description = "Health, version and measurements"),
    ),
    components(schemas(crate::problem::Refusal, documents::Attribute)),
    security((), ("bearer" = []), ("api_key" = [])),
)]
struct Api;

/// The paths and their description.
fn described() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::with_openapi(Api::openapi())
        .routes(routes!(indexes::list))
        .routes(routes!(indexes::create, indexes::show, indexes::drop_index))
        .routes(routes!(indexes::snapshot, indexes::snapshots))
        .routes(routes!(documents::upsert))
        .routes(routes!(documents::get, documents::delete_one))
        .routes(routes!(documents::fetch))
        .routes(routes!(documents::delete))
        .routes(routes!(documents::count))
        .routes(routes!(query::query))
        .routes(routes!(query::batch))
        .routes(routes!(insight::facets))
        .routes(routes!(insight::codebooks))
        .routes(routes!(insight::codeword))
        .routes(routes!(insight::training))
        .routes(routes!(insight::map))
        .routes(routes!(jobs::train))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show, jobs::cancel))
        .routes(routes!(embeddings::embed))
        .routes(routes!(embeddings::models))
        .routes(routes!(system::version))
        .routes(routes!(system::live))
        .routes(routes!(system::ready))
        .routes(routes!(system::metrics))
}

/// The description alone.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let streams: OpenApiRouter<Arc<Server>> = OpenApiRouter::new().routes(routes!(stream::stream));
    let mut api = described().merge(streams).into_openapi();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let key = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("api-key")));
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("bearer", bearer);
    components.add_security_scheme("api_key", key);
    api
}

/// Everything that is served.
pub fn router(server: Arc<Server>) -> Router {
    let (api, _) = described().split_for_parts();
    let (streams, _) = OpenApiRouter::new().routes(routes!(stream::stream)).split_for_parts();
    let timed = api.merge(guide::router()).merge(page::router()).layer(from_fn_with_state(server.clone(), limit_time));
    let mut app = timed
        // A stream may take hours; what is limited there is its silence.
        .merge(streams)
        .fallback(|| async {
            Problem::not_found(Code::UnknownPath, "nothing is served under this path; /docs tells what is")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                Code::WrongMethod,
                "this path does not know this method; the Allow header tells those it knows",
            )
        })
        .layer(from_fn_with_state(server.clone(), check_host))
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            Problem::internal("a mistake of the server; its log says more").into_response()
        }));
    if !server.config.cors_origins.is_empty() {
        app = app.layer(cors(&server.config.cors_origins));
    }
    app.layer(from_fn_with_state(server.clone(), observe)).with_state(server)
}

fn cors(origins: &[String]) -> CorsLayer {
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers([header::CONTENT_TYPE, header::AUTHORIZATION, HeaderName::from_static("api-key"), REQUEST_ID])
        .expose_headers([REQUEST_ID, header::RETRY_AFTER])
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Gives every request an id, a line in the log and a place in the metrics.
async fn observe(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let given = request.headers().get(&REQUEST_ID).filter(|id| {
        let bytes = id.as_bytes();
        (1..=128).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    let id = given.cloned().unwrap_or_else(new_id);
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    // The route, not the path: an id a label would make as many series as there are documents.
    let route = request.extensions().get::<MatchedPath>().map_or("none".to_owned(), |m| m.as_str().to_owned());
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or_default(), key = tracing::field::Empty);
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, time) = (response.status(), begun.elapsed());
    server.metrics.request(known_method(&method), &route, status.as_u16(), time);
    span.in_scope(|| {
        let ms = time.as_secs_f64() * 1e3;
        if status.is_server_error() {
            tracing::warn!(%method, path, status = status.as_u16(), ms, "answered");
        } else {
            tracing::info!(%method, path, status = status.as_u16(), ms, "answered");
        }
    });
    response.headers_mut().insert(REQUEST_ID, id);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A caller may make up methods; the metrics know these.
fn known_method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

fn new_id() -> HeaderValue {
    let mut bytes = [0; 12];
    // Without random numbers the time still tells requests apart.
    if getrandom::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes.copy_from_slice(&now.as_nanos().to_le_bytes()[..12]);
    }
    HeaderValue::from_str(&micpq::hex(&bytes)).expect("hex digits are header characters")
}

async fn limit_time(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(server.config.timeout(), next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            Code::Timeout,
            "the request took longer than the server allows; a write may still be made: ask before you repeat it",
        )
        .into_response(),
    }
}

/// Without keys only callers who name this server are answered: a page elsewhere can make its own name point here, but
/// not make the browser send ours.
async fn check_host(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let config = &server.config;
    if !config.keys.is_empty() || config.open {
        return next.run(request).await;
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|a| a.as_str())).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let own = bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip == config.listen.ip())
        || config.hosts.iter().any(|known| known == "*" || known.eq_ignore_ascii_case(bare));
    if own {
        return next.run(request).await;
    }
    Problem::new(
        StatusCode::MISDIRECTED_REQUEST,
        Code::WrongHost,
        "this server has no keys and answers to its own address only; use that, set keys, or name this host in \"hosts\"",
    )
    .into_response()
}

/// What any request may be answered with.
pub struct Refusals;

impl utoipa::IntoResponses for Refusals {
    fn responses() -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
        use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
        [
            ("400", "The request has another form than documented (`not_json`, `bad_request`)."),
            ("401", "There is no known key (`no_key`, `unknown_key`)."),
            ("403", "The key may not do this (`not_allowed`)."),
            ("404", "What the path names is not there (`unknown_index`, `unknown_document`, `unknown_job`)."),
            ("409", "It cannot be done at present or on this server (`index_exists`, `index_busy`, `unsupported`)."),
            ("413", "The body or a text is too large (`too_large`)."),
            ("415", "The media type is not the documented one (`wrong_media_type`)."),
            ("421", "A server without keys was called by a name not its own (`wrong_host`)."),
            ("422", "Well-formed, but not possible (`bad_filter`, `bad_vector`, `bad_query`, `bad_document`, `unknown_model`)."),
            ("429", "Too much is waiting (`overloaded`); Retry-After says when to come again."),
            ("500", "The index or the disk failed (`storage`, `internal`)."),
            ("503", "The server is about to stop (`stopping`)."),
            ("504", "The request took too long (`timeout`)."),
        ]
        .into_iter()
        .map(|(status, text)| {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Refusal"))).build();
            let response = ResponseBuilder::new().description(text).content("application/json", content).build();
            (status.to_owned(), response.into())
        })
        .collect()
    }
}

/// Runs work that waits for disk or cores where it holds nobody up.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> crate::problem::Answer<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Problem::internal("a mistake of the server; its log says more"))
}
