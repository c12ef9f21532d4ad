//! `micpq score`: scores a TREC run against relevance judgements.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use engine::formats::trec::{Qrels, Run};

use crate::output;
use crate::progress::TerminalProgress;

#[derive(Args)]
#[command(after_help = "\
Example:
  micpq score scifact.run scifact/qrels/test.tsv --json")]
pub struct Score {
    /// TREC run, a line per hit: query Q0 document rank score tag
    pub run: PathBuf,
    /// Relevance judgements of TREC (4 columns) or BEIR (3 columns)
    pub qrels: PathBuf,
    /// Show every query, then the means
    #[arg(long)]
    pub each: bool,
}

pub fn run(args: Score, json: bool, progress: &TerminalProgress) -> Result<()> {
    use engine::Progress;
    let (run, qrels) = (Run::read(&args.run)?, Qrels::read(&args.qrels)?);
    let scored = run.score(&qrels);
    if scored.queries == 0 {
        return Err(engine::Error::input(
            args.run.display(),
            format!("answers none of the {} judged queries; use the same query ids in both files", qrels.0.len()),
        )
        .into());
    }
    if scored.unanswered > 0 {
        progress.note(&format!("{} judged queries have no hits in the run and are not counted", scored.unanswered));
    }
    if json {
        let mut value = serde_json::to_value(&scored)?;
        if args.each {
            value["each"] = serde_json::to_value(&scored.each)?;
        }
        return output::json(&value);
    }
    let row = |name: &str, m: &engine::formats::trec::Measures| {
        let numbers = [m.ndcg_10, m.recall_100, m.map, m.p_10, m.mrr].map(|v| format!("{v:.4}"));
        [vec![name.to_owned()], numbers.to_vec()].concat()
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    if args.each {
        rows.extend(scored.each.iter().map(|(query, m)| row(query, m)));
    }
    rows.push(row(&format!("{} queries", scored.queries), &scored.mean));
    output::table(&["", "nDCG@10", "Recall@100", "MAP", "P@10", "MRR"], &rows)
}
