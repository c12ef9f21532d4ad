//! Several clients write, delete and read the same documents while the index is trained, backed up, dropped, created again, and
//! the server is killed. Each document's history must be linearizable: every answer fits one order of the operations, in
//! which each takes effect at one moment between its request and its answer.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Draws, rounds};
use crate::bench::Bench;
use crate::serve::Server;

/// What an operation did to one document: a version is the number in its text, `None` that there is no document.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Write(Option<u64>),
    Read(Option<u64>),
}

#[derive(Clone, Debug)]
struct Event {
    begun: u64,
    /// `u64::MAX` if the answer never came: it may have taken effect at any later moment, or never.
    ended: u64,
    act: Act,
}

/// Whether one order explains every answer. Depth-first over the sets of operations that have taken effect (Wing and Gong).
fn linearizable(events: &[Event]) -> bool {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.begun);
    // A lost read tells nothing.
    events.retain(|event| event.ended != u64::MAX || matches!(event.act, Act::Write(_)));
    let mut visited = HashSet::new();
    let mut stack = vec![(vec![false; events.len()], None)];
    while let Some((mut done, state)) = stack.pop() {
        // A read that fits may as well take effect now.
        let mut candidates;
        loop {
            let open = (0..events.len()).filter(|i| !done[*i]);
            let Some(limit) = open.clone().map(|i| events[i].ended).min().filter(|end| *end != u64::MAX) else {
                return true;
            };
            candidates = open.filter(|i| events[*i].begun <= limit).collect::<Vec<_>>();
            match candidates.iter().find(|i| events[**i].act == Act::Read(state)) {
                Some(read) => done[*read] = true,
                None => break,
            }
        }
        for i in candidates {
            if let Act::Write(version) = events[i].act {
                let mut next = done.clone();
                next[i] = true;
                if visited.insert((next.clone(), version)) {
                    stack.push((next, version));
                }
            }
        }
    }
    false
}

#[test]
fn the_checker_tells_right_histories_from_wrong_ones() {
    let event = |begun, ended, act| Event { begun, ended, act };
    let (write, read) = (|v| Act::Write(Some(v)), |v| Act::Read(Some(v)));
    let lost = u64::MAX;
    let right = [
        vec![event(0, 1, Act::Read(None)), event(2, 5, write(1)), event(3, 4, read(1)), event(6, 7, read(1))],
        vec![event(0, 9, write(1)), event(0, 9, write(2)), event(3, 4, read(2)), event(5, 6, read(1))],
        vec![event(0, lost, write(1)), event(5, 6, Act::Read(None)), event(7, 8, read(1))],
        vec![
            event(0, 1, write(1)),
            event(2, lost, Act::Write(None)),
            event(4, 5, read(1)),
            event(6, 7, Act::Read(None)),
        ],
    ];
    for history in right {
        assert!(linearizable(&history), "{history:?}");
    }
    let wrong = [
        // Lost, ghost, stale, and back in time.
        vec![event(0, 1, write(1)), event(2, 3, Act::Read(None))],
        vec![event(0, 1, read(1))],
        vec![event(0, 1, write(1)), event(2, 3, write(2)), event(4, 5, read(1))],
        vec![event(0, 9, write(1)), event(1, 2, read(1)), event(3, 4, Act::Read(None))],
        // A lost write takes effect once.
        vec![event(0, lost, write(1)), event(1, 2, read(1)), event(3, 4, Act::Write(None)), event(5, 6, read(1))],
    ];
    for history in wrong {
        assert!(!linearizable(&history), "{history:?}");
    }
}

const KEYS: u64 = 6;
const CLIENTS: u64 = 4;
const INDEX: &str = "/v1/indexes/notes";

/// The server of the moment, and what its clients have seen.
struct Run {
    server: RwLock<Option<Server>>,
    began: Instant,
    events: Mutex<HashMap<u64, Vec<Event>>>,
    versions: AtomicU64,
    done: AtomicBool,
    unexpected: Mutex<Vec<String>>,
}

impl Run {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn call(&self, method: &str, path: &str, body: Value) -> Option<(u16, Value)> {
        let server = self.server.read().unwrap();
        let answer = server.as_ref()?.try_call(method, path, body);
        if let Some((status, body)) = &answer
            && *status >= 500
        {
            self.unexpected.lock().unwrap().push(format!("{method} {path}: {status} {body}"));
        }
        answer
    }

    fn record(&self, keys: impl IntoIterator<Item = u64>, event: Event) {
        let mut events = self.events.lock().unwrap();
        for key in keys {
            events.entry(key).or_default().push(event.clone());
        }
    }

    /// One client: puts, deletes and reads of random documents.
    fn client(&self, mut draws: Draws) {
        while !self.done.load(Ordering::SeqCst) {
            let key = draws.below(KEYS);
            let document = format!("{INDEX}/documents/{key}");
            let begun = self.now();
            let (act, answer) = match draws.below(4) {
                0 => (Act::Write(None), self.call("DELETE", &document, Value::Null)),
                1 => {
                    let version = self.versions.fetch_add(1, Ordering::SeqCst) + 1;
                    let body = json!({ "documents": [{ "id": key, "text": format!("oil barrel {version}") }] });
                    (Act::Write(Some(version)), self.call("PUT", &format!("{INDEX}/documents"), body))
                }
                _ => match self.call("GET", &document, Value::Null) {
                    Some((200, body)) => {
                        let version = body["text"].as_str().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
                        (Act::Read(Some(version)), Some((200, body)))
                    }
                    answer => (Act::Read(None), answer),
                },
            };
            let ended = self.now();
            match answer {
                None => {
                    self.record([key], Event { begun, ended: u64::MAX, act });
                    std::thread::sleep(Duration::from_millis(5));
                }
                // Not found is the answer for a document that is not there, and for any document while there is no index. A
                // write to no index has no effect.
                Some((404, body)) if matches!(act, Act::Write(_)) => {
                    let code = body["error"]["code"].as_str().unwrap_or_default();
                    if code != "unknown_index" {
                        self.record([key], Event { begun, ended, act: Act::Read(None) });
                    }
                }
                Some((200 | 204 | 404, _)) => self.record([key], Event { begun, ended, act }),
                // Refused without effect.
                Some((409 | 429, _)) => {}
                Some((status, body)) => self.unexpected.lock().unwrap().push(format!("{act:?}: {status} {body}")),
            }
        }
    }

    /// Trains, backs up, drops and creates the index, and kills the server.
    fn lifecycle(&self, bench: &Bench, mut draws: Draws) -> HashMap<&'static str, u64> {
        let mut counts = HashMap::new();
        while !self.done.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(100 + draws.below(400)));
            let (name, answer) = match draws.below(5) {
                0 => {
                    let bits = 16 << draws.below(2);
                    let training = json!({ "bits": bits, "epochs": 1 });
                    ("train", self.call("POST", &format!("{INDEX}/train"), training))
                }
                1 => ("backup", self.call("POST", &format!("{INDEX}/backups"), json!({}))),
                2 => {
                    let begun = self.now();
                    let answer = self.call("DELETE", INDEX, Value::Null);
                    let ended = self.now();
                    match &answer {
                        Some((204, _)) => self.record(0..KEYS, Event { begun, ended, act: Act::Write(None) }),
                        None => self.record(0..KEYS, Event { begun, ended: u64::MAX, act: Act::Write(None) }),
                        _ => {}
                    }
                    self.call("PUT", INDEX, json!({ "encoder": "tiny", "bits": 32 }));
                    ("drop and create", answer)
                }
                3 => ("pause", Some((200, Value::Null))),
                _ => {
                    self.server.read().unwrap().as_ref().unwrap().signal("-KILL");
                    let mut server = self.server.write().unwrap();
                    server.as_mut().unwrap().wait();
                    *server = Some(start(bench));
                    ("kill", Some((200, Value::Null)))
                }
            };
            if name == "pause" {
                let server = self.server.read().unwrap();
                server.as_ref().unwrap().signal("-STOP");
                std::thread::sleep(Duration::from_millis(draws.below(300)));
                server.as_ref().unwrap().signal("-CONT");
            }
            if answer.is_some_and(|(status, _)| status < 300) {
                *counts.entry(name).or_default() += 1;
            }
        }
        counts
    }
}

fn start(bench: &Bench) -> Server {
    Server::start(bench, "--data made --set cache=cache")
}

#[test]
fn histories_of_concurrent_clients_are_linearizable() {
    let bench = Bench::new();
    let seconds = rounds("MICPQ_HISTORY_SECONDS", 6);
    let run = Run {
        server: RwLock::new(Some(start(&bench))),
        began: Instant::now(),
        events: Mutex::default(),
        versions: AtomicU64::new(0),
        done: AtomicBool::new(false),
        unexpected: Mutex::default(),
    };
    assert_eq!(run.call("PUT", INDEX, json!({ "encoder": "tiny", "bits": 32 })).unwrap().0, 201);
    let mut draws = Draws::new();
    let counts = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let own = Draws(draws.below(u64::MAX) | 1);
            scope.spawn(|| run.client(own));
        }
        let own = Draws(draws.below(u64::MAX) | 1);
        let lifecycle = scope.spawn(|| run.lifecycle(&bench, own));
        std::thread::sleep(Duration::from_secs(seconds));
        run.done.store(true, Ordering::SeqCst);
        lifecycle.join().unwrap()
    });
    let unexpected = run.unexpected.into_inner().unwrap();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    let events = run.events.into_inner().unwrap();
    let operations: usize = events.values().map(Vec::len).sum();
    for (key, events) in &events {
        assert!(linearizable(events), "document {key}: no order explains {events:?}");
    }
    assert!(operations > 100, "{operations}");
    drop(run.server);
    eprintln!("{operations} operations on {KEYS} documents by {CLIENTS} clients, beside {counts:?}: linearizable");
}
