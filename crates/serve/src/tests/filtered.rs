//! Keys with a filter, on an index that they share with others: every route of the description, for foreign data.

use super::*;
use crate::config::KeyConfig;

/// The documents of the tenant have these numbers.
const OWN: std::ops::Range<usize> = 100..106;

struct Shared {
    bench: Bench,
    /// Keys of every role with the filter.
    keys: Vec<String>,
    owner: String,
}

fn key(role: Role, change: impl FnOnce(&mut KeyConfig)) -> (String, KeyConfig) {
    let (key, lines) = crate::new_key(role).unwrap();
    let config = ServeConfig::load(None, std::iter::empty(), lines.parse().unwrap()).unwrap();
    let mut config = config.keys[0].clone();
    change(&mut config);
    (key, config)
}

/// A document of the tenant `acme`.
fn own(i: usize) -> Value {
    json!({
        "id": i, "text": format!("report {i} of the tenant"), "vector": vector(i), "labels": ["own"],
        "attributes": { "tenant": "acme", "year": 1990 + i % 3 }
    })
}

/// A document of somebody else, whose every part says so.
fn foreign(i: usize) -> Value {
    json!({
        "id": if i == 0 { json!(1) } else { json!(format!("hidden-{i}")) }, "text": format!("hush secret {i}"),
        "vector": vector(i), "labels": ["secretlabel"],
        "attributes": { "tenant": "other", "secretname": "secretvalue", "year": 1990 }
    })
}

impl Shared {
    async fn new() -> Shared {
        Shared::with(|_| {}).await
    }

    async fn with(change: impl Fn(&mut KeyConfig)) -> Shared {
        let (owner, all) = key(Role::Admin, |_| {});
        let limited = [Role::Read, Role::Write, Role::Admin].map(|role| {
            key(role, |key| {
                key.filter = Some("tenant:acme".into());
                change(key);
            })
        });
        let (keys, mut configs): (Vec<_>, Vec<_>) = limited.into_iter().unzip();
        configs.push(all);
        let bench = Bench::new(|config| config.keys = configs);
        let shared = Shared { bench, keys, owner };
        let documents: Vec<Value> = (0..12).map(foreign).chain(OWN.map(own)).collect();
        let body = json!({ "documents": documents });
        shared.ok(&shared.owner, "PUT", "/v1/indexes/news/documents", &body).await;
        let watch = json!({ "vector": vector(3), "distance": 1e6 });
        shared.ok(&shared.owner, "PUT", "/v1/indexes/news/watch/secretquery", &watch).await;
        shared.ok(&shared.owner, "PUT", "/v1/indexes/news/documents", &json!({ "documents": [foreign(13)] })).await;
        shared
    }

    async fn ask(&self, key: &str, method: &str, path: &str, body: &Value) -> Reply {
        let route = path.split('?').next().unwrap();
        let kind = if route.ends_with("/stream") { "application/x-ndjson" } else { "application/json" };
        let kind = if route.ends_with("/query/vector") { "application/octet-stream" } else { kind };
        let bytes = match kind {
            "application/octet-stream" => vector(3).iter().flat_map(|value| value.to_le_bytes()).collect(),
            _ => body.to_string().into_bytes(),
        };
        let request = Request::builder().method(method).uri(path).header("host", "localhost:6380");
        let request = request.header("content-type", kind).header("api-key", key);
        self.bench.send(request.body(Body::from(bytes)).unwrap()).await
    }

    async fn ok(&self, key: &str, method: &str, path: &str, body: &Value) -> Value {
        let reply = self.ask(key, method, path, body).await;
        assert!(reply.status < 300, "{method} {path} {body}: {} {}", reply.status, reply.text);
        reply.body
    }

    async fn count(&self, key: &str) -> usize {
        self.ok(key, "POST", "/v1/indexes/news/count", &json!({})).await["count"].as_u64().unwrap() as usize
    }

    fn writer(&self) -> &str {
        &self.keys[1]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_shows_or_changes_a_document_outside_the_filter() {
    let shared = Shared::new().await;
    let sly = "year:1990) OR (tenant:other";
    let bodies = [
        json!({}),
        json!({ "vector": vector(1), "k": 50, "explain": true, "snippets": true, "keywords": "hush" }),
        json!({ "vector": vector(1), "k": 50, "hybrid": 1.0, "keywords": "hush" }),
        json!({ "vector": vector(1), "k": 50, "filter": "*" }),
        json!({ "vector": vector(1), "k": 50, "filter": "tenant:other OR *" }),
        json!({ "vector": vector(1), "k": 50, "filter": "NOT tenant:acme" }),
        json!({ "vector": vector(1), "k": 50, "filter": sly }),
        json!({ "document": 1, "k": 50 }),
        json!({ "document": "hidden-2" }),
        json!({ "like": [{ "vector": vector(1) }, { "document": 1 }] }),
        json!({ "filter": "*" }),
        json!({ "filter": "nowhere:x" }),
        json!({ "filter": sly }),
        json!({ "documents": [foreign(0)] }),
        json!({ "documents": [foreign(99)] }),
        json!({ "documents": [own(OWN.start), { "id": 1, "vector": vector(1), "attributes": { "tenant": "acme" } }] }),
        foreign(0),
        json!({ "ids": [1, "hidden-2", "hidden-3"] }),
        json!({ "queries": [{ "vector": vector(1), "k": 50 }, { "vector": vector(2), "filter": "tenant:other" }] }),
        json!({ "model": "news", "input": "oil" }),
        json!({ "vector": vector(3), "distance": 1e6, "filter": "tenant:other" }),
        json!({ "like": "news" }),
        json!({ "by": "text", "delete": true, "mark": "copy" }),
    ];
    let (before, paths) = (shared.count(&shared.owner).await, described());
    for key in &shared.keys {
        for (method, path) in &paths {
            // Of several routes with options in the address, those that could widen what is seen.
            let variants = match path.rsplit('/').next().unwrap() {
                "facets" => vec!["", "?filter=*&values=100", "?filter=tenant:other"],
                "matches" => vec!["", "?all=true", "?all=true&name=secretquery"],
                "vector" => vec!["", "?k=50&filter=tenant:other"],
                "0" => vec!["", "?documents=1000"],
                _ => vec![""],
            };
            for (body, options) in bodies.iter().flat_map(|body| variants.iter().map(move |options| (body, options))) {
                let reply = shared.ask(key, method, &format!("{path}{options}"), body).await;
                let told = format!("{method} {path}{options} {body}: {} {}", reply.status, reply.text);
                assert!(reply.status < 500, "{told}");
                // What the caller wrote may be told back to him.
                let text = ["hidden-99", "hidden-2", "hidden-3", "secretquery"]
                    .iter()
                    .fold(reply.text.clone(), |text, own| text.replace(own, ""));
                assert!(!text.contains("hidden-") && !text.contains("secret"), "{told}");
            }
        }
        // The deletions of this key.
        for codeword in 0..16 {
            let path = format!("/v1/indexes/news/codebooks/1/{codeword}?documents=1000");
            let reply = shared.ask(key, "GET", &path, &json!({})).await;
            assert!(reply.status == 200 && !reply.text.contains("secret"), "{}", reply.text);
        }
        let left = shared.count(&shared.owner).await - shared.count(key).await;
        assert_eq!(left, before - OWN.len(), "foreign documents are untouched");
        let documents: Vec<Value> = OWN.map(own).collect();
        shared.ok(&shared.owner, "PUT", "/v1/indexes/news/documents", &json!({ "documents": documents })).await;
    }
    let first = shared.ok(&shared.owner, "GET", "/v1/indexes/news/documents/1", &json!({})).await;
    assert_eq!(first["text"], "hush secret 0");
    let watched = shared.ok(&shared.owner, "GET", "/v1/indexes/news/watch", &json!({})).await;
    assert!(watched.to_string().contains("secretquery"), "{watched}");
    assert_eq!(shared.ok(&shared.owner, "GET", "/v1/jobs", &json!({})).await["jobs"], json!([]), "no job was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documents_inside_the_filter_are_there_on_every_route() {
    let shared = Shared::new().await;
    let reader = &shared.keys[0];
    let ids = |hits: &Value, name: &str| -> std::collections::BTreeSet<u64> {
        hits[name].as_array().unwrap().iter().map(|hit| hit["id"].as_u64().unwrap()).collect()
    };
    let all: std::collections::BTreeSet<u64> = OWN.map(|i| i as u64).collect();
    let query = json!({ "vector": vector(1), "k": 50 });
    let found = shared.ok(reader, "POST", "/v1/indexes/news/query", &query).await;
    assert_eq!(ids(&found, "hits"), all);
    let batch = json!({ "queries": [query, { "document": OWN.start, "k": 50 }] });
    let answers = shared.ok(reader, "POST", "/v1/indexes/news/query/batch", &batch).await;
    assert_eq!(
        (ids(&answers["answers"][0], "hits"), ids(&answers["answers"][1], "hits").len()),
        (all.clone(), all.len() - 1)
    );
    let by_bytes = shared.ok(reader, "POST", "/v1/indexes/news/query/vector?k=50", &json!({})).await;
    assert_eq!(ids(&by_bytes, "hits"), all);
    // Pages end where the documents of the key end.
    let mut paged = std::collections::BTreeSet::new();
    let mut after = Value::Null;
    loop {
        let mut query = json!({ "vector": vector(1), "k": 4 });
        if !after.is_null() {
            query["after"] = after;
        }
        let page = shared.ok(reader, "POST", "/v1/indexes/news/query", &query).await;
        paged.extend(ids(&page, "hits"));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(paged, all);
    assert_eq!(shared.count(reader).await, OWN.len());
    let year = shared.ok(reader, "POST", "/v1/indexes/news/count", &json!({ "filter": "year:1991" })).await;
    assert_eq!(year["count"], OWN.filter(|i| 1990 + i % 3 == 1991).count());
    let fetched = shared.ok(reader, "POST", "/v1/indexes/news/documents/get", &json!({ "ids": [100, 1, 101] })).await;
    assert!(fetched["documents"][1].is_null() && fetched["documents"][2]["id"] == 101, "{fetched}");
    assert_eq!(shared.ask(reader, "GET", "/v1/indexes/news/documents/1", &json!({})).await.status, 404);
    let facets = shared.ok(reader, "GET", "/v1/indexes/news/facets", &json!({})).await;
    let tenant = facets["facets"].as_array().unwrap().iter().find(|facet| facet["name"] == "tenant").unwrap();
    assert_eq!((&tenant["documents"], &tenant["distinct"]), (&json!(OWN.len()), &json!(1)));
    // A map is of all documents.
    assert_eq!(shared.ask(reader, "GET", "/v1/indexes/news/map", &json!({})).await.status, 403);
    let view = shared.ok(reader, "GET", "/v1/indexes/news", &json!({})).await;
    assert_eq!((&view["documents"], view.get("bytes")), (&json!(OWN.len()), None), "{view}");
    let members: usize = {
        let mut members = 0;
        for codeword in 0..16 {
            let path = format!("/v1/indexes/news/codebooks/0/{codeword}?documents=1000");
            members += shared.ok(reader, "GET", &path, &json!({})).await["documents"].as_array().unwrap().len();
        }
        members
    };
    assert_eq!(members, OWN.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_without_documents_is_told_no_names_of_others() {
    // No document has this attribute.
    let shared = Shared::with(|key| {
        key.filter = Some("customer:new".into());
        key.max_documents = Some(1);
    })
    .await;
    let writer = shared.writer();
    assert_eq!(shared.count(writer).await, 0);
    for (method, path, body) in [
        ("GET", "/v1/indexes/news", json!({})),
        ("GET", "/v1/indexes/news/facets", json!({})),
        ("GET", "/v1/indexes/news/matches?all=true", json!({})),
        ("POST", "/v1/indexes/news/query", json!({ "vector": vector(1) })),
        ("POST", "/v1/indexes/news/query", json!({ "vector": vector(1), "filter": "nowhere:x" })),
        ("POST", "/v1/indexes/news/documents/get", json!({ "ids": [1] })),
        ("POST", "/v1/indexes/news/documents/delete", json!({ "filter": "*" })),
        ("POST", "/v1/indexes/news/documents/delete", json!({ "ids": [1] })),
    ] {
        let reply = shared.ask(writer, method, path, &body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert!(!reply.text.contains("secret"), "{path}: {}", reply.text);
    }
    let refused = shared.ask(writer, "PUT", "/v1/indexes/news/documents", &json!({ "documents": [own(300)] })).await;
    assert!(refused.status == 403 && refused.text.contains("the filter customer:new;"), "{}", refused.text);
    let mine =
        |id: usize| json!({ "documents": [{ "id": id, "vector": vector(id), "attributes": { "customer": "new" } }] });
    let stored = shared.ok(writer, "PUT", "/v1/indexes/news/documents", &mine(300)).await;
    assert_eq!(stored["documents"], 1);
    assert_eq!(shared.ask(writer, "PUT", "/v1/indexes/news/documents", &mine(301)).await.code(), "quota_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_stores_and_deletes_only_documents_inside_the_filter() {
    let shared = Shared::new().await;
    let (writer, path) = (shared.writer(), "/v1/indexes/news/documents");
    let put = async |documents: Value| shared.ask(writer, "PUT", path, &json!({ "documents": documents })).await;
    let done = put(json!([own(200), own(100)])).await;
    assert_eq!(
        (done.status, &done.body["changed"], &done.body["documents"]),
        (200, &json!(2), &json!(OWN.len() + 1)),
        "{}",
        done.text
    );
    // Another tenant, none, and the id of a foreign document: nothing of the request is stored.
    let none = json!({ "id": 300, "vector": vector(1) });
    let taken = json!({ "id": 1, "vector": vector(1), "attributes": { "tenant": "acme" } });
    for wrong in [foreign(99), none, taken] {
        let refused = put(json!([own(201), wrong])).await;
        assert_eq!((refused.status, refused.code()), (403, "not_allowed"), "{}", refused.text);
    }
    assert_eq!(shared.count(writer).await, OWN.len() + 1);
    // A list has the tenant among its values, and a quoted word is the same word.
    let listed = json!({ "id": 202, "vector": vector(2), "attributes": { "tenant": ["acme", "others"] } });
    assert_eq!(put(json!([listed])).await.status, 200);
    let lines = format!(
        "{}\n{}\n",
        json!({ "id": 203, "text": "a", "tenant": "acme" }),
        json!({ "id": 204, "text": "b", "tenant": "other" })
    );
    let request = Request::builder().method("POST").uri(format!("{path}/stream")).header("host", "localhost:6380");
    let request = request.header("content-type", "application/x-ndjson").header("api-key", writer);
    let streamed = shared.bench.send(request.body(Body::from(lines)).unwrap()).await;
    assert!([403, 422].contains(&streamed.status), "{}", streamed.text);
    // Duplicates would be looked for among foreign documents.
    let skip = json!({ "documents": [own(205)], "on_duplicate": "replace", "duplicate_by": "vectors" });
    assert_eq!(shared.ask(writer, "PUT", path, &skip).await.status, 403);

    let delete =
        async |body: Value| shared.ok(writer, "POST", &format!("{path}/delete"), &body).await["changed"].clone();
    assert_eq!(delete(json!({ "ids": [1, "hidden-2", 200, 999] })).await, 1);
    assert_eq!(shared.ask(writer, "DELETE", &format!("{path}/1"), &json!({})).await.status, 404);
    assert_eq!(delete(json!({ "filter": "tenant:other" })).await, 0);
    assert_eq!(delete(json!({ "filter": "NOT tenant:acme" })).await, 0);
    assert_eq!(delete(json!({ "filter": "year:1990 OR *" })).await, OWN.len() + 1);
    assert_eq!((shared.count(writer).await, shared.count(&shared.owner).await), (0, 13));
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_others_that_wait_before_one_are_seen_by_it() {
    let shared = Shared::new().await;
    let hosted = shared.bench.server.index("news").unwrap();
    // The id becomes a foreign one while the write of the tenant already waits.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let blocked = hosted.clone();
    let blocker = std::thread::spawn(move || blocked.writes.run_exclusive_blocking(move |_| held.recv().is_ok()));
    std::thread::sleep(Duration::from_millis(50));
    let body = |document: Value| json!({ "documents": [document] });
    let mut raced = foreign(50);
    raced["id"] = json!(500);
    let shared = &shared;
    let [others, own_write] = [(&shared.owner, raced), (&shared.keys[1], own(500))].map(|(key, document)| {
        let body = body(document);
        async move { shared.ask(key, "PUT", "/v1/indexes/news/documents", &body).await.status }
    });
    let (first, second, ()) = tokio::join!(
        others,
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            own_write.await
        },
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            release.send(()).unwrap();
        }
    );
    blocker.join().unwrap().unwrap();
    assert_eq!((first, second), (200, 403));
    let stored = shared.ok(&shared.owner, "GET", "/v1/indexes/news/documents/500", &json!({})).await;
    assert_eq!(stored["attributes"]["tenant"], "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_queries_of_keys_with_different_filters_are_apart() {
    let shared = Shared::new().await;
    let writer = shared.writer();
    let near = json!({ "vector": vector(3), "distance": 1e6 });
    let saved = shared.ok(writer, "PUT", "/v1/indexes/news/watch/secretquery", &near).await;
    assert_eq!(saved["name"], "secretquery");
    shared.ok(writer, "PUT", "/v1/indexes/news/documents", &json!({ "documents": [own(200)] })).await;
    shared.ok(&shared.owner, "PUT", "/v1/indexes/news/documents", &json!({ "documents": [foreign(60)] })).await;
    // Keys with one filter share their queries.
    let matches = shared.ok(&shared.keys[0], "GET", "/v1/indexes/news/matches", &json!({})).await["matches"].clone();
    let told: Vec<(&str, u64)> =
        matches.as_array().unwrap().iter().map(|m| (m["query"].as_str().unwrap(), m["id"].as_u64().unwrap())).collect();
    assert_eq!(told, [("secretquery", 200)], "{matches}");
    let one = shared.ok(writer, "GET", "/v1/indexes/news/matches?name=secretquery&all=true", &json!({})).await;
    assert_eq!(one["matches"].as_array().unwrap().len(), OWN.len() + 1);
    assert_eq!(
        shared.ok(writer, "GET", "/v1/indexes/news/watch", &json!({})).await["queries"].as_array().unwrap().len(),
        1
    );
    let removed = shared.ask(writer, "DELETE", "/v1/indexes/news/watch/secretquery", &json!({})).await;
    assert_eq!(removed.status, 204);
    assert_eq!(shared.ask(writer, "DELETE", "/v1/indexes/news/watch/secretquery", &json!({})).await.status, 404);
    let left = shared.ok(&shared.owner, "GET", "/v1/indexes/news/watch", &json!({})).await;
    assert_eq!(left["queries"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_of_queries_and_documents_are_kept_on_every_route() {
    let shared = Shared::with(|key| {
        key.name = format!("{}-limited", key.name);
        key.queries_per_day = Some(20);
        key.max_documents = Some(OWN.len() as u64 + 2);
    })
    .await;
    let reader = &shared.keys[0];
    let query = json!({ "vector": vector(1) });
    let batch = json!({ "queries": vec![query.clone(); 18] });
    shared.ok(reader, "POST", "/v1/indexes/news/query/batch", &batch).await;
    shared.ok(reader, "POST", "/v1/indexes/news/query", &query).await;
    let refused =
        shared.ask(reader, "POST", "/v1/indexes/news/query/batch", &json!({ "queries": [query, query] })).await;
    assert_eq!((refused.status, refused.code()), (429, "quota_exceeded"), "{}", refused.text);
    assert!(refused.text.contains("20 queries per day, 19 are asked"), "{}", refused.text);
    let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=86_401).contains(&wait));
    shared.ok(reader, "POST", "/v1/indexes/news/query/vector", &json!({})).await;
    for (path, body) in [
        ("/v1/indexes/news/query", query.clone()),
        ("/v1/indexes/news/query/vector", json!({})),
        ("/v1/indexes/news/query/batch", json!({ "queries": [query] })),
        ("/v1/embeddings", json!({ "model": "news", "input": "oil" })),
    ] {
        let reply = shared.ask(reader, "POST", path, &body).await;
        assert_eq!((reply.status, reply.code()), (429, "quota_exceeded"), "{path}: {}", reply.text);
    }
    // Another key of the tenant has its own count.
    let writer = shared.writer();
    shared.ok(writer, "POST", "/v1/indexes/news/query", &query).await;

    let put = async |documents: Vec<Value>| {
        shared.ask(writer, "PUT", "/v1/indexes/news/documents", &json!({ "documents": documents })).await
    };
    let refused = put(vec![own(200), own(201), own(202)]).await;
    assert_eq!((refused.status, refused.code()), (403, "quota_exceeded"), "{}", refused.text);
    assert_eq!(put(vec![own(200), own(201), own(100)]).await.status, 200, "two are new");
    assert_eq!(put(vec![own(200), own(100)]).await.status, 200, "a replaced document takes no room");
    assert_eq!(put(vec![own(202)]).await.status, 403);
    let line = json!({ "id": 300, "text": "x", "tenant": "acme" });
    let streamed = shared.ask(writer, "POST", "/v1/indexes/news/documents/stream", &line).await;
    assert_eq!((streamed.status, streamed.code()), (403, "quota_exceeded"), "{}", streamed.text);
    shared.ok(writer, "POST", "/v1/indexes/news/documents/delete", &json!({ "ids": [200] })).await;
    assert_eq!(put(vec![own(202)]).await.status, 200);
    let metrics = shared.bench.server.metrics.text();
    assert!(metrics.contains("micpq_rejected_total{queue=\"quota\"} 8"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_and_documents_are_counted_over_all_indexes_of_a_key() {
    let (writer, config) = key(Role::Admin, |key| {
        key.indexes = Some(["news".to_owned(), "mine".to_owned()].into());
        key.max_documents = Some(3);
    });
    let (filling, bytes) = key(Role::Write, |key| {
        key.name = "filling".into();
        key.max_bytes = Some(1);
    });
    let bench = Bench::new(|new| new.keys = vec![config, bytes]);
    let shared = Shared { bench, keys: vec![], owner: writer.clone() };
    shared.ok(&writer, "PUT", "/v1/indexes/mine", &json!({ "like": "news" })).await;
    let put = async |key: &str, index: &str, ids: &[usize]| {
        let documents: Vec<Value> = ids.iter().map(|i| own(*i)).collect();
        let path = format!("/v1/indexes/{index}/documents");
        shared.ask(key, "PUT", &path, &json!({ "documents": documents })).await
    };
    assert_eq!(put(&writer, "news", &[1, 2]).await.status, 200);
    assert_eq!(put(&writer, "mine", &[1, 2]).await.code(), "quota_exceeded");
    assert_eq!(put(&writer, "mine", &[1]).await.status, 200);
    assert_eq!(put(&writer, "news", &[3]).await.code(), "quota_exceeded");
    let full = put(&filling, "news", &[1]).await;
    assert_eq!((full.status, full.code()), (403, "quota_exceeded"), "{}", full.text);
    assert!(full.text.contains("bytes on disk"), "{}", full.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_and_unknown_keys_are_refused_on_every_route_that_needs_one() {
    let (stale, old) = key(Role::Admin, |key| key.expires = Some("2020-1-31".into()));
    let bench = Bench::new(|config| config.keys = vec![old]);
    let shared = Shared { bench, keys: vec![], owner: stale.clone() };
    let api: Value = serde_json::from_str(&crate::openapi()).unwrap();
    let open = ["/healthz", "/readyz", "/v1/version"];
    for path in open {
        let described = &api["paths"][path]["get"]["security"];
        assert_eq!(described, &json!([{}]), "{path} is described as open");
    }
    for (method, path) in described() {
        for key in [stale.as_str(), "micpq-unknown", ""] {
            let reply = shared.ask(key, &method, &path, &json!({})).await;
            if open.contains(&path.as_str()) {
                assert_eq!(reply.status, 200, "{path}");
            } else {
                assert_eq!(reply.status, 401, "{method} {path}: {}", reply.text);
                assert!(!reply.text.contains("news"), "{method} {path}: {}", reply.text);
            }
        }
    }
}

#[test]
fn filters_and_limits_that_cannot_be_used_are_refused() {
    for (line, word) in [
        ("filter = \"tenant:\"", "filter"),
        ("filter = \"\"", "filter is empty"),
        ("filter = \"a OR (b\"", "cannot be understood"),
        ("filter = \"tenant:a\"\nmax_bytes = 5", "max_documents"),
        ("max_documents = 0", "max_documents is 0"),
        ("queries_per_day = 0", "queries_per_day is 0"),
        ("max_bytes = -1", "invalid"),
    ] {
        let (_, lines) = crate::new_key(Role::Read).unwrap();
        let text = format!("{lines}{line}\n");
        let error = ServeConfig::load(None, std::iter::empty(), text.parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains(word), "{line}: {error}");
    }
}
