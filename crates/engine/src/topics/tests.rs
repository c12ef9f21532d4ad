//! Planted clusters, the same ones on any number of threads and segments, and what topics are called.

use kernels::dropout::mix;

use super::*;
use crate::corpus::Document;
use crate::index::{IndexConfig, Store};
use crate::model::plain_tests::{noise, plain};
use crate::model::{Distance, Model};
use crate::{Matrix, NoProgress};

const WIDTH: usize = 8;
const SUBJECTS: [[&str; 4]; 3] = [
    ["crude", "barrels", "pipeline", "opec"],
    ["loans", "credit", "deposits", "bank"],
    ["wheat", "harvest", "corn", "farm"],
];

fn model() -> Model {
    plain(4, Distance::Norm, 2.0)
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
    filled(dir, commits, IndexConfig { store, ..IndexConfig::default() }, SUBJECTS)
}

fn filled(dir: &tempfile::TempDir, commits: usize, config: IndexConfig, subjects: [[&str; 4]; 3]) -> Index {
    let index = Index::create(&dir.path().join(commits.to_string()), &model(), config).unwrap();
    let mut writer = index.writer().unwrap();
    let document = |i: u64| {
        let own = subjects[subject(i)];
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

#[test]
fn topics_of_other_languages_have_names_of_their_words() {
    let german = [
        ["Verzeichnisse", "Dateien", "Festplatten", "Sicherungen"],
        ["Zinsen", "Kredite", "Banken", "Guthaben"],
        ["Weizen", "Ernten", "Felder", "Mühlen"],
    ];
    let chinese =
        [["文件", "目录", "磁盘", "备份"], ["银行", "贷款", "利率", "存款"], ["小麦", "农民", "玉米", "收成"]];
    for (code, subjects) in [("de", german), ("zh", chinese)] {
        let dir = tempfile::tempdir().unwrap();
        let config = IndexConfig { language: code.parse().unwrap(), ..IndexConfig::default() };
        let index = filled(&dir, 1, config, subjects);
        let found = find(&index, &TopicsConfig { topics: Some(3), ..TopicsConfig::default() }, &NoProgress).unwrap();
        for (topic, words) in found.topics.iter().zip(subjects) {
            let terms: Vec<&str> = topic.terms.iter().map(|t| t.term.as_str()).collect();
            for word in words {
                assert!(terms.contains(&word.to_lowercase().as_str()), "{code}: {word} is not in {terms:?}");
            }
        }
    }
}

#[test]
fn dates_of_outliers_alone_give_no_trend() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 1, Store::All);
    let walk = index.walk().unwrap();
    let outliers = vec![None; walk.len()];
    let trend = |named| trend::trend(&walk, &outliers, 3, named, &NoProgress);
    assert!(trend(None).unwrap().is_none());
    let named = trend(Some("year")).unwrap().unwrap();
    assert_eq!((named.periods.len(), named.counts.len()), (0, 3));
    assert!(trend(Some("nowhere")).is_err());
}

#[test]
fn codewords_stand_for_the_terms_of_their_documents() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 2, Store::All);
    let terms = CodewordTerms::of(&index, 4, &NoProgress).unwrap();
    assert_eq!(CodewordTerms::of(&index, 4, &NoProgress).unwrap(), terms);
    let shape = index.model().shape();
    let codewords = |id: u64| -> Vec<u8> {
        let code = index.get(&DocId::Int(id)).unwrap().unwrap().code;
        (0..shape.num_codebooks()).map(|m| shape.codeword(&code, m) as u8).collect()
    };
    let mut own_words = 0;
    let mut others = 0;
    for id in 0..60 {
        let code = codewords(id);
        let shared = terms.shared(&code, &code);
        assert_eq!(shared.iter().map(|s| s.codebook).collect::<Vec<_>>(), [0, 1, 2, 3]);
        for term in shared.iter().flat_map(|s| &s.terms) {
            assert_ne!(term, "the");
            match SUBJECTS[subject(id)].contains(&term.as_str()) {
                true => own_words += 1,
                false => others += 1,
            }
        }
        let mut other = code.clone();
        other[2] = (other[2] + 1) % 16;
        let shared = terms.shared(&code, &other);
        assert_eq!(shared.iter().map(|s| s.codebook).collect::<Vec<_>>(), [0, 1, 3]);
    }
    assert!(own_words > 150 && own_words > 2 * others, "{own_words} words of the subject, {others} others");
    let codes = filled(&dir, 1, IndexConfig { store: Store::Codes, ..IndexConfig::default() }, SUBJECTS);
    let none = CodewordTerms::of(&codes, 4, &NoProgress).unwrap();
    assert!(none.shared(&[0; 4], &[0; 4]).iter().all(|s| s.terms.is_empty()));
}

#[test]
fn followed_topics_are_given_to_documents_as_they_are_added() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 2, Store::All);
    assert!(follow(&index, "topic", &NoProgress).unwrap_err().to_string().contains("write topics first"));
    let config = TopicsConfig { topics: Some(3), ..TopicsConfig::default() };
    let found = find(&index, &config, &NoProgress).unwrap();
    mark(&index, &found, "topic", &NoProgress).unwrap();
    follow(&index, "topic", &NoProgress).unwrap();
    assert_eq!(followed(&index).unwrap().as_deref(), Some("topic"));
    let topic_of = |id: u64| {
        let record = index.get(&DocId::Int(id)).unwrap().unwrap();
        record.attributes.into_iter().find(|(name, _)| name == "topic").map(|(_, value)| value)
    };
    let before: Vec<_> = (0..60).map(topic_of).collect();
    let add = |first: u64, attributes: Vec<(String, Value)>| {
        let walk = index.walk().unwrap();
        let mut writer = index.writer().unwrap();
        for i in 0..60u64 {
            let record = walk.get(i as usize).unwrap();
            let id = DocId::Int(first + i);
            let document = Document { id, text: "new".into(), labels: vec![], attributes: attributes.clone() };
            writer.add(&document, &record.code).unwrap();
        }
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        index.reload(&NoProgress).unwrap();
    };
    add(1000, vec![]);
    for i in 0..60 {
        assert_eq!(topic_of(1000 + i), before[i as usize], "a copy has the topic of its original at once");
    }
    assert!(before.iter().filter(|topic| topic.is_some()).count() > 40);
    // What comes with a topic keeps it, and later documents of an index that was not followed have none.
    add(2000, vec![("topic".into(), Value::Int(77))]);
    assert!((0..60).all(|i| topic_of(2000 + i) == Some(Value::Int(77))));
    assert!(unfollow(&index).unwrap() && !unfollow(&index).unwrap());
    add(3000, vec![]);
    assert!((0..60).all(|i| topic_of(3000 + i).is_none()));
}

#[test]
fn verify_finds_damaged_followed_topics_and_no_writer_uses_them() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 1, Store::All);
    let config = TopicsConfig { topics: Some(3), ..TopicsConfig::default() };
    mark(&index, &find(&index, &config, &NoProgress).unwrap(), "topic", &NoProgress).unwrap();
    follow(&index, "topic", &NoProgress).unwrap();
    assert!(crate::index::verify(index.dir(), &NoProgress).unwrap().is_empty());
    let path = index.dir().join("topics").join("follow.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("topic", "other", 1)).unwrap();
    let problems = crate::index::verify(index.dir(), &NoProgress).unwrap();
    assert!(problems.len() == 1 && format!("{problems:?}").contains("follow.json"), "{problems:?}");
    let error = index.writer().err().unwrap();
    let said = error.to_string();
    assert!(said.contains("follow.json") && said.contains("follow the topics again"), "{said}");
    assert_eq!(error.remedy(), Some(&crate::error::Remedy::FollowTopics));
}

#[test]
fn a_document_without_a_title_is_called_by_its_text() {
    let titled = |own: &str, text: Option<&str>| {
        let attributes = vec![("title".to_owned(), Value::Text(own.into()))];
        let text = text.map(str::to_owned);
        title(&Record { id: DocId::Int(1), code: vec![], sequence: 0, text, labels: vec![], attributes })
    };
    assert_eq!(titled("Oil", Some("It rises")).as_deref(), Some("Oil"));
    assert_eq!(titled(" ", Some("It\n rises")).as_deref(), Some("It rises"));
    assert_eq!((titled("", Some("  ")), titled("", None)), (None, None));
}
