//! `micpq topics`: what the documents of an index are about.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use engine::Error;
use engine::index::Index;
use engine::topics::{self, Topics, TopicsConfig};

use crate::output;
use crate::progress::TerminalProgress;

#[derive(Args)]
#[command(after_help = "\
Examples:
  micpq topics news.micpq
  micpq topics news.micpq --topics 30 --over date --json
  micpq topics news.micpq --mark topic       # then: search --filter \"topic:3\"
  micpq topics news.micpq --extend topic     # after documents were added
  micpq topics news.micpq --extend topic --follow     # from now on, as they are added
  micpq topics news.micpq --assignments topics.jsonl")]
pub struct TopicsArgs {
    /// Index directory
    pub index: PathBuf,
    /// Number of topics. Default: chosen by how well the clusters are told apart
    #[arg(long, value_name = "N")]
    pub topics: Option<usize>,
    /// Seed of the first centres
    #[arg(long, value_name = "N", default_value_t = TopicsConfig::default().seed)]
    pub seed: u64,
    /// Terms of a topic
    #[arg(long, value_name = "N", default_value_t = TopicsConfig::default().terms)]
    pub terms: usize,
    /// Typical documents of a topic
    #[arg(long, value_name = "N", default_value_t = TopicsConfig::default().typical)]
    pub typical: usize,
    /// Attribute with dates, for the trend. Default: the first one that has dates, if any
    #[arg(long, value_name = "ATTRIBUTE")]
    pub over: Option<String>,
    /// Give each document this attribute, with the number of its topic; outliers have none
    #[arg(long, value_name = "ATTRIBUTE")]
    pub mark: Option<String>,
    /// Give documents that were added later the number of the nearest topic, in the attribute that --mark wrote; find no new
    /// topics
    #[arg(long, value_name = "ATTRIBUTE", conflicts_with_all = ["topics", "over", "mark", "assignments"])]
    pub extend: Option<String>,
    /// Give documents that are added later their topic as they are added, in the attribute of --mark or --extend
    #[arg(long)]
    pub follow: bool,
    /// End --follow; find no topics
    #[arg(long, conflicts_with_all = ["topics", "over", "mark", "extend", "follow", "assignments"])]
    pub unfollow: bool,
    /// Write the topic of every document as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub assignments: Option<PathBuf>,
}

pub fn run(args: TopicsArgs, json: bool, progress: &TerminalProgress) -> Result<()> {
    topics(args, json, progress).map_err(super::whole_or_nothing)
}

fn topics(args: TopicsArgs, json: bool, progress: &TerminalProgress) -> Result<()> {
    let index = Index::open(&args.index, progress)?;
    if args.unfollow {
        return unfollow(&index, json);
    }
    if args.follow && args.mark.is_none() && args.extend.is_none() {
        return Err(Error::config("--follow needs an attribute; give --mark or --extend").into());
    }
    if let Some(name) = &args.extend {
        return extend(&index, name, args.follow, json, progress);
    }
    let config = TopicsConfig {
        topics: args.topics,
        seed: args.seed,
        terms: args.terms,
        typical: args.typical,
        over: args.over,
    };
    let found = topics::find(&index, &config, progress)?;
    if let Some(path) = &args.assignments {
        write_assignments(path, &found)?;
    }
    let marked = args.mark.as_deref().map(|name| topics::mark(&index, &found, name, progress)).transpose()?;
    if let Some(name) = args.mark.as_deref().filter(|_| args.follow) {
        topics::follow(&index, name, progress)?;
    }
    progress.finish();
    if json {
        let mut value = serde_json::to_value(&found)?;
        if let Some(marked) = marked {
            value["marked"] = marked.into();
        }
        return output::json(&value);
    }
    print(&found)?;
    if let (Some(marked), Some(name)) = (marked, &args.mark) {
        output::line(format!("attribute {name} written: {marked} documents changed"))?;
    }
    Ok(())
}

fn unfollow(index: &Index, json: bool) -> Result<()> {
    let was = topics::followed(index)?;
    topics::unfollow(index)?;
    if json {
        return output::json(&serde_json::json!({ "unfollowed": was }));
    }
    output::line(match was {
        Some(attribute) => format!("documents that are added get no attribute {attribute} any more"),
        None => "no topics were followed".to_owned(),
    })
}

fn extend(index: &Index, attribute: &str, follow: bool, json: bool, progress: &TerminalProgress) -> Result<()> {
    let later = topics::find_later(index, attribute, progress)?;
    let marked = topics::mark_later(index, &later, attribute, progress)?;
    if follow {
        topics::follow(index, attribute, progress)?;
    }
    progress.finish();
    if json {
        let mut value = serde_json::to_value(&later)?;
        value["marked"] = marked.into();
        return output::json(&value);
    }
    output::line(format!(
        "{} documents have a topic now; {} of {} are far from every topic",
        later.assigned, later.outliers, later.documents
    ))
}

/// One line of JSON per document. The file appears when it is complete.
fn write_assignments(path: &Path, found: &Topics) -> Result<()> {
    let mut lines = String::new();
    for (id, _, assignment) in &found.assignments {
        let row = serde_json::json!({ "id": id, "topic": assignment.topic, "outlier": assignment.outlier });
        lines += &format!("{row}\n");
    }
    Ok(engine::internal::replace(path, lines.as_bytes())?)
}

fn print(found: &Topics) -> Result<()> {
    output::line(format!(
        "{} topics of {} documents; {} documents are far from every topic",
        found.topics.len(),
        found.documents,
        found.outliers
    ))?;
    if let (Some(over), Some(first), Some(last)) = (&found.over, found.periods.first(), found.periods.last()) {
        output::line(format!("trend: share of the documents by {over}, {first} to {last}"))?;
    }
    let totals: Vec<u64> =
        (0..found.periods.len()).map(|period| found.topics.iter().map(|t| t.trend[period]).sum()).collect();
    for topic in &found.topics {
        output::line(format!(
            "\n{:>3}  {}\n     {} documents, {:.1} %{}{}",
            topic.number,
            topic.name,
            topic.documents,
            100.0 * topic.share,
            if totals.is_empty() { "" } else { "  " },
            bars(&topic.trend, &totals)
        ))?;
        let rest: Vec<&str> = topic.terms.iter().skip(4).map(|term| term.term.as_str()).collect();
        if !rest.is_empty() {
            output::line(format!("     also: {}", rest.join(", ")))?;
        }
        for document in &topic.typical {
            let text = document.text.as_deref().unwrap_or_default();
            output::line(format!("     - {}  {}", document.id, text.chars().take(90).collect::<String>()))?;
        }
    }
    Ok(())
}

/// The share of a topic in every period as bars; the highest bar is its greatest share.
fn bars(trend: &[u64], totals: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shares: Vec<f64> = trend.iter().zip(totals).map(|(n, total)| *n as f64 / (*total).max(1) as f64).collect();
    let most = shares.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    shares.iter().map(|share| BARS[(share / most * 7.0).round() as usize]).collect()
}
