//! Tests of the router in one process, on an index of user vectors: no encoder, no network.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use engine::index::{Index, IndexConfig, RerankVectors};
use engine::model::{CodeShape, Codebooks, Dense, Distance, FORMAT, Model, ModelConfig, Projection};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::config::{Role, ServeConfig};
use crate::routes;
use crate::server::Server;
use crate::writes::Change;

#[path = "tenant_tests.rs"]
mod tenants;

const WIDTH: usize = 8;

/// A model with 4 codebooks of 16 codewords over 8 values, from a fixed random sequence.
fn model() -> Model {
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
        embedding: None,
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
        server.set_ready(true);
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

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_added_found_and_deleted() {
    let bench = Bench::new(|_| {});
    bench.fill(40).await;
    let one = bench.get("/v1/indexes/news/documents/7").await.body;
    assert_eq!(one["text"], "story 7 of usa");
    assert_eq!(one["attributes"], json!({ "year": 1990, "place": "usa", "long": false, "score": 7.5 }));
    assert_eq!(one["code"].as_array().unwrap().len(), 4);

    let path = "/v1/indexes/news/query";
    let found = bench.ok("POST", path, json!({ "vector": vector(7), "k": 3 })).await;
    let ids =
        |found: &Value| found["hits"].as_array().unwrap().iter().map(|h| h["id"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(ids(&found)[0], 7, "re-ranking puts the same vector first");
    assert!(found["milliseconds"]["scan"].is_f64() && found["hits"][0]["text"].is_string());
    // JSON has one number type.
    let like = bench.ok("POST", path, json!({ "document": 7.0, "k": 40.0 })).await;
    assert_eq!(ids(&like).len(), 39);
    let like = bench.ok("POST", path, json!({ "document": "7", "k": 40 })).await;
    assert_eq!(ids(&like).len(), 39, "a document is not among its own hits");
    let filtered =
        bench.ok("POST", path, json!({ "vector": vector(7), "k": 40, "filter": "place:japan AND year:1987" })).await;
    assert_eq!(ids(&filtered).len(), (0..40).filter(|i| i % 12 == 0).count());
    let plain = bench
        .ok("POST", path, json!({ "vector": vector(7), "documents": false, "explain": true, "rerank": "off" }))
        .await;
    assert!(plain["hits"][0]["text"].is_null() && plain["explanation"]["backend"].is_string());
    let codebook_distances = plain["hits"][0]["codebook_distances"].as_array().unwrap();
    let sum: f64 = codebook_distances.iter().map(|s| s.as_f64().unwrap()).sum();
    assert_eq!(codebook_distances.len(), 4);
    assert!(sum > 0.0);
    let by_keyword = bench
        .ok(
            "POST",
            path,
            json!({ "vector": vector(7), "keywords": "germany", "hybrid": 1.0, "snippets": true, "k": 1 }),
        )
        .await;
    assert_eq!(by_keyword["hits"][0]["attributes"]["place"], "west germany");
    assert!(!by_keyword["hits"][0]["snippet"]["marks"].as_array().unwrap().is_empty());

    // All pages together are the whole list.
    let whole = ids(&bench.ok("POST", path, json!({ "vector": vector(3), "k": 40, "rerank": "off" })).await);
    let (mut paged, mut after) = (Vec::new(), Value::Null);
    loop {
        let page =
            bench.ok("POST", path, json!({ "vector": vector(3), "k": 7, "rerank": "off", "after": after })).await;
        paged.extend(ids(&page));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(paged, whole);

    let several = json!({ "queries": [{ "vector": vector(1), "k": 2 }, { "document": 2, "k": 3 }, { "vector": vector(4), "k": 2 }] });
    let answers = bench.ok("POST", "/v1/indexes/news/query/batch", several).await;
    let lengths: Vec<usize> =
        answers["answers"].as_array().unwrap().iter().map(|a| a["hits"].as_array().unwrap().len()).collect();
    assert_eq!(lengths, [2, 3, 2]);

    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({ "filter": "long:true" })).await["count"], 8);
    let some = bench.ok("POST", "/v1/indexes/news/documents/get", json!({ "ids": [5, "nobody", "6"] })).await;
    assert_eq!(
        (&some["documents"][0]["id"], &some["documents"][1], &some["documents"][2]["id"]),
        (&json!(5), &Value::Null, &json!(6))
    );
    assert_eq!(bench.raw("DELETE", "/v1/indexes/news/documents/5", "", Body::empty()).await.body["documents"], 39);
    assert_eq!(bench.raw("DELETE", "/v1/indexes/news/documents/5", "", Body::empty()).await.code(), "unknown_document");
    assert_eq!(bench.ok("POST", "/v1/indexes/news/documents/delete", json!({ "ids": [1, 2, 5] })).await["changed"], 2);
    let deleted = bench.ok("POST", "/v1/indexes/news/documents/delete", json!({ "filter": "place:usa" })).await;
    assert_eq!(deleted["documents"], bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"]);
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({ "filter": "place:usa" })).await["count"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_have_a_code_and_change_nothing() {
    let bench = Bench::new(|config| {
        config.max_body_bytes = 20_000;
        config.max_text_bytes = 1000;
        config.max_documents = 10;
    });
    bench.fill(10).await;
    let query = "/v1/indexes/news/query";
    let put = "/v1/indexes/news/documents";
    let nan = vec![1e300; WIDTH];
    for (method, path, body, status, code) in [
        ("GET", "/v1/indexes/nobody", json!({}), 404, "unknown_index"),
        ("POST", "/v1/indexes/nobody/query", json!({ "text": "a" }), 404, "unknown_index"),
        ("POST", query, json!({}), 422, "bad_query"),
        ("POST", query, json!({ "text": "oil" }), 422, "bad_query"),
        ("POST", query, json!({ "text": 5 }), 400, "bad_request"),
        ("POST", query, json!([]), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "k": 0 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "k": 10_001 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "k": -1 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "kk": 1 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "hybrid": 2 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "hybrid": 1.000000001 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "radius": 1.00000001e30 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "k": 1.5 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "hybrid": 0.5 }), 422, "bad_query"),
        ("POST", query, json!({ "vector": [1.0] }), 422, "bad_vector"),
        ("POST", query, json!({ "vector": nan }), 422, "bad_vector"),
        ("POST", query, json!({ "vector": ["a"] }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "text": "a" }), 422, "bad_query"),
        ("POST", query, json!({ "like": [] }), 400, "bad_request"),
        ("POST", query, json!({ "like": [{ "vector": vector(1), "weight": 0 }] }), 400, "bad_request"),
        ("POST", query, json!({ "document": "nobody" }), 422, "bad_query"),
        ("POST", query, json!({ "document": "" }), 400, "bad_request"),
        ("POST", query, json!({ "document": 1.5 }), 400, "bad_request"),
        ("POST", query, json!({ "vector": vector(1), "filter": "year:[" }), 422, "bad_filter"),
        ("POST", query, json!({ "vector": vector(1), "filter": "" }), 422, "bad_filter"),
        ("POST", query, json!({ "vector": vector(1), "filter": "yaer:1987" }), 422, "bad_filter"),
        ("POST", query, json!({ "vector": vector(1), "after": "xyz" }), 422, "bad_query"),
        ("POST", query, json!({ "text": "a".repeat(1001) }), 413, "too_large"),
        ("POST", query, json!({ "text": "a".repeat(20_001) }), 413, "too_large"),
        ("POST", query, json!({ "like": [["oil"]] }), 400, "bad_request"),
        ("POST", "/v1/indexes/news/query/batch", json!({ "queries": [] }), 400, "bad_request"),
        ("POST", "/v1/indexes/news/query/batch", json!({ "queries": [["oil"]] }), 400, "bad_request"),
        ("PUT", put, json!({ "documents": [[1, "text"]] }), 400, "bad_request"),
        ("PUT", put, json!({ "documents": [] }), 400, "bad_request"),
        ("PUT", put, json!({ "documents": [{ "text": "a" }] }), 400, "bad_request"),
        ("PUT", put, json!({ "documents": [{ "id": 99, "text": "a" }] }), 422, "bad_document"),
        ("PUT", put, json!({ "documents": [{ "id": 99 }] }), 422, "bad_document"),
        ("PUT", put, json!({ "documents": [{ "id": -1, "vector": vector(1) }] }), 400, "bad_request"),
        ("PUT", put, json!({ "documents": [document(98), { "id": 99, "vector": [1] }] }), 422, "bad_vector"),
        (
            "PUT",
            put,
            json!({ "documents": [document(98), { "id": 99, "vector": vector(1), "attributes": { "": 1 } }] }),
            422,
            "bad_document",
        ),
        (
            "PUT",
            put,
            json!({ "documents": [{ "id": 99, "vector": vector(1), "attributes": { "a": null } }] }),
            400,
            "bad_request",
        ),
        ("PUT", put, json!({ "documents": [{ "id": "x".repeat(1025), "vector": vector(1) }] }), 400, "bad_request"),
        ("POST", "/v1/indexes/news/documents/delete", json!({}), 422, "bad_query"),
        ("POST", "/v1/indexes/news/documents/delete", json!({ "filter": "((" }), 422, "bad_filter"),
        ("POST", "/v1/indexes/news/count", json!({ "filter": "a:b:c:[" }), 422, "bad_filter"),
        ("GET", "/v1/indexes/news/documents/nobody", json!({}), 404, "unknown_document"),
        ("GET", "/v1/indexes/news/facets?values=0", json!({}), 400, "bad_request"),
        ("GET", "/v1/indexes/news/facets?values=x", json!({}), 400, "bad_request"),
        ("GET", "/v1/indexes/news/codebooks/4/0", json!({}), 404, "bad_query"),
        ("GET", "/v1/jobs/5", json!({}), 404, "unknown_job"),
        ("GET", "/v1/jobs/x", json!({}), 400, "bad_request"),
        ("GET", "/nothing", json!({}), 404, "unknown_path"),
        ("PATCH", "/v1/indexes", json!({}), 405, "wrong_method"),
        ("DELETE", "/v1/indexes/news", json!({}), 409, "unsupported"),
        ("PUT", "/v1/indexes/-a", json!({}), 400, "bad_request"),
        ("PUT", "/v1/indexes/backups", json!({ "like": "news" }), 409, "index_exists"),
        ("PUT", "/v1/indexes/other", json!({ "like": "nobody" }), 404, "unknown_index"),
        ("PUT", "/v1/indexes/other", json!({ "encoder": "/etc" }), 422, "unknown_model"),
        ("PUT", "/v1/indexes/other", json!({ "encoder": "nobody/none" }), 422, "unknown_model"),
        ("POST", "/v1/embeddings", json!({ "model": "news", "input": [] }), 400, "bad_request"),
        ("POST", "/v1/embeddings", json!({ "model": "nobody", "input": "a" }), 404, "unknown_index"),
        ("POST", "/v1/embeddings", json!({ "model": "news", "input": [[1, 2]] }), 422, "bad_query"),
    ] {
        let reply = bench.call(method, path, body.clone()).await;
        let shown: String = body.to_string().chars().take(100).collect();
        assert_eq!((reply.status, reply.code()), (status, code), "{method} {path} {shown}: {}", reply.text);
        assert!(reply.body["error"]["message"].as_str().unwrap().len() > 10, "{}", reply.text);
    }
    let position = bench.call("POST", query, json!({ "vector": vector(1), "filter": "year:1987 AND [" })).await;
    assert!(position.body["error"]["position"].is_u64(), "{}", position.text);
    for (body, kind, status, code) in [
        ("{", "application/json", 400, "not_json"),
        ("", "application/json", 400, "not_json"),
        ("{} {}", "application/json", 400, "not_json"),
        ("\u{0}", "application/json", 400, "not_json"),
        ("{\"k\": 1e999}", "application/json", 400, "not_json"),
        ("{}", "text/plain", 415, "wrong_media_type"),
        ("{}", "", 415, "wrong_media_type"),
    ] {
        let reply = bench.raw("POST", query, kind, body).await;
        assert_eq!((reply.status, reply.code()), (status, code), "{body:?} {kind}: {}", reply.text);
    }
    let allow = bench.raw("PATCH", "/v1/indexes", "", Body::empty()).await;
    assert!(allow.headers["allow"].to_str().unwrap().contains("GET"), "{:?}", allow.headers);
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 10, "nothing was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writes_share_commits_and_a_bad_one_fails_alone() {
    let bench = Arc::new(Bench::new(|_| {}));
    // The writer is busy for a moment, so that the writes wait together.
    let hosted = bench.server.index("news").unwrap();
    let held = {
        let hosted = hosted.clone();
        tokio::spawn(
            async move { hosted.writes.run_exclusive(|_| std::thread::sleep(Duration::from_millis(300))).await },
        )
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let writers = (0..50).map(|i| {
        let bench = bench.clone();
        tokio::spawn(async move {
            // One in ten is invalid. The others must succeed.
            let mut new = document(i);
            if i % 10 == 3 {
                new["attributes"] = json!({ "": 1 });
            }
            bench.call("PUT", "/v1/indexes/news/documents", json!({ "documents": [new] })).await.status
        })
    });
    let statuses = futures_util::future::join_all(writers).await;
    held.await.unwrap().unwrap();
    let refused: Vec<usize> = (0..50).filter(|i| *statuses[*i].as_ref().unwrap() != 200).collect();
    assert_eq!(refused, [3, 13, 23, 33, 43]);
    assert_eq!(hosted.index().len(), 45);
    let text = bench.get("/metrics").await.text;
    assert!(text.contains("micpq_committed_documents_total{index=\"news\"} 45"), "{text}");

    // Without a bad write, all waiting writes share a commit.
    let commits = |text: &str| -> f64 {
        let line = text.lines().find(|l| l.starts_with("micpq_commit_seconds_count{index=\"news\"}")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let before = commits(&text);
    let held = {
        let hosted = hosted.clone();
        tokio::spawn(
            async move { hosted.writes.run_exclusive(|_| std::thread::sleep(Duration::from_millis(500))).await },
        )
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let writers = (100..130).map(|i| {
        let bench = bench.clone();
        tokio::spawn(async move {
            bench.call("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(i)] })).await.status
        })
    });
    assert!(futures_util::future::join_all(writers).await.into_iter().all(|status| status.unwrap() == 200));
    held.await.unwrap().unwrap();
    let after = commits(&bench.get("/metrics").await.text);
    assert!(after - before <= 3.0, "{} commits for 30 writes", after - before);
}

#[tokio::test(flavor = "multi_thread")]
async fn batched_queries_get_their_own_answers_and_errors() {
    let bench = Arc::new(Bench::new(|config| config.batch_window_ms = 50.0));
    bench.fill(30).await;
    let callers = (0..40usize).map(|i| {
        let bench = bench.clone();
        tokio::spawn(async move {
            let body = match i % 4 {
                0 => json!({ "document": "nobody" }),
                1 => json!({ "vector": vector(i), "k": 1, "filter": "place:japan" }),
                _ => json!({ "vector": vector(i % 30), "k": 1 }),
            };
            (i, bench.call("POST", "/v1/indexes/news/query", body).await)
        })
    });
    for answered in futures_util::future::join_all(callers).await {
        let (i, reply) = answered.unwrap();
        match i % 4 {
            0 => assert_eq!((reply.status, reply.code()), (422, "bad_query"), "{}", reply.text),
            1 => assert_eq!(reply.body["hits"][0]["attributes"]["place"], "japan"),
            _ => assert_eq!(reply.body["hits"][0]["id"], i % 30, "{}", reply.text),
        }
    }
    let text = bench.get("/metrics").await.text;
    assert!(text.contains("micpq_stage_seconds_count{index=\"news\",stage=\"scan\"}"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_answers_429_and_a_slow_request_504() {
    let bench = Arc::new(Bench::new(|config| {
        config.queue = 2;
        config.timeout_seconds = 0.5;
    }));
    let hosted = bench.server.index("news").unwrap();
    let (start, started) = std::sync::mpsc::channel();
    let held = {
        let hosted = hosted.clone();
        tokio::spawn(async move {
            let work = move |_: &mut crate::writes::WriterThread| {
                start.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(1500));
            };
            hosted.writes.run_exclusive(work).await
        })
    };
    tokio::task::spawn_blocking(move || started.recv()).await.unwrap().unwrap();
    let writers = (0..12).map(|i| {
        let bench = bench.clone();
        tokio::spawn(async move {
            bench.call("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(i)] })).await
        })
    });
    let replies: Vec<Reply> =
        futures_util::future::join_all(writers).await.into_iter().map(|reply| reply.unwrap()).collect();
    let many: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 429).collect();
    assert_eq!(many.len(), 10, "two wait, ten are refused");
    assert!(many.iter().all(|r| r.code() == "overloaded" && r.headers["retry-after"] == "1"));
    let slow: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 504).collect();
    assert_eq!(slow.len(), 2);
    assert!(slow.iter().all(|r| r.code() == "timeout"));
    held.await.unwrap().unwrap();
    // Accepted writes are committed although their callers timed out.
    for _ in 0..100 {
        if hosted.index().len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(hosted.index().len(), 2);
    assert!(bench.get("/metrics").await.text.contains("micpq_rejected_total{queue=\"write\"} 10"));
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_writes_are_on_disk_after_the_server_is_dropped() {
    let bench = Bench::new(|_| {});
    let hosted = bench.server.index("news").unwrap();
    let mut waiting = Vec::new();
    for i in 0..20 {
        waiting.push(hosted.writes.push(new_change(i)).unwrap());
    }
    drop(hosted);
    let Bench { dir, server, app } = bench;
    drop(app);
    assert_eq!(Arc::strong_count(&server), 1);
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    for done in waiting {
        done.await.unwrap().unwrap();
    }
    assert_eq!(Index::open(&dir.path().join("news"), &engine::NoProgress).unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_allow_what_their_role_allows() {
    let keys: Vec<(String, String)> =
        [Role::Read, Role::Write, Role::Admin].into_iter().map(|r| crate::new_key(r).unwrap()).collect();
    let lines: String = keys.iter().map(|(_, lines)| lines.as_str()).collect();
    let bench = Bench::new(|config| {
        config.keys = ServeConfig::load(None, std::iter::empty(), lines.parse().unwrap()).unwrap().keys;
    });
    let ask = |key: Option<usize>, method: &'static str, path: &'static str, body: Value| {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = match key {
            Some(i) => request.header("authorization", format!("Bearer {}", keys[i].0)),
            None => request,
        };
        bench.send(request.body(Body::from(body.to_string())).unwrap())
    };
    let new = json!({ "documents": [document(1)] });
    for (method, path, body, min_key) in [
        ("GET", "/v1/indexes", json!({}), 0),
        ("GET", "/metrics", json!({}), 0),
        ("POST", "/v1/indexes/news/query", json!({ "vector": vector(1) }), 0),
        ("PUT", "/v1/indexes/news/documents", new.clone(), 1),
        ("POST", "/v1/indexes/news/documents/delete", json!({ "ids": [] }), 1),
        ("PUT", "/v1/indexes/copy", json!({ "like": "news" }), 2),
        ("DELETE", "/v1/indexes/copy", json!({}), 2),
    ] {
        assert_eq!(ask(None, method, path, body.clone()).await.status, 401, "{method} {path}");
        for (i, _) in keys.iter().enumerate() {
            let reply = ask(Some(i), method, path, body.clone()).await;
            assert_eq!(reply.status == 403, i < min_key, "key {i}: {method} {path}: {}", reply.text);
            assert!(i < min_key || reply.status < 300, "key {i}: {method} {path}: {}", reply.text);
        }
    }
    for path in ["/healthz", "/readyz", "/v1/version", "/openapi.json", "/docs", "/"] {
        assert_eq!(ask(None, "GET", path, json!({})).await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_origins_are_refused() {
    let bench = Bench::new(|config| config.hosts = vec!["search.example".into()]);
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:6380", 200),
        ("[::1]:6380", 200),
        ("search.example:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ] {
        let request =
            Request::builder().uri("/v1/indexes").header("host", host).header("origin", "http://evil.example");
        let reply = bench.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status, status, "{host}");
        assert!(!reply.headers.contains_key("access-control-allow-origin"));
    }
    let bench = Bench::new(|config| config.cors_origins = vec!["https://page.example".into()]);
    let request =
        Request::builder().uri("/v1/indexes").header("host", "localhost").header("origin", "https://page.example");
    let reply = bench.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(reply.headers["access-control-allow-origin"], "https://page.example");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_ids_and_health_and_metrics_are_served() {
    let bench = Bench::new(|_| {});
    bench.fill(3).await;
    let request = Request::builder().uri("/healthz").header("host", "localhost").header("x-request-id", "mine-7");
    assert_eq!(bench.send(request.body(Body::empty()).unwrap()).await.headers["x-request-id"], "mine-7");
    let generated = bench.get("/healthz").await;
    assert_eq!(generated.headers["x-request-id"].len(), 24);
    assert_eq!(generated.body["status"], "ok");
    assert_eq!(bench.get("/readyz").await.status, 200);
    bench.server.set_ready(false);
    let stopping = bench.get("/readyz").await;
    assert_eq!((stopping.status, stopping.code()), (503, "stopping"));
    assert_eq!(bench.get("/v1/version").await.body["name"], "micpq");
    let text = bench.get("/metrics").await.text;
    for part in [
        "micpq_index_documents{index=\"news\"} 3",
        "process_resident_memory_bytes",
        "micpq_queue_depth{index=\"news\",queue=\"query\"} 0",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let list = bench.get("/v1/indexes").await.body;
    assert_eq!((&list["indexes"][0]["name"], &list["indexes"][0]["documents"]), (&json!("news"), &json!(3)));
    assert_eq!(list["indexes"][0]["rerank_vectors"], "int8");
    assert_eq!(bench.get("/v1/models").await.body["data"][1]["id"], "news/code");
    let api = bench.get("/openapi.json").await;
    assert!(
        api.headers["content-type"].to_str().unwrap().starts_with("application/json") && api.body["paths"].is_object()
    );
    let page = bench.get("/docs").await;
    assert!(page.headers["content-type"].to_str().unwrap().starts_with("text/html"));
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_created_backed_up_reopened_and_dropped() {
    let bench = Bench::new(|_| {});
    bench.fill(5).await;
    let created = bench.call("PUT", "/v1/indexes/copy", json!({ "like": "news", "rerank_vectors": "none" })).await;
    assert_eq!(
        (created.status, &created.body["rerank_vectors"], &created.body["documents"]),
        (201, &json!("none"), &json!(0)),
        "{}",
        created.text
    );
    assert_eq!(bench.call("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await.code(), "index_exists");
    bench.ok("PUT", "/v1/indexes/copy/documents", json!({ "documents": [document(1), document(2)] })).await;
    let backup = bench.raw("POST", "/v1/indexes/copy/backups", "", Body::empty()).await;
    assert_eq!((backup.status, &backup.body["documents"]), (201, &json!(2)), "{}", backup.text);
    let listed = bench.get("/v1/indexes/copy/backups").await.body;
    assert_eq!(listed["backups"], json!([backup.body["name"]]));
    let path = bench.dir.path().join("data/backups").join(backup.body["name"].as_str().unwrap());
    assert_eq!(Index::open(&path, &engine::NoProgress).unwrap().len(), 2);

    // A restarted server serves it again.
    let Bench { dir, server, app } = bench;
    drop(app);
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    let bench = Bench::open(dir, |_| {});
    assert_eq!(bench.ok("POST", "/v1/indexes/copy/count", json!({})).await["count"], 2);
    assert_eq!(bench.raw("DELETE", "/v1/indexes/copy", "", Body::empty()).await.status, 204);
    assert_eq!(bench.get("/v1/indexes/copy").await.code(), "unknown_index");
    assert!(!bench.dir.path().join("data/copy").exists());
    assert_eq!(bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await["documents"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn facets_codebooks_map_and_training_describe_an_index() {
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    let facets = bench.get("/v1/indexes/news/facets").await.body;
    let facet = |name: &str| facets["facets"].as_array().unwrap().iter().find(|f| f["name"] == name).unwrap().clone();
    assert_eq!(facet("place")["distinct"], 3);
    assert_eq!(facet("place")["values"][0]["count"], 20);
    assert_eq!((&facet("year")["least"], &facet("year")["greatest"]), (&json!(1987.0), &json!(1990.0)));
    assert_eq!(facet("long")["values"].as_array().unwrap().len(), 2);
    assert_eq!(facet("labels")["documents"], 60);
    // The filter of a value matches exactly its documents.
    for facet in facets["facets"].as_array().unwrap() {
        for value in facet["values"].as_array().unwrap() {
            let count = bench.ok("POST", "/v1/indexes/news/count", json!({ "filter": value["filter"] })).await;
            assert_eq!(count["count"], value["count"], "{value}");
        }
    }
    let some = bench.get("/v1/indexes/news/facets?filter=place:japan&values=1").await.body;
    let years = some["facets"].as_array().unwrap().iter().find(|f| f["name"] == "year").unwrap();
    assert_eq!((&years["documents"], years["values"].as_array().unwrap().len()), (&json!(20), 1));

    let codebooks = bench.get("/v1/indexes/news/codebooks").await.body;
    assert_eq!((codebooks["usage"].as_array().unwrap().len(), &codebooks["documents"]), (4, &json!(60)));
    let mut members = 0;
    for codeword in 0..16 {
        let gathered = bench.get(&format!("/v1/indexes/news/codebooks/1/{codeword}?documents=1000")).await.body;
        let documents = gathered["documents"].as_array().unwrap();
        assert_eq!(documents.len() as u64, codebooks["usage"][1][codeword].as_u64().unwrap());
        members += documents.len();
    }
    assert_eq!(members, 60);
    let map = bench.get("/v1/indexes/news/map?points=50").await.body;
    assert_eq!(map["points"].as_array().unwrap().len(), 50);
    let shares: Vec<f64> = map["shares"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).collect();
    assert!(shares.len() == 2 && shares[0] >= shares[1], "{shares:?}");
    assert_eq!(bench.get("/v1/indexes/news/map?points=50").await.body, map);
    let training = bench.get("/v1/indexes/news/training").await.body;
    assert_eq!((&training["method"], &training["metrics"]), (&json!("test"), &Value::Null));
    assert_eq!(
        bench.raw("POST", "/v1/indexes/news/train", "", Body::empty()).await.status,
        202,
        "the job starts, and then fails without an encoder"
    );
    for _ in 0..100 {
        let job = bench.get("/v1/jobs/1").await.body;
        if job["status"] == "failed" {
            assert!(job["error"].as_str().unwrap().contains("trained on user vectors"), "{job}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the job does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_and_topics_are_jobs_that_may_change_the_index() {
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    let copy = |id: usize, of: usize| {
        let mut copy = document(of);
        copy["id"] = id.into();
        copy
    };
    let copies: Vec<Value> = (0..5).map(|i| copy(100 + i, 7 * i)).collect();
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": copies })).await;
    let ended = async |path: &str, body: Value| -> Value {
        let job = bench.ok("POST", path, body).await["id"].clone();
        for _ in 0..200 {
            let job = bench.get(&format!("/v1/jobs/{job}")).await.body;
            if job["status"] != "running" {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the job does not end");
    };
    let dedup = "/v1/indexes/news/dedup";
    let found = ended(dedup, json!({ "by": "text", "groups": 2 })).await;
    let result = &found["result"];
    assert_eq!((&found["kind"], &result["exact"], &result["total_groups"]), (&json!("dedup"), &json!(5), &json!(5)));
    assert_eq!(result["groups"].as_array().unwrap().len(), 2);
    assert_eq!(result["groups"][0]["duplicates"][0]["id"], 100);
    let marked = ended(dedup, json!({ "by": "text", "mark": "copy_of" })).await;
    assert_eq!(marked["result"]["marked"], 5, "{marked}");
    let count = async |filter: &str| bench.ok("POST", "/v1/indexes/news/count", json!({ "filter": filter })).await;
    assert_eq!(count("copy_of:*").await["count"], 5);
    let deleted = ended(dedup, json!({ "by": "text", "delete": true })).await;
    assert_eq!(deleted["result"]["deleted"], json!({ "deleted": 5, "stale": 0, "documents": 60 }), "{deleted}");

    let topics = ended("/v1/indexes/news/topics", json!({ "topics": 3, "mark": "topic" })).await;
    let result = &topics["result"];
    assert_eq!((result["topics"].as_array().unwrap().len(), &result["over"]), (3, &json!("year")), "{topics}");
    let first = &result["topics"][0];
    assert_eq!(count("topic:0").await["count"], first["documents"]);
    // The server still writes and searches.
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(200)] })).await;
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 61);
    assert_eq!(bench.call("POST", dedup, json!({ "threshold": 3 })).await.status, 400);
    assert_eq!(bench.call("POST", "/v1/indexes/news/topics", json!({ "topics": 5000 })).await.status, 400);
    let failed = ended("/v1/indexes/news/topics", json!({ "topics": 500 })).await;
    assert!(failed["error"].as_str().unwrap().contains("61 documents"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recall_is_measured_in_the_background_and_shown_by_window() {
    let bench = Bench::new(|_| {});
    bench.fill(1200).await;
    assert_eq!(bench.get("/v1/indexes/news/recall").await.body, json!({ "report": null }));
    let wrong = bench.call("POST", "/v1/indexes/news/recall", json!({ "windows": 0 })).await;
    assert_eq!((wrong.status, wrong.code()), (400, "bad_request"), "{}", wrong.text);
    let unknown = bench.call("POST", "/v1/indexes/nobody/recall", Value::Null).await;
    assert_eq!(unknown.status, 404, "a body of null is none: {}", unknown.text);
    let started = bench.call("POST", "/v1/indexes/news/recall", json!({ "windows": 3, "rerank": 50 })).await;
    assert_eq!((started.status, &started.body["kind"]), (202, &json!("recall")), "{}", started.text);
    let id = started.body["id"].as_u64().unwrap();
    let mut job = Value::Null;
    for _ in 0..200 {
        job = bench.get(&format!("/v1/jobs/{id}")).await.body;
        if job["status"] != "running" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(job["status"], "succeeded", "{job}");
    let report = &bench.get("/v1/indexes/news/recall").await.body["report"];
    assert_eq!(*report, job["result"]);
    assert_eq!((report["windows"].as_array().unwrap().len(), &report["documents"]), (3, &json!(1200)));
    let metrics = bench.get("/metrics").await.text;
    for window in ["all", "0", "1", "2"] {
        let line = format!("micpq_index_recall{{index=\"news\",window=\"{window}\"}} ");
        assert!(metrics.contains(&line), "{line} is missing");
    }
    // A second measurement with fewer windows leaves no old ones.
    bench.ok("POST", "/v1/indexes/news/recall", json!({ "windows": 1 })).await;
    for _ in 0..200 {
        if bench.get("/v1/jobs").await.body["jobs"][0]["status"] == "succeeded" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!bench.get("/metrics").await.text.contains("micpq_index_recall{index=\"news\",window=\"1\"}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_and_the_lock_of_other_programs_are_respected() {
    let bench = Bench::new(|config| config.writer_idle_seconds = 0.1);
    bench.fill(3).await;
    let path: &Path = &bench.dir.path().join("news");
    // An idle server releases the lock.
    let other = Index::open(path, &engine::NoProgress).unwrap();
    let mut writer = None;
    for _ in 0..100 {
        writer = other.writer().ok();
        if writer.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut writer = writer.expect("the server releases the lock");
    let busy = bench.call("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(9)] })).await;
    assert_eq!((busy.status, busy.code()), (409, "index_busy"), "{}", busy.text);
    writer.delete(&engine::corpus::DocId::Int(1)).unwrap();
    writer.commit(&engine::NoProgress).unwrap();
    drop(writer);
    bench.server.index("news").unwrap().follow();
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 2);
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(9)] })).await;
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 3);
}

/// Every method and path of the description, with values for the path parameters.
fn described() -> Vec<(String, String)> {
    let api: Value = serde_json::from_str(&crate::openapi()).unwrap();
    let mut all = Vec::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        let path = path.replace("{index}", "news").replace("{id}", "1").replace("{job}", "1");
        let path = path.replace("{codebook}", "0").replace("{codeword}", "0");
        assert!(!path.contains('{'), "{path}");
        for method in methods.as_object().unwrap().keys() {
            all.push((method.to_uppercase(), path.clone()));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_other_sites_are_refused() {
    let bench = Bench::new(|config| config.cors_origins = vec!["https://page.example".into()]);
    bench.fill(3).await;
    let routes = described();
    assert!(routes.len() > 25, "{routes:?}");
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost:6380");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        bench.send(request.body(Body::empty()).unwrap())
    };
    let foreign: [&[(&str, &str)]; 10] = [
        &[("origin", "http://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://localhost")],
        &[("origin", "http://localhost:6381")],
        &[("origin", "http://localhost:6380.evil.example")],
        &[("origin", "ftp://localhost:6380")],
        &[("origin", "https://page.example.evil.example")],
        &[("origin", "http://evil.example"), ("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
    ];
    let own: [&[(&str, &str)]; 5] = [
        &[("origin", "http://localhost:6380"), ("sec-fetch-site", "same-origin")],
        &[("origin", "http://LOCALHOST:6380")],
        &[("origin", "https://page.example"), ("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "none")],
        &[],
    ];
    for (method, path) in &routes {
        let open = method == "GET" && !path.starts_with("/v1/indexes/") && path != "/metrics";
        for headers in foreign {
            let reply = ask(method, path, headers).await;
            if open {
                assert_ne!(reply.status, 403, "{method} {path} {headers:?}: {}", reply.text);
            } else {
                assert_eq!((reply.status, reply.code()), (403, "cross_site"), "{method} {path} {headers:?}");
            }
        }
    }
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 3, "nothing was changed");
    assert_eq!(bench.get("/v1/jobs").await.body["jobs"], json!([]), "no job was started");
    for headers in own {
        for (method, path) in routes.iter().filter(|(method, _)| method != "DELETE") {
            let reply = ask(method, path, headers).await;
            assert_ne!(reply.status, 403, "{method} {path} {headers:?}: {}", reply.text);
        }
    }
    // A link of another site leads to the page.
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    for path in ["/", "/page/app.js", "/docs", "/openapi.json"] {
        assert_eq!(ask("GET", path, &link).await.status, 200, "{path}");
    }
    let preflight = [("origin", "http://evil.example"), ("access-control-request-method", "POST")];
    let reply = ask("OPTIONS", "/v1/indexes/news/query", &preflight).await;
    assert!(!reply.headers.contains_key("access-control-allow-origin"), "{:?}", reply.headers);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_body_needs_a_json_media_type() {
    let bench = Bench::new(|_| {});
    bench.fill(3).await;
    let changing = described().into_iter().filter(|(method, _)| method != "GET");
    for (method, path) in changing {
        for kind in ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            let request = Request::builder().method(method.as_str()).uri(&path).header("host", "localhost:6380");
            let request = request.header("content-length", "2");
            let request = if kind.is_empty() { request } else { request.header("content-type", kind) };
            let reply = bench.send(request.body(Body::from("{}")).unwrap()).await;
            assert_eq!((reply.status, reply.code()), (415, "wrong_media_type"), "{method} {path} {kind:?}");
        }
    }
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 3);
    assert_eq!(bench.get("/v1/jobs").await.body["jobs"], json!([]));
    assert_eq!(bench.raw("POST", "/v1/indexes/news/backups", "", Body::empty()).await.status, 201);
}

fn new_change(i: usize) -> Change {
    let new: crate::routes::NewDocument = serde_json::from_value(document(i)).unwrap();
    let crate::routes::Id(id) = new.id;
    let stored = engine::corpus::Document { id, text: new.text.unwrap(), labels: vec![], attributes: vec![] };
    Change::Upsert(vec![(stored, new.vector.map(|vector| vector.0))])
}

fn sound(dir: &Path) {
    let problems = engine::index::verify(dir, &engine::NoProgress).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}

impl Bench {
    /// Restarts the server.
    async fn restarted(self, change: impl FnOnce(&mut ServeConfig)) -> Bench {
        let Bench { dir, server, app } = self;
        drop(app);
        tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
        Bench::open(dir, change)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_index_refuses_writes_of_old_handles() {
    let bench = Bench::new(|_| {});
    bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    bench.ok("PUT", "/v1/indexes/copy/documents", json!({ "documents": [document(1)] })).await;
    let old = bench.server.index("copy").unwrap();
    // A write waits behind other work of the writer thread when the drop arrives.
    let held = {
        let old = old.clone();
        tokio::spawn(async move { old.writes.run_exclusive(|_| std::thread::sleep(Duration::from_millis(300))).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let waiting = old.writes.push(new_change(2)).unwrap();
    assert_eq!(bench.raw("DELETE", "/v1/indexes/copy", "", Body::empty()).await.status, 204);
    held.await.unwrap().unwrap();
    let refused = old.writes.result(waiting.await).unwrap_err();
    assert_eq!((refused.status.as_u16(), refused.details.code), (404, crate::problem::Code::UnknownIndex));
    bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    let refused = old.writes.change(new_change(3)).await.unwrap_err();
    assert_eq!((refused.status.as_u16(), refused.details.code), (404, crate::problem::Code::UnknownIndex));
    assert!(old.writes.run_exclusive_blocking(|_| ()).is_err());
    assert_eq!(bench.ok("POST", "/v1/indexes/copy/count", json!({})).await["count"], 0);
    assert!(old.index().get(&engine::corpus::DocId::Int(1)).unwrap().is_some(), "old readers still work");
    sound(&bench.dir.path().join("data/copy"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_dropped_and_created_under_load_is_sound_after_a_restart() {
    let bench = Arc::new(Bench::new(|_| {}));
    bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|w| {
            let (bench, done) = (bench.clone(), done.clone());
            tokio::spawn(async move {
                let mut statuses = std::collections::BTreeMap::new();
                for i in 0.. {
                    if done.load(std::sync::atomic::Ordering::SeqCst) {
                        break;
                    }
                    let documents: Vec<Value> = (0..8).map(|j| document(w * 1000 + i % 50 * 8 + j)).collect();
                    let reply =
                        bench.call("PUT", "/v1/indexes/copy/documents", json!({ "documents": documents })).await;
                    assert!(matches!(reply.status, 200 | 404), "{} {}", reply.status, reply.text);
                    *statuses.entry(reply.status).or_insert(0) += 1;
                }
                statuses
            })
        })
        .collect();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(bench.raw("DELETE", "/v1/indexes/copy", "", Body::empty()).await.status, 204);
        bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut written = 0;
    for writer in futures_util::future::join_all(writers).await {
        written += writer.unwrap().get(&200).copied().unwrap_or(0);
    }
    assert!(written > 0);
    let bench = Arc::try_unwrap(bench).ok().unwrap().restarted(|_| {}).await;
    sound(&bench.dir.path().join("data/copy"));
    assert_eq!(bench.get("/readyz").await.body["status"], "ok");
    let count = bench.ok("POST", "/v1/indexes/copy/count", json!({})).await;
    bench.ok("PUT", "/v1/indexes/copy/documents", json!({ "documents": [document(9000)] })).await;
    assert_eq!(bench.get("/v1/indexes/copy").await.body["documents"].as_u64(), count["count"].as_u64().map(|n| n + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_index_is_unavailable_and_the_others_are_served() {
    let bench = Bench::new(|_| {});
    bench.fill(3).await;
    bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    bench.ok("PUT", "/v1/indexes/copy/documents", json!({ "documents": [document(1)] })).await;
    let Bench { dir, server, app } = bench;
    drop(app);
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    let meta = dir.path().join("data/copy/store/meta.json");
    let good = std::fs::read(&meta).unwrap();
    std::fs::write(&meta, b"{ not a list of segments").unwrap();
    let bench = Bench::open(dir, |_| {});
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 3, "the other index is served");
    for (method, path) in described() {
        let path = path.replace("/news", "/copy");
        if !path.starts_with("/v1/indexes/copy") || path == "/v1/indexes/copy" && method != "GET" {
            continue;
        }
        let kind = if path.ends_with("/stream") { "application/x-ndjson" } else { "application/json" };
        let body = if method == "GET" { Body::empty() } else { Body::from("{}") };
        let reply = bench.raw(&method, &path, kind, body).await;
        assert_eq!((reply.status, reply.code()), (503, "index_unavailable"), "{method} {path}: {}", reply.text);
        assert!(!reply.text.contains(bench.dir.path().to_str().unwrap()), "{}", reply.text);
    }
    let list = bench.get("/v1/indexes").await.body;
    assert_eq!((&list["indexes"][0]["name"], &list["indexes"][0]["status"]), (&json!("news"), &json!("open")));
    let broken = &list["unavailable"][0];
    assert_eq!((&broken["name"], &broken["status"]), (&json!("copy"), &json!("unavailable")));
    assert!(broken["reason"].as_str().unwrap().len() > 10 && broken["droppable"] == true, "{broken}");
    let ready = bench.get("/readyz").await;
    assert_eq!((ready.status, &ready.body["status"]), (200, &json!("degraded")));
    assert_eq!(ready.body["unavailable"], json!(["copy"]));
    assert_eq!(bench.call("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await.code(), "index_exists");

    let bench = bench.restarted(|config| config.ready_needs_all = true).await;
    let ready = bench.get("/readyz").await;
    assert_eq!((ready.status, ready.code()), (503, "index_unavailable"));
    // A repaired index is served again. A damaged one can be dropped.
    std::fs::write(&meta, &good).unwrap();
    let bench = bench.restarted(|_| {}).await;
    assert_eq!(bench.ok("POST", "/v1/indexes/copy/count", json!({})).await["count"], 1);
    std::fs::write(&meta, b"{}").unwrap();
    let bench = bench.restarted(|_| {}).await;
    assert_eq!(bench.raw("DELETE", "/v1/indexes/copy", "", Body::empty()).await.status, 204);
    assert_eq!(bench.get("/v1/indexes/copy").await.code(), "unknown_index");
    assert_eq!(bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await["documents"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_drop_is_completed_at_the_next_start() {
    let bench = Bench::new(|_| {});
    bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    let data = bench.dir.path().join("data");
    let Bench { dir, server, app } = bench;
    drop(app);
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    let renamed = data.join(".copy.dropped");
    std::fs::rename(data.join("copy"), &renamed).unwrap();
    let bench = Bench::open(dir, |_| {});
    assert!(!renamed.exists(), "the start removes it");
    assert_eq!(bench.get("/v1/indexes/copy").await.code(), "unknown_index");
    // A leftover directory does not prevent the next drop.
    bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    std::fs::create_dir(&renamed).unwrap();
    std::fs::write(renamed.join("left"), "over").unwrap();
    assert_eq!(bench.raw("DELETE", "/v1/indexes/copy", "", Body::empty()).await.status, 204);
    assert_eq!(bench.get("/v1/indexes/copy").await.code(), "unknown_index");
    assert!(!renamed.exists() && !data.join("copy").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writer_thread_survives_a_panic() {
    let bench = Bench::new(|_| {});
    bench.fill(3).await;
    let hosted = bench.server.index("news").unwrap();
    for i in 0..3 {
        let error =
            hosted.writes.run_exclusive(|_| panic!("as a library does when descriptors run out")).await.unwrap_err();
        assert_eq!(error.status, 500);
        bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(10 + i)] })).await;
    }
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 6);
    sound(&bench.dir.path().join("news"));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_large_answers_are_refused_with_the_limit() {
    let bench = Bench::new(|config| config.max_answer_bytes = 4000);
    bench.fill(100).await;
    let ids: Vec<usize> = (0..100).collect();
    let path = "/v1/indexes/news";
    for (path, body) in [
        (format!("{path}/query"), json!({ "vector": vector(1), "k": 100 })),
        (format!("{path}/query/batch"), json!({ "queries": [{ "vector": vector(1), "k": 100 }] })),
        (format!("{path}/documents/get"), json!({ "ids": ids })),
    ] {
        let reply = bench.call("POST", &path, body).await;
        assert_eq!((reply.status, reply.code()), (422, "answer_too_large"), "{path}: {}", reply.text);
        assert!(reply.text.contains("4000"), "{}", reply.text);
    }
    bench.ok("POST", "/v1/indexes/news/query", json!({ "vector": vector(1), "k": 5 })).await;
    assert!(bench.get("/openapi.json").await.text.len() > 4000, "the limit does not apply to the description");
    // Texts over the limit are not collected.
    let texts: Vec<Value> =
        (0..3).map(|i| json!({ "id": 200 + i, "vector": vector(i), "text": "long ".repeat(300) })).collect();
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": texts })).await;
    let reply = bench.call("POST", "/v1/indexes/news/documents/get", json!({ "ids": [200, 201, 202] })).await;
    assert_eq!(reply.code(), "answer_too_large");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_writes_are_limited_in_bytes() {
    let bench = Arc::new(Bench::new(|config| {
        config.max_body_bytes = 20_000;
        config.max_bodies_bytes = 30_000;
    }));
    let hosted = bench.server.index("news").unwrap();
    let held = {
        let hosted = hosted.clone();
        tokio::spawn(
            async move { hosted.writes.run_exclusive(|_| std::thread::sleep(Duration::from_millis(600))).await },
        )
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    // The callers disconnect soon; their writes still wait.
    for i in 0..6 {
        let new = json!({ "documents": [{ "id": i, "vector": vector(i), "text": "long ".repeat(2000) }] });
        let call = bench.call("PUT", "/v1/indexes/news/documents", new);
        match tokio::time::timeout(Duration::from_millis(60), call).await {
            Err(_) => assert!(i < 3, "{i} waits"),
            Ok(reply) => assert_eq!((i >= 2, reply.status, reply.code()), (true, 429, "overloaded"), "{i}"),
        }
    }
    held.await.unwrap().unwrap();
    for _ in 0..100 {
        if hosted.writes.depth() == 0 && hosted.index().len() >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(9)] })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vector_as_list_base64_and_bytes_gives_the_same_answer() {
    use base64::Engine;
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    let bytes: Vec<u8> = vector(7).iter().flat_map(|v| v.to_le_bytes()).collect();
    let packed = base64::prelude::BASE64_STANDARD.encode(&bytes);
    let list = bench.ok("POST", "/v1/indexes/news/query", json!({ "vector": vector(7), "k": 5 })).await;
    let text = bench.ok("POST", "/v1/indexes/news/query", json!({ "vector": packed, "k": 5 })).await;
    let octets = "application/octet-stream";
    let path = "/v1/indexes/news/query/vector?k=5";
    let reply = bench.raw("POST", path, octets, bytes.clone()).await;
    assert_eq!(list["hits"][0]["id"], 7);
    assert_eq!((&list["hits"], &list["hits"]), (&text["hits"], &reply.body["hits"]));
    let filtered =
        bench.raw("POST", "/v1/indexes/news/query/vector?filter=year:1988&documents=false", octets, bytes.clone());
    let filtered = filtered.await;
    assert_eq!(filtered.status, 200, "{}", filtered.text);
    assert!(filtered.body["hits"].as_array().unwrap().iter().all(|hit| hit["id"].as_u64().unwrap() % 4 == 1));

    let wrong = bench.raw("POST", path, octets, bytes[..7].to_vec()).await;
    assert_eq!((wrong.status, wrong.code()), (422, "bad_vector"));
    let narrow = bench.raw("POST", path, octets, bytes[..8].to_vec()).await;
    assert_eq!((narrow.status, narrow.code()), (422, "bad_vector"));
    let untyped = bench.raw("POST", path, "", bytes.clone()).await;
    assert_eq!((untyped.status, untyped.code()), (415, "wrong_media_type"));
    let option = bench.raw("POST", "/v1/indexes/news/query/vector?q=5", octets, bytes).await;
    assert_eq!((option.status, option.code()), (400, "bad_request"));
    // A stored vector may be base64 too.
    let stored = json!({ "documents": [{ "id": 999, "vector": packed }] });
    bench.ok("PUT", "/v1/indexes/news/documents", stored).await;
    let found = bench.ok("POST", "/v1/indexes/news/query", json!({ "document": 999, "k": 1 })).await;
    assert_eq!(found["hits"][0]["id"], 7);
}
