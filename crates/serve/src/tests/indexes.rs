//! Indexes: created, dropped, damaged, and changed by other programs.

use super::*;

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
    bench.server.index("news").unwrap().follow(&bench.server.encoders);
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 2);
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(9)] })).await;
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 3);
}

fn sound(dir: &Path) {
    let problems = engine::index::verify(dir, &engine::NoProgress).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
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
    let waiting = old.writes.push(new_change(2), None).unwrap();
    assert_eq!(bench.raw("DELETE", "/v1/indexes/copy", "", Body::empty()).await.status, 204);
    held.await.unwrap().unwrap();
    let refused = old.writes.result(waiting.await).unwrap_err();
    assert_eq!((refused.status.as_u16(), refused.details.code), (404, crate::problem::Code::UnknownIndex));
    bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    let refused = old.writes.change(new_change(3), None).await.unwrap_err();
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
async fn a_create_that_fails_removes_nothing_of_others() {
    let bench = Bench::new(|_| {});
    bench.fill(5).await;
    let data = bench.dir.path().join("data");
    let refused = async |name: &str| {
        let reply = bench.call("PUT", &format!("/v1/indexes/{name}"), json!({ "like": "news" })).await;
        assert!(reply.status >= 400, "{name}: {} {}", reply.status, reply.text);
    };
    // The index of a program that was stopped in the moment in which it replaced it: looking at the path brings it back.
    engine::index::backup(
        &bench.dir.path().join("news"),
        &data.join(".other.micpq.old"),
        engine::index::CopyConfig::default(),
        &engine::NoProgress,
    )
    .unwrap();
    refused("other").await;
    assert_eq!(Index::open(&data.join("other"), &engine::NoProgress).unwrap().len(), 5);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(data.join("away"), data.join("link")).unwrap();
        refused("link").await;
        assert!(data.join("link").is_symlink());
    }
}

/// Another program puts an empty index in the place of the served one.
async fn replace(path: &std::path::Path) {
    let replace = IndexConfig { rerank_vectors: RerankVectors::Int8, replace: true, ..IndexConfig::default() };
    let mut replaced = Index::create(path, &model(), replace.clone());
    for _ in 0..100 {
        // An idle server releases the lock.
        if !matches!(replaced, Err(engine::Error::Busy(_))) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        replaced = Index::create(path, &model(), replace.clone());
    }
    drop(replaced.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_another_program_replaced_is_searched_and_written_again() {
    let bench = Bench::new(|config| config.writer_idle_seconds = 0.1);
    bench.fill(5).await;
    let path = bench.dir.path().join("news");
    replace(&path).await;
    let put =
        async |i: usize| bench.call("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(i)] })).await;
    // Until the server notices, it answers from the old index and writes to none.
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 5);
    assert!(put(1).await.status >= 400);
    bench.server.index("news").unwrap().follow(&bench.server.encoders);
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 0);
    let written = put(1).await;
    assert_eq!((written.status, &written.body["documents"]), (200, &json!(1)), "{}", written.text);
    sound(&path);
}

#[tokio::test(flavor = "multi_thread")]
async fn training_begins_with_the_index_that_is_there_now() {
    let bench = Bench::new(|config| config.writer_idle_seconds = 0.1);
    bench.fill(5).await;
    replace(&bench.dir.path().join("news")).await;
    let job = bench.ok("POST", "/v1/indexes/news/train", json!({})).await;
    let mut told = serde_json::Value::Null;
    while told["status"] != "failed" {
        tokio::time::sleep(Duration::from_millis(10)).await;
        told = bench.get(&format!("/v1/jobs/{}", job["id"])).await.body;
    }
    // And not: "is another index now".
    assert!(told["error"].as_str().unwrap().contains("trained on user vectors"), "{told}");
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_removes_what_a_stopped_server_left_and_no_failure_of_that_stops_it() {
    let bench = Bench::new(|_| {});
    bench.ok("PUT", "/v1/indexes/copy", json!({ "like": "news" })).await;
    let data = bench.dir.path().join("data");
    let left = [".copy.micpq-abc/new", ".gone.dropped", "backups/.copy-1700000000000.micpq-abc/new"];
    left.iter().for_each(|name| std::fs::create_dir_all(data.join(name)).unwrap());
    std::fs::create_dir_all(data.join("backups/copy-1600000000000")).unwrap();
    // What it stands beside cannot be looked at.
    std::fs::create_dir_all(data.join(".loop.micpq-abc/new")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("loop", data.join("loop")).unwrap();
    let bench = bench.restarted(|_| {}).await;
    for name in left {
        assert!(!data.join(name).exists(), "{name} is still there");
    }
    assert!(data.join("backups/copy-1600000000000").exists());
    assert_eq!(bench.ok("POST", "/v1/indexes/copy/count", json!({})).await["count"], 0);
}
