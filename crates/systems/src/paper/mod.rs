//! The paper's evaluation again: a [`Plan`] of corpora, systems, lengths and seeds is run cell by cell, and what is finished
//! becomes tables, plots and a case study.

mod bench;
mod cell;
mod cluster;
mod html;
mod measure;
mod plan;
mod published;
mod run;
mod svg;
mod tables;
mod text;

pub use cell::{Cell, Figures, Task};
pub use plan::{Plan, SystemPlan};
pub use run::{Board, Paper, Results, State};

use std::path::Path;

use micpq::{Result, disk};

/// Writes `report.html`, `report.md`, `report.csv` and `report.tex` into a directory.
pub fn report(plan: &Plan, results: &Results, dir: &Path) -> Result<()> {
    let all = tables::Gathered::new(plan, results);
    let files = [
        ("report.html", html::page(&all)),
        ("report.md", text::markdown(&all)),
        ("report.csv", text::csv(&all)),
        ("report.tex", text::latex(&all)),
    ];
    files.iter().try_for_each(|(name, text)| disk::replace(&dir.join(name), text.as_bytes()))
}
