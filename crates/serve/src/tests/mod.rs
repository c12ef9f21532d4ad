//! Tests of the router in one process, on an index of user vectors: no encoder, no network.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use engine::duplicates::DuplicatePolicy;
use engine::index::{Index, IndexConfig, RerankVectors};
use engine::model::{CodeShape, Codebooks, Dense, Distance, FORMAT, Model, ModelConfig, Projection};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::config::{Role, ServeConfig};
use crate::routes;
use crate::server::{Phase, Server};
use crate::writes::Change;

mod access;
mod audit;
mod defaults;
mod documents;
mod duplicates;
mod filtered;
mod indexes;
mod jobs;
mod map;
mod queries;
mod requests;
mod tenants;
mod watch;

const WIDTH: usize = 8;

/// A model with 4 codebooks of 16 codewords over 8 values, from a fixed random sequence.
fn model() -> Model {
    model_of(Value::Null)
}

/// The same that says to be of an encoder.
fn model_of(embedding: Value) -> Model {
    let shape = CodeShape::new(4, 16, 2).unwrap();
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let codewords = (0..4 * 16 * 2).map(|_| draw()).collect();
    let identity = (0..WIDTH * WIDTH).map(|i| f32::from(u8::from(i % (WIDTH + 1) == 0))).collect();
    let projection = Projection::new(vec![Dense::new(WIDTH, identity, vec![0.0; WIDTH]).unwrap()]).unwrap();
    let config = ModelConfig {
        format: FORMAT,
        method: "test".into(),
        shape,
        distance: Distance::Norm,
        embedding: serde_json::from_value(embedding).unwrap(),
        training: Value::Null,
    };
    Model::new(config, projection, Codebooks::new(shape, codewords).unwrap()).unwrap()
}

fn vector(i: usize) -> Vec<f32> {
    (0..WIDTH).map(|j| ((i * 31 + j * 17) as f32 * 0.37).sin()).collect()
}

fn document(i: usize) -> Value {
    let place = ["japan", "usa", "west germany"][i % 3];
    json!({
        "id": i, "text": format!("story {i} of {place}"), "vector": vector(i), "labels": [format!("l{}", i % 2)],
        "attributes": { "year": 1987 + i % 4, "place": place, "long": i.is_multiple_of(5), "score": i as f64 + 0.5 }
    })
}

struct Bench {
    dir: tempfile::TempDir,
    server: Arc<Server>,
    app: Router,
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    body: Value,
    text: String,
}

impl Reply {
    fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

impl Bench {
    fn new(change: impl FnOnce(&mut ServeConfig)) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("news");
        Index::create(&path, &model(), IndexConfig { rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() })
            .unwrap();
        Bench::open(dir, change)
    }

    fn open(dir: tempfile::TempDir, change: impl FnOnce(&mut ServeConfig)) -> Bench {
        let mut config = ServeConfig { data: Some(dir.path().join("data")), ..ServeConfig::default() };
        config.indexes.insert("news".into(), dir.path().join("news"));
        change(&mut config);
        config.validate().unwrap();
        let server = Arc::new(Server::new(config));
        server.open().unwrap();
        server.set_phase(Phase::Serving);
        let app = routes::router(server.clone());
        Bench { dir, server, app }
    }

    async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Reply { status: parts.status.as_u16(), headers: parts.headers, body, text }
    }

    async fn raw(&self, method: &str, path: &str, kind: &str, body: impl Into<Body>) -> Reply {
        let request = Request::builder().method(method).uri(path).header("host", "localhost:6380");
        let request = if kind.is_empty() { request } else { request.header("content-type", kind) };
        self.send(request.body(body.into()).unwrap()).await
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Reply {
        self.raw(method, path, "application/json", body.to_string()).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.raw("GET", path, "", Body::empty()).await
    }

    async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let reply = self.call(method, path, body).await;
        assert!(reply.status < 300, "{method} {path}: {} {}", reply.status, reply.text);
        reply.body
    }

    async fn fill(&self, n: usize) {
        let documents: Vec<Value> = (0..n).map(document).collect();
        let done = self.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": documents })).await;
        assert_eq!(done["changed"], n);
    }
}

/// Every method and path of the description, with values for the path parameters.
fn described() -> Vec<(String, String)> {
    let api: Value = serde_json::from_str(&crate::openapi()).unwrap();
    let mut all = Vec::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        let path = path.replace("{index}", "news").replace("{id}", "1").replace("{job}", "1");
        let path = path.replace("{name}", "saved").replace("{codebook}", "0").replace("{codeword}", "0");
        assert!(!path.contains('{'), "{path}");
        for method in methods.as_object().unwrap().keys() {
            all.push((method.to_uppercase(), path.clone()));
        }
    }
    all
}

fn new_change(i: usize) -> Change {
    let new: crate::routes::NewDocument = serde_json::from_value(document(i)).unwrap();
    let crate::id::Id(id) = new.id;
    let stored = engine::corpus::Document { id, text: new.text.unwrap(), labels: vec![], attributes: vec![] };
    Change::Upsert(vec![(stored, new.vector.map(|vector| vector.0))], DuplicatePolicy::default())
}

impl Bench {
    async fn restarted(self, change: impl FnOnce(&mut ServeConfig)) -> Bench {
        let Bench { dir, server, app } = self;
        drop(app);
        tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
        Bench::open(dir, change)
    }
}
