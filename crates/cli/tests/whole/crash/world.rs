//! A folder with an index and its backup, and a model of what they hold.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use engine::NoProgress;
use engine::corpus::DocId;
use engine::index::{Index, verify};
use engine::model::Model;

use super::Draws;
use crate::bench::{Bench, TINY, corpus};

/// Ids are below this, so that additions often replace.
const IDS: u64 = 60;

/// What an index holds: the fingerprint of its model, and texts by id.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub model: String,
    pub texts: BTreeMap<u64, String>,
}

/// Codes by fingerprint and text. A text has one code per model, whenever it was encoded.
#[derive(Default)]
pub struct Codes(HashMap<(String, String), Vec<u8>>);

impl Codes {
    /// Reads every byte of an index. `Err` says what is wrong with it.
    pub fn read(&mut self, dir: &Path) -> Result<State, String> {
        let problems = verify(dir, &NoProgress).map_err(|e| e.to_string())?;
        if !problems.is_empty() {
            return Err(format!("{problems:?}"));
        }
        let index = Index::open(dir, &NoProgress).map_err(|e| e.to_string())?;
        let mut state = State { model: index.model().fingerprint().to_owned(), texts: BTreeMap::new() };
        for record in index.records(true).map_err(|e| e.to_string())? {
            let record = record.map_err(|e| e.to_string())?;
            let DocId::Int(id) = record.id else { return Err(format!("the id {} is not of the corpus", record.id)) };
            let text = record.text.ok_or(format!("document {id} has no text"))?;
            let code = self.0.entry((state.model.clone(), text.clone())).or_insert_with(|| record.code.clone());
            if *code != record.code {
                return Err(format!("document {id} has another code than its text"));
            }
            if state.texts.insert(id, text).is_some() {
                return Err(format!("document {id} is there twice"));
            }
        }
        if index.len() != state.texts.len() {
            return Err(format!("{} documents are counted, {} are read", index.len(), state.texts.len()));
        }
        Ok(state)
    }
}

/// The first of `allowed` that equals `found`, or a text with the difference to each.
pub fn one_of(found: &State, allowed: &[State]) -> Result<usize, String> {
    if let Some(at) = allowed.iter().position(|state| state == found) {
        return Ok(at);
    }
    let mut said = String::new();
    for state in allowed {
        let lost: Vec<_> = state.texts.iter().filter(|(id, text)| found.texts.get(id) != Some(text)).collect();
        let ghosts: Vec<_> = found.texts.iter().filter(|(id, text)| state.texts.get(id) != Some(text)).collect();
        let model = if state.model == found.model { "the same model" } else { "another model" };
        write!(said, "\n  {model}, lost {lost:?}, ghosts {ghosts:?}").unwrap();
    }
    Err(format!("none of {} allowed states:{said}", allowed.len()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Adds and updates in one commit.
    Add,
    /// Adds and updates in several commits.
    AddInCommits,
    Delete,
    Compact,
    Migrate,
    Backup,
    Restore,
    /// Drops the index and creates it again.
    Recreate,
    /// Replaces the index by a new one of a corpus.
    Build,
    /// Writes an attribute of every document.
    Mark,
    /// Saves a query with the index.
    SaveQuery,
}

pub const OPERATIONS: [Operation; 11] = [
    Operation::Add,
    Operation::AddInCommits,
    Operation::Mark,
    Operation::SaveQuery,
    Operation::Delete,
    Operation::Compact,
    Operation::Backup,
    Operation::Migrate,
    Operation::Restore,
    Operation::Build,
    Operation::Recreate,
];

/// A command, and the states it leads through. The last one is the one it acknowledges.
pub struct Step {
    pub operation: Operation,
    pub line: String,
    pub index: Vec<State>,
    pub copy: Vec<State>,
}

pub struct World {
    pub bench: Bench,
    pub index: State,
    pub copy: State,
    models: [String; 2],
    codes: Codes,
    versions: usize,
}

impl World {
    /// An index `i` and its backup `copy` in a new folder.
    pub fn new() -> World {
        World::of(Bench::new(), "")
    }

    /// The same below `folder` of the bench, which ends in `/`.
    pub fn of(bench: Bench, folder: &str) -> World {
        for (name, bits) in [("a", 16), ("b", 32)] {
            let flags = TINY.replace("--bits 16", &format!("--bits {bits}"));
            bench.ok(&format!("train news.jsonl {flags} --epochs 1 --views noise:4 -o {name}"));
        }
        let models = ["a", "b"].map(|name| Model::load(&bench.path(name)).unwrap().fingerprint().to_owned());
        std::fs::write(bench.path("first.jsonl"), corpus(0, 40)).unwrap();
        bench.ok(&format!("index create {folder}i first.jsonl --model a"));
        bench.ok(&format!("index backup {folder}i {folder}copy"));
        let mut codes = Codes::default();
        let index = codes.read(&bench.path(&format!("{folder}i"))).unwrap();
        assert_eq!(index.texts.len(), 40);
        World { copy: index.clone(), index, bench, models, codes, versions: 0 }
    }

    /// Prepares a command. `folder` as in [`World::of`].
    pub fn step(&mut self, operation: Operation, folder: &str, draws: &mut Draws) -> Step {
        // Topics need documents.
        let operation = match operation {
            Operation::Mark if self.index.texts.len() < 8 => Operation::Add,
            operation => operation,
        };
        let mut step =
            Step { operation, line: String::new(), index: vec![self.index.clone()], copy: vec![self.copy.clone()] };
        let mut after = self.index.clone();
        step.line = match operation {
            Operation::Add | Operation::AddInCommits => {
                let commit = if operation == Operation::Add { 20_000 } else { 4 };
                let rows = self.new_rows(draws);
                for part in rows.chunks(commit) {
                    after.texts.extend(part.iter().cloned());
                    step.index.push(after.clone());
                }
                format!("index add {folder}i rows.jsonl --commit-every {commit}")
            }
            Operation::Delete => {
                let gone: Vec<u64> = (0..4).map(|_| draws.below(IDS)).collect();
                after.texts.retain(|id, _| !gone.contains(id));
                let ids = gone.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
                format!("index delete {folder}i {ids}")
            }
            Operation::Compact => format!("index compact {folder}i"),
            Operation::Migrate => {
                let to = usize::from(self.index.model == self.models[0]);
                after.model = self.models[to].clone();
                format!("index migrate {folder}i --model {} --commit-every 16", ["a", "b"][to])
            }
            Operation::Backup => {
                step.copy.push(self.index.clone());
                format!("index backup {folder}i {folder}copy --replace")
            }
            Operation::Restore => {
                after = self.copy.clone();
                format!("index restore {folder}copy {folder}i --replace")
            }
            Operation::Recreate => {
                after = State { model: self.models[0].clone(), texts: BTreeMap::new() };
                format!("index create {folder}i --model a --force")
            }
            Operation::Build => {
                let texts = self.new_rows(draws).into_iter().collect();
                after = State { model: self.models[0].clone(), texts };
                format!("build rows.jsonl --model a --force -o {folder}i")
            }
            Operation::Mark => format!("topics {folder}i --topics 2 --mark topic"),
            Operation::SaveQuery => format!("watch add {folder}i oil 'oil prices' --cosine 0.5"),
        };
        step.index.push(after);
        step
    }

    /// Twelve rows with different ids in `rows.jsonl`, each with a new text.
    fn new_rows(&mut self, draws: &mut Draws) -> Vec<(u64, String)> {
        let mut rows = BTreeMap::new();
        while rows.len() < 12 {
            self.versions += 1;
            let row: serde_json::Value = serde_json::from_str(&corpus(self.versions, self.versions + 1)).unwrap();
            rows.insert(draws.below(IDS), format!("{} {}", row["text"].as_str().unwrap(), self.versions));
        }
        let row = |(id, text): (&u64, &String)| format!("{}\n", serde_json::json!({ "id": id, "text": text }));
        std::fs::write(self.bench.path("rows.jsonl"), rows.iter().map(row).collect::<String>()).unwrap();
        rows.into_iter().collect()
    }

    /// Looks at the index and its backup after a command. What is there must be a state of the step, the last one if the
    /// command reported success. `Err` says what was lost.
    pub fn judge(&mut self, step: &Step, folder: &str, acknowledged: bool) -> Result<(), String> {
        for (name, allowed) in [("i", &step.index), ("copy", &step.copy)] {
            let allowed = if acknowledged { &allowed[allowed.len() - 1..] } else { &allowed[..] };
            let found = self.codes.read(&self.bench.path(&format!("{folder}{name}")));
            let found = found.map_err(|e| format!("{name} is unreadable: {e}"))?;
            one_of(&found, allowed).map_err(|e| format!("{name} is in {e}"))?;
            *(if name == "i" { &mut self.index } else { &mut self.copy }) = found;
        }
        Ok(())
    }

    /// Runs the command of a step again, without faults: it must lead to the state it acknowledges.
    pub fn repeat(&mut self, step: &Step, folder: &str) -> Result<(), String> {
        // A migration that was killed behind its end has nothing left to do.
        if step.operation == Operation::Migrate && Some(&self.index) == step.index.last() {
            return Ok(());
        }
        let output = self.bench.run(&step.line);
        if !output.status.success() {
            return Err(format!("repeated, it failed: {}", crate::bench::text(&output.stderr)));
        }
        self.judge(step, folder, true).map_err(|e| format!("repeated: {e}"))
    }
}
