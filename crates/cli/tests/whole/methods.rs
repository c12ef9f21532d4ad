//! The paper's other methods, from training to search, and the paper's tables from a plan.

use crate::bench::{Bench, TINY, corpus};

#[test]
fn every_method_builds_a_searchable_index() {
    let bench = Bench::new();
    // Not every method has a hidden layer.
    let flags = TINY.replace("--hidden 32 ", "");
    for method in [
        "pq",
        "opq",
        "lopq",
        "two-stage",
        "aepq",
        "csh",
        "dhim",
        "vdsh",
        "nash",
        "wish",
        "bmsh",
        "corrsh",
        "ammi",
        "cl",
    ] {
        let epochs = if matches!(method, "pq" | "opq" | "lopq") { "" } else { "--epochs 2" };
        let views = if matches!(method, "two-stage" | "csh" | "cl") { "--views noise:3" } else { "" };
        bench.ok(&format!("build news.jsonl {flags} --method {method} {epochs} {views} -o {method}.micpq"));
        let hits = bench.json(&format!("search {method}.micpq 'crude oil barrel price' -k 20"));
        assert_eq!(hits.len(), 20, "{method}");
        let info = &bench.json(&format!("index info {method}.micpq"))[0];
        assert_eq!(info["documents"], 400, "{method}");
    }
}

#[test]
fn epochs_after_the_first_read_token_states_with_dropout() {
    let bench = Bench::new();
    let flags = TINY.replace("--hidden 32 ", "");
    let train = |epochs: usize, passes: usize, name: &str| {
        bench.ok(&format!("train news.jsonl {flags} --method dhim --epochs {epochs} --set passes={passes} -o {name}"));
        bench.bytes(&format!("{name}/model.safetensors"))
    };
    // The first epoch has no dropout.
    assert_eq!(train(1, 0, "clean-1"), train(1, 2, "dropped-1"));
    let dropped = train(3, 2, "dropped-3");
    assert_eq!(dropped, train(3, 2, "again"));
    assert_ne!(dropped, train(3, 0, "clean-3"));
    assert_ne!(dropped, train(3, 1, "one-3"));
}

#[test]
fn tfidf_input_builds_an_index_that_finds_its_topic() {
    let bench = Bench::new();
    std::fs::write(bench.path("val.jsonl"), corpus(400, 460)).unwrap();
    let flags = "--bits 16 --method ammi --input tfidf --set min_documents=1 --set vocabulary=200";
    bench.ok(&format!(
        "train news.jsonl {flags} --validation val.jsonl --test val.jsonl --epochs 20 --cache cache -o words"
    ));
    let card = String::from_utf8(bench.bytes("words/README.md")).unwrap();
    assert!(card.contains("terms, weighted by presence") && card.contains("| method | \"ammi\" |"), "{card}");
    bench.ok("index create words.micpq news.jsonl --model words");
    let hits = bench.json("search words.micpq 'crude oil barrel price' -k 20 --rerank off");
    let kind = hits.iter().filter(|h| h["labels"][0] == "oil").count();
    assert!(kind >= 12, "{kind} of 20 hits are about oil");
    assert_eq!(bench.json("index verify words.micpq")[0]["sound"], true);
}

#[test]
fn build_reports_float_recall_beside_that_of_opq() {
    let bench = Bench::new();
    std::fs::write(bench.path("many.jsonl"), corpus(0, 1500)).unwrap();
    let of = |method: &str, rest: &str| -> serde_json::Value {
        let flags = TINY.replace("--hidden 32 ", "");
        let line = format!("build many.jsonl {flags} --method {method} {rest} -o {method}.micpq");
        bench.json(&line)[0]["metrics"]["float_recall"].clone()
    };
    let (opq, micpq) = (of("opq", ""), of("micpq", "--epochs 2 --views noise:3"));
    assert_eq!(opq["model"], opq["opq"]);
    assert!(micpq["opq"].as_f64() > Some(0.0) && micpq["queries"].as_u64() == Some(150), "{micpq}");
}

#[test]
fn options_a_method_does_not_take_are_refused() {
    let bench = Bench::new();
    for (line, word) in [
        ("train news.jsonl --encoder tiny --method mipcq -o m", "two-stage"),
        ("train news.jsonl --encoder tiny --method opq --tau 3 -o m", "opq has no option called tau"),
        ("train news.jsonl --encoder tiny --method csh --input tfidf -o m", "cannot read terms"),
        ("train news.jsonl --encoder tiny --method micpq --input tfidf -o m", "needs an encoder"),
        ("paper --plan nowhere.toml --data . -o p", "nowhere.toml"),
    ] {
        let code = if line.starts_with("paper") { 1 } else { 2 };
        let stderr = bench.fails(line, code);
        assert!(stderr.contains(word), "{line}: {stderr}");
    }
}

const PLAN: &str = r#"
title = "a small paper"
encoder = "tiny"
pooling = "cls"
views = "noise:3"
bits = [16]
seeds = [0]
epochs = 2
[[corpus]]
name = "News"
documents = "news.jsonl"
validation = "val.jsonl"
queries = "val.jsonl"
max_tokens = 16
published = "agnews"
[[corpus]]
name = "NYT"
documents = "nyt.csv"
validation = "nyt.csv"
queries = "nyt.csv"
max_tokens = 16
published = "nyt"
[[row]]
method = "float"
[[row]]
method = "float"
input = "tfidf"
[[row]]
method = "nash"
input = "tfidf"
set = { min_documents = 1 }
[[row]]
method = "opq"
[[row]]
method = "csh"
seeds = [0, 1]
[[row]]
method = "micpq"
note = "a remark"
[clustering]
codebooks = 2
epochs = 1
tau = 5.0
[[sensitivity]]
option = "tau"
bits = 16
values = [1.0, 10.0]
"#;

#[test]
fn a_plan_gives_a_report_and_finished_cells_are_not_repeated() {
    let bench = Bench::new();
    std::fs::write(bench.path("val.jsonl"), corpus(400, 460)).unwrap();
    std::fs::write(bench.path("plan.toml"), PLAN).unwrap();
    let line = "paper --plan plan.toml --data . -o paper --cache cache --jobs 2";
    let first = &bench.json(&format!("{line} --only tfidf"))[0];
    assert_eq!(first["cells"], 2);
    let whole = &bench.json(line)[0];
    // Two of float search, nash, opq, csh twice, micpq, clustering, two of sensitivity; the NYT corpus is missing.
    assert_eq!(whole["cells"], 10, "{whole}");
    assert!(whole["missing"].as_array().unwrap().iter().all(|m| m["why"].as_str().unwrap().contains("not there")));
    let cells = || std::fs::read_dir(bench.path("paper/cells")).unwrap().flatten().count();
    assert_eq!(cells(), 10);
    let written = |name: &str| std::fs::metadata(bench.path(name)).unwrap().modified().unwrap();
    let cell = std::fs::read_dir(bench.path("paper/cells")).unwrap().flatten().next().unwrap();
    let name = format!("paper/cells/{}", cell.file_name().to_string_lossy());
    let before = written(&name);
    bench.ok(line);
    assert_eq!(written(&name), before, "a finished cell is not run again");
    let text = |name: &str| String::from_utf8(bench.bytes(name)).unwrap();
    let (html, md, csv) = (text("paper/report.html"), text("paper/report.md"), text("paper/report.csv"));
    assert!(
        html.contains("<svg")
            && html.contains("a small paper")
            && !html.contains("http://")
            && html.contains("a remark")
    );
    assert!(md.contains("80.36") && md.contains("NYT: missing"), "the published figure is beside ours: {md}");
    assert!(csv.lines().any(|l| l.starts_with("main,\"csh\",\"News 16\",") && l.contains(",2,79.1400,")), "{csv}");
    assert!(text("paper/report.tex").contains("\\toprule"));
    // Every comparison is tested, and claims are held against the cells.
    assert!(md.contains("## What does not reproduce") && md.contains("| micpq - csh |"), "{md}");
    assert!(html.contains("id=\"unreproduced\"") && html.contains("id=\"comparisons\""));
    // The report alone.
    std::fs::remove_file(bench.path("paper/report.md")).unwrap();
    bench.ok(&format!("{line} --report"));
    assert_eq!(text("paper/report.md"), md);
    // A changed option adds one cell and repeats none.
    std::fs::write(bench.path("plan.toml"), PLAN.replace("values = [1.0, 10.0]", "values = [1.0, 20.0]")).unwrap();
    bench.ok(line);
    assert_eq!(cells(), 11);
}
