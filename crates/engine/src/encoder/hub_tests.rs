//! A hub on loopback: what is reported while files are fetched, and processes that fetch at the same time.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one file. The first `cut` downloads break in the middle; every download takes `time`.
struct Stub {
    address: String,
    downloads: Arc<AtomicUsize>,
}

impl Stub {
    fn new(bytes: Vec<u8>, cut: usize, time: Duration) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let downloads = Arc::new(AtomicUsize::new(0));
        let (bytes, counted) = (Arc::new(bytes), downloads.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (bytes, counted) = (bytes.clone(), counted.clone());
                // Requests do not wait for each other.
                std::thread::spawn(move || answer(stream, &bytes, cut, time, &counted));
            }
        });
        Stub { address, downloads }
    }

    fn hub<'a>(&self, cache: &Path, progress: &'a dyn Progress) -> Hub<'a> {
        let config = agent_config(TIMEOUT).unwrap().max_redirects(0).http_status_as_error(false);
        Hub {
            endpoint: self.address.clone(),
            name: "org/tiny".into(),
            revision: "main".into(),
            cache: cache.join("models--org--tiny"),
            offline: false,
            token: None,
            agent: Agent::new_with_config(config.build()),
            progress,
        }
    }
}

fn answer(mut stream: TcpStream, bytes: &[u8], cut: usize, time: Duration, downloads: &AtomicUsize) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(std::io::Result::ok);
    let request: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let etag = hex::encode(Sha256::digest(bytes));
    let head = format!("ETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n");
    if request[0].starts_with("HEAD") {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\n{head}Content-Length: {}\r\n\r\n", bytes.len());
        return;
    }
    let number = downloads.fetch_add(1, Ordering::Relaxed);
    std::thread::sleep(time);
    let range = request.iter().find_map(|line| Some(line.to_lowercase().strip_prefix("range: bytes=")?.to_owned()));
    let from: usize = range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
    let rest = &bytes[from..];
    let _ = write!(stream, "HTTP/1.1 {status}\r\n{head}Content-Length: {}\r\n\r\n", rest.len());
    let _ = stream.write_all(if number < cut { &rest[..rest.len() / 2] } else { rest });
}

/// The stages with their totals and the units that were reported in each, and the notes.
#[derive(Default)]
struct Reported {
    stages: Mutex<Vec<(String, Option<u64>, u64)>>,
    notes: Mutex<Vec<String>>,
}

impl Progress for Reported {
    fn stage(&self, name: &str, total: Option<u64>) {
        self.stages.lock().push((name.to_owned(), total, 0));
    }

    fn advance(&self, n: u64) {
        self.stages.lock().last_mut().expect("a stage comes first").2 += n;
    }

    fn note(&self, text: &str) {
        self.notes.lock().push(text.to_owned());
    }
}

#[test]
fn bytes_are_reported_and_a_continued_file_begins_where_it_stopped() {
    let bytes: Vec<u8> = (0..300_001u32).map(|i| (i * 7) as u8).collect();
    let (total, half) = (bytes.len() as u64, bytes.len() as u64 / 2);
    let stub = Stub::new(bytes.clone(), 1, Duration::ZERO);
    let (dir, reported) = (tempfile::tempdir().unwrap(), Reported::default());
    let path = stub.hub(dir.path(), &reported).file("model.safetensors").unwrap().unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    let stage = |done| ("fetching model.safetensors".to_owned(), Some(total), done);
    assert_eq!(*reported.stages.lock(), [stage(half), stage(total)]);
    let notes = reported.notes.lock();
    assert!(notes.len() == 1 && notes[0].contains("150000"), "{notes:?}");
}

#[test]
fn processes_that_fetch_together_fetch_once() {
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 13) as u8).collect();
    let stub = Stub::new(bytes.clone(), 0, Duration::from_millis(300));
    let dir = tempfile::tempdir().unwrap();
    let reported = Reported::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let path = stub.hub(dir.path(), &reported).file("model.safetensors").unwrap().unwrap();
                assert_eq!(std::fs::read(path).unwrap(), bytes);
            });
        }
    });
    assert_eq!(stub.downloads.load(Ordering::Relaxed), 1);
    assert!(reported.notes.lock().iter().any(|note| note.contains("another program fetches it")));
}

#[test]
fn a_time_to_wait_is_obeyed_within_a_bound() {
    let asked = |value: &str| {
        let response = Response::builder().header("Retry-After", value).body(Body::builder().data("")).unwrap();
        retry_after(&response)
    };
    assert_eq!(asked("7"), Some(Duration::from_secs(7)));
    assert_eq!(asked("Fri, 31 Dec 1999 23:59:59 GMT"), None);
    let wait = |asked| waiting_time(FIRST_WAIT, asked);
    assert_eq!(wait(None), FIRST_WAIT);
    assert_eq!(wait(Some(Duration::from_secs(7))), Duration::from_secs(7));
    assert_eq!(wait(Some(Duration::from_secs(86_400))), MAX_WAIT);
    assert_eq!(wait(Some(Duration::ZERO)), FIRST_WAIT);
}
