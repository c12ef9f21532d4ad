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

/// States in the order they were begun, each with the number of syncs at its acknowledgement.
struct History {
    disk: Disk,
    states: Vec<(Option<Held>, usize)>,
}

impl History {
    /// The first state has no index.
    fn begin(root: &Path) -> History {
        let disk = Disk::watch(root);
        History { states: vec![(None, disk.syncs())], disk }
    }

    fn acknowledged(&mut self, state: Held) {
        self.states.push((Some(state), self.disk.syncs()));
    }

    /// Simulates a power cut at every sync: once with only the synced data, and twice with a random part of the rest.
    fn check(&self, path: &Path) {
        for (n, cut) in self.disk.cuts().iter().enumerate() {
            for seed in [None, Some(1), Some(2)] {
                let to = scratch();
                cut.rebuild(to.path(), seed.map(|seed| mix(seed, n as u64)));
                let index_dir = to.path().join(path);
                // The last acknowledged state; the state after it may have been in progress.
                let last = self.states.iter().rposition(|(_, syncs)| *syncs <= n + 1).unwrap();
                let (before, after) = (&self.states[last].0, self.states.get(last + 1).map(|(state, _)| state));
                disk::recover(&index_dir).unwrap();
                if !index_dir.exists() && before.is_none() {
                    continue;
                }
                clean(&index_dir);
                let index = Index::open(&index_dir, &NoProgress);
                let index = index.unwrap_or_else(|e| panic!("sync {n}, {seed:?}, behind state {last}: {e}"));
                let now = held(&index);
                let is = |state: &Option<Held>| state.as_ref() == Some(&now);
                assert!(is(before) || after.is_some_and(is), "sync {n}, {seed:?}: not state {last}, nor the next");
                clean(&index_dir);
                // Leftovers of the cut do not hinder the next writer. Tested only after some cuts because a writer
                // syncs a lot.
                if n % 16 != 0 || seed.is_none() {
                    continue;
                }
                let mut writer = index.writer().unwrap();
                writer.add(&version(9999, 1), &code(index.model(), 1)).unwrap();
                writer.commit(&NoProgress).unwrap();
                assert_eq!(index.len(), now.len() + 1);
                writer.close(&NoProgress).unwrap();
                clean(&index_dir);
            }
        }
    }
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
    history.check(path);
}

#[test]
fn a_power_cut_during_replacement_leaves_the_old_or_the_new_index() {
    let dir = scratch();
    let root = dir.path().join("disk");
    std::fs::create_dir(&root).unwrap();
    let mut history = History::begin(&root);
    let path = Path::new("index");
    let index_dir = root.join(path);
    let put = |index: &Index, numbers: std::ops::Range<u64>| {
        let mut writer = index.writer().unwrap();
        for i in numbers {
            writer.add(&version(i, 0), &code(index.model(), i)).unwrap();
        }
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        held(index)
    };
    let (old, new) = (model(CodeShape::micpq(32).unwrap(), 1), model(CodeShape::micpq(64).unwrap(), 2));
    let index = Index::create(&index_dir, &old, IndexConfig::default()).unwrap();
    history.acknowledged(Held::new());
    history.acknowledged(put(&index, 0..20));
    // The backup shares files with the index, and is then restored over the index.
    let copy = root.join("some/copy");
    backup(&index_dir, &copy, CopyConfig::default(), &NoProgress).unwrap();
    history.acknowledged(put(&index, 20..25));
    restore(&copy, &index_dir, CopyConfig { replace: true, ..CopyConfig::default() }, &NoProgress).unwrap();
    let index = Index::open(&index_dir, &NoProgress).unwrap();
    assert_eq!(index.len(), 20);
    history.acknowledged(held(&index));
    let copied = history.disk.syncs();

    let mut encode = |texts: &[&str]| Ok(embeddings(texts.len(), 3));
    migrate(&index_dir, &new, &mut encode, &MigrateConfig::default(), &NoProgress).unwrap();
    history.acknowledged(held(&Index::open(&index_dir, &NoProgress).unwrap()));
    history.check(path);
    // The backup is acknowledged too and must survive every later cut.
    for cut in &history.disk.cuts()[copied - 1..] {
        let to = scratch();
        cut.rebuild(to.path(), None);
        let copy = to.path().join("some/copy");
        clean(&copy);
        assert_eq!(Index::open(&copy, &NoProgress).unwrap().len(), 20);
    }
}
