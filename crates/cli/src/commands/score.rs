//! `micpq score`: a TREC run against judgements.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use micpq::formats::trec::{Qrels, Run};

use crate::output;
use crate::progress::Progress;

#[derive(Args)]
#[command(after_help = "\
Example:
  micpq score scifact.run scifact/qrels/test.tsv --json")]
pub struct Score {
    /// Run: query Q0 document rank score tag
    pub run: PathBuf,
    /// Judgements, of TREC (4 columns) or BEIR (3 columns)
    pub qrels: PathBuf,
    /// Every query, then the means
    #[arg(long)]
    pub each: bool,
}

pub fn run(args: Score, json: bool, progress: &Progress) -> Result<()> {
    use micpq::Watch;
    let (run, qrels) = (Run::read(&args.run)?, Qrels::read(&args.qrels)?);
    let scored = run.score(&qrels);
    if scored.queries == 0 {
        return Err(micpq::Error::input(
            args.run.display(),
            format!(
                "answers none of the {} judged queries; are the ids of queries the same in both files?",
                qrels.0.len()
            ),
        )
        .into());
    }
    if scored.unanswered > 0 {
        progress.note(&format!("{} judged queries have no answer in the run and do not count", scored.unanswered));
    }
    if json {
        let mut value = serde_json::to_value(&scored)?;
        if args.each {
            value["each"] = serde_json::to_value(&scored.each)?;
        }
        return output::json(&value);
    }
    let row = |name: &str, m: &micpq::formats::trec::Measures| {
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
