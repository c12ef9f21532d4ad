//! Vectors of a service: micpq's own `/v1/embeddings`, and one that fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::bench::{Bench, TINY};
use crate::serve::Server;

#[test]
fn an_index_of_a_services_vectors_is_built_and_searched_like_any_other() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 2 --views full:2 -o own.micpq"));
    let server = Server::start(&bench, "own.micpq");
    let encoder = format!("--encoder http://{} --encoder-model own", server.address());
    // The same vectors as from the encoder itself.
    bench.ok("encode news.jsonl --encoder tiny --precision f32 -o here.npy");
    bench.ok(&format!("encode news.jsonl {encoder} -o there.npy"));
    let values = |name: &str| engine::formats::npy::read_f32(&bench.path(name)).unwrap();
    let (here, there) = (values("here.npy"), values("there.npy"));
    assert_eq!((here.rows(), here.cols()), (there.rows(), there.cols()));
    assert!(here.as_slice().iter().zip(there.as_slice()).all(|(a, b)| (a - b).abs() < 1e-6));

    let out = bench.ok(&format!("build news.jsonl {encoder} --bits 32 --epochs 2 --views full:2 -o far.micpq"));
    assert!(out.contains("400 documents"), "{out}");
    let hits = bench.json("search far.micpq 'crude oil barrel opec' -k 20");
    // Documents of topic `i % 4`; oil is topic 0. Four even topics would give five by chance.
    let oil = hits.iter().filter(|hit| hit["id"].as_u64().unwrap() % 4 == 0).count();
    assert!(hits.len() == 20 && oil > 10, "{oil} of {}", hits.len());

    // Token ids are taken too, and give the vector of their text.
    let embed = |input: Value| {
        let reply = server.ok("POST", "/v1/embeddings", json!({ "model": "own", "input": input }));
        let row = |row: &Value| row["embedding"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        reply["data"].as_array().unwrap().iter().map(row).collect::<Vec<Vec<f64>>>()
    };
    // [CLS] oil crude [SEP], by their lines in vocab.txt.
    let text = embed(json!("oil crude"));
    assert_eq!(embed(json!([2, 4, 5, 3])), text);
    assert_eq!(embed(json!([[2, 4, 5, 3], [2, 4, 3]]))[0], text[0]);
    let (status, problem) =
        server.call("POST", "/v1/embeddings", json!({ "model": "own", "input": [2, 4_000_000, 3] }));
    assert_eq!(status, 422, "{problem}");

    // What the service has answered is kept: without it, the same texts are encoded again.
    drop(server);
    bench.ok(&format!("encode news.jsonl {encoder} -o again.npy"));
    assert_eq!(values("again.npy"), there);
}

#[test]
fn queries_get_the_prompt_that_the_servers_encoder_has_for_them() {
    let bench = Bench::new();
    bench.add_encoder("bert", "org--bert");
    let own = "--encoder org/bert --precision f32";
    bench.ok(&format!("build news.jsonl {own} --bits 16 --epochs 2 --views noise:4 -o own.micpq"));
    let server = Server::start(&bench, "own.micpq");
    let encoder = format!("--encoder http://{} --encoder-model own", server.address());
    let values = |name: &str| engine::formats::npy::read_f32(&bench.path(name)).unwrap();
    let mut rows = Vec::new();
    for flags in ["", "--queries"] {
        bench.ok(&format!("encode news.jsonl {own} {flags} -o here{flags}.npy"));
        bench.ok(&format!("encode news.jsonl {encoder} {flags} -o there{flags}.npy"));
        let (here, there) = (values(&format!("here{flags}.npy")), values(&format!("there{flags}.npy")));
        assert!(here.as_slice().iter().zip(there.as_slice()).all(|(a, b)| (a - b).abs() < 1e-6), "{flags}");
        rows.push(there);
    }
    assert_ne!(rows[0], rows[1], "the encoder has a prompt of its own for queries");
}

#[test]
fn a_server_takes_an_encoder_by_its_name_on_the_hub_and_pools_as_it_says() {
    let bench = Bench::new();
    // Its vectors are those of [CLS].
    bench.add_encoder("bert", "org--bert");
    let server = Server::start(&bench, "--data served");
    let created = server.ok("PUT", "/v1/indexes/own", json!({ "encoder": "org/bert", "bits": 32 }));
    assert!(created.is_object(), "{created}");
    let texts = ["oil prices rise", "a strike in the harbour"];
    let rows: String = texts.iter().map(|text| format!("{}\n", json!({ "text": text }))).collect();
    std::fs::write(bench.path("texts.jsonl"), rows).unwrap();
    let reply = server.ok("POST", "/v1/embeddings", json!({ "model": "own", "input": texts }));
    let apart = |flags: &str| {
        bench.ok(&format!("encode texts.jsonl --encoder org/bert {flags} -o rows{}.npy", flags.len()));
        let rows = engine::formats::npy::read_f32(&bench.path(&format!("rows{}.npy", flags.len()))).unwrap();
        let found = reply["data"].as_array().unwrap().iter().flat_map(|row| row["embedding"].as_array().unwrap());
        found.zip(rows.as_slice()).map(|(a, b)| (a.as_f64().unwrap() - f64::from(*b)).abs()).fold(0.0, f64::max)
    };
    assert!(apart("") < 1e-6, "as its makers meant it");
    assert!(apart("--pooling cls --unit-length --document-prompt 'text: '") < 1e-6);
    assert!(apart("--pooling mean --unit-length --document-prompt 'text: '") > 1e-3);
}

#[test]
fn a_busy_service_is_asked_again_and_a_refusal_is_an_error() {
    let bench = Bench::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1", listener.local_addr().unwrap());
    let (calls, keys) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counted, seen) = (calls.clone(), keys.clone());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                let lower = line.to_lowercase();
                if let Some(value) = lower.strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
                if lower.starts_with("authorization") {
                    seen.lock().unwrap().push(line.trim().to_owned());
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let texts = body["input"].as_array().unwrap();
            let (status, answer) = match (body["model"].as_str().unwrap(), counted.fetch_add(1, Ordering::Relaxed)) {
                ("good", 0) => (503, json!({ "error": { "message": "busy" } })),
                ("good", _) => {
                    // In another order than asked.
                    let rows = texts.iter().enumerate().rev();
                    let row = |(i, text): (usize, &Value)| {
                        let length = text.as_str().unwrap().len() as f32;
                        json!({ "index": i, "embedding": [length, 1.0, -length] })
                    };
                    (200, json!({ "data": rows.map(row).collect::<Vec<_>>() }))
                }
                ("closed", _) => (401, json!({ "error": { "message": "no such key" } })),
                _ => (200, json!({ "data": [] })),
            };
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len());
            let _ = stream.write_all((head + &answer).as_bytes());
        }
    });
    let run = |model: &str| {
        let line = format!("encode news.jsonl --encoder {address} --encoder-model {model} -o out.npy");
        let output = bench.command(&line).env("OPENAI_API_KEY", "hidden-key").output().unwrap();
        (output.status.code(), crate::bench::text(&output.stderr))
    };
    let (code, stderr) = run("good");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("answers 503: busy; trying again"), "{stderr}");
    // 400 texts in batches of 64, one request for the width, one that failed.
    assert!((8..=10).contains(&calls.load(Ordering::Relaxed)), "{calls:?}");
    assert!(keys.lock().unwrap().iter().all(|key| key.contains("Bearer hidden-key")));
    let rows = engine::formats::npy::read_f32(&bench.path("out.npy")).unwrap();
    assert!(rows.rows() == 400 && rows.iter().all(|row| row[0] == -row[2] && row[1] == 1.0));
    let (code, stderr) = run("closed");
    assert!(code == Some(1) && stderr.contains("no such key") && stderr.contains("OPENAI_API_KEY"), "{stderr}");
    assert!(!stderr.contains("hidden-key"), "{stderr}");
    let (code, stderr) = run("empty");
    assert!(code == Some(1) && stderr.contains("lacks vectors"), "{stderr}");

    let stderr = bench.fails("encode news.jsonl --encoder http://example.org --encoder-model x -o out.npy", 2);
    assert!(stderr.contains("use https"), "{stderr}");
    let stderr = bench.fails(&format!("encode news.jsonl --encoder {address} -o out.npy"), 2);
    assert!(stderr.contains("name its model"), "{stderr}");
    let stderr = bench.fails("encode news.jsonl --encoder tiny --encoder-model x -o out.npy", 2);
    assert!(stderr.contains("is not the address of one"), "{stderr}");
}
