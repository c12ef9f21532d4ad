//! The fast query encoder, and the web export that searches with it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::bench::{Bench, TINY};

const FILE: &str = "news.micpq/model/query_encoder.safetensors";

/// An index with a fast query encoder.
fn built() -> Bench {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 8 --views full:4 --query-encoder fast -o news.micpq"));
    bench
}

#[test]
fn a_fast_query_encoder_finds_the_kind_without_the_encoder() {
    let bench = built();
    let full = bench.json("search news.micpq 'crude oil barrel price' -k 20");
    std::fs::rename(bench.path("models"), bench.path("gone")).unwrap();
    for rerank in ["auto", "off"] {
        let line = format!("search news.micpq 'crude oil barrel price' -k 20 --query-encoder fast --rerank {rerank}");
        let fast = bench.json(&line);
        let kind = fast.iter().filter(|hit| hit["labels"][0] == "oil").count();
        assert!(kind >= 15, "{kind} of 20 hits are about oil, rerank {rerank}");
    }
    let kind = full.iter().filter(|hit| hit["labels"][0] == "oil").count();
    assert!(kind >= 15, "{kind} of 20 hits are about oil by the full encoder");
    // Words that no token has leave nothing of a query; it is still answered.
    assert_eq!(bench.json("search news.micpq '日本' -k 3 --query-encoder fast").len(), 3);
    // A backup has it too.
    bench.ok("index backup news.micpq copy.micpq");
    let line = |index: &str| format!("search {index} 'wheat harvest' -k 5 --query-encoder fast");
    assert_eq!(bench.json(&line("copy.micpq")), bench.json(&line("news.micpq")));
    assert_eq!(bench.json("index verify news.micpq")[0]["sound"], true);
}

#[test]
fn a_seed_gives_the_same_query_encoder_with_any_number_of_threads() {
    let bench = built();
    let first = bench.bytes(FILE);
    for threads in [1, 3] {
        bench.ok(&format!("distill news.micpq --threads {threads}"));
        assert!(bench.bytes(FILE) == first, "with {threads} threads");
    }
    bench.ok("distill news.micpq --seed 1");
    assert!(bench.bytes(FILE) != first);
    // A model directory learns the same from the corpus of the index.
    bench.ok(&format!("train news.jsonl {TINY} --epochs 8 --views full:4 -o model"));
    bench.ok("distill model --corpus news.jsonl");
    assert!(bench.bytes("model/query_encoder.safetensors") == first);
    // A model with a query encoder can be replaced like any other.
    bench.ok(&format!("train news.jsonl {TINY} --epochs 1 --views noise:4 -o model"));
}

#[test]
fn what_cannot_be_distilled_or_searched_fast_says_so() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o news.micpq"));
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 --store codes -o codes.micpq"));
    bench.ok("train news.jsonl --method vdsh --input tfidf --bits 16 --epochs 1 --cache cache -o terms");
    let refused = |line: &str, code: i32, part: &str| {
        let said = bench.fails(line, code);
        assert!(said.contains(part), "{line}: {said}");
    };
    refused("search news.micpq oil --query-encoder fast", 2, "micpq distill");
    refused("search news.micpq oil --query-encoder quick", 2, "full, fast");
    refused("export news.micpq --to web -o site", 2, "micpq distill");
    refused("distill codes.micpq", 2, "--corpus");
    refused("distill codes.micpq/model", 2, "--corpus");
    refused("distill terms --corpus news.jsonl", 2, "no encoder to distil");
    refused("distill nowhere", 1, "is not an index");
    refused("distill news.micpq --width 0", 2, "1 to 4096");
    refused(&format!("build news.jsonl {TINY} --store codes --query-encoder fast -o other.micpq"), 2, "store all");
    assert!(!bench.path("site").exists());
    // Codes alone learn from the corpus they came from.
    bench.ok("distill codes.micpq --corpus news.jsonl --epochs 1");
    assert_eq!(bench.json("search codes.micpq 'oil' -k 3 --query-encoder fast").len(), 3);
    // Damage is found, and the rest of the index works.
    let path = bench.path("codes.micpq/model/query_encoder.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    refused("search codes.micpq oil --query-encoder fast", 1, "is damaged");
    assert_eq!(bench.json("search codes.micpq oil -k 3").len(), 3);
    // A query encoder of another model is refused.
    bench.ok("distill news.micpq --epochs 1");
    std::fs::copy(bench.path(FILE), &path).unwrap();
    let other = format!("train news.jsonl {TINY} --epochs 2 --seed 9 --views noise:4 -o other");
    bench.ok(&other);
    std::fs::copy(bench.path(FILE), bench.path("other/query_encoder.safetensors")).unwrap();
    bench.ok("index create made.micpq news.jsonl --model other");
    std::fs::copy(bench.path(FILE), bench.path("made.micpq/model/query_encoder.safetensors")).unwrap();
    refused("search made.micpq oil --query-encoder fast", 1, "was distilled from model");
}

#[test]
fn a_web_export_finds_what_the_program_finds() {
    let bench = built();
    let said = bench.json("export news.micpq --to web --title News -o site");
    assert_eq!(said[0]["documents"], 400);
    assert!(bench.fails("export news.micpq --to web -o site", 1).contains("is taken"));
    let search = web::Search::open(&bench.bytes("site/search.bin")).unwrap();
    let tokens = String::from_utf8(bench.bytes("site/tokens.txt")).unwrap();
    let tokens: Vec<&str> = tokens.split('\n').collect();
    let documents = String::from_utf8(bench.bytes("site/documents.jsonl")).unwrap();
    let documents: Vec<Value> = documents.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for query in ["crude oil barrel price", "wheat", "strike of dock union", "the bank said"] {
        let line = format!("search news.micpq '{query}' -k 50 --query-encoder fast --rerank off");
        let expected: Vec<(Value, u32)> = bench
            .json(&line)
            .iter()
            .map(|hit| (hit["id"].clone(), (hit["distance"].as_f64().unwrap() as f32).to_bits()))
            .collect();
        let ids: Vec<u32> =
            query.split(' ').map(|word| tokens.iter().position(|token| *token == word).unwrap() as u32).collect();
        let found = search.nearest(&ids, 50).unwrap();
        let found: Vec<(Value, u32)> =
            found.iter().map(|hit| (documents[hit.key as usize]["id"].clone(), hit.distance.to_bits())).collect();
        assert_eq!(found, expected, "{query}");
    }
    let bytes = bench.bytes("site/search.bin");
    for cut in [0, 7, 40, bytes.len() - 1] {
        assert!(web::Search::open(&bytes[..cut]).is_err(), "{cut} bytes of {}", bytes.len());
    }
    assert!(search.nearest(&[u32::MAX], 3).is_err());
}

#[test]
fn the_page_of_a_web_export_works_in_a_browser() {
    let Ok(python) = std::env::var("MICPQ_BROWSER_PYTHON") else {
        eprintln!("skipped: MICPQ_BROWSER_PYTHON does not name a Python with selenium; \"make page\" does");
        return;
    };
    let bench = built();
    bench.ok("export news.micpq --to web --title News -o site");
    let queries =
        ["crude oil barrel price", "Wheat, HARVEST!", "  dock-strike  ", "日本 crédit", "", "zzz [MASK] bank"];
    let mut expected = serde_json::Map::new();
    for query in queries.iter().filter(|query| !query.trim().is_empty()) {
        let hits = bench.json(&format!("search news.micpq '{query}' -k 10 --query-encoder fast --rerank off"));
        expected.insert((*query).into(), hits.iter().map(|hit| hit["id"].clone()).collect());
    }
    std::fs::write(bench.path("expected.json"), Value::from(expected).to_string()).unwrap();
    let out = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../web/page/tests/browser.py"))
        .args([bench.path("site"), bench.path("expected.json")])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}\n{}", crate::bench::text(&out.stdout), crate::bench::text(&out.stderr));
}
