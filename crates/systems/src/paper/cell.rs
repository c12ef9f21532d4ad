//! Cells: the smallest piece of work that is done once, kept in a file, and never done again.

use std::path::{Path, PathBuf};

use micpq::{Error, Result, disk};
use serde::{Deserialize, Serialize};

use crate::clustering::Accuracy;

/// Version of a cell's file: a cell of another version is run again. 1: first release.
const FORMAT: u32 = 1;

/// What a cell measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Task {
    /// A system at one length, under one seed.
    System {
        /// Column.
        corpus: String,
        /// Row.
        system: String,
        /// Length of the codes; 0 for exact search.
        bits: usize,
        /// Of everything random.
        seed: u64,
    },
    /// Clustering by codebook and by K-means.
    Clustering {
        /// Column.
        corpus: String,
        /// Of everything random.
        seed: u64,
    },
    /// MICPQ with one option changed.
    Sensitivity {
        /// Column.
        corpus: String,
        /// The option.
        option: String,
        /// Its value.
        value: f64,
        /// Length of the codes.
        bits: usize,
    },
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Task::System { corpus, system, bits: 0, .. } => write!(f, "{corpus}, {system}"),
            Task::System { corpus, system, bits, seed } => write!(f, "{corpus}, {system}, {bits} bits, seed {seed}"),
            Task::Clustering { corpus, .. } => write!(f, "{corpus}, clustering"),
            Task::Sensitivity { corpus, option, value, bits } => {
                write!(f, "{corpus}, {option} = {value}, {bits} bits")
            }
        }
    }
}

/// A query and what was found for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Its text.
    pub query: String,
    /// Its class.
    pub class: u32,
    /// The nearest documents: text, and whether the class is the query's.
    pub found: Vec<(String, bool)>,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Precision of the first 1, 10 and 100, in percent.
    pub precision: [f64; 3],
    /// Mean average precision of the first 100, in percent.
    pub map: f64,
    /// The same precision of the first 100 by other distances.
    pub others: Vec<(String, f64)>,
    /// Share of the float top ten among the code's first hundred, in percent.
    pub fidelity: Option<f64>,
    /// Recall and precision at growing depths.
    pub curve: Vec<(f64, f64)>,
    /// Documents of each word of each book: `[books, words]`.
    pub usage: Vec<Vec<usize>>,
    /// Some documents on the two principal axes of their decoded codes: x, y, class.
    pub map_points: Vec<(f32, f32, u32)>,
    /// Some queries with their nearest documents.
    pub cases: Vec<Case>,
    /// Clustering by books and by K-means: of the documents, then of the queries.
    pub clustering: Vec<(Accuracy, Accuracy)>,
    /// Seconds of training, its validation included.
    pub training_seconds: f64,
    /// Epochs run, and the best one.
    pub epochs: (usize, usize),
    /// Microseconds of processor time to encode a document's vector, and to search for a query.
    pub microseconds: (f64, f64),
    /// Bytes of a document's code, and of the model.
    pub bytes: (usize, usize),
    /// Documents and queries.
    pub sizes: (usize, usize),
}

/// A finished cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    format: u32,
    /// What it measured.
    pub task: Task,
    /// Every option that decided it.
    pub options: serde_json::Value,
    /// What came out.
    pub figures: Figures,
}

/// Finished cells in a directory.
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Opens or makes the directory.
    pub fn open(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        Ok(Store { dir: dir.to_path_buf() })
    }

    /// A cell's file: its task in words, and a sum over its options, so that other options are another cell.
    fn path(&self, task: &Task, options: &serde_json::Value) -> PathBuf {
        let letters = task.to_string();
        let name: String =
            letters.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let sum = crc32fast::hash(format!("{FORMAT} {options}").as_bytes());
        self.dir.join(format!("{}-{sum:08x}.json", name.replace("--", "-").to_lowercase()))
    }

    /// The cell of a task with these options, where it is done. A damaged file is as good as none.
    pub fn get(&self, task: &Task, options: &serde_json::Value) -> Option<Cell> {
        let bytes = std::fs::read(self.path(task, options)).ok()?;
        let cell: Cell = serde_json::from_slice(&bytes).ok()?;
        (cell.format == FORMAT && cell.task == *task).then_some(cell)
    }

    /// Keeps a cell.
    pub fn put(&self, task: &Task, options: serde_json::Value, figures: Figures) -> Result<Cell> {
        let path = self.path(task, &options);
        let cell = Cell { format: FORMAT, task: task.clone(), options, figures };
        disk::replace(&path, &serde_json::to_vec_pretty(&cell).expect("plain data has a JSON form"))?;
        Ok(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_come_back_and_other_options_are_other_cells() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let task = Task::System { corpus: "AGNews".into(), system: "nash tfidf".into(), bits: 32, seed: 1 };
        let options = serde_json::json!({ "batch": 32 });
        assert!(store.get(&task, &options).is_none());
        let figures = Figures { precision: [1.0, 2.0, 3.0], fidelity: Some(0.1 + 0.2), ..Figures::default() };
        store.put(&task, options.clone(), figures.clone()).unwrap();
        assert_eq!(store.get(&task, &options).unwrap().figures, figures);
        assert!(store.get(&task, &serde_json::json!({ "batch": 33 })).is_none());
        let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        std::fs::write(&file, "{").unwrap();
        assert!(store.get(&task, &options).is_none(), "a damaged cell is run again");
    }
}
