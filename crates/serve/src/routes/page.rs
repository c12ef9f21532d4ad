//! The page: files embedded in the program.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::extract::At;
use crate::problem::{Code, Problem};
use crate::server::Server;

/// Name, media type and content of every file of `page/`.
const FILES: &[(&str, &str, &[u8])] =
    &[("index.html", "text/html; charset=utf-8", include_bytes!("../../page/index.html"))];

/// Scripts and styles come from here alone; nothing may frame the page.
pub const POLICY: &str =
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

/// `/` is the page, its parts lie under `/page/`.
pub fn router() -> Router<Arc<Server>> {
    Router::new().route("/", get(|| file("index.html"))).route("/page/{*path}", get(part))
}

async fn part(At(path): At<String>) -> Response {
    file(&path).await
}

async fn file(path: &str) -> Response {
    match FILES.iter().find(|(name, _, _)| *name == path) {
        Some((_, kind, bytes)) => {
            let headers = [
                (header::CONTENT_TYPE, *kind),
                (header::CACHE_CONTROL, "no-cache"),
                (header::CONTENT_SECURITY_POLICY, POLICY),
            ];
            (headers, *bytes).into_response()
        }
        None => Problem::not_found(Code::UnknownPath, "the page has no such part").into_response(),
    }
}
