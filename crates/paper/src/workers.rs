//! The workers of a run: each takes the next open cell of a corpus, trains it, measures it and stores it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use engine::{Error, Progress, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::cell::{Cell, Store, Task};
use crate::prepare::Ready;
use crate::setup::{Board, Paper, State, p_at_100};
use crate::work::Work;

/// Shortest time between two notes of a cell.
const NOTE_PAUSE: Duration = Duration::from_secs(60);
/// Wait before a cell is tried again whose checkpoint another cell holds.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// The workers of one corpus.
pub struct Workers<'a> {
    pub paper: &'a Paper,
    pub work: &'a [Work<'a>],
    pub ready: &'a Ready,
    pub store: &'a Store,
    pub progress: &'a dyn Progress,
    pub board: &'a dyn Board,
    pub queue: Mutex<Queue<'a>>,
}

/// Cells that ended, by their number.
pub type Ended = Vec<(usize, Result<Cell>)>;

/// Shared by all workers.
pub struct Queue<'a> {
    pub open: VecDeque<usize>,
    pub states: &'a mut [(Task, State)],
    pub finished: Ended,
}

impl<'a> Workers<'a> {
    /// Runs all open cells, `paper.jobs` at a time, and gives those that ended by their number. The flag says whether the
    /// user stopped it.
    pub fn run(self) -> Result<(Ended, bool)> {
        let jobs = self.paper.jobs.max(1);
        let threads = (rayon::current_num_threads() / jobs).max(1);
        let ended: Result<()> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| self.work(threads))).collect();
            // All are joined before the first error is looked at.
            let ends: Vec<Result<()>> =
                workers.into_iter().map(|w| w.join().expect("a worker's panic is a defect of ours")).collect();
            ends.into_iter().collect()
        });
        let interrupted = match ended {
            Ok(()) => false,
            Err(Error::Interrupted) => true,
            Err(other) => return Err(other),
        };
        Ok((self.queue.into_inner().finished, interrupted))
    }

    fn work(&self, threads: usize) -> Result<()> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|e| Error::config(format!("{threads} threads for a cell: {e}")))?;
        while let Some(number) = self.next() {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let work = &self.work[number];
            let notes = CellProgress::new(self.progress, self.board, &work.task);
            let cell = pool
                .install(|| self.paper.cell(work, self.ready, &notes))
                .and_then(|figures| self.store.put(&work.task, work.options.clone(), figures));
            self.finish(number, cell)?;
        }
        Ok(())
    }

    fn queue(&self) -> MutexGuard<'_, Queue<'a>> {
        self.queue.lock()
    }

    /// The next open cell, marked as running.
    fn next(&self) -> Option<usize> {
        let mut queue = self.queue();
        let number = queue.open.pop_front()?;
        queue.states[number].1 = State::Running;
        self.board.show(queue.states, "");
        Some(number)
    }

    /// Records how a cell ended, and shows it.
    fn finish(&self, number: usize, cell: Result<Cell>) -> Result<()> {
        let task = &self.work[number].task;
        let mut queue = self.queue();
        let news = match &cell {
            Ok(cell) => {
                queue.states[number].1 = State::Done(p_at_100(cell));
                let figure = p_at_100(cell).map_or("done".into(), |p| format!("P@100 {p:.2}"));
                format!("{task}: {figure}, {:.0} s", cell.figures.training_seconds)
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            // Another cell is the same run under another name. When it ends, its checkpoint is the end of this one.
            Err(Error::Busy(_)) => {
                queue.states[number].1 = State::Waiting;
                queue.open.push_back(number);
                drop(queue);
                std::thread::sleep(BUSY_PAUSE);
                return Ok(());
            }
            Err(problem) => {
                queue.states[number].1 = State::Failed;
                format!("{task}: {problem}")
            }
        };
        self.board.show(queue.states, &news);
        queue.finished.push((number, cell));
        Ok(())
    }
}

/// Progress of one cell among several: passes on interruption and, once a minute, a note; it shows no bars.
struct CellProgress<'a> {
    progress: &'a dyn Progress,
    board: &'a dyn Board,
    task: &'a Task,
    last: Mutex<Instant>,
}

impl<'a> CellProgress<'a> {
    fn new(progress: &'a dyn Progress, board: &'a dyn Board, task: &'a Task) -> Self {
        CellProgress { progress, board, task, last: Mutex::new(Instant::now()) }
    }
}

impl Progress for CellProgress<'_> {
    fn interrupted(&self) -> bool {
        self.progress.interrupted()
    }

    fn note(&self, text: &str) {
        let mut last = self.last.lock();
        if last.elapsed() >= NOTE_PAUSE {
            *last = Instant::now();
            self.board.hear(self.task, text);
        }
    }
}
