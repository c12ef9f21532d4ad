//! Encoders from a hub: a stub of it on loopback, with the answers of the real one and its failures.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::bench::{Bench, text};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request, as the stub saw it.
#[derive(Clone, Debug)]
struct Seen {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

/// An answer. `cut` sends so many bytes of the body only.
#[derive(Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    cut: Option<usize>,
}

impl Reply {
    fn status(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    fn with(mut self, name: &str, value: impl ToString) -> Reply {
        self.headers.push((name.into(), value.to_string()));
        self
    }
}

/// A server on loopback that remembers what it was asked.
struct Stub {
    address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Stub {
    fn new(answer: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let remembered = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let Some(request) = read(&stream) else { continue };
                let before = {
                    let mut seen = remembered.lock().unwrap();
                    let same = seen.iter().filter(|s| (&s.method, &s.path) == (&request.method, &request.path)).count();
                    seen.push(request.clone());
                    same
                };
                write(stream, &request, &answer(&request, before));
            }
        });
        Stub { address, seen }
    }

    fn seen(&self, path: &str) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.path.contains(path)).cloned().collect()
    }
}

fn read(stream: &TcpStream) -> Option<Seen> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let first = lines.next()?.ok()?;
    let mut parts = first.split(' ');
    let (method, path) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let headers = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
    let header = |line: String| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    Some(Seen { method, path, headers: headers.filter_map(header).collect() })
}

fn write(mut stream: TcpStream, request: &Seen, reply: &Reply) {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    if !reply.headers.iter().any(|(name, _)| name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    reply.headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    head += "\r\n";
    let _ = stream.write_all(head.as_bytes());
    if request.method != "HEAD" {
        let _ = stream.write_all(&reply.body[..reply.cut.unwrap_or(reply.body.len())]);
    }
}

/// The files of the tiny encoder, which is moved out of the directory of encoders.
fn files(bench: &Bench) -> HashMap<String, Vec<u8>> {
    let mut files = HashMap::new();
    for name in ["config.json", "model.safetensors", "vocab.txt"] {
        files.insert(name.to_owned(), std::fs::read(bench.path("models/tiny").join(name)).unwrap());
    }
    std::fs::remove_dir_all(bench.path("models/tiny")).unwrap();
    files
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The name that git gives to bytes.
fn git_sha1(bytes: &[u8]) -> String {
    let hash = Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize();
    hash.iter().map(|b| format!("{b:02x}")).collect()
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// What the hub says about a file.
fn described(name: &str, bytes: &[u8]) -> Reply {
    let etag = if is_large(name) { sha256(bytes) } else { git_sha1(bytes) };
    Reply { body: bytes.to_vec(), ..Reply::status(200) }
        .with("ETag", format!("\"{etag}\""))
        .with("X-Repo-Commit", COMMIT)
}

/// The hub's answer to a question for a small file: it is in a cache on the same host. There is no size of the file, and the
/// length is that of the answer's own text.
fn in_cache(repository: &str, name: &str, bytes: &[u8]) -> Reply {
    let to = format!("/api/resolve-cache/models/{repository}/{COMMIT}/{}?%2F{name}=", name.replace('/', "%2F"));
    let text = format!("Temporary Redirect. Redirecting to {to}");
    Reply { body: text.into_bytes(), ..Reply::status(307) }
        .with("Location", to)
        .with("X-Repo-Commit", COMMIT)
        .with("X-Linked-ETag", format!("\"{}\"", git_sha1(bytes)))
}

fn missing() -> Reply {
    Reply::status(404).with("X-Error-Code", "EntryNotFound")
}

/// The bytes that `Range` asks for, with 206, or all of them.
fn ranged(request: &Seen, bytes: &[u8]) -> Reply {
    let from =
        request.headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        Some(from) => Reply { body: bytes[from..].to_vec(), ..Reply::status(206) },
        None => Reply { body: bytes.to_vec(), ..Reply::status(200) },
    }
}

fn name_of(path: &str) -> &str {
    path.split_once("/resolve/").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, file)| file)
}

/// The file that a path in the hub's cache of small files names.
fn cached_name(path: &str) -> Option<String> {
    let (_, file) = path.strip_prefix("/api/resolve-cache/models/")?.split_once(COMMIT)?;
    Some(file.split('?').next()?.trim_start_matches('/').replace("%2F", "/"))
}

/// A hub of `org/tiny`. `special` may answer first.
fn hub(
    files: HashMap<String, Vec<u8>>,
    special: impl Fn(&Seen, usize) -> Option<Reply> + Send + Sync + 'static,
) -> Stub {
    Stub::new(move |request, before| {
        if let Some(reply) = special(request, before) {
            return reply;
        }
        let (name, cached) = match cached_name(&request.path) {
            Some(name) => (name, true),
            None => (name_of(&request.path).to_owned(), false),
        };
        let repository = request.path.split("/resolve/").next().unwrap_or_default().trim_matches('/');
        files.get(&name).map_or_else(missing, |bytes| match request.method.as_str() {
            _ if !cached && !is_large(&name) => in_cache(repository, &name, bytes),
            "HEAD" => described(&name, bytes),
            _ => ranged(request, bytes),
        })
    })
}

fn run(bench: &Bench, line: &str, hub: &Stub, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = bench.command(line);
    command.env("HF_ENDPOINT", &hub.address).env("HF_HOME", bench.path("hf"));
    for name in ["HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"] {
        command.env_remove(name);
    }
    command.envs(settings.iter().copied());
    let output = command.output().unwrap();
    (output.status.code(), text(&output.stderr) + &text(&output.stdout))
}

#[test]
fn an_encoder_is_fetched_once_into_the_shared_cache_and_used_by_its_name() {
    let bench = Bench::new();
    let files = files(&bench);
    let weights = files["model.safetensors"].clone();
    let hub = hub(files, |_, _| None);
    // Naming it is enough, with a word.
    let (code, out) = run(&bench, "encode news.jsonl --encoder org/tiny -o one.npy", &hub, &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("encoder org/tiny is not on this machine; fetching it"), "{out}");
    let blob = bench.path("hf/hub/models--org--tiny/blobs").join(sha256(&weights));
    assert_eq!(std::fs::read(&blob).unwrap(), weights);
    let reference = std::fs::read_to_string(bench.path("hf/hub/models--org--tiny/refs/main")).unwrap();
    assert_eq!(reference, COMMIT);
    let snapshot = bench.path("hf/hub/models--org--tiny/snapshots").join(COMMIT).join("model.safetensors");
    assert_eq!(std::fs::canonicalize(&snapshot).unwrap(), std::fs::canonicalize(&blob).unwrap());
    // One copy: the directory of encoders links to it.
    let own = bench.path("models/org--tiny/model.safetensors");
    assert!(own.symlink_metadata().unwrap().file_type().is_symlink());
    assert_eq!(std::fs::canonicalize(own).unwrap(), std::fs::canonicalize(&blob).unwrap());

    // A second encoder of the same files fetches no weights; a revision is another directory.
    let (code, out) = run(&bench, "encoder pull org/tiny@v1.0", &hub, &[]);
    assert_eq!(code, Some(0), "{out}");
    assert_eq!(hub.seen("model.safetensors").iter().filter(|seen| seen.method == "GET").count(), 1);
    assert!(hub.seen("/org/tiny/resolve/v1.0/").iter().any(|seen| seen.path.ends_with("config.json")));
    assert!(bench.path("models/org--tiny@v1.0/config.json").exists());

    // Offline, the cache is enough, and nobody is asked.
    std::fs::remove_dir_all(bench.path("models")).unwrap();
    let asked = hub.seen("").len();
    let (code, out) = run(&bench, "encode news.jsonl --encoder org/tiny -o two.npy", &hub, &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(code, Some(0), "{out}");
    assert_eq!(bench.bytes("one.npy"), bench.bytes("two.npy"));
    let (code, out) = run(&bench, "encoder pull org/other", &hub, &[("HF_HUB_OFFLINE", "1")]);
    assert!(code == Some(1) && out.contains("HF_HUB_OFFLINE") && out.contains("is not in the cache"), "{out}");
    assert_eq!(hub.seen("").len(), asked);
}

#[test]
fn redirects_are_followed_and_the_token_stays_with_the_hub() {
    let bench = Bench::new();
    let files = files(&bench);
    let weights = files["model.safetensors"].clone();
    let bytes = weights.clone();
    // Another host: its port differs.
    let store = Stub::new(move |request, _| ranged(request, &bytes));
    let (to, etag, size) = (format!("{}/blob?sign=1", store.address), sha256(&weights), weights.len());
    let hub = hub(files, move |request, _| {
        // The repository was renamed.
        if let Some(rest) = request.path.strip_prefix("/old/tiny/") {
            return Some(Reply::status(307).with("Location", format!("/org/tiny/{rest}")));
        }
        (name_of(&request.path) == "model.safetensors").then(|| {
            Reply::status(302)
                .with("Location", &to)
                .with("X-Repo-Commit", COMMIT)
                .with("X-Linked-ETag", format!("\"{etag}\""))
                .with("X-Linked-Size", size)
        })
    });
    std::fs::create_dir(bench.path("hf")).unwrap();
    std::fs::write(bench.path("hf/token"), "from-file\n").unwrap();
    for (name, settings, token) in
        [("old/tiny", &[("HF_TOKEN", "secret")][..], "Bearer secret"), ("org/tiny", &[], "Bearer from-file")]
    {
        let (code, out) = run(&bench, &format!("encoder pull {name}"), &hub, settings);
        assert_eq!(code, Some(0), "{out}");
        assert!(!out.contains("secret"), "{out}");
        assert!(hub.seen("").iter().any(|seen| seen.headers.get("authorization").is_some_and(|t| t == token)));
    }
    let fetched = store.seen("/blob?sign=1");
    assert!(
        !fetched.is_empty() && fetched.iter().all(|seen| !seen.headers.contains_key("authorization")),
        "{fetched:?}"
    );
}

#[test]
fn a_cut_download_continues_and_a_failing_server_is_asked_again() {
    let bench = Bench::new();
    let files = files(&bench);
    let weights = files["model.safetensors"].clone();
    let half = weights.len() / 2;
    let bytes = weights.clone();
    let hub = hub(files, move |request, before| match (request.method.as_str(), name_of(&request.path), before) {
        // The description fails once, the first download breaks in the middle, the second is refused.
        ("HEAD", "config.json", 0) => Some(Reply::status(503)),
        ("GET", "model.safetensors", 0) => Some(Reply { body: bytes.clone(), cut: Some(half), ..Reply::status(200) }),
        ("GET", "model.safetensors", 1) => Some(Reply::status(500)),
        _ => None,
    });
    let (code, out) = run(&bench, "encoder pull org/tiny", &hub, &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("the hub answers 503; trying again"), "{out}");
    let gets: Vec<Seen> = hub.seen("model.safetensors").into_iter().filter(|seen| seen.method == "GET").collect();
    let ranges: Vec<Option<&str>> = gets.iter().map(|seen| seen.headers.get("range").map(String::as_str)).collect();
    let rest = format!("bytes={half}-");
    assert_eq!(ranges, [None, Some(rest.as_str()), Some(rest.as_str())], "{out}");
    assert_eq!(bench.bytes("models/org--tiny/model.safetensors"), weights);
}

#[test]
fn damaged_refused_and_missing_encoders_are_told_apart() {
    let refused = |special: fn(&Seen, usize) -> Option<Reply>, settings: &[(&str, &str)]| {
        let bench = Bench::new();
        let hub = hub(files(&bench), special);
        let (code, out) = run(&bench, "encoder pull org/tiny", &hub, settings);
        assert_eq!(code, Some(1), "{out}");
        assert!(!bench.path("models/org--tiny").exists());
        let blobs = std::fs::read_dir(bench.path("hf/hub/models--org--tiny/blobs"));
        let blobs = blobs.map_or(0, |found| found.flatten().filter(|e| e.file_name().len() == 64).count());
        assert_eq!(blobs, 0, "no weights are taken for whole");
        out
    };
    let gated = |_: &Seen, _: usize| Some(Reply::status(401).with("X-Error-Code", "GatedRepo"));
    let out = refused(gated, &[]);
    assert!(out.contains("gated") && out.contains("set HF_TOKEN"), "{out}");
    let out = refused(|_, _| Some(Reply::status(403)), &[("HF_TOKEN", "weak")]);
    assert!(out.contains("accept its terms") && !out.contains("weak"), "{out}");
    let out = refused(|_, _| Some(Reply::status(404).with("X-Error-Code", "RepoNotFound")), &[]);
    assert!(out.contains("does not exist"), "{out}");
    let out = refused(|_, _| Some(Reply::status(404).with("X-Error-Code", "RevisionNotFound")), &[]);
    assert!(out.contains("has no revision main"), "{out}");
    // An optional file that fails is not a missing one.
    let broken = |seen: &Seen, _: usize| (name_of(&seen.path) == "modules.json").then(|| Reply::status(500));
    let out = refused(broken, &[]);
    assert!(out.contains("modules.json could not be fetched") && out.contains("500"), "{out}");
    // No weights in a format that is read.
    let none = |seen: &Seen, _: usize| (name_of(&seen.path) == "model.safetensors").then(missing);
    assert!(refused(none, &[]).contains("has no model.safetensors"));
}

#[test]
fn bytes_with_another_checksum_are_fetched_again_and_never_used() {
    let bench = Bench::new();
    let files = files(&bench);
    let mut wrong = files["model.safetensors"].clone();
    *wrong.last_mut().unwrap() ^= 1;
    let damaged = wrong.clone();
    // Damaged once on the way: the second download is good.
    let passing = move |seen: &Seen, before: usize| {
        let first = seen.method == "GET" && name_of(&seen.path) == "model.safetensors" && before == 0;
        first.then(|| Reply { body: damaged.clone(), ..Reply::status(200) })
    };
    let (code, out) = run(&bench, "encoder pull org/tiny", &hub(files.clone(), passing), &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("has SHA-256") && out.contains("trying again"), "{out}");
    // Damaged at every attempt.
    std::fs::remove_dir_all(bench.path("hf")).unwrap();
    std::fs::remove_dir_all(bench.path("models")).unwrap();
    let always = move |seen: &Seen, _: usize| {
        let weights = seen.method == "GET" && name_of(&seen.path) == "model.safetensors";
        weights.then(|| Reply { body: wrong.clone(), ..Reply::status(200) })
    };
    let (code, out) = run(&bench, "encoder pull org/tiny", &hub(files, always), &[]);
    assert!(code == Some(1) && out.contains("has SHA-256") && out.contains("pull again"), "{out}");
    assert!(!bench.path("models/org--tiny").exists());
}

#[test]
fn a_busy_hub_is_given_the_time_it_asks_for() {
    let bench = Bench::new();
    let busy = |request: &Seen, before: usize| {
        let first = request.method == "HEAD" && name_of(&request.path) == "config.json" && before == 0;
        first.then(|| Reply::status(429).with("Retry-After", 1))
    };
    let hub = hub(files(&bench), busy);
    let (code, out) = run(&bench, "encoder pull org/tiny", &hub, &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("the hub answers 429; trying again in 1 s"), "{out}");
}

#[test]
fn a_small_file_with_other_bytes_than_its_name_in_git_is_refused() {
    let bench = Bench::new();
    let files = files(&bench);
    let mut wrong = files["vocab.txt"].clone();
    wrong[0] ^= 1;
    let damaged = move |request: &Seen, _: usize| {
        let vocabulary = request.method == "GET" && cached_name(&request.path).as_deref() == Some("vocab.txt");
        vocabulary.then(|| Reply { body: wrong.clone(), ..Reply::status(200) })
    };
    let (code, out) = run(&bench, "encoder pull org/tiny", &hub(files, damaged), &[]);
    assert!(code == Some(1) && out.contains("vocab.txt: has git's SHA-1") && out.contains("pull again"), "{out}");
    assert!(!bench.path("models/org--tiny").exists());
}

/// The files of a small encoder of the engine's tests, by their names below it.
fn files_of(encoder: &str) -> HashMap<String, Vec<u8>> {
    fn collect(root: &Path, folder: &Path, files: &mut HashMap<String, Vec<u8>>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                collect(root, &path, files);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/encoders").join(encoder);
    let mut files = HashMap::new();
    collect(&root, &root, &mut files);
    files.remove("golden.json");
    files
}

/// The weights of an encoder in two files, and the list of them.
fn in_parts(files: &mut HashMap<String, Vec<u8>>) {
    let bytes = files.remove("model.safetensors").unwrap();
    let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut list = serde_json::Map::new();
    for part in 0..2usize {
        let name = format!("model-0000{}-of-00002.safetensors", part + 1);
        let own = whole.iter().enumerate().filter(|(i, _)| i % 2 == part).map(|(_, tensor)| tensor);
        let own: Vec<_> = own.map(|(tensor, view)| (tensor.to_owned(), view)).collect();
        own.iter().for_each(|(tensor, _)| drop(list.insert(tensor.clone(), name.clone().into())));
        files.insert(name, safetensors::serialize(own, None).unwrap());
    }
    let list = serde_json::json!({ "metadata": {}, "weight_map": list });
    files.insert("model.safetensors.index.json".into(), list.to_string().into_bytes());
}

#[test]
fn weights_in_parts_and_modules_in_folders_are_fetched_whole() {
    let bench = Bench::new();
    let mut files = files_of("distilbert");
    for (name, bytes) in &files {
        let path = bench.path("local").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    bench.ok("encode news.jsonl --encoder ./local --precision f32 -o local.npy");
    in_parts(&mut files);
    let names: Vec<String> = files.keys().cloned().collect();
    assert!(names.iter().any(|name| name == "2_Dense/model.safetensors") && names.len() > 8, "{names:?}");
    let hub = hub(files, |_, _| None);
    let (code, out) = run(&bench, "encode news.jsonl --encoder org/tiny --precision f32 -o pulled.npy", &hub, &[]);
    assert_eq!(code, Some(0), "{out}");
    assert_eq!(bench.bytes("pulled.npy"), bench.bytes("local.npy"));
    for name in names.iter().filter(|name| name.contains("safetensors")) {
        assert!(bench.path("models/org--tiny").join(name).exists(), "{name}");
    }
}
