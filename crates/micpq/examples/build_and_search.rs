//! Builds an index from a corpus and answers a question:
//! `cargo run --release --example build_and_search -- news.jsonl news.micpq "oil prices"`.

use micpq::{NoProgress, Query, Result, SearchConfig, Searcher};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [corpus, output, question] = arguments.as_slice() else {
        eprintln!("usage: build_and_search CORPUS INDEX QUESTION");
        std::process::exit(2);
    };
    let built = micpq::build(corpus.as_str(), output).run()?;
    println!("{} documents in {:.0} s", built.documents, built.seconds);

    let searcher = Searcher::new(built.index, built.embedder.map(Into::into))?;
    let answers = searcher.search(&[Query::text(question)], &SearchConfig::default(), &NoProgress)?;
    for hit in &answers[0].hits {
        println!("{:.3}  {}  {:.80}", hit.score, hit.id, hit.text.as_deref().unwrap_or_default());
    }
    Ok(())
}
