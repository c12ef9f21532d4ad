//! Index directories of earlier formats are read, answer as they did, and verify.
//!
//! `data/index-N` was written by the program whose index format was N: 60 documents with vectors of 8 values, two of them
//! deleted, 16-bit codes. `data/hits.jsonl` is what that program answered for `data/queries.npy`.
//!
//! `data/index-4` has chunks and is German: 30 documents of 1 to 4 chunks, one replaced and one deleted, with the model of
//! `data/index-3`. `data/hits-4.jsonl` is what its program answered. `write_index_4` made both.
//!
//! `data/shards-1` is a folder of shards with a manifest of format 1: 60 documents in two shards of index format 4. It was written by
//! `micpq.ray.build`, and `data/hits-shards-1.jsonl` is what `micpq.ray.Searcher` answered (`data/shards.py`).

use std::path::{Path, PathBuf};

use engine::chunk::ChunkSizes;
use engine::corpus::{DocId, Document, Value};
use engine::formats::npy;
use engine::index::{FORMAT, Index, IndexConfig, OLDEST_FORMAT, RerankVectors, upgrade, verify};
use engine::query::{Group, Query, SearchConfig, Searcher};
use engine::shards::{self, ShardManifest};
use engine::{Matrix, NoProgress};

/// Cosines are sums in an order that may change; distances are not.
const ROUNDING: f32 = 1e-6;

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
    assert_eq!(FORMAT, 4, "a new format needs a directory of its own here");
    for format in OLDEST_FORMAT..=3 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        copy(&data().join(format!("index-{format}")), &path);
        let searcher = Searcher::open(&path, &NoProgress).unwrap();
        let info = searcher.index().info().unwrap();
        assert_eq!((info.format, info.documents, info.rerank_vectors), (format, 58, RerankVectors::Int8));
        let config = SearchConfig { k: 5, ..SearchConfig::default() };
        let answers = searcher.search(&queries, &config, &NoProgress).unwrap();
        let found = answers.iter().flat_map(|answer| &answer.hits).map(|h| (h.id.to_string(), h.distance, h.score));
        let (found, expected) = (found.collect::<Vec<_>>(), expected());
        assert_eq!(found.len(), expected.len(), "format {format}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found.0, found.1), (&expected.0, expected.1), "format {format}");
            assert!((found.2 - expected.2).abs() < ROUNDING, "format {format}: {found:?} instead of {expected:?}");
        }
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
fn an_index_of_an_earlier_format_becomes_one_of_todays_in_its_place() {
    let queries = npy::read_f32(&data().join("queries.npy")).unwrap();
    let queries: Vec<Query> = queries.iter().map(|row| Query::vector(row.to_vec())).collect();
    for format in OLDEST_FORMAT..FORMAT {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        copy(&data().join(format!("index-{format}")), &path);
        // It is opened and written first, and a reader stays open meanwhile.
        let before = Searcher::open(&path, &NoProgress).unwrap();
        let mut writer = before.index().writer().unwrap();
        assert!(writer.delete(&3.into()).unwrap());
        writer.commit(&NoProgress).unwrap();
        let busy = upgrade(&path, &NoProgress).unwrap_err();
        assert!(matches!(busy, engine::Error::Busy(_)), "{busy}");
        writer.close(&NoProgress).unwrap();
        before.index().reload(&NoProgress).unwrap();
        let config = SearchConfig { k: 50, filter: Some("year:[1980 TO 1982]".into()), ..SearchConfig::default() };
        let answer = |searcher: &Searcher| -> Vec<(DocId, f32, f32, Option<String>)> {
            let answers = searcher.search(&queries, &config, &NoProgress).unwrap();
            let hits = answers.into_iter().flat_map(|answer| answer.hits);
            hits.map(|hit| (hit.id, hit.distance, hit.score, hit.text)).collect()
        };
        let expected = answer(&before);
        assert!(expected.len() > 20);
        let done = upgrade(&path, &NoProgress).unwrap();
        assert_eq!((done.documents, done.from, done.to), (57, format, FORMAT));
        assert_eq!(answer(&before), expected, "the old index still answers");
        let after = Searcher::open(&path, &NoProgress).unwrap();
        assert_eq!((after.index().info().unwrap().format, answer(&after)), (FORMAT, expected));
        assert_eq!(after.index().model().fingerprint(), before.index().model().fingerprint());
        assert!(verify(&path, &NoProgress).unwrap().is_empty());
        // It is written to as any other, and there is nothing left to do.
        let mut writer = after.index().writer().unwrap();
        assert!(writer.delete(&5.into()).unwrap());
        assert_eq!(writer.commit(&NoProgress).unwrap(), 56);
        writer.close(&NoProgress).unwrap();
        let again = upgrade(&path, &NoProgress).unwrap_err().to_string();
        assert!(again.contains("nothing to upgrade"), "{again}");
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["index"]);
    }
}

#[test]
fn an_index_older_than_the_oldest_that_is_tested_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    copy(&data().join(format!("index-{OLDEST_FORMAT}")), &path);
    let file = path.join("index.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"format\": 2", "\"format\": 1")).unwrap();
    let said = Searcher::open(&path, &NoProgress).map(drop).unwrap_err().to_string();
    assert!(
        said.contains("has format 1, this program reads 2 to 4") && said.contains("build the index again"),
        "{said}"
    );
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

/// The documents of `data/index-4`, in the order they were added: text, byte ranges of the chunks, and their vectors.
fn long_documents() -> Vec<(Document, Vec<std::ops::Range<usize>>, Vec<f32>)> {
    let document = |i: usize, version: usize| {
        let (mut text, mut ranges, mut vectors) = (String::new(), Vec::new(), Vec::new());
        for chunk in 0..1 + (i + version) % 4 {
            let start = text.len();
            text.push_str(&format!("Abschnitt {chunk} der Datei {i} nennt Verzeichnisse und Ordner {version}. "));
            ranges.push(start..text.len());
            vectors.extend((0..8).map(|v| ((i * 31 + chunk * 7 + v * 3 + version) % 17) as f32 / 8.0 - 1.0));
        }
        let attributes = vec![("year".into(), Value::Int(1980 + (i % 3) as i64))];
        (Document { id: DocId::Int(i as u64), text, labels: vec![], attributes }, ranges, vectors)
    };
    (0..30).map(|i| document(i, 0)).chain([document(5, 1)]).collect()
}

/// What the index of format 4 answers, one hit per line.
fn answers_4(searcher: &Searcher) -> String {
    let queries = npy::read_f32(&data().join("queries.npy")).unwrap();
    let mut lines = String::new();
    for (group, hybrid) in [(Group::Best, 0.0), (Group::Sum, 0.0), (Group::Best, 0.5)] {
        let query = |row: &[f32]| Query { keywords: Some("Verzeichnis".into()), ..Query::vector(row.to_vec()) };
        let queries: Vec<Query> = queries.iter().map(query).collect();
        let config = SearchConfig { k: 5, group, hybrid, ..SearchConfig::default() };
        for answer in searcher.search(&queries, &config, &NoProgress).unwrap() {
            for hit in answer.hits {
                let row = serde_json::json!([hit.id, hit.distance, hit.score, hit.chunk, hit.text]);
                lines.push_str(&format!("{row}\n"));
            }
        }
    }
    lines
}

#[test]
fn an_index_of_format_4_answers_as_the_program_that_wrote_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    copy(&data().join("index-4"), &path);
    let searcher = Searcher::open(&path, &NoProgress).unwrap();
    let info = searcher.index().info().unwrap();
    assert_eq!((info.format, info.documents, info.language.to_string().as_str()), (4, 29, "de"));
    assert_eq!(info.chunk, Some(ChunkSizes { tokens: 32, overlap: 0 }));
    // The third value of a line is the score.
    let hits = |text: &str| {
        let rows = text.lines().map(|line| serde_json::from_str::<Vec<serde_json::Value>>(line).unwrap());
        rows.map(|mut row| (row.remove(2).as_f64().unwrap(), row)).collect::<Vec<_>>()
    };
    let (found, expected) =
        (hits(&answers_4(&searcher)), std::fs::read_to_string(data().join("hits-4.jsonl")).unwrap());
    for (found, expected) in found.iter().zip(hits(&expected)) {
        assert_eq!(found.1, expected.1);
        assert!((found.0 - expected.0).abs() < f64::from(ROUNDING), "{found:?} instead of {expected:?}");
    }
    assert_eq!(found.len(), expected.lines().count());
    assert_eq!(searcher.index().count("year:1981 AND text:Verzeichnis").unwrap(), 9);
    assert!(verify(&path, &NoProgress).unwrap().is_empty());

    let mut writer = searcher.index().writer().unwrap();
    assert!(writer.delete(&3.into()).unwrap());
    assert_eq!(writer.commit(&NoProgress).unwrap(), 28);
    writer.close(&NoProgress).unwrap();
    assert!(verify(&path, &NoProgress).unwrap().is_empty());
}

#[test]
fn a_folder_of_shards_answers_as_the_cluster_that_wrote_it() {
    assert_eq!(shards::FORMAT, 1, "a new format needs a folder of its own here");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shards");
    copy(&data().join("shards-1"), &path);
    let manifest = ShardManifest::read(&path).unwrap();
    assert_eq!(manifest.shards.iter().map(|shard| shard.documents).sum::<u64>(), 60);
    for shard in &manifest.shards {
        assert_eq!(shards::checksum(&path.join(&shard.name)).unwrap(), shard.checksum, "{}", shard.name);
    }
    assert!(shards::verify(&path, &NoProgress).unwrap().is_empty());

    let searcher = Searcher::open(&path, &NoProgress).unwrap();
    assert_eq!(searcher.indexes().len(), 2);
    let query = |id| Query { keywords: Some("harvest".into()), ..Query::document(DocId::Int(id)) };
    let config = SearchConfig { k: 5, hybrid: 0.5, ..SearchConfig::default() };
    let answers = searcher.search(&[query(5), query(6)], &config, &NoProgress).unwrap();
    let found: Vec<_> = answers.into_iter().flat_map(|answer| answer.hits).collect();
    let expected = std::fs::read_to_string(data().join("hits-shards-1.jsonl")).unwrap();
    assert_eq!(found.len(), expected.lines().count());
    for (found, expected) in found.iter().zip(expected.lines()) {
        let (id, distance, score, text): (DocId, f32, f32, String) = serde_json::from_str(expected).unwrap();
        assert_eq!((&found.id, found.distance, found.text.as_ref()), (&id, distance, Some(&text)));
        assert!((found.score - score).abs() < ROUNDING, "{found:?} instead of {expected}");
    }

    // Each shard can be written to, and the others do not mind.
    let owner = &searcher.indexes()[ShardManifest::route(&DocId::Int(5), 2)];
    let mut writer = owner.writer().unwrap();
    assert!(writer.delete(&5.into()).unwrap());
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    assert!(shards::verify(&path, &NoProgress).unwrap().is_empty());
    let left: usize = Searcher::open(&path, &NoProgress).unwrap().indexes().iter().map(Index::len).sum();
    assert_eq!(left, 59);
}

/// `data/model-5` is the model of `data/index-3` with tables by kind; `data/tables-5.json` holds those of `data/queries.npy`.
#[test]
fn a_model_of_todays_format_gives_the_tables_it_was_written_with() {
    assert_eq!(engine::model::FORMAT, 5, "a new format needs a directory of its own here");
    let model = engine::model::Model::load(&data().join("model-5")).unwrap();
    assert_eq!(tables_5(&model), std::fs::read_to_string(data().join("tables-5.json")).unwrap());
}

fn tables_5(model: &engine::model::Model) -> String {
    let queries = npy::read_f32(&data().join("queries.npy")).unwrap();
    let tables = model.kinds().expect("tables by kind").tables(&queries).unwrap();
    let values: Vec<&[f32]> = tables.iter().map(|table| table.values()).collect();
    serde_json::to_string(&(model.fingerprint(), values)).unwrap()
}

/// Run once, by the program of model format 5.
#[test]
#[ignore = "writes the test data"]
fn write_model_5() {
    let model = engine::model::Model::load(&data().join("index-3/model")).unwrap();
    let outputs = model.shape().num_codebooks() * model.shape().codebook_size();
    // Quarters: every order of additions gives the same sums.
    let values =
        |n: usize, seed: usize| (0..n).map(|i| ((i * 37 + seed) % 17) as f32 / 4.0 - 2.0).collect::<Vec<f32>>();
    let layer = |inputs: usize, outputs: usize, seed| {
        engine::model::Dense::new(inputs, values(inputs * outputs, seed), values(outputs, seed + 5)).unwrap()
    };
    let layers = vec![layer(model.inputs(), 6, 1), layer(6, outputs, 2)];
    let model = model.with_kinds(engine::model::Projection::new(layers).unwrap()).unwrap();
    model.save(&data().join("model-5"), &serde_json::Value::Null).unwrap();
    std::fs::write(data().join("tables-5.json"), tables_5(&model)).unwrap();
}

/// Run once, by the program of format 4.
#[test]
#[ignore = "writes the test data"]
fn write_index_4() {
    let model = engine::model::Model::load(&data().join("index-3/model")).unwrap();
    let config = IndexConfig {
        rerank_vectors: RerankVectors::Int8,
        language: "de".parse().unwrap(),
        chunk: Some(ChunkSizes { tokens: 32, overlap: 0 }),
        ..IndexConfig::default()
    };
    let index = Index::create(&data().join("index-4"), &model, config).unwrap();
    let mut writer = index.writer().unwrap();
    for (document, ranges, vectors) in long_documents() {
        writer.add_chunks(&[(&document, ranges)], &Matrix::from_vec(8, vectors)).unwrap();
        if document.id == DocId::Int(15) {
            writer.commit(&NoProgress).unwrap();
        }
    }
    assert!(writer.delete(&7.into()).unwrap());
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    let searcher = Searcher::new(index, None).unwrap();
    std::fs::write(data().join("hits-4.jsonl"), answers_4(&searcher)).unwrap();
}
