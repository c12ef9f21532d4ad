//! The inputs of a run: the plan, its folders and limits, and the display of its progress.

use std::path::PathBuf;

use engine::encoder::Device;

use crate::cell::{Cell, Task};
use crate::plan::Plan;

/// A plan and where it runs.
pub struct Paper {
    pub plan: Plan,
    /// Folder of the corpora.
    pub data: PathBuf,
    /// Folder of cells and report.
    pub output: PathBuf,
    /// Folder of embeddings, views and checkpoints.
    pub cache: PathBuf,
    /// Where the encoder computes.
    pub device: Device,
    /// Cells at a time.
    pub jobs: usize,
    /// Texts; a cell runs only if its name holds one of them. Empty: all cells.
    pub only: Vec<String>,
    /// Texts; a cell whose name holds one of them does not run.
    pub skip: Vec<String>,
    /// Whether nothing runs, so that the report shows what is finished.
    pub report_only: bool,
}

/// The state of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    Waiting,
    Running,
    /// Finished, with its P@100 where it has one.
    Done(Option<f64>),
    /// The files of its corpus are missing.
    Absent,
    /// It failed; the others go on.
    Failed,
}

/// Display of a run.
pub trait Board: Sync {
    /// Called after every change with all cells; `news` describes the change.
    fn show(&self, all: &[(Task, State)], news: &str);

    /// A note of a running cell, at most one a minute.
    fn hear(&self, _task: &Task, _note: &str) {}
}

/// P@100 of a cell that has one.
pub(crate) fn p_at_100(cell: &Cell) -> Option<f64> {
    matches!(cell.task, Task::Row { .. } | Task::Sensitivity { .. }).then_some(cell.figures.precision[2])
}
