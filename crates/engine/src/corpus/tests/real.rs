//! The real corpora, if available: in `$MICPQ_SHARED`, or in `shared` beside the workspace.

use std::collections::BTreeSet;
use std::time::Instant;

use super::*;
use crate::text::Clean;

/// The folder of shared data. If it is missing, prints that the test is skipped.
fn shared(part: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let root = std::env::var_os("MICPQ_SHARED").map_or(beside, PathBuf::from);
    let path = root.join(part);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path)
}

/// File, its columns if it has no header, number of documents, number of different labels.
fn known() -> Vec<(&'static str, &'static [&'static str], usize, usize)> {
    vec![
        ("agnews/train.csv.gz", &[], 57_706, 4),
        ("agnews/val.csv.gz", &[], 6_380, 4),
        ("agnews/test.csv.gz", &[], 6_381, 4),
        ("agnews/extra_title_desc.csv.gz", &[], 8_353, 4),
        ("dbpedia14/train.csv.gz", &[], 45_917, 14),
        ("dbpedia14/val.csv.gz", &[], 5_000, 14),
        ("dbpedia14/test.csv.gz", &[], 5_000, 14),
        ("20ng/train.jsonl.gz", &[], 11_314, 20),
        ("20ng/test.jsonl.gz", &[], 7_532, 20),
        ("ohsumed/train.csv.gz", &["label", "text", "id"], 3_357, 23),
        ("ohsumed/test.csv.gz", &["label", "text", "id"], 4_043, 23),
        ("dbpedia_classes/docs.csv.gz", &["label_l1", "label", "text", "split"], 10_000, 70),
        ("short/stackoverflow.csv.gz", &[], 20_000, 20),
        ("short/biomedical.csv.gz", &[], 20_000, 20),
        ("short/searchsnippets.csv.gz", &[], 12_340, 8),
        ("short/googlenews_ts.csv.gz", &[], 11_109, 152),
        ("short/dblp.csv.gz", &[], 54_595, 4),
    ]
}

#[test]
fn real_corpora_have_the_published_counts() {
    let Some(data) = shared("data") else { return };
    for (file, columns, count, classes) in known() {
        // Its ids are article numbers, which are unique only within a newsgroup.
        let config = CorpusConfig { columns: strings(columns), unique_ids: !file.starts_with("20ng"), ..skipping() };
        let (documents, skipped) = drain(Corpus::open(&data.join(file), &config).unwrap()).unwrap();
        assert_eq!((documents.len(), skipped.count()), (count, 0), "{file}: {skipped}");
        let labels: BTreeSet<&String> = documents.iter().flat_map(|document| &document.labels).collect();
        assert_eq!(labels.len(), classes, "{file}");
        assert!(documents.iter().all(|document| document.labels.len() == 1), "{file}");
    }
}

#[test]
fn reuters_joins_text_fields_and_splits_labels() {
    let Some(data) = shared("data") else { return };
    let config = CorpusConfig {
        text_fields: strings(&["title", "body"]),
        label_field: Some("topics".into()),
        ..CorpusConfig::default()
    };
    let path = data.join("reuters21578/docs.jsonl.gz");
    let (documents, skipped) = drain(Corpus::open(&path, &skipping_with(&config)).unwrap()).unwrap();
    assert_eq!(documents.len() as u64 + skipped.count(), 21_578);
    assert!(skipped.reasons().iter().all(|reason| reason.contains("is empty")), "{skipped}");
    let labels: BTreeSet<&String> = documents.iter().flat_map(|document| &document.labels).collect();
    assert_eq!(labels.len(), 120);
    assert_eq!((documents[0].id.clone(), &documents[0].labels), (DocId::Int(1), &strings(&["cocoa"])));
    assert!(documents[0].text.starts_with("BAHIA COCOA REVIEW Showers continued"), "{}", documents[0].text);
    let names: Vec<&str> = documents[0].attributes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["lewis", "has_topics"]);
}

fn skipping_with(config: &CorpusConfig) -> CorpusConfig {
    CorpusConfig { on_error: OnError::Skip, ..config.clone() }
}

#[test]
fn cleaning_equals_the_goldens() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/clean.json");
    let goldens: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(goldens.len() >= 10);
    for golden in goldens {
        let (raw, clean) = (golden["in"].as_str().unwrap(), golden["out"].as_str().unwrap());
        assert_eq!(Clean::Faithful.apply(raw, None), clean, "{raw}");
    }
}

/// `cargo test --release -p micpq-engine throughput -- --ignored --nocapture`
#[test]
#[ignore = "a measurement: it prints rates and asserts nothing that a timer decides"]
fn throughput() {
    let Some(data) = shared("data") else { return };
    for file in ["agnews/train.csv.gz", "20ng/train.jsonl.gz"] {
        let config = CorpusConfig { unique_ids: !file.starts_with("20ng"), ..CorpusConfig::default() };
        let began = Instant::now();
        let (documents, _) = drain(Corpus::open(&data.join(file), &config).unwrap()).unwrap();
        let read = began.elapsed().as_secs_f64();
        let bytes: usize = documents.iter().map(|document| document.text.len()).sum();
        let began = Instant::now();
        let kept: usize = documents.iter().map(|d| Clean::Faithful.apply(&d.text, None).len()).sum();
        let cleaned = began.elapsed().as_secs_f64();
        let count = documents.len() as f64;
        println!(
            "{file}: {:.0} documents/s read, {:.0} documents/s cleaned ({:.0} MB/s of text, {kept} bytes kept)",
            count / read,
            count / cleaned,
            bytes as f64 / cleaned / 1e6
        );
    }
}
