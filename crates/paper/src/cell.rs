//! Cells: the smallest pieces of a run. Each is computed once and stored in a file.

use std::path::{Path, PathBuf};

use engine::{Error, Result, internal};
use serde::{Deserialize, Serialize};

use methods::clustering::Accuracy;
use train::metrics::DEPTH;

/// Version of a cell's file. A cell of another version runs again. 2: hits per query, and a name that holds everything that decides
/// a cell. 1: the archives in `benchmarks/paper`; their names leave out the dropout of CSH and two-stage and the file of validation
/// queries.
const FORMAT: u32 = 2;

/// The measurement of a cell. The names are part of its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Task {
    /// A row of the plan on one corpus, with one code length and one seed. `bits` is 0 for exact search. Older cells say `system`.
    #[serde(alias = "system")]
    Row {
        corpus: String,
        #[serde(alias = "system")]
        row: String,
        bits: usize,
        seed: u64,
    },
    /// Clustering by codebook and by K-means.
    Clustering { corpus: String, seed: u64 },
    /// MICPQ with one option changed.
    Sensitivity {
        corpus: String,
        option: String,
        value: f64,
        bits: usize,
        #[serde(default)]
        seed: u64,
    },
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Task::Row { corpus, row, bits: 0, .. } => write!(f, "{corpus}, {row}"),
            Task::Row { corpus, row, bits, seed } => write!(f, "{corpus}, {row}, {bits} bits, seed {seed}"),
            Task::Clustering { corpus, seed: 0 } => write!(f, "{corpus}, clustering"),
            Task::Clustering { corpus, seed } => write!(f, "{corpus}, clustering, seed {seed}"),
            Task::Sensitivity { corpus, option, value, bits, seed: 0 } => {
                write!(f, "{corpus}, {option} = {value}, {bits} bits")
            }
            Task::Sensitivity { corpus, option, value, bits, seed } => {
                write!(f, "{corpus}, {option} = {value}, {bits} bits, seed {seed}")
            }
        }
    }
}

/// A query and its first results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    pub query: String,
    pub class: u32,
    /// The nearest documents: text, and whether they have the query's class.
    pub found: Vec<(String, bool)>,
}

/// The figures of a cell. The names are part of its file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Precision of the first 1, 10 and 100, in percent.
    pub precision: [f64; 3],
    /// Relevant documents among the first 100 of every query, for tests of significance. Format 1 has none.
    #[serde(with = "hits_text")]
    pub hits: Vec<u8>,
    /// Mean average precision of the first 100, in percent.
    pub map: f64,
    /// P@100 by other distances.
    pub others: Vec<(String, f64)>,
    /// Recall 10@100, in percent.
    #[serde(alias = "fidelity")]
    pub recall: Option<f64>,
    /// Recall and precision at growing depths.
    pub curve: Vec<(f64, f64)>,
    /// Documents of each codeword of each codebook: `[num_codebooks, codebook_size]`.
    pub usage: Vec<Vec<usize>>,
    /// Some documents on the two principal axes of their decoded codes: x, y, class.
    pub map_points: Vec<(f32, f32, u32)>,
    pub cases: Vec<Case>,
    /// Accuracy by codebooks and by K-means: of the documents, then of the queries.
    pub clustering: Vec<(Accuracy, Accuracy)>,
    /// Seconds of training, its validation included.
    pub training_seconds: f64,
    /// Number of epochs, and the best one.
    pub epochs: (usize, usize),
    /// Microseconds from an embedding to its code, and of a search.
    pub microseconds: (f64, f64),
    /// Bytes of a code, and of the model.
    pub bytes: (usize, usize),
    /// Number of documents and of queries.
    pub sizes: (usize, usize),
}

impl Figures {
    /// The factor from a mean number of hits to percent; `None` for a cell without hits.
    pub fn hits_scale(&self) -> Option<f64> {
        let depth = DEPTH.min(self.sizes.0.max(1));
        (!self.hits.is_empty()).then(|| 100.0 / depth as f64)
    }
}

/// Hits per query as one string of two hexadecimal digits each: a line instead of thousands.
mod hits_text {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(hits: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex::encode(hits))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        hex::decode(String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    format: u32,
    /// Whether an earlier implementation of the method gave the figures.
    #[serde(skip)]
    pub older: bool,
    pub task: Task,
    /// Every option that decides the figures.
    pub options: serde_json::Value,
    pub figures: Figures,
}

/// The name of a cell's file: its task, and a checksum of its options, so that other options are another cell.
pub(crate) fn file_name(task: &Task, options: &serde_json::Value) -> String {
    named(task, &format!("{FORMAT} {options}"))
}

/// The name of a cell of format 1.
pub(crate) fn file_name_1(task: &Task, options: &serde_json::Value) -> String {
    let options =
        options.to_string().replace("\"codebook_size\":", "\"words\":").replace("\"codebooks\":", "\"books\":");
    named(task, &format!("1 {options}"))
}

fn named(task: &Task, options: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = task.to_string().chars().map(keep).collect();
    format!("{}-{:08x}.json", name.replace("--", "-").to_lowercase(), crc32fast::hash(options.as_bytes()))
}

/// Finished cells in a directory.
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Creates the directory if it is missing.
    pub fn open(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        Ok(Store { dir: dir.to_path_buf() })
    }

    fn path(&self, task: &Task, options: &serde_json::Value) -> PathBuf {
        self.dir.join(file_name(task, options))
    }

    /// The cell of a task with these options, if it is done. A damaged file counts as none.
    pub fn get(&self, task: &Task, options: &serde_json::Value) -> Option<Cell> {
        self.read(&self.path(task, options), task, FORMAT)
    }

    /// A cell of format 1, by the options that its name was made of.
    pub fn get_1(&self, task: &Task, options: &serde_json::Value) -> Option<Cell> {
        self.read(&self.dir.join(file_name_1(task, options)), task, 1)
    }

    fn read(&self, path: &Path, task: &Task, format: u32) -> Option<Cell> {
        let cell: Cell = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        (cell.format == format && cell.task == *task).then_some(cell)
    }

    pub fn put(&self, task: &Task, options: serde_json::Value, figures: Figures) -> Result<Cell> {
        let path = self.path(task, &options);
        let cell = Cell { format: FORMAT, older: false, task: task.clone(), options, figures };
        internal::replace(&path, &serde_json::to_vec_pretty(&cell).expect("plain data has a JSON form"))?;
        Ok(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_cells_are_found_by_task_and_options() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let task = Task::Row { corpus: "AGNews".into(), row: "nash tfidf".into(), bits: 32, seed: 1 };
        let options = serde_json::json!({ "batch": 32 });
        assert!(store.get(&task, &options).is_none());
        let figures = Figures {
            precision: [1.0, 2.0, 3.0],
            recall: Some(0.1 + 0.2),
            hits: vec![0, 7, 100],
            ..Figures::default()
        };
        store.put(&task, options.clone(), figures.clone()).unwrap();
        assert_eq!(store.get(&task, &options).unwrap().figures, figures);
        assert!(store.get(&task, &serde_json::json!({ "batch": 33 })).is_none());
        let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        std::fs::write(&file, "{").unwrap();
        assert!(store.get(&task, &options).is_none(), "a damaged cell is run again");
    }

    #[test]
    fn cells_that_say_system_and_fidelity_are_read() {
        let task = Task::Row { corpus: "AGNews".into(), row: "nash".into(), bits: 32, seed: 1 };
        let old = r#"{"kind": "system", "corpus": "AGNews", "system": "nash", "bits": 32, "seed": 1}"#;
        assert_eq!(serde_json::from_str::<Task>(old).unwrap(), task);
        let new = serde_json::to_value(&task).unwrap();
        assert_eq!((&new["kind"], &new["row"]), (&"row".into(), &"nash".into()));
        assert_eq!(serde_json::from_value::<Task>(new).unwrap(), task);
        let figures: Figures = serde_json::from_str(r#"{"fidelity": 63.5}"#).unwrap();
        assert_eq!(figures.recall, Some(63.5));
        assert_eq!(serde_json::to_value(&figures).unwrap()["recall"], 63.5);
    }
}
