//! New documents that repeat another: kept, skipped, marked, or put in place of the older ones.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use engine::NoProgress;
use engine::index::Index;
use serde_json::{Value, json};

use crate::bench::{Bench, TINY};

const TEXT: &str = "The committee of seven towns met on Friday about the price of a bridge over the slow river";

fn write(bench: &Bench, name: &str, rows: &[Value]) {
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(bench.path(name), lines.join("\n")).unwrap();
}

fn built(flags: &str) -> Bench {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 2 --views noise:4 {flags} -o i"));
    bench
}

#[test]
fn a_new_document_that_repeats_another_is_skipped_marked_or_replaces_it() {
    let bench = built("");
    write(&bench, "first.jsonl", &[json!({ "id": "first", "text": TEXT })]);
    let copies = [
        json!({ "id": "copy", "text": TEXT.to_uppercase() }),
        json!({ "id": "edited", "text": format!("{TEXT} again") }),
    ];
    write(&bench, "copies.jsonl", &copies);
    assert_eq!(bench.json("index add i first.jsonl")[0]["documents"], 401);

    let said = &bench.json("index add i copies.jsonl --on-duplicate skip")[0];
    assert_eq!(
        (&said["added"], &said["documents"], &said["duplicates"]["skipped"]),
        (&0.into(), &401.into(), &2.into())
    );
    let told = said["duplicates"]["documents"].as_array().unwrap();
    assert_eq!(
        (&told[0]["id"], &told[0]["duplicate_of"], &told[0]["similarity"]),
        (&json!("copy"), &json!("first"), &json!(1.0))
    );
    let output = bench.run("index add i copies.jsonl --on-duplicate skip");
    let note = crate::bench::text(&output.stderr);
    assert!(note.contains("2 documents repeat another and were skipped; the first is copy, like first"), "{note}");

    // By equal texts, neither is a copy.
    let marked = &bench.json("index add i copies.jsonl --on-duplicate mark --duplicate-by text")[0];
    assert_eq!((&marked["added"], &marked["duplicates"]["marked"]), (&2.into(), &0.into()));
    let marked = &bench.json("index add i copies.jsonl --on-duplicate mark --commit-every 1")[0];
    assert_eq!(
        (&marked["added"], &marked["documents"], &marked["duplicates"]["marked"]),
        (&2.into(), &403.into(), &2.into())
    );
    assert_eq!(bench.json("search i bridge -k 500 --filter 'NOT duplicate_of:*'").len(), 401);
    assert_eq!(bench.json("search i bridge -k 500 --filter 'duplicate_of:first'").len(), 2);

    write(&bench, "newest.jsonl", &[json!({ "id": "newest", "text": TEXT })]);
    let replaced = &bench
        .json("index add i newest.jsonl --on-duplicate replace --duplicate-by vectors --duplicate-threshold 0.95")[0];
    let count = replaced["duplicates"]["replaced"].as_u64().unwrap();
    assert!(count >= 2, "{replaced}");
    assert_eq!(replaced["documents"].as_u64().unwrap(), 404 - count);
    assert!(bench.ok("index verify i").contains("sound"));

    assert!(bench.fails("index add i newest.jsonl --duplicate-by words", 2).contains("on_duplicate keeps"));
    assert!(
        bench
            .fails("index add i newest.jsonl --on-duplicate skip --duplicate-threshold 2", 2)
            .contains("threshold is 2")
    );
    bench.fails("index add i newest.jsonl --on-duplicate drop", 2);
}

#[test]
fn a_build_leaves_copies_out() {
    let bench = Bench::new();
    let rows: Vec<Value> = (0..60)
        .map(|i| json!({ "id": i, "text": format!("story{} {}", i / 3, "alpha beta gamma delta ".repeat(1 + i / 3)) }))
        .collect();
    write(&bench, "rows.jsonl", &rows);
    let flags = "--on-duplicate skip --duplicate-by text";
    let said = &bench.json(&format!("build rows.jsonl {TINY} --epochs 1 --views noise:4 {flags} -o i"))[0];
    assert_eq!(
        (&said["documents"], &said["added"], &said["duplicates"]["skipped"]),
        (&20.into(), &20.into(), &40.into())
    );
    assert!(bench.ok("dedup i --by text").starts_with("0 of 20"));
    assert_eq!(bench.json("build rows.jsonl --model i/model --encoder tiny -o all")[0]["documents"], 60);
    write(&bench, "one.jsonl", &[rows[0].clone()]);
    bench.ok("index create bare one.jsonl --model i/model --store codes --rerank-vectors none");
    assert!(
        bench.fails("index add bare rows.jsonl --on-duplicate skip", 2).contains("neither texts nor rerank vectors")
    );
}

#[test]
fn a_killed_replacement_leaves_the_old_documents_or_the_new() {
    let bench = built("");
    let old: Vec<Value> =
        (0..40).map(|i| json!({ "id": format!("old-{i}"), "text": format!("{TEXT} {}", "x".repeat(i)) })).collect();
    let new: Vec<Value> = (0..40).map(|i| json!({ "id": format!("new-{i}"), "text": old[i]["text"] })).collect();
    write(&bench, "old.jsonl", &old);
    write(&bench, "new.jsonl", &new);
    for delay in [5u64, 20, 60, 120, 10_000] {
        bench.ok("index add i old.jsonl --on-duplicate replace --duplicate-by text");
        let mut child = bench
            .command("index add i new.jsonl --on-duplicate replace --duplicate-by text --quiet")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if delay < 1000 {
            std::thread::sleep(Duration::from_millis(delay));
            let _ = child.kill();
        }
        child.wait().unwrap();
        assert!(bench.ok("index verify i").contains("sound"));
        let hits = bench.json("search i bridge -k 500");
        let ids: Vec<&str> = hits.iter().filter_map(|hit| hit["id"].as_str()).collect();
        let (olds, news) = (
            ids.iter().filter(|id| id.starts_with("old")).count(),
            ids.iter().filter(|id| id.starts_with("new")).count(),
        );
        assert!([(40, 0), (0, 40)].contains(&(olds, news)), "after {delay} ms: {olds} old and {news} new");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_search_for_duplicates_or_topics_leaves_the_index_whole() {
    const TURNS: u32 = 8;
    let bench = built("");
    let more = |i: usize| json!({ "id": format!("more {i}"), "text": format!("{TEXT} {}", i / 2) });
    write(&bench, "more.jsonl", &(0..6000).map(more).collect::<Vec<_>>());
    bench.ok("index add i more.jsonl");
    let count = |attribute: &str| {
        let index = Index::open(&bench.path("i"), &NoProgress).unwrap();
        index.count(&format!("{attribute}:*")).unwrap_or(0)
    };
    for command in ["dedup i --by text --mark", "topics i --topics 4 --mark"] {
        let begun = Instant::now();
        bench.ok(&format!("{command} whole"));
        let (took, whole) = (begun.elapsed(), count("whole"));
        assert!(whole > 0);
        let mut interrupted = 0;
        for turn in 0..TURNS {
            let name = format!("{}{turn}", &command[..5]);
            let mut child = bench.command(&format!("{command} {name}"));
            let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            std::thread::sleep(took * (turn + 1) / (TURNS + 1));
            assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
            let output = child.wait_with_output().unwrap();
            let (said, marked) = (crate::bench::text(&output.stderr), count(&name));
            let what = format!("{command}, turn {turn}: {marked} of {whole} marked, {:?}: {said}", output.status);
            match output.status.code() {
                Some(0) => assert_eq!(marked, whole, "{what}"),
                Some(1) => {
                    interrupted += 1;
                    assert!(said.contains("run the same command again: interrupted"), "{what}");
                    assert!(marked == 0 || marked == whole, "{what}");
                }
                // It came before the program catches signals.
                _ => assert_eq!(marked, 0, "{what}"),
            }
        }
        assert!(interrupted > 0, "no {command} was interrupted");
        assert_eq!(bench.json("index verify i")[0]["sound"], true);
    }
}
