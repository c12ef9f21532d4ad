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
    bench.server.settings.follow();
    assert_eq!((status(first.clone()).await, status(second.clone()).await), (200, 200));
    // A file that cannot be used changes nothing, and the last key stays.
    for broken in ["[[keys]]\nname = 1", "log = \"warn\"\n"] {
        std::fs::write(&file, broken).unwrap();
        bench.server.settings.follow();
        assert_eq!(status(second.clone()).await, 200, "{broken}");
    }
    std::fs::write(&file, format!("{two}\n# the first key is gone\n")).unwrap();
    bench.server.settings.follow();
    assert_eq!((status(first).await, status(second).await), (401, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_config_file_gives_back_no_requests() {
    let (key, lines) = crate::new_key(Role::Read).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("serve.toml");
    let lines = format!("{lines}requests_per_minute = 2\n");
    std::fs::write(&file, &lines).unwrap();
    let loaded = ServeConfig::load(Some(&file), std::iter::empty(), toml::Table::new()).unwrap();
    let bench = Bench::new(|config| (config.keys, config.file) = (loaded.keys, loaded.file));
    let status = async || ask(&bench, &key, "GET", "/v1/indexes", &json!({})).await.status;
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);
    std::fs::write(&file, format!("{lines}\n# touched\n")).unwrap();
    bench.server.settings.follow();
    assert_eq!(status().await, 429);
    let metrics = bench.server.metrics.text();
    assert!(metrics.contains("micpq_rejected_total{queue=\"rate\"} 2"), "{metrics}");
}

/// Damages an index of a stopped server, so that it is unavailable after the next start.
fn damage(bench: &Bench, path: &str) {
    std::fs::write(bench.dir.path().join(path).join("store").join("meta.json"), b"{}").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_an_index_only_to_a_key_that_reaches_it() {
    let (bench, keys, owner) = bench().await;
    let config = bench.server.config.clone();
    damage(&bench, "data/mine");
    let bench = bench.restarted(|new| new.keys = config.keys.clone()).await;
    let ready = async |bench: &Bench, key: &str| ask(bench, key, "GET", "/readyz", &json!({})).await;
    for (key, named) in [("", false), ("micpq-unknown", false), (keys[0].as_str(), true), (owner.as_str(), true)] {
        let reply = ready(&bench, key).await;
        assert_eq!((reply.status, &reply.body["status"]), (200, &json!("degraded")), "{}", reply.text);
        assert_eq!(reply.text.contains("mine"), named, "{key}: {}", reply.text);
    }
    let bench = bench.restarted(|new| (new.keys, new.ready_needs_all) = (config.keys.clone(), true)).await;
    for (key, named) in [("", false), (owner.as_str(), true)] {
        let reply = ready(&bench, key).await;
        assert_eq!((reply.status, reply.text.contains("mine")), (503, named), "{key}: {}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_admin_cannot_tell_the_encoders_of_foreign_indexes() {
    let (bench, keys, owner) = bench().await;
    // A foreign index with an encoder of its own.
    let foreign = bench.dir.path().join("data").join("foreign");
    let encoder = json!({
        "encoder": "private-encoder", "encoder_sha256": "0".repeat(64), "width": WIDTH, "pooling": "mean",
        "max_tokens": 16, "clean": "none"
    });
    Index::create(&foreign, &model_of(encoder), IndexConfig::default()).unwrap();
    let config = bench.server.config.clone();
    let bench = bench.restarted(|new| new.keys = config.keys.clone()).await;
    assert_eq!(ask(&bench, &owner, "GET", "/v1/indexes/foreign", &json!({})).await.status, 200);
    let admin = &keys[2];
    assert_eq!(ask(&bench, admin, "DELETE", "/v1/indexes/mine", &json!({})).await.status, 204);
    let told = async |encoder: &str| {
        let reply = ask(&bench, admin, "PUT", "/v1/indexes/mine", &json!({ "encoder": encoder })).await;
        (reply.status, reply.text.replace(encoder, ""))
    };
    assert_eq!(told("private-encoder").await, told("nobody-has-this").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_foreign_indexes_neither_refuse_a_job_nor_are_named() {
    let (bench, keys, owner) = bench().await;
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let foreign = bench.server.jobs.start("dedup", "news", move |_| {
        let _ = wait.recv();
        Ok(json!({}))
    });
    assert_eq!(foreign.unwrap().id, 1);
    let admin = &keys[2];
    let dedup = "/v1/indexes/mine/dedup";
    let started = ask(&bench, admin, "POST", dedup, &json!({ "by": "text" })).await;
    assert_eq!((started.status, &started.body["stage"]), (202, &json!("waiting for other jobs")), "{}", started.text);
    let again = ask(&bench, admin, "POST", dedup, &json!({ "by": "text" })).await;
    assert!(again.status == 409 && again.text.contains("job 2 "), "{}", again.text);
    // A waiting job can be cancelled, and its index has room for another.
    assert_eq!(ask(&bench, admin, "DELETE", "/v1/jobs/2", &json!({})).await.status, 202);
    let ended = async |key: &str, job: u64| {
        for _ in 0..200 {
            let reply = ask(&bench, key, "GET", &format!("/v1/jobs/{job}"), &json!({})).await;
            if reply.body["status"] != "running" {
                return reply.body["status"].clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("job {job} does not end");
    };
    assert_eq!(ended(admin, 2).await, "cancelled");
    assert_eq!(ask(&bench, admin, "POST", dedup, &json!({ "by": "text" })).await.status, 202);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let third = ask(&bench, admin, "GET", "/v1/jobs/3", &json!({})).await;
    assert_eq!(third.body["status"], "running", "one job works at a time: {}", third.text);
    release.send(()).unwrap();
    assert_eq!((ended(&owner, 1).await, ended(admin, 3).await), (json!("succeeded"), json!("succeeded")));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_and_notes_of_a_job_have_no_paths_of_the_server() {
    let bench = Bench::new(|_| {});
    let secret = bench.dir.path().join("secret");
    let failing = secret.clone();
    let job = bench.server.jobs.start("train", "news", move |job| {
        engine::Progress::note(job, &format!("{}: made again from the store", failing.join("a.codes").display()));
        Err(engine::Error::io(&failing)(std::io::Error::from_raw_os_error(28)))
    });
    let id = job.unwrap().id;
    for _ in 0..100 {
        let job = bench.get(&format!("/v1/jobs/{id}")).await;
        if job.body["status"] == "failed" {
            let error = job.body["error"].as_str().unwrap();
            assert!(!job.text.contains("secret") && error.contains("log says why"), "{}", job.text);
            assert_eq!(job.body["notes"], json!(["a.codes: made again from the store"]));
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the job does not end");
}
