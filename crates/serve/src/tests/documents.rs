//! Writes: what is added, found and deleted, and when it is on disk.

use super::*;

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
async fn accepted_writes_are_on_disk_after_the_server_is_dropped() {
    let bench = Bench::new(|_| {});
    let hosted = bench.server.index("news").unwrap();
    let mut waiting = Vec::new();
    for i in 0..20 {
        waiting.push(hosted.writes.push(new_change(i), None).unwrap());
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
