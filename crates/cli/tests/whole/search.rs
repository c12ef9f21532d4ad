//! The options of `micpq search`.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::bench::{Bench, TINY, text};

fn built(rerank_vectors: &str) -> Bench {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 2 --views noise:4 --rerank-vectors {rerank_vectors} -o i"));
    bench
}

fn ids(hits: &[Value]) -> Vec<u64> {
    hits.iter().map(|h| h["id"].as_u64().unwrap()).collect()
}

#[test]
fn texts_documents_and_vectors_are_single_or_fused_queries() {
    let bench = built("int8");
    let info = &bench.json("index info i")[0];
    assert_eq!((info["rerank_vectors"].as_str(), info["format"].as_u64()), (Some("int8"), Some(4)));

    // A text and its vector are the same query, from a file or from standard input.
    std::fs::write(bench.path("one.txt"), "crude oil barrel\n").unwrap();
    bench.ok("encode one.txt --encoder tiny --precision f32 -o one.npy");
    let by_text = bench.json("search i 'crude oil barrel' -k 7");
    assert_eq!(bench.json("search i --vector one.npy -k 7"), by_text);
    let piped =
        bench.command("search i --vector - -k 7 --json").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().and_then(
            |mut child| {
                child.stdin.take().unwrap().write_all(&bench.bytes("one.npy"))?;
                child.wait_with_output()
            },
        );
    let piped: Vec<Value> = text(&piped.unwrap().stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(piped, by_text);

    // Several queries have separate hits; --fuse makes them one query.
    let several = bench.json("search i 'crude oil' 'wheat corn' --like 3 -k 4");
    assert_eq!(
        several.iter().map(|h| h["query"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    );
    assert!(!ids(&several[8..]).contains(&3), "a document is not among its own hits");
    let fused = bench.json("search i 'crude oil' 'wheat corn' --like 3 --fuse -k 400");
    assert_eq!(fused.len(), 399);
    assert!(fused[0].get("query").is_none());
    // With all weight on one query, the others do not count.
    let one = bench.json("search i 'crude oil' 'wheat corn' --fuse --weights 1,0.0000001 -k 10");
    assert_eq!(ids(&one), ids(&bench.json("search i 'crude oil' -k 10")));
    let output = bench.ok("search i 'crude oil' 'wheat corn' -k 2");
    assert!(output.contains("> crude oil") && output.contains("> wheat corn"), "{output}");
}

/// The number after the rank of every hit, in the text output.
fn printed_scores(text: &str) -> Vec<f64> {
    let number = |line: &str| {
        let (rank, rest) = line.trim_start().split_once(". ")?;
        rank.parse::<usize>().ok()?;
        rest.split_whitespace().next()?.parse().ok()
    };
    text.lines().filter_map(number).collect()
}

#[test]
fn text_output_prints_the_score_that_orders_the_hits() {
    let bench = built("int8");
    for (flags, label, rounding) in [
        ("", "(score: cosine)", 1e-4),
        ("--rerank 300", "(score: cosine)", 1e-4),
        ("--rerank off", "(score: minus the distance)", 1e-3),
        ("--hybrid 0.4", "(score: fused ranks)", 1e-4),
    ] {
        let line = format!("search i 'crude oil' -k 30 --ids {flags}");
        let text = bench.ok(&line);
        assert!(text.lines().next().unwrap().ends_with(label), "{flags}: {text}");
        let printed = printed_scores(&text);
        assert_eq!(printed.len(), 30, "{flags}: {text}");
        assert!(printed.windows(2).all(|w| w[0] >= w[1]), "{flags}: {text}");
        let hits = bench.json(&line);
        for (printed, hit) in printed.iter().zip(&hits) {
            let score = hit["score"].as_f64().unwrap();
            assert!((printed - score).abs() < rounding, "{flags}: {printed} is not {score}");
            assert!(hit["distance"].as_f64().unwrap() >= 0.0, "JSON has the distance too");
        }
    }
    bench.ok("index create bare news.jsonl --model i/model --rerank-vectors none");
    let text = bench.ok("search bare 'crude oil' -k 3");
    assert!(text.lines().next().unwrap().ends_with("(score: minus the distance)"), "{text}");
}

#[test]
fn pages_together_are_the_whole_list() {
    let bench = built("int8");
    for flags in [
        "--rerank off",
        "--rerank 25",
        "",
        "--hybrid 0.4",
        "--filter 'year:1988'",
        "--rerank off --filter 'year:1988' --radius 100",
        "--hybrid 0.7 --filter 'year:[1987 TO 1988]'",
    ] {
        let whole = bench.json(&format!("search i 'crude oil price' -k 1000 {flags}"));
        assert!(whole.last().unwrap().get("next").is_none());
        assert_eq!(bench.pages(&format!("search i 'crude oil price' -k 90 {flags}")), whole, "{flags}");
    }
    let all = bench.json("search i 'crude oil' -k 400 --rerank off");
    let radius = all[100]["distance"].as_f64().unwrap();
    let near = bench.json(&format!("search i 'crude oil' -k 400 --rerank off --radius {radius}"));
    let expected = all.iter().filter(|h| h["distance"].as_f64().unwrap() <= radius).count();
    assert_eq!(near.len(), expected);
    assert_eq!(near[..], all[..expected]);
    let output = bench.ok(&format!("search i 'crude oil' -k 5 --rerank off --radius {radius}"));
    let cursor = output.lines().find_map(|l| l.split("--after ").nth(1)).unwrap().to_owned();
    let next = bench.json(&format!("search i 'crude oil' -k 5 --rerank off --radius {radius} --after {cursor}"));
    assert_eq!(ids(&next), ids(&all[5..10]));

    // A commit does not disturb pages ordered by code, and makes the cursor of a re-ranked list stale.
    let first = bench.json("search i 'crude oil' -k 10 --rerank off");
    let ranked = bench.json("search i 'crude oil' -k 10");
    bench.ok("index delete i 399");
    let after = first[9]["next"].as_str().unwrap();
    assert_eq!(bench.json(&format!("search i 'crude oil' -k 10 --rerank off --after {after}")).len(), 10);
    let after = ranked[9]["next"].as_str().unwrap();
    assert!(bench.fails(&format!("search i 'crude oil' -k 10 --after {after}"), 2).contains("stale"));
    assert!(bench.fails(&format!("search i 'crude oils' -k 10 --after {after}"), 2).contains("another question"));
}

#[test]
fn keywords_find_documents_and_are_marked_in_snippets() {
    let bench = built("f16");
    let hits = bench.json("search i 'the pipelines' -k 30 --hybrid 1 --snippets");
    assert!(!hits.is_empty());
    for hit in &hits {
        let snippet = &hit["snippet"];
        let chars: Vec<char> = snippet["text"].as_str().unwrap().chars().collect();
        let marks = snippet["marks"].as_array().unwrap();
        assert!(!marks.is_empty());
        for mark in marks {
            let [from, to] = [0, 1].map(|i| mark[i].as_u64().unwrap() as usize);
            assert_eq!(chars[from..to].iter().collect::<String>(), "pipeline");
        }
    }
    // Keywords beside a document as the query.
    let both = bench.json("search i --like 0 --keywords pipeline --hybrid 0.5 -k 5");
    assert_eq!(both.len(), 5);
    assert!(bench.ok("search i pipeline --snippets -k 2").contains("pipeline"));
}

#[test]
fn an_explanation_has_segments_stages_and_codebook_distances() {
    let bench = built("int8");
    let mut lines = bench.json("search i 'crude oil' -k 3 --explain --filter 'year:1988'");
    let explained = lines.pop().unwrap();
    let segments = explained["explanation"]["segments"].as_array().unwrap();
    assert_eq!(segments.iter().map(|s| s["matching"].as_u64().unwrap()).sum::<u64>(), 133);
    assert!(explained["milliseconds"]["encode"].as_f64().unwrap() > 0.0);
    assert_eq!(explained["explanation"]["reranked"], 133);
    assert_eq!(lines.len(), 3);
    for hit in &lines {
        let sum: f64 = hit["codebook_distances"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).sum();
        assert!((sum - hit["distance"].as_f64().unwrap()).abs() < 1e-3);
    }
    let output = bench.ok("search i 'crude oil' -k 3 --explain");
    assert!(
        output.contains("re-ranked") && output.contains("milliseconds:") && output.contains("by codebook:"),
        "{output}"
    );
}

#[test]
fn rerank_vectors_are_optional_and_verified() {
    let bench = built("none");
    assert!(bench.fails("search i oil --rerank 5", 2).contains("rerank_vectors int8"));
    let plain = bench.json("search i 'crude oil' -k 50");
    assert_eq!(plain, bench.json("search i 'crude oil' -k 50 --rerank off"));
    bench.ok("index create j news.jsonl --model i/model --rerank-vectors int8");
    assert_eq!(
        bench.json("search j 'crude oil' -k 50 --rerank off"),
        plain,
        "codes do not depend on the rerank vectors"
    );
    let rerank_bytes =
        |index: &str| bench.json(&format!("index info {index}"))[0]["bytes"]["rerank_vectors"].as_u64().unwrap();
    let (none, int8) = (rerank_bytes("i"), rerank_bytes("j"));
    assert_eq!(none, 0);
    assert!((400 * 40..400 * 44).contains(&int8), "32 values and a scale are 40 bytes per document, not {int8}");
    // The middle of the columns file is a rerank vector.
    let column = std::fs::read_dir(bench.path("j/store")).unwrap().flatten().map(|e| e.path());
    let column =
        column.filter(|p| p.extension().is_some_and(|e| e == "fast")).max_by_key(|p| p.metadata().unwrap().len());
    let column = column.unwrap();
    let whole = std::fs::read(&column).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 16;
    std::fs::write(&column, flipped).unwrap();
    assert!(bench.fails("index verify j", 1).contains(column.file_name().unwrap().to_str().unwrap()));
}

#[test]
fn wrong_options_and_queries_are_refused() {
    let bench = built("int8");
    std::fs::write(bench.path("not.npy"), "not numbers").unwrap();
    std::fs::write(bench.path("two.txt"), "oil\nwheat\n").unwrap();
    bench.ok("encode two.txt --encoder tiny -o two.npy");
    let mut nan = bench.bytes("two.npy");
    nan[128 + 4..128 + 8].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(bench.path("nan.npy"), nan).unwrap();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }\n";
    let mut narrow = b"\x93NUMPY\x01\x00".to_vec();
    narrow.extend((header.len() as u16).to_le_bytes());
    narrow.extend(header.bytes().chain([0; 12]));
    std::fs::write(bench.path("narrow.npy"), narrow).unwrap();
    for (line, code, word) in [
        ("search i oil -k 0", 2, "at least one"),
        ("search i oil -k 10001", 2, "10000"),
        ("search i oil -k -1", 2, "-1"),
        ("search i oil --filter 'yaer:1988'", 2, "known: year"),
        ("search i oil --filter 'NOT yaer:1988'", 2, "known: year"),
        ("search i oil --filter 'year:[1987 TO'", 2, "at character"),
        ("search i oil --filter ''", 2, "empty"),
        ("search i --like 9999", 1, "9999"),
        ("search i --like ''", 1, "is not in the index"),
        ("search i --vector narrow.npy", 1, "3 values, the model of this index takes 32"),
        ("search i --vector nan.npy", 1, "value 1"),
        ("search i --vector not.npy", 1, "not.npy"),
        ("search i --vector nowhere.npy", 1, "nowhere.npy"),
        ("search i oil --radius -3", 2, "-3"),
        ("search i oil --radius nan", 2, "NaN"),
        ("search i oil --hybrid 2", 2, "only keywords"),
        ("search i --vector two.npy --hybrid 0.5", 2, "no keyword"),
        ("search i oil --rerank 0", 2, "1 to 10000"),
        ("search i oil --rerank many", 2, "many"),
        ("search i oil --after 1234", 2, "no cursor"),
        ("search i oil --weights 1", 2, "--fuse"),
        ("search i oil wheat --fuse --weights 1", 2, "one for each"),
        ("search i oil wheat --fuse --weights 1,-1", 2, "weight -1"),
        ("search i --fuse", 2, "--fuse"),
        ("search i oil --queries two.txt", 2, "not both"),
        ("index delete i --filter 'yaer:1988'", 2, "known: year"),
        ("index create j --model i/model --rerank-vectors int4", 2, "none, int8, f16"),
    ] {
        let output = bench.fails(line, code);
        assert!(output.contains(word), "{line}: {output}");
    }
    assert_eq!(bench.json("index info i")[0]["documents"], 400);
}

/// Four even topics: the label of a document is its number modulo four.
#[test]
fn kind_gathers_documents_of_the_querys_kind() {
    let bench = built("int8");
    let info = &bench.json("index info i")[0];
    assert_eq!(info["kinds"], true, "{info}");
    let label = |hit: &Value| hit["labels"][0].clone();
    let of_kind = |line: &str| {
        let hits = bench.json(line);
        let own = label(&hits[0]);
        (hits.iter().filter(|hit| label(hit) == own).count(), hits)
    };
    let (by_kind, hits) = of_kind("search i 'crude oil barrel' -k 80 --kind 1");
    assert!(by_kind >= 40, "{by_kind} of 80 where 20 are chance");
    assert!(hits.windows(2).all(|pair| pair[0]["distance"].as_f64() <= pair[1]["distance"].as_f64()), "not re-ranked");
    assert_ne!(ids(&hits), ids(&bench.json("search i 'crude oil barrel' -k 80 --rerank off")));
    // A document of the index is a query too, and its own place says nothing.
    let (like, hits) = of_kind("search i --like 7 -k 80 --kind 0.8");
    assert!(like >= 40 && !ids(&hits).contains(&7), "{like} of 80");
    // Re-ranked where it is asked for.
    assert!(bench.json("search i 'crude oil barrel' -k 5 --kind 1 --rerank 50")[0]["score"].as_f64().unwrap() > 0.0);
    assert!(bench.fails("search i 'oil' --kind 2", 2).contains("kind is 2; it goes from 0"));
    bench.ok(&format!("build news.jsonl {TINY} --method micpq --epochs 1 --views noise:4 -o m"));
    let problem = bench.fails("search m 'oil' --kind 1", 2);
    assert!(problem.contains("method micpq, which has no tables by kind; set kind to 0"), "{problem}");
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 --rerank-vectors none -o n"));
    assert!(bench.fails("search n --like 7 --kind 1", 2).contains("stores no rerank vectors"));
}
