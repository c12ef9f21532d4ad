//! Power cuts: an index keeps exactly the acknowledged commits.

use std::collections::BTreeMap;

use kernels::dropout::mix;

use super::tests::*;
use super::*;
use crate::NoProgress;
use crate::corpus::Document;
use crate::disk;
use crate::power::Disk;

/// Content of an index: code and text by id.
type Held = BTreeMap<String, (Vec<u8>, Option<String>)>;

fn held(index: &Index) -> Held {
    let records = index.records(true).unwrap().map(|record| record.unwrap());
    records.map(|r| (format!("{:?}", r.id), (r.code, r.text))).collect()
}

/// A document whose text names its version.
fn version(i: u64, version: u64) -> Document {
    Document { text: format!("Report {i} in its version {version}"), ..document(i) }
}

/// Contents of the index and of its backup; `None` where there is none.
#[derive(Clone, Default, PartialEq)]
struct State {
    index: Option<Held>,
    copy: Option<Held>,
}

/// States in the order they were begun, each with the number of syncs at its acknowledgement.
struct History {
    disk: Disk,
    states: Vec<(State, usize)>,
}

impl History {
    /// The first state has no index.
    fn begin(root: &Path) -> History {
        let disk = Disk::watch(root);
        History { states: vec![(State::default(), disk.syncs())], disk }
    }

    fn last(&self) -> &State {
        &self.states[self.states.len() - 1].0
    }

    fn acknowledged(&mut self, index: Held) {
        let state = State { index: Some(index), copy: self.last().copy.clone() };
        self.states.push((state, self.disk.syncs()));
    }

    fn backed_up(&mut self) {
        let state = State { copy: self.last().index.clone(), ..self.last().clone() };
        self.states.push((state, self.disk.syncs()));
    }

    /// Simulates a power cut at every sync: once with only the synced data, and twice with a random part of the rest.
    fn check(&self, path: &Path, copy: &Path) {
        let cuts = self.disk.cuts();
        for (n, cut) in cuts.iter().enumerate() {
            for seed in [None, Some(1), Some(2)] {
                let to = scratch();
                cut.rebuild(to.path(), seed.map(|seed| mix(seed, n as u64)));
                // The last acknowledged state; the state after it may have been in progress.
                let last = self.states.iter().rposition(|(_, syncs)| *syncs <= n + 1).unwrap();
                let (before, after) = (&self.states[last].0, self.states.get(last + 1).map(|(state, _)| state));
                let what = format!("sync {n}, {seed:?}, behind state {last}");
                let found =
                    State { index: opened(&to.path().join(path), &what), copy: opened(&to.path().join(copy), &what) };
                let (index, copy) = (found.index == before.index, found.copy == before.copy);
                assert!(index || after.is_some_and(|after| found.index == after.index), "{what}: another index");
                assert!(copy || after.is_some_and(|after| found.copy == after.copy), "{what}: another backup");
                // Leftovers of the cut do not hinder the next writer. Tested only after some cuts because a writer
                // syncs a lot.
                let Some(found) = found.index.filter(|_| n % 16 == 0 && seed.is_some()) else { continue };
                let index = Index::open(&to.path().join(path), &NoProgress).unwrap();
                let mut writer = index.writer().unwrap();
                writer.add(&version(9999, 1), &code(index.model(), 1)).unwrap();
                writer.commit(&NoProgress).unwrap();
                assert_eq!(index.len(), found.len() + 1);
                writer.close(&NoProgress).unwrap();
                clean(&to.path().join(path));
            }
        }
        eprintln!("{} states, {} syncs, {} power cuts", self.states.len(), cuts.len(), 3 * cuts.len());
    }
}

/// What is at a path after a cut: an index, sound before and after it is opened, or nothing.
fn opened(dir: &Path, what: &str) -> Option<Held> {
    disk::recover(dir).unwrap();
    if !dir.exists() {
        return None;
    }
    clean(dir);
    let held = held(&Index::open(dir, &NoProgress).unwrap_or_else(|e| panic!("{what}: {e}")));
    clean(dir);
    Some(held)
}

#[test]
fn acknowledged_commits_survive_a_power_cut_at_any_sync() {
    let dir = scratch();
    let root = dir.path().join("disk");
    std::fs::create_dir(&root).unwrap();
    let mut history = History::begin(&root);
    let model = model(CodeShape::micpq(32).unwrap(), 1);
    let path = Path::new("new/folder/index");
    let index = Index::create(&root.join(path), &model, IndexConfig::default()).unwrap();
    history.acknowledged(Held::new());
    let mut writer = index.writer().unwrap();
    let mut state = Held::new();
    for round in 0..8u64 {
        for i in 0..6 {
            let i = mix(round, i) % 30;
            let id = format!("{:?}", document(i).id);
            if mix(round, i + 100).is_multiple_of(4) {
                writer.delete(&document(i).id).unwrap();
                state.remove(&id);
            } else {
                let (document, code) = (version(i, round), code(&model, i + round));
                writer.add(&document, &code).unwrap();
                state.insert(id, (code, Some(document.text)));
            }
        }
        writer.commit(&NoProgress).unwrap();
        history.acknowledged(state.clone());
        if round % 4 == 3 {
            writer.compact(&NoProgress).unwrap();
        }
    }
    writer.close(&NoProgress).unwrap();
    assert_eq!(held(&index), state);
    history.check(path, Path::new("copy"));
}

/// Operations of the random history. `MICPQ_POWER_ROUNDS` asks for more.
const ROUNDS: u64 = 8;

#[test]
fn a_power_cut_in_a_history_of_every_operation_loses_nothing() {
    let rounds = std::env::var("MICPQ_POWER_ROUNDS").map_or(ROUNDS, |value| value.parse().expect("a number"));
    let dir = scratch();
    let root = dir.path().join("disk");
    std::fs::create_dir(&root).unwrap();
    let mut history = History::begin(&root);
    let (path, copy) = (Path::new("index"), Path::new("some/copy"));
    let (index_dir, copy_dir) = (root.join(path), root.join(copy));
    let models = [model(CodeShape::micpq(32).unwrap(), 1), model(CodeShape::micpq(64).unwrap(), 2)];
    let replace = CopyConfig { replace: true, ..CopyConfig::default() };
    Index::create(&index_dir, &models[0], IndexConfig::default()).unwrap();
    history.acknowledged(Held::new());
    for round in 0..rounds {
        let index = Index::open(&index_dir, &NoProgress).unwrap();
        // The first rounds take every operation once.
        match if round < 7 { round } else { mix(round, 3) % 7 } {
            // Added, updated and deleted in one commit.
            0 | 3 => {
                let mut writer = index.writer().unwrap();
                for i in 0..12 {
                    writer.add(&version(mix(round, i) % 30, round), &code(index.model(), i + round)).unwrap();
                }
                writer.delete(&document(mix(round, 99) % 30).id).unwrap();
                writer.commit(&NoProgress).unwrap();
                writer.close(&NoProgress).unwrap();
                history.acknowledged(held(&index));
            }
            1 => {
                backup(&index_dir, &copy_dir, replace, &NoProgress).unwrap();
                history.backed_up();
            }
            2 => {
                let mut writer = index.writer().unwrap();
                writer.compact(&NoProgress).unwrap();
                writer.close(&NoProgress).unwrap();
                history.acknowledged(held(&index));
            }
            4 => {
                let new = models.iter().find(|model| model.fingerprint() != index.model().fingerprint()).unwrap();
                let mut encode = |texts: &[&str]| Ok(embeddings(texts.len(), 3));
                drop(index);
                migrate(&index_dir, new, &mut encode, &MigrateConfig::default(), &NoProgress).unwrap();
                history.acknowledged(held(&Index::open(&index_dir, &NoProgress).unwrap()));
            }
            5 => {
                drop(index);
                restore(&copy_dir, &index_dir, replace, &NoProgress).unwrap();
                let copied = history.last().copy.clone().unwrap();
                assert_eq!(held(&Index::open(&index_dir, &NoProgress).unwrap()), copied);
                history.acknowledged(copied);
            }
            _ => {
                drop(index);
                Index::create(&index_dir, &models[0], IndexConfig { replace: true, ..IndexConfig::default() }).unwrap();
                history.acknowledged(Held::new());
            }
        }
    }
    assert!(3 * history.disk.syncs() >= 300);
    history.check(path, copy);
}
