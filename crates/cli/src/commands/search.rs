//! `micpq search`: one query, a file of them, or a prompt.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::Result;
use micpq::corpus::{Corpus, DocId, Value};
use micpq::encoder::Features;
use micpq::index::{Hit, Index, SearchConfig};
use micpq::model::{Distance, Table};
use micpq::{Error, Silent};

use super::{chunks, features_of};
use crate::args::Search;
use crate::output;
use crate::progress::Progress;

pub fn run(args: Search, json: bool, progress: &Progress) -> Result<()> {
    let index = Index::open(&args.index, progress)?;
    let features = features_of(index.model(), args.computing, progress)?;
    let session = Session {
        distance: args.distance.unwrap_or(index.model().config.distance),
        config: SearchConfig { k: args.k, filter: args.filter.clone(), ..SearchConfig::default() },
        index,
        features,
    };
    session.config.validate()?;
    match (&args.query, &args.queries) {
        (Some(_), Some(_)) => Err(Error::config("give a query or --queries, not both").into()),
        (Some(query), None) => {
            let hits = session.ask(&[query])?.pop().unwrap_or_default();
            if json { programs(&hits, None) } else { people(&hits) }
        }
        (None, Some(path)) => {
            let mut corpus = Corpus::open(path, &args.source.config())?;
            for chunk in chunks(&mut corpus) {
                let chunk = chunk?;
                let texts: Vec<&str> = chunk.iter().map(|d| d.text.as_str()).collect();
                for (query, hits) in chunk.iter().zip(session.ask(&texts)?) {
                    if json {
                        programs(&hits, Some(&query.id))?;
                    } else {
                        output::line(format!("> {}", query.text))?;
                        people(&hits)?;
                    }
                }
            }
            super::tell_skipped(&corpus, progress);
            Ok(())
        }
        (None, None) => prompt(&session, json),
    }
}

struct Session {
    index: Index,
    features: Features,
    config: SearchConfig,
    distance: Distance,
}

impl Session {
    fn ask(&self, queries: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<Hit>>> {
        let vectors = self.features.encode(queries, &Silent)?;
        let tables: Vec<Table> = self.index.model().tables(&vectors, self.distance)?;
        Ok(self.index.search(&tables, &self.config)?)
    }
}

fn prompt(session: &Session, json: bool) -> Result<()> {
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        output::line(format!(
            "{} documents. Type what you look for; an empty line or Ctrl-D ends.",
            session.index.len()
        ))?;
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
        let hits = session.ask(&[query])?.pop().unwrap_or_default();
        if json { programs(&hits, None)? } else { people(&hits)? }
    }
}

/// One object a hit, with the query's id where there are several queries.
fn programs(hits: &[Hit], query: Option<&DocId>) -> Result<()> {
    for hit in hits {
        let attributes: serde_json::Map<String, serde_json::Value> = hit
            .attributes
            .iter()
            .map(|(name, value)| Ok((name.clone(), serde_json::to_value(value)?)))
            .collect::<Result<_>>()?;
        let mut object = serde_json::json!({
            "id": hit.id, "distance": hit.distance, "text": hit.text, "labels": hit.labels, "attributes": attributes,
        });
        if let Some(id) = query {
            object["query"] = serde_json::to_value(id)?;
        }
        output::json(&object)?;
    }
    Ok(())
}

fn people(hits: &[Hit]) -> Result<()> {
    if hits.is_empty() {
        return output::line("  nothing found");
    }
    for (rank, hit) in hits.iter().enumerate() {
        let mut about: Vec<String> = Vec::new();
        if !hit.labels.is_empty() {
            about.push(hit.labels.join(", "));
        }
        let attributes = hit.attributes.iter().map(|(name, value)| (name, plain(value)));
        let told = attributes.filter(|(name, value)| *name != "title" && !value.is_empty());
        about.extend(told.map(|(name, value)| format!("{name}: {value}")));
        output::line(format!("{:3}. {:8.3}  {}  {}", rank + 1, hit.distance, hit.id, about.join("; ")))?;
        if let Some(text) = &hit.text {
            output::line(format!("               {}", cut(text, 150)))?;
        }
    }
    Ok(())
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
