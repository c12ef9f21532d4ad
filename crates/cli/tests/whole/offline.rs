//! Without any network, everything works but what fetches by its nature.

use std::process::{Command, Stdio};

use crate::bench::{Bench, TINY, corpus, text};

/// The command in a network namespace of its own, in which not even the loopback interface is up.
fn without_network(command: &Command) -> Command {
    let mut alone = Command::new("unshare");
    alone.arg("-rn").arg(command.get_program()).args(command.get_args());
    alone.current_dir(command.get_current_dir().unwrap()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        alone.env(name, value.unwrap());
    }
    alone
}

fn can_be_tested() -> bool {
    let can = cfg!(target_os = "linux")
        && Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: no network namespace can be made, so no command ran without a network");
    }
    can
}

#[test]
fn commands_need_no_network() {
    if !can_be_tested() {
        return;
    }
    let bench = Bench::new();
    std::fs::write(bench.path("more.jsonl"), corpus(400, 410)).unwrap();
    let quick = format!("{TINY} --epochs 1 --views noise:4");
    for line in [
        &format!("build news.jsonl {quick} -o i") as &str,
        "index add i more.jsonl",
        "search i 'crude oil' -k 3",
        "dedup i",
        "topics i",
        "index verify i",
        "index backup i copy",
        "encoder list",
        "doctor i",
    ] {
        let output = without_network(&bench.command(line)).output().unwrap();
        assert!(output.status.success(), "{line}: {}\n{}", text(&output.stdout), text(&output.stderr));
    }
    // What fetches says so, and does not wait.
    let pull = without_network(&bench.command("encoder pull all-MiniLM-L6-v2")).output().unwrap();
    assert_eq!(pull.status.code(), Some(1), "{}", text(&pull.stderr));
}

#[test]
fn the_server_needs_only_the_loopback_interface() {
    let has_tools =
        [("ip", "-V"), ("bash", "--version")].iter().all(|(tool, flag)| Command::new(tool).arg(flag).output().is_ok());
    if !can_be_tested() || !has_tools {
        eprintln!("skipped: without ip and bash the server did not run without a network");
        return;
    }
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o i"));
    // Server and client share the namespace. The port cannot be taken there.
    let script = r#"
        ip link set lo up
        "$MICPQ" serve i --listen 127.0.0.1:6380 --set log=warn >/dev/null & server=$!
        for _ in $(seq 200); do (exec 3<>/dev/tcp/127.0.0.1/6380) 2>/dev/null && break; sleep 0.05; done
        body='{"text": "crude oil", "k": 3}'
        exec 3<>/dev/tcp/127.0.0.1/6380
        printf 'POST /v1/indexes/i/query HTTP/1.1\r\nHost: 127.0.0.1:6380\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %s\r\n\r\n%s' "${#body}" "$body" >&3
        cat <&3
        kill $server; wait $server
    "#;
    let micpq = bench.command("");
    let mut shell = without_network(Command::new("bash").args(["-c", script]).current_dir(bench.dir.path()));
    for (name, value) in micpq.get_envs() {
        shell.env(name, value.unwrap());
    }
    let output = shell.env("MICPQ", micpq.get_program()).output().unwrap();
    let reply = text(&output.stdout);
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("\"hits\""), "{reply}\n{}", text(&output.stderr));
    assert!(output.status.success(), "{}", text(&output.stderr));
}
