//! Searches: batches, queues, limits, and the forms of a vector.

use super::*;

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

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_hits_are_counted_while_they_are_fetched() {
    let bench = Bench::new(|config| config.max_answer_bytes = 256 << 10);
    let long = |i: usize| {
        let mut long = document(i);
        long["text"] = format!("{i} {}", "oil and wheat ".repeat(1000)).into();
        long
    };
    let documents: Vec<Value> = (0..100).map(long).collect();
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": documents })).await;
    let index = bench.server.index("news").unwrap().index();
    let searcher = engine::query::Searcher::new(index, None).unwrap();
    // The engine refuses: the answer is not built first and measured then.
    let config = engine::query::SearchConfig { k: 100, max_bytes: Some(256 << 10), ..Default::default() };
    let query = engine::query::Query::vector(vector(1));
    let error = searcher.search(std::slice::from_ref(&query), &config, &engine::NoProgress).unwrap_err();
    assert!(matches!(error, engine::Error::TooLarge(_)), "{error}");
    let few = engine::query::SearchConfig { k: 10, ..config.clone() };
    assert_eq!(searcher.search(std::slice::from_ref(&query), &few, &engine::NoProgress).unwrap()[0].hits.len(), 10);
    // All queries together.
    assert!(searcher.search(&vec![query.clone(); 10], &few, &engine::NoProgress).is_err());
    let bare = engine::query::SearchConfig { documents: false, ..config };
    assert_eq!(searcher.search(&[query], &bare, &engine::NoProgress).unwrap()[0].hits.len(), 100);

    let ask = async |k: usize, path: &str, body: Value| {
        let reply = bench.call("POST", &format!("/v1/indexes/news/query{path}"), body).await;
        assert_eq!((reply.status, reply.code()), (422, "answer_too_large"), "{k}: {}", reply.text);
    };
    ask(100, "", json!({ "vector": vector(1), "k": 100 })).await;
    let queries: Vec<Value> = (0..10).map(|i| json!({ "vector": vector(i), "k": 5 + i })).collect();
    ask(10, "/batch", json!({ "queries": queries })).await;
    // Requests that share a batch with it are answered.
    let small = async |i: usize| {
        bench.call("POST", "/v1/indexes/news/query", json!({ "vector": vector(i), "k": 3 })).await.status
    };
    let large = json!({ "vector": vector(1), "k": 100 });
    let (_, a, b) = tokio::join!(bench.call("POST", "/v1/indexes/news/query", large), small(1), small(2));
    assert_eq!((a, b), (200, 200));
}

#[test]
fn what_nobody_waits_for_is_not_found_out() {
    // A runtime with one thread for work that blocks, which is taken.
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Arc::new(Bench::new(|_| {}));
        bench.fill(30).await;
        let hosted = bench.server.index("news").unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || held.recv().unwrap());
        let ask = |bench: Arc<Bench>| async move {
            bench.ok("POST", "/v1/indexes/news/query", json!({ "vector": vector(1), "explain": true })).await
        };
        let asked = tokio::spawn(ask(bench.clone()));
        while hosted.finding_terms.try_lock().is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The caller hangs up.
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        release.send(()).unwrap();
        busy.await.unwrap();
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert!(hosted.codeword_terms.of(hosted.index().len()).is_none());
        // Another caller gets all of it.
        ask(bench.clone()).await;
        assert!(hosted.codeword_terms.of(hosted.index().len()).is_some());
    });
}
