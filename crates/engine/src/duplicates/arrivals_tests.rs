//! New documents that repeat another, against comparison with every document of the index.

use super::tests::{WIDTH, model};
use super::*;
use crate::corpus::{Document, Value};
use crate::index::{IndexConfig, IndexWriter, SplitDocument};
use crate::model::plain_tests::noise;
use crate::{Matrix, NoProgress};

/// A new document and its vector.
type New = (Document, Vec<f32>);

fn document(id: u64, text: &str) -> Document {
    let attributes = vec![("year".to_owned(), Value::Int(1980 + id as i64 % 10))];
    Document { id: DocId::Int(id), text: text.into(), labels: vec!["news".into()], attributes }
}

/// 12 words of a story, with `edits` of them changed.
fn text(story: u64, edits: usize) -> String {
    let word = |i: usize| {
        if i < edits { format!("edit{story}x{i}") } else { format!("w{}", (story * 31 + i as u64 * 7) % 400) }
    };
    (0..12).map(|i| word(11 - i)).collect::<Vec<_>>().join(" ")
}

fn vector(story: u64, by: f32, seed: u64) -> Vec<f32> {
    (0..WIDTH as u64).map(|i| noise(story, i) + by * noise(seed ^ 99, i)).collect()
}

/// 150 documents of 60 stories in a fixed random order: equal texts, edited ones, far ones, and updates of earlier ids.
fn arriving() -> Vec<New> {
    let random = |i: u64, of: u64, what: u64| ((noise(i, what) + 1.0) / 2.0 * of as f32) as u64 % of;
    let new = |i: u64| {
        let (story, edits) = (random(i, 60, 1), [0, 1, 2, 6][random(i, 4, 2) as usize]);
        // An update of a document before it, now and then.
        let id = if i > 20 && random(i, 12, 3) == 0 { random(i, i, 4) } else { i };
        (document(id, &text(story, edits)), vector(story, 0.04 * edits as f32, i))
    };
    (0..150).map(new).collect()
}

fn policy(on_duplicate: OnDuplicate, by: Measure, threshold: f32) -> DuplicatePolicy {
    DuplicatePolicy {
        on_duplicate,
        like: DuplicatesConfig { by: Some(by), threshold: Some(threshold), neighbours: 200 },
    }
}

/// What the index should hold in the order of insertion, with marks, and what became of duplicates.
fn brute(
    new: &[New],
    policy: &DuplicatePolicy,
    vectors: RerankVectors,
) -> (Vec<(DocId, String, Option<String>)>, Repeats) {
    let (measure, threshold) = (policy.like.by.unwrap(), policy.like.threshold.unwrap());
    let mut held: Vec<(New, Option<String>)> = Vec::new();
    let mut repeats = Repeats::default();
    let similarity = |a: &New, b: &New| match measure {
        _ if a.0.text == b.0.text => 1.0,
        Measure::Text => 0.0,
        Measure::Words => shingles::Shingles::of(&a.0.text).jaccard(&shingles::Shingles::of(&b.0.text)),
        Measure::Vectors => {
            let stored = |new: &New| vectors.rounded(&new.1).unwrap();
            let mut rows = Matrix::from_vec(WIDTH, [stored(a), stored(b)].concat());
            rows.normalize_rows();
            1.0 - kernels::squares::squared(rows.row(0), rows.row(1)) / 2.0
        }
    };
    for new in new {
        let others = held.iter().filter(|(old, _)| old.0.id != new.0.id);
        let alike = others.map(|(old, _)| (similarity(new, old), old.0.id.clone())).filter(|(s, _)| *s >= threshold);
        let mut alike: Vec<(f32, DocId)> = alike.collect();
        alike.sort_by(|a, b| b.0.total_cmp(&a.0));
        let known = held.iter().any(|(old, _)| old.0.id == new.0.id);
        let repeat = |(similarity, of): &(f32, DocId)| Repeat {
            id: new.0.id.clone(),
            duplicate_of: of.clone(),
            similarity: *similarity,
        };
        let mut mark = None;
        match policy.on_duplicate {
            OnDuplicate::Skip if !known && !alike.is_empty() => {
                repeats.skipped += 1;
                repeats.documents.push(repeat(&alike[0]));
                continue;
            }
            OnDuplicate::Mark if !alike.is_empty() => {
                repeats.marked += 1;
                repeats.documents.push(repeat(&alike[0]));
                mark = Some(alike[0].1.to_string());
            }
            OnDuplicate::Replace => {
                repeats.replaced += alike.len();
                repeats.documents.extend(alike.iter().map(repeat));
                held.retain(|(old, _)| alike.iter().all(|(_, id)| *id != old.0.id));
            }
            _ => {}
        }
        held.retain(|(old, _)| old.0.id != new.0.id);
        held.push((new.clone(), mark));
    }
    let told = held.into_iter().map(|((document, _), mark)| (document.id, document.text, mark));
    (told.collect(), repeats)
}

fn add(arrivals: &mut Arrivals, writer: &mut IndexWriter, new: &[New]) -> Result<Repeats> {
    let split: Vec<SplitDocument> =
        new.iter().map(|(document, _)| (document, std::iter::once(0..document.text.len()).collect())).collect();
    let rows = new.iter().flat_map(|(_, vector)| vector.clone()).collect();
    arrivals.add(writer, &split, &Matrix::from_vec(WIDTH, rows), &NoProgress)
}

/// Adds documents in batches of `batch`, with a commit after every `commit` batches.
fn fill(index: &Index, new: &[New], policy: &DuplicatePolicy, batch: usize, commit: usize) -> Repeats {
    let mut arrivals = Arrivals::new(index, policy).unwrap().unwrap();
    let mut writer = index.writer().unwrap();
    let mut repeats = Repeats::default();
    for (i, part) in new.chunks(batch).enumerate() {
        repeats.extend(add(&mut arrivals, &mut writer, part).unwrap());
        if i % commit == commit - 1 {
            writer.commit(&NoProgress).unwrap();
            arrivals.committed();
        }
    }
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    repeats
}

fn held(index: &Index) -> Vec<(DocId, String, Option<String>)> {
    let walk = index.walk().unwrap();
    let one = |i: usize| {
        let record = walk.get(i).unwrap();
        let mark = record.attributes.into_iter().find(|(name, _)| name == DUPLICATE_OF).map(|(_, value)| match value {
            Value::Text(id) => id,
            other => panic!("a mark of {other:?}"),
        });
        (record.id, record.text.unwrap(), mark)
    };
    (0..walk.len()).map(one).collect()
}

fn create(dir: &tempfile::TempDir, name: &str, rerank_vectors: RerankVectors) -> Index {
    let config = IndexConfig { rerank_vectors, ..IndexConfig::default() };
    Index::create(&dir.path().join(name), &model(), config).unwrap()
}

#[test]
fn an_index_holds_what_comparing_every_pair_leaves() {
    let new = arriving();
    let stored = RerankVectors::Int8;
    for (measure, threshold) in [(Measure::Text, 1.0), (Measure::Words, 0.5), (Measure::Vectors, 0.98)] {
        for action in [OnDuplicate::Skip, OnDuplicate::Mark, OnDuplicate::Replace] {
            let policy = policy(action, measure, threshold);
            let (expected, told) = brute(&new, &policy, stored);
            assert!(told.documents.len() > 10 && expected.len() > 30, "{policy:?}: {told:?}");
            // One batch, one commit; batches in one commit; commits in between.
            for (batch, commit) in [(150, 1), (40, 9), (1, 7), (25, 1)] {
                let dir = tempfile::tempdir().unwrap();
                let index = create(&dir, "i", stored);
                let repeats = fill(&index, &new, &policy, batch, commit);
                assert_eq!(held(&index), expected, "{policy:?} in batches of {batch}, {commit} per commit");
                assert_eq!(repeats, told);
            }
        }
    }
}

#[test]
fn edited_copies_are_found_by_their_words_where_codes_say_nothing() {
    // Vectors that know nothing of the texts, and one neighbour by code.
    let new: Vec<New> =
        arriving().into_iter().enumerate().map(|(i, (d, _))| (d, vector(1000 + i as u64, 0.0, 0))).collect();
    let mut policy = policy(OnDuplicate::Skip, Measure::Words, 0.5);
    let (_, told) = brute(&new, &policy, RerankVectors::None);
    policy.like.neighbours = 1;
    for (batch, commit) in [(150, 1), (10, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let index = create(&dir, "i", RerankVectors::None);
        let found = fill(&index, &new, &policy, batch, commit).skipped;
        assert!(found * 100 >= told.skipped * 97, "{found} of {} in batches of {batch}", told.skipped);
    }
}

#[test]
fn a_copy_behind_hundreds_of_its_code_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let index = create(&dir, "i", RerankVectors::None);
    let same = vector(1, 0.0, 0);
    let others: Vec<New> = (0..300).map(|i| (document(i, &format!("{i}")), same.clone())).collect();
    let policy = DuplicatePolicy { on_duplicate: OnDuplicate::Skip, ..DuplicatePolicy::default() };
    assert!(fill(&index, &others, &policy, 300, 1).is_empty());
    let again = vec![(document(900, "299"), same)];
    assert_eq!(fill(&index, &again, &policy, 1, 1).documents[0].duplicate_of, DocId::Int(299));
}

#[test]
fn nothing_is_written_when_the_commit_does_not_come() {
    let dir = tempfile::tempdir().unwrap();
    let index = create(&dir, "i", RerankVectors::Int8);
    let new = arriving();
    let policy = policy(OnDuplicate::Replace, Measure::Words, 0.5);
    fill(&index, &new[..100], &policy, 100, 1);
    let before = held(&index);
    let mut arrivals = Arrivals::new(&index, &policy).unwrap().unwrap();
    let mut writer = index.writer().unwrap();
    assert!(!add(&mut arrivals, &mut writer, &new[100..]).unwrap().is_empty());
    drop(writer);
    index.reload(&NoProgress).unwrap();
    assert_eq!(held(&index), before);

    struct Stopped;
    impl Progress for Stopped {
        fn interrupted(&self) -> bool {
            true
        }
    }
    let mut arrivals = Arrivals::new(&index, &policy).unwrap().unwrap();
    let mut writer = index.writer().unwrap();
    let split: Vec<SplitDocument> = vec![(&new[0].0, std::iter::once(0..new[0].0.text.len()).collect())];
    let stopped = arrivals.add(&mut writer, &split, &Matrix::from_vec(WIDTH, new[0].1.clone()), &Stopped);
    assert!(matches!(stopped, Err(Error::Interrupted)));
    writer.commit(&NoProgress).unwrap();
    index.reload(&NoProgress).unwrap();
    assert_eq!(held(&index), before);
}

#[test]
fn chunks_are_compared_as_documents() {
    let dir = tempfile::tempdir().unwrap();
    let chunk = Some(crate::chunk::ChunkSizes { tokens: 32, overlap: 4 });
    let config = IndexConfig { chunk, ..IndexConfig::default() };
    let index = Index::create(&dir.path().join("i"), &model(), config).unwrap();
    let policy = policy(OnDuplicate::Skip, Measure::Words, 0.5);
    let mut writer = index.writer().unwrap();
    let mut arrivals = Arrivals::new(&index, &policy).unwrap().unwrap();
    let long = format!("{} {}", text(1, 0), text(2, 0));
    let (first, again, other) = (document(1, &long), document(2, &long.to_uppercase()), document(3, &text(2, 0)));
    let half = |document: &Document| vec![0..document.text.len() / 2, document.text.len() / 2..document.text.len()];
    let rows = |n: u64| Matrix::from_vec(WIDTH, (0..n).flat_map(|i| vector(i, 0.0, 0)).collect());
    let split: Vec<SplitDocument> = vec![(&first, half(&first))];
    arrivals.add(&mut writer, &split, &rows(2), &NoProgress).unwrap();
    writer.commit(&NoProgress).unwrap();
    arrivals.committed();
    let split: Vec<SplitDocument> =
        vec![(&again, half(&again)), (&other, std::iter::once(0..other.text.len()).collect())];
    let repeats = arrivals.add(&mut writer, &split, &rows(3), &NoProgress).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    assert_eq!((repeats.skipped, repeats.documents[0].similarity), (1, 1.0));
    assert_eq!((index.len(), index.get(&DocId::Int(2)).unwrap()), (2, None));
    assert_eq!(index.get(&DocId::Int(3)).unwrap().unwrap().text.unwrap(), text(2, 0));
}

#[test]
fn a_policy_that_the_index_cannot_follow_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |index: &Index, policy: &DuplicatePolicy| match Arrivals::new(index, policy) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{policy:?} was accepted"),
    };
    let index = create(&dir, "i", RerankVectors::None);
    assert!(refused(&index, &policy(OnDuplicate::Skip, Measure::Vectors, 0.9)).contains("stores no rerank vectors"));
    assert!(refused(&index, &policy(OnDuplicate::Keep, Measure::Words, 0.9)).contains("on_duplicate keeps"));
    assert!(refused(&index, &policy(OnDuplicate::Skip, Measure::Words, 1.5)).contains("threshold"));
    let config = IndexConfig { store: Store::Codes, rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() };
    let codes = Index::create(&dir.path().join("codes"), &model(), config).unwrap();
    assert!(refused(&codes, &policy(OnDuplicate::Mark, Measure::Vectors, 0.9)).contains("stores none"));
    assert!(Arrivals::new(&codes, &policy(OnDuplicate::Skip, Measure::Vectors, 0.9)).unwrap().is_some());
    assert!(Arrivals::new(&index, &DuplicatePolicy::default()).unwrap().is_none());
}
