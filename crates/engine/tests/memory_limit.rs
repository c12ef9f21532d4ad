//! Codes are searched in the memory that they take: a process in a memory cgroup gives the answers of one without a limit.
//!
//! The process is this test program again. Where no cgroup can be made (without root, or without the memory controller), the tests
//! say so and end.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use engine::NoProgress;
use engine::corpus::{DocId, Document};
use engine::index::{Index, IndexConfig, Store};
use engine::model::{CodeShape, Codebooks, Dense, Distance, DistanceTable, FORMAT, Model, ModelConfig, Projection};
use engine::query::SearchConfig;

const QUERIES: usize = 20;
const MIB: usize = 1 << 20;

fn draw(seed: u64, i: u64) -> u64 {
    let mut x = seed.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn unit(seed: u64, i: u64) -> f32 {
    (draw(seed, i) >> 40) as f32 / (1 << 24) as f32
}

fn model(shape: CodeShape) -> Model {
    let width = shape.width();
    let identity = (0..width * width).map(|i| f32::from(u8::from(i % (width + 1) == 0))).collect();
    let projection = Projection::new(vec![Dense::new(width, identity, vec![0.0; width]).unwrap()]).unwrap();
    let values = shape.num_codebooks() * shape.codebook_size() * shape.dim();
    let codebooks = Codebooks::new(shape, (0..values as u64).map(|i| unit(1, i)).collect()).unwrap();
    let config = ModelConfig {
        format: FORMAT,
        method: "opq".into(),
        shape,
        distance: Distance::Squared,
        embedding: None,
        training: serde_json::Value::Null,
    };
    Model::new(config, projection, codebooks).unwrap()
}

/// An index of codes of 64 bits without structure, so that a search reads many of them.
fn build(dir: &Path, documents: usize) {
    let shape = CodeShape::new(16, 16, 1).unwrap();
    let index =
        Index::create(dir, &model(shape), IndexConfig { store: Store::Codes, ..IndexConfig::default() }).unwrap();
    let mut writer = index.writer().unwrap();
    for i in 0..documents as u64 {
        let document = Document { id: DocId::Int(i), text: String::new(), labels: Vec::new(), attributes: Vec::new() };
        writer.add(&document, &draw(2, i).to_le_bytes()).unwrap();
    }
    writer.commit(&NoProgress).unwrap();
    writer.compact(&NoProgress).unwrap();
}

/// The hits of all queries, in words.
fn answers(dir: &Path) -> String {
    let index = Index::open(dir, &NoProgress).unwrap();
    let shape = index.model().shape();
    let table = |q: u64| {
        let values = (0..256).map(|i| unit(100 + q, i)).collect();
        DistanceTable::new(shape, values).unwrap()
    };
    let config = SearchConfig { documents: false, ..SearchConfig::default() };
    let mut found = String::new();
    for q in 0..QUERIES as u64 {
        for hit in index.search(&[table(q)], &config).unwrap().remove(0) {
            found += &format!("{} {:08x};", hit.id, hit.distance.to_bits());
        }
    }
    found
}

/// A memory cgroup of its own, of either version.
struct Group(PathBuf);

impl Group {
    fn new(limit: usize) -> Option<Group> {
        let name = format!("micpq-test-{}-{limit}", std::process::id());
        for (root, file) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let dir = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() || std::fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = Group(dir);
            if std::fs::write(group.0.join(file), limit.to_string()).is_ok() {
                // Swap would be memory beyond the limit.
                let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
                let _ = std::fs::write(group.0.join("memory.swappiness"), "0");
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Takes the files of a directory out of the page cache, so that the limited process pays for what it reads.
fn forget(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            forget(&path);
        } else if let Ok(file) = File::open(&path) {
            let _ = file.sync_all();
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

/// Searches `documents` codes inside `limit` bytes of memory.
fn search_within(documents: usize, limit: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    build(&path, documents);
    let Some(group) = Group::new(limit) else {
        let _ = writeln!(std::io::stdout(), "skipped: no memory cgroup can be made here");
        return;
    };
    let expected = answers(&path);
    forget(&path);
    let program = std::env::current_exe().unwrap();
    let limited = Command::new(program)
        .args(["--exact", "limited_process", "--nocapture", "--include-ignored"])
        .env("MICPQ_LIMITED_INDEX", &path)
        .env("MICPQ_LIMITED_GROUP", &group.0)
        .env("RAYON_NUM_THREADS", "2")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&limited.stdout);
    assert!(limited.status.success(), "{}: {said}{}", limited.status, String::from_utf8_lossy(&limited.stderr));
    assert!(said.contains(&format!("answers: {expected}\n")), "the limited process gives other answers");
    let most = ["memory.max_usage_in_bytes", "memory.peak"]
        .iter()
        .find_map(|name| std::fs::read_to_string(group.0.join(name)).ok()?.trim().parse::<usize>().ok());
    if let Some(most) = most {
        assert!(most <= limit, "{most} bytes of {limit}");
        assert!(most > documents, "the process was not in the group: it used {most} bytes");
    }
}

/// Not a test by itself: what [`search_within`] starts.
#[test]
fn limited_process() {
    let (Some(index), Some(group)) = (std::env::var_os("MICPQ_LIMITED_INDEX"), std::env::var_os("MICPQ_LIMITED_GROUP"))
    else {
        return;
    };
    std::fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    println!("answers: {}", answers(Path::new(&index)));
}

#[test]
fn half_a_million_codes_are_searched_within_40_mib() {
    search_within(500_000, 40 * MIB);
}

/// The codes alone are 76 MiB, the insertion order 29 MiB.
#[test]
#[ignore = "builds an index of ten million documents; make soak"]
fn ten_million_codes_are_searched_within_128_mib() {
    search_within(10_000_000, 128 * MIB);
}
