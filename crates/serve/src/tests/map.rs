//! The map of an index: it is made once, and tells what is where.

use super::*;

async fn made(bench: &Bench, options: Value) -> Value {
    let job = bench.ok("POST", "/v1/indexes/news/map", options).await["id"].clone();
    for _ in 0..400 {
        let job = bench.get(&format!("/v1/jobs/{job}")).await.body;
        if job["status"] != "running" {
            return job;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the job does not end");
}

struct Points {
    name: String,
    x: Vec<u16>,
    y: Vec<u16>,
    topic: Vec<u16>,
}

/// Reads the bytes as the page does.
async fn points(bench: &Bench) -> Points {
    let request = Request::builder().uri("/v1/indexes/news/map/points").header("host", "localhost");
    let response = bench.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/octet-stream");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!((&bytes[..8], &bytes[8..12]), (&b"MICPQMAP"[..], &[1, 0, 0, 0][..]));
    let count = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let values = |i: usize| -> Vec<u16> {
        let part = &bytes[24 + 2 * i * count..24 + 2 * (i + 1) * count];
        part.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect()
    };
    let name = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    Points { name: format!("{name:016x}"), x: values(0), y: values(1), topic: values(2) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_is_made_once_and_says_when_the_index_has_changed() {
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    let map = "/v1/indexes/news/map";
    assert_eq!(bench.get(map).await.body, json!({ "map": null }));
    for path in ["points", "values?attribute=place"] {
        let none = bench.get(&format!("{map}/{path}")).await;
        assert_eq!((none.status, none.code()), (409, "unsupported"), "{}", none.text);
        assert!(none.text.contains("POST /v1/indexes/news/map"));
    }
    assert_eq!(bench.call("POST", map, json!({ "topics": 0 })).await.status, 400);
    let job = made(&bench, json!({ "topics": 3 })).await;
    assert_eq!((&job["kind"], &job["result"]["documents"]), (&json!("map"), &json!(60)), "{job}");
    let about = bench.get(map).await.body["map"].clone();
    assert_eq!((&about["map"], &about["current"]), (&job["result"]["map"], &json!(true)));
    assert_eq!((about["topics"].as_array().unwrap().len(), about["labels"].as_array().unwrap().len()), (3, 5));
    let points = points(&bench).await;
    assert_eq!((points.x.len(), json!(points.name)), (60, about["map"].clone()));
    let tag = bench.get(&format!("{map}/points")).await.headers["etag"].clone();
    let again = Request::builder().uri("/v1/indexes/news/map/points").header("host", "localhost");
    let again = bench.send(again.header("if-none-match", tag).body(Body::empty()).unwrap()).await;
    assert_eq!((again.status, again.text.len()), (304, 0));
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(200)] })).await;
    assert_eq!(bench.get(map).await.body["map"]["current"], false);
    let again = made(&bench, json!({ "topics": 3 })).await;
    assert_eq!(again["result"]["documents"], 61);
    assert_eq!(bench.get(map).await.body["map"]["current"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn points_documents_and_values_belong_together() {
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    made(&bench, json!({ "topics": 3 })).await;
    let map = "/v1/indexes/news/map";
    let all: Vec<usize> = (0..60).collect();
    let documents = bench.ok("POST", &format!("{map}/documents"), json!({ "points": all })).await;
    let documents = documents["documents"].as_array().unwrap();
    let ids: Vec<u64> = documents.iter().map(|d| d["id"].as_u64().unwrap()).collect();
    let topics = points(&bench).await.topic;
    for (point, document) in documents.iter().enumerate() {
        let id = ids[point];
        assert_eq!(
            (
                document["point"].as_u64().unwrap() as usize,
                document["title"].as_str().unwrap().contains(&format!("story {id} "))
            ),
            (point, true)
        );
        assert_eq!(document["topic"].as_u64().unwrap_or(65535), u64::from(topics[point]));
    }
    let places = bench.ok("POST", &format!("{map}/places"), json!({ "ids": ids })).await;
    assert_eq!(places["points"], json!(all));
    let unknown = bench.ok("POST", &format!("{map}/places"), json!({ "ids": [ids[4], "nobody"] })).await;
    assert_eq!(unknown["points"], json!([4, null]));
    let values = bench.get(&format!("{map}/values?attribute=place&values=2")).await.body;
    assert_eq!(values["values"], json!([{ "value": "japan", "documents": 20 }, { "value": "usa", "documents": 20 }]));
    let bytes = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, values["points"].as_str().unwrap()).unwrap();
    for (pair, id) in bytes.as_chunks::<2>().0.iter().zip(&ids) {
        assert_eq!(u16::from_le_bytes(*pair), [0, 1, 65534][(id % 3) as usize], "{id}");
    }
    let wrong = bench.call("POST", &format!("{map}/documents"), json!({ "points": [60] })).await;
    assert_eq!((wrong.status, wrong.code()), (422, "bad_query"), "{}", wrong.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_area_of_the_map_is_an_exact_filter_of_queries_and_counts() {
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    made(&bench, json!({ "topics": 3 })).await;
    let points = points(&bench).await;
    let mut sorted = points.x.clone();
    sorted.sort_unstable();
    let middle = f64::from(sorted[30]) - 0.5;
    let polygon = json!([[-1, -1], [middle, -1], [middle, 70000], [-1, 70000]]);
    let area = json!({ "map": points.name, "polygon": polygon });
    let inside: Vec<usize> = (0..60).filter(|&i| f64::from(points.x[i]) < middle && points.y[i] > 0).collect();
    assert!((25..35).contains(&inside.len()), "{}", inside.len());
    let documents = bench.ok("POST", "/v1/indexes/news/map/documents", json!({ "points": inside })).await;
    let ids = |list: &Value| -> Vec<u64> {
        let mut ids: Vec<u64> = list.as_array().unwrap().iter().map(|d| d["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    let expected = ids(&documents["documents"]);
    let query = json!({ "vector": vector(3), "k": 100, "area": area });
    let found = bench.ok("POST", "/v1/indexes/news/query", query.clone()).await;
    assert_eq!(ids(&found["hits"]), expected);
    let batch = bench
        .ok("POST", "/v1/indexes/news/query/batch", json!({ "queries": [query, { "vector": vector(3), "k": 100 }] }))
        .await;
    assert_eq!(ids(&batch["answers"][0]["hits"]), expected);
    assert_eq!(batch["answers"][1]["hits"].as_array().unwrap().len(), 60);
    let count = async |body: Value| bench.ok("POST", "/v1/indexes/news/count", body).await["count"].as_u64().unwrap();
    assert_eq!(count(json!({ "area": area })).await as usize, expected.len());
    let japan = expected.iter().filter(|id| *id % 3 == 0).count();
    assert_eq!(count(json!({ "area": area, "filter": "place:japan" })).await as usize, japan);
    // The pages of a search in an area follow each other.
    let page = |after: Value| json!({ "vector": vector(3), "k": 20, "area": area, "rerank": "off", "after": after });
    let first = bench.ok("POST", "/v1/indexes/news/query", page(Value::Null)).await;
    let second = bench.ok("POST", "/v1/indexes/news/query", page(first["next"].clone())).await;
    let both = [first["hits"].as_array().unwrap().clone(), second["hits"].as_array().unwrap().clone()].concat();
    assert_eq!(ids(&json!(both)), expected);
    let other = json!({ "vector": vector(3), "k": 20, "rerank": "off", "after": first["next"] });
    assert!(bench.call("POST", "/v1/indexes/news/query", other).await.text.contains("another question"));
    for (area, status) in [
        (json!({ "map": "0000000000000000", "polygon": polygon }), 409),
        (json!({ "map": points.name, "polygon": [[0, 0], [1, 1]] }), 400),
        (json!({ "map": points.name, "polygon": [[0, 0], [1, 1], [1e9, 0]] }), 400),
    ] {
        let refused = bench.call("POST", "/v1/indexes/news/count", json!({ "area": area })).await;
        assert_eq!(refused.status, status, "{}", refused.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_survives_a_restart_of_the_server() {
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    let job = made(&bench, json!({ "topics": 3 })).await;
    let before = points(&bench).await;
    let about = bench.get("/v1/indexes/news/map").await.body;
    let bench = bench.restarted(|_| {}).await;
    assert_eq!(bench.get("/v1/indexes/news/map").await.body, about);
    let after = points(&bench).await;
    assert_eq!((after.name, after.x, after.y, after.topic), (before.name, before.x, before.y, before.topic));
    let area = json!({ "map": job["result"]["map"], "polygon": [[-1, -1], [70000, -1], [70000, 70000], [-1, 70000]] });
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({ "area": area })).await["count"], 60);
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(200)] })).await;
    let bench = bench.restarted(|_| {}).await;
    assert_eq!(bench.get("/v1/indexes/news/map").await.body["map"]["current"], false);
    // A damaged one is as none, and the index is served.
    let file = bench.dir.path().join("news/map/last");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[300] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let bench = bench.restarted(|_| {}).await;
    assert_eq!(bench.get("/v1/indexes/news/map").await.body, json!({ "map": null }));
    assert_eq!(made(&bench, json!({ "topics": 3 })).await["result"]["documents"], 61);
}
