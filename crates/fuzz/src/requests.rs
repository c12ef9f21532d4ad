//! Input of clients: filters, cursors, and whole requests.

use std::sync::{Mutex, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use engine::NoProgress;
use engine::index::{Index, IndexConfig};
use engine::model::Model;
use engine::query::Cursor;
use http_body_util::BodyExt;
use serve::ServeConfig;
use tower::ServiceExt;

use crate::directories::sound;

/// An empty index in a folder.
fn index() -> (tempfile::TempDir, Index) {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&sound("model")).unwrap();
    let index = Index::create(&folder.path().join("news"), &model, IndexConfig::default()).unwrap();
    (folder, index)
}

pub fn filter(input: &[u8]) {
    static INDEX: OnceLock<(tempfile::TempDir, Index)> = OnceLock::new();
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (_, index) = INDEX.get_or_init(|| {
        let (folder, index) = index();
        let row = "{\"id\": 1, \"text\": \"oil\", \"label\": \"l\", \"year\": 1987, \"place\": \"west germany\", \"long\": true}\n";
        let config = engine::corpus::CorpusConfig::default();
        let mut rows = engine::corpus::Corpus::from_reader("row", row.as_bytes(), &config).unwrap();
        let mut writer = index.writer().unwrap();
        let document = rows.next().unwrap().unwrap();
        let width = index.model().inputs();
        writer.add_embeddings(&[document], &engine::Matrix::from_vec(width, vec![0.5; width])).unwrap();
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        (folder, index)
    });
    let _ = index.count(text);
}

pub fn cursor(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(cursor) = text.parse::<Cursor>() {
        assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
    }
}

/// Routes that take a body.
const ROUTES: [(&str, &str); 9] = [
    ("POST", "/v1/indexes/news/query"),
    ("POST", "/v1/indexes/news/query/batch"),
    ("PUT", "/v1/indexes/news/documents"),
    ("POST", "/v1/indexes/news/documents/get"),
    ("POST", "/v1/indexes/news/documents/delete"),
    ("POST", "/v1/indexes/news/count"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/indexes/news/train"),
    ("POST", "/v1/indexes/news/documents/stream"),
];

struct App {
    _folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    router: Router,
}

/// The first byte chooses the route. No body leads to a status of 500 or above.
pub fn http(input: &[u8]) {
    static APP: OnceLock<Mutex<App>> = OnceLock::new();
    let Some((first, body)) = input.split_first() else { return };
    let app = APP.get_or_init(|| {
        let (folder, index) = index();
        drop(index);
        let mut config = ServeConfig::default();
        config.indexes.insert("news".into(), folder.path().join("news"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let router = serve::router(config).unwrap();
        Mutex::new(App { _folder: folder, runtime, router })
    });
    let app = app.lock().unwrap();
    let (method, path) = ROUTES[usize::from(*first) % ROUTES.len()];
    let kind = if path.ends_with("/stream") { "application/x-ndjson" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("host", "localhost:6380");
    let request = request.header("content-type", kind).body(Body::from(body.to_vec())).unwrap();
    let status = app.runtime.block_on(async {
        let response = app.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let _ = response.into_body().collect().await;
        status
    });
    assert!(status.as_u16() < 500, "{method} {path}: {status}");
}
