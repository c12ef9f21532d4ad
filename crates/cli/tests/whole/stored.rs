//! Backups in object stores: a folder, and S3 as moto has it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{Bench, TINY, corpus, text};

/// A place for backups, and the environment that reaches it.
struct Store {
    url: String,
    environment: Vec<(&'static str, String)>,
    server: Option<Child>,
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn folder(bench: &Bench) -> Store {
    let url = format!("file://{}", bench.path("store").display());
    Store { url, environment: Vec::new(), server: None }
}

/// moto's server with an empty bucket.
fn moto(program: &str) -> Store {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let server = command.spawn().unwrap();
    let store = Store {
        url: "s3://backups/news/daily".into(),
        environment: vec![
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_ACCESS_KEY_ID", "test".into()),
            ("AWS_SECRET_ACCESS_KEY", "test".into()),
            ("AWS_REGION", "us-east-1".into()),
        ],
        server: Some(server),
    };
    let started = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(_) => assert!(started.elapsed() < Duration::from_secs(120), "moto does not start"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    write!(stream, "PUT /backups HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    store
}

impl Store {
    fn run(&self, bench: &Bench, line: &str) -> (Option<i32>, String, String) {
        let mut command = bench.command(line);
        command.envs(self.environment.iter().cloned());
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn json(&self, bench: &Bench, line: &str) -> Vec<Value> {
        let (code, out, err) = self.run(bench, &format!("{line} --json"));
        assert_eq!(code, Some(0), "{line}\n{out}\n{err}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn fails(&self, bench: &Bench, line: &str, expected: i32) -> String {
        let (code, _, err) = self.run(bench, line);
        assert_eq!(code, Some(expected), "{line}\n{err}");
        assert!(!err.contains("panicked"), "{line}\n{err}");
        err
    }

    fn names(&self, bench: &Bench) -> Vec<String> {
        let listed = self.json(bench, &format!("index backups {}", self.url));
        listed.iter().map(|backup| backup["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn built() -> Bench {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o news.micpq"));
    bench
}

/// Backs up three states of an index, and restores them.
fn keep_and_restore(bench: &Bench, store: &Store) {
    let url = &store.url;
    let none = store.fails(bench, &format!("index restore {url} nothing.micpq"), 1);
    assert!(none.contains("holds no backup"), "{none}");
    let first = &store.json(bench, &format!("index backup news.micpq {url}"))[0];
    assert_eq!((&first["documents"], &first["uploaded_files"]), (&400.into(), &first["files"]));
    assert_eq!(first["uploaded_bytes"], first["bytes"]);
    let before = bench.json("search news.micpq 'oil barrel' -k 1000");

    // What did not change is not uploaded again.
    std::fs::write(bench.path("more.jsonl"), corpus(400, 440)).unwrap();
    bench.ok("index add news.micpq more.jsonl");
    let second = &store.json(bench, &format!("index backup news.micpq {url}"))[0];
    assert_eq!(second["documents"], 440);
    assert!(second["uploaded_bytes"].as_u64().unwrap() < second["bytes"].as_u64().unwrap() / 2, "{second}");
    let after = bench.json("search news.micpq 'oil barrel' -k 1000");
    assert_eq!(store.names(bench), [first["name"].as_str().unwrap(), second["name"].as_str().unwrap()]);

    // The newest, or the one that is named, as they were.
    assert_eq!(store.json(bench, &format!("index restore {url} new.micpq"))[0]["documents"], 440);
    assert_eq!(bench.json("search new.micpq 'oil barrel' -k 1000"), after);
    let name = first["name"].as_str().unwrap();
    let taken = store.fails(bench, &format!("index restore {url} new.micpq --name {name}"), 1);
    assert!(taken.contains("already holds an index"), "{taken}");
    store.json(bench, &format!("index restore {url} new.micpq --name {name} --replace"));
    assert_eq!(bench.json("search new.micpq 'oil barrel' -k 1000"), before);
    assert_eq!(bench.json("index verify new.micpq")[0]["sound"], true);
    // Both copies can be written to.
    bench.ok("index delete new.micpq 3");

    // Only the newest stay, and a restored backup needs no file that went.
    bench.ok("index delete news.micpq --filter 'year:1988'");
    bench.ok("index compact news.micpq");
    let third = &store.json(bench, &format!("index backup news.micpq {url} --keep 1"))[0];
    assert_eq!(third["removed"].as_array().unwrap().len(), 2);
    assert_eq!(store.names(bench), [third["name"].as_str().unwrap()]);
    store.json(bench, &format!("index restore {url} last.micpq"));
    let expected = bench.json("search news.micpq 'oil barrel' -k 1000");
    assert_eq!(bench.json("search last.micpq 'oil barrel' -k 1000"), expected);
    let unknown = store.fails(bench, &format!("index restore {url} x.micpq --name {name}"), 1);
    assert!(unknown.contains(name) && unknown.contains(third["name"].as_str().unwrap()), "{unknown}");
    let left = std::fs::read_dir(bench.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.contains(".micpq-")).count(), 0);
}

#[test]
fn a_folder_keeps_backups_that_share_files() {
    let bench = built();
    let store = folder(&bench);
    keep_and_restore(&bench, &store);
    // One file for every file of the only backup, whose contents differ.
    let files = std::fs::read_dir(bench.path("store/files")).unwrap().count();
    let listed = &store.json(&bench, &format!("index backups {}", store.url))[0];
    assert!(files as u64 <= listed["files"].as_u64().unwrap(), "{files} {listed}");
}

#[test]
fn a_name_with_a_slash_at_its_end_is_the_same_name() {
    let bench = built();
    let store = folder(&bench);
    let url = &store.url;
    store.json(&bench, &format!("index backup news.micpq/ {url}"));
    store.json(&bench, &format!("index restore {url} new.micpq/"));
    store.json(&bench, &format!("index restore {url} new.micpq/ --replace"));
    assert_eq!(bench.json("search new.micpq/ oil -k 50"), bench.json("search news.micpq oil -k 50"));
    assert_eq!(bench.json("index verify new.micpq/")[0]["sound"], true);
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 -o made.micpq/"));
    assert_eq!(bench.json("index verify made.micpq")[0]["sound"], true);
    let mut left: Vec<String> =
        std::fs::read_dir(bench.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.retain(|name| name.contains(".micpq"));
    left.sort();
    assert_eq!(left, ["made.micpq", "new.micpq", "news.micpq"]);
}

/// The manifests, and the files, of a folder with backups.
fn stored(bench: &Bench) -> [Vec<String>; 2] {
    ["store/backups", "store/files"].map(|folder| {
        let names = std::fs::read_dir(bench.path(folder)).into_iter().flatten();
        let mut names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    })
}

/// Starts a command and kills it with SIGKILL as soon as the folder is in a state. Returns whether it was killed, and not
/// faster than that.
fn kill_when(bench: &Bench, line: &str, reached: impl Fn(&[Vec<String>; 2]) -> bool) -> bool {
    let mut command = bench.command(line);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    loop {
        if reached(&stored(bench)) {
            child.kill().unwrap();
            return !child.wait().unwrap().success();
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::yield_now();
    }
}

/// The newest backup is that of the index as it is now.
fn restores_as(bench: &Bench, store: &Store, name: &str, expected: &[Value]) {
    store.json(bench, &format!("index restore {} {name} --replace", store.url));
    assert_eq!(bench.json(&format!("search {name} 'oil barrel' -k 1000")), expected);
    assert_eq!(bench.json(&format!("index verify {name}"))[0]["sound"], true);
}

#[test]
fn a_killed_upload_leaves_no_backup_and_the_next_run_completes_it() {
    let bench = built();
    let store = folder(&bench);
    let line = format!("index backup news.micpq {}", store.url);
    // A file that takes a while, so that a kill lands in it.
    let large: Vec<u8> = (0..150_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(bench.path("news.micpq/model/query_encoder.safetensors"), &large).unwrap();
    let expected = bench.json("search news.micpq 'oil barrel' -k 1000");
    let mut kills = 0;
    // Later and later: a kill with the first file there, the second, and so on, each after what the runs before it left.
    for files in 1..6 {
        if kill_when(&bench, &line, |[_, found]| found.len() >= files) {
            kills += 1;
            let [manifests, found] = stored(&bench);
            assert!(!found.is_empty(), "the kill came while files were uploaded");
            if manifests.is_empty() {
                let none = store.fails(&bench, &format!("index restore {} none.micpq", store.url), 1);
                assert!(none.contains("holds no backup"), "{none}");
                assert!(!bench.path("none.micpq").exists());
            }
        }
    }
    assert!(kills > 0, "no kill landed");
    let done = &store.json(&bench, &line)[0];
    assert!(done["uploaded_files"].as_u64() <= done["files"].as_u64(), "{done}");
    restores_as(&bench, &store, "new.micpq", &expected);
    assert!(bench.bytes("new.micpq/model/query_encoder.safetensors") == large);
    // Parts of files that a killed run left are removed when they are old.
    let unfinished = || stored(&bench)[1].iter().filter(|name| name.contains('#')).count();
    let week = std::time::SystemTime::now() - Duration::from_secs(8 * 86_400);
    std::fs::write(bench.path("store/files/0000#7"), "young").unwrap();
    for name in stored(&bench)[1].iter().filter(|name| name.contains('#') && *name != "0000#7") {
        std::fs::File::options()
            .write(true)
            .open(bench.path("store/files").join(name))
            .unwrap()
            .set_modified(week)
            .unwrap();
    }
    std::fs::write(bench.path("store/files/0000#8"), "old").unwrap();
    std::fs::File::options().write(true).open(bench.path("store/files/0000#8")).unwrap().set_modified(week).unwrap();
    store.json(&bench, &format!("{line} --keep 1"));
    assert_eq!(unfinished(), 1, "{:?}", stored(&bench));
    restores_as(&bench, &store, "new.micpq", &expected);
    // The next run removes what a killed one left beside the index.
    let left = std::fs::read_dir(bench.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.contains("-backup")).count(), 0);
}

#[test]
fn a_kill_while_old_backups_are_removed_loses_none_that_is_listed() {
    let bench = built();
    let store = folder(&bench);
    let url = store.url.clone();
    let mut killed = 0;
    for round in 0..6 {
        let next = 400 + 10 * round;
        std::fs::write(bench.path("more.jsonl"), corpus(next, next + 10)).unwrap();
        bench.ok("index add news.micpq more.jsonl");
        store.json(&bench, &format!("index backup news.micpq {url}"));
        bench.ok("index compact news.micpq");
        let [manifests, files] = stored(&bench);
        // At the new manifest, at the first old one that goes, and at the first old files that go.
        let gone =
            |now: &[String], before: &[String], n: usize| before.iter().filter(|one| !now.contains(one)).count() >= n;
        let reached = |[now, found]: &[Vec<String>; 2]| match round % 3 {
            0 => now.len() > manifests.len(),
            1 => gone(now, &manifests, 1),
            _ => gone(found, &files, 1 + round / 3),
        };
        killed += u32::from(kill_when(&bench, &format!("index backup news.micpq {url} --keep 1"), reached));
        let expected = bench.json("search news.micpq 'oil barrel' -k 1000");
        for name in store.names(&bench) {
            store.json(&bench, &format!("index restore {url} any.micpq --replace --name {name}"));
            assert_eq!(bench.json("index verify any.micpq")[0]["sound"], true);
        }
        restores_as(&bench, &store, "new.micpq", &expected);
    }
    assert!(killed > 0, "no kill landed");
    let last = &store.json(&bench, &format!("index backup news.micpq {url} --keep 1"))[0];
    assert_eq!(store.names(&bench), [last["name"].as_str().unwrap()]);
    restores_as(&bench, &store, "new.micpq", &bench.json("search news.micpq 'oil barrel' -k 1000"));
}

#[test]
fn a_bucket_keeps_backups_that_share_files() {
    let Some(program) = std::env::var("MICPQ_MOTO").ok().filter(|program| !program.is_empty()) else {
        eprintln!("skipped: MICPQ_MOTO does not name moto's server; \"make backups\" does");
        return;
    };
    let bench = built();
    let store = moto(&program);
    keep_and_restore(&bench, &store);
    // A file of two parts.
    let large: Vec<u8> = (0..40_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(bench.path("news.micpq/model/query_encoder.safetensors"), &large).unwrap();
    store.json(&bench, &format!("index backup news.micpq {}", store.url));
    store.json(&bench, &format!("index restore {} large.micpq", store.url));
    assert!(bench.bytes("large.micpq/model/query_encoder.safetensors") == large);
    let missing = store.fails(&bench, "index backups s3://absent/news", 1);
    assert!(missing.contains("bucket"), "{missing}");
}

#[test]
fn backups_of_several_indexes_do_not_remove_each_other() {
    let bench = built();
    let store = folder(&bench);
    let url = &store.url;
    bench.ok("index backup news.micpq mail.micpq --copy");
    store.json(&bench, &format!("index backup news.micpq {url}"));
    store.json(&bench, &format!("index backup mail.micpq {url}"));
    store.json(&bench, &format!("index backup news.micpq {url} --keep 1"));
    let names = store.names(&bench);
    assert_eq!(names.iter().filter(|name| name.starts_with("mail-")).count(), 1, "{names:?}");
    assert_eq!(names.len(), 2);
    let several = store.fails(&bench, &format!("index restore {url} x.micpq"), 2);
    assert!(several.contains("mail, news"), "{several}");
    let mail = names.iter().find(|name| name.starts_with("mail-")).unwrap();
    store.json(&bench, &format!("index restore {url} x.micpq --name {mail}"));
    assert_eq!(bench.json("search x.micpq oil -k 50"), bench.json("search mail.micpq oil -k 50"));
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let bench = built();
    let store = folder(&bench);
    let url = &store.url;
    store.json(&bench, &format!("index backup news.micpq {url}"));
    let files = bench.path("store/files");
    let largest = std::fs::read_dir(&files).unwrap().map(|e| e.unwrap()).max_by_key(|e| e.metadata().unwrap().len());
    let path = largest.unwrap().path();
    let whole = std::fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let flipped = store.fails(&bench, &format!("index restore {url} x.micpq"), 1);
    assert!(flipped.contains("SHA-256") && flipped.contains("restore another"), "{flipped}");
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let short = store.fails(&bench, &format!("index restore {url} x.micpq"), 1);
    assert!(short.contains(&format!("expected {}; the backup is damaged", whole.len())), "{short}");
    // The next backup uploads what has another size, and index.json, in which every copy has an id of its own.
    let again = &store.json(&bench, &format!("index backup news.micpq {url}"))[0];
    assert_eq!(again["uploaded_files"], 2);
    store.json(&bench, &format!("index restore {url} x.micpq"));
    std::fs::remove_file(&path).unwrap();
    let gone = store.fails(&bench, &format!("index restore {url} y.micpq"), 1);
    assert!(gone.contains("is missing; the backup is damaged"), "{gone}");
    assert!(!bench.path("y.micpq").exists());
    // A manifest that cannot be read keeps every file.
    std::fs::write(bench.path("store/backups/other.json"), "{").unwrap();
    let unread = store.fails(&bench, &format!("index backup news.micpq {url} --keep 1"), 1);
    assert!(unread.contains("other.json"), "{unread}");
}

#[test]
fn wrong_places_of_backups_are_refused() {
    let bench = built();
    let store = folder(&bench);
    for (line, code, word) in [
        ("index backup news.micpq gs://bucket/x", 2, "s3://BUCKET"),
        ("index backup news.micpq s3:///x", 2, "s3://BUCKET"),
        ("index backup news.micpq plain --keep 2", 2, "--keep"),
        ("index restore news.micpq x --name y", 2, "--name"),
        ("index backups plain", 2, "plain"),
        ("index backup nowhere.micpq file:///tmp", 1, "nowhere"),
    ] {
        let stderr = bench.fails(line, code);
        assert!(stderr.contains(word), "{line}: {stderr}");
    }
    let url = &store.url;
    assert!(bench.fails(&format!("index backup news.micpq {url} --keep 0"), 2).contains("keep is 0"));
    assert!(bench.fails(&format!("index backup news.micpq {url} --copy"), 2).contains("--copy"));
    assert!(bench.fails(&format!("index restore {url} x --copy"), 2).contains("--copy"));
}
