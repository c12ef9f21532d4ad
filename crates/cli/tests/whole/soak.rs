//! A server under mixed and hostile load for a long time: `make soak`. Memory, descriptors, files and the log must stay flat, and
//! an honest client's latency is reported beside what it is alone. Latencies are printed, not asserted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Bench, TINY, corpus};
use crate::serve::Server;

/// What must not grow.
#[derive(Clone, Copy, Debug)]
struct Usage {
    resident_bytes: u64,
    descriptors: u64,
    files: u64,
    log_bytes: u64,
}

fn files(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

impl Usage {
    fn of(server: &Server, bench: &Bench) -> Usage {
        let proc = format!("/proc/{}", server.id());
        let status = std::fs::read_to_string(format!("{proc}/status")).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")).unwrap();
        Usage {
            resident_bytes: kib.parse::<u64>().unwrap() * 1024,
            descriptors: std::fs::read_dir(format!("{proc}/fd")).unwrap().count() as u64,
            files: files(&bench.path("news.micpq")),
            log_bytes: std::fs::metadata(bench.path("log.txt")).unwrap().len(),
        }
    }
}

/// What hostile clients send. They read answers of what is small, and hang up on the rest.
fn hostile(server: &Server, n: u64) {
    let query = "/v1/indexes/news/query";
    let deep = "NOT ".repeat(500) + "text:oil";
    match n % 9 {
        0 => drop(server.try_call("POST", query, json!({ "text": "oil", "filter": deep }))),
        1 => drop(server.try_call("POST", query, json!({ "text": "oil", "filter": "(".repeat(10_000) }))),
        2 => drop(server.try_call("POST", query, json!({ "text": "crude oil ".repeat(20_000), "k": 10_000 }))),
        // Hung up at once, half a body, an answer that is never read, garbage.
        3 => {
            let texts = vec!["crude oil barrel wheat ".repeat(200); 64];
            let body = json!({ "model": "news", "input": texts }).to_string();
            drop(server.begin("POST", "/v1/embeddings", body.len(), body.as_bytes()));
        }
        4 => drop(server.begin("POST", query, 100_000, &[b' '; 5000])),
        5 => {
            let body = json!({ "text": "oil", "k": 400 }).to_string();
            let mut unread = server.begin("POST", query, body.len(), body.as_bytes());
            let _ = unread.read(&mut [0; 16]);
        }
        6 => {
            if let Ok(mut stream) = TcpStream::connect(server.address()) {
                let _ = stream.write_all(&[0xff; 3000]);
            }
        }
        7 => drop(server.try_call(
            "PUT",
            "/v1/indexes/news/documents",
            json!({ "documents": [{ "id": [], "text": 7 }] }),
        )),
        _ => {
            let body = "[".repeat(60_000);
            drop(server.begin("POST", query, body.len(), body.as_bytes()));
        }
    }
}

/// Latencies of an honest client, in milliseconds, sorted.
fn honest(server: &Server, until: Instant) -> Vec<f64> {
    let mut times = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        server.ok("POST", "/v1/indexes/news/query", json!({ "text": "crude oil barrel price", "k": 10 }));
        times.push(began.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(Duration::from_millis(5));
    }
    times.sort_by(f64::total_cmp);
    times
}

fn percentile(times: &[f64], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize]
}

#[test]
#[ignore = "takes a minute or an hour: make soak"]
fn a_server_under_mixed_and_hostile_load_stays_flat() {
    let seconds = std::env::var("MICPQ_SOAK_SECONDS").map_or(60, |value| value.parse().expect("a number of seconds"));
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o news.micpq"));
    let log = std::fs::File::create(bench.path("log.txt")).unwrap();
    let mut command = bench.command("serve news.micpq --listen 127.0.0.1:0 --json --set log=warn");
    let server = &Server::spawn(command.stderr(log));
    let alone = honest(server, Instant::now() + Duration::from_secs((seconds / 10).clamp(5, 60)));

    let (done, sent, written) = (&AtomicBool::new(false), &AtomicU64::new(0), &AtomicU64::new(0));
    let began = Instant::now();
    let (loaded, samples) = std::thread::scope(|scope| {
        for client in 0..2u64 {
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    hostile(server, sent.fetch_add(1, Ordering::SeqCst) + client);
                }
            });
        }
        // Writes that replace and delete the same documents, so that the index stays of one size.
        scope.spawn(move || {
            let rows: Vec<Value> = corpus(0, 400).lines().map(|row| serde_json::from_str(row).unwrap()).collect();
            while !done.load(Ordering::SeqCst) {
                let n = written.fetch_add(1, Ordering::SeqCst) as usize;
                let row = &rows[n * 7 % rows.len()];
                let document = json!({ "id": row["id"], "text": format!("{} {n}", row["text"].as_str().unwrap()) });
                server.ok("PUT", "/v1/indexes/news/documents", json!({ "documents": [document] }));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let sampler = scope.spawn(|| {
            let mut samples = Vec::new();
            while !done.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_secs((seconds / 40).max(1)));
                samples.push(Usage::of(server, &bench));
            }
            samples
        });
        let loaded = honest(server, began + Duration::from_secs(seconds));
        done.store(true, Ordering::SeqCst);
        (loaded, sampler.join().unwrap())
    });
    let requests = sent.load(Ordering::SeqCst);
    for share in [0.5, 0.99] {
        let (before, with) = (percentile(&alone, share), percentile(&loaded, share));
        println!(
            "honest client, p{}: {before:.1} ms alone, {with:.1} ms under load, ratio {:.2}",
            share * 100.0,
            with / before
        );
    }
    println!(
        "{requests} hostile requests, {} writes, {} honest queries in {seconds} s",
        written.load(Ordering::SeqCst),
        loaded.len()
    );
    // The first quarter warms up: caches fill to their bounds.
    let (early, late) = samples.split_at(samples.len() / 2);
    let early = &early[early.len() / 2..];
    for (name, of, slack) in [
        ("resident bytes", (|u: &Usage| u.resident_bytes) as fn(&Usage) -> u64, 48 << 20),
        ("descriptors", |u| u.descriptors, 64),
        ("files", |u| u.files, 200),
        ("bytes of log", |u| u.log_bytes, 64 << 10),
    ] {
        let (first, last) = (early.iter().map(of).max().unwrap(), late.iter().map(of).max().unwrap());
        println!("{name}: at most {first} in the second quarter, {last} in the second half");
        assert!(last <= first + first / 4 + slack, "{name} grow: {first}, then {last}");
    }
    assert_eq!(server.count("news"), 400);
    server.signal("-TERM");
}
