//! Answers text queries in this process, for the benchmark of a text query: `text_query INDEX`.
//!
//! Each line of standard input is `{"texts": [...], "k": 10, "callers": 1}`, and its answer one line of JSON: milliseconds and ids
//! of each query in order, seconds of all, and the stages of each.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use engine::query::{Query, SearchConfig, Searcher};
use engine::{Error, NoProgress, Result};
use serde_json::{Value, json};

/// One answered query.
struct Answered {
    ms: f64,
    ids: Vec<String>,
    stages: BTreeMap<String, f64>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [index] = arguments.as_slice() else { return Err(Error::config("usage: text_query INDEX")) };
    let searcher = Searcher::open(Path::new(index), &NoProgress)?;
    let stdin = Path::new("standard input");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(Error::io(stdin))?;
        let call: Value = serde_json::from_str(&line).map_err(|e| Error::config(format!("a line of input: {e}")))?;
        let texts: Vec<&str> = call["texts"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let (k, callers) = (call["k"].as_u64().unwrap_or(10) as usize, call["callers"].as_u64().unwrap_or(1) as usize);
        let config = SearchConfig { k, ..SearchConfig::default() };
        let begun = Instant::now();
        let answered = answer(&searcher, &texts, &config, callers)?;
        let seconds = begun.elapsed().as_secs_f64();
        let of = |take: fn(&Answered) -> Value| answered.iter().map(take).collect::<Vec<_>>();
        let reply = json!({
            "ms": of(|a| json!(a.ms)), "ids": of(|a| json!(a.ids)), "stages": of(|a| json!(a.stages)), "seconds": seconds,
        });
        println!("{reply}");
        std::io::stdout().flush().map_err(Error::io(Path::new("standard output")))?;
    }
    Ok(())
}

/// Answers each text alone, as many at once as there are callers.
fn answer(searcher: &Searcher, texts: &[&str], config: &SearchConfig, callers: usize) -> Result<Vec<Answered>> {
    if callers < 2 {
        return texts.iter().map(|text| ask(searcher, text, config)).collect();
    }
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(texts.len())));
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                while let Some((i, text)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, texts.get(i)?)))
                {
                    let answered = ask(searcher, text, config);
                    found.lock().expect("no thread panics with it").push((i, answered));
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no thread panics with it");
    found.sort_by_key(|(i, _)| *i);
    found.into_iter().map(|(_, answered)| answered).collect()
}

fn ask(searcher: &Searcher, text: &str, config: &SearchConfig) -> Result<Answered> {
    let begun = Instant::now();
    let mut answers = searcher.search(&[Query::text(text)], config, &NoProgress)?;
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    let answer = answers.remove(0);
    let stages = answer.timings.stages().into_iter();
    Ok(Answered {
        ms,
        ids: answer.hits.iter().map(|hit| hit.id.to_string()).collect(),
        stages: stages.map(|(stage, time)| (stage.to_owned(), time.as_secs_f64() * 1e3)).collect(),
    })
}
