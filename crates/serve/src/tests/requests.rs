//! Requests of any path: refusals, ids, health.

use super::*;

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
async fn requests_have_ids_and_health_and_metrics_are_served() {
    let bench = Bench::new(|_| {});
    bench.fill(3).await;
    let request = Request::builder().uri("/healthz").header("host", "localhost").header("x-request-id", "mine-7");
    assert_eq!(bench.send(request.body(Body::empty()).unwrap()).await.headers["x-request-id"], "mine-7");
    let generated = bench.get("/healthz").await;
    assert_eq!(generated.headers["x-request-id"].len(), 24);
    assert_eq!(generated.body["status"], "ok");
    assert_eq!(bench.get("/readyz").await.status, 200);
    bench.server.set_phase(Phase::Stopping);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_opens_its_indexes_answers_health_and_refuses_the_rest() {
    let bench = Bench::new(|_| {});
    bench.fill(3).await;
    bench.server.set_phase(Phase::Opening);
    for (path, status) in
        [("/healthz", 200), ("/v1/version", 200), ("/metrics", 200), ("/readyz", 503), ("/v1/indexes", 503)]
    {
        let reply = bench.get(path).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.text);
        assert!(status == 200 || reply.code() == "index_unavailable", "{path}: {}", reply.text);
    }
    // An index that is not open yet is not unknown.
    let query = bench.raw("POST", "/v1/indexes/news/count", "application/json", "{}").await;
    assert_eq!((query.status, query.code()), (503, "index_unavailable"));
    bench.server.set_phase(Phase::Serving);
    assert_eq!(bench.get("/readyz").await.status, 200);
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_values_of_a_body_are_counted_before_they_are_made() {
    let bench = Bench::new(|config| {
        config.max_body_bytes = 4 << 20;
        config.max_bodies_bytes = 16 << 20;
    });
    // A million empty documents would take 300 MB.
    let empty = format!("{{\"documents\":[{}{{}}]}}", "{},".repeat(1_000_000));
    let reply = bench.raw("PUT", "/v1/indexes/news/documents", "application/json", empty).await;
    assert_eq!((reply.status, reply.code()), (413, "too_large"), "{}", reply.text);
    // Vectors of the same size are parsed.
    let numbers = "0.12345678,".repeat(300_000);
    let reply =
        bench.raw("POST", "/v1/indexes/news/query", "application/json", format!("{{\"vector\":[{numbers}0]}}")).await;
    assert_eq!(reply.code(), "bad_vector", "{}", reply.text);
    bench.fill(500).await;
}
