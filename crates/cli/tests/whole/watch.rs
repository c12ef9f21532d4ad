//! Saved queries and their matches.

use serde_json::{Value, json};

use crate::bench::{Bench, TINY, text};

fn ids(found: &Value) -> Vec<(String, String)> {
    let one =
        |one: &Value| (one["query"].as_str().unwrap().to_owned(), one["id"].to_string().trim_matches('"').to_owned());
    found["matches"].as_array().unwrap().iter().map(one).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(query, id)| ((*query).to_owned(), (*id).to_owned())).collect()
}

#[test]
fn each_run_tells_what_is_new() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 2 --views noise:4 -o i"));
    let story = "The committee of seven towns met on Friday about the price of a bridge";
    let rows = [
        json!({ "id": "bridge", "text": story, "year": 2031 }),
        json!({ "id": "poem", "text": "a poem of spring", "year": 2031 }),
    ];
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(bench.path("new.jsonl"), lines.join("\n")).unwrap();

    assert!(bench.ok(&format!("watch add i bridges '{story}' --cosine 0.999")).contains("bridges: saved"));
    assert!(bench.ok("watch add i recent --filter year:2031").contains("recent: saved"));
    let listed = bench.json("watch list i");
    assert_eq!(
        (&listed[0]["name"], &listed[0]["since"], &listed[1]["filter"]),
        (&json!("bridges"), &json!(400), &json!("year:2031"))
    );
    assert!(bench.ok("watch run i").starts_with("no new matches; next "));
    bench.ok("index add i new.jsonl");
    let place = bench.json("watch run i --name bridges")[0]["next"].as_str().unwrap().to_owned();
    let said = bench.ok("watch run i --name bridges");
    assert!(said.contains("bridges") && said.contains("1 matches; next "), "{said}");

    // Without a name the run is remembered.
    let first = &bench.json("watch run i")[0];
    assert_eq!(ids(first), pairs(&[("bridges", "bridge"), ("recent", "bridge"), ("recent", "poem")]));
    assert_eq!(ids(&bench.json("watch run i")[0]), []);
    assert_eq!(ids(&bench.json(&format!("watch run i --after {place}"))[0]), []);
    bench.ok("index add i new.jsonl");
    assert_eq!(ids(&bench.json(&format!("watch run i --after {place}"))[0]).len(), 3, "an update is new");
    bench.ok("index compact i");
    let page = &bench.json("watch run i --limit 1")[0];
    assert_eq!((ids(page).len(), &page["more"]), (2, &json!(true)));
    assert_eq!(ids(&bench.json("watch run i")[0]), pairs(&[("recent", "poem")]));

    // A backup keeps them; a build in its place does not.
    bench.ok("index backup i copy");
    assert_eq!(bench.json("watch list copy").len(), 2);
    assert!(bench.fails(&format!("watch run copy --after {place}"), 2).contains("of another index"));
    assert!(bench.ok("watch add i bridges 'a bridge' --distance 3").contains("replaced"));
    bench.ok("watch remove i recent");
    assert_eq!(bench.json("watch list i").len(), 1);
    assert_eq!(bench.json("watch list copy").len(), 2, "a copy has files of its own");
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 --force -o i"));
    assert_eq!(bench.ok("watch list i"), "no saved queries\n");
}

#[test]
fn mistakes_are_told_before_an_encoder_is_loaded() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 --rerank-vectors none -o i"));
    assert!(bench.fails("watch add i a oil", 2).contains("no threshold"));
    assert!(bench.fails("watch add i a", 2).contains("asks for nothing"));
    assert!(bench.fails("watch add i 'a b' oil --cosine 0.5", 2).contains("a name that cannot be used"));
    bench.fails("watch add i a oil --cosine 0.5 --distance 2", 2);
    assert!(bench.fails("watch add i a oil --cosine 0.5", 2).contains("stores no rerank vectors"));
    bench.ok("watch add i a oil --distance 1000");
    assert!(!ids(&bench.json("watch run i --all --limit 5")[0]).is_empty());
    assert!(bench.fails("watch remove i b", 2).contains("no saved query"));
    assert!(bench.fails("watch run i --name b", 2).contains("no saved query"));
    assert!(bench.fails("watch run i --after x", 2).contains("no place"));
    assert!(text(&bench.run("watch run nowhere").stderr).contains("nowhere"));
    // Damage is told, and verify finds it.
    let file = bench.path("i").join("saved/queries.json");
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap().replace("oil", "tea")).unwrap();
    assert!(bench.fails("watch run i", 1).contains("is damaged"));
    assert!(bench.fails("index verify i", 1).contains("queries.json"));
}
