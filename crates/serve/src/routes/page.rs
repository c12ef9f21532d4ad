//! The web page. Its files are embedded in the program.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::extract::PathPart;
use crate::problem::{Code, Problem};
use crate::server::Server;

/// Name, media type and content of every file of `page/`.
macro_rules! files {
    ($($name:literal $kind:expr),* $(,)?) => {
        &[$(($name, $kind, include_bytes!(concat!("../../page/", $name)))),*]
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: &[(&str, &str, &[u8])] = files![
    "index.html" "text/html; charset=utf-8",
    "style.css" "text/css; charset=utf-8",
    "app.js" SCRIPT,
    "api.js" SCRIPT,
    "dom.js" SCRIPT,
    "search.js" SCRIPT,
    "document.js" SCRIPT,
    "codebooks.js" SCRIPT,
    "map.js" SCRIPT,
    "jobs.js" SCRIPT,
    "topics.js" SCRIPT,
    "training.js" SCRIPT,
    "health.js" SCRIPT,
];

/// Scripts and styles only from this server; no other page may frame this one.
pub const POLICY: &str =
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

/// `/` is the page, `/page/` has its files.
pub fn router() -> Router<Arc<Server>> {
    Router::new().route("/", get(|| file("index.html"))).route("/page/{*path}", get(part))
}

async fn part(PathPart(path): PathPart<String>) -> Response {
    file(&path).await
}

/// What the page has in common with a map in one file.
fn of_map(path: &str) -> Option<(&'static str, &'static [u8])> {
    let scripts = web::MAP_SCRIPTS.iter().map(|(name, source)| (*name, SCRIPT, *source));
    let mut files = scripts.chain([("map.css", "text/css; charset=utf-8", web::MAP_STYLE)]);
    files.find(|(name, ..)| *name == path).map(|(_, kind, source)| (kind, source.as_bytes()))
}

async fn file(path: &str) -> Response {
    let own = || FILES.iter().find(|(name, _, _)| *name == path).map(|(_, kind, bytes)| (*kind, *bytes));
    match of_map(path).or_else(own) {
        Some((kind, bytes)) => {
            let headers = [
                (header::CONTENT_TYPE, kind),
                (header::CACHE_CONTROL, "no-cache"),
                (header::CONTENT_SECURITY_POLICY, POLICY),
            ];
            (headers, bytes).into_response()
        }
        None => Problem::not_found(Code::UnknownPath, "the page has no such file").into_response(),
    }
}
