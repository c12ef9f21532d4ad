//! A backup that the program made whose manifest has format 1 is restored, and all that is in it is read: the index, a fast query
//! encoder and saved queries.
//!
//! `data/store-1` was made by `micpq index backup` from an index of 120 short texts (OPQ, 32 bits, the encoder
//! `engine/tests/encoders/bert`) after `micpq distill` and two `micpq watch add`. `data/fast-hits.jsonl` is what
//! `micpq search --query-encoder fast` answered, `data/matches.json` what `micpq watch run --all` told.

use std::path::{Path, PathBuf};

use engine::NoProgress;
use engine::encoder::QueryEncoder;
use engine::query::{Query, SearchConfig, Searcher};
use engine::saved::{self, MatchRequest, Start, Threshold};
use serde_json::Value;

/// Cosines are sums in an order that may change; distances are not.
const ROUNDING: f64 = 1e-5;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The index of the backup, restored.
fn restored(dir: &Path) -> Searcher {
    let place = format!("file://{}", data().join("store-1").display());
    let backups = backups::list(&place).unwrap();
    assert_eq!(backups.iter().map(|one| (one.index.as_str(), one.documents)).collect::<Vec<_>>(), [("news", 120)]);
    let path = dir.join("news");
    assert_eq!(backups::restore(&place, Some(&backups[0].name), &path, false, &NoProgress).unwrap().documents, 120);
    assert!(engine::index::verify(&path, &NoProgress).unwrap().is_empty());
    Searcher::open(&path, &NoProgress).unwrap()
}

#[test]
fn a_fast_query_encoder_of_format_1_answers_as_the_program_that_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let searcher = restored(dir.path());
    let query = Query { encoder: QueryEncoder::Fast, ..Query::text("crude oil rises in town 3") };
    let config = SearchConfig { k: 5, ..SearchConfig::default() };
    let answers = searcher.search(&[query], &config, &NoProgress).unwrap();
    let text = std::fs::read_to_string(data().join("fast-hits.jsonl")).unwrap();
    let expected: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers[0].hits.len(), expected.len());
    for (hit, expected) in answers[0].hits.iter().zip(&expected) {
        assert_eq!(hit.id.to_string(), expected["id"].to_string());
        assert!((f64::from(hit.distance) - expected["distance"].as_f64().unwrap()).abs() < ROUNDING, "{expected}");
    }
}

#[test]
fn saved_queries_of_format_1_match_as_in_the_program_that_saved_them() {
    let dir = tempfile::tempdir().unwrap();
    let searcher = restored(dir.path());
    let queries = saved::list(searcher.index()).unwrap();
    let names: Vec<&str> = queries.iter().map(|query| query.name.as_str()).collect();
    assert_eq!(names, ["oil", "wheat"]);
    assert_eq!(queries[0].threshold, Some(Threshold::Cosine(0.9)));
    assert_eq!((queries[1].threshold, queries[1].filter.as_deref()), (Some(Threshold::Distance(0.2)), Some("town")));
    assert_eq!(saved::position(searcher.index()).unwrap(), Some(120));

    let request = MatchRequest { start: Start::All, limit: usize::MAX, ..MatchRequest::default() };
    let found = saved::matches(&searcher, &request, &NoProgress).unwrap().matches;
    let text = std::fs::read_to_string(data().join("matches.json")).unwrap();
    let expected: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(
            (found.query.as_str(), found.id.to_string()),
            (expected["query"].as_str().unwrap(), expected["id"].to_string())
        );
        for (found, name) in [(found.cosine, "cosine"), (found.distance, "distance")] {
            let expected = expected[name].as_f64().unwrap();
            assert!((f64::from(found.unwrap()) - expected).abs() < ROUNDING, "{name}: {found:?}, {expected}");
        }
    }
}
