//! Saved queries over HTTP.

use super::*;

const WATCH: &str = "/v1/indexes/news/watch";
const MATCHES: &str = "/v1/indexes/news/matches";

fn found(body: &Value) -> Vec<(String, u64)> {
    let one = |one: &Value| (one["query"].as_str().unwrap().to_owned(), one["id"].as_u64().unwrap());
    body["matches"].as_array().unwrap().iter().map(one).collect()
}

async fn add(bench: &Bench, ids: std::ops::Range<usize>) {
    let documents: Vec<Value> = ids.map(document).collect();
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": documents })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_documents_are_told_by_cursor_and_over_a_restart() {
    let bench = Bench::new(|_| {});
    bench.fill(20).await;
    let saved = bench.ok("PUT", &format!("{WATCH}/near"), json!({ "vector": vector(25), "cosine": 0.99999 })).await;
    assert_eq!((&saved["name"], &saved["since"], &saved["distance"]), (&json!("near"), &json!(20), &Value::Null));
    bench.ok("PUT", &format!("{WATCH}/japan"), json!({ "filter": "place:japan" })).await;
    let begin = bench.get(MATCHES).await.body;
    assert_eq!((found(&begin), &begin["more"]), (vec![], &json!(false)));
    add(&bench, 20..30).await;
    let next = begin["next"].as_str().unwrap();
    let expected: Vec<(String, u64)> =
        [("japan", 21), ("japan", 24), ("near", 25), ("japan", 27)].map(|(name, id)| (name.to_owned(), id)).to_vec();
    let all = bench.get(&format!("{MATCHES}?after={next}")).await.body;
    assert_eq!(found(&all), expected);
    assert_eq!(found(&bench.get(&format!("{MATCHES}?name=near")).await.body), [("near".to_owned(), 25)]);
    assert!(found(&bench.get(&format!("{MATCHES}?all=true&name=japan")).await.body).len() > 3);
    let page = bench.get(&format!("{MATCHES}?limit=2")).await.body;
    assert_eq!((found(&page), &page["more"]), (expected[..2].to_vec(), &json!(true)));
    let bench = bench.restarted(|_| {}).await;
    let rest = bench.get(&format!("{MATCHES}?after={}", page["next"].as_str().unwrap())).await.body;
    assert_eq!(found(&rest), expected[2..]);
    let last = rest["next"].as_str().unwrap().to_owned();
    assert_eq!(found(&bench.get(&format!("{MATCHES}?after={last}")).await.body), []);
    assert_eq!(bench.get(WATCH).await.body["queries"].as_array().unwrap().len(), 2);
    assert_eq!(bench.raw("DELETE", &format!("{WATCH}/near"), "", Body::empty()).await.status, 204);
    let reply = bench.raw("DELETE", &format!("{WATCH}/near"), "", Body::empty()).await;
    assert_eq!((reply.status, reply.code()), (404, "unknown_saved_query"));
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_refused_with_their_codes() {
    let bench = Bench::new(|_| {});
    bench.fill(3).await;
    for (name, body, status, code) in [
        ("a", json!({}), 422, "bad_query"),
        ("a", json!({ "text": "oil" }), 422, "bad_query"),
        ("a", json!({ "text": "oil", "cosine": 0.5, "distance": 1 }), 422, "bad_query"),
        ("a", json!({ "text": "oil", "vector": vector(1), "cosine": 0.5 }), 422, "bad_query"),
        ("a%20b", json!({ "filter": "place:japan" }), 422, "bad_query"),
        ("a", json!({ "filter": "place:[" }), 422, "bad_filter"),
        ("a", json!({ "vector": [1], "cosine": 0.5 }), 422, "bad_query"),
        // This index has no encoder.
        ("a", json!({ "text": "oil", "cosine": 0.5 }), 422, "bad_query"),
    ] {
        let reply = bench.call("PUT", &format!("{WATCH}/{name}"), body.clone()).await;
        assert_eq!((reply.status, reply.code()), (status, code), "{body}: {}", reply.text);
    }
    for (query, status, code) in [
        ("after=x", 422, "bad_query"),
        ("limit=0", 400, "bad_request"),
        ("limit=10001", 400, "bad_request"),
        ("name=none", 422, "bad_query"),
        ("after=0123.5", 422, "bad_query"),
        ("after=0123.5&all=true", 422, "bad_query"),
    ] {
        let reply = bench.get(&format!("{MATCHES}?{query}")).await;
        assert_eq!((reply.status, reply.code()), (status, code), "{query}: {}", reply.text);
    }
    assert_eq!(bench.get(WATCH).await.body["queries"], json!([]));
}
