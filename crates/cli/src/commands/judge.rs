//! `micpq judge`: how well each way to search an index finds what was judged relevant.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use engine::formats::beir::Beir;
use engine::index::Index;
use engine::query::{JudgedConfig, JudgedReport, Query, Searcher};

use super::embedder_of;
use crate::args::ComputingArgs;
use crate::output;
use crate::progress::TerminalProgress;

#[derive(Args)]
#[command(after_help = "\
Example:
  micpq build scifact -o scifact.micpq
  micpq judge scifact.micpq scifact")]
pub struct Judge {
    /// Index of the folder's corpus
    pub index: PathBuf,
    /// BEIR folder with queries.jsonl and qrels/
    pub folder: PathBuf,
    /// Judgements: the name of a file in qrels/ without .tsv
    #[arg(long, value_name = "NAME", default_value = "test")]
    pub split: String,
    /// Candidates that are re-ranked
    #[arg(long, default_value_t = JudgedConfig::default().rerank, value_name = "N")]
    pub rerank: usize,
    /// Weight of the keywords in the hybrid search, 0 to 1
    #[arg(long, default_value_t = JudgedConfig::default().hybrid, value_name = "WEIGHT")]
    pub hybrid: f32,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

pub fn run(args: Judge, json: bool, progress: &TerminalProgress) -> Result<()> {
    let folder = Beir::open(&args.folder)?;
    let qrels = folder.qrels(&args.split)?;
    let queries: Vec<(String, Query)> =
        folder.queries()?.into_iter().map(|query| (query.id.to_string(), Query::text(query.text))).collect();
    let index = Index::open(&args.index, progress)?;
    let embedder = embedder_of(index.model(), args.computing, progress)?;
    let searcher = Searcher::new(index, Some(Arc::new(embedder)))?;
    let config = JudgedConfig { rerank: args.rerank, hybrid: args.hybrid, ..JudgedConfig::default() };
    let report = searcher.judge(&queries, &qrels, &config, progress)?;
    progress.finish();
    if json { output::json(&report) } else { table(&report) }
}

fn table(report: &JudgedReport) -> Result<()> {
    output::line(format!("{} judged queries against {} documents", report.queries, report.documents))?;
    let rows = report.ways.iter().map(|way| {
        let mean = &way.scores.mean;
        let figures = [mean.ndcg_10, mean.recall_100, mean.mrr, mean.map].map(|v| format!("{v:.4}"));
        [vec![way.way.clone()], figures.to_vec(), vec![format!("{:.2}", way.milliseconds_per_query)]].concat()
    });
    output::table(&["", "nDCG@10", "Recall@100", "MRR", "MAP", "ms per query"], &rows.collect::<Vec<_>>())?;
    report.missing.iter().try_for_each(|missing| output::line(format!("not measured: {missing}")))
}
