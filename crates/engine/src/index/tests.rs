//! Compares the index with brute force over the same documents, and damages its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kernels::dropout::mix;
use proptest::prelude::*;

use super::*;
use crate::corpus::{Document, Value};
use crate::model::DistanceTable;
use crate::model::{CodeShape, Codebooks, Dense, Distance, ModelConfig, Projection};
use crate::query::SearchConfig;
use crate::{Matrix, NoProgress};

/// A model with random codewords: enough to produce codes and distance tables.
pub(super) fn model(shape: CodeShape, seed: u64) -> Model {
    let noise = |n: usize, salt: u64| -> Vec<f32> {
        (0..n as u64).map(|i| (mix(mix(seed, salt), i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    };
    let width = shape.width();
    let projection = Projection::new(vec![Dense::new(4, noise(4 * width, 1), noise(width, 2)).unwrap()]).unwrap();
    let codebooks =
        Codebooks::new(shape, noise(shape.num_codebooks() * shape.codebook_size() * shape.dim(), 3)).unwrap();
    let config = ModelConfig {
        format: 1,
        method: "micpq".into(),
        shape,
        distance: Distance::Norm,
        embedding: None,
        training: serde_json::Value::Null,
    };
    Model::new(config, projection, codebooks).unwrap()
}

pub(super) fn embeddings(n: usize, seed: u64) -> Matrix {
    Matrix::from_vec(4, (0..4 * n as u64).map(|i| (mix(seed, i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect())
}

pub(super) fn tables(model: &Model, n: usize, seed: u64) -> Vec<DistanceTable> {
    model.tables(&embeddings(n, seed), Distance::Norm).unwrap()
}

/// Few distinct codes, so that ties are common.
pub(super) fn code(model: &Model, i: u64) -> Vec<u8> {
    model.encode(&embeddings(1, mix(5, i) % 40)).unwrap()
}

pub(super) fn document(i: u64) -> Document {
    let id = if i.is_multiple_of(3) { DocId::Int(i) } else { DocId::Str(format!("doc-{i}")) };
    Document {
        id,
        text: format!("Report number {i} about {}", ["grain", "ships", "money"][i as usize % 3]),
        labels: vec![["earn", "acq"][i as usize % 2].to_string()],
        attributes: vec![
            ("year".into(), Value::Int(1980 + (i % 10) as i64)),
            ("places".into(), Value::Texts(vec![["japan", "usa", "france"][i as usize % 3].into(), "world".into()])),
            ("score".into(), Value::Float(i as f64 / 4.0)),
            ("draft".into(), Value::Bool(i.is_multiple_of(2))),
            ("author".into(), Value::Text(format!("Writer {}", i % 5))),
        ],
    }
}

/// The expected content of the index, in the order of insertion.
#[derive(Clone, Default)]
pub(super) struct Twin {
    next: u64,
    pub documents: BTreeMap<u64, (Document, Vec<u8>)>,
}

impl Twin {
    pub fn add(&mut self, document: Document, code: Vec<u8>) {
        self.delete(&document.id);
        self.documents.insert(self.next, (document, code));
        self.next += 1;
    }

    pub fn delete(&mut self, id: &DocId) {
        self.documents.retain(|_, (d, _)| d.id != *id);
    }

    fn nearest(&self, table: &DistanceTable, k: usize, keep: impl Fn(&Document) -> bool) -> Vec<(DocId, f32)> {
        let documents = self.documents.iter().filter(|(_, (d, _))| keep(d));
        let mut all: Vec<(f32, u64, &Document)> = documents.map(|(s, (d, c))| (table.distance(c), *s, d)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        all.into_iter().take(k).map(|(distance, _, d)| (d.id.clone(), distance)).collect()
    }

    pub fn check(&self, index: &Index, k: usize, filter: Option<&str>, keep: impl Fn(&Document) -> bool) {
        let tables = tables(index.model(), 5, 77);
        let config = SearchConfig { k, filter: filter.map(str::to_owned), ..SearchConfig::default() };
        let found = index.search(&tables, &config).unwrap();
        for (hits, table) in found.iter().zip(&tables) {
            let got: Vec<(DocId, f32)> = hits.iter().map(|h| (h.id.clone(), h.distance)).collect();
            assert_eq!(got, self.nearest(table, k, &keep), "filter {filter:?} k {k}");
            for hit in hits {
                let (document, _) = self.documents.values().find(|(d, _)| d.id == hit.id).unwrap();
                if index.store() == Store::All {
                    assert_eq!(hit.text.as_ref(), Some(&document.text));
                    assert_eq!(hit.labels, document.labels);
                    assert_eq!(hit.attributes, document.attributes);
                } else {
                    assert_eq!(hit.text, None);
                }
            }
        }
    }
}

pub(super) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[derive(Default)]
pub(super) struct Notes(std::sync::Mutex<Vec<String>>);

impl Notes {
    pub fn taken(self) -> Vec<String> {
        self.0.into_inner().unwrap()
    }
}

impl Progress for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// The problems that `verify` returns, and its notes about packed codes that will be built again.
pub(super) fn found(dir: &Path) -> Result<Vec<Problem>> {
    let notes = Notes::default();
    let mut problems = verify(dir, &notes)?;
    for note in notes.taken() {
        let (path, problem) = note.split_once(": ").unwrap();
        problems.push(Problem { path: path.into(), problem: problem.into() });
    }
    Ok(problems)
}

pub(super) fn clean(dir: &Path) {
    let problems = verify(dir, &NoProgress).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn search_equals_brute_force_with_segments_deletes_updates_and_filters() {
    for (bits, store) in [(16, Store::All), (32, Store::All), (64, Store::Codes), (128, Store::All)] {
        let dir = scratch();
        let path = dir.path().join("index");
        let model = model(CodeShape::micpq(bits).unwrap(), 1);
        let config = IndexConfig { store, ..IndexConfig::default() };
        let index = Index::create(&path, &model, config).unwrap();
        let mut twin = Twin::default();
        let mut writer = index.writer().unwrap();
        // Five commits: several segments, some merged out of order by tantivy.
        for batch in 0..5u64 {
            for i in batch * 300..(batch + 1) * 300 {
                // Every seventh document replaces an earlier one.
                let i = if i % 7 == 6 { i / 2 } else { i };
                writer.add(&document(i), &code(&model, i + batch)).unwrap();
                twin.add(document(i), code(&model, i + batch));
            }
            for i in (batch * 300..(batch + 1) * 300).step_by(11) {
                assert_eq!(
                    writer.delete(&document(i).id).unwrap(),
                    twin.documents.values().any(|(d, _)| d.id == document(i).id)
                );
                twin.delete(&document(i).id);
            }
            assert_eq!(writer.commit(&NoProgress).unwrap(), twin.documents.len());
        }
        for k in [1, 10, 100, 5000] {
            twin.check(&index, k, None, |_| true);
        }
        if store == Store::All {
            let year = |d: &Document, from: i64, to: i64| {
                d.attributes.iter().any(|(n, v)| n == "year" && matches!(v, Value::Int(y) if (from..=to).contains(y)))
            };
            let place = |d: &Document, p: &str| {
                d.attributes
                    .iter()
                    .any(|(n, v)| n == "places" && matches!(v, Value::Texts(t) if t.iter().any(|t| t == p)))
            };
            twin.check(&index, 20, Some("places:japan"), |d| place(d, "japan"));
            twin.check(&index, 20, Some("year:[1987 TO 1988]"), |d| year(d, 1987, 1988));
            twin.check(&index, 20, Some("year:1983"), |d| year(d, 1983, 1983));
            twin.check(&index, 20, Some("places:japan year:[1981 TO 1985]"), |d| {
                place(d, "japan") && year(d, 1981, 1985)
            });
            twin.check(&index, 20, Some("places:usa OR places:france"), |d| !place(d, "japan"));
            twin.check(&index, 20, Some("NOT places:japan"), |d| !place(d, "japan"));
            twin.check(&index, 20, Some("labels:acq"), |d| d.labels == ["acq"]);
            twin.check(&index, 20, Some("ship"), |d| d.text.contains("ships"));
            twin.check(&index, 20, Some("score:{10.0 TO 20.5]"), |d| {
                d.attributes.iter().any(|(_, v)| matches!(v, Value::Float(x) if *x > 10.0 && *x <= 20.5))
            });
            twin.check(&index, 20, Some("score:[10 TO 20.5]"), |d| {
                d.attributes.iter().any(|(_, v)| matches!(v, Value::Float(x) if *x >= 10.0 && *x <= 20.5))
            });
            twin.check(&index, 20, Some("score:>300.25"), |d| {
                d.attributes.iter().any(|(_, v)| matches!(v, Value::Float(x) if *x > 300.25))
            });
            twin.check(&index, 20, Some("year:[1983.5 TO *]"), |d| year(d, 1984, 1989));
            twin.check(&index, 20, Some("places:[japan TO k]"), |d| place(d, "japan"));
            twin.check(&index, 20, Some("draft:true"), |d| d.attributes.contains(&("draft".into(), Value::Bool(true))));
            twin.check(&index, 20, Some("author:\"writer 3\""), |d| {
                d.attributes.contains(&("author".into(), Value::Text("Writer 3".into())))
            });
            // So few matches that the scan visits only them.
            twin.check(&index, 1, Some("text:1234"), |d| d.text.contains(" 1234 "));
            twin.check(&index, 20, Some("places:nowhere"), |_| false);
            twin.check(&index, 20, Some("year: IN [1984 1986]"), |d| year(d, 1984, 1984) || year(d, 1986, 1986));
            twin.check(&index, 20, Some("author:* AND year:>=1989"), |d| year(d, 1989, 1989));
            for misspelt in
                ["nothing:*", "NOT plcaes:japan", "yaer:[1 TO 2]", "attributes.plcaes:japan", "draft:true OR yaer:3"]
            {
                let config = SearchConfig { filter: Some(misspelt.into()), ..SearchConfig::default() };
                let said = index.search(&tables(&model, 1, 1), &config).unwrap_err().to_string();
                assert!(said.contains("known: author, draft, places, score, year"), "{said}");
                assert!(index.count(misspelt).is_err());
            }
        }
        twin.check(&index, 3, Some("id:doc-1234"), |d| d.id == DocId::Str("doc-1234".into()));
        twin.check(&index, 3, Some("id:1233"), |d| d.id == DocId::Int(1233));

        for (sequence, (document, code)) in twin.documents.iter().step_by(37) {
            let record = index.get(&document.id).unwrap().unwrap();
            assert_eq!((&record.code, record.sequence), (code, *sequence));
            assert_eq!(record.id, document.id);
        }
        assert_eq!(index.get(&DocId::Int(999_999)).unwrap(), None);
        clean(&path);

        if store == Store::All {
            let gone = writer.delete_where("places:usa").unwrap();
            assert_eq!(gone, twin.documents.values().filter(|(d, _)| d.text.contains("ships")).count());
            twin.documents.retain(|_, (d, _)| !d.text.contains("ships"));
        }
        writer.compact(&NoProgress).unwrap();
        let info = index.info().unwrap();
        assert_eq!((info.segments, info.deleted, info.documents), (1, 0, twin.documents.len()));
        assert!(info.bytes.codes > 0 && info.bytes.columns > 0 && info.bytes.model > 0);
        assert_eq!(std::fs::read_dir(path.join(CODES)).unwrap().count(), 1);
        twin.check(&index, 50, None, |_| true);
        writer.close(&NoProgress).unwrap();
        clean(&path);
        twin.check(&Index::open(&path, &NoProgress).unwrap(), 50, None, |_| true);
    }
}

#[test]
fn a_reader_sees_commits_after_reload_and_a_second_writer_is_refused() {
    let dir = scratch();
    let path = dir.path().join("index");
    let model = model(CodeShape::micpq(32).unwrap(), 1);
    let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
    let reader = Index::open(&path, &NoProgress).unwrap();
    let mut writer = index.writer().unwrap();
    let refused = reader.writer().err().unwrap();
    assert!(matches!(&refused, Error::Busy(m) if m.contains("another writer")), "{refused}");
    writer.add(&document(1), &code(&model, 1)).unwrap();
    assert!(!reader.reload(&NoProgress).unwrap());
    assert_eq!((index.len(), reader.len()), (0, 0));
    writer.commit(&NoProgress).unwrap();
    assert_eq!((index.len(), reader.len()), (1, 0));
    assert!(reader.reload(&NoProgress).unwrap());
    assert_eq!(reader.len(), 1);

    writer.add(&document(2), &code(&model, 2)).unwrap();
    writer.delete(&document(1).id).unwrap();
    writer.rollback().unwrap();
    writer.commit(&NoProgress).unwrap();
    assert_eq!(index.len(), 1);
    assert!(index.get(&document(1).id).unwrap().is_some());

    // A number and its digits as text are the same id.
    writer.add(&Document { id: DocId::Int(7), ..document(7) }, &code(&model, 7)).unwrap();
    writer.add(&Document { id: DocId::Str("7".into()), ..document(8) }, &code(&model, 8)).unwrap();
    writer.commit(&NoProgress).unwrap();
    assert_eq!(index.len(), 2);
    assert_eq!(index.get(&DocId::Int(7)).unwrap().unwrap().id, DocId::Str("7".into()));
    assert_eq!(index.get(&DocId::Int(7)).unwrap().unwrap().sequence, 2);
    drop(writer);
    assert!(reader.writer().is_ok());
}

#[test]
fn threads_search_while_a_writer_commits() {
    let dir = scratch();
    let path = dir.path().join("index");
    let model = model(CodeShape::micpq(64).unwrap(), 3);
    let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
    let query = tables(&model, 1, 9);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in 0..3 {
            // Separate handles stand for other processes: they share only files.
            let reader = if t == 0 { index.clone() } else { Index::open(&path, &NoProgress).unwrap() };
            let (query, done, model) = (&query, &done, &model);
            scope.spawn(move || {
                let mut seen = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) || seen == 0 {
                    reader.reload(&NoProgress).unwrap();
                    let hits = reader.search(query, &SearchConfig { k: 10_000, ..SearchConfig::default() }).unwrap();
                    // Every commit is whole: each adds forty documents with the expected codes.
                    assert!(hits[0].len().is_multiple_of(40), "{} hits", hits[0].len());
                    assert!(hits[0].len() >= seen);
                    seen = hits[0].len();
                    for hit in hits[0].iter().step_by(17) {
                        let n: u64 = hit.text.as_ref().unwrap().split(' ').nth(2).unwrap().parse().unwrap();
                        assert_eq!(hit.distance, query[0].distance(&code(model, n)));
                    }
                }
            });
        }
        let mut writer = index.writer().unwrap();
        for batch in 0..25u64 {
            for i in batch * 40..(batch + 1) * 40 {
                writer.add(&document(i), &code(&model, i)).unwrap();
            }
            writer.commit(&NoProgress).unwrap();
        }
        writer.close(&NoProgress).unwrap();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(index.len(), 1000);
    clean(&path);
}

#[test]
fn open_and_create_refuse_foreign_directories_models_and_formats() {
    let dir = scratch();
    let path = dir.path().join("index");
    let said = |e: Error| e.to_string();
    assert!(said(Index::open(&path, &NoProgress).unwrap_err()).contains("is not an index"));
    let model = model(CodeShape::micpq(16).unwrap(), 1);
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("letter.txt"), "not yours").unwrap();
    let replace = IndexConfig { replace: true, ..IndexConfig::default() };
    assert!(said(Index::create(&path, &model, replace.clone()).unwrap_err()).contains("is not an index"));
    std::fs::remove_file(path.join("letter.txt")).unwrap();
    let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
    assert!(said(Index::create(&path, &model, IndexConfig::default()).unwrap_err()).contains("already holds an index"));
    {
        let _writer = index.writer().unwrap();
        assert!(matches!(Index::create(&path, &model, replace.clone()), Err(Error::Busy(_))));
    }
    let other = super::tests::model(CodeShape::micpq(16).unwrap(), 2);
    assert!(said(index.expect_model(&other).unwrap_err()).contains(other.fingerprint()));
    index.expect_model(&model).unwrap();
    Index::create(&path, &other, replace).unwrap().expect_model(&other).unwrap();

    // Model files that do not match the codes.
    model.write_into(&path.join(MODEL), &serde_json::Value::Null).unwrap();
    assert!(said(Index::open(&path, &NoProgress).unwrap_err()).contains("come from model"));
    other.write_into(&path.join(MODEL), &serde_json::Value::Null).unwrap();
    Index::open(&path, &NoProgress).unwrap();

    let manifest = std::fs::read_to_string(path.join("index.json")).unwrap();
    std::fs::write(path.join("index.json"), manifest.replace(&format!("\"format\": {FORMAT}"), "\"format\": 99"))
        .unwrap();
    assert!(said(Index::open(&path, &NoProgress).unwrap_err()).contains("has format 99, this program reads"));
    std::fs::write(path.join("index.json"), "{").unwrap();
    assert!(said(Index::open(&path, &NoProgress).unwrap_err()).contains("is not valid JSON"));
    std::fs::write(path.join("index.json"), manifest).unwrap();
    std::fs::write(path.join("store/meta.json"), "{}").unwrap();
    assert!(said(Index::open(&path, &NoProgress).unwrap_err()).contains("store"));
}

#[test]
fn invalid_queries_and_documents_are_refused_with_a_reason() {
    let dir = scratch();
    let path = dir.path().join("index");
    let model = model(CodeShape::new(3, 16, 4).unwrap(), 1);
    let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
    let query = tables(&model, 1, 1);
    let ask = |k: usize, filter: &str| {
        let config = SearchConfig { k, filter: Some(filter.into()), ..SearchConfig::default() };
        index.search(&query, &config).map(|hits| hits[0].len()).map_err(|e| e.to_string())
    };
    assert_eq!(ask(5, "places:japan"), Ok(0));
    assert!(ask(0, "places:japan").unwrap_err().contains("k is 0"));
    let said = ask(5, "year:[1987 TO").unwrap_err();
    assert!(said.contains("cannot be understood") && said.contains("places:japan AND year"), "{said}");
    assert!(ask(5, "  ").unwrap_err().contains("empty"));
    assert!(
        index
            .search(&tables(&super::tests::model(CodeShape::micpq(16).unwrap(), 1), 1, 1), &SearchConfig::default())
            .is_err()
    );

    let mut writer = index.writer().unwrap();
    let good = [0x12, 0x03];
    let refuse = |writer: &mut IndexWriter, document: &Document, code: &[u8], part: &str| {
        let said = writer.add(document, code).unwrap_err().to_string();
        assert!(said.contains(part), "{said}");
    };
    refuse(&mut writer, &document(1), &[1], "expected 12 bits");
    // The thirteenth bit is unused and must be zero.
    refuse(&mut writer, &document(1), &[0x12, 0x13], "expected 12 bits");
    refuse(&mut writer, &Document { id: DocId::Str(String::new()), ..document(1) }, &good, "empty id");
    refuse(&mut writer, &Document { id: DocId::Str("x".repeat(2000)), ..document(1) }, &good, "2000 bytes");
    let odd = |name: &str, value| Document { attributes: vec![(name.into(), value)], ..document(1) };
    refuse(&mut writer, &odd("x", Value::Float(f64::NAN)), &good, "must be finite");
    refuse(&mut writer, &odd("a\u{1}b", Value::Int(1)), &good, "control characters");
    writer.add(&odd("text", Value::Text("zebra".into())), &good).unwrap();
    writer
        .add(
            &Document { attributes: vec![("p".into(), Value::Int(1)), ("p".into(), Value::Int(2))], ..document(2) },
            &good,
        )
        .unwrap();
    writer.commit(&NoProgress).unwrap();
    // An attribute with the name of a field is reached with the prefix.
    assert_eq!((ask(5, "text:zebra"), ask(5, "attributes.text:zebra")), (Ok(0), Ok(1)));
    assert_eq!((ask(5, "p:1"), ask(5, "p:2"), index.count("p:[1 TO 2]").unwrap()), (Ok(1), Ok(1), 1));
}

/// An index of several segments, with deletes.
fn sample(dir: &Path, store: Store) -> PathBuf {
    let path = dir.join("index");
    let model = model(CodeShape::micpq(32).unwrap(), 4);
    let index = Index::create(&path, &model, IndexConfig { store, ..IndexConfig::default() }).unwrap();
    let mut writer = index.writer().unwrap();
    for batch in 0..2u64 {
        for i in batch * 50..(batch + 1) * 50 {
            writer.add(&document(i), &code(&model, i)).unwrap();
        }
        writer.delete(&document(batch * 50).id).unwrap();
        writer.commit(&NoProgress).unwrap();
    }
    writer.delete(&document(3).id).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    clean(&path);
    path
}

pub(super) fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { left.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

pub(super) fn flip(path: &Path, bit: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn verify_finds_any_flipped_bit_and_names_the_file() {
    let dir = scratch();
    let path = sample(dir.path(), Store::All);
    let files = all_files(&path);
    let kinds: BTreeSet<_> = files.iter().map(|f| f.extension().unwrap_or_default().to_owned()).collect();
    for kind in ["fast", "store", "term", "idx", "pos", "fieldnorm", "del", "codes", "json", "safetensors", "md"] {
        assert!(kinds.iter().any(|k| k == kind), "no .{kind} among {kinds:?}");
    }
    let mut tried = 0;
    for file in files {
        let bits = std::fs::metadata(&file).unwrap().len() as usize * 8;
        // Eighty bits of each file, with a different offset per file.
        let step = (bits / 80).max(1);
        for bit in (tried % step..bits).step_by(step) {
            flip(&file, bit);
            let problems = found(&path).unwrap();
            assert!(!problems.is_empty(), "bit {bit} of {} went unseen", file.display());
            // A flip in a list of files may only be noticed by the file that the list no longer names.
            if file.extension().is_some_and(|e| e != "json") {
                assert!(problems.iter().any(|p| p.path == file), "bit {bit} of {}: {problems:?}", file.display());
            }
            flip(&file, bit);
            tried += 1;
        }
    }
    assert!(tried > 1000);
    clean(&path);
}

#[test]
fn verify_finds_truncated_and_missing_files() {
    let dir = scratch();
    let path = sample(dir.path(), Store::All);
    for file in all_files(&path) {
        let bytes = std::fs::read(&file).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let derived = file.extension().is_some_and(|e| e == "codes");
        for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&file, &bytes[..cut]).unwrap();
            let problems = found(&path);
            assert!(problems.is_err() || !problems.unwrap().is_empty(), "{} cut to {cut}", file.display());
            // Opening and searching may fail, but may not panic or answer from half a file.
            if !derived && let Ok(index) = Index::open(&path, &NoProgress) {
                let _ = index.search(&tables(index.model(), 1, 1), &SearchConfig::default());
            }
        }
        std::fs::remove_file(&file).unwrap();
        if !derived {
            let problems = found(&path);
            assert!(problems.is_err() || !problems.unwrap().is_empty(), "{} missing", file.display());
        }
        std::fs::write(&file, &bytes).unwrap();
    }
    clean(&path);
}

#[test]
fn damaged_packed_codes_are_rebuilt_and_reported() {
    let dir = scratch();
    let path = sample(dir.path(), Store::Codes);
    let answer = |progress: &dyn Progress| {
        let index = Index::open(&path, progress).unwrap();
        let found = index.search(&tables(index.model(), 3, 1), &SearchConfig::default()).unwrap();
        index.warnings().iter().for_each(|warning| progress.note(warning));
        found
    };
    let expected = answer(&NoProgress);
    let files: Vec<PathBuf> =
        all_files(&path).into_iter().filter(|f| f.extension().is_some_and(|e| e == "codes")).collect();
    assert!(files.len() > 1);
    let whole = std::fs::read(&files[0]).unwrap();
    let other = std::fs::read(&files[1]).unwrap();
    let mut newer = whole.clone();
    newer[8] = 9;
    for damaged in [vec![], whole[..100].to_vec(), [&whole[..], &[0]].concat(), newer, other, vec![7; whole.len()]] {
        std::fs::write(&files[0], &damaged).unwrap();
        let notes = Notes::default();
        assert_eq!(answer(&notes), expected);
        let notes = notes.taken();
        assert!(notes.iter().any(|n| n.contains("made again")), "{notes:?}");
        assert_eq!(std::fs::read(&files[0]).unwrap(), whole);
    }
    for file in &files {
        std::fs::remove_file(file).unwrap();
    }
    assert_eq!(answer(&NoProgress), expected);
    assert!(files.iter().all(|f| f.exists()));
    // If the directory cannot be written, codes stay in memory.
    std::fs::remove_dir_all(path.join(CODES)).unwrap();
    std::fs::write(path.join(CODES), "in the way").unwrap();
    assert_eq!(answer(&NoProgress), expected);
}

#[test]
fn a_damaged_column_is_an_error_and_not_a_wrong_answer() {
    let dir = scratch();
    let path = sample(dir.path(), Store::Codes);
    for file in all_files(&path) {
        if file.extension().is_some_and(|e| e == "codes") {
            std::fs::remove_file(file).unwrap();
        }
    }
    let column = all_files(&path).into_iter().find(|f| f.extension().is_some_and(|e| e == "fast")).unwrap();
    let bits = std::fs::metadata(&column).unwrap().len() as usize * 8;
    for bit in (0..bits - 1000).step_by(97) {
        flip(&column, bit);
        let said = Index::open(&path, &NoProgress).unwrap_err().to_string();
        assert!(said.contains("store"), "{said}");
        flip(&column, bit);
    }
    Index::open(&path, &NoProgress).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn search_equals_brute_force_after_any_history(
        steps in prop::collection::vec((0u8..10, 0u64..60), 1..120),
        bits in prop::sample::select(vec![16usize, 32, 64, 128]),
        binary in any::<bool>(),
    ) {
        let dir = scratch();
        let shape = if binary { CodeShape::new(bits, 2, 1).unwrap() } else { CodeShape::micpq(bits).unwrap() };
        let model = model(shape, 8);
        let index = Index::create(&dir.path().join("index"), &model, IndexConfig::default()).unwrap();
        let mut writer = index.writer().unwrap();
        let (mut twin, mut committed) = (Twin::default(), Twin::default());
        for (step, i) in steps {
            match step {
                0..=5 => {
                    writer.add(&document(i), &code(&model, i + u64::from(step))).unwrap();
                    twin.add(document(i), code(&model, i + u64::from(step)));
                }
                6 => {
                    writer.delete(&document(i).id).unwrap();
                    twin.delete(&document(i).id);
                }
                7 => {
                    writer.rollback().unwrap();
                    twin = committed.clone();
                }
                8 if i < 5 => writer.compact(&NoProgress).unwrap(),
                _ => drop(writer.commit(&NoProgress).unwrap()),
            }
            if step > 7 {
                committed = twin.clone();
                twin.check(&index, 7, None, |_| true);
            }
        }
        committed.check(&index, 100, None, |_| true);
    }
}

/// Not a test by itself: the next test runs it as another process and kills it.
#[test]
fn child_that_is_killed() {
    let Ok(path) = std::env::var("MICPQ_TEST_KILLED") else { return };
    let index = Index::open(Path::new(&path), &NoProgress).unwrap();
    let model = index.model().clone();
    let mut writer = index.writer().unwrap();
    let mut next = index.len() as u64;
    loop {
        for _ in 0..20 {
            writer.add(&document(next), &code(&model, next)).unwrap();
            next += 1;
        }
        writer.commit(&NoProgress).unwrap();
        println!("committed {next}");
        if next.is_multiple_of(100) {
            writer.compact(&NoProgress).unwrap();
        }
    }
}

#[test]
fn a_killed_writer_loses_only_uncommitted_changes() {
    use std::io::{BufRead, BufReader};
    let dir = scratch();
    let path = dir.path().join("index");
    let model = model(CodeShape::micpq(32).unwrap(), 6);
    Index::create(&path, &model, IndexConfig::default()).unwrap();
    let mut total = 0;
    for round in 0..6u64 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["index::tests::child_that_is_killed", "--exact", "--nocapture"])
            .env("MICPQ_TEST_KILLED", &path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|l| l.unwrap());
        let mut commits = lines.filter_map(|l| l.rsplit_once("committed ").map(|(_, n)| n.parse::<u64>().unwrap()));
        let announced = commits.nth(round as usize % 4).unwrap();
        // In the middle of an add, a commit or a merge.
        std::thread::sleep(std::time::Duration::from_micros(mix(3, round) % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let announced = commits.last().unwrap_or(announced);

        clean(&path);
        let index = Index::open(&path, &NoProgress).unwrap();
        let len = index.len() as u64;
        assert!(len >= announced && len.is_multiple_of(20) && announced > total, "{len} of {announced}");
        let mut twin = Twin::default();
        for i in 0..len {
            let record = index.get(&document(i).id).unwrap().unwrap();
            assert_eq!((record.code, record.sequence), (code(&model, i), i));
            twin.add(document(i), code(&model, i));
        }
        twin.check(&index, 30, None, |_| true);
        total = len;
    }
}

/// Not a test by itself: the next test runs it as another user.
#[test]
fn child_that_may_only_read() {
    let Ok(path) = std::env::var("MICPQ_TEST_READ_ONLY") else { return };
    let path = Path::new(&path);
    assert!(std::fs::write(path.join("probe"), "").is_err(), "this user may write");
    let index = Index::open(path, &NoProgress).unwrap();
    index.reload(&NoProgress).unwrap();
    let hits =
        index.search(&tables(index.model(), 1, 1), &SearchConfig { k: 1000, ..SearchConfig::default() }).unwrap();
    clean(path);
    let said = index.writer().err().unwrap().to_string();
    println!("found {} of {}; a writer: {said}", hits[0].len(), index.len());
}

#[cfg(unix)]
#[test]
fn a_read_only_index_is_searched_with_codes_in_memory() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let dir = scratch();
    let path = sample(dir.path(), Store::All);
    let files: Vec<PathBuf> =
        all_files(&path).into_iter().filter(|f| f.extension().is_some_and(|e| e == "codes")).collect();
    files.iter().for_each(|f| std::fs::remove_file(f).unwrap());
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let directories = [dir.path().to_path_buf(), path.clone(), path.join(STORE), path.join(MODEL), path.join(CODES)];
    directories.iter().for_each(|d| mode(d, 0o555));
    all_files(&path).iter().for_each(|f| mode(f, 0o444));
    // A copy that every user may execute: the test program may lie in a private directory.
    let program_dir = scratch();
    mode(program_dir.path(), 0o755);
    let program = program_dir.path().join("tests");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    mode(&program, 0o755);
    let mut child = std::process::Command::new(program);
    child.args(["index::tests::child_that_may_only_read", "--exact", "--nocapture"]).env("MICPQ_TEST_READ_ONLY", &path);
    // File modes do not restrict root.
    if std::fs::write(path.join("probe"), "").is_ok() {
        std::fs::remove_file(path.join("probe")).unwrap();
        child.uid(65534);
    }
    let output = child.output().unwrap();
    directories.iter().for_each(|d| mode(d, 0o755));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("found 97 of 97"), "{said}");
    assert!(said.contains("ermission denied"), "{said}");
    assert!(files.iter().all(|f| !f.exists()));
}
