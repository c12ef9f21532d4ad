//! The run of a plan: the cells that are not done yet, several side by side, each stored as soon as it is finished.

use std::collections::VecDeque;

use engine::{Progress, Result};
use parking_lot::Mutex;

use crate::cell::{Cell, Store, Task};
use crate::setup::{Board, Paper, State, p_at_100};
use crate::splits::Splits;
use crate::work::{What, Work};
use crate::workers::{Queue, Workers};

/// A finished or interrupted run.
pub struct Results {
    pub cells: Vec<Cell>,
    /// Unfinished cells with the reason.
    pub missing: Vec<(Task, Missing)>,
    /// Whether the user stopped it.
    pub interrupted: bool,
}

/// Why a cell is not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The files of its corpus are not there.
    Corpus,
    NotRun,
    /// It failed with this error.
    Failed(String),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Missing::Corpus => "its corpus is not there",
            Missing::NotRun => "not run yet",
            Missing::Failed(error) => error,
        })
    }
}

/// All cells of a plan during a run; the lists run in parallel but for `failed`.
struct Cells<'p> {
    work: Vec<Work<'p>>,
    done: Vec<Option<Cell>>,
    // Cells of format 1, which the report shows until they have run again.
    older: Vec<Option<Cell>>,
    states: Vec<(Task, State)>,
    failed: Vec<(Task, String)>,
}

impl<'p> Cells<'p> {
    fn load(work: Vec<Work<'p>>, store: &Store) -> Self {
        let done: Vec<Option<Cell>> = work.iter().map(|w| store.get(&w.task, &w.options)).collect();
        let older = work.iter().map(|w| {
            let mut cell = store.get_1(&w.task, w.options_1.as_ref()?)?;
            cell.older = matches!(&w.what, What::Train(train) if train.training.method().revision() > 1);
            Some(cell)
        });
        let older = older.collect();
        let state = |cell: &Option<Cell>| cell.as_ref().map_or(State::Waiting, |c| State::Done(p_at_100(c)));
        let states = work.iter().zip(&done).map(|(w, cell)| (w.task.clone(), state(cell))).collect();
        Cells { work, done, older, states, failed: Vec::new() }
    }

    /// The cells that are done, and in the order of the plan why the others are not; `absent` are corpora whose files are
    /// missing.
    fn results(mut self, absent: &[bool], interrupted: bool) -> Results {
        let mut missing = Vec::new();
        for ((work, cell), older) in self.work.iter().zip(&mut self.done).zip(self.older) {
            *cell = cell.take().or(older);
            if cell.is_none() {
                let failed = self.failed.iter().find(|(task, _)| *task == work.task);
                let otherwise = if absent[work.corpus] { Missing::Corpus } else { Missing::NotRun };
                missing.push((work.task.clone(), failed.map_or(otherwise, |(_, why)| Missing::Failed(why.clone()))));
            }
        }
        Results { cells: self.done.into_iter().flatten().collect(), missing, interrupted }
    }
}

impl Paper {
    /// Runs the cells that are not done. A cell that fails is reported and the others go on; an interrupted run keeps the
    /// finished cells.
    pub fn run(&self, progress: &dyn Progress, board: &dyn Board) -> Result<Results> {
        let store = Store::open(&self.output.join("cells"))?;
        let mut cells = Cells::load(self.plan.work()?, &store);
        let done = cells.done.iter().flatten().count();
        board.show(&cells.states, &format!("{done} of {} cells are done already", cells.work.len()));
        let mut interrupted = false;
        // One corpus at a time: its embeddings are the memory a run needs.
        for corpus in 0..self.plan.corpus.len() {
            interrupted = self.run_corpus(corpus, &mut cells, &store, progress, board)?;
            if interrupted {
                break;
            }
        }
        let absent: Vec<bool> =
            self.plan.corpus.iter().map(|corpus| Splits::absent(corpus, &self.data).is_some()).collect();
        Ok(cells.results(&absent, interrupted))
    }

    /// Runs the open cells of one corpus; whether the user stopped them.
    fn run_corpus(
        &self,
        corpus: usize,
        cells: &mut Cells<'_>,
        store: &Store,
        progress: &dyn Progress,
        board: &dyn Board,
    ) -> Result<bool> {
        let Cells { work, done, states, failed, .. } = cells;
        let mut open: Vec<usize> = (0..work.len())
            .filter(|&i| work[i].corpus == corpus && done[i].is_none() && self.is_selected(&work[i].task))
            .collect();
        if open.is_empty() {
            return Ok(false);
        }
        if progress.interrupted() {
            return Ok(true);
        }
        open.sort_by_key(|&i| work[i].order());
        let Some(ready) = self.prepare(corpus, open.iter().map(|&i| &work[i]), progress)? else {
            open.into_iter().for_each(|i| states[i].1 = State::Absent);
            return Ok(false);
        };
        let queue = Mutex::new(Queue { open: VecDeque::from(open), states, finished: Vec::new() });
        let workers = Workers { paper: self, work, ready: &ready, store, progress, board, queue };
        let (finished, interrupted) = workers.run()?;
        for (i, cell) in finished {
            match cell {
                Ok(cell) => done[i] = Some(cell),
                Err(problem) => failed.push((work[i].task.clone(), problem.to_string())),
            }
        }
        Ok(interrupted)
    }

    fn is_selected(&self, task: &Task) -> bool {
        let name = task.to_string();
        let holds = |texts: &[String]| texts.iter().any(|text| name.contains(text.as_str()));
        !self.report_only && (self.only.is_empty() || holds(&self.only)) && !holds(&self.skip)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use engine::encoder::{Device, Pooling};

    use super::*;
    use crate::plan::Plan;
    use crate::work::Train;

    /// A plan run by one worker, everything under `dir`.
    fn one_worker(plan: Plan, dir: &Path) -> Paper {
        Paper {
            plan,
            data: dir.to_path_buf(),
            output: dir.join("out"),
            cache: dir.join("cache"),
            device: Device::Cpu,
            jobs: 1,
            only: Vec::new(),
            skip: Vec::new(),
            report_only: false,
        }
    }

    #[test]
    fn sensitivity_cells_have_the_pooling_of_the_plan_or_their_own() {
        let mut plan = Plan::open("full").unwrap();
        // The only row of MICPQ has another pooling.
        plan.row.retain(|s| s.method != "micpq" || s.pooling == Some(Pooling::Mean));
        plan.sensitivity[0].pooling = Some(Pooling::Mean);
        let changed = plan.sensitivity[0].option.clone();
        let paper = one_worker(plan, Path::new(""));
        let mut count = 0;
        for work in paper.plan.work().unwrap() {
            let Task::Sensitivity { option, .. } = &work.task else { continue };
            let What::Train(Train { training, source, .. }) = &work.what else {
                panic!("{} is no run of MICPQ", work.task)
            };
            assert_eq!(training.method().name(), "micpq");
            let expected = if *option == changed { Pooling::Mean } else { Pooling::Cls };
            assert_eq!(source.pooling, expected, "{}", work.task);
            assert_eq!(work.options["pooling"], serde_json::to_value(expected).unwrap());
            count += 1;
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn rows_with_other_vocabularies_do_not_share_terms() {
        let dir = tempfile::tempdir().unwrap();
        let text = |i: usize| format!("{},alpha{} beta{} gamma{} common words here\n", i % 2, i % 2, i % 5, i % 40);
        std::fs::write(dir.path().join("texts.csv"), (0..200).map(text).collect::<String>()).unwrap();
        let plan = |vocabulary: usize| {
            format!(
                "[[row]]\nmethod = \"nash\"\ninput = \"tfidf\"\nlabel = \"of {vocabulary}\"\n\
                 set = {{ epochs = 1, vocabulary = {vocabulary}, min_documents = 1, max_share = 1.0 }}\n"
            )
        };
        let head = "title = \"t\"\nencoder = \"none\"\nbits = [16]\nseeds = [0]\n\
                    [[corpus]]\nname = \"texts\"\ndocuments = \"texts.csv\"\nmax_tokens = 16\n";
        let file = dir.path().join("plan.toml");
        std::fs::write(&file, [head, &plan(10), &plan(40)].concat()).unwrap();
        let paper = one_worker(Plan::open(file.to_str().unwrap()).unwrap(), dir.path());
        struct NoBoard;
        impl Board for NoBoard {
            fn show(&self, _: &[(Task, State)], _: &str) {}
        }
        let results = paper.run(&engine::NoProgress, &NoBoard).unwrap();
        let missing: Vec<String> = results.missing.iter().map(|(task, why)| format!("{task}: {why}")).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let bytes: Vec<usize> = results.cells.iter().map(|cell| cell.figures.bytes.1).collect();
        // Thirty more terms, each with sixteen weights of four bytes.
        assert_eq!(bytes[1] - bytes[0], 30 * 16 * 4, "{bytes:?}");
    }
}
