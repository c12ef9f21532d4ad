//! What describes an index, at once or in the background.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn facets_codebooks_and_training_describe_an_index() {
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    let facets = bench.get("/v1/indexes/news/facets").await.body;
    let facet = |name: &str| facets["facets"].as_array().unwrap().iter().find(|f| f["name"] == name).unwrap().clone();
    assert_eq!(facet("place")["distinct"], 3);
    assert_eq!(facet("place")["values"][0]["count"], 20);
    assert_eq!((&facet("year")["least"], &facet("year")["greatest"]), (&json!(1987.0), &json!(1990.0)));
    assert_eq!(facet("long")["values"].as_array().unwrap().len(), 2);
    assert_eq!(facet("labels")["documents"], 60);
    // The filter of a value matches exactly its documents.
    for facet in facets["facets"].as_array().unwrap() {
        for value in facet["values"].as_array().unwrap() {
            let count = bench.ok("POST", "/v1/indexes/news/count", json!({ "filter": value["filter"] })).await;
            assert_eq!(count["count"], value["count"], "{value}");
        }
    }
    let some = bench.get("/v1/indexes/news/facets?filter=place:japan&values=1").await.body;
    let years = some["facets"].as_array().unwrap().iter().find(|f| f["name"] == "year").unwrap();
    assert_eq!((&years["documents"], years["values"].as_array().unwrap().len()), (&json!(20), 1));

    let codebooks = bench.get("/v1/indexes/news/codebooks").await.body;
    assert_eq!((codebooks["usage"].as_array().unwrap().len(), &codebooks["documents"]), (4, &json!(60)));
    let mut members = 0;
    for codeword in 0..16 {
        let gathered = bench.get(&format!("/v1/indexes/news/codebooks/1/{codeword}?documents=1000")).await.body;
        let documents = gathered["documents"].as_array().unwrap();
        assert_eq!(documents.len() as u64, codebooks["usage"][1][codeword].as_u64().unwrap());
        members += documents.len();
    }
    assert_eq!(members, 60);
    typical_documents_of_a_codeword_come_first(&bench).await;
    let training = bench.get("/v1/indexes/news/training").await.body;
    assert_eq!((&training["method"], &training["metrics"]), (&json!("test"), &Value::Null));
    assert_eq!(
        bench.raw("POST", "/v1/indexes/news/train", "", Body::empty()).await.status,
        202,
        "the job starts, and then fails without an encoder"
    );
    for _ in 0..100 {
        let job = bench.get("/v1/jobs/1").await.body;
        if job["status"] == "failed" {
            assert!(job["error"].as_str().unwrap().contains("trained on user vectors"), "{job}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the job does not end");
}

/// By brute force over the decoded codes of the documents of the most used codeword.
async fn typical_documents_of_a_codeword_come_first(bench: &Bench) {
    let codebooks = model();
    let (shape, codebooks) = (codebooks.shape(), codebooks.codebooks());
    let usage = bench.get("/v1/indexes/news/codebooks").await.body["usage"][2].clone();
    let codeword = (0..16).max_by_key(|k| usage[k].as_u64()).unwrap();
    let listed = bench.get(&format!("/v1/indexes/news/codebooks/2/{codeword}?documents=1000")).await.body;
    let ids: Vec<u64> = listed["documents"].as_array().unwrap().iter().map(|d| d["id"].as_u64().unwrap()).collect();
    let index = Index::open(&bench.dir.path().join("news"), &engine::NoProgress).unwrap();
    let decoded = |id: &u64| -> Vec<f64> {
        let code = index.get(&engine::corpus::DocId::Int(*id)).unwrap().unwrap().code;
        let slice = |m: usize| codebooks.codebook(m).nth(shape.codeword(&code, m)).unwrap().to_vec();
        (0..shape.num_codebooks()).flat_map(slice).map(f64::from).collect()
    };
    let all: Vec<Vec<f64>> = ids.iter().map(decoded).collect();
    let mean: Vec<f64> = (0..WIDTH).map(|j| all.iter().map(|v| v[j]).sum::<f64>() / all.len() as f64).collect();
    let distances: Vec<f64> = all.iter().map(|v| v.iter().zip(&mean).map(|(a, b)| (a - b).powi(2)).sum()).collect();
    assert!(ids.len() > 3 && !ids.is_sorted(), "not the order of insertion: {ids:?}");
    assert!(distances.windows(2).all(|pair| pair[0] <= pair[1] + 1e-5), "{distances:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_and_topics_are_jobs_that_may_change_the_index() {
    let bench = Bench::new(|_| {});
    bench.fill(60).await;
    let copy = |id: usize, of: usize| {
        let mut copy = document(of);
        copy["id"] = id.into();
        copy
    };
    let copies: Vec<Value> = (0..5).map(|i| copy(100 + i, 7 * i)).collect();
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": copies })).await;
    let ended = async |path: &str, body: Value| -> Value {
        let job = bench.ok("POST", path, body).await["id"].clone();
        for _ in 0..200 {
            let job = bench.get(&format!("/v1/jobs/{job}")).await.body;
            if job["status"] != "running" {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the job does not end");
    };
    assert_eq!(bench.get("/v1/indexes/news/topics").await.body, json!({ "report": null }));
    let dedup = "/v1/indexes/news/dedup";
    let found = ended(dedup, json!({ "by": "text", "groups": 2 })).await;
    let result = &found["result"];
    assert_eq!((&found["kind"], &result["exact"], &result["total_groups"]), (&json!("dedup"), &json!(5), &json!(5)));
    assert_eq!(result["groups"].as_array().unwrap().len(), 2);
    assert_eq!(result["groups"][0]["duplicates"][0]["id"], 100);
    let marked = ended(dedup, json!({ "by": "text", "mark": "copy_of" })).await;
    assert_eq!(marked["result"]["marked"], 5, "{marked}");
    let count = async |filter: &str| bench.ok("POST", "/v1/indexes/news/count", json!({ "filter": filter })).await;
    assert_eq!(count("copy_of:*").await["count"], 5);
    let deleted = ended(dedup, json!({ "by": "text", "delete": true })).await;
    assert_eq!(deleted["result"]["deleted"], json!({ "deleted": 5, "stale": 0, "documents": 60 }), "{deleted}");

    let topics = ended("/v1/indexes/news/topics", json!({ "topics": 3, "mark": "topic" })).await;
    let result = &topics["result"];
    assert_eq!((result["topics"].as_array().unwrap().len(), &result["over"]), (3, &json!("year")), "{topics}");
    let first = &result["topics"][0];
    assert_eq!(count("topic:0").await["count"], first["documents"]);
    let last = bench.get("/v1/indexes/news/topics").await.body;
    assert_eq!((&last["report"], &last["report"]["attribute"]), (result, &json!("topic")));
    // The server still writes and searches.
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(200)] })).await;
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 61);
    assert_eq!(bench.call("POST", dedup, json!({ "threshold": 3 })).await.status, 400);
    assert_eq!(bench.call("POST", "/v1/indexes/news/topics", json!({ "topics": 5000 })).await.status, 400);
    let unnamed = bench.call("POST", "/v1/indexes/news/topics", json!({ "follow": true })).await;
    assert_eq!(unnamed.status, 400, "{}", unnamed.text);
    let followed = ended("/v1/indexes/news/topics", json!({ "extend": "topic", "follow": true })).await;
    assert_eq!(followed["status"], "succeeded", "{followed}");
    let topic_of = async |id: usize| {
        let found = bench.get(&format!("/v1/indexes/news/documents/{id}")).await.body;
        found["attributes"].get("topic").cloned()
    };
    let mut like = 0;
    while topic_of(like).await.is_none() {
        like += 1;
    }
    let original = topic_of(like).await;
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [copy(300, like)] })).await;
    assert_eq!(topic_of(300).await, original);
    ended("/v1/indexes/news/topics", json!({ "extend": "topic", "follow": false })).await;
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [copy(301, like)] })).await;
    assert_eq!(topic_of(301).await, None);
    for id in [300, 301] {
        bench.ok("DELETE", &format!("/v1/indexes/news/documents/{id}"), Value::Null).await;
    }
    let both = bench.call("POST", dedup, json!({ "by": "text", "delete": true, "mark": "copy_of" })).await;
    assert_eq!((both.status, both.code()), (400, "bad_request"), "{}", both.text);
    for (name, value) in [("seed", json!(2)), ("terms", json!(5)), ("typical", json!(1)), ("over", json!("year"))] {
        let refused = bench.call("POST", "/v1/indexes/news/topics", json!({ "extend": "topic", name: value })).await;
        assert_eq!(refused.status, 400, "{name}: {}", refused.text);
        assert!(refused.text.contains(name), "{}", refused.text);
    }
    let failed = ended("/v1/indexes/news/topics", json!({ "topics": 500 })).await;
    assert!(failed["error"].as_str().unwrap().contains("61 documents"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recall_is_measured_in_the_background_and_shown_by_window() {
    let bench = Bench::new(|_| {});
    bench.fill(1200).await;
    assert_eq!(bench.get("/v1/indexes/news/recall").await.body, json!({ "report": null }));
    let wrong = bench.call("POST", "/v1/indexes/news/recall", json!({ "windows": 0 })).await;
    assert_eq!((wrong.status, wrong.code()), (400, "bad_request"), "{}", wrong.text);
    let unknown = bench.call("POST", "/v1/indexes/nobody/recall", Value::Null).await;
    assert_eq!(unknown.status, 404, "a body of null is none: {}", unknown.text);
    let started = bench.call("POST", "/v1/indexes/news/recall", json!({ "windows": 3, "rerank": 50 })).await;
    assert_eq!((started.status, &started.body["kind"]), (202, &json!("recall")), "{}", started.text);
    let id = started.body["id"].as_u64().unwrap();
    let mut job = Value::Null;
    for _ in 0..200 {
        job = bench.get(&format!("/v1/jobs/{id}")).await.body;
        if job["status"] != "running" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(job["status"], "succeeded", "{job}");
    let report = &bench.get("/v1/indexes/news/recall").await.body["report"];
    assert_eq!(*report, job["result"]);
    assert_eq!((report["windows"].as_array().unwrap().len(), &report["documents"]), (3, &json!(1200)));
    let metrics = bench.get("/metrics").await.text;
    for window in ["all", "0", "1", "2"] {
        let line = format!("micpq_index_recall{{index=\"news\",window=\"{window}\"}} ");
        assert!(metrics.contains(&line), "{line} is missing");
    }
    // A second measurement with fewer windows leaves no old ones.
    bench.ok("POST", "/v1/indexes/news/recall", json!({ "windows": 1 })).await;
    for _ in 0..200 {
        if bench.get("/v1/jobs").await.body["jobs"][0]["status"] == "succeeded" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!bench.get("/metrics").await.text.contains("micpq_index_recall{index=\"news\",window=\"1\"}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_program_writes_while_changes_are_recorded() {
    use crate::writes::WriterThread;
    let bench = Bench::new(|config| config.writer_idle_seconds = 0.1);
    bench.fill(3).await;
    let hosted = bench.server.index("news").unwrap();
    hosted.writes.run_exclusive(WriterThread::record_changes).await.unwrap().unwrap();
    let other = Index::open(&bench.dir.path().join("news"), &engine::NoProgress).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(matches!(other.writer(), Err(engine::Error::Busy(_))));
    assert!(matches!(other.lock(), Err(engine::Error::Busy(_))));
    bench.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document(7)] })).await;
    let changes = hosted.writes.run_exclusive(WriterThread::take_changes).await.unwrap();
    assert_eq!(changes.len(), 1);
    let mut writer = other.writer();
    for _ in 0..100 {
        if writer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        writer = other.writer();
    }
    assert_eq!(writer.unwrap().commit(&engine::NoProgress).unwrap(), 4);
}
