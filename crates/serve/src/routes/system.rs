//! How the server does.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use crate::extract::MayRead;
use crate::problem::{Answer, Problem};
use crate::server::Server;

/// What is running.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// `micpq`.
    name: String,
    /// Version of the program.
    version: String,
    /// Version of the index directories it writes.
    index_format: u32,
}

/// Which version is running
#[utoipa::path(get, path = "/v1/version", tag = "system", operation_id = "getVersion", security(()),
    responses((status = 200, description = "The version", body = Version), Refusals))]
pub async fn version() -> Json<Version> {
    Json(Version {
        name: "micpq".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        index_format: micpq::index::FORMAT,
    })
}

/// A word about health.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    status: String,
}

fn ok() -> Json<Health> {
    Json(Health { status: "ok".into() })
}

/// Whether the server lives
#[utoipa::path(get, path = "/healthz", tag = "system", operation_id = "getHealth", security(()),
    responses((status = 200, description = "It does", body = Health), Refusals))]
pub async fn live() -> Json<Health> {
    ok()
}

/// Whether the server takes requests
///
/// Not while it opens its indexes and not when it is about to stop.
#[utoipa::path(get, path = "/readyz", tag = "system", operation_id = "getReadiness", security(()),
    responses((status = 200, description = "It does", body = Health), Refusals))]
pub async fn ready(State(server): State<Arc<Server>>) -> Answer<Json<Health>> {
    if server.ready() { Ok(ok()) } else { Err(Problem::stopping()) }
}

/// Measurements for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "system", operation_id = "getMetrics",
    responses((status = 200, description = "Prometheus' text format", body = String, content_type = "text/plain"), Refusals))]
pub async fn metrics(_: MayRead, State(server): State<Arc<Server>>) -> Answer<impl IntoResponse> {
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
