//! Several models trained on one copy of the views.

use crate::bench::{Bench, TINY, corpus};

#[test]
fn models_trained_together_equal_models_trained_alone() {
    let bench = Bench::new();
    std::fs::write(bench.path("val.jsonl"), corpus(400, 440)).unwrap();
    std::fs::write(bench.path("test.jsonl"), corpus(440, 500)).unwrap();
    let flags = TINY.replace("--bits 16 ", "");
    let common = format!(
        "train news.jsonl {flags} --method micpq --views full:3 --epochs 3 --validation val.jsonl --test test.jsonl"
    );
    let lines = bench.json(&format!("{common} --bits 16,32,16 --seed 0,1 --jobs 3 -o models"));
    assert_eq!(lines.len(), 4, "two lengths, two seeds");
    for line in &lines {
        let precision = line["metrics"]["test"]["precision"]["100"].as_f64().unwrap();
        assert!((0.0..=100.0).contains(&precision) && line["metrics"]["best"].as_f64().unwrap() > 20.0);
    }
    // The views were computed once.
    let views = std::fs::read_dir(bench.path("cache")).unwrap().flatten();
    assert_eq!(views.filter(|e| e.file_name().to_string_lossy().ends_with("-views-3")).count(), 1);
    // Trained alone, on other threads and with an empty cache, a model has the same bytes.
    let alone = common.replace("--cache cache", "--cache other");
    bench.ok(&format!("{alone} --bits 32 --seed 1 --threads 2 -o alone"));
    assert_eq!(bench.bytes("alone/model.safetensors"), bench.bytes("models/32-1/model.safetensors"));
    assert_ne!(bench.bytes("alone/model.safetensors"), bench.bytes("models/32-0/model.safetensors"));
    // --test measures the same as `eval`.
    let line = lines.iter().find(|l| l["model"].as_str().unwrap().ends_with("32-1")).unwrap();
    let eval = bench.json("eval --model models/32-1 --database news.jsonl --queries test.jsonl --seed 1 --cache cache");
    assert_eq!(eval[0]["precision"], line["metrics"]["test"]["precision"]);
}

#[test]
fn wrong_lists_of_models_are_refused() {
    let bench = Bench::new();
    for (line, code, word) in [
        ("build news.jsonl --encoder tiny --bits 16,32 -o i", 2, "--bits and --seed ask for 2 models"),
        ("build news.jsonl --encoder tiny --seed 0,1,2 -o i", 2, "--bits and --seed ask for 3 models"),
        ("train news.jsonl --encoder tiny --bits 16,30 -o m", 2, "30"),
        ("train news.jsonl --encoder tiny --bits 16,32 --jobs 0 -o m", 2, "--jobs"),
        ("train news.jsonl --encoder tiny --bits 16,x -o m", 2, "x"),
    ] {
        let stderr = bench.fails(line, code);
        assert!(stderr.contains(word), "{line}: {stderr}");
    }
    std::fs::write(bench.path("bare.jsonl"), "{\"text\": \"oil\"}\n").unwrap();
    let stderr = bench.fails("train news.jsonl --encoder tiny --bits 16 --test bare.jsonl --cache cache -o m", 1);
    assert!(stderr.contains("test") && stderr.contains("label"), "{stderr}");
}
