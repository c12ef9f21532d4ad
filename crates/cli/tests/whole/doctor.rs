//! `micpq doctor` and `micpq man`.

use serde_json::Value;

use crate::bench::{Bench, TINY};

/// The status of every finding about `check`.
fn statuses(report: &Value, check: &str) -> Vec<String> {
    let all = report["findings"].as_array().unwrap().iter();
    all.filter(|finding| finding["check"] == check).map(|f| f["status"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_sound_machine_and_index_have_no_failure() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o i"));
    let report = &bench.json("doctor i --device cpu")[0];
    assert_eq!(report["works"], true, "{report}");
    for check in ["cpu", "memory", "gpu", "files", "encoders", "cache", "temporary"] {
        assert_eq!(statuses(report, check).len(), 1, "{check}: {report}");
    }
    assert_eq!(statuses(report, "i"), ["good", "good", "good"], "{report}");
    // The encoder of the tests is not the default one.
    assert_eq!(statuses(report, "encoders"), ["warning"]);
    assert!(bench.ok("doctor --device cpu").contains("micpq encoder pull"));
}

#[test]
fn what_would_not_work_is_a_failure_with_exit_code_1_and_advice() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o i"));
    let stderr = bench.fails("doctor i nowhere --device cpu", 1);
    assert!(stderr.contains("1 of"), "{stderr}");
    std::fs::write(bench.path("i/index.json"), "{").unwrap();
    bench.fails("doctor i --device cpu", 1);
    let output =
        bench.command("doctor --json --device cpu").env_remove("HOME").env_remove("MICPQ_MODELS").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["works"], statuses(&report, "encoders")), (&Value::Bool(false), vec!["failure".to_owned()]));
}

#[test]
fn an_index_whose_encoder_is_gone_is_named() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o i"));
    std::fs::rename(bench.path("models/tiny"), bench.path("models/other")).unwrap();
    let report = &bench.json("doctor i --device cpu")[0];
    assert_eq!(statuses(report, "i"), ["warning", "good", "good"], "{report}");
}

#[test]
fn a_device_that_is_named_must_work() {
    let bench = Bench::new();
    let output = bench.run("doctor --json --device cuda:63");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(statuses(&serde_json::from_slice(&output.stdout).unwrap(), "gpu"), ["failure"]);
}

#[test]
fn every_command_has_a_manual_page() {
    let bench = Bench::new();
    bench.ok("man pages");
    let help = bench.ok("help");
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
    assert!(names.contains(&"search") && names.contains(&"doctor"), "{help}");
    for name in names.iter().filter(|name| **name != "help") {
        let page = String::from_utf8(bench.bytes(&format!("pages/micpq-{name}.1"))).unwrap();
        assert!(page.contains(".SH DESCRIPTION"), "{name}: {page}");
    }
}
