//! Duplicates and topics of an index.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{Bench, TINY, corpus, text};

/// 400 news, a copy of every fortieth as it is, and one in upper case.
fn built(flags: &str) -> Bench {
    let bench = Bench::new();
    let rows: Vec<Value> = corpus(0, 400).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut lines = corpus(0, 400);
    for row in rows.iter().step_by(40) {
        for (kind, text) in
            [("same", row["text"].clone()), ("upper", row["text"].as_str().unwrap().to_uppercase().into())]
        {
            let copy = serde_json::json!({ "id": format!("{}-{kind}", row["id"]), "text": text, "label": row["label"], "year": 1990 });
            lines += &format!("{copy}\n");
        }
    }
    std::fs::write(bench.path("copies.jsonl"), lines).unwrap();
    bench.ok(&format!("build copies.jsonl {TINY} --epochs 2 --views noise:4 {flags} -o i"));
    bench
}

/// The groups of a report that hold a planted copy.
fn planted(report: &Value) -> Vec<&Value> {
    let groups = report["groups"].as_array().unwrap().iter();
    let copies = |group: &Value| {
        let number = group["representative"].as_u64().unwrap_or(1);
        let ids = group["duplicates"].as_array().unwrap();
        number.is_multiple_of(40)
            && [format!("{number}-same"), format!("{number}-upper")]
                .iter()
                .all(|id| ids.iter().any(|d| d["id"] == **id))
    };
    groups.filter(|group| copies(group)).collect()
}

#[test]
fn duplicates_are_found_marked_and_deleted() {
    let bench = built("");
    let report = &bench.json("dedup i --by vectors --threshold 0.9999 --report groups.jsonl")[0];
    assert_eq!((&report["documents"], &report["measure"]), (&420.into(), &"vectors".into()));
    let groups = planted(report);
    assert_eq!(groups.len(), 10, "{report}");
    for group in &groups {
        let find = |end: &str| {
            let all = group["duplicates"].as_array().unwrap().iter();
            all.clone().find(|d| d["id"].as_str().is_some_and(|id| id.ends_with(end))).unwrap()
        };
        assert_eq!((&find("same")["exact"], &find("upper")["exact"]), (&true.into(), &false.into()));
        assert!(find("upper")["similarity"].as_f64().unwrap() > 0.999);
    }
    assert_eq!(text(&bench.bytes("groups.jsonl")).lines().count(), report["groups"].as_array().unwrap().len());

    let exact = &bench.json("dedup i --by text")[0];
    assert_eq!((&exact["exact"], &exact["near"], &exact["measure"]), (&10.into(), &0.into(), &"text".into()));
    assert!(bench.ok("dedup i --by text").starts_with("10 of 420 documents repeat another, in 10 groups"));
    let marked = &bench.json("dedup i --by text --mark copy_of")[0];
    assert_eq!(marked["marked"], 10);
    let hits = bench.json("search i oil -k 420 --filter 'NOT copy_of:*'");
    assert_eq!(hits.len(), 410);
    assert_eq!(bench.json("search i oil --filter 'copy_of:40'")[0]["id"], "40-same");

    let out = bench.ok("dedup i --by text --delete");
    assert!(out.contains("10 documents deleted; 410 left"), "{out}");
    assert_eq!(bench.json("search i oil -k 420").len(), 410);
    assert!(bench.ok("dedup i --by text").starts_with("0 of 410 documents repeat another"));
    assert!(bench.ok("index verify i").contains("sound"));
}

#[test]
fn words_decide_in_an_index_without_vectors_and_codes_alone_are_refused() {
    let bench = built("--rerank-vectors none");
    let report = &bench.json("dedup i --threshold 0.95")[0];
    assert_eq!((&report["measure"], planted(report).len()), (&"words".into(), 10));
    bench.ok("index create bare copies.jsonl --model i/model --store codes --rerank-vectors none");
    assert!(bench.fails("dedup bare", 2).contains("neither texts nor rerank vectors"));
    assert!(bench.fails("dedup bare --by words", 2).contains("stores no texts"));
    assert!(bench.fails("dedup i --threshold 1.5", 2).contains("threshold is 1.5"));
    assert!(bench.fails("dedup i --by text --mark labels", 2).contains("\"labels\""));
    bench.fails("dedup i --delete --mark copy_of", 2);
    bench.fails("dedup i --by nothing", 2);
    assert!(bench.fails("dedup nowhere", 1).contains("nowhere"));
    assert_eq!(bench.json("index info i")[0]["documents"], 420, "nothing was deleted");
}

#[test]
fn a_killed_deletion_leaves_a_sound_index_with_all_or_no_duplicates() {
    let bench = built("");
    let mut delays = vec![5u64, 20, 60, 120];
    while let Some(delay) = delays.pop() {
        let mut child = bench
            .command("dedup i --by text --delete --quiet")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(delay) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        child.wait().unwrap();
        assert!(bench.ok("index verify i").contains("sound"));
        let documents = bench.json("index info i")[0]["documents"].as_u64().unwrap();
        assert!([410, 420].contains(&documents), "{documents}");
    }
    bench.ok("dedup i --by text --delete");
    assert_eq!(bench.json("index info i")[0]["documents"], 410);
}

#[test]
fn topics_have_names_shares_and_a_trend_and_filter() {
    let bench = built("");
    let report = &bench.json("topics i --topics 4 --mark topic --assignments topics.jsonl")[0];
    let topics = report["topics"].as_array().unwrap();
    assert_eq!((topics.len(), &report["over"]), (4, &"year".into()));
    assert_eq!(report["periods"], serde_json::json!(["1987", "1988", "1989", "1990"]));
    let mut inside = 0;
    for topic in topics {
        let documents = topic["documents"].as_u64().unwrap();
        inside += documents;
        let hits = bench.json(&format!("search i oil -k 420 --filter 'topic:{}'", topic["number"]));
        assert_eq!(hits.len() as u64, documents, "a topic is an attribute");
        let periods: u64 = topic["trend"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(periods, documents);
        assert!(!topic["typical"].as_array().unwrap().is_empty());
        let terms: Vec<&str> = topic["terms"].as_array().unwrap().iter().map(|t| t["term"].as_str().unwrap()).collect();
        assert!(!terms.contains(&"the") && !terms.contains(&"of"), "{terms:?}");
    }
    assert_eq!(inside + report["outliers"].as_u64().unwrap(), 420);
    assert_eq!(report["hierarchy"].as_array().unwrap().len(), 3);
    let lines: Vec<Value> =
        text(&bench.bytes("topics.jsonl")).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 420);
    let outliers = lines.iter().filter(|line| line["outlier"] == true).count();
    assert_eq!(outliers as u64, report["outliers"].as_u64().unwrap());

    // The same on one thread, and after a merge.
    let again = &bench.json("topics i --topics 4 --threads 1")[0];
    assert_eq!(again["topics"], report["topics"]);
    bench.ok("index compact i");
    assert_eq!(bench.json("topics i --topics 4")[0]["topics"], report["topics"]);
    let shown = bench.ok("topics i");
    assert!(shown.contains("documents are far from every topic") && shown.contains("trend: share"), "{shown}");
    assert!(bench.fails("topics i --topics 0", 2).contains("topics is 0"));
    assert!(bench.fails("topics i --topics 500", 2).contains("420 documents"));
    assert!(bench.fails("topics i --over nowhere", 2).contains("\"nowhere\""));
}

#[test]
fn a_map_is_exported_as_one_file() {
    let bench = built("");
    bench.ok("export i --to html-map -o map.html --titles 50 --attribute year --title 'All news'");
    let html = std::fs::read_to_string(bench.path("map.html")).unwrap();
    assert!(html.contains("<h1>All news</h1>") && html.contains("MapView"));
    let first = std::fs::read(bench.path("map.html")).unwrap();
    bench.ok("export i --to html-map -o again.html --titles 50 --attribute year --title 'All news'");
    assert_eq!(std::fs::read(bench.path("again.html")).unwrap(), first, "the same file every time");
    let said = bench.fails("export i --to html-map -o map.html --attribute nowhere", 2);
    assert!(said.contains("nowhere") && said.contains("year"), "{said}");
    let said = bench.fails("export i --to jsonl -o x.jsonl --titles 5", 2);
    assert!(said.contains("html-map"), "{said}");
}

#[test]
fn an_explanation_says_what_shared_codewords_stand_for() {
    let bench = built("");
    let lines = bench.json("search i 'oil barrel price' -k 3 --explain");
    let (hits, explanation) = lines.split_at(3);
    let asked = explanation[0]["explanation"]["codewords"].as_array().unwrap();
    let mut terms = 0;
    for hit in hits {
        for shared in hit["shared"].as_array().unwrap() {
            let codebook = shared["codebook"].as_u64().unwrap() as usize;
            assert_eq!(shared["codeword"], asked[codebook]);
            terms += shared["terms"].as_array().unwrap().len();
        }
    }
    assert!(terms > 0, "{lines:?}");
    let text = bench.ok("search i 'oil barrel price' -k 3 --explain");
    assert!(text.contains("shared codewords: "), "{text}");
    assert!(bench.json("search i 'oil barrel price' -k 3")[0].get("shared").is_none());
}
