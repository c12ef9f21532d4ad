//! `micpq search`: queries on the command line, in a file, or at a prompt.

use std::cell::OnceCell;
use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;

use anyhow::Result;
use engine::corpus::{Corpus, DocId, FILE, FILE_HASH, Value};
use engine::encoder::{Device, Embedder, QueryEncoder};
use engine::formats::npy;
use engine::index::RerankVectors;
use engine::model::Model;
use engine::query::{Answer, Hit, Like, Query, Rerank, SearchConfig, Searcher, Snippet};
use engine::topics::{CodewordTerms, SharedCodeword};
use engine::{Error, Progress};
use serde_json::json;

use super::{chunks, embedder_for_queries, embedder_of};
use crate::args::{ComputingArgs, Search, device};
use crate::output;
use crate::progress::TerminalProgress;

pub fn run(args: Search, json: bool, progress: &TerminalProgress) -> Result<()> {
    let mut config = args.config();
    config.validate()?;
    let given = given(&args)?;
    if args.queries.is_some() && !given.is_empty() {
        return Err(Error::config("give queries on the command line or with --queries, not both").into());
    }
    if args.fuse && given.is_empty() {
        return Err(Error::config("--fuse combines several queries; give texts, --like or --vector").into());
    }
    // A file of queries uses a GPU if there is one. Otherwise the encoder is loaded for the first text.
    let fast = args.query_encoder == QueryEncoder::Fast;
    let lazy = fast || args.computing.precision.is_none() && !matches!(device(), Device::Cuda(_));
    let searcher = match &args.queries {
        Some(_) if !fast => with_embedder(&args, embedder_of, progress)?,
        _ if lazy => Searcher::open(&args.index, progress)?,
        _ => with_embedder(&args, embedder_for_queries, progress)?,
    };
    if let Some(target) = args.target_recall {
        let chosen = searcher.rerank_for(target, config.k, progress)?;
        progress.finish();
        let (k, candidates, recall) = (config.k, chosen.rerank, chosen.recall);
        progress.note(&format!("re-ranks {candidates} candidates: recall@{k} {recall:.3} on documents of the index"));
        config.rerank = Rerank::First(candidates);
    }
    let show_cursor = !given.is_empty() && !progress.is_quiet();
    let (keywords, encoder) = (args.keywords.clone(), args.query_encoder);
    let session = Session { searcher, config, keywords, encoder, json, show_cursor, progress, terms: OnceCell::new() };
    if let Some(path) = &args.queries {
        let mut corpus = Corpus::open(path, &args.source.config())?;
        for chunk in chunks(&mut corpus) {
            let chunk = chunk?;
            let queries = chunk.iter().map(|d| session.query(Query::text(&d.text))).collect::<Vec<_>>();
            for (document, answer) in chunk.iter().zip(session.ask(&queries)?) {
                session.show(&answer, Some(&serde_json::to_value(&document.id)?), &document.text)?;
            }
        }
        micpq::pipeline::report_skipped(&corpus, progress);
        return Ok(());
    }
    if given.is_empty() {
        return session.prompt();
    }
    let (names, queries): (Vec<String>, Vec<Query>) = if args.fuse {
        let weights = weights(&args.weights, given.len())?;
        let names: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
        let like = given.iter().map(|(_, like)| like.clone()).zip(weights).collect();
        (vec![names.join(" + ")], vec![session.query(Query { like, ..Query::default() })])
    } else {
        let query = |like: &Like| session.query(Query { like: vec![(like.clone(), 1.0)], ..Query::default() });
        given.iter().map(|(name, like)| (name.clone(), query(like))).unzip()
    };
    let answers = session.ask(&queries)?;
    let several = answers.len() > 1;
    for (i, (name, answer)) in names.iter().zip(&answers).enumerate() {
        session.show(answer, several.then(|| json!(i)).as_ref(), name)?;
    }
    Ok(())
}

/// A searcher whose encoder is loaded immediately.
fn with_embedder(
    args: &Search,
    embedder: fn(&Model, ComputingArgs, &dyn Progress) -> Result<Embedder>,
    progress: &TerminalProgress,
) -> Result<Searcher> {
    // The searcher's errors are the engine's; those of choosing an encoder keep their own kind.
    let mut failed = None;
    let load = |model: &Model| match embedder(model, args.computing, progress) {
        Ok(embedder) => Ok(Some(Arc::new(embedder))),
        Err(error) => {
            failed = Some(error);
            Err(Error::Interrupted)
        }
    };
    let opened = Searcher::open_with(&args.index, load, progress);
    failed.map_or_else(|| Ok(opened?), Err)
}

/// The examples on the command line, each with a name to show.
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
        n => {
            Err(Error::config(format!("--weights has {n} weights for {needed} queries; give one for each query"))
                .into())
        }
    }
}

struct Session<'a> {
    searcher: Searcher,
    config: SearchConfig,
    keywords: Option<String>,
    encoder: QueryEncoder,
    json: bool,
    /// Whether text output shows the cursor of the next page. The prompt has no way to use it.
    show_cursor: bool,
    progress: &'a TerminalProgress,
    /// What codewords stand for, where answers are explained.
    terms: OnceCell<CodewordTerms>,
}

impl Session<'_> {
    fn query(&self, query: Query) -> Query {
        Query { keywords: self.keywords.clone(), encoder: self.encoder, ..query }
    }

    fn ask(&self, queries: &[Query]) -> Result<Vec<Answer>> {
        let answers = self.searcher.search(queries, &self.config, self.progress)?;
        self.searcher.warnings().iter().for_each(|warning| self.progress.note(warning));
        Ok(answers)
    }

    fn prompt(&self) -> Result<()> {
        // Loads the encoder before the first query, so that its answer is not delayed.
        match self.encoder {
            QueryEncoder::Full => self.searcher.embedder(self.progress).map(|_| ())?,
            QueryEncoder::Fast => self.searcher.fast_encoder().map(|_| ())?,
        }
        let terminal = std::io::stdin().is_terminal();
        if terminal {
            let documents = self.searcher.documents();
            output::line(format!("{documents} documents. Type a query; an empty line or Ctrl-D ends."))?;
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

    /// Prints one answer. `query` is the number or id of the query if there are several, `name` its text.
    fn show(&self, answer: &Answer, query: Option<&serde_json::Value>, name: &str) -> Result<()> {
        let terms = self.terms()?;
        if self.json {
            return print_json(answer, query, terms);
        }
        if query.is_some() {
            output::line(format!("> {name}"))?;
        }
        let score = ScoreKind::of(&self.config, self.searcher.index().rerank_vectors());
        print_text(answer, score, self.show_cursor, terms)
    }

    /// `None` without an explanation.
    fn terms(&self) -> Result<Option<&CodewordTerms>> {
        /// Terms per codeword.
        const TERMS: usize = 4;
        if !self.config.explain {
            return Ok(None);
        }
        if self.terms.get().is_none() {
            let terms = match self.searcher.indexes() {
                [index] => CodewordTerms::of(index, TERMS, self.progress)?,
                [first, ..] => CodewordTerms::of_shards(&self.searcher.survey()?, first.language(), TERMS)?,
                [] => return Ok(None),
            };
            let _ = self.terms.set(terms);
        }
        Ok(self.terms.get())
    }
}

/// The score that hits are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScoreKind {
    MinusDistance,
    /// The cosine of the rerank vectors. Hits behind the re-ranked candidates have -1 minus the distance.
    Cosine,
    /// Fused reciprocal ranks.
    Fused,
}

impl ScoreKind {
    fn of(config: &SearchConfig, rerank_vectors: RerankVectors) -> ScoreKind {
        if config.hybrid > 0.0 {
            return ScoreKind::Fused;
        }
        match config.reranked(rerank_vectors) {
            Ok(0) | Err(_) => ScoreKind::MinusDistance,
            Ok(_) => ScoreKind::Cosine,
        }
    }

    fn label(self) -> &'static str {
        match self {
            ScoreKind::MinusDistance => "minus the distance",
            ScoreKind::Cosine => "cosine",
            ScoreKind::Fused => "fused ranks",
        }
    }

    /// Cosines and fused scores differ in the fourth decimal, distances are in the hundreds.
    fn decimals(self) -> usize {
        match self {
            ScoreKind::MinusDistance => 3,
            ScoreKind::Cosine | ScoreKind::Fused => 4,
        }
    }
}

/// Prints one JSON object per hit, with the number or id of the query if there are several. The last hit of a page has
/// the cursor of the next page. An explanation follows as an object of its own.
fn print_json(answer: &Answer, query: Option<&serde_json::Value>, terms: Option<&CodewordTerms>) -> Result<()> {
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
        if let Some(chunk) = &hit.chunk {
            object["chunk"] = json!(chunk);
        }
        if let Some(snippet) = &hit.snippet {
            let marks: Vec<[usize; 2]> = snippet.marks_in_chars().iter().map(|m| [m.start, m.end]).collect();
            object["snippet"] = json!({ "text": snippet.text, "marks": marks });
        }
        if let Some(codebook_distances) = &hit.codebook_distances {
            object["codebook_distances"] = json!(codebook_distances);
        }
        if let Some(shared) = shared(answer, hit, terms) {
            object["shared"] = json!(shared);
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

fn print_text(answer: &Answer, score: ScoreKind, show_cursor: bool, terms: Option<&CodewordTerms>) -> Result<()> {
    if answer.hits.is_empty() {
        output::line("  nothing found")?;
    } else {
        output::line(format!("rank     score  id  (score: {})", score.label()))?;
    }
    let bold = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for (rank, hit) in answer.hits.iter().enumerate() {
        let decimals = score.decimals();
        output::line(format!("{:3}. {:9.decimals$}  {}  {}", rank + 1, hit.score, hit.id, about(hit)))?;
        match (&hit.snippet, &hit.text) {
            (Some(snippet), _) => output::line(format!("                {}", marked(snippet, bold)))?,
            (None, Some(text)) => output::line(format!("                {}", first_chars(text, 150)))?,
            (None, None) => {}
        }
        if let Some(distances) = &hit.codebook_distances {
            let distances: Vec<String> = distances.iter().map(|distance| format!("{distance:.2}")).collect();
            output::line(format!(
                "                distance {:.3}; by codebook: {}",
                hit.distance,
                distances.join(" ")
            ))?;
        }
        if let Some(shared) = shared(answer, hit, terms) {
            output::line(format!("                shared codewords: {}", in_words(&shared)))?;
        }
    }
    if let Some(next) = answer.next.filter(|_| show_cursor) {
        output::line(format!("  next page: --after {next}"))?;
    }
    print_explanation(answer)
}

/// The codewords that a hit has in common with its query; `None` without an explanation.
fn shared(answer: &Answer, hit: &Hit, terms: Option<&CodewordTerms>) -> Option<Vec<SharedCodeword>> {
    Some(terms?.shared(hit.codewords.as_ref()?, &answer.explanation.as_ref()?.codewords))
}

fn in_words(shared: &[SharedCodeword]) -> String {
    if shared.is_empty() {
        return "none".into();
    }
    let one = |s: &SharedCodeword| match s.terms.is_empty() {
        true => format!("{}/{}", s.codebook, s.codeword),
        false => format!("{}/{} ({})", s.codebook, s.codeword, s.terms.join(" ")),
    };
    shared.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Prints the explanation, if there is one.
fn print_explanation(answer: &Answer) -> Result<()> {
    let Some(explanation) = &answer.explanation else { return Ok(()) };
    for segment in &explanation.segments {
        let strategy = segment.strategy.as_deref().unwrap_or("not scanned");
        let filter = segment.filter.as_ref().map_or_else(String::new, |filter| format!("; {filter}"));
        output::line(format!(
            "  segment {}: {} of {} documents; {strategy}; {} of {} blocks scanned, {} distances computed{filter}",
            &segment.segment[..8],
            segment.matching,
            segment.documents,
            segment.scanned,
            segment.blocks,
            segment.measured,
        ))?;
    }
    output::line(format!(
        "  {} candidates by code ({}), {} re-ranked, {} by keywords{}",
        explanation.candidates,
        explanation.backend,
        explanation.reranked,
        explanation.by_keywords,
        if explanation.keywords.is_empty() { String::new() } else { format!(" ({})", explanation.keywords.join(" ")) }
    ))?;
    let times = answer.timings.stages();
    let times: Vec<String> =
        times.iter().map(|(name, time)| format!("{name} {:.2}", time.as_secs_f64() * 1e3)).collect();
    output::line(format!("  milliseconds: {}", times.join(", ")))
}

/// The labels and attributes of a hit, on one line.
fn about(hit: &Hit) -> String {
    let mut about: Vec<String> = Vec::new();
    if !hit.labels.is_empty() {
        about.push(hit.labels.join(", "));
    }
    let attributes = hit.attributes.iter().map(|(name, value)| (name, plain(value)));
    let hidden = ["title", FILE, FILE_HASH];
    let attributes = attributes.filter(|(name, value)| !hidden.contains(&name.as_str()) && !value.is_empty());
    about.extend(attributes.map(|(name, value)| format!("{name}: {value}")));
    about.join("; ")
}

/// A snippet on one line. On a terminal its keywords are bold.
fn marked(snippet: &Snippet, bold: bool) -> String {
    let mut out = String::new();
    let mut at = 0;
    for mark in &snippet.marks {
        out.push_str(&snippet.text[at..mark.start]);
        let keyword = &snippet.text[mark.clone()];
        if bold {
            out.push_str(&format!("\x1b[1m{keyword}\x1b[0m"));
        } else {
            out.push_str(keyword);
        }
        at = mark.end;
    }
    out.push_str(&snippet.text[at..]);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An attribute value without JSON quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::Bool(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Float(v) => v.to_string(),
        Value::Text(v) => v.clone(),
        Value::Texts(v) => v.join(", "),
    }
}

/// The first characters of a text, on one line.
fn first_chars(text: &str, max_chars: usize) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match flat.char_indices().nth(max_chars) {
        Some((at, _)) => format!("{}...", &flat[..at]),
        None => flat,
    }
}
