//! The defaults that the OpenAPI description states are those of the config types.

use std::collections::BTreeMap;

use engine::duplicates::DuplicatesConfig;
use engine::index::Store;
use engine::map::MapConfig;
use engine::query::{RecallConfig, SearchConfig};
use engine::saved::MatchRequest;
use engine::topics::TopicsConfig;
use micpq::BuildConfig;
use serde_json::{Value, json};

use crate::routes::{contents, insight, map};

/// Every default of the description: of properties by schema, of parameters by operation.
fn stated() -> BTreeMap<String, Value> {
    let api: Value = serde_json::from_str(&crate::openapi()).unwrap();
    let mut found = BTreeMap::new();
    let mut note = |place: String, schema: &Value| {
        // Null says no more than that the property may be left out.
        if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
            found.insert(place, default.clone());
        }
    };
    for (name, schema) in api["components"]["schemas"].as_object().unwrap() {
        for (property, schema) in schema["properties"].as_object().into_iter().flatten() {
            note(format!("{name}.{property}"), schema);
        }
    }
    for path in api["paths"].as_object().unwrap().values() {
        for operation in path.as_object().unwrap().values() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = operation["operationId"].as_str().unwrap_or_default();
                note(format!("{name}({})", parameter["name"].as_str().unwrap()), &parameter["schema"]);
            }
        }
    }
    found
}

#[test]
fn the_description_states_the_defaults_of_the_config_types() {
    let search = SearchConfig::default();
    let recall = RecallConfig::default();
    let topics = TopicsConfig::default();
    let expected: BTreeMap<String, Value> = [
        ("Search.k", json!(search.k)),
        ("Search.hybrid", json!(search.hybrid)),
        ("Search.kind", json!(search.kind)),
        ("Search.documents", json!(search.documents)),
        ("Search.snippets", json!(search.snippets)),
        ("Search.explain", json!(search.explain)),
        ("queryVector(k)", json!(search.k)),
        ("queryVector(documents)", json!(search.documents)),
        ("MeasureRecall.queries", json!(recall.queries)),
        ("MeasureRecall.k", json!(recall.k)),
        ("MeasureRecall.windows", json!(recall.windows)),
        ("MeasureRecall.rerank", json!(recall.rerank)),
        ("Create.rerank_vectors", json!(BuildConfig::RERANK_VECTORS)),
        ("Create.store", json!(Store::default())),
        ("Dedup.delete", json!(false)),
        ("MakeMap.seed", json!(MapConfig::default().seed)),
        ("getMapValues(values)", json!(map::DEFAULT_VALUES)),
        ("Dedup.neighbours", json!(DuplicatesConfig::default().neighbours)),
        ("Dedup.groups", json!(contents::GROUPS)),
        ("FindTopics.seed", json!(topics.seed)),
        ("FindTopics.terms", json!(topics.terms)),
        ("FindTopics.typical", json!(topics.typical)),
        ("Train.sample", json!(BuildConfig::SAMPLE)),
        ("listMatches(limit)", json!(MatchRequest::default().limit)),
        ("streamDocuments(id_field)", json!("id")),
        ("getFacets(values)", json!(insight::DEFAULT_VALUES)),
        ("getCodeword(documents)", json!(insight::DEFAULT_DOCUMENTS)),
    ]
    .into_iter()
    .map(|(place, value)| (place.to_owned(), value))
    .collect();
    assert_eq!(stated(), expected);
}
