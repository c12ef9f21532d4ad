//! `micpq watch add|list|remove|run`: queries that are saved with an index, and the new documents that match them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{ArgGroup, Subcommand};
use engine::Error;
use engine::index::Index;
use engine::query::Searcher;
use engine::saved::{self, Match, MatchRequest, Matches, Place, SavedQuery, Start, Threshold};
use std::sync::Arc;

use super::embedder_for_queries;
use crate::args::ComputingArgs;
use crate::output;
use crate::progress::TerminalProgress;

#[derive(Subcommand)]
pub enum SavedQueries {
    /// Save a query for the documents that are added from now on; one with the same name is replaced
    #[command(after_help = "\
Examples:
  micpq watch add news.micpq ports \"strikes at ports\" --cosine 0.5
  micpq watch add news.micpq japan --filter \"places:japan AND steel\"
  micpq watch run news.micpq --all --name ports                   which documents would it have found?

The cosine of a match is what micpq search shows as score.")]
    #[command(group(ArgGroup::new("threshold").args(["cosine", "distance"])))]
    Add {
        /// Index directory
        index: PathBuf,
        /// Name of the query: letters, digits, dots, hyphens and underscores
        name: String,
        /// What you look for. It is encoded once
        text: Option<String>,
        /// Least cosine of the query and a document's stored vector
        #[arg(long, value_name = "-1..1", allow_negative_numbers = true)]
        cosine: Option<f32>,
        /// Greatest distance of a document's code
        #[arg(long, value_name = "DISTANCE")]
        distance: Option<f32>,
        /// Only documents that match this filter, as in micpq search
        #[arg(long)]
        filter: Option<String>,
        #[command(flatten)]
        computing: ComputingArgs,
    },
    /// Show the saved queries
    List {
        /// Index directory
        index: PathBuf,
    },
    /// Remove a saved query
    Remove {
        /// Index directory
        index: PathBuf,
        /// Name of the query
        name: String,
    },
    /// Tell which documents that were added since the last run match which saved queries
    #[command(after_help = "\
Examples:
  micpq watch run news.micpq                                      what is new since the last run
  micpq watch run news.micpq --after 5d41402abc4b2a76.20000       what is new since a place you stored yourself

Without --after, --all and --name the index remembers where the run ended, after its matches are printed.")]
    Run {
        /// Index directory
        index: PathBuf,
        /// Begin at this place, \"next\" of an earlier run
        #[arg(long, value_name = "PLACE", conflicts_with = "all")]
        after: Option<Place>,
        /// Compare all documents, to try a query
        #[arg(long)]
        all: bool,
        /// Only this query
        #[arg(long)]
        name: Option<String>,
        /// About how many matches; all of a document are told together
        #[arg(long, value_name = "N", default_value_t = MatchRequest::default().limit)]
        limit: usize,
    },
}

pub fn run(command: SavedQueries, json: bool, progress: &TerminalProgress) -> Result<()> {
    match command {
        SavedQueries::Add { index, name, text, cosine, distance, filter, computing } => {
            let threshold = Threshold::of(cosine, distance)?;
            let query = SavedQuery { name, text, filter, threshold, ..SavedQuery::default() };
            add(&index, query, computing, json, progress)
        }
        SavedQueries::List { index } => list(&index, json, progress),
        SavedQueries::Remove { index, name } => {
            let opened = Index::open(&index, progress)?;
            if !saved::remove(&mut opened.writer()?, &opened, &name)? {
                return Err(Error::config(format!(
                    "no saved query is named \"{name}\"; \"micpq watch list {}\" shows them",
                    index.display()
                ))
                .into());
            }
            if json {
                output::json(&serde_json::json!({ "removed": name }))
            } else {
                output::line(format!("{name}: removed"))
            }
        }
        SavedQueries::Run { index, after, all, name, limit } => {
            let searcher = Searcher::open(&index, progress)?;
            let remember = after.is_none() && !all && name.is_none();
            let start = match after {
                Some(place) => Start::After(place),
                None if all => Start::All,
                None if remember => Start::Remembered,
                None => Start::Saved,
            };
            let found =
                saved::matches(&searcher, &MatchRequest { start, limit, name, ..MatchRequest::default() }, progress)?;
            progress.finish();
            print(searcher.index(), &found, json)?;
            // After it is printed: a match that nobody saw comes again.
            if remember { Ok(saved::set_position(searcher.index(), &found.next)?) } else { Ok(()) }
        }
    }
}

fn add(
    index: &Path,
    query: SavedQuery,
    computing: ComputingArgs,
    json: bool,
    progress: &TerminalProgress,
) -> Result<()> {
    // A mistake is told before an encoder is loaded.
    query.validate()?;
    let index = Index::open(index, progress)?;
    let embedder = match query.text {
        Some(_) => Some(Arc::new(embedder_for_queries(index.model(), computing, progress)?)),
        None => None,
    };
    let mut writer = index.writer()?;
    let searcher = Searcher::new(index, embedder)?;
    let (query, replaced) = saved::save(&searcher, &mut writer, query, progress)?;
    progress.finish();
    if json {
        let mut told = query.to_json();
        told["replaced"] = replaced.into();
        return output::json(&told);
    }
    let done = if replaced { "replaced" } else { "saved" };
    output::line(format!("{}: {done}; it matches documents that are added from now on", query.name))
}

fn list(index: &Path, json: bool, progress: &TerminalProgress) -> Result<()> {
    let queries = saved::list(&Index::open(index, progress)?)?;
    if json {
        return queries.iter().try_for_each(|query| output::json(&query.to_json()));
    }
    if queries.is_empty() {
        return output::line("no saved queries");
    }
    let row = |query: &SavedQuery| {
        let threshold = match query.threshold {
            Some(Threshold::Cosine(least)) => format!("cosine {least} or more"),
            Some(Threshold::Distance(most)) => format!("distance {most} or less"),
            None => String::new(),
        };
        let asked = query.text.clone().unwrap_or_else(|| query.vector.as_ref().map_or("", |_| "a vector").to_owned());
        vec![query.name.clone(), threshold, query.filter.clone().unwrap_or_default(), asked]
    };
    output::table(&["name", "threshold", "filter", "text"], &queries.iter().map(row).collect::<Vec<_>>())
}

fn print(index: &Index, found: &Matches, json: bool) -> Result<()> {
    if json {
        return output::json(found);
    }
    let number = |value: Option<f32>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let row = |one: &Match| -> Result<Vec<String>> {
        let text = index.get(&one.id)?.and_then(|record| record.text).unwrap_or_default();
        let beginning: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(60).collect();
        Ok(vec![beginning, one.query.clone(), one.id.to_string(), number(one.cosine), number(one.distance)])
    };
    let rows = found.matches.iter().map(row).collect::<Result<Vec<_>>>()?;
    if rows.is_empty() {
        return output::line(format!("no new matches; next {}", found.next));
    }
    output::table(&["text", "query", "id", "cosine", "distance"], &rows)?;
    let more = if found.more { "; there are more: run it again" } else { "" };
    output::line(format!("{} matches; next {}{more}", rows.len(), found.next))
}
