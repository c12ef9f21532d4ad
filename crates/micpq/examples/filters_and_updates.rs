//! Adds, replaces, filters and deletes in an existing index:
//! `cargo run --release --example filters_and_updates -- news.micpq`.

use std::path::Path;

use micpq::{DocId, Document, NoProgress, Query, Result, SearchConfig, Searcher, Value};

fn main() -> Result<()> {
    let Some(index) = std::env::args().nth(1) else {
        eprintln!("usage: filters_and_updates INDEX");
        std::process::exit(2);
    };
    let searcher = Searcher::open(Path::new(&index), &NoProgress)?;
    let embedder = searcher.embedder(&NoProgress)?;

    // A document with a known id replaces the old one.
    let id = DocId::Str("example".into());
    let document = |text: &str| Document {
        id: id.clone(),
        text: text.into(),
        labels: Vec::new(),
        attributes: vec![("year".into(), Value::Int(2022)), ("place".into(), Value::Text("japan".into()))],
    };
    let mut writer = searcher.index().writer()?;
    for text in ["Tea prices rise", "Tea prices fall after a good harvest"] {
        writer.add_embeddings(&[document(text)], &embedder.encode(&[text], &NoProgress)?)?;
    }
    // Nothing is seen before the commit; then everything is, and it is on disk.
    let documents = writer.commit(&NoProgress)?;
    println!("{documents} documents");

    let config = SearchConfig { k: 3, filter: Some("year:2022 AND place:japan".into()), ..SearchConfig::default() };
    let answers = searcher.search(&[Query::text("tea harvest")], &config, &NoProgress)?;
    for hit in &answers[0].hits {
        println!("{:.3}  {}  {}", hit.score, hit.id, hit.text.as_deref().unwrap_or_default());
    }

    writer.delete(&id)?;
    writer.commit(&NoProgress)?;
    writer.close(&NoProgress)
}
