//! The evaluation of the paper. A [`Plan`] names corpora, methods, code lengths and seeds; [`Paper`] runs it cell by cell and
//! stores every cell once; [`report`] writes tables, plots and a case study from the finished cells.
#![deny(unsafe_code)]

mod cell;
mod claims;
mod cluster;
mod comparison;
mod fit;
mod html;
mod measure;
mod plan;
mod prepare;
mod published;
mod run;
mod splits;
mod svg;
mod tables;
mod text;
mod work;
mod workers;

pub use cell::{Cell, Figures, Task};
pub use plan::{MethodPlan, Plan};
pub use run::{Board, Paper, Results, State};

use std::path::Path;

use engine::{Result, disk};

/// Writes `report.html`, `report.md`, `report.csv` and `report.tex` into a directory.
pub fn report(plan: &Plan, results: &Results, dir: &Path) -> Result<()> {
    let all = tables::Report::new(plan, results);
    let files = [
        ("report.html", html::page(&all)),
        ("report.md", text::markdown(&all)),
        ("report.csv", text::csv(&all)),
        ("report.tex", text::latex(&all)),
    ];
    files.iter().try_for_each(|(name, text)| disk::replace(&dir.join(name), text.as_bytes()))
}
