//! `micpq mcp` as an assistant uses it: JSON-RPC over standard input and output, or over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::bench::{Bench, TINY, corpus};

/// A client that started the server.
struct Assistant {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    calls: u64,
}

impl Assistant {
    /// Starts the server and greets it.
    fn start(bench: &Bench, line: &str) -> Assistant {
        let mut command = bench.command(&format!("mcp {line}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut assistant = Assistant { child, input, output, calls: 0 };
        let hello = assistant.ask("initialize", hello());
        assert_eq!(hello["result"]["serverInfo"]["name"], "micpq", "{hello}");
        assert_eq!(hello["result"]["protocolVersion"], "2025-06-18");
        assert!(hello["result"]["capabilities"]["tools"].is_object());
        assistant.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        assistant
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    /// The reply to a request. Every line of standard output must be a message.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.calls, "method": method, "params": params }));
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "{method}: the server ended");
            let reply: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
            if reply["id"] == self.calls {
                return reply;
            }
        }
    }

    fn result(&mut self, tool: &str, arguments: Value) -> Value {
        let reply = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }));
        assert!(reply["error"].is_null(), "{tool}: {reply}");
        reply["result"].clone()
    }

    /// The answer of a tool, which is the same as text and as data.
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.result(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        let answer = result["structuredContent"].clone();
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), answer);
        answer
    }

    /// The text of a call that fails.
    fn fails(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.result(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Closes standard input and returns the exit code.
    fn end(mut self) -> Option<i32> {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Assistant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hello() -> Value {
    json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } })
}

fn built(flags: &str) -> Bench {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 2 --views noise:4 {flags} -o news.micpq"));
    bench
}

fn ids(hits: &Value) -> Vec<&Value> {
    hits.as_array().unwrap().iter().map(|hit| &hit["id"]).collect()
}

#[test]
fn an_assistant_searches_as_the_command_line_does() {
    let bench = built("");
    let mut assistant = Assistant::start(&bench, "news.micpq");
    let listed = assistant.ask("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["search", "fetch", "similar", "topics", "indexes"]);

    for (arguments, flags) in [
        (json!({ "query": "crude oil barrel" }), "'crude oil barrel'"),
        (json!({ "query": "crude oil", "k": 7, "filter": "year:1988" }), "'crude oil' -k 7 --filter year:1988"),
        (json!({ "query": "crude oil", "hybrid": 0.5, "filter": null }), "'crude oil' --hybrid 0.5"),
    ] {
        let found = assistant.call("search", arguments);
        let expected = bench.json(&format!("search news.micpq {flags} --snippets"));
        assert_eq!(ids(&found["hits"]), ids(&json!(expected)), "{flags}");
        for (hit, expected) in found["hits"].as_array().unwrap().iter().zip(&expected) {
            assert_eq!(hit["snippet"], expected["snippet"]["text"]);
            assert_eq!((&hit["labels"], &hit["attributes"]), (&expected["labels"], &expected["attributes"]));
            assert!((hit["score"].as_f64().unwrap() - expected["score"].as_f64().unwrap()).abs() < 1e-4);
        }
    }

    // Pages follow each other without gap.
    let whole = assistant.call("search", json!({ "query": "wheat", "k": 30 }));
    let first = assistant.call("search", json!({ "query": "wheat", "k": 15 }));
    let second = assistant.call("search", json!({ "query": "wheat", "k": 15, "after": first["next"] }));
    assert_eq!([ids(&first["hits"]), ids(&second["hits"])].concat(), ids(&whole["hits"]));

    let similar = assistant.call("similar", json!({ "id": 3, "k": 5 }));
    assert_eq!(ids(&similar["hits"]), ids(&json!(bench.json("search news.micpq --like 3 -k 5"))));
    assert_eq!(assistant.call("similar", json!({ "id": "3", "k": 5 })), similar);
    assert!(similar["hits"][0]["snippet"].as_str().unwrap().len() > 10, "{similar}");
    assert_eq!(assistant.end(), Some(0));
}

#[test]
fn an_assistant_reads_documents_and_learns_what_filters_can_use() {
    let bench = built("");
    let mut assistant = Assistant::start(&bench, "news.micpq");
    let row: Value = serde_json::from_str(corpus(5, 6).lines().next().unwrap()).unwrap();
    let document = assistant.call("fetch", json!({ "id": 5 }));
    assert_eq!((&document["text"], &document["labels"][0]), (&row["text"], &row["label"]));
    assert_eq!((&document["attributes"]["year"], document["next"].is_null()), (&row["year"], true));

    let all = assistant.call("indexes", json!({}));
    let index = &all["indexes"][0];
    assert_eq!((&index["name"], &index["documents"], &index["bits"]), (&json!("news"), &json!(400), &json!(16)));
    assert_eq!((&index["texts"], &index["encoder"]), (&json!(true), &json!("tiny")));
    assert!(index["attributes"].as_array().unwrap().contains(&json!({ "name": "year" })), "{all}");
    let one = assistant.call("indexes", json!({ "index": "news" }));
    let attributes = one["indexes"][0]["attributes"].as_array().unwrap();
    let year = attributes.iter().find(|attribute| attribute["name"] == "year").unwrap();
    assert_eq!((&year["least"], &year["greatest"], &year["distinct"]), (&json!(1987.0), &json!(1989.0), &json!(3)));
    // Every filter that it shows finds as many documents as it says.
    for value in attributes.iter().flat_map(|attribute| attribute["values"].as_array().unwrap()) {
        let filter = value["filter"].as_str().unwrap();
        let found = assistant.call("search", json!({ "query": "oil", "filter": filter, "k": 1 }));
        assert_eq!(found["hits"].as_array().unwrap().len(), 1, "{filter}");
        let counted = bench.json(&format!("search news.micpq oil --ids -k 1000 --filter '{filter}'"));
        assert_eq!(counted.len() as u64, value["count"].as_u64().unwrap(), "{filter}");
    }

    let found = assistant.call("topics", json!({ "topics": 4, "over": "year" }));
    let expected = &bench.json("topics news.micpq --topics 4 --over year")[0];
    assert_eq!((&found["documents"], &found["periods"]), (&expected["documents"], &expected["periods"]));
    for (topic, expected) in found["topics"].as_array().unwrap().iter().zip(expected["topics"].as_array().unwrap()) {
        assert_eq!((&topic["documents"], &topic["trend"]), (&expected["documents"], &expected["trend"]));
        assert_eq!(topic["terms"][0], expected["terms"][0]["term"]);
    }
    assert_eq!(assistant.end(), Some(0));
}

#[test]
fn a_call_that_fails_says_what_to_change() {
    let bench = built("");
    let mut assistant = Assistant::start(&bench, "news.micpq other=news.micpq");
    for (tool, arguments, words) in [
        ("search", json!({ "query": "oil" }), ["index is missing", "news, other"]),
        ("search", json!({ "query": "oil", "index": "mail" }), ["no index \"mail\"", "news, other"]),
        ("search", json!({ "index": "news" }), ["search", "missing field `query`"]),
        ("search", json!({ "query": " ", "index": "news" }), ["query is empty", "say what"]),
        ("search", json!({ "query": "oil", "index": "news", "limit": 3 }), ["unknown field `limit`", "`k`"]),
        ("search", json!({ "query": "oil", "index": "news", "k": "ten" }), ["k: ", "expected usize"]),
        ("search", json!({ "query": "oil", "index": "news", "k": 0 }), ["k is 0", "1 to 50"]),
        ("search", json!({ "query": "oil", "index": "news", "k": 51 }), ["k is 51", "after"]),
        ("search", json!({ "query": "oil", "index": "news", "hybrid": 1.5 }), ["hybrid is 1.5", "0 to 1"]),
        ("search", json!({ "query": "oil", "index": "news", "filter": "yeer:1988" }), ["yeer", "year"]),
        ("search", json!({ "query": "oil", "index": "news", "filter": "year:[" }), ["year:[", "character"]),
        ("search", json!({ "query": "oil", "index": "news", "after": "nowhere" }), ["cursor", "nowhere"]),
        ("fetch", json!({ "id": 4000, "index": "news" }), ["no document 4000", "id of a hit"]),
        ("fetch", json!({ "id": -1, "index": "news" }), ["-1 is not an id", "id of a hit"]),
        ("fetch", json!({ "id": 4, "index": "news", "offset": 100_000 }), ["offset is 100000", "below"]),
        ("fetch", json!({ "id": 4, "index": "news", "bytes": 0 }), ["bytes is 0", "100000"]),
        ("similar", json!({ "id": 4000, "index": "news" }), ["document 4000", "not in the index"]),
        ("topics", json!({ "index": "news", "topics": 51 }), ["topics is 51", "1 to 50"]),
    ] {
        let text = assistant.fails(tool, arguments.clone());
        assert!(words.iter().all(|word| text.contains(word)), "{tool} {arguments}: {text}");
    }
    let reply = assistant.ask("tools/call", json!({ "name": "delete", "arguments": {} }));
    assert!(reply["error"]["message"].as_str().unwrap().contains("search, fetch"), "{reply}");
    // A filter that matches nothing is no error; the answer says how to find one that does.
    let found = assistant.call("search", json!({ "query": "oil", "index": "other", "filter": "year:1901" }));
    assert_eq!(found["hits"], json!([]));
    assert!(found["notes"][0].as_str().unwrap().contains("attributes: year"), "{found}");
    assert_eq!(assistant.end(), Some(0));
}

#[test]
fn commits_of_other_programs_are_seen() {
    let bench = built("");
    let mut assistant = Assistant::start(&bench, "news.micpq");
    assert_eq!(assistant.call("indexes", json!({}))["indexes"][0]["documents"], 400);
    let before = assistant.call("search", json!({ "query": "crude oil", "k": 1 }));
    std::fs::write(bench.path("more.jsonl"), corpus(400, 440)).unwrap();
    bench.ok("index add news.micpq more.jsonl");
    assert_eq!(assistant.call("fetch", json!({ "id": 439 }))["id"], 439);
    assert_eq!(assistant.call("indexes", json!({}))["indexes"][0]["documents"], 440);
    // Another index takes the place of this one.
    std::fs::write(bench.path("few.jsonl"), corpus(0, 60)).unwrap();
    bench.ok(&format!("build few.jsonl {TINY} --epochs 1 --views noise:4 --force -o news.micpq"));
    assert_eq!(assistant.call("indexes", json!({}))["indexes"][0]["documents"], 60);
    let after = assistant.call("search", json!({ "query": "crude oil", "k": 1 }));
    assert!(before["hits"][0]["id"].is_u64() && after["hits"][0]["id"].as_u64().unwrap() < 60);
}

#[test]
fn answers_have_a_bounded_size_and_the_rest_can_be_had() {
    let bench = Bench::new();
    let long = "Öl und Getreide, oil prices. ".repeat(10_000);
    let note = "drought ".repeat(3000);
    let mut rows = corpus(0, 400);
    for id in 1000..1050 {
        let mut row = json!({ "id": id, "text": "crude oil barrel", "title": note, "label": "long" });
        (0..20).for_each(|i| row[format!("note{i}")] = json!(note));
        rows += &format!("{row}\n");
    }
    rows += &format!("{}\n", json!({ "id": "long", "text": long, "title": "A long one" }));
    std::fs::write(bench.path("news.jsonl"), rows).unwrap();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o news.micpq"));
    let mut assistant = Assistant::start(&bench, "news.micpq");

    let found = assistant.call("search", json!({ "query": "oil", "filter": "labels:long", "k": 50 }));
    assert_eq!(found["hits"].as_array().unwrap().len(), 50);
    assert!(found.to_string().len() < 60_000, "{}", found.to_string().len());
    assert!(found["notes"][0].as_str().unwrap().contains("attributes are left out"), "{found}");
    let few = assistant.call("search", json!({ "query": "oil", "filter": "labels:long", "k": 3 }));
    let note = few["hits"][0]["attributes"]["note0"].as_str().unwrap();
    assert!(note.len() < 250 && note.ends_with("..."), "{note}");

    let (mut whole, mut arguments) = (String::new(), json!({ "id": "long" }));
    loop {
        let part = assistant.call("fetch", arguments.clone());
        assert!(part["text"].as_str().unwrap().len() <= 100_000);
        assert_eq!((&part["title"], &part["length"]), (&json!("A long one"), &json!(long.len())));
        whole += part["text"].as_str().unwrap();
        if part["next"].is_null() {
            break;
        }
        arguments = json!({ "id": "long", "offset": part["next"], "bytes": 99_999 });
    }
    assert_eq!(whole, long);
}

#[test]
fn a_hit_of_a_long_document_says_where_its_passage_begins() {
    let bench = Bench::new();
    let filler = "the of and said year new price market ".repeat(20);
    let long = format!("{filler}wheat corn harvest drought farm grain {filler}");
    let rows = format!("{}{}\n", corpus(0, 400), json!({ "id": "long", "text": long, "label": "crop" }));
    std::fs::write(bench.path("news.jsonl"), rows).unwrap();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 --chunk -o news.micpq"));
    let mut assistant = Assistant::start(&bench, "news.micpq");
    let found = assistant.call("search", json!({ "query": "wheat corn harvest drought", "filter": "id:long" }));
    let hit = &found["hits"][0];
    let offset = hit["offset"].as_u64().unwrap() as usize;
    let part = assistant.call("fetch", json!({ "id": "long", "offset": offset, "bytes": 400 }));
    assert_eq!(part["text"], long[offset..offset + 400]);
    let expected = bench.json("search news.micpq 'wheat corn harvest drought' --filter id:long");
    assert_eq!(expected[0]["chunk"]["start"], offset);
}

#[test]
fn indexes_without_texts_and_without_an_encoder_are_searched_by_what_they_have() {
    let bench = built("--store codes --rerank-vectors none");
    bench.ok("encode news.jsonl --encoder tiny --precision f32 -o vectors.npy");
    bench.ok("import vectors.npy --bits 16 --epochs 1 --cache cache -o vectors.micpq");
    let mut assistant = Assistant::start(&bench, "news.micpq vectors.micpq");
    let found = assistant.call("search", json!({ "query": "crude oil", "index": "news", "k": 4 }));
    assert_eq!(ids(&found["hits"]), ids(&json!(bench.json("search news.micpq 'crude oil' -k 4"))));
    assert!(found["notes"][0].as_str().unwrap().contains("only ids and codes"), "{found}");
    let document = assistant.call("fetch", json!({ "id": 5, "index": "news" }));
    assert!(document["text"].is_null() && document["notes"][0].as_str().unwrap().contains("no text"), "{document}");
    let text = assistant.fails("search", json!({ "query": "crude oil", "index": "vectors" }));
    assert!(text.contains("user vectors"), "{text}");
    let similar = assistant.call("similar", json!({ "id": 5, "index": "vectors", "k": 4 }));
    assert_eq!(ids(&similar["hits"]), ids(&json!(bench.json("search vectors.micpq --like 5 -k 4"))));
}

#[test]
fn wrong_usage_of_mcp_has_its_exit_code_and_message() {
    let bench = built("");
    for (line, code, word) in [
        ("mcp", 2, "<INDEXES>"),
        ("mcp nowhere.micpq", 1, "nowhere.micpq"),
        ("mcp news.micpq news=news.micpq", 2, "NAME=PATH"),
        ("mcp news.micpq --listen 0.0.0.0:0", 2, "other machines"),
        ("mcp news.micpq --listen here", 2, "here"),
    ] {
        let stderr = bench.fails(line, code);
        assert!(stderr.contains(word), "{line}: {stderr}");
    }
    assert_eq!(bench.ok("mcp news.micpq"), "", "a client that leaves at once is no failure");
    assert!(bench.ok("mcp --help").contains("mcpServers"));
}

/// The status and body of a request.
fn post(address: &str, headers: &str, body: &Value) -> (u16, String) {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{reply:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn http_serves_programs_of_this_machine_and_no_page_of_another_site() {
    let bench = built("");
    let mut command = bench.command("mcp news.micpq --listen 127.0.0.1:0 --json");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    let address = line["address"].as_str().unwrap();
    assert_eq!(line["url"], format!("http://{address}/mcp"));

    let own = format!("Host: {address}\r\nMCP-Protocol-Version: 2025-06-18\r\n");
    let request =
        |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let (status, reply) = post(address, &own, &request("initialize", hello()));
    assert!(status == 200 && reply.contains("\"serverInfo\""), "{status} {reply}");
    let search = request("tools/call", json!({ "name": "search", "arguments": { "query": "crude oil", "k": 3 } }));
    let (status, reply) = post(address, &own, &search);
    assert_eq!(status, 200, "{reply}");
    let found: Value = serde_json::from_str(&reply).unwrap();
    let expected = json!(bench.json("search news.micpq 'crude oil' -k 3"));
    assert_eq!(ids(&found["result"]["structuredContent"]["hits"]), ids(&expected));

    for headers in [
        "Host: evil.example\r\nMCP-Protocol-Version: 2025-06-18\r\n".to_owned(),
        format!("{own}Origin: https://evil.example\r\n"),
        format!("{own}Origin: null\r\n"),
    ] {
        let (status, reply) = post(address, &headers, &search);
        assert!((400..500).contains(&status) && !reply.contains("hits"), "{headers}: {status} {reply}");
    }
    assert!(std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
