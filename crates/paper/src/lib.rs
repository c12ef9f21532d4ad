//! The evaluation of the paper. A [`Plan`] names corpora, methods, code lengths and seeds; [`Paper`] runs it cell by cell and
//! stores every cell once; [`report`] writes tables, plots and a case study from the finished cells.
//!
//! ```no_run
//! use engine::NoProgress;
//! use engine::encoder::Device;
//! use paper::{Board, Paper, Plan, State, Task, report};
//!
//! /// Prints every change.
//! struct Lines;
//!
//! impl Board for Lines {
//!     fn show(&self, all: &[(Task, State)], news: &str) {
//!         let done = all.iter().filter(|(_, state)| matches!(state, State::Done(_))).count();
//!         println!("{done} of {} cells: {news}", all.len());
//!     }
//! }
//!
//! fn main() -> engine::Result<()> {
//!     // Plans are quick, full, further, or a file in TOML.
//!     let paper = Paper {
//!         plan: Plan::open("quick")?,
//!         data: "corpora".into(),
//!         output: "paper".into(),
//!         cache: "cache".into(),
//!         device: Device::Auto,
//!         jobs: 1,
//!         only: vec!["opq".into()],
//!         skip: Vec::new(),
//!         report_only: false,
//!     };
//!     // Stopped and started again, it runs what is not done.
//!     let results = paper.run(&NoProgress, &Lines)?;
//!     report(&paper.plan, &results, &paper.output)
//! }
//! ```
#![deny(unsafe_code)]

mod plan;
mod setup;
mod cell;
mod work;

mod splits;
mod prepare;
mod workers;
mod fit;
mod cluster;
mod measure;
mod run;

mod published;
mod comparison;
mod claims;
mod tables;
mod text;
mod svg;
mod html;

pub use cell::{Cell, Figures, Task};
pub use plan::{MethodPlan, Plan};
pub use run::{Missing, Results};
pub use setup::{Board, Paper, State};

use std::path::Path;

use engine::{Result, internal};

/// Writes `report.html`, `report.md`, `report.csv` and `report.tex` into a directory.
pub fn report(plan: &Plan, results: &Results, dir: &Path) -> Result<()> {
    let all = tables::Report::new(plan, results);
    let files = [
        ("report.html", html::page(&all)),
        ("report.md", text::markdown(&all)),
        ("report.csv", text::csv(&all)),
        ("report.tex", text::latex(&all)),
    ];
    files.iter().try_for_each(|(name, text)| internal::replace(&dir.join(name), text.as_bytes()))
}
