//! Backups, statistics and migration, also interrupted and killed.

use std::process::{Child, Command, Stdio};

use crate::bench::{Bench, TINY, corpus, text, until};

fn spawn(bench: &Bench, line: &str) -> Child {
    bench.command(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn built(bits: &str) -> Bench {
    let bench = Bench::new();
    let flags = TINY.replace("--bits 16", bits);
    bench.ok(&format!("build news.jsonl {flags} --epochs 1 --views noise:4 -o i"));
    bench.ok(&format!("train news.jsonl {TINY} --epochs 1 --views noise:4 --seed 5 -o other"));
    bench
}

/// Staged directories of micpq that are left in the test directory.
fn staged(bench: &Bench) -> Vec<String> {
    let names = std::fs::read_dir(bench.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains(".micpq-")).collect()
}

#[test]
fn an_index_is_backed_up_restored_and_described() {
    let bench = built("--bits 32");
    let hits = bench.json("search i 'oil barrel' -k 400");
    let copied = &bench.json("index backup i copy")[0];
    assert_eq!(copied["documents"], 400);
    assert!(copied["linked"].as_u64().unwrap() > 5);
    assert!(bench.fails("index backup i copy", 1).contains("already holds an index"));
    assert!(bench.ok("index backup i copy --replace --copy").contains("0 of them shared"));
    bench.ok("index delete i --filter 'year:1987'");
    assert!(bench.fails("index restore copy i", 1).contains("already holds an index"));
    bench.ok("index restore copy i --replace");
    assert_eq!(bench.json("search i 'oil barrel' -k 400"), hits);
    assert_eq!(bench.json("search copy 'oil barrel' -k 400"), hits, "a backup is an index");
    assert!(bench.fails("index restore nowhere x", 1).contains("nowhere"));
    assert!(bench.fails("index backup i i/inside", 2).contains("outside"));

    let stats = &bench.json("index stats i")[0];
    assert_eq!((stats["documents"].as_u64(), stats["labels"].as_u64()), (Some(400), Some(4)));
    assert_eq!(stats["attributes"][0]["name"], "year");
    assert_eq!(stats["attributes"][0]["types"][0], "int");
    assert_eq!(stats["attributes"][0]["distinct"], 3);
    assert_eq!(stats["spread"]["codebooks"].as_array().unwrap().len(), 8);
    assert!(stats["spread"]["distinct"].as_u64().unwrap() > 1);
    let stdout = bench.ok("index stats i");
    for word in ["distinct", "entropy", "year", "int", "documents    400"] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    assert!(staged(&bench).is_empty());
}

#[test]
fn migrate_encodes_every_document_with_the_new_model() {
    let bench = built("--bits 32");
    let before = bench.json("search i 'oil barrel' -k 400");
    assert_eq!(bench.json("index migrate i --model other")[0]["documents"], 400);
    let after = bench.json("search i 'oil barrel' -k 400");
    assert_eq!(bench.json("index info i")[0]["shape"]["num_codebooks"], 4);
    let ids = |hits: &[serde_json::Value]| {
        let mut rows: Vec<String> =
            hits.iter().map(|h| format!("{}{}{}{}", h["id"], h["text"], h["labels"], h["attributes"])).collect();
        rows.sort();
        rows
    };
    assert_eq!(ids(&before), ids(&after));
    assert_eq!(bench.json("index verify i")[0]["sound"], true);
    assert!(bench.fails("index migrate i --model other", 2).contains("nothing to migrate"));
    assert!(bench.fails("index migrate nowhere --model other", 1).contains("nowhere"));
    assert!(bench.fails("index migrate i --model nowhere", 1).contains("nowhere"));
    bench.ok("build news.jsonl --model i/model --store codes -o bare");
    bench.ok(&format!("train news.jsonl {TINY} --epochs 1 --views noise:4 --seed 6 -o third"));
    assert!(bench.fails("index migrate bare --model third", 1).contains("keeps no texts"));
    assert!(staged(&bench).is_empty());
}

#[cfg(unix)]
#[test]
fn an_interrupted_or_killed_migration_resumes() {
    let bench = built("--bits 32");
    std::fs::write(bench.path("many.jsonl"), corpus(1000, 31_000)).unwrap();
    bench.ok("index add i many.jsonl");
    let line = "index migrate i --model other --commit-every 4000";
    let migrated = || {
        let output = bench.run("index info .i.micpq-migration/new --json");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).map_or(0, |v| v["documents"].as_u64().unwrap_or(0))
    };
    let child = spawn(&bench, line);
    until("some documents are migrated", || migrated() > 0);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("run the same command to continue the migration"),
        "{}",
        text(&output.stderr)
    );
    let committed = migrated();
    assert!((4000..30_400).contains(&committed), "{committed}");
    // The old index is unchanged.
    assert_eq!(bench.json("index info i")[0]["documents"], 30_400);

    let mut child = spawn(&bench, line);
    until("more documents are migrated", || migrated() > committed);
    child.kill().unwrap();
    child.wait().unwrap();
    let committed = migrated();
    assert_eq!(bench.json("index verify i")[0]["sound"], true);
    let done = &bench.json(line)[0];
    assert_eq!(done["documents"], 30_400);
    assert_eq!(done["resumed"].as_u64().unwrap(), committed);
    assert_eq!(bench.json("index verify i")[0]["sound"], true);
    assert_eq!(bench.json("search i wheat -k 5").len(), 5);
    assert!(staged(&bench).is_empty());
}

#[test]
fn a_build_removes_what_a_killed_build_left() {
    let bench = Bench::new();
    std::fs::write(bench.path("many.jsonl"), corpus(0, 60_000)).unwrap();
    bench.ok(&format!("train news.jsonl {TINY} --epochs 1 --views noise:4 -o model"));
    let mut child = spawn(&bench, "build many.jsonl --model model -o i");
    until("the staged directory has an index", || {
        staged(&bench).iter().any(|folder| bench.path(folder).join("new/index.json").exists())
            || child.try_wait().unwrap().is_some()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!bench.path("i").exists(), "no partial index is left at the output path");
    assert_eq!(staged(&bench).len(), 1);
    bench.ok("build news.jsonl --model model -o i");
    assert!(staged(&bench).is_empty());
    assert_eq!(bench.json("index info i")[0]["documents"], 400);
}
