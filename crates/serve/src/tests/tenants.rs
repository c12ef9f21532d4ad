//! Keys that reach only some indexes: every route of the description, for foreign data.

use std::collections::BTreeSet;

use super::*;
use crate::config::KeyConfig;

/// A bench with the foreign index `news`, the own index `mine`, and a key of every role that reaches `mine` alone.
async fn bench() -> (Bench, Vec<String>, String) {
    let created: Vec<(String, KeyConfig)> = [Role::Read, Role::Write, Role::Admin].into_iter().map(key).collect();
    let (owner, all) = key(Role::Admin);
    let own = BTreeSet::from(["mine".to_owned()]);
    let limited = created.iter().map(|(_, key)| KeyConfig { indexes: Some(own.clone()), ..key.clone() });
    let mut keys: Vec<KeyConfig> = limited.collect();
    keys.push(KeyConfig { name: "owner".into(), ..all });
    let bench = Bench::new(|config| config.keys = keys);
    for (method, path, body) in [
        ("PUT", "/v1/indexes/mine", json!({ "like": "news" })),
        ("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(1), document(2), document(4)] })),
        ("PUT", "/v1/indexes/mine/documents", json!({ "documents": [document(1)] })),
    ] {
        let reply = ask(&bench, &owner, method, path, &body).await;
        assert!(reply.status < 300, "{path}: {}", reply.text);
    }
    (bench, created.into_iter().map(|(key, _)| key).collect(), owner)
}

fn key(role: Role) -> (String, KeyConfig) {
    let (key, lines) = crate::new_key(role).unwrap();
    let config = ServeConfig::load(None, std::iter::empty(), lines.parse().unwrap()).unwrap();
    (key, config.keys[0].clone())
}

async fn ask(bench: &Bench, key: &str, method: &str, path: &str, body: &Value) -> Reply {
    let request = Request::builder().method(method).uri(path).header("host", "localhost:6380");
    let request = request.header("content-type", "application/json").header("api-key", key);
    bench.send(request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_shows_or_changes_an_index_that_the_key_does_not_reach() {
    let (bench, keys, owner) = bench().await;
    // A job of the foreign index, so that its number is one that exists.
    let job = ask(&bench, &owner, "POST", "/v1/indexes/news/dedup", &json!({ "by": "text" })).await;
    assert_eq!(job.status, 202, "{}", job.text);
    let bodies = [
        json!({}),
        json!({ "vector": vector(1) }),
        json!({ "documents": [document(9)] }),
        json!({ "ids": [1] }),
        json!({ "queries": [{ "vector": vector(1) }] }),
        json!({ "model": "news", "input": "oil" }),
        json!({ "like": "news" }),
    ];
    for key in &keys {
        for (method, path) in described() {
            for body in &bodies {
                let reply = ask(&bench, key, &method, &path, body).await;
                let told = format!("{method} {path} {body}: {} {}", reply.status, reply.text);
                assert!(reply.status < 500, "{told}");
                if path.contains("/news") || path.contains("/jobs/") {
                    assert!([400, 403, 404, 415, 422].contains(&reply.status), "{told}");
                    assert!(!reply.text.contains("story"), "{told}");
                } else if path.starts_with("/v1/indexes") || path.starts_with("/v1/jobs") || path == "/metrics" {
                    assert!(!reply.text.contains("news"), "{told}");
                } else if path.starts_with("/v1/embeddings") {
                    assert!(reply.status != 200, "{told}");
                }
            }
        }
        assert_eq!(ask(&bench, key, "GET", "/metrics", &json!({})).await.status, 403);
        let models = ask(&bench, key, "GET", "/v1/models", &json!({})).await;
        assert!(models.text.contains("mine") && !models.text.contains("news"), "{}", models.text);
    }
    // Another name cannot be taken, and a foreign model cannot be borrowed.
    let admin = &keys[2];
    let other = ask(&bench, admin, "PUT", "/v1/indexes/other", &json!({ "encoder": "x" })).await;
    assert_eq!(other.status, 403, "{}", other.text);
    assert_eq!(ask(&bench, admin, "DELETE", "/v1/indexes/mine", &json!({})).await.status, 204);
    let borrowed = ask(&bench, admin, "PUT", "/v1/indexes/mine", &json!({ "like": "news" })).await;
    assert_eq!(borrowed.status, 404, "{}", borrowed.text);
    // What the owner stored is there.
    let count = ask(&bench, &owner, "POST", "/v1/indexes/news/count", &json!({})).await;
    assert_eq!(count.body["count"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_does_its_work_on_the_indexes_it_reaches() {
    let (bench, keys, _) = bench().await;
    let query = json!({ "vector": vector(1) });
    for (number, key) in keys.iter().enumerate() {
        let found = ask(&bench, key, "POST", "/v1/indexes/mine/query", &query).await;
        assert_eq!(found.body["hits"][0]["id"], 1, "{}", found.text);
        let listed = ask(&bench, key, "GET", "/v1/indexes", &json!({})).await;
        assert_eq!(listed.body["indexes"].as_array().unwrap().len(), 1);
        let added = json!({ "documents": [document(9)] });
        let added = ask(&bench, key, "PUT", "/v1/indexes/mine/documents", &added).await;
        assert_eq!(added.status, if number == 0 { 403 } else { 200 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_key_is_refused_and_its_day_is_checked() {
    let (fresh, config) = key(Role::Read);
    let (stale, old) = key(Role::Read);
    let keys = vec![
        KeyConfig { expires: Some("2999-12-31".into()), ..config.clone() },
        KeyConfig { expires: Some("2020-01-01".into()), name: "old".into(), ..old },
    ];
    let bench = Bench::new(|config| config.keys = keys);
    assert_eq!(ask(&bench, &fresh, "GET", "/v1/indexes", &json!({})).await.status, 200);
    let refused = ask(&bench, &stale, "GET", "/v1/indexes", &json!({})).await;
    assert!(refused.status == 401 && refused.text.contains("expired"), "{}", refused.text);
    let wrong = KeyConfig { expires: Some("31.1.2027".into()), ..config };
    let error = ServeConfig { keys: vec![wrong], ..ServeConfig::default() }.validate().unwrap_err().to_string();
    assert!(error.contains("31.1.2027") && error.contains("2027-01-31"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_above_its_rate_is_told_to_wait_and_the_others_are_not() {
    let (busy, limited) = key(Role::Read);
    let (calm, other) = key(Role::Read);
    let keys = vec![
        KeyConfig { requests_per_minute: Some(2), name: "busy".into(), ..limited.clone() },
        KeyConfig { name: "calm".into(), ..other },
    ];
    let bench = Bench::new(|config| config.keys = keys);
    for _ in 0..2 {
        assert_eq!(ask(&bench, &busy, "GET", "/v1/indexes", &json!({})).await.status, 200);
    }
    let refused = ask(&bench, &busy, "GET", "/v1/indexes", &json!({})).await;
    assert!(refused.status == 429 && refused.text.contains("2 requests per minute"), "{}", refused.text);
    assert_eq!(ask(&bench, &calm, "GET", "/v1/indexes", &json!({})).await.status, 200);
    let wrong = KeyConfig { requests_per_minute: Some(0), ..limited };
    let error = ServeConfig { keys: vec![wrong], ..ServeConfig::default() }.validate().unwrap_err().to_string();
    assert!(error.contains("requests_per_minute is 0"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_changed_config_file_are_used_without_a_restart() {
    let ((first, one), (second, two)) = (crate::new_key(Role::Read).unwrap(), crate::new_key(Role::Read).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("serve.toml");
    std::fs::write(&file, &one).unwrap();
    let loaded = ServeConfig::load(Some(&file), std::iter::empty(), toml::Table::new()).unwrap();
    let bench = Bench::new(|config| (config.keys, config.file) = (loaded.keys, loaded.file));
    let status = |key: String| {
        let bench = &bench;
        async move { ask(bench, &key, "GET", "/v1/indexes", &json!({})).await.status }
    };
    assert_eq!((status(first.clone()).await, status(second.clone()).await), (200, 401));
    std::fs::write(&file, format!("{one}\n{two}")).unwrap();
    bench.server.keys.follow(&file);
    assert_eq!((status(first.clone()).await, status(second.clone()).await), (200, 200));
    // A file that cannot be used changes nothing, and the last key stays.
    for broken in ["[[keys]]\nname = 1", "log = \"warn\"\n"] {
        std::fs::write(&file, broken).unwrap();
        bench.server.keys.follow(&file);
        assert_eq!(status(second.clone()).await, 200, "{broken}");
    }
    std::fs::write(&file, format!("{two}\n# the first key is gone\n")).unwrap();
    bench.server.keys.follow(&file);
    assert_eq!((status(first).await, status(second).await), (401, 200));
}
