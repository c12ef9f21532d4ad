//! Routes of version, health and metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use crate::extract::MayRead;
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::server::{Phase, Server};

/// Version of the server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Always `micpq`.
    name: String,
    /// Version of the program.
    version: String,
    /// Version of the index format that it writes.
    index_format: u32,
}

/// Get the version
#[utoipa::path(get, path = "/v1/version", tag = "system", operation_id = "getVersion", security(()),
    responses((status = 200, description = "The version", body = Version), Refusals))]
pub async fn version() -> Json<Version> {
    Json(Version {
        name: "micpq".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        index_format: engine::index::FORMAT,
    })
}

/// Health of the server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    status: String,
}

/// Check that the server is alive
#[utoipa::path(get, path = "/healthz", tag = "system", operation_id = "getHealth", security(()),
    responses((status = 200, description = "The server is alive", body = Health), Refusals))]
pub async fn live() -> Json<Health> {
    Json(Health { status: "ok".into() })
}

/// Whether the server accepts requests, and which indexes are unavailable.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// `ok`, or `degraded` if some indexes are unavailable.
    status: String,
    /// Names of the indexes that cannot be opened and that the key of the request reaches. On a server with keys, a request
    /// without one is told no names.
    unavailable: Vec<String>,
}

/// Check that the server accepts requests
///
/// The status is 503 while the server opens its indexes and while it stops. It is 200 if some indexes cannot be opened: the
/// answer names those that the key of the request reaches, and the others are served. With the option `ready_needs_all` it is then 503 (`index_unavailable`).
#[utoipa::path(get, path = "/readyz", tag = "system", operation_id = "getReadiness", security(()),
    responses((status = 200, description = "The server accepts requests", body = Readiness), Refusals))]
pub async fn ready(State(server): State<Arc<Server>>, headers: HeaderMap) -> Answer<Json<Readiness>> {
    match server.phase() {
        Phase::Opening => return Err(Problem::opening()),
        Phase::Serving => {}
        Phase::Stopping => return Err(Problem::stopping()),
    }
    let all = server.unavailable();
    let access = server.settings.keys().peek(&headers);
    let told = all.iter().filter(|broken| access.as_ref().is_some_and(|access| access.reaches(&broken.name)));
    let unavailable: Vec<String> = told.map(|broken| broken.name.clone()).collect();
    if server.settings.config().ready_needs_all && !all.is_empty() {
        let text = match unavailable.is_empty() {
            true => "some indexes cannot be opened; the server's log names them".into(),
            false => format!("these indexes cannot be opened: {}", unavailable.join(", ")),
        };
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, Code::IndexUnavailable, text));
    }
    let status = if all.is_empty() { "ok" } else { "degraded" };
    Ok(Json(Readiness { status: status.into(), unavailable }))
}

/// Get metrics for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "system", operation_id = "getMetrics",
    responses((status = 200, description = "Metrics in the text format of Prometheus", body = String, content_type = "text/plain"), Refusals))]
pub async fn metrics(_: MayRead, access: Access, State(server): State<Arc<Server>>) -> Answer<impl IntoResponse> {
    access.expect_all()?;
    let text = super::blocking(move || {
        for hosted in server.indexes() {
            server.metrics.depth(hosted.name(), "query", hosted.queries.depth());
            server.metrics.depth(hosted.name(), "write", hosted.writes.depth());
            if let Ok(info) = hosted.index().info() {
                server.metrics.sizes(hosted.name(), &info);
            }
        }
        server.metrics.text()
    });
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text.await?))
}
