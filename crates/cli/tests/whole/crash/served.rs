//! Kills and failing I/O calls of the server, and the files it leaves.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::faults::FAULTS;
use super::shim::{Action, CHANGES, Shim};
use super::world::{Codes, State, one_of};
use super::{Draws, rounds};
use crate::bench::{Bench, corpus};
use crate::serve::Server;

const INDEX: &str = "/v1/indexes/notes";
const IDS: u64 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    Put,
    Delete,
    Backup,
    Train,
    DropAndCreate,
}

const OPERATIONS: [Operation; 5] =
    [Operation::Put, Operation::Delete, Operation::Backup, Operation::Train, Operation::DropAndCreate];

/// What the index holds: texts by id, or `None` if there is no index. The model changes with every training.
type Texts = Option<std::collections::BTreeMap<u64, String>>;

/// A server with its files, and the model of its index.
struct Served {
    bench: Bench,
    codes: Codes,
    texts: Texts,
    versions: usize,
}

/// A change, and the states it leads through.
struct Step {
    operation: Operation,
    requests: Vec<(&'static str, String, Value)>,
    states: Vec<Texts>,
}

impl Served {
    fn new() -> Served {
        let bench = Bench::new();
        std::fs::create_dir(bench.path("made")).unwrap();
        Served { bench, codes: Codes::default(), texts: None, versions: 0 }
    }

    fn start(&self, shim: &Shim) -> Server {
        let line = "serve --data made --listen 127.0.0.1:0 --json --set log=error --set cache=cache";
        let mut command = self.bench.command(line);
        shim.watch(&mut command, &self.bench.path("made"));
        Server::spawn(&mut command)
    }

    fn create() -> (&'static str, String, Value) {
        ("PUT", INDEX.into(), json!({ "encoder": "tiny", "bits": 32 }))
    }

    fn step(&mut self, operation: Operation, draws: &mut Draws) -> Step {
        let mut states = vec![self.texts.clone()];
        let mut requests = Vec::new();
        let mut after = self.texts.clone();
        if after.is_none() {
            requests.push(Served::create());
            after = Some(Default::default());
            states.push(after.clone());
        }
        let texts = after.as_mut().unwrap();
        // Training needs documents.
        let operation = if operation == Operation::Train && texts.len() < 2 { Operation::Put } else { operation };
        match operation {
            Operation::Put => {
                let mut documents = std::collections::BTreeMap::new();
                while documents.len() < 8 {
                    self.versions += 1;
                    let row: Value = serde_json::from_str(&corpus(self.versions, self.versions + 1)).unwrap();
                    let text = format!("{} {}", row["text"].as_str().unwrap(), self.versions);
                    documents.insert(draws.below(IDS), text);
                }
                let body: Vec<Value> = documents.iter().map(|(id, text)| json!({ "id": id, "text": text })).collect();
                requests.push(("PUT", format!("{INDEX}/documents"), json!({ "documents": body })));
                texts.extend(documents);
            }
            Operation::Delete => {
                let gone: Vec<u64> = (0..4).map(|_| draws.below(IDS)).collect();
                texts.retain(|id, _| !gone.contains(id));
                requests.push(("POST", format!("{INDEX}/documents/delete"), json!({ "ids": gone })));
            }
            Operation::Backup => requests.push(("POST", format!("{INDEX}/backups"), json!({}))),
            Operation::Train => {
                let bits = 16 << draws.below(2);
                requests.push(("POST", format!("{INDEX}/train"), json!({ "bits": bits, "epochs": 1 })));
            }
            Operation::DropAndCreate => {
                states.push(None);
                requests.push(("DELETE", INDEX.into(), Value::Null));
                requests.push(Served::create());
                after = Some(Default::default());
            }
        }
        states.push(after);
        Step { operation, requests, states }
    }

    /// Sends a step. `None`: the server was gone before the last answer. Otherwise the last status.
    fn send(&self, server: &Server, step: &Step) -> Option<(u16, Value)> {
        let mut last = (0, Value::Null);
        for (method, path, body) in &step.requests {
            last = server.try_call(method, path, body.clone())?;
            if last.0 >= 300 {
                return Some(last);
            }
            if path.ends_with("/train") {
                let path = format!("/v1/jobs/{}", last.1["id"]);
                loop {
                    let (_, job) = server.try_call("GET", &path, Value::Null)?;
                    if job["status"] != "running" {
                        last = (if job["status"] == "succeeded" { 200 } else { 500 }, job);
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                if last.0 >= 300 {
                    return Some(last);
                }
            }
        }
        Some(last)
    }

    /// The requests of a step that are left to do after one of them failed.
    fn retry(&self, step: &Step) -> Step {
        let mut requests = step.requests.clone();
        match (step.operation, self.texts.is_some()) {
            (Operation::DropAndCreate, false) => requests = vec![Served::create()],
            (_, true) if requests[0] == Served::create() => drop(requests.remove(0)),
            _ => {}
        }
        Step { operation: step.operation, requests, states: step.states[step.states.len() - 1..].to_vec() }
    }

    /// What the files hold, of which every byte is read.
    fn read(&mut self) -> Result<Texts, String> {
        let dir = self.bench.path("made/notes");
        if !dir.exists() {
            return Ok(None);
        }
        self.codes.read(&dir).map(|state| Some(state.texts)).map_err(|e| format!("unreadable: {e}"))
    }

    fn judge(&mut self, states: &[Texts]) -> Result<(), String> {
        let found = self.read()?;
        if !states.contains(&found) {
            let state = |texts: &Texts| State { model: String::new(), texts: texts.clone().unwrap_or_default() };
            let allowed: Vec<State> = states.iter().map(state).collect();
            return Err(format!("found {:?}: {:?}", found.is_some(), one_of(&state(&found), &allowed)));
        }
        self.texts = found;
        Ok(())
    }
}

#[test]
fn a_killed_server_keeps_what_it_acknowledged() {
    let Some(shim) = Shim::new() else { return };
    let (mut served, mut draws) = (Served::new(), Draws::new());
    let wanted = rounds("MICPQ_SERVER_KILLS", 15);
    let mut calls = HashMap::new();
    let (mut kills, mut runs) = (0, 0);
    shim.rest();
    let mut server = served.start(&shim);
    while kills < wanted {
        let operation = OPERATIONS[runs % OPERATIONS.len()];
        runs += 1;
        let step = served.step(operation, &mut draws);
        match calls.get(&operation) {
            None => shim.order(CHANGES, Action::Count, 0),
            Some(calls) => {
                let action = if draws.below(2) == 0 { Action::KillBefore } else { Action::KillAfter };
                shim.order(CHANGES, action, 1 + draws.below(*calls));
            }
        }
        let answer = served.send(&server, &step);
        let what = format!("run {runs}, {:?}, at call {}", step.operation, shim.seen());
        let Some((status, body)) = answer else {
            kills += 1;
            server.wait();
            served.judge(&step.states).unwrap_or_else(|e| panic!("{what}: {e}"));
            shim.rest();
            server = served.start(&shim);
            let count = served.texts.as_ref().map(|texts| texts.len() as u64);
            assert_eq!(server.try_call("GET", "/readyz", Value::Null).unwrap().1["status"], "ok", "{what}");
            if let Some(count) = count {
                assert_eq!(server.count("notes"), count, "{what}");
            }
            continue;
        };
        assert!(status < 300, "{what}: {status} {body}");
        calls.insert(operation, shim.seen().max(1));
        served.judge(&step.states[step.states.len() - 1..]).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    shim.rest();
    assert_eq!(server.stop(), Some(0));
    let left = std::fs::read_dir(served.bench.path("made")).unwrap().map(|e| e.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != "notes" && name != "backups").collect();
    assert!(left.is_empty(), "{left:?}");
    // A killed backup leaves a hidden folder, which the next start removes.
    let backups = std::fs::read_dir(served.bench.path("made/backups")).unwrap().map(|e| e.unwrap().file_name());
    let half: Vec<_> = backups.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert!(half.is_empty(), "{half:?}");
    eprintln!("{kills} kills of a server in {runs} changes; 0 lost, 0 ghosts, 0 unreadable");
}

#[test]
fn a_server_whose_io_fails_answers_and_takes_the_retry() {
    let Some(shim) = Shim::new() else { return };
    let (mut served, mut draws) = (Served::new(), Draws::new());
    let per_fault = rounds("MICPQ_SERVER_FAULTS", 1);
    let mut faults = 0;
    shim.rest();
    let mut server = served.start(&shim);
    for operation in OPERATIONS {
        for (name, kind, action) in FAULTS {
            let step = served.step(operation, &mut draws);
            shim.order(kind, Action::Count, 0);
            let (status, body) = served.send(&server, &step).unwrap();
            assert!(status < 300, "{operation:?}: {status} {body}");
            let seen = shim.seen();
            shim.rest();
            served.texts = step.states.last().unwrap().clone();
            let every = (seen / per_fault).max(1);
            for nth in (1..=seen).filter(|nth| nth % every == seen % every) {
                let step = served.step(operation, &mut draws);
                shim.order(kind, action, nth);
                let first = served.send(&server, &step);
                let what = format!("{name}, call {nth} of {seen}, {operation:?}: {first:?}");
                let (status, _) = first.unwrap_or_else(|| panic!("the server ended: {what}"));
                shim.rest();
                faults += 1;
                let states = if status < 300 { &step.states[step.states.len() - 1..] } else { &step.states[..] };
                served.judge(states).unwrap_or_else(|e| panic!("{what}\n{e}"));
                if status >= 300 {
                    let retry = served.retry(&step);
                    let (status, body) =
                        served.send(&server, &retry).unwrap_or_else(|| panic!("the server ended: {what}"));
                    assert!(status < 300, "the retry fails with {status} {body} after {what}");
                    served.judge(&retry.states).unwrap_or_else(|e| panic!("after the retry: {what}\n{e}"));
                }
            }
        }
        assert_eq!(server.stop(), Some(0));
        server = served.start(&shim);
    }
    eprintln!("{faults} failed calls of a server; every retry was taken");
}

/// Documents of a write of [`write_until`].
const PER_WRITE: u64 = 8;

/// The ids of the documents of a write.
fn ids_of(write: u64) -> std::ops::Range<u64> {
    write * PER_WRITE..(write + 1) * PER_WRITE
}

/// Sends one write after the other until it is told to stop. Returns the number and the status of each.
fn write_until(server: &Server, first: u64, done: &AtomicBool, acknowledged: &AtomicU64) -> Vec<(u64, u16)> {
    let mut writes = Vec::new();
    for write in first.. {
        if done.load(Ordering::SeqCst) {
            break;
        }
        let rows = ids_of(write).map(|id| json!({ "id": id, "text": format!("ship {id} brings oil") }));
        let body = json!({ "documents": rows.collect::<Vec<_>>() });
        let (status, _) = server.try_call("PUT", &format!("{INDEX}/documents"), body).expect("the server answers");
        writes.push((write, status));
        acknowledged.fetch_add(u64::from(status < 300), Ordering::SeqCst);
    }
    writes
}

#[test]
fn a_drop_or_create_that_fails_under_writes_leaves_a_whole_index_or_none() {
    const EIO: Action = Action::Fail(5);
    let Some(shim) = Shim::new() else { return };
    let mut served = Served::new();
    shim.rest();
    let mut server = served.start(&shim);
    // What fails of the drop, and what of the create after it: the calls, the paths that they are on, and which of them. An index
    // that is not dropped stays; one that cannot be put back is gone.
    let drops = [
        ("the rename of a drop", "n", "*/.notes.dropped", 1, true),
        ("the sync of a drop", "s", "*/made", 1, true),
        ("the sync of a drop and the way back", "sn", "@(*/made|*/made/notes)", 0, false),
    ];
    // A create first removes an empty directory of its name.
    let creates = [("the rename of a create", "n", "*/made/notes", 2), ("the sync of a create", "s", "*/made", 1)];
    for (round, (what, fault)) in
        drops.iter().map(|d| (d.0, Ok(d))).chain(creates.iter().map(|c| (c.0, Err(c)))).enumerate()
    {
        server.ok("PUT", INDEX, json!({ "encoder": "tiny", "bits": 32 }));
        let (done, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
        let (status, writes) = std::thread::scope(|scope| {
            let write = |first| write_until(&server, first, &done, &acknowledged);
            let clients = [0, 1].map(|client| scope.spawn(move || write(1000 * (2 * round as u64 + client))));
            let limit = Instant::now() + Duration::from_secs(60);
            while acknowledged.load(Ordering::SeqCst) < 4 && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(1));
            }
            if let Ok((_, calls, pattern, nth, _)) = fault {
                shim.order_at(pattern, calls, EIO, *nth);
            }
            let (status, _) = server.call("DELETE", INDEX, Value::Null);
            shim.rest();
            done.store(true, Ordering::SeqCst);
            (status, clients.map(|client| client.join().unwrap()).concat())
        });
        assert!(acknowledged.into_inner() >= 4, "{what}: {writes:?}");
        assert_eq!(status, if fault.is_ok() { 500 } else { 204 }, "{what}");
        if let Err((_, calls, pattern, nth)) = fault {
            shim.order_at(pattern, calls, EIO, *nth);
            let (status, body) = server.call("PUT", INDEX, json!({ "encoder": "tiny", "bits": 32 }));
            assert_eq!((status, shim.seen()), (500, *nth), "{what}: {body}");
            shim.rest();
        }
        let stays = matches!(fault, Ok((.., true)));
        for restarted in [false, true] {
            if restarted {
                drop(server);
                server = served.start(&shim);
            }
            assert_eq!(server.call("GET", INDEX, Value::Null).0, if stays { 200 } else { 404 }, "{what} {restarted}");
            let found = served.read().unwrap_or_else(|e| panic!("{what}: {e}"));
            let Some(texts) = found else {
                assert!(!stays, "{what}: the index is gone");
                continue;
            };
            assert!(stays && server.count("notes") == texts.len() as u64, "{what} {restarted}");
            let of_writes: BTreeSet<u64> = writes.iter().flat_map(|(write, _)| ids_of(*write)).collect();
            assert!(texts.keys().all(|id| of_writes.contains(id)), "{what}: ghosts");
            for (write, status) in &writes {
                let count = ids_of(*write).filter(|id| texts.contains_key(id)).count() as u64;
                let whole = count == PER_WRITE || count == 0 && *status >= 300;
                assert!(whole, "{what}: {count} documents of a write that was answered with {status}");
            }
        }
        if stays {
            server.ok("DELETE", INDEX, Value::Null);
        }
        // No write to the dropped index is in the next of its name, now and after a restart.
        server.ok("PUT", INDEX, json!({ "encoder": "tiny", "bits": 32 }));
        drop(server);
        server = served.start(&shim);
        assert_eq!(server.call("GET", "/readyz", Value::Null).1["status"], "ok", "{what}");
        assert_eq!((server.count("notes"), served.read().unwrap().unwrap().len()), (0, 0), "{what}");
        server.ok("DELETE", INDEX, Value::Null);
        let left: Vec<_> =
            std::fs::read_dir(served.bench.path("made")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{what}: {left:?}");
    }
}
