//! Duplicates against comparison of all pairs, and what is done with them.

use super::*;
use crate::corpus::{Document, Value};
use crate::index::IndexConfig;
use crate::model::plain_tests::{noise, plain};
use crate::model::{Distance, Model};
use crate::{Matrix, NoProgress};

pub(crate) const WIDTH: usize = 16;

pub(crate) fn model() -> Model {
    plain(8, Distance::Squared, 1.0)
}

fn document(id: u64, text: &str) -> Document {
    let attributes = vec![("year".to_owned(), Value::Int(1980 + id as i64 % 10))];
    Document { id: DocId::Int(id), text: text.into(), labels: vec!["news".into()], attributes }
}

/// An index of texts and vectors, two documents per segment at first.
fn index(dir: &tempfile::TempDir, rows: &[(String, Vec<f32>)], config: IndexConfig) -> Index {
    let index = Index::create(&dir.path().join("i"), &model(), config).unwrap();
    let mut writer = index.writer().unwrap();
    for (i, part) in rows.chunks(rows.len().div_ceil(3).max(1)).enumerate() {
        let first = (i * rows.len().div_ceil(3)) as u64;
        let documents: Vec<Document> = part.iter().zip(first..).map(|((text, _), id)| document(id, text)).collect();
        let vectors = part.iter().flat_map(|(_, vector)| vector.clone()).collect();
        writer.add_embeddings(&documents, &Matrix::from_vec(WIDTH, vectors)).unwrap();
        writer.commit(&NoProgress).unwrap();
    }
    writer.close(&NoProgress).unwrap();
    index
}

fn by_vectors() -> DuplicatesConfig {
    DuplicatesConfig { by: Some(Measure::Vectors), threshold: Some(0.98), ..Default::default() }
}

fn with_vectors() -> IndexConfig {
    IndexConfig { rerank_vectors: RerankVectors::F16, ..IndexConfig::default() }
}

/// 200 random vectors; every tenth has copies with little noise at other places.
fn planted() -> Vec<(String, Vec<f32>)> {
    let vector = |seed: u64, by: f32| (0..WIDTH as u64).map(|i| noise(seed, i) + by * noise(seed ^ 99, i)).collect();
    let mut rows: Vec<(String, Vec<f32>)> = (0..200).map(|i| (format!("text {i}"), vector(i, 0.0))).collect();
    for i in (0..200).step_by(10) {
        rows.push((format!("text {i} again"), vector(i, 0.05)));
        if i % 20 == 0 {
            rows.push((format!("text {i}"), vector(i, 0.0)));
        }
    }
    rows
}

fn ids(found: &Duplicates) -> Vec<Vec<u64>> {
    let number = |id: &DocId| if let DocId::Int(n) = id { *n } else { panic!("a number") };
    let group = |g: &DuplicateGroup| {
        [number(&g.representative)].into_iter().chain(g.duplicates.iter().map(|d| number(&d.id))).collect()
    };
    found.groups.iter().map(group).collect()
}

#[test]
fn groups_are_those_of_all_pairs() {
    let dir = tempfile::tempdir().unwrap();
    let rows = planted();
    let index = index(&dir, &rows, with_vectors());
    let found = find(&index, &by_vectors(), &NoProgress).unwrap();
    let cosine = |a: &[f32], b: &[f32]| {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    let mut groups = Groups::new(rows.len());
    for i in 0..rows.len() {
        for j in 0..i {
            if rows[i].0 == rows[j].0 || cosine(&rows[i].1, &rows[j].1) >= 0.98 {
                groups.join(i as u32, j as u32);
            }
        }
    }
    let expected: Vec<Vec<u64>> =
        groups.several().into_iter().map(|set| set.into_iter().map(u64::from).collect()).collect();
    assert_eq!(expected.len(), 20);
    assert_eq!(ids(&found), expected);
    assert_eq!((found.documents, found.exact, found.near, found.measure), (230, 10, 20, Measure::Vectors));
    let first = &found.groups[0].duplicates;
    assert!(!first[0].exact && first[0].similarity > 0.98 && first[0].similarity < 1.0);
    assert!(first[1].exact && first[1].similarity == 1.0);
    // Threads and segments change nothing.
    index.writer().unwrap().compact(&NoProgress).unwrap();
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let config = by_vectors();
    assert_eq!(alone.install(|| find(&index, &config, &NoProgress)).unwrap().groups, found.groups);
}

#[test]
fn words_decide_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let vector = |seed: u64| (0..WIDTH as u64).map(|i| noise(seed, i)).collect::<Vec<f32>>();
    let words = |from: usize, to: usize| (from..to).map(|i| format!("w{i}")).collect::<Vec<_>>().join(" ");
    let rows = vec![
        (words(0, 20), vector(1)),
        (words(50, 70), vector(2)),
        (words(0, 18), vector(1)),
        (words(0, 20).to_uppercase(), vector(1)),
        // Near in code, far in words: not a duplicate.
        (words(80, 99), vector(2)),
        (" ".into(), vector(3)),
        (" ".into(), vector(3)),
    ];
    let index = index(&dir, &rows, IndexConfig::default());
    let found = find(&index, &DuplicatesConfig::default(), &NoProgress).unwrap();
    assert_eq!((ids(&found), found.measure), (vec![vec![0, 2, 3]], Measure::Words));
    assert_eq!(found.groups[0].duplicates[1].similarity, 1.0);
    let exact = DuplicatesConfig { by: Some(Measure::Text), ..Default::default() };
    assert!(find(&index, &exact, &NoProgress).unwrap().groups.is_empty(), "no two texts are equal");
    let said = find(&index, &by_vectors(), &NoProgress).unwrap_err().to_string();
    assert!(said.contains("stores no rerank vectors"), "{said}");
}

#[test]
fn an_index_with_neither_texts_nor_vectors_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rows = planted();
    let codes = IndexConfig { store: Store::Codes, ..IndexConfig::default() };
    let bare = index(&dir, &rows, codes);
    let said = find(&bare, &DuplicatesConfig::default(), &NoProgress).unwrap_err().to_string();
    assert!(said.contains("neither texts nor rerank vectors"), "{said}");
    let other = tempfile::tempdir().unwrap();
    let vectors = index(
        &other,
        &rows,
        IndexConfig { store: Store::Codes, rerank_vectors: RerankVectors::Int8, ..with_vectors() },
    );
    let config = by_vectors();
    let found = find(&vectors, &config, &NoProgress).unwrap();
    assert_eq!((found.groups.len(), found.exact), (20, 0), "vectors alone find the groups");
    let said =
        find(&vectors, &DuplicatesConfig { by: Some(Measure::Text), ..Default::default() }, &NoProgress).unwrap_err();
    assert!(said.to_string().contains("stores no texts"), "{said}");
    assert!(mark(&vectors, &found, "copy_of", &NoProgress).unwrap_err().to_string().contains("stores no attributes"));
    for bad in [-0.5, 0.0, 1.5, f32::NAN] {
        let config = DuplicatesConfig { threshold: Some(bad), ..Default::default() };
        assert!(find(&vectors, &config, &NoProgress).unwrap_err().to_string().contains("threshold"));
    }
}

#[test]
fn delete_keeps_representatives_and_what_changed_since() {
    let dir = tempfile::tempdir().unwrap();
    let rows = planted();
    let index = index(&dir, &rows, with_vectors());
    let config = by_vectors();
    let found = find(&index, &config, &NoProgress).unwrap();
    // One duplicate and one representative are replaced, another representative is deleted.
    let duplicate = found.groups[0].duplicates[0].id.clone();
    let mut writer = index.writer().unwrap();
    let change = |id: &DocId| Document { id: id.clone(), ..document(0, "new") };
    let new = Matrix::from_vec(WIDTH, vec![1.0; WIDTH]);
    writer.add_embeddings(&[change(&duplicate)], &new).unwrap();
    writer.add_embeddings(&[change(&found.groups[1].representative)], &new).unwrap();
    writer.delete(&found.groups[2].representative).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    let stale = 1 + found.groups[1].duplicates.len() + found.groups[2].duplicates.len();

    struct Stopped;
    impl Progress for Stopped {
        fn interrupted(&self) -> bool {
            true
        }
    }
    let before = index.len();
    assert!(matches!(delete(&index, &found, &Stopped), Err(Error::Interrupted)));
    index.reload(&NoProgress).unwrap();
    assert_eq!(index.len(), before, "an interrupted deletion deletes nothing");

    let done = delete(&index, &found, &NoProgress).unwrap();
    assert_eq!((done.stale, done.deleted), (stale, 30 - stale));
    assert_eq!((done.documents, index.len()), (before - done.deleted, before - done.deleted));
    assert!(index.get(&duplicate).unwrap().is_some_and(|record| record.text.as_deref() == Some("new")));
    for group in &found.groups[3..] {
        assert!(index.get(&group.representative).unwrap().is_some());
        assert!(group.duplicates.iter().all(|d| index.get(&d.id).unwrap().is_none()));
    }
}

#[test]
fn mark_changes_nothing_but_the_attribute() {
    let dir = tempfile::tempdir().unwrap();
    let rows = planted();
    let index = index(&dir, &rows, with_vectors());
    let records = |index: &Index| -> Vec<_> {
        let walk = index.walk().unwrap();
        (0..walk.len()).map(|i| (walk.get(i).unwrap(), walk.vector(i).unwrap())).collect()
    };
    let before = records(&index);
    let config = by_vectors();
    let found = find(&index, &config, &NoProgress).unwrap();
    assert_eq!(mark(&index, &found, "copy_of", &NoProgress).unwrap(), 30);
    assert_eq!(mark(&index, &found, "copy_of", &NoProgress).unwrap(), 0, "nothing is left to change");
    let representative = &found.groups[0].representative;
    assert_eq!(index.count(&format!("copy_of:{representative}")).unwrap(), found.groups[0].duplicates.len());
    assert_eq!((index.count("copy_of:*").unwrap(), index.count("NOT copy_of:*").unwrap()), (30, 200));
    let mut after = records(&index);
    after.iter_mut().for_each(|(record, _)| record.attributes.retain(|(name, _)| name != "copy_of"));
    assert_eq!(after, before);
    let none = Duplicates { groups: Vec::new(), ..found };
    assert_eq!(mark(&index, &none, "copy_of", &NoProgress).unwrap(), 30);
    assert_eq!(records(&index), before);
    assert!(mark(&index, &none, "text", &NoProgress).unwrap_err().to_string().contains("\"text\""));
}
