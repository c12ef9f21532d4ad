//! Index directories of earlier formats are read, answer as they did, and verify.
//!
//! `data/index-N` was written by the program whose index format was N: 60 documents with vectors of 8 values, two of them
//! deleted, 16-bit codes. `data/hits.jsonl` is what that program answered for `data/queries.npy`.

use std::path::{Path, PathBuf};

use engine::index::{FORMAT, OLDEST_FORMAT, RerankVectors, verify};
use engine::query::{Query, SearchConfig, Searcher};
use engine::{NoProgress, npy};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// A copy: opening an index may write derived files into it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn expected() -> Vec<(String, f32, f32)> {
    let text = std::fs::read_to_string(data().join("hits.jsonl")).unwrap();
    let hit = |line: &str| {
        let hit: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| hit[name].as_f64().unwrap() as f32;
        (hit["id"].to_string(), number("distance"), number("score"))
    };
    text.lines().map(hit).collect()
}

#[test]
fn every_format_that_is_claimed_readable_answers_as_the_program_that_wrote_it() {
    let queries = npy::read_f32(&data().join("queries.npy")).unwrap();
    let queries: Vec<Query> = queries.iter().map(|row| Query::vector(row.to_vec())).collect();
    for format in OLDEST_FORMAT.max(2)..=FORMAT {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        copy(&data().join(format!("index-{format}")), &path);
        let searcher = Searcher::open(&path, &NoProgress).unwrap();
        let info = searcher.index().info().unwrap();
        assert_eq!((info.format, info.documents, info.rerank_vectors), (format, 58, RerankVectors::Int8));
        let config = SearchConfig { k: 5, ..SearchConfig::default() };
        let answers = searcher.search(&queries, &config, &NoProgress).unwrap();
        let found = answers.iter().flat_map(|answer| &answer.hits).map(|h| (h.id.to_string(), h.distance, h.score));
        assert_eq!(found.collect::<Vec<_>>(), expected(), "format {format}");
        assert_eq!(searcher.index().count("year:1981").unwrap(), 8, "format {format}");
        assert!(verify(&path, &NoProgress).unwrap().is_empty(), "format {format}");

        // It can be written to, and stays of its format.
        let mut writer = searcher.index().writer().unwrap();
        assert!(writer.delete(&3.into()).unwrap());
        assert_eq!(writer.commit(&NoProgress).unwrap(), 57);
        writer.close(&NoProgress).unwrap();
        assert!(verify(&path, &NoProgress).unwrap().is_empty(), "format {format} after a change");
    }
}

#[test]
fn a_directory_of_a_newer_program_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    copy(&data().join(format!("index-{FORMAT}")), &path);
    for (file, model) in [("index.json", false), ("model/config.json", true)] {
        let file = path.join(file);
        let text = std::fs::read_to_string(&file).unwrap();
        let mut newer: serde_json::Value = serde_json::from_str(&text).unwrap();
        newer["format"] = 1000.into();
        newer["unheard_of"] = serde_json::json!({ "x": 1 });
        std::fs::write(&file, newer.to_string()).unwrap();
        let said = if model {
            engine::model::Model::load(&path.join("model")).unwrap_err()
        } else {
            Searcher::open(&path, &NoProgress).map(drop).unwrap_err()
        };
        let said = said.to_string();
        assert!(
            said.contains("has format 1000, this program reads") && said.contains("use the micpq that wrote it"),
            "{said}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), newer.to_string());
        std::fs::write(&file, text).unwrap();
    }
    assert!(verify(&path, &NoProgress).unwrap().is_empty());
}
