//! `micpq search`: queries on the command line, a file of them, or a prompt.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;

use anyhow::Result;
use micpq::corpus::{Corpus, DocId, Value};
use micpq::encoder::{Device, Features};
use micpq::index::Index;
use micpq::model::Model;
use micpq::query::{Answer, Hit, Like, Query, SearchConfig, Searcher, Snippet};
use micpq::{Error, Watch, npy};
use serde_json::json;

use super::{chunks, device, features_for_queries, features_of};
use crate::args::{ComputingArgs, Search};
use crate::output;
use crate::progress::Progress;

pub fn run(args: Search, json: bool, progress: &Progress) -> Result<()> {
    let config = args.config();
    config.validate()?;
    let given = given(&args)?;
    if args.queries.is_some() && !given.is_empty() {
        return Err(Error::config("give queries or --queries, not both").into());
    }
    if args.fuse && given.is_empty() {
        return Err(Error::config("--fuse makes one query of several; give texts, --like or --vector").into());
    }
    // A file of queries is work for a GPU where there is one; a query now and then loads the encoder when a text comes.
    let plain = args.computing.precision.is_none() && !matches!(device(), Device::Cuda(_));
    let searcher = match &args.queries {
        Some(_) => with_features(&args, features_of, progress)?,
        None if plain => Searcher::open(&args.index, progress)?,
        None => with_features(&args, features_for_queries, progress)?,
    };
    let pages = !given.is_empty() && !progress.is_quiet();
    let session = Session { searcher, config, words: args.words.clone(), json, pages, progress };
    if let Some(path) = &args.queries {
        let mut corpus = Corpus::open(path, &args.source.config())?;
        for chunk in chunks(&mut corpus) {
            let chunk = chunk?;
            let queries = chunk.iter().map(|d| session.query(Query::text(&d.text))).collect::<Vec<_>>();
            for (document, answer) in chunk.iter().zip(session.ask(&queries)?) {
                session.show(&answer, Some(&serde_json::to_value(&document.id)?), &document.text)?;
            }
        }
        super::tell_skipped(&corpus, progress);
        return Ok(());
    }
    if given.is_empty() {
        return session.prompt();
    }
    let (names, queries): (Vec<String>, Vec<Query>) = if args.fuse {
        let weights = weights(&args.weights, given.len())?;
        let names: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
        let like = given.iter().map(|(_, like)| like.clone()).zip(weights).collect();
        (vec![names.join(" + ")], vec![session.query(Query { like, words: None })])
    } else {
        let query = |like: &Like| session.query(Query { like: vec![(like.clone(), 1.0)], words: None });
        given.iter().map(|(name, like)| (name.clone(), query(like))).unzip()
    };
    let answers = session.ask(&queries)?;
    let several = answers.len() > 1;
    for (i, (name, answer)) in names.iter().zip(&answers).enumerate() {
        session.show(answer, several.then(|| json!(i)).as_ref(), name)?;
    }
    Ok(())
}

/// The index with its encoder loaded at once.
fn with_features(
    args: &Search,
    features: fn(&Model, ComputingArgs, &dyn Watch) -> Result<Features>,
    progress: &Progress,
) -> Result<Searcher> {
    let index = Index::open(&args.index, progress)?;
    let features = features(index.model(), args.computing, progress)?;
    Ok(Searcher::new(index, Some(Arc::new(features)))?)
}

/// What the command line asks for, with a name for each.
fn given(args: &Search) -> Result<Vec<(String, Like)>> {
    let mut given: Vec<(String, Like)> =
        args.query.iter().map(|text| (text.clone(), Like::Text(text.clone()))).collect();
    for id in &args.like {
        given.push((format!("like {id}"), Like::Document(id.parse::<DocId>()?)));
    }
    if let Some(path) = &args.vector {
        let rows = npy::read_vectors(path)?;
        given.extend(rows.iter().enumerate().map(|(i, row)| (format!("vector {i}"), Like::Vector(row.to_vec()))));
    }
    Ok(given)
}

fn weights(weights: &[f32], needed: usize) -> Result<Vec<f32>> {
    match weights.len() {
        0 => Ok(vec![1.0; needed]),
        n if n == needed => Ok(weights.to_vec()),
        n => Err(Error::config(format!("--weights has {n} weights for {needed} queries; give one for each")).into()),
    }
}

struct Session<'a> {
    searcher: Searcher,
    config: SearchConfig,
    words: Option<String>,
    json: bool,
    /// Whether the cursor of the next page is shown to people.
    pages: bool,
    progress: &'a Progress,
}

impl Session<'_> {
    fn query(&self, query: Query) -> Query {
        Query { words: self.words.clone(), ..query }
    }

    fn ask(&self, queries: &[Query]) -> Result<Vec<Answer>> {
        let answers = self.searcher.search(queries, &self.config, self.progress)?;
        self.searcher.index().warnings().iter().for_each(|warning| self.progress.note(warning));
        Ok(answers)
    }

    fn prompt(&self) -> Result<()> {
        // Loaded before the first question, so that its answer does not wait.
        self.searcher.features(self.progress)?;
        let terminal = std::io::stdin().is_terminal();
        if terminal {
            let documents = self.searcher.index().len();
            output::line(format!("{documents} documents. Type what you look for; an empty line or Ctrl-D ends."))?;
        }
        let mut input = std::io::stdin().lock();
        loop {
            if terminal {
                print!("> ");
                std::io::stdout().flush()?;
            }
            let mut query = String::new();
            let read = input.read_line(&mut query).map_err(Error::io("standard input"))?;
            let query = query.trim();
            if read == 0 || query.is_empty() || crate::progress::interrupted() {
                return Ok(());
            }
            for answer in self.ask(&[self.query(Query::text(query))])? {
                self.show(&answer, None, query)?;
            }
        }
    }

    /// One answer; `number` tells it from others, `name` is what people asked.
    fn show(&self, answer: &Answer, number: Option<&serde_json::Value>, name: &str) -> Result<()> {
        if self.json {
            return programs(answer, number);
        }
        if number.is_some() {
            output::line(format!("> {name}"))?;
        }
        people(answer, self.pages)
    }
}

/// One object a hit, with the query's number or id where there are several. The last hit of a page has the cursor of the
/// next page; with an explanation, an object of its own follows.
fn programs(answer: &Answer, query: Option<&serde_json::Value>) -> Result<()> {
    let next = answer.next.map(|cursor| cursor.to_string());
    for (i, hit) in answer.hits.iter().enumerate() {
        let attributes: serde_json::Map<String, serde_json::Value> = hit
            .attributes
            .iter()
            .map(|(name, value)| Ok((name.clone(), serde_json::to_value(value)?)))
            .collect::<Result<_>>()?;
        let mut object = json!({
            "id": hit.id, "distance": hit.distance, "score": hit.score, "text": hit.text, "labels": hit.labels,
            "attributes": attributes,
        });
        if let Some(snippet) = &hit.snippet {
            let marks: Vec<[usize; 2]> = snippet.marks_in_chars().iter().map(|m| [m.start, m.end]).collect();
            object["snippet"] = json!({ "text": snippet.text, "marks": marks });
        }
        if let Some(shares) = &hit.shares {
            object["shares"] = json!(shares);
        }
        if let Some(id) = query {
            object["query"] = id.clone();
        }
        if let Some(next) = next.as_ref().filter(|_| i + 1 == answer.hits.len()) {
            object["next"] = json!(next);
        }
        output::json(&object)?;
    }
    if let Some(explanation) = &answer.explanation {
        let times: serde_json::Map<String, serde_json::Value> = answer
            .timings
            .stages()
            .iter()
            .map(|(name, time)| ((*name).to_owned(), json!(time.as_secs_f64() * 1e3)))
            .collect();
        let mut object = json!({ "explanation": explanation, "milliseconds": times, "next": next });
        if let Some(id) = query {
            object["query"] = id.clone();
        }
        output::json(&object)?;
    }
    Ok(())
}

/// `pages` where a next page can be asked for: not at the prompt.
fn people(answer: &Answer, pages: bool) -> Result<()> {
    if answer.hits.is_empty() {
        output::line("  nothing found")?;
    }
    let bold = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for (rank, hit) in answer.hits.iter().enumerate() {
        output::line(format!("{:3}. {:8.3}  {}  {}", rank + 1, hit.distance, hit.id, about(hit)))?;
        match (&hit.snippet, &hit.text) {
            (Some(snippet), _) => output::line(format!("               {}", marked(snippet, bold)))?,
            (None, Some(text)) => output::line(format!("               {}", cut(text, 150)))?,
            (None, None) => {}
        }
        if let Some(shares) = &hit.shares {
            let shares: Vec<String> = shares.iter().map(|share| format!("{share:.2}")).collect();
            output::line(format!("               score {:.4}; by book: {}", hit.score, shares.join(" ")))?;
        }
    }
    if let Some(next) = answer.next.filter(|_| pages) {
        output::line(format!("  more with --after {next}"))?;
    }
    explain(answer)
}

/// How it came about, where that was asked for.
fn explain(answer: &Answer) -> Result<()> {
    let Some(explanation) = &answer.explanation else { return Ok(()) };
    for segment in &explanation.segments {
        let way = segment.way.as_deref().unwrap_or("nothing searched");
        let filter = segment.filter.as_ref().map_or_else(String::new, |filter| format!("; {filter}"));
        output::line(format!(
            "  segment {}: {} of {} documents; {way}; {} of {} blocks scanned, {} documents measured{filter}",
            &segment.segment[..8],
            segment.matching,
            segment.documents,
            segment.scanned,
            segment.blocks,
            segment.measured,
        ))?;
    }
    output::line(format!(
        "  {} candidates by code ({}), {} ranked again, {} by words{}",
        explanation.candidates,
        explanation.backend,
        explanation.reranked,
        explanation.by_words,
        if explanation.words.is_empty() { String::new() } else { format!(" ({})", explanation.words.join(" ")) }
    ))?;
    let times = answer.timings.stages();
    let times: Vec<String> =
        times.iter().map(|(name, time)| format!("{name} {:.2}", time.as_secs_f64() * 1e3)).collect();
    output::line(format!("  milliseconds: {}", times.join(", ")))
}

/// Labels and attributes on one line.
fn about(hit: &Hit) -> String {
    let mut about: Vec<String> = Vec::new();
    if !hit.labels.is_empty() {
        about.push(hit.labels.join(", "));
    }
    let attributes = hit.attributes.iter().map(|(name, value)| (name, plain(value)));
    let told = attributes.filter(|(name, value)| *name != "title" && !value.is_empty());
    about.extend(told.map(|(name, value)| format!("{name}: {value}")));
    about.join("; ")
}

/// A snippet on one line, its words in bold where the terminal can.
fn marked(snippet: &Snippet, bold: bool) -> String {
    let mut out = String::new();
    let mut at = 0;
    for mark in &snippet.marks {
        out.push_str(&snippet.text[at..mark.start]);
        let word = &snippet.text[mark.clone()];
        if bold {
            out.push_str(&format!("\x1b[1m{word}\x1b[0m"))
        } else {
            out.push_str(word)
        }
        at = mark.end;
    }
    out.push_str(&snippet.text[at..]);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An attribute as a person writes it.
fn plain(value: &Value) -> String {
    match value {
        Value::Bool(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Float(v) => v.to_string(),
        Value::Text(v) => v.clone(),
        Value::Texts(v) => v.join(", "),
    }
}

/// The first characters of a text on one line.
fn cut(text: &str, most: usize) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match flat.char_indices().nth(most) {
        Some((at, _)) => format!("{}...", &flat[..at]),
        None => flat,
    }
}
