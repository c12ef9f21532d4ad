//! Planted clusters, the same ones on any number of threads and segments, and what topics are called.

use kernels::dropout::mix;

use super::*;
use crate::corpus::Document;
use crate::index::{IndexConfig, Store};
use crate::model::{CodeShape, Codebooks, Dense, Distance, FORMAT, Model, ModelConfig, Projection};
use crate::{Matrix, NoProgress};

const WIDTH: usize = 8;
const SUBJECTS: [[&str; 4]; 3] = [
    ["crude", "barrels", "pipeline", "opec"],
    ["loans", "credit", "deposits", "bank"],
    ["wheat", "harvest", "corn", "farm"],
];

fn noise(seed: u64, i: u64) -> f32 {
    (mix(seed, i) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn model() -> Model {
    let shape = CodeShape::new(4, 16, 2).unwrap();
    let identity = (0..WIDTH * WIDTH).map(|i| f32::from(u8::from(i / WIDTH == i % WIDTH))).collect();
    let projection = Projection::new(vec![Dense::new(WIDTH, identity, vec![0.0; WIDTH]).unwrap()]).unwrap();
    let codebooks = Codebooks::new(shape, (0..4 * 16 * 2).map(|i| 2.0 * noise(3, i)).collect()).unwrap();
    let config = ModelConfig {
        format: FORMAT,
        method: "test".into(),
        shape,
        distance: Distance::Norm,
        embedding: None,
        training: serde_json::Value::Null,
    };
    Model::new(config, projection, codebooks).unwrap()
}

/// Subjects of 150, 100 and 50 documents; the second one grows over the years.
fn subject(i: u64) -> usize {
    match i % 6 {
        0..3 => 0,
        3..5 => 1,
        _ => 2,
    }
}

fn index(dir: &tempfile::TempDir, commits: usize, store: Store) -> Index {
    let config = IndexConfig { store, ..IndexConfig::default() };
    let index = Index::create(&dir.path().join(commits.to_string()), &model(), config).unwrap();
    let mut writer = index.writer().unwrap();
    let document = |i: u64| {
        let own = SUBJECTS[subject(i)];
        let words: Vec<&str> = (0..8).map(|w| if w % 3 == 2 { "the" } else { own[mix(i, w) as usize % 4] }).collect();
        let year =
            if subject(i) == 1 { 1990 - (mix(i, 77) % 4).min(mix(i, 78) % 4) as i64 } else { 1987 + (i % 4) as i64 };
        let attributes = vec![("year".to_owned(), Value::Int(year)), ("size".to_owned(), Value::Int(1234))];
        Document { id: DocId::Int(i), text: words.join(" "), labels: vec![], attributes }
    };
    let vector = |i: u64| (0..WIDTH as u64).map(move |w| noise(subject(i) as u64 + 50, w) * 2.0 + 0.4 * noise(i, w));
    let all: Vec<u64> = (0..300).collect();
    for part in all.chunks(300 / commits) {
        let documents: Vec<Document> = part.iter().map(|&i| document(i)).collect();
        let vectors = part.iter().flat_map(|&i| vector(i)).collect();
        writer.add_embeddings(&documents, &Matrix::from_vec(WIDTH, vectors)).unwrap();
        writer.commit(&NoProgress).unwrap();
    }
    writer.close(&NoProgress).unwrap();
    index
}

#[test]
fn planted_subjects_are_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 1, Store::All);
    let config = TopicsConfig { topics: Some(3), ..TopicsConfig::default() };
    let found = find(&index, &config, &NoProgress).unwrap();
    let sizes: Vec<u64> = found.topics.iter().map(|t| t.documents + t.outliers).collect();
    assert_eq!(sizes, [150, 100, 50]);
    for (i, (id, sequence, assignment)) in found.assignments.iter().enumerate() {
        assert_eq!((id, *sequence), (&DocId::Int(i as u64), i as u64));
        assert_eq!(usize::from(assignment.topic), subject(i as u64), "document {i}");
    }
    for (topic, words) in found.topics.iter().zip(SUBJECTS) {
        let terms: Vec<&str> = topic.terms.iter().map(|t| t.term.as_str()).collect();
        assert_eq!(terms.len(), 4, "no stop word, no word of another subject: {terms:?}");
        assert!(words.iter().all(|word| terms.contains(word)), "{terms:?}");
        assert!(topic.typical.len() == 3 && topic.typical.iter().all(|t| t.text.is_some()));
        assert_eq!(topic.trend.iter().sum::<u64>(), topic.documents);
    }
    assert_eq!((found.over.as_deref(), found.periods.len()), (Some("year"), 4), "not \"size\"");
    let grows = &found.topics[1].trend;
    assert!(grows[0] < grows[3] / 2, "{grows:?}");
    assert_eq!(found.hierarchy.len(), 2);
    assert_eq!(found.hierarchy[1].documents + found.outliers, 300);
}

#[test]
fn topics_do_not_depend_on_threads_or_segments() {
    let dir = tempfile::tempdir().unwrap();
    let config = TopicsConfig::default();
    let one = index(&dir, 1, Store::All);
    let found = find(&one, &config, &NoProgress).unwrap();
    let several = index(&dir, 3, Store::All);
    assert_eq!(find(&several, &config, &NoProgress).unwrap(), found);
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert_eq!(alone.install(|| find(&one, &config, &NoProgress)).unwrap(), found);
}

#[test]
fn a_topic_is_an_attribute_that_filters() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 2, Store::All);
    let config = TopicsConfig { topics: Some(3), ..TopicsConfig::default() };
    let found = find(&index, &config, &NoProgress).unwrap();
    let marked = mark(&index, &found, "topic", &NoProgress).unwrap();
    assert_eq!(marked as u64, 300 - found.outliers);
    for topic in &found.topics {
        assert_eq!(index.count(&format!("topic:{}", topic.number)).unwrap() as u64, topic.documents);
    }
    // Topics of the marked index are the same: the order of insertion stayed.
    assert_eq!(find(&index, &config, &NoProgress).unwrap().topics, found.topics);
}

#[test]
fn codes_alone_have_topics_without_names() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 1, Store::Codes);
    let config = TopicsConfig { topics: Some(3), ..TopicsConfig::default() };
    let found = find(&index, &config, &NoProgress).unwrap();
    assert_eq!(found.topics.iter().map(|t| t.documents + t.outliers).collect::<Vec<_>>(), [150, 100, 50]);
    assert!(found.topics.iter().all(|t| t.terms.is_empty() && t.name == format!("topic {}", t.number)));
    assert!(found.topics.iter().all(|t| t.typical.len() == 3 && t.typical[0].text.is_none()));
    assert!(mark(&index, &found, "topic", &NoProgress).unwrap_err().to_string().contains("stores no attributes"));
}

#[test]
fn bad_options_are_refused_with_the_value() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 1, Store::All);
    let refused = |config: TopicsConfig| find(&index, &config, &NoProgress).unwrap_err().to_string();
    assert!(refused(TopicsConfig { topics: Some(0), ..Default::default() }).contains("topics is 0"));
    assert!(refused(TopicsConfig { topics: Some(301), ..Default::default() }).contains("300 documents"));
    assert!(refused(TopicsConfig { topics: Some(5000), ..Default::default() }).contains("1 to 1000"));
    let said = refused(TopicsConfig { over: Some("nowhere".into()), ..Default::default() });
    assert!(said.contains("\"nowhere\"") && said.contains("YYYY"), "{said}");
}

#[test]
fn documents_added_later_get_the_nearest_topic() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 2, Store::All);
    let said = find_later(&index, "topic", &NoProgress).unwrap_err().to_string();
    assert!(said.contains("no document has a topic"), "{said}");
    assert!(find_later(&index, "size", &NoProgress).unwrap_err().to_string().contains("1234"));
    let config = TopicsConfig { topics: Some(3), ..TopicsConfig::default() };
    let found = find(&index, &config, &NoProgress).unwrap();
    mark(&index, &found, "topic", &NoProgress).unwrap();
    let topic_of = |id: u64| {
        let record = index.get(&DocId::Int(id)).unwrap().unwrap();
        record.attributes.into_iter().find(|(name, _)| name == "topic").map(|(_, value)| value)
    };
    let before: Vec<_> = (0..300).map(topic_of).collect();
    let unchanged = find_later(&index, "topic", &NoProgress).unwrap();
    assert_eq!((unchanged.assigned, unchanged.outliers), (0, found.outliers));

    // Copies of documents without their topics, and one far from all.
    let walk = index.walk().unwrap();
    let mut writer = index.writer().unwrap();
    for i in 0..60u64 {
        let record = walk.get(i as usize).unwrap();
        let document = Document { id: DocId::Int(1000 + i), text: "new".into(), labels: vec![], attributes: vec![] };
        writer.add(&document, &record.code).unwrap();
    }
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    index.reload(&NoProgress).unwrap();
    let later = find_later(&index, "topic", &NoProgress).unwrap();
    let with_topic = (0..60).filter(|&i| before[i as usize].is_some()).count() as u64;
    assert_eq!(
        (later.documents, later.assigned, later.assigned + later.outliers),
        (360, with_topic, 60 + found.outliers)
    );
    assert_eq!(mark_later(&index, &later, "topic", &NoProgress).unwrap() as u64, with_topic);
    for i in 0..60 {
        assert_eq!(topic_of(1000 + i), before[i as usize], "a copy has the topic of its original");
    }
    assert_eq!((0..300).map(topic_of).collect::<Vec<_>>(), before, "no topic changes");
    assert_eq!(later.topics.iter().sum::<u64>(), 300 - found.outliers + with_topic);
}
