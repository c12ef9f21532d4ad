//! The routes of the API, and the middleware of every request.

pub(crate) mod contents;
mod documents;
mod embeddings;
mod guide;
mod indexes;
pub(crate) mod insight;
mod jobs;
pub(crate) mod map;
mod page;
mod query;
mod recall;
mod stream;
mod system;
mod vector;
mod watch;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower::{Layer, ServiceExt};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tracing::Instrument;
use utoipa::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::audit::AuditEntry;
use crate::bounds::{self, BodyBytes, Caller, Cancel};
use crate::config::ServeConfig;
use crate::problem::{Code, Problem};
use crate::server::{Phase, Server};
use crate::telemetry;

#[cfg(test)]
pub use documents::NewDocument;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "micpq",
        description = "Document search in 16 to 128 bits per document. All errors have the form `{\"error\": {\"code\", \"message\"}}`. \
                       400 is a request without the documented form, 422 a well-formed request that this index cannot execute.",
        license(name = "MIT", identifier = "MIT")
    ),
    tags(
        (name = "indexes", description = "Create, show, back up and drop indexes"),
        (name = "documents", description = "Add, get, count and delete documents"),
        (name = "search", description = "Find documents"),
        (name = "watch", description = "Saved queries, and the new documents that match them"),
        (name = "insight", description = "Codes, attributes and training"),
        (name = "jobs", description = "Background jobs"),
        (name = "embeddings", description = "Embeddings and codes of texts, compatible with OpenAI's API"),
        (name = "system", description = "Health, version and metrics"),
    ),
    components(schemas(crate::problem::Refusal, documents::Attribute)),
    security((), ("bearer" = []), ("api_key" = [])),
)]
struct Api;

/// The routes with their OpenAPI description.
fn described() -> OpenApiRouter<Arc<Server>> {
    OpenApiRouter::with_openapi(Api::openapi())
        .routes(routes!(indexes::list))
        .routes(routes!(indexes::create, indexes::show, indexes::drop_index))
        .routes(routes!(indexes::backup, indexes::backups))
        .routes(routes!(documents::upsert))
        .routes(routes!(documents::get, documents::delete_one))
        .routes(routes!(documents::fetch))
        .routes(routes!(documents::delete))
        .routes(routes!(documents::count))
        .routes(routes!(query::query))
        .routes(routes!(query::batch))
        .routes(routes!(query::vector))
        .routes(routes!(watch::list))
        .routes(routes!(watch::save, watch::remove))
        .routes(routes!(watch::matches))
        .routes(routes!(insight::facets))
        .routes(routes!(insight::codebooks))
        .routes(routes!(insight::codeword))
        .routes(routes!(insight::training))
        .routes(routes!(map::make, map::show))
        .routes(routes!(map::points))
        .routes(routes!(map::values))
        .routes(routes!(map::documents))
        .routes(routes!(map::places))
        .routes(routes!(jobs::train))
        .routes(routes!(contents::dedup))
        .routes(routes!(contents::topics, contents::last_topics))
        .routes(routes!(recall::measure, recall::show))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show, jobs::cancel))
        .routes(routes!(embeddings::embed))
        .routes(routes!(embeddings::models))
        .routes(routes!(system::version))
        .routes(routes!(system::live))
        .routes(routes!(system::ready))
        .routes(routes!(system::metrics))
}

/// The OpenAPI description without the routes.
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

pub fn router(server: Arc<Server>) -> Router {
    let (api, _) = described().split_for_parts();
    let (streams, _) = OpenApiRouter::new().routes(routes!(stream::stream)).split_for_parts();
    let timed = api.merge(guide::router()).merge(page::router()).layer(from_fn_with_state(server.clone(), limit_time));
    timed
        // A stream may take hours. Only its silence has a time limit.
        .merge(streams)
        .fallback(|| async { Problem::not_found(Code::UnknownPath, "there is no such path; /docs lists all paths") })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                Code::WrongMethod,
                "this path does not have this method; the Allow header lists its methods",
            )
        })
        .layer(from_fn_with_state(server.clone(), count_bytes))
        .layer(from_fn_with_state(server.clone(), refuse_while_opening))
        .layer(from_fn_with_state(server.clone(), check_site))
        .layer(from_fn_with_state(server.clone(), check_host))
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            Problem::internal("the server failed; its log says why").into_response()
        }))
        .layer(from_fn_with_state(server.clone(), share))
        .layer(from_fn_with_state(server.clone(), observe))
        .with_state(server)
}

/// Lets pages of the configured origins call the server (CORS).
async fn share(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let config = server.settings.config();
    if config.cors_origins.is_empty() {
        return next.run(request).await;
    }
    match cors(&config.cors_origins).layer(next).oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
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

/// Gives every request an id, a log line and metrics.
async fn observe(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let given = request.headers().get(&REQUEST_ID).filter(|id| {
        let bytes = id.as_bytes();
        (1..=128).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    let id = given.cloned().unwrap_or_else(new_id);
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    // The route, not the path: a label per document id would create a time series per document.
    let route = request.extensions().get::<MatchedPath>().map_or("none".to_owned(), |m| m.as_str().to_owned());
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or_default(), key = tracing::field::Empty);
    telemetry::join(&span, request.headers());
    let audit = AuditEntry::new(method.clone(), &path, id.to_str().unwrap_or_default());
    request.extensions_mut().insert(audit.clone());
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, time) = (response.status(), started.elapsed());
    audit.answered(status);
    server.metrics.request(known_method(&method), &route, status.as_u16(), time);
    telemetry::answered(&span, known_method(&method), &route, status);
    span.in_scope(|| {
        let ms = time.as_secs_f64() * 1e3;
        if status.is_server_error() {
            tracing::warn!(%method, path, status = status.as_u16(), ms, "answered");
        } else if server.settings.config().access_log {
            tracing::info!(%method, path, status = status.as_u16(), ms, "answered");
        }
    });
    response.headers_mut().insert(REQUEST_ID, id);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The methods in the metrics. Callers may invent others.
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
    // Without random numbers the time still distinguishes requests.
    if getrandom::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes.copy_from_slice(&now.as_nanos().to_le_bytes()[..12]);
    }
    HeaderValue::from_str(&hex::encode(bytes)).expect("hex digits are header characters")
}

/// Refuses requests that pages of other sites send through a visitor's browser (CSRF). It refuses everything that changes
/// or costs something: every method but GET, HEAD and OPTIONS, GET below an index, and the metrics. The page, the
/// description and the health of the server stay open.
async fn check_site(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let harmless = match *request.method() {
        Method::OPTIONS => true,
        Method::GET | Method::HEAD => !route.starts_with("/v1/indexes/") && route != "/metrics",
        _ => false,
    };
    if harmless || !is_cross_site(request.headers(), &server.settings.config()) {
        return next.run(request).await;
    }
    Problem::new(
        StatusCode::FORBIDDEN,
        Code::CrossSite,
        "the request comes from a page of another site; call from this server's own page or from a program, or add the page's origin to \"cors_origins\"",
    )
    .into_response()
}

/// Whether a browser marks the request as coming from another site. Programs send no such headers.
fn is_cross_site(headers: &HeaderMap, config: &ServeConfig) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("null"));
    let origin = text(header::ORIGIN);
    if origin.is_some_and(|origin| config.cors_origins.iter().any(|known| known == "*" || known == origin)) {
        return false;
    }
    let foreign = origin.is_some_and(|origin| !is_own(origin, text(header::HOST).unwrap_or_default(), config));
    let fetched = headers.get("sec-fetch-site").map(ureq::http::HeaderValue::as_bytes);
    foreign || fetched.is_some_and(|site| site != b"same-origin" && site != b"none")
}

/// Whether an origin is the host and port of the request. Behind a proxy that ends TLS the schemes differ, so they count
/// only if the server itself uses TLS.
fn is_own(origin: &str, host: &str, config: &ServeConfig) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let port = match scheme {
        "http" if config.tls_certificate.is_none() => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |name: &str| name.strip_suffix(port).unwrap_or(name).to_ascii_lowercase();
    !authority.is_empty() && bare(authority) == bare(host)
}

/// Refuses requests for indexes until all are open: one that is not open yet would not exist.
async fn refuse_while_opening(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if server.phase() == Phase::Opening && path.starts_with("/v1/") && path != "/v1/version" {
        return Problem::opening().into_response();
    }
    next.run(request).await
}

async fn limit_time(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(server.settings.config().timeout(), next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            Code::Timeout,
            "the request took longer than the server allows; a write may still be executed, check before you repeat it",
        )
        .into_response(),
    }
}

/// Counts the memory of a request: its body until it is answered, its answer until it is sent.
async fn count_bytes(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let body = BodyBytes::of(&server.bodies);
    request.extensions_mut().insert(body.clone());
    // The page and the description have a fixed size and are in memory once.
    let fixed = request.extensions().get::<MatchedPath>().is_none_or(|route| !route.as_str().starts_with("/v1/"));
    let response = next.run(request).await;
    drop(body);
    if fixed {
        return response;
    }
    let (parts, body) = response.into_parts();
    match bounds::counted(body, server.settings.config().max_answer_bytes, &server.answers).await {
        Ok(body) => Response::from_parts(parts, body),
        Err(problem) => problem.into_response(),
    }
}

/// Without keys, refuses requests whose Host header is not this server (DNS rebinding): a foreign page can make its own
/// name resolve to this server, but cannot make the browser send ours.
async fn check_host(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let config = server.settings.config();
    if !config.keys.is_empty() || config.open {
        return next.run(request).await;
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(ureq::http::uri::Authority::as_str)).unwrap_or_default();
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
        "this server has no keys and accepts only its own address as host; use that address, set keys, or add this host to \"hosts\"",
    )
    .into_response()
}

/// The failures of every route.
pub struct Refusals;

impl utoipa::IntoResponses for Refusals {
    fn responses() -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
        use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
        [
            ("400", "The request does not have the documented form (`not_json`, `bad_request`)."),
            ("401", "The key is missing or unknown (`no_key`, `unknown_key`)."),
            ("403", "The key's role, indexes or filter do not allow this (`not_allowed`), the key has used what it may (`quota_exceeded`), or the request comes from a page of another site (`cross_site`)."),
            ("404", "The path names something unknown (`unknown_index`, `unknown_document`, `unknown_job`)."),
            ("409", "Not possible at present or on this server (`index_exists`, `index_busy`, `unsupported`)."),
            ("413", "The body or a text is too large (`too_large`)."),
            ("415", "The media type is not the documented one (`wrong_media_type`)."),
            ("421", "The Host header is not this server, which has no keys (`wrong_host`)."),
            ("422", "Well-formed, but not possible (`bad_filter`, `bad_vector`, `bad_query`, `bad_document`, `unknown_model`), or the answer would be too large (`answer_too_large`)."),
            ("429", "Too many requests are waiting or come from the key (`overloaded`), or the key has asked the queries of a day (`quota_exceeded`); Retry-After says when to try again."),
            ("500", "The index or the disk failed (`storage`, `internal`)."),
            ("503", "The server is stopping (`stopping`), has no file descriptor left (`overloaded`), or cannot open the index (`index_unavailable`)."),
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

/// Runs work that reads much of an index on a blocking thread, a few at a time. `Cancel` tells the work when its caller
/// disconnects.
async fn reading<T: Send + 'static>(
    server: &Server,
    work: impl FnOnce(&Cancel) -> T + Send + 'static,
) -> crate::problem::Answer<T> {
    let turn = server.reads.take().await?;
    let (_caller, cancel) = Caller::new();
    blocking(move || {
        let done = work(&cancel);
        drop(turn);
        done
    })
    .await
}

/// Runs work that waits for disk or cores on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> crate::problem::Answer<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Problem::internal("the server failed; its log says why"))
}
