//! A server in operation: its config is read again, and it is drained before it stops.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Bench, TINY, until};
use crate::serve::Server;

fn built() -> Bench {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o news.micpq"));
    bench
}

#[test]
fn a_hangup_reads_the_config_again_and_names_what_needs_a_restart() {
    let bench = built();
    let write = |text: &str| std::fs::write(bench.path("serve.toml"), text).unwrap();
    // Nobody looks at the file by itself.
    let fixed = "reload_seconds = 100000\n";
    write(&format!("{fixed}max_queries = 5\nlog = \"off\"\nlog_format = \"json\"\n"));
    let mut command = bench.command("serve news.micpq --config serve.toml --listen 127.0.0.1:0 --json");
    let log = std::fs::File::create(bench.path("log")).unwrap();
    let server = Server::spawn(command.stderr(Stdio::from(log)));
    let batch = |n: usize| {
        let queries: Vec<Value> = (0..n).map(|_| json!({ "text": "oil", "k": 1 })).collect();
        server.call("POST", "/v1/indexes/news/query/batch", json!({ "queries": queries })).0
    };
    assert_eq!((batch(5), batch(6)), (200, 400));
    write(&format!("{fixed}max_queries = 6\nlog = \"info\"\nlog_format = \"json\"\nqueue = 9\naccess_log = true\n"));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(batch(6), 400, "the file alone changes nothing yet");
    server.signal("-HUP");
    until("the new limit is used", || batch(6) == 200);
    let lines = || std::fs::read_to_string(bench.path("log")).unwrap();
    until("the log is on, names the option and has a line for every request", || {
        let lines = lines();
        lines.contains("need a restart") && lines.contains("queue") && lines.contains("\"answered\"")
    });
    // A first key closes the server, and an error changes nothing.
    let key = bench.json("serve --new-key read")[0].clone();
    write(&format!("{fixed}max_queries = 7\nlog_format = \"json\"\n{}", key["config"].as_str().unwrap()));
    server.signal("-HUP");
    until("the key is needed", || batch(7) == 401);
    write("max_queries = \"many\"");
    server.signal("-HUP");
    until("the error is told", || lines().contains("cannot be used"));
    assert_eq!(batch(7), 401);
    assert_eq!(server.stop(), Some(0), "a hangup does not end the server, a stop does");
}

#[test]
fn a_drain_answers_not_ready_while_requests_are_still_accepted() {
    let bench = built();
    let mut server = Server::start(&bench, "news.micpq --set drain_seconds=8");
    let ready = |server: &Server| server.try_call("GET", "/readyz", Value::Null).map(|(status, _)| status);
    assert_eq!(ready(&server), Some(200));
    let told = Instant::now();
    server.signal("-TERM");
    until("it is not ready", || ready(&server) == Some(503));
    // New connections are accepted and answered, writes too.
    let document = json!({ "documents": [{ "id": 9000, "text": "crude oil barrel" }] });
    assert_eq!(server.ok("PUT", "/v1/indexes/news/documents", document)["documents"], 401);
    assert_eq!(server.count("news"), 401);
    until("the listener closes", || ready(&server).is_none());
    assert!(told.elapsed() >= Duration::from_secs(8), "{:?}", told.elapsed());
    server.wait();
    assert_eq!(bench.json("search news.micpq 'crude oil barrel' -k 401").len(), 401);
}
