//! The run of a plan: cells that are not done yet, several side by side, each kept as soon as it is finished.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use micpq::encoder::{Device, Features, Pooling, Weighting};
use micpq::{Error, Result, Watch};
use train::views::{ViewChoice, Views};
use train::{TrainConfig, trainer};

use super::bench::{Seen, Sets, encoder, views};
use super::cell::{Cell, Figures, Store, Task};
use super::plan::{Kind, Plan, SystemPlan};
use super::{cluster, measure};
use crate::inputs::{Built, Front};
use crate::learn::Validation;
use crate::tfidf::LexiconConfig;
use crate::{Input, Method, SystemConfig, job};

/// Where a plan is run.
pub struct Paper {
    /// What to run.
    pub plan: Plan,
    /// Folder of the corpora.
    pub data: PathBuf,
    /// Folder of cells and report.
    pub output: PathBuf,
    /// Folder of vectors, views and checkpoints.
    pub cache: PathBuf,
    /// Where the encoder computes.
    pub device: Device,
    /// Cells at a time.
    pub jobs: usize,
    /// Only cells whose name holds one of these words are run; all where there are none.
    pub only: Vec<String>,
    /// Cells whose name holds one of these words are not run.
    pub skip: Vec<String>,
}

/// How far a cell is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// Not begun.
    Waiting,
    /// Under way.
    Running,
    /// Finished, with its P@100 where it has one.
    Done(Option<f64>),
    /// Its corpus is not there.
    Absent,
    /// It went wrong; the others go on.
    Failed,
}

/// What a person sees of a run: called after every change, with every task and its state.
pub trait Board: Sync {
    /// Shows the present state; `news` is the cell that changed, and how.
    fn show(&self, all: &[(Task, State)], news: &str);

    /// A sign of life from a cell that takes long.
    fn hear(&self, _task: &Task, _note: &str) {}
}

/// A finished or interrupted run.
pub struct Results {
    /// Finished cells.
    pub cells: Vec<Cell>,
    /// Cells that are not finished: with why, where they failed.
    pub missing: Vec<(Task, String)>,
    /// Whether the user stopped it.
    pub interrupted: bool,
}

/// A task with everything that decides it.
struct Work<'p> {
    task: Task,
    corpus: usize,
    what: What<'p>,
    options: serde_json::Value,
}

enum What<'p> {
    Float(&'p SystemPlan),
    /// Of a row or, without its name, of one option changed; pooling and dropout beside the options.
    Micpq(Option<&'p str>, Pooling, TrainConfig, f64),
    System(&'p SystemPlan, SystemConfig),
    Clustering(TrainConfig),
}

/// Everything cells of one corpus share.
struct Ready {
    sets: Sets,
    encoders: BTreeMap<&'static str, Features>,
    vectors: BTreeMap<&'static str, Seen>,
    views: BTreeMap<String, Box<dyn Views>>,
    words: Vec<(Counted, Seen)>,
    // Of the documents DHIM learns from: by pooling, and how many they are at most.
    tokens: Vec<((Pooling, usize), (Seen, Sets))>,
}

/// Which words count, and what they weigh.
type Counted = (LexiconConfig, Weighting);

/// What exact search of words counts.
fn weighed() -> Counted {
    (LexiconConfig::default(), Weighting::Tfidf)
}

/// What was made ready under a name.
fn under<'r, K: PartialEq, V>(made: &'r [(K, V)], name: &K) -> &'r V {
    made.iter().find(|(own, _)| own == name).map(|(_, value)| value).expect("it was made ready")
}

/// Views by pooling and kind.
fn viewed(pooling: Pooling, choice: ViewChoice) -> String {
    format!("{} {choice}", name(pooling))
}

impl Work<'_> {
    /// What is run first: every row once, then MICPQ's other seeds, then the rest; of each the longest first.
    fn order(&self) -> (u64, std::cmp::Reverse<u64>) {
        let (bits, first) = match &self.task {
            Task::System { bits, seed, .. } => (*bits as u64, *seed == 0),
            Task::Clustering { .. } => (32, true),
            Task::Sensitivity { .. } => (32, false),
        };
        // Relative costs as measured.
        let cost = match &self.what {
            What::Float(_) => 30,
            What::Clustering(_) => 60,
            What::Micpq(_, _, config, _) if config.words == 2 => 60 + 2 * bits,
            What::Micpq(..) => 50 + bits,
            What::System(_, config) => match (config.method, config.input) {
                (Method::Dhim, _) => 400,
                (Method::Ammi, _) => 60,
                (_, Input::Tfidf) => 150 + bits,
                (Method::Pq | Method::Opq | Method::Lopq, _) => 20,
                _ => 40 + bits / 2,
            },
        };
        let own = matches!(&self.what, What::Micpq(Some("micpq"), ..));
        let later = match (first, own) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (later, std::cmp::Reverse(cost))
    }
}

fn name(pooling: Pooling) -> &'static str {
    match pooling {
        Pooling::Cls => "cls",
        Pooling::Mean => "mean",
    }
}

impl Paper {
    /// Every cell of the plan, in the order of the tables.
    fn work(&self) -> Result<Vec<Work<'_>>> {
        let plan = &self.plan;
        let mut all = Vec::new();
        for (number, corpus) in plan.corpus.iter().enumerate() {
            // What decides a cell besides the options of its system.
            let shared = |pooling: Pooling, options: serde_json::Value| {
                serde_json::json!({
                    "documents": corpus.documents, "queries": corpus.queries, "sample": corpus.sample,
                    "validation": plan.validation, "max_tokens": corpus.max_tokens, "clean": plan.clean,
                    "encoder": plan.encoder, "pooling": pooling, "options": options,
                })
            };
            for system in &plan.system {
                let (label, pooling) = (system.label(plan), system.pooling(plan));
                let Kind::System(method) = system.kind()? else {
                    let task = Task::System { corpus: corpus.name.clone(), system: label, bits: 0, seed: 0 };
                    let options = shared(pooling, serde_json::json!({ "input": system.input }));
                    all.push(Work { task, corpus: number, what: What::Float(system), options });
                    continue;
                };
                for &bits in &plan.bits {
                    for &seed in system.seeds(plan, corpus, bits) {
                        let task = Task::System { corpus: corpus.name.clone(), system: label.clone(), bits, seed };
                        let (what, options) = if method.is_micpq() {
                            let config = system.micpq(plan, corpus, bits, seed)?;
                            let mut options = serde_json::to_value(&config).expect("options have a JSON form");
                            options["dropout"] = plan.dropout.into();
                            (What::Micpq(Some(&system.method), pooling, config, plan.dropout), options)
                        } else {
                            let config = system.system(plan, corpus, bits, seed)?;
                            let options = config.record();
                            (What::System(system, config), options)
                        };
                        all.push(Work { task, corpus: number, what, options: shared(pooling, options) });
                    }
                }
            }
            if let Some(clustering) = &plan.clustering {
                let config = self.base(number, 32)?;
                let task = Task::Clustering { corpus: corpus.name.clone(), seed: config.seed };
                let options = serde_json::json!({ "clustering": clustering, "training": config });
                let options = shared(plan.pooling, options);
                all.push(Work { task, corpus: number, what: What::Clustering(config), options });
            }
            for one in &plan.sensitivity {
                for &value in &one.values {
                    let mut config = self.base(number, one.bits)?;
                    let mut dropout = plan.dropout;
                    match one.option.as_str() {
                        "prob_weight" => config.objective.prob_weight = value,
                        "contrast_temperature" => config.objective.contrast_temperature = value,
                        "tau" => config.objective.tau = value,
                        _ => dropout = value,
                    }
                    config.validate()?;
                    let (corpus, option) = (corpus.name.clone(), one.option.clone());
                    let task = Task::Sensitivity { corpus, option, value, bits: one.bits };
                    let mut options = serde_json::to_value(&config).expect("options have a JSON form");
                    options["dropout"] = dropout.into();
                    let pooling = one.pooling.unwrap_or(plan.pooling);
                    let what = What::Micpq(None, pooling, config, dropout);
                    all.push(Work { task, corpus: number, what, options: shared(pooling, options) });
                }
            }
        }
        Ok(all)
    }

    fn wanted(&self, task: &Task) -> bool {
        let name = task.to_string();
        let holds = |words: &[String]| words.iter().any(|word| name.contains(word.as_str()));
        (self.only.is_empty() || holds(&self.only)) && !holds(&self.skip)
    }

    /// MICPQ as published for a corpus, under the plan's first seed.
    fn base(&self, corpus: usize, bits: usize) -> Result<TrainConfig> {
        let plain = SystemPlan {
            method: "micpq".into(),
            input: Input::Encoder,
            pooling: None,
            label: None,
            seeds: None,
            note: None,
            set: BTreeMap::new(),
            at: Vec::new(),
        };
        plain.micpq(&self.plan, &self.plan.corpus[corpus], bits, self.plan.seeds[0])
    }

    /// Runs what is not done yet. A cell that fails is reported and the others go on; Ctrl-C keeps what is finished.
    pub fn run(&self, watch: &dyn Watch, board: &dyn Board) -> Result<Results> {
        let store = Store::open(&self.output.join("cells"))?;
        let work = self.work()?;
        let mut cells: Vec<Option<Cell>> = work.iter().map(|w| store.get(&w.task, &w.options)).collect();
        let mut states: Vec<(Task, State)> = work
            .iter()
            .zip(&cells)
            .map(|(w, cell)| (w.task.clone(), cell.as_ref().map_or(State::Waiting, |c| State::Done(figure(c)))))
            .collect();
        let done = cells.iter().flatten().count();
        board.show(&states, &format!("{done} of {} cells are done already", work.len()));
        let mut missing: Vec<(Task, String)> = Vec::new();
        let mut interrupted = false;
        // One corpus at a time: its vectors are the memory a run needs.
        for number in 0..self.plan.corpus.len() {
            let mut open: Vec<usize> = (0..work.len())
                .filter(|&i| work[i].corpus == number && cells[i].is_none() && self.wanted(&work[i].task))
                .collect();
            open.sort_by_key(|&i| work[i].order());
            let open = VecDeque::from(open);
            if open.is_empty() {
                continue;
            }
            if watch.interrupted() {
                interrupted = true;
                break;
            }
            let Some(ready) = self.prepare(number, open.iter().map(|&i| &work[i]), watch)? else {
                for i in open {
                    states[i].1 = State::Absent;
                    missing.push((work[i].task.clone(), "its corpus is not there".into()));
                }
                continue;
            };
            let shared = Mutex::new((open, &mut states, Vec::new()));
            let threads = (rayon::current_num_threads() / self.jobs.max(1)).max(1);
            std::thread::scope(|scope| -> Result<()> {
                let mut workers = Vec::new();
                for _ in 0..self.jobs.max(1) {
                    workers.push(scope.spawn(|| -> Result<()> {
                        let pool = rayon::ThreadPoolBuilder::new()
                            .num_threads(threads)
                            .build()
                            .map_err(|e| Error::config(format!("threads: {e}")))?;
                        loop {
                            let next = {
                                let mut shared = shared.lock().expect("no worker panics while it holds it");
                                let Some(next) = shared.0.pop_front() else { return Ok(()) };
                                shared.1[next].1 = State::Running;
                                board.show(shared.1, "");
                                next
                            };
                            if watch.interrupted() {
                                return Err(Error::Interrupted);
                            }
                            let work = &work[next];
                            let found = pool
                                .install(|| self.cell(work, &ready, &Quieter::new(watch, board, &work.task)))
                                .and_then(|figures| store.put(&work.task, work.options.clone(), figures));
                            let mut shared = shared.lock().expect("no worker panics while it holds it");
                            let news = match &found {
                                Ok(cell) => {
                                    shared.1[next].1 = State::Done(figure(cell));
                                    let said = figure(cell).map_or("done".into(), |p| format!("P@100 {p:.2}"));
                                    format!("{}: {said}, {:.0} s", work.task, cell.figures.training_seconds)
                                }
                                Err(Error::Interrupted) => return Err(Error::Interrupted),
                                // The same run under another name: when that one is done, its checkpoint is this one's end.
                                Err(Error::Busy(_)) => {
                                    shared.1[next].1 = State::Waiting;
                                    shared.0.push_back(next);
                                    drop(shared);
                                    std::thread::sleep(Duration::from_secs(1));
                                    continue;
                                }
                                Err(problem) => {
                                    shared.1[next].1 = State::Failed;
                                    format!("{}: {problem}", work.task)
                                }
                            };
                            board.show(shared.1, &news);
                            shared.2.push((next, found));
                        }
                    }));
                }
                let ends: Vec<Result<()>> =
                    workers.into_iter().map(|w| w.join().expect("a worker's panic is a defect of ours")).collect();
                ends.into_iter().collect()
            })
            .or_else(|problem| match problem {
                Error::Interrupted => {
                    interrupted = true;
                    Ok(())
                }
                other => Err(other),
            })?;
            let (_, _, finished) = shared.into_inner().expect("no worker panicked");
            for (i, found) in finished {
                match found {
                    Ok(cell) => cells[i] = Some(cell),
                    Err(problem) => missing.push((work[i].task.clone(), problem.to_string())),
                }
            }
            if interrupted {
                break;
            }
        }
        for (w, cell) in work.iter().zip(&cells) {
            if cell.is_none() && !missing.iter().any(|(task, _)| *task == w.task) {
                missing.push((w.task.clone(), "not run yet".into()));
            }
        }
        Ok(Results { cells: cells.into_iter().flatten().collect(), missing, interrupted })
    }

    fn prepare<'w>(
        &self,
        number: usize,
        open: impl Iterator<Item = &'w Work<'w>>,
        watch: &dyn Watch,
    ) -> Result<Option<Ready>> {
        let (plan, corpus) = (&self.plan, &self.plan.corpus[number]);
        let Some(sets) = Sets::read(plan, corpus, &self.data, watch)? else { return Ok(None) };
        let (mut poolings, mut wanted, mut words, mut tokens) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for work in open {
            // Of what an encoder gives: pooling, and views where there are any.
            let (pooling, with_views) = match &work.what {
                What::Float(system) => {
                    words.extend((system.input == Input::Tfidf).then(weighed));
                    ((system.input == Input::Encoder).then(|| system.pooling(plan)), None)
                }
                What::Micpq(_, pooling, config, dropout) => {
                    (Some(*pooling), (*dropout == plan.dropout).then_some(config.views))
                }
                What::System(_, config) if config.input == Input::Tfidf => {
                    words.push((config.lexicon, config.weighting));
                    (None, None)
                }
                What::System(system, config) => {
                    let pooling = system.pooling(plan);
                    if config.method == Method::Dhim {
                        tokens.push(((pooling, config.sample), config.passes));
                    }
                    (Some(pooling), config.method.takes_views().then_some(config.views))
                }
                What::Clustering(config) => (Some(plan.pooling), Some(config.views)),
            };
            poolings.extend(pooling);
            wanted.extend(pooling.zip(with_views));
        }
        let mut ready = Ready {
            sets,
            encoders: BTreeMap::new(),
            vectors: BTreeMap::new(),
            views: BTreeMap::new(),
            words: Vec::new(),
            tokens: Vec::new(),
        };
        for pooling in poolings {
            if !ready.vectors.contains_key(name(pooling)) {
                let features = encoder(plan, corpus, pooling, self.device, watch)?;
                ready.vectors.insert(name(pooling), Seen::vectors(&features, &ready.sets, &self.cache, watch)?);
                ready.encoders.insert(name(pooling), features);
            }
        }
        for (pooling, choice) in wanted {
            let key = viewed(pooling, choice);
            if let Entry::Vacant(place) = ready.views.entry(key) {
                let features = &ready.encoders[name(pooling)];
                place.insert(views(features, &ready.sets, choice, plan.dropout, &self.cache, watch)?);
            }
        }
        for seen in ready.vectors.values() {
            // Once and by all threads, not by every cell at the same time.
            seen.nearest(watch)?;
        }
        // The first passes of many are those of few.
        tokens.sort_by_key(|(_, dropped)| std::cmp::Reverse(*dropped));
        for ((pooling, most), dropped) in tokens {
            if ready.tokens.iter().all(|(own, _)| *own != (pooling, most)) {
                let sets = ready.sets.sampled(most);
                let (features, own) = (&ready.encoders[name(pooling)], &ready.vectors[name(pooling)]);
                let seen = Seen::tokens(features, &sets, own, dropped, watch)?;
                ready.tokens.push(((pooling, most), (seen, sets)));
            }
        }
        for (lexicon, weighting) in words {
            if ready.words.iter().all(|(own, _)| *own != (lexicon, weighting)) {
                let seen = Seen::words(plan, &ready.sets, lexicon, weighting)?;
                ready.words.push(((lexicon, weighting), seen));
            }
        }
        Ok(Some(ready))
    }

    fn cell(&self, work: &Work, ready: &Ready, watch: &dyn Watch) -> Result<Figures> {
        let plan = &self.plan;
        let sets = &ready.sets;
        match &work.what {
            What::Float(system) => {
                let seen = match system.input {
                    Input::Tfidf => under(&ready.words, &weighed()),
                    Input::Encoder => &ready.vectors[name(system.pooling(plan))],
                };
                measure::float(seen, sets, watch)
            }
            What::Micpq(_, pooling, config, dropout) => {
                let kind = viewed(*pooling, config.views);
                let pooling = name(*pooling);
                let seen = &ready.vectors[pooling];
                let own;
                let views: &dyn Views = if *dropout == plan.dropout {
                    ready.views[&kind].as_ref()
                } else {
                    own = views(&ready.encoders[pooling], sets, config.views, *dropout, &self.cache, watch)?;
                    own.as_ref()
                };
                let gpu = ready.encoders[pooling].gpu();
                micpq(gpu, config, views, seen, sets, &self.cache.join("runs"), watch)
            }
            What::System(system, config) => {
                let (seen, sets) = match config.input {
                    Input::Tfidf => (under(&ready.words, &(config.lexicon, config.weighting)), sets),
                    Input::Encoder if config.method == Method::Dhim => {
                        let (seen, sets) = under(&ready.tokens, &(system.pooling(plan), config.sample));
                        (seen, sets)
                    }
                    Input::Encoder => (&ready.vectors[name(system.pooling(plan))], sets),
                };
                let views = match config.method.takes_views() {
                    true => Some(ready.views[&viewed(system.pooling(plan), config.views)].as_ref()),
                    false => None,
                };
                let validation = Validation {
                    queries: &seen.validation,
                    query_labels: &sets.validation.labels,
                    document_labels: &sets.documents.labels,
                };
                let begun = Instant::now();
                let fitted = job::fit(config, &seen.documents, Some(&validation), views, watch)?;
                if fitted.interrupted {
                    return Err(Error::Interrupted);
                }
                let seconds = begun.elapsed().as_secs_f64();
                let count = |name: &str| fitted.metrics[name].as_u64().unwrap_or(0) as usize;
                let epochs = (count("epochs"), count("best_epoch"));
                let figures = match &fitted.built.front {
                    // What was learned from a part is asked of the whole.
                    Front::Tokens(convolution) if seen.documents.len() < ready.sets.documents.texts.len() => {
                        let pooling = name(system.pooling(plan));
                        let (features, own) = (&ready.encoders[pooling], &ready.vectors[pooling]);
                        let seen = Seen::pooled(features, convolution, &ready.sets, own, watch)?;
                        let filters = 4 * (convolution.weight().len() + convolution.bias().len());
                        let built = Built { front: Front::Vectors, ..fitted.built.clone() };
                        let mut figures = measure::codes(&built, &seen, &ready.sets, watch)?;
                        figures.bytes.1 += filters;
                        figures
                    }
                    _ => measure::codes(&fitted.built, seen, sets, watch)?,
                };
                Ok(Figures { training_seconds: seconds, epochs, ..figures })
            }
            What::Clustering(config) => {
                let pooling = name(plan.pooling);
                let clustering = plan.clustering.as_ref().expect("the plan names it");
                let views = ready.views[&viewed(plan.pooling, config.views)].as_ref();
                cluster::run(clustering, config, views, &ready.vectors[pooling], sets, watch)
            }
        }
    }
}

fn micpq(
    gpu: Option<&cuda::Device>,
    config: &TrainConfig,
    views: &dyn Views,
    seen: &Seen,
    sets: &Sets,
    checkpoints: &Path,
    watch: &dyn Watch,
) -> Result<Figures> {
    let crate::inputs::Inputs::Vectors(queries) = &seen.validation else {
        return Err(Error::config("MICPQ takes vectors"));
    };
    let validation = train::Validation::Labelled {
        queries,
        query_labels: &sets.validation.labels,
        document_labels: &sets.documents.labels,
    };
    let outcome = trainer::train(gpu, config, views, validation, Some(checkpoints), watch)?;
    if outcome.interrupted {
        return Err(Error::Interrupted);
    }
    let seconds = outcome.metrics.seconds.training + outcome.metrics.seconds.validation;
    let epochs = (outcome.metrics.epochs, outcome.metrics.best_epoch);
    let built = Built {
        front: Front::Vectors,
        refine: outcome.refine,
        codebooks: outcome.codebooks,
        distance: config.distance,
    };
    let figures = measure::codes(&built, seen, sets, watch)?;
    Ok(Figures { training_seconds: seconds, epochs, ..figures })
}

/// P@100 of a cell that has one.
fn figure(cell: &Cell) -> Option<f64> {
    matches!(cell.task, Task::System { .. } | Task::Sensitivity { .. }).then_some(cell.figures.precision[2])
}

/// Time between two notes of a cell.
const PAUSE: Duration = Duration::from_secs(60);

/// Passes on the wish to stop, and now and then a note: many cells at once have no progress of their own to show.
struct Quieter<'a> {
    watch: &'a dyn Watch,
    board: &'a dyn Board,
    task: &'a Task,
    last: Mutex<Instant>,
}

impl<'a> Quieter<'a> {
    fn new(watch: &'a dyn Watch, board: &'a dyn Board, task: &'a Task) -> Self {
        Quieter { watch, board, task, last: Mutex::new(Instant::now()) }
    }
}

impl Watch for Quieter<'_> {
    fn interrupted(&self) -> bool {
        self.watch.interrupted()
    }

    fn note(&self, text: &str) {
        let mut last = self.last.lock().expect("no note panics");
        if last.elapsed() >= PAUSE {
            *last = Instant::now();
            self.board.hear(self.task, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan run by one worker, everything under `dir`.
    fn alone(plan: Plan, dir: &Path) -> Paper {
        Paper {
            plan,
            data: dir.to_path_buf(),
            output: dir.join("out"),
            cache: dir.join("cache"),
            device: Device::Cpu,
            jobs: 1,
            only: Vec::new(),
            skip: Vec::new(),
        }
    }

    #[test]
    fn one_option_at_a_time_is_of_the_plans_pooling_or_its_own_whatever_the_rows() {
        let mut plan = Plan::open("full").unwrap();
        // The first row of MICPQ is another pooling's.
        plan.system.retain(|s| s.method != "micpq" || s.pooling == Some(Pooling::Mean));
        plan.sensitivity[0].pooling = Some(Pooling::Mean);
        let changed = plan.sensitivity[0].option.clone();
        let paper = alone(plan, Path::new(""));
        let mut seen = 0;
        for work in paper.work().unwrap() {
            let Task::Sensitivity { option, .. } = &work.task else { continue };
            let What::Micpq(None, pooling, ..) = work.what else { panic!("{} is no run of MICPQ", work.task) };
            let expected = if *option == changed { Pooling::Mean } else { Pooling::Cls };
            assert_eq!(pooling, expected, "{}", work.task);
            assert_eq!(work.options["pooling"], serde_json::to_value(expected).unwrap());
            seen += 1;
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn rows_of_other_vocabularies_are_counted_by_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let text = |i: usize| format!("{},alpha{} beta{} gamma{} common words here\n", i % 2, i % 2, i % 5, i % 40);
        std::fs::write(dir.path().join("texts.csv"), (0..200).map(text).collect::<String>()).unwrap();
        let plan = |vocabulary: usize| {
            format!(
                "[[system]]\nmethod = \"nash\"\ninput = \"tfidf\"\nlabel = \"of {vocabulary}\"\n\
                 set = {{ epochs = 1, vocabulary = {vocabulary}, min_documents = 1, max_share = 1.0 }}\n"
            )
        };
        let head = "title = \"t\"\nencoder = \"none\"\nbits = [16]\nseeds = [0]\n\
                    [[corpus]]\nname = \"texts\"\ndocuments = \"texts.csv\"\nmax_tokens = 16\n";
        let file = dir.path().join("plan.toml");
        std::fs::write(&file, [head, &plan(10), &plan(40)].concat()).unwrap();
        let paper = alone(Plan::open(file.to_str().unwrap()).unwrap(), dir.path());
        struct Unseen;
        impl Board for Unseen {
            fn show(&self, _: &[(Task, State)], _: &str) {}
        }
        let results = paper.run(&micpq::Silent, &Unseen).unwrap();
        let missing: Vec<String> = results.missing.iter().map(|(task, why)| format!("{task}: {why}")).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let bytes: Vec<usize> = results.cells.iter().map(|cell| cell.figures.bytes.1).collect();
        // A row of the only layer for every word: sixteen values of four bytes.
        assert_eq!(bytes[1] - bytes[0], 30 * 16 * 4, "{bytes:?}");
    }
}
