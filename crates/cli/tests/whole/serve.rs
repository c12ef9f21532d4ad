//! The server as a user runs it: on a free port, over TCP, stopped and killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, TINY, corpus, until};

pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    pub fn start(bench: &Bench, line: &str) -> Server {
        Server::spawn(&mut bench.command(&format!("serve {line} --listen 127.0.0.1:0 --json --set log=warn")))
    }

    pub fn spawn(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let line: Value = serde_json::from_str(&first).unwrap_or_else(|_| panic!("no address: {first:?}"));
        Server { child, address: line["address"].as_str().unwrap().to_owned() }
    }

    fn send(&self, head: &str, body: &[u8]) -> (u16, String) {
        self.try_send(head, body).unwrap_or_else(|reply| panic!("no status: {reply:?}"))
    }

    /// The status and body, or what came of an answer before the server was gone.
    fn try_send(&self, head: &str, body: &[u8]) -> Result<(u16, String), String> {
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return Err(String::new()) };
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!("{head}Host: {}\r\nConnection: close\r\n\r\n", self.address);
        let _ = stream.write_all(head.as_bytes());
        // A server that refuses early may close before all of a body is sent.
        let _ = stream.write_all(body);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let status = reply.split(' ').nth(1).and_then(|s| s.parse().ok());
        let (Some(status), Some((head, body))) = (status, reply.split_once("\r\n\r\n")) else { return Err(reply) };
        let body =
            if head.to_lowercase().contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
        Ok((status, body))
    }

    pub fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.try_call(method, path, body).unwrap_or_else(|| panic!("{method} {path}: no answer"))
    }

    /// The status and answer; `None` if the server was gone before the answer. Without a body for null.
    pub fn try_call(&self, method: &str, path: &str, body: Value) -> Option<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        let head = format!("{method} {path} HTTP/1.1\r\n{kind}Content-Length: {}\r\n", body.len());
        let (status, body) = self.try_send(&head, body.as_bytes()).ok()?;
        Some((status, serde_json::from_str(&body).unwrap_or(Value::Null)))
    }

    pub fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, reply) = self.call(method, path, body);
        assert!(status < 300, "{method} {path}: {status} {reply}");
        reply
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = self.send(&format!("GET {path} HTTP/1.1\r\n"), b"");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or(Value::Null)
    }

    pub fn count(&self, index: &str) -> u64 {
        self.ok("POST", &format!("/v1/indexes/{index}/count"), json!({}))["count"].as_u64().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request without reading the answer.
    pub fn begin(&self, method: &str, path: &str, length: usize, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
            self.address
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(body);
        stream
    }

    /// CPU time of the server, in seconds.
    fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // utime and stime, in hundredths of a second.
        fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits for a server that is ending by itself.
    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and returns the exit code.
    pub fn stop(mut self) -> Option<i32> {
        self.signal("-TERM");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unchunked(body: &str) -> String {
    let (mut rest, mut out) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        out.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    out
}

fn built(bench: &Bench) {
    bench.ok(&format!("build news.jsonl {TINY} --epochs 4 --views full:4 -o news.micpq"));
}

fn new_document(id: usize, text: &str) -> Value {
    json!({ "documents": [{ "id": id, "text": text, "attributes": { "year": 2001 } }] })
}

#[test]
fn texts_are_searched_added_streamed_and_embedded() {
    let bench = Bench::new();
    built(&bench);
    let server = Server::start(&bench, "news.micpq");
    let found = server.ok("POST", "/v1/indexes/news/query", json!({ "text": "crude oil barrel price", "k": 20 }));
    let hits = found["hits"].as_array().unwrap();
    // Four even topics would give five by chance.
    assert!(hits.iter().filter(|h| h["labels"][0] == "oil").count() >= 12, "{found}");
    assert!(found["milliseconds"]["encode"].as_f64().unwrap() > 0.0);
    // The command line gives the same hits.
    let same = bench.json("search news.micpq 'crude oil barrel price' -k 20");
    let ids = |hits: &[Value]| hits.iter().map(|h| h["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(hits), ids(&same));

    server.ok("PUT", "/v1/indexes/news/documents", new_document(5000, "wheat harvest drought farm"));
    let found = server.ok("POST", "/v1/indexes/news/query", json!({ "text": "wheat harvest drought farm", "k": 1 }));
    assert_eq!(found["hits"][0]["id"], 5000);
    let lines = corpus(400, 1500);
    let head = format!(
        "POST /v1/indexes/news/documents/stream HTTP/1.1\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n",
        lines.len()
    );
    let (status, body) = server.send(&head, lines.as_bytes());
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["changed"], &answer["skipped"]), (200, &json!(1100), &json!(0)), "{body}");
    assert_eq!(server.count("news"), 1501);

    // A bad line ends a stream. Lines before it stay, and the answer has its line number.
    let bad = corpus(2000, 2700) + "{\"id\": 3000}\n" + &corpus(2700, 2710);
    let head = head.replace(&format!("{}\r\n", lines.len()), &format!("{}\r\n", bad.len()));
    let (status, body) = server.send(&head, bad.as_bytes());
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &answer["error"]["code"], &answer["error"]["line"]),
        (422, &json!("bad_document"), &json!(701)),
        "{body}"
    );
    assert_eq!(answer["error"]["committed"], 700);
    assert_eq!(server.count("news"), 2201);
    let (status, body) = server.send(&head.replace("stream HTTP", "stream?on_error=skip HTTP"), bad.as_bytes());
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["changed"], &answer["skipped"]), (200, &json!(710), &json!(1)), "{body}");
    assert_eq!(server.count("news"), 2211);

    let vectors = server.ok("POST", "/v1/embeddings", json!({ "model": "news", "input": ["oil", "wheat farm"] }));
    assert_eq!((vectors["data"].as_array().unwrap().len(), &vectors["object"]), (2, &json!("list")));
    let vector = vectors["data"][1]["embedding"].clone();
    assert_eq!(vector.as_array().unwrap().len(), 32);
    assert!(vectors["usage"]["prompt_tokens"].as_u64().unwrap() >= 5);
    let code = server.ok("POST", "/v1/embeddings", json!({ "model": "news/code", "input": "oil" }));
    assert_eq!(code["data"][0]["embedding"].as_array().unwrap().len(), 4);
    let packed = json!({ "model": "news", "input": "oil", "encoding_format": "base64" });
    assert_eq!(server.ok("POST", "/v1/embeddings", packed)["data"][0]["embedding"].as_str().unwrap().len(), 172);
    // An embedding of the server finds the same hits as its text.
    let by_vector = server.ok("POST", "/v1/indexes/news/query", json!({ "vector": vector, "k": 5 }));
    let by_text = server.ok("POST", "/v1/indexes/news/query", json!({ "text": "wheat farm", "k": 5 }));
    assert_eq!(by_vector["hits"], by_text["hits"]);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn an_acknowledged_write_survives_a_kill() {
    let bench = Bench::new();
    built(&bench);
    let mut server = Server::start(&bench, "news.micpq");
    for i in 0..5 {
        server.ok("PUT", "/v1/indexes/news/documents", new_document(6000 + i, "port strike dock"));
        server.signal("-KILL");
        server.child.wait().unwrap();
        server = Server::start(&bench, "news.micpq");
        assert_eq!(server.count("news"), 401 + i as u64);
        let one = server.get(&format!("/v1/indexes/news/documents/{}", 6000 + i));
        assert_eq!(one["text"], "port strike dock");
    }
    assert_eq!(bench.json("index verify news.micpq")[0]["sound"], true);
}

#[test]
fn sigterm_completes_accepted_writes() {
    let bench = Bench::new();
    built(&bench);
    let server = Server::start(&bench, "news.micpq");
    // The signal arrives during writes. Every write that is answered with success must be on disk.
    let address = server.address.clone();
    let writers: Vec<_> = (0..8)
        .map(|w| {
            let address = address.clone();
            std::thread::spawn(move || {
                let mut done = Vec::new();
                for i in 0..200 {
                    let id = 10_000 + w * 1000 + i;
                    let body = new_document(id, "bank loan rate").to_string();
                    let Ok(mut stream) = TcpStream::connect(&address) else { break };
                    let head = format!("PUT /v1/indexes/news/documents HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                    let mut reply = String::new();
                    if stream.write_all(head.as_bytes()).is_err() || stream.read_to_string(&mut reply).is_err() {
                        break;
                    }
                    if reply.starts_with("HTTP/1.1 200") {
                        done.push(id);
                    } else {
                        break;
                    }
                }
                done
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(server.stop(), Some(0));
    let done: Vec<usize> = writers.into_iter().flat_map(|w| w.join().unwrap()).collect();
    assert!(!done.is_empty());
    let server = Server::start(&bench, "news.micpq");
    let there = server.ok("POST", "/v1/indexes/news/documents/get", json!({ "ids": done }));
    assert!(
        there["documents"].as_array().unwrap().iter().all(serde_json::Value::is_object),
        "{} acknowledged",
        done.len()
    );
}

#[test]
fn writes_during_training_are_in_the_new_index() {
    let bench = Bench::new();
    let server = Server::start(&bench, "--data made --set cache=cache");
    let created = server.ok("PUT", "/v1/indexes/notes", json!({ "encoder": "tiny", "bits": 64 }));
    assert_eq!((&created["method"], &created["bits"]), (&json!("untrained"), &json!(64)));
    let lines = corpus(0, 400);
    let head = format!(
        "POST /v1/indexes/notes/documents/stream HTTP/1.1\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n",
        lines.len()
    );
    assert_eq!(server.send(&head, lines.as_bytes()).0, 200);
    let oil = |server: &Server| {
        let found = server.ok("POST", "/v1/indexes/notes/query", json!({ "text": "crude oil barrel", "k": 20 }));
        found["hits"].as_array().unwrap().iter().filter(|h| h["labels"][0] == "oil").count()
    };
    assert!(oil(&server) >= 10, "untrained codes find something: {}", oil(&server));
    let job = server.ok("POST", "/v1/indexes/notes/train", json!({ "bits": 16, "epochs": 4 }));
    let path = format!("/v1/jobs/{}", job["id"]);
    let (mut written, mut deleted) = (0, 0);
    let last = loop {
        let job = server.get(&path);
        if job["status"] != "running" {
            break job;
        }
        server.ok("PUT", "/v1/indexes/notes/documents", new_document(7000 + written, "cargo tanker port"));
        written += 1;
        if deleted < 50 {
            server.ok("POST", "/v1/indexes/notes/documents/delete", json!({ "ids": [deleted] }));
            deleted += 1;
        }
        assert!(oil(&server) >= 5);
    };
    assert_eq!(last["status"], "succeeded", "{last}");
    assert_eq!(server.count("notes"), (400 + written - deleted) as u64, "{written} written, {deleted} deleted");
    let view = server.get("/v1/indexes/notes");
    assert_eq!(
        (&view["bits"], &view["method"], &view["rerank_vectors"]),
        (&json!(16), &json!("distilled"), &json!("int8"))
    );
    assert!(oil(&server) >= 15, "{}", oil(&server));
    assert!(server.get("/v1/indexes/notes/training")["metrics"]["distillation_curve"].as_array().unwrap().len() >= 2);
    assert_eq!(server.stop(), Some(0));
    assert_eq!(bench.json("index verify made/notes")[0]["sound"], true);
    let left: Vec<_> = std::fs::read_dir(bench.path("made")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["notes"], "only the index is left");
}

#[test]
fn documents_without_text_survive_training() {
    let bench = Bench::new();
    let server = Server::start(&bench, "--data made --set cache=cache");
    let vector = |i: usize| -> Vec<f32> { (0..32).map(|j| ((i * 37 + j * 11) as f32 * 0.7).sin()).collect() };
    let vector_document = |i: usize| json!({ "id": 9000 + i, "vector": vector(i) });
    for (name, rerank_vectors) in [("notes", "int8"), ("bare", "none")] {
        server.ok(
            "PUT",
            &format!("/v1/indexes/{name}"),
            json!({ "encoder": "tiny", "bits": 64, "rerank_vectors": rerank_vectors }),
        );
        let lines = corpus(0, 200);
        let head = format!(
            "POST /v1/indexes/{name}/documents/stream HTTP/1.1\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n",
            lines.len()
        );
        assert_eq!(server.send(&head, lines.as_bytes()).0, 200);
        let documents: Vec<Value> = (0..30).map(vector_document).collect();
        server.ok("PUT", &format!("/v1/indexes/{name}/documents"), json!({ "documents": documents }));
    }
    let found = |from: usize, to: usize| {
        let first = |i: usize| {
            let found = server.ok("POST", "/v1/indexes/notes/query", json!({ "vector": vector(i), "k": 1 }));
            found["hits"][0]["id"] == 9000 + i
        };
        (from..to).filter(|i| first(*i)).count()
    };
    assert_eq!(found(0, 30), 30);
    // Without stored vectors they would be lost: training is refused at once.
    let (status, answer) = server.call("POST", "/v1/indexes/bare/train", json!({ "bits": 16, "epochs": 1 }));
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("unsupported")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("30 of 230 documents have no text"), "{answer}");
    assert_eq!(server.get("/v1/jobs")["jobs"], json!([]));

    let job = server.ok("POST", "/v1/indexes/notes/train", json!({ "bits": 32, "epochs": 3 }));
    // These are added during training.
    let documents: Vec<Value> = (30..40).map(vector_document).collect();
    server.ok("PUT", "/v1/indexes/notes/documents", json!({ "documents": documents }));
    let last = loop {
        let job = server.get(&format!("/v1/jobs/{}", job["id"]));
        if job["status"] != "running" {
            break job;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(last["status"], "succeeded", "{last}");
    assert_eq!(last["result"]["training_documents"], 200, "only texts are trained on: {last}");
    assert_eq!((server.count("notes"), &server.get("/v1/indexes/notes")["bits"]), (240, &json!(32)));
    assert_eq!(found(0, 40), 40);
    assert_eq!(server.stop(), Some(0));
    assert_eq!(bench.json("index verify made/notes")[0]["sound"], true);
}

#[test]
fn idle_connections_leave_room_for_writes() {
    let bench = Bench::new();
    built(&bench);
    // A hundred descriptors, and the program itself needs some of them.
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -n 100; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_micpq"), "serve", "news.micpq"]);
    shell.args(["--listen", "127.0.0.1:0", "--json", "--set", "log=error", "--set", "writer_idle_seconds=0.2"]);
    shell.current_dir(bench.dir.path()).env("MICPQ_MODELS", bench.path("models")).env("HOME", bench.dir.path());
    let server = Server::spawn(&mut shell);
    let mut idle = Vec::new();
    for round in 0..3 {
        for _ in 0..120 {
            let stream = TcpStream::connect(&server.address).unwrap();
            // Half of them have sent only the beginning of a request.
            if idle.len().is_multiple_of(2) {
                let _ = (&stream).write_all(b"GET /v1/indexes HTTP/1.1\r\nHos");
            }
            idle.push(stream);
        }
        std::thread::sleep(Duration::from_millis(500));
        let written = server.call("PUT", "/v1/indexes/news/documents", new_document(5000 + round, "wheat harvest"));
        assert_eq!(written.0, 200, "round {round}, with {} connections: {}", idle.len(), written.1);
    }
    drop(idle);
    server.ok("PUT", "/v1/indexes/news/documents", new_document(6000, "wheat harvest"));
    assert_eq!(server.count("news"), 404);
    assert_eq!(server.stop(), Some(0));
    assert_eq!(bench.json("index verify news.micpq")[0]["sound"], true);
}

#[test]
fn encoding_stops_when_the_caller_disconnects() {
    let bench = Bench::new();
    built(&bench);
    let server = Server::start(&bench, "news.micpq");
    let texts: Vec<String> = (0..400).map(|_| "crude oil barrel wheat ".repeat(3000)).collect();
    let body = json!({ "model": "news", "input": texts }).to_string();
    for _ in 0..5 {
        drop(server.begin("POST", "/v1/embeddings", body.len(), body.as_bytes()));
    }
    // All the texts would take minutes, in which a client gives up.
    server.ok("POST", "/v1/indexes/news/query", json!({ "text": "crude oil" }));
    until("the server uses less than 0.3 s of CPU time in a second, because no caller waits", || {
        let before = server.cpu_seconds();
        std::thread::sleep(Duration::from_secs(1));
        server.cpu_seconds() - before < 0.3
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn unread_answers_are_bounded_and_time_out() {
    let bench = Bench::new();
    built(&bench);
    let limits = "--set max_answer_bytes=50000000 --set max_answers_bytes=60000000 --set answer_timeout_seconds=2";
    let server = Server::start(&bench, &format!("news.micpq {limits}"));
    let text = "crude oil barrel ".repeat(30_000);
    for i in 0..6 {
        let documents: Vec<Value> = (0..12).map(|j| json!({ "id": 5000 + 12 * i + j, "text": text })).collect();
        server.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": documents }));
    }
    let body = json!({ "text": "crude oil barrel", "k": 72, "filter": "id:[5000 TO 6000]" }).to_string();
    let mut unread = server.begin("POST", "/v1/indexes/news/query", body.len(), body.as_bytes());
    let mut first = [0; 12];
    unread.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    // The unread answer still occupies its room.
    let (status, answer) = server.call("POST", "/v1/indexes/news/query", serde_json::from_str(&body).unwrap());
    assert_eq!((status, &answer["error"]["code"]), (429, &json!("overloaded")));
    until("the room is free again", || {
        let (status, answer) = server.call("POST", "/v1/indexes/news/query", serde_json::from_str(&body).unwrap());
        status == 200 && answer["hits"].as_array().unwrap().len() == 72
    });
    let mut rest = Vec::new();
    let _ = unread.read_to_end(&mut rest);
    assert!(rest.len() < 30_000_000, "{} bytes were sent after the timeout", rest.len());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn incomplete_bodies_are_bounded_and_time_out() {
    let bench = Bench::new();
    built(&bench);
    let limits = "--set max_body_bytes=1000000 --set max_bodies_bytes=2000000 --set timeout_seconds=6";
    let server = Server::start(&bench, &format!("news.micpq {limits}"));
    let path = "/v1/indexes/news/query";
    let half = vec![b' '; 900_000];
    let status = |mut stream: TcpStream| {
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply);
        reply.split(' ').nth(1).map(str::to_owned)
    };
    let held: Vec<TcpStream> = (0..2).map(|_| server.begin("POST", path, 1_000_000, &half)).collect();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(status(server.begin("POST", path, 1_000_000, &half)).as_deref(), Some("429"), "refused, not timed out");
    server.ok("POST", path, json!({ "text": "crude oil" }));
    for stream in held {
        assert_eq!(status(stream).as_deref(), Some("504"));
    }
    let whole = server.begin("POST", path, 1_000_000, &[&half[..], &[b' '; 100_000]].concat());
    assert_eq!(status(whole).as_deref(), Some("400"), "there is room again");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_log_file_has_no_colour_codes() {
    let bench = Bench::new();
    built(&bench);
    let log = std::fs::File::create(bench.path("log.txt")).unwrap();
    let mut command = bench.command("serve news.micpq --listen 127.0.0.1:0 --json");
    let server = Server::spawn(command.stderr(log));
    server.get("/healthz");
    assert_eq!(server.stop(), Some(0));
    let log = std::fs::read_to_string(bench.path("log.txt")).unwrap();
    assert!(log.contains("listening") && log.contains("stopped"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn a_new_certificate_is_used_and_a_broken_one_is_ignored() {
    let bench = Bench::new();
    built(&bench);
    let make = |name: &str| {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
        openssl.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")]);
        let made = openssl.args(["-addext", "subjectAltName=IP:127.0.0.1"]).current_dir(bench.dir.path()).output();
        made.is_ok_and(|out| out.status.success())
    };
    if !make("first") || !make("second") || Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: this test needs openssl and curl");
        return;
    }
    let put = |name: &str| {
        for kind in ["crt", "key"] {
            std::fs::copy(bench.path(&format!("{name}.{kind}")), bench.path(&format!("used.{kind}"))).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1500));
    };
    put("first");
    let server = Server::start(&bench, "news.micpq --set tls_certificate=used.crt --set tls_key=used.key");
    let reached = |authority: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", authority]);
        curl.arg(format!("https://{}/healthz", server.address)).current_dir(bench.dir.path());
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    assert_eq!((reached("first.crt"), reached("second.crt")), ("200".into(), "000".into()));
    put("second");
    // The first connection after the change may be the one that reads the file.
    reached("second.crt");
    assert_eq!((reached("first.crt"), reached("second.crt")), ("000".into(), "200".into()));
    std::fs::write(bench.path("used.crt"), "half a certif").unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    reached("second.crt");
    assert_eq!(reached("second.crt"), "200", "the last valid certificate stays in use");
}

#[test]
fn tls_needs_a_trusted_certificate_and_keys_limit_access() {
    let bench = Bench::new();
    built(&bench);
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        .current_dir(bench.dir.path())
        .output();
    if !made.is_ok_and(|out| out.status.success()) || Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: this test needs openssl and curl");
        return;
    }
    let key = &bench.json("serve --new-key read")[0];
    std::fs::write(bench.path("serve.toml"), key["config"].as_str().unwrap()).unwrap();
    let server =
        Server::start(&bench, "news.micpq --config serve.toml --set tls_certificate=cert.pem --set tls_key=key.pem");
    let curl = |arguments: &[&str]| -> String {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}"]).args(arguments).current_dir(bench.dir.path());
        String::from_utf8(curl.arg(format!("https://{}/v1/indexes", server.address)).output().unwrap().stdout).unwrap()
    };
    assert_eq!(curl(&[]), "000", "an unknown certificate is not trusted");
    assert_eq!(curl(&["--cacert", "cert.pem"]), "401");
    let header = format!("Authorization: Bearer {}", key["key"].as_str().unwrap());
    assert_eq!(curl(&["--cacert", "cert.pem", "-H", &header]), "200");
    assert_eq!(curl(&["--cacert", "cert.pem", "-H", &header, "-X", "PUT"]), "405");
}

#[test]
fn wrong_server_options_are_refused_at_start() {
    let bench = Bench::new();
    for (line, code, word) in [
        ("serve", 2, "nothing to serve"),
        ("serve nowhere.micpq", 1, "is not an index"),
        ("serve a=x a=y", 2, "two indexes"),
        ("serve x --set quue=1", 2, "quue"),
        ("serve x --set queue", 2, "NAME=VALUE"),
        ("serve x --listen nonsense", 2, "listen"),
        ("serve x --listen 0.0.0.0:0", 2, "--new-key"),
        ("serve --config none.toml", 1, "none.toml"),
        ("serve --new-key king", 2, "king"),
        ("serve x --set tls_key=k --set tls_certificate=c", 1, "PEM"),
    ] {
        let stderr = bench.fails(line, code);
        assert!(stderr.contains(word), "{line}: {stderr}");
    }
    let api: Value = serde_json::from_str(&bench.ok("serve --openapi")).unwrap();
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"));
}

/// A trace collector that returns the body of its first request.
fn collector() -> (String, std::thread::JoinHandle<Vec<u8>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (mut got, mut piece) = (Vec::new(), [0; 4096]);
        let whole = |got: &[u8]| {
            let head = got.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
            let length = String::from_utf8_lossy(&got[..head]).to_lowercase();
            let length = length.split_once("content-length:")?.1.split_once("\r\n")?.0.trim().parse::<usize>().ok()?;
            (got.len() >= head + length).then(|| got[head..head + length].to_vec())
        };
        loop {
            if let Some(body) = whole(&got) {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                return body;
            }
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "the server closed the connection in the middle of a request");
            got.extend_from_slice(&piece[..read]);
        }
    });
    (address, thread)
}

#[test]
fn a_request_joins_the_trace_of_its_caller() {
    let bench = Bench::new();
    built(&bench);
    let (address, traces) = collector();
    let server = Server::start(&bench, &format!("news.micpq --set telemetry=http://{address}/v1/traces"));
    let body = json!({ "text": "crude oil" }).to_string();
    let head = format!(
        "POST /v1/indexes/news/query HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\ntraceparent: \
         00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n",
        body.len()
    );
    assert_eq!(server.send(&head, body.as_bytes()).0, 200);
    // The server sends the remaining traces before it exits.
    assert_eq!(server.stop(), Some(0));
    let sent = traces.join().unwrap();
    let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
    let caller = 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes();
    for part in
        [&b"POST /v1/indexes/{index}/query"[..], b"http.response.status_code", b"wait", b"scan", &trace, &caller]
    {
        let found = sent.windows(part.len()).filter(|w| *w == part).count();
        assert!(found > 0, "{:?} is not in the traces: {:?}", part, String::from_utf8_lossy(&sent));
    }
    assert!(sent.windows(16).filter(|w| *w == trace).count() >= 3, "the stages belong to the same trace");
}

#[test]
fn a_missing_collector_does_not_affect_requests() {
    let bench = Bench::new();
    built(&bench);
    let server = Server::start(&bench, "news.micpq --set telemetry=http://127.0.0.1:9/v1/traces");
    server.ok("POST", "/v1/indexes/news/query", json!({ "text": "crude oil" }));
    assert_eq!(server.stop(), Some(0));
}

/// Runs every command block of docs/http.md.
#[test]
fn the_commands_of_the_documentation_work() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: the commands of docs/http.md need curl");
        return;
    }
    let bench = Bench::new();
    built(&bench);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http.md");
    let page = std::fs::read_to_string(page).unwrap();
    let server = Server::start(&bench, "news.micpq --data made --set cache=cache");
    let mut run = 0;
    for block in page.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap().replace("127.0.0.1:6380", &server.address);
        if block.contains("micpq serve") {
            continue;
        }
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &block]).current_dir(bench.dir.path());
        let out = shell.output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{block}\n{stdout}\n{stderr}");
        run += 1;
    }
    assert!(run >= 8, "{run} blocks of commands");
}

/// Schemathesis (its path in `MICPQ_SCHEMATHESIS`) generates requests from the OpenAPI description and checks the answers
/// against it: `make contract`.
#[test]
fn answers_match_the_openapi_description() {
    let Ok(program) = std::env::var("MICPQ_SCHEMATHESIS") else {
        eprintln!("skipped: MICPQ_SCHEMATHESIS does not name the program; \"make contract\" does");
        return;
    };
    let bench = Bench::new();
    built(&bench);
    let server = Server::start(&bench, "news.micpq --data made --set cache=cache");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../serve");
    let out = Command::new(program)
        .env("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
        .env("PYTHONPATH", &folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg("--config-file")
        .arg(folder.join("schemathesis.toml"))
        .args(["run", "--no-color", &format!("http://{}/openapi.json", server.address)])
        .current_dir(bench.dir.path())
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&out.stdout);
    println!("{report}");
    assert!(out.status.success(), "{report}\n{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(server.get("/healthz")["status"], "ok");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_page_works_in_a_browser() {
    let Ok(python) = std::env::var("MICPQ_BROWSER_PYTHON") else {
        eprintln!("skipped: MICPQ_BROWSER_PYTHON does not name a Python with selenium; \"make page\" does");
        return;
    };
    let bench = Bench::new();
    built(&bench);
    bench.ok("export news.micpq --to html-map -o map.html --titles 500 --attribute year");
    let server = Server::start(&bench, "news.micpq --data data");
    let mut browser = Command::new(python);
    browser.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../serve/page/tests/browser.py"));
    browser.arg(format!("http://{}", server.address)).arg("--map").arg(bench.path("map.html"));
    if let Some(folder) = std::env::var_os("MICPQ_SCREENSHOTS") {
        browser.arg("--screenshots").arg(folder);
    }
    let out = browser.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(server.stop(), Some(0));
}
