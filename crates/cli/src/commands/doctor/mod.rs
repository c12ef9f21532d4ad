//! `micpq doctor`: what would not work on this machine, what would be slow, and what to do about it.

mod indexes;
mod machine;
mod places;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::args::device;
use crate::output;

#[derive(Args)]
#[command(after_help = "\
Examples:
  micpq doctor
  micpq doctor news.micpq --json
  micpq doctor --device cuda                           a GPU that does not work is a failure

Nothing is written. \"micpq index verify\" compares every checksum of an index.")]
pub struct Doctor {
    /// Index directories, or folders of shards, to look at
    pub indexes: Vec<PathBuf>,
}

/// How a finding ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Good,
    /// It works, but slowly or not everywhere.
    Warning,
    /// Something would not work.
    Failure,
}

#[derive(Debug, Serialize)]
struct Finding {
    /// The thing that was checked.
    check: String,
    status: Status,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn good(check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { check: check.into(), status: Status::Good, found: found.into(), advice: None }
    }

    fn warning(check: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { status: Status::Warning, advice: Some(advice.into()), ..Finding::good(check, found) }
    }

    fn failure(check: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { status: Status::Failure, advice: Some(advice.into()), ..Finding::good(check, found) }
    }
}

pub fn run(args: &Doctor, json: bool) -> Result<()> {
    let mut findings = machine::findings(device());
    findings.extend(places::findings());
    args.indexes.iter().for_each(|path| findings.extend(indexes::findings(path)));
    let failures = findings.iter().filter(|finding| finding.status == Status::Failure).count();
    if json {
        output::json(&serde_json::json!({ "works": failures == 0, "findings": findings }))?;
    } else {
        findings.iter().try_for_each(print)?;
    }
    anyhow::ensure!(failures == 0, "{failures} of {} checks failed", findings.len());
    Ok(())
}

fn print(finding: &Finding) -> Result<()> {
    let mark = match finding.status {
        Status::Good => "good",
        Status::Warning => "warning",
        Status::Failure => "FAILURE",
    };
    output::line(format!("{mark:<8} {:<10} {}", finding.check, finding.found))?;
    match &finding.advice {
        Some(advice) => output::line(format!("{:20}{advice}", "")),
        None => Ok(()),
    }
}
