//! New documents that repeat another, over HTTP.

use super::*;

const TEXT: &str = "The committee of seven towns met on Friday about the price of a bridge over the slow river";
const PATH: &str = "/v1/indexes/news/documents";

fn new(id: &str, text: &str, like: usize) -> Value {
    json!({ "id": id, "text": text, "vector": vector(like) })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_skips_marks_or_replaces_and_says_which() {
    let bench = Bench::new(|_| {});
    bench.fill(40).await;
    let first = bench.ok("PUT", PATH, json!({ "documents": [new("first", TEXT, 100)] })).await;
    assert!(first.get("duplicates").is_none(), "{first}");
    let copies =
        [new("copy", &TEXT.to_uppercase(), 101), new("edited", &format!("{TEXT} again"), 102), new("far", "tea", 103)];
    let done = bench.ok("PUT", PATH, json!({ "documents": copies, "on_duplicate": "skip" })).await;
    assert_eq!(
        (&done["changed"], &done["documents"], &done["duplicates"]["skipped"]),
        (&json!(1), &json!(42), &json!(2))
    );
    let told = &done["duplicates"]["documents"];
    assert_eq!((&told[0]["id"], &told[1]["id"]), (&json!("copy"), &json!("edited")));
    assert_eq!((&told[0]["duplicate_of"], &told[0]["similarity"]), (&json!("first"), &json!(1.0)));

    let done = bench.ok("PUT", PATH, json!({ "documents": copies, "on_duplicate": "mark" })).await;
    assert_eq!(
        (&done["changed"], &done["documents"], &done["duplicates"]["marked"]),
        (&json!(3), &json!(44), &json!(2))
    );
    let count = bench.ok("POST", "/v1/indexes/news/count", json!({ "filter": "duplicate_of:first" })).await;
    assert_eq!(count["count"], 2);
    // Within one write, and by vectors.
    let twin = |id: &str, text: &str| json!({ "id": id, "text": text, "vector": [1, 0, 0, 0, 0, 0, 0, 0] });
    let body = json!({
        "documents": [twin("a", "one"), twin("b", "two")], "on_duplicate": "replace",
        "duplicate_by": "vectors", "duplicate_threshold": 0.9999
    });
    let done = bench.ok("PUT", PATH, body).await;
    assert_eq!((&done["duplicates"]["replaced"], &done["documents"]), (&json!(1), &json!(45)));
    assert_eq!(bench.get(&format!("{PATH}/a")).await.status, 404);
    assert_eq!(bench.get(&format!("{PATH}/b")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_together_see_each_other_as_duplicates() {
    let bench = Arc::new(Bench::new(|_| {}));
    let hosted = bench.server.index("news").unwrap();
    let held = {
        let hosted = hosted.clone();
        tokio::spawn(
            async move { hosted.writes.run_exclusive(|_| std::thread::sleep(Duration::from_millis(300))).await },
        )
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let writes = (0..8).map(|i| {
        let bench = bench.clone();
        let body = json!({ "documents": [new(&format!("d{i}"), TEXT, i)], "on_duplicate": "skip" });
        tokio::spawn(async move { bench.ok("PUT", PATH, body).await["changed"].as_u64().unwrap() })
    });
    let changed: Vec<u64> = futures_util::future::join_all(writes).await.into_iter().map(Result::unwrap).collect();
    held.await.unwrap().unwrap();
    assert_eq!((changed.iter().sum::<u64>(), hosted.index().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_cannot_be_followed_is_refused_before_anything_is_written() {
    let bench = Bench::new(|_| {});
    let write = |more: Value| {
        let mut body = json!({ "documents": [new("x", TEXT, 1)] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, status, code) in [
        (json!({ "on_duplicate": "drop" }), 400, "bad_request"),
        (json!({ "duplicate_by": "words" }), 422, "bad_query"),
        (json!({ "on_duplicate": "skip", "duplicate_threshold": 1.5 }), 422, "bad_query"),
    ] {
        let reply = bench.call("PUT", PATH, write(more)).await;
        assert_eq!((reply.status, reply.code()), (status, code), "{}", reply.text);
    }
    let made = bench.ok("PUT", "/v1/indexes/codes", json!({ "like": "news", "store": "codes" })).await;
    assert_eq!(made["store"], "codes");
    let reply = bench.call("PUT", "/v1/indexes/codes/documents", write(json!({ "on_duplicate": "mark" }))).await;
    assert_eq!((reply.status, reply.code()), (409, "unsupported"), "{}", reply.text);
    assert_eq!(bench.server.index("news").unwrap().index().len(), 0);
    // A stream has the same options; this index has no encoder, so its texts are refused later.
    let reply = bench.raw("POST", &format!("{PATH}/stream?duplicate_by=text"), "application/x-ndjson", "").await;
    assert_eq!((reply.status, reply.code()), (422, "bad_query"), "{}", reply.text);
}
