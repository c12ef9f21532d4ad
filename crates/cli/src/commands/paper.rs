//! `micpq paper`: repeats the paper's evaluation from a plan.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Result;
use engine::Error;
use engine::encoder::{Device, pull};
use paper::{Board, Missing, Paper, Plan, State, Task};
use parking_lot::Mutex;

use crate::args::{self, device};
use crate::output;
use crate::progress::TerminalProgress;

pub fn run(args: args::Paper, json: bool, quiet: bool, progress: &TerminalProgress) -> Result<()> {
    let plan = Plan::open(&args.plan)?;
    let data = match args.data {
        Some(data) => data,
        None => std::env::var_os("MICPQ_SHARED").map_or_else(|| PathBuf::from("."), PathBuf::from).join("data"),
    };
    if !data.is_dir() {
        return Err(Error::config(format!(
            "{} is not a folder; name the folder of the corpora with --data",
            data.display()
        ))
        .into());
    }
    if !args.report {
        for encoder in plan.encoders() {
            pull::locate_or_pull(encoder, progress)?;
        }
    }
    let jobs = args.jobs.unwrap_or_else(|| rayon::current_num_threads().min(4)).max(1);
    let device = if device() == Device::Auto { plan.device } else { device() };
    let cache = micpq::pipeline::cache_dir(args.cache.as_deref())?;
    let paper = Paper {
        plan,
        data,
        output: args.output.clone(),
        cache,
        device,
        jobs,
        only: args.only,
        skip: args.skip,
        report_only: args.report,
    };
    let board = Terminal::new(&paper.plan, quiet);
    let results = paper.run(progress, &board)?;
    progress.finish();
    paper::report(&paper.plan, &results, &args.output)?;
    let report = args.output.join("report.html");
    if results.interrupted {
        eprintln!(
            "stopped: {} cells are finished and in {}; run the same command to continue",
            results.cells.len(),
            report.display()
        );
        return Err(Error::Interrupted.into());
    }
    if json {
        let missing: Vec<_> = results
            .missing
            .iter()
            .map(|(task, why)| serde_json::json!({ "cell": task, "why": why.to_string() }))
            .collect();
        return output::json(&serde_json::json!({
            "report": report, "cells": results.cells.len(), "missing": missing,
        }));
    }
    for (task, why) in results.missing.iter().filter(|(_, why)| *why != Missing::Corpus) {
        output::line(format!("missing: {task}: {why}"))?;
    }
    output::line(format!("{} cells; open {}", results.cells.len(), report.display()))
}

/// Shows the state of all cells: a redrawn table on a terminal, a line per change in a log.
struct Terminal {
    rows: Vec<String>,
    columns: Vec<(String, usize)>,
    terminal: bool,
    quiet: bool,
    drawn: Mutex<usize>,
}

impl Terminal {
    fn new(plan: &Plan, quiet: bool) -> Self {
        let columns = plan.corpus.iter().flat_map(|c| plan.bits.iter().map(|&b| (c.name.clone(), b))).collect();
        Terminal {
            rows: plan.row.iter().map(|s| s.label(plan)).collect(),
            columns,
            terminal: std::io::stderr().is_terminal(),
            quiet,
            drawn: Mutex::new(0),
        }
    }

    fn table(&self, all: &[(Task, State)]) -> Vec<String> {
        let mut cells: BTreeMap<(&str, &str, usize), Vec<State>> = BTreeMap::new();
        let (mut done, mut others) = (0, Vec::new());
        for (task, state) in all {
            done += usize::from(matches!(state, State::Done(_)));
            match task {
                Task::Row { corpus, row, bits, .. } => {
                    cells.entry((corpus, row, *bits)).or_default().push(*state);
                }
                other if *state == State::Running => others.push(other.to_string()),
                _ => {}
            }
        }
        let width = self.rows.iter().map(|r| r.chars().count()).max().unwrap_or(0);
        let head = self
            .columns
            .iter()
            .map(|(corpus, bits)| format!("{:>9}", format!("{} {bits}", corpus.chars().take(4).collect::<String>())));
        let mut lines = vec![format!("{:width$}{}", "", head.collect::<String>())];
        for row in &self.rows {
            let states = self.columns.iter().map(|(corpus, bits)| {
                let of = |bits: usize| cells.get(&(corpus.as_str(), row.as_str(), bits));
                format!("{:>9}", of(*bits).or_else(|| of(0)).map_or_else(String::new, |s| cell_text(s)))
            });
            lines.push(format!("{row:width$}{}", states.collect::<String>()));
        }
        let beside = if others.is_empty() { String::new() } else { format!("; {}", others.join("; ")) };
        lines.push(format!("{done} of {} cells{beside}", all.len()));
        lines
    }
}

/// The seeds of a cell: the mean of the finished ones, or their progress.
fn cell_text(states: &[State]) -> String {
    let done: Vec<f64> =
        states.iter().filter_map(|s| if let State::Done(Some(p)) = s { Some(*p) } else { None }).collect();
    let running = if states.contains(&State::Running) { ">" } else { "" };
    if !done.is_empty() {
        let mark = if done.len() < states.len() { "*" } else { "" };
        return format!("{running}{:.1}{mark}", done.iter().sum::<f64>() / done.len() as f64);
    }
    match states.first() {
        _ if states.contains(&State::Failed) => "failed".into(),
        Some(State::Absent) => "-".into(),
        Some(State::Running) => "...".into(),
        _ => ".".into(),
    }
}

impl Board for Terminal {
    fn show(&self, all: &[(Task, State)], news: &str) {
        if self.quiet {
            return;
        }
        if !self.terminal {
            if !news.is_empty() {
                let done = all.iter().filter(|(_, s)| matches!(s, State::Done(_))).count();
                eprintln!("[{done}/{}] {news}", all.len());
            }
            return;
        }
        let lines = self.table(all);
        let mut drawn = self.drawn.lock();
        if *drawn > 0 {
            // Moves the cursor up over the last table and clears it.
            eprint!("\x1b[{}A\x1b[J", *drawn);
        }
        lines.iter().for_each(|line| eprintln!("{line}"));
        *drawn = lines.len();
    }

    fn hear(&self, task: &Task, note: &str) {
        // On a terminal the table shows which cells run. In a log only these notes do.
        if !self.quiet && !self.terminal {
            eprintln!("{task}: {note}");
        }
    }
}
