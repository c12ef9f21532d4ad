//! What `--force` and `--replace` replace, and what they refuse.

use std::path::Path;

use engine::NoProgress;
use engine::index::Index;
use serde_json::json;

use crate::bench::{Bench, TINY, corpus};
use crate::serve::Server;

/// Every file below a folder with its bytes. Hash caches are left out: any run may write them.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_symlink() {
            found.push((format!("{} -> {}", entry.display(), entry.read_link().unwrap().display()), Vec::new()));
        } else if entry.is_dir() {
            found.push((format!("{}/", entry.display()), Vec::new()));
            found.extend(contents(&entry));
        } else {
            found.push((entry.display().to_string(), std::fs::read(&entry).unwrap()));
        }
    }
    found.retain(|(name, _)| !name.ends_with(".hashes.json"));
    found.sort();
    found
}

#[test]
fn only_an_index_is_replaced_and_nothing_else_is_touched() {
    let bench = Bench::new();
    let quick = format!("{TINY} --epochs 1 --views noise:4");
    bench.ok(&format!("train news.jsonl {quick} -o model"));
    bench.ok("index create i --model model");
    std::fs::remove_dir_all(bench.path("cache")).unwrap();
    std::fs::create_dir(bench.path("papers")).unwrap();
    std::fs::write(bench.path("papers/letter.txt"), "dear").unwrap();
    std::fs::write(bench.path("note"), "mine").unwrap();
    std::os::unix::fs::symlink("papers", bench.path("link")).unwrap();
    bench.ok("index create mixed --model model");
    std::fs::copy(bench.path("news.jsonl"), bench.path("mixed/news.jsonl")).unwrap();
    let before = contents(bench.dir.path());

    for command in [
        format!("build news.jsonl {quick} --force -o"),
        "index create --model model --force".into(),
        "import absent.npy --force -o".into(),
        "index backup --replace i".into(),
        "index restore --replace i".into(),
    ] {
        for (path, found) in [
            ("papers", "it holds letter.txt"),
            ("link", "it holds letter.txt"),
            ("note", "it is a file"),
            ("mixed", "it holds news.jsonl beside one"),
            (".", "it holds"),
        ] {
            let stderr = bench.fails(&format!("{command} {path}"), 1);
            assert!(stderr.contains("is not an index") && stderr.contains(found), "{command} {path}: {stderr}");
        }
    }
    for (path, found) in [("papers", "it holds letter.txt"), ("note", "it is a file"), ("i", "no config.json")] {
        let stderr = bench.fails(&format!("train news.jsonl {quick} -o {path}"), 1);
        assert!(stderr.contains("is not a model") && stderr.contains(found), "{path}: {stderr}");
    }
    let stderr = bench.fails(&format!("train news.jsonl {quick} -o models/tiny"), 1);
    assert!(stderr.contains("is not a model"), "{stderr}");
    // The refusals came before training, and nothing was left behind.
    assert_eq!(contents(bench.dir.path()).len(), before.len());
    assert!(contents(bench.dir.path()) == before);

    // An empty folder, an index and a link to an index are replaced.
    std::fs::create_dir(bench.path("empty")).unwrap();
    std::os::unix::fs::symlink("i", bench.path("link_to_i")).unwrap();
    for path in ["empty", "i", "link_to_i"] {
        bench.ok(&format!("build news.jsonl {quick} --force -o {path}"));
        assert_eq!(bench.json(&format!("index info {path}"))[0]["documents"], 400);
    }
    assert!(bench.path("link_to_i").is_symlink());
}

#[test]
fn an_index_with_an_open_writer_is_not_replaced() {
    let bench = Bench::new();
    let quick = format!("{TINY} --epochs 1 --views noise:4");
    bench.ok(&format!("build news.jsonl {quick} -o i"));
    bench.ok("index backup i copy");
    std::fs::remove_dir_all(bench.path("cache")).unwrap();
    let index = Index::open(&bench.path("i"), &NoProgress).unwrap();
    let writer = index.writer().unwrap();
    for line in [
        format!("build news.jsonl {quick} --force -o i"),
        "index create i --model i/model --force".into(),
        "import absent.npy --force -o i".into(),
        "index restore copy i --replace".into(),
        "index backup copy i --replace".into(),
    ] {
        let stderr = bench.fails(&line, 1);
        assert!(stderr.contains("another writer has this index open"), "{line}: {stderr}");
    }
    assert!(!bench.path("cache").exists(), "the refusals came before training");
    drop(writer);
    assert_eq!(bench.json("index info i")[0]["documents"], 400);
    bench.ok(&format!("build news.jsonl {quick} --force -o i"));
}

#[test]
fn an_index_with_a_writing_server_is_not_replaced() {
    let bench = Bench::new();
    let quick = format!("{TINY} --epochs 1 --views noise:4");
    bench.ok(&format!("build news.jsonl {quick} -o i"));
    let server = Server::start(&bench, "i");
    let add = |id: u64| {
        server.ok("PUT", "/v1/indexes/i/documents", json!({ "documents": [{ "id": id, "text": "oil" }] }));
    };
    add(1000);
    assert!(bench.fails(&format!("build news.jsonl {quick} --force -o i"), 1).contains("another writer"));
    add(1001);
    assert_eq!(server.count("i"), 402);
    assert_eq!(server.stop(), Some(0));
    assert_eq!(bench.json("index verify i")[0]["sound"], true);
    assert_eq!(bench.json("index info i")[0]["documents"], 402);
}

#[test]
fn commit_every_bounds_the_size_of_a_commit() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o i"));
    std::fs::write(bench.path("more.jsonl"), corpus(400, 650) + "not a row\n").unwrap();
    assert!(bench.fails("index add i more.jsonl --commit-every 100", 1).contains("more.jsonl:251"));
    assert_eq!(bench.json("index info i")[0]["documents"], 600, "the two commits before the bad row stay");
    assert!(bench.fails("index add i more.jsonl --commit-every 0", 2).contains("--commit-every"));
}
