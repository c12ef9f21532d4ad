//! Killed processes, and Ctrl-C.

use std::process::{Child, Command, Stdio};

use crate::bench::{Bench, TINY, corpus, text, until};

fn spawn(bench: &Bench, line: &str) -> Child {
    bench.command(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A training run that is long enough to interrupt: many epochs, and no early stop.
fn long_run(cache: &str, output: &str) -> String {
    let flags = TINY.replace("--cache cache", &format!("--cache {cache}"));
    format!("train news.jsonl {flags} --method micpq --epochs 150 --patience 150 --views noise:4 -o {output}")
}

fn has_checkpoint(bench: &Bench, cache: &str) -> bool {
    std::fs::read_dir(bench.path(cache).join("runs"))
        .is_ok_and(|files| files.flatten().any(|f| f.path().extension().is_some_and(|e| e == "safetensors")))
}

#[test]
fn training_resumed_after_a_kill_gives_the_same_model() {
    let bench = Bench::new();
    bench.ok(&long_run("whole", "model-whole"));
    let mut child = spawn(&bench, &long_run("killed", "model-killed"));
    until("there is a checkpoint", || has_checkpoint(&bench, "killed"));
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success(), "the kill came before the end");
    assert!(!bench.path("model-killed").exists(), "no partial model is left at the output path");
    bench.ok(&long_run("killed", "model-killed"));
    assert_eq!(bench.bytes("model-whole/model.safetensors"), bench.bytes("model-killed/model.safetensors"));
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_the_best_model_and_reports_it() {
    let bench = Bench::new();
    let child = spawn(&bench, &long_run("cache", "model"));
    until("there is a checkpoint", || has_checkpoint(&bench, "cache"));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && stderr.contains("best model so far"), "{stderr}");
    bench.ok("encode news.jsonl --model model -o codes.npy");
}

#[test]
fn a_killed_add_loses_no_committed_document() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o i"));
    std::fs::write(bench.path("many.jsonl"), corpus(1000, 41_000)).unwrap();
    let count = |bench: &Bench| bench.json("index info i")[0]["documents"].as_u64().unwrap();
    let mut child = spawn(&bench, "index add i many.jsonl --commit-every 4000");
    until("documents are added", || count(&bench) > 400);
    child.kill().unwrap();
    child.wait().unwrap();
    let committed = count(&bench);
    assert!((4000..40_400).contains(&committed), "{committed} documents after the kill");
    assert_eq!(bench.json("index verify i")[0]["sound"], true);
    // Commits follow the order of the file, so the index has a prefix of it.
    let hits = bench.pages("search i 'wheat corn' -k 10000");
    assert_eq!(hits.len() as u64, committed);
    let mut ids: Vec<u64> = hits.iter().map(|h| h["id"].as_u64().unwrap()).filter(|id| *id >= 1000).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1000..1000 + ids.len() as u64).collect::<Vec<_>>());
    bench.ok("index add i many.jsonl");
    assert_eq!(count(&bench), 40_400);
    assert_eq!(bench.json("index verify i")[0]["sound"], true);
}

#[test]
fn verify_names_the_file_with_a_flipped_bit() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o i"));
    for (folder, extension, derived) in [("i/store", "fast", false), ("i/store", "store", false), ("i/codes", "", true)]
    {
        let path = std::fs::read_dir(bench.path(folder))
            .unwrap()
            .flatten()
            .map(|e| e.path())
            .find(|p| p.is_file() && (extension.is_empty() || p.extension().is_some_and(|e| e == extension)))
            .unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 4;
        std::fs::write(&path, &flipped).unwrap();
        // Packed codes are derived: their damage is noted, and the next search derives them again.
        let output = bench.command("index verify i").output().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(!derived)));
        let stderr = text(&output.stderr);
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(stderr.contains(&name), "{name}: {stderr}");
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(bench.json("index verify i")[0]["sound"], true);
    }
}
