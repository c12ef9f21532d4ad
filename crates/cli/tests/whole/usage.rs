//! Exit codes and error messages of wrong usage.

use crate::bench::{Bench, TINY, corpus};

#[test]
fn wrong_usage_has_its_exit_code_and_message() {
    let bench = Bench::new();
    std::fs::write(bench.path("bad.jsonl"), "{\"text\": \"oil\"}\n{\"text\": 3\n").unwrap();
    std::fs::write(bench.path("empty.jsonl"), "").unwrap();
    for (line, code, word) in [
        ("", 2, "Usage"),
        ("search", 2, "<INDEX>"),
        ("search nowhere query", 1, "nowhere"),
        ("train news.jsonl --encoder tiny --bits 24 -o m", 2, "24"),
        ("train news.jsonl --encoder tiny --method magic -o m", 2, "unknown method 'magic'"),
        ("train news.jsonl --encoder absent -o m", 2, "micpq encoder pull absent"),
        ("train news.jsonl --encoder tiny --views often -o m", 2, "full:R"),
        ("train news.jsonl --encoder tiny --method micpq --set flor=0 -o m", 2, "known: bits"),
        ("train news.jsonl --encoder tiny --method micpq --set floor=deep -o m", 2, "--set floor=deep"),
        (
            "train news.jsonl --encoder tiny --tau 5 -o m",
            2,
            "distilled has no option called tau; the method micpq has it",
        ),
        ("train missing.jsonl --encoder tiny -o m", 1, "missing.jsonl"),
        ("train bad.jsonl --encoder tiny -o m", 1, "bad.jsonl"),
        ("train empty.jsonl --encoder tiny -o m --cache cache", 1, "0 documents"),
        ("encode news.jsonl --encoder tiny --max-tokens 900 -o f.npy", 2, "3 to 32 tokens"),
        ("encode news.jsonl --model nowhere -o f.npy", 1, "no config.json"),
        ("eval --model nowhere --database news.jsonl --queries news.jsonl", 1, "nowhere"),
        ("build news.jsonl --encoder tiny --threads 0 -o i", 2, "--threads"),
        ("index info nowhere", 1, "nowhere"),
        ("encoder info absent", 2, "absent"),
    ] {
        let stderr = bench.fails(line, code);
        assert!(stderr.contains(word), "{line}: {stderr}");
    }
}

#[test]
fn commands_on_an_index_refuse_wrong_options() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o i"));
    assert!(bench.fails("search i oil -k 0", 2).contains("at least one"));
    assert!(bench.fails("search i oil --filter 'year:['", 2).contains("year:["));
    assert!(bench.fails(&format!("build news.jsonl {TINY} -o i"), 2).contains("--force"));
    assert!(bench.fails("index delete i", 2).contains("--filter"));
    // Another encoder under the same name.
    let weights = bench.path("models/tiny/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    assert!(bench.fails("search i oil", 1).contains("SHA-256"));
}

#[test]
fn errors_name_the_flag_the_value_and_the_remedy() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 --rerank-vectors none -o i"));
    for (line, code, parts) in [
        ("search i oil -k 0", 2, &["-k is 0", "at least one neighbour"][..]),
        ("search i oil -k 20000", 2, &["-k is 20000", "10000", "cursor"]),
        ("search i oil --hybrid 2", 2, &["--hybrid is 2", "0 (only codes) to 1 (only keywords)"]),
        ("search i oil --kind=-1", 2, &["--kind is -1", "0 (the particular document) to 1"]),
        ("search i oil --rerank 0", 2, &["--rerank is 0", "1 to 10000", "off"]),
        ("search i oil --rerank 10", 2, &["stores no rerank vectors", "rerank_vectors int8"]),
        ("search i oil --radius=-1", 2, &["--radius is -1", "from 0 up"]),
        ("search i oil --filter 'year:['", 2, &["year:["]),
        ("search i oil --query-encoder fast", 2, &["no fast query encoder", "full encoder", "try: micpq distill"]),
        ("search nowhere oil", 1, &["nowhere", "no index.json", "try: micpq build"]),
        ("build news.jsonl --encoder tiny --sample 0 -o j", 2, &["--sample is 0", "training needs documents"]),
        ("build news.jsonl --encoder tiny --target-recall 2 -o j", 2, &["--target-recall is 2", "at most 1"]),
        ("build news.jsonl --encoder tiny --epochs 0 -o j", 2, &["--epochs is 0", "between 1 and 1000000"]),
        ("build news.jsonl --encoder tiny --bits 24 -o j", 2, &["24", "16, 32, 64 or 128"]),
        ("build news.jsonl --encoder absent -o j", 2, &["absent", "try: micpq encoder pull absent"]),
        ("dedup i --threshold 2", 2, &["--threshold is 2", "above 0 and at most 1"]),
        ("dedup i --neighbours 0", 2, &["--neighbours is 0", "1 to 1000"]),
        ("topics i --terms 101", 2, &["--terms is 101", "1 to 100"]),
        ("index recall i -k 0", 2, &["-k is 0", "1 to 1000"]),
        ("distill i --width 5000", 2, &["--width is 5000", "1 to 4096"]),
        ("build news.jsonl --encoder tiny --max-row-bytes 0 -o j", 2, &["--max-row-bytes is 0", "16777216"]),
        ("encode news.jsonl --encoder tiny --max-tokens 900 -o f.npy", 2, &["--max-tokens is 900", "3 to 32 tokens"]),
        ("encode news.jsonl --model nowhere -o f.npy", 1, &["nowhere", "no config.json", "try: micpq train"]),
    ] {
        let stderr = bench.fails(line, code);
        for part in parts {
            assert!(stderr.contains(part), "{line}: \"{part}\" is not in: {stderr}");
        }
    }
}

#[test]
fn skipped_rows_are_counted() {
    let bench = Bench::new();
    let rows =
        format!("{}{{\"id\": 3, \"text\": \"oil\"}}\nnot json\n{{\"id\": 900, \"text\": \"\"}}\n", corpus(0, 50));
    std::fs::write(bench.path("mixed.jsonl"), rows).unwrap();
    let stderr = bench.fails("encode mixed.jsonl --encoder tiny -o f.npy", 1);
    assert!(stderr.contains("mixed.jsonl") && stderr.contains('3'), "{stderr}");
    assert!(!bench.path("f.npy").exists());
    let result = &bench.json("encode mixed.jsonl --encoder tiny --on-error skip -o f.npy")[0];
    assert_eq!((result["rows"].as_u64(), result["skipped"].as_u64()), (Some(50), Some(3)));
}

#[test]
fn help_has_examples_and_completions_are_scripts() {
    let bench = Bench::new();
    assert!(bench.ok("--help").contains("micpq build news.jsonl -o news.micpq"));
    assert!(bench.ok("search --help").contains("--filter"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(bench.ok(&format!("completions {shell}")).contains("micpq"));
    }
}
