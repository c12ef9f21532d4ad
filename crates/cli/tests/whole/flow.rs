//! The usual steps of a user: build, search, add, delete.

use std::io::Write;
use std::process::Stdio;

use crate::bench::{Bench, TINY, corpus};

#[test]
fn build_search_add_and_delete_work_end_to_end() {
    let bench = Bench::new();
    let out = bench.ok(&format!("build news.jsonl {TINY} --epochs 8 --views full:4 -o news.micpq"));
    assert!(out.contains("400 documents, 2 bytes each"), "{out}");

    let hits = bench.json("search news.micpq 'crude oil barrel price' -k 20");
    assert_eq!(hits.len(), 20);
    let kind = hits.iter().filter(|h| h["labels"][0] == "oil").count();
    assert!(kind >= 15, "{kind} of 20 hits are about oil");
    assert!(hits[0]["text"].as_str().unwrap().contains(' '));
    assert!(hits[0]["attributes"]["year"].is_i64() && hits[0]["id"].is_u64());
    assert!(hits.windows(2).all(|w| w[0]["score"].as_f64() >= w[1]["score"].as_f64()));
    let by_code = bench.json("search news.micpq 'crude oil barrel price' -k 20 --rerank off");
    assert!(by_code.windows(2).all(|w| w[0]["distance"].as_f64() <= w[1]["distance"].as_f64()));

    let filtered = bench.json("search news.micpq 'crude oil' -k 400 --filter 'year:1988'");
    assert_eq!(filtered.len(), (0..400).filter(|i| i % 3 == 1).count());
    assert!(filtered.iter().all(|h| h["attributes"]["year"] == 1988));

    std::fs::write(bench.path("questions.txt"), "wheat harvest\nbank loan\n").unwrap();
    let both = bench.json("search news.micpq --queries questions.txt -k 3");
    assert_eq!(both.iter().map(|h| h["query"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);

    std::fs::write(bench.path("more.jsonl"), corpus(400, 450)).unwrap();
    assert_eq!(bench.json("index add news.micpq more.jsonl")[0]["documents"], 450);
    // The same ids replace the old documents.
    assert_eq!(bench.json("index add news.micpq more.jsonl")[0]["documents"], 450);
    assert_eq!(bench.json("index delete news.micpq 401 402 nobody")[0]["deleted"], 2);
    // 402 was one of the 150 documents of that year.
    assert_eq!(bench.json("index delete news.micpq --filter 'year:1987'")[0]["documents"], 450 - 1 - 150);
    let left = bench.json("search news.micpq 'grain' -k 1000");
    assert_eq!(left.len(), 299);
    assert!(left.iter().all(|h| h["attributes"]["year"] != 1987 && h["id"] != 401));
    assert_eq!(bench.json("index verify news.micpq")[0]["sound"], true);
    let info = &bench.json("index compact news.micpq")[0];
    assert_eq!((info["documents"].as_u64(), info["deleted"].as_u64()), (Some(299), Some(0)));
    assert_eq!(bench.json("search news.micpq 'grain' -k 1000"), left, "compaction changes no hit");
}

#[test]
fn a_seed_gives_the_same_bytes_with_any_number_of_threads() {
    let bench = Bench::new();
    for (run, threads) in [("a", 1), ("b", 2), ("c", 3)] {
        let cache = format!("cache-{run}");
        let flags = TINY.replace("--cache cache", &format!("--cache {cache}"));
        bench.ok(&format!(
            "train news.jsonl {flags} --method micpq --epochs 3 --views noise:4 --threads {threads} -o model-{run}"
        ));
        bench.ok(&format!("encode news.jsonl --model model-{run} --threads {threads} -o codes-{run}.npy"));
    }
    for other in ["b", "c"] {
        assert_eq!(bench.bytes("model-a/model.safetensors"), bench.bytes(&format!("model-{other}/model.safetensors")));
        assert_eq!(bench.bytes("codes-a.npy"), bench.bytes(&format!("codes-{other}.npy")));
    }
    for (run, other) in [("d", "--seed 1"), ("e", "--set floor=0"), ("f", "--no-gumbel"), ("g", "--prob-weight 0")] {
        bench.ok(&format!("train news.jsonl {TINY} --method micpq --epochs 3 --views noise:4 {other} -o model-{run}"));
        let model = bench.bytes(&format!("model-{run}/model.safetensors"));
        assert_ne!(bench.bytes("model-a/model.safetensors"), model, "{other} changes the model");
    }
}

#[test]
fn embeddings_are_written_in_input_order() {
    let bench = Bench::new();
    bench.ok("encode news.jsonl --encoder tiny --pooling mean -o all.npy");
    std::fs::write(bench.path("one.jsonl"), corpus(7, 8)).unwrap();
    bench.ok("encode one.jsonl --encoder tiny --pooling mean -o one.npy");
    let (all, one) = (bench.bytes("all.npy"), bench.bytes("one.npy"));
    assert!(String::from_utf8_lossy(&all[..128]).contains("(400, 32)"));
    assert_eq!(all[128 + 7 * 128..128 + 8 * 128], one[128..], "a row does not depend on its neighbours");
    bench.ok("encode news.jsonl --encoder tiny --pooling cls -o cls.npy");
    assert_ne!(bench.bytes("cls.npy"), all);
}

#[test]
fn training_with_validation_labels_beats_chance() {
    let bench = Bench::new();
    std::fs::write(bench.path("val.jsonl"), corpus(1000, 1060)).unwrap();
    bench.ok(&format!(
        "train news.jsonl {TINY} --method micpq --validation val.jsonl --epochs 8 --views full:4 -o model"
    ));
    let result = &bench.json("eval --model model --database news.jsonl --queries val.jsonl --cache cache")[0];
    let p100 = result["precision"]["100"].as_f64().unwrap();
    assert!(p100 > 60.0, "four even topics give 25 by chance, this is {p100}");
    assert_eq!(result["distance"], "norm");
    assert!(result["float"]["cosine"]["precision"]["100"].is_f64() && result["recall_10_at_100"].is_f64());
    let card = String::from_utf8(bench.bytes("model/README.md")).unwrap();
    assert!(card.contains("| seed | 0 |") && card.contains("P@100"), "{card}");
}

#[test]
fn a_corpus_from_standard_input_is_indexed_with_codes_only() {
    let bench = Bench::new();
    let line = format!("build - --format jsonl {TINY} --epochs 2 --views noise:4 --store codes -o piped.micpq");
    let mut child =
        bench.command(&line).stdin(Stdio::piped()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(corpus(0, 200).as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let hits = bench.json("search piped.micpq 'port strike' -k 5");
    assert_eq!(hits.len(), 5);
    assert!(hits[0]["text"].is_null());
    assert_eq!(bench.json("index info piped.micpq")[0]["documents"], 200);
}

#[test]
fn cache_clear_removes_only_cache_entries() {
    let bench = Bench::new();
    bench.ok(&format!("train news.jsonl {TINY} --epochs 1 --views full:2 -o model"));
    std::fs::write(bench.path("cache/letter.txt"), "dear all").unwrap();
    let listed = bench.json("cache list --cache cache");
    assert!(listed.iter().any(|e| e["name"].as_str().unwrap().contains("views-2") && e["bytes"].as_u64() > Some(1000)));
    assert!(bench.fails("cache clear --cache cache --older-than=-1", 2).contains("days"));
    assert_eq!(bench.json("cache clear --cache cache --older-than 30")[0]["removed"], 0);
    assert_eq!(bench.json("cache clear --cache cache")[0]["removed"], listed.len());
    assert!(bench.json("cache list --cache cache").is_empty() && bench.path("cache/letter.txt").exists());
    bench.ok(&format!("train news.jsonl {TINY} --epochs 1 --views full:2 -o again"));
    assert_eq!(bench.bytes("model/model.safetensors"), bench.bytes("again/model.safetensors"));
}
