//! Plans: which methods run on which corpora, read from TOML.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::encoder::{Device, Pooling};
use engine::text::Clean;
use engine::{Error, Result};
use serde::{Deserialize, Serialize};
use train::TrainConfig;
use train::views::ViewChoice;

use methods::{Input, MethodHandle, Training};

// Plans built into the program.
const QUICK: &str = include_str!("quick.toml");
const FULL: &str = include_str!("full.toml");
const FURTHER: &str = include_str!("further.toml");

/// Corpora, methods, code lengths and seeds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Heading of the report.
    pub title: String,
    /// Encoder of every row.
    pub encoder: String,
    #[serde(default = "cls")]
    pub pooling: Pooling,
    /// Cleaning of every text.
    #[serde(default)]
    pub clean: Clean,
    /// Where the encoder computes: auto, cpu, cuda or cuda:N.
    #[serde(default, deserialize_with = "device")]
    pub device: Device,
    /// Rate of dropout in views.
    #[serde(default = "dropout")]
    pub dropout: f64,
    #[serde(default)]
    pub views: ViewChoice,
    /// Whether every seed has dropout masks of its own, so that its views are encoded for it. Otherwise all seeds draw from one set
    /// of views, and their deviation leaves out that of the masks.
    #[serde(default)]
    pub views_per_seed: bool,
    pub bits: Vec<usize>,
    /// Seeds of every row that does not name its own.
    pub seeds: Vec<u64>,
    /// Limit of validation queries per corpus.
    #[serde(default)]
    pub validation: Option<usize>,
    #[serde(default)]
    pub epochs: Option<usize>,
    pub corpus: Vec<CorpusPlan>,
    pub row: Vec<MethodPlan>,
    /// Clustering by codebook against K-means.
    #[serde(default)]
    pub clustering: Option<Clustering>,
    /// One option of MICPQ at a time.
    #[serde(default)]
    pub sensitivity: Vec<Sensitivity>,
}

/// A corpus, and where its parts lie.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusPlan {
    /// Name of its columns.
    pub name: String,
    /// File of the documents: an absolute path, or one under the data directory.
    pub documents: PathBuf,
    /// Labelled queries that choose the best epoch. Default: a tenth of the documents, set aside.
    #[serde(default)]
    pub validation: Option<PathBuf>,
    /// Labelled queries that measure the model. Default: a tenth of the documents, set aside.
    #[serde(default)]
    pub queries: Option<PathBuf>,
    /// Field of the label. Default: label or labels.
    #[serde(default)]
    pub label: Option<String>,
    /// Limit of tokens per text, with `[CLS]` and `[SEP]`.
    pub max_tokens: usize,
    /// Limit of documents; a larger corpus is sampled evenly.
    #[serde(default)]
    pub sample: Option<usize>,
    /// Column of the published tables: nyt, agnews or dbpedia. Chooses MICPQ's published options too.
    #[serde(default)]
    pub published: Option<String>,
}

/// A row of the tables.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MethodPlan {
    /// A method of `micpq train`, or `float` for exact search.
    pub method: String,
    #[serde(default = "encoder")]
    pub input: Input,
    /// Encoder of the row. Default: the plan's.
    #[serde(default)]
    pub encoder: Option<String>,
    /// Default: the plan's.
    #[serde(default)]
    pub pooling: Option<Pooling>,
    /// Folder of vectors in place of an encoder: `CORPUS/documents.npy`, `validation.npy` and `queries.npy`, a row per text in the
    /// order of the corpus file. Splits that are set aside from the documents are taken from `documents.npy`.
    #[serde(default)]
    pub vectors: Option<PathBuf>,
    /// Folder of packed binary codes for the method `codes`: `CORPUS/BITS/documents.npy` and `queries.npy`, `uint8`, compared by
    /// Hamming distance.
    #[serde(default)]
    pub codes: Option<PathBuf>,
    /// How the best epoch is chosen.
    #[serde(default)]
    pub selection: Selection,
    /// Name of the row. Default: method, encoder, input, pooling and selection.
    #[serde(default)]
    pub label: Option<String>,
    /// Default: the plan's.
    #[serde(default)]
    pub seeds: Option<Vec<u64>>,
    /// A sentence about the row, for the report.
    #[serde(default)]
    pub note: Option<String>,
    /// Options by the names `--set` knows them by.
    #[serde(default)]
    pub set: BTreeMap<String, serde_json::Value>,
    /// Options for some of its cells alone.
    #[serde(default)]
    pub at: Vec<OptionsAt>,
}

/// How a row chooses its best epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// P@100 of the labelled validation queries, as in the authors' code.
    #[default]
    Labels,
    /// Documents held out of training, as in every build of an index: no label is read.
    NoLabels,
}

/// Where the embeddings of a row come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    pub encoder: String,
    pub pooling: Pooling,
    /// In place of the encoder.
    pub vectors: Option<PathBuf>,
}

/// Options and seeds of a row on one corpus, at one code length, or both. Where several apply, the last one counts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionsAt {
    /// Name of a corpus. Default: all.
    #[serde(default)]
    pub corpus: Option<String>,
    /// Code length. Default: all.
    #[serde(default)]
    pub bits: Option<usize>,
    /// Default: the row's.
    #[serde(default)]
    pub seeds: Option<Vec<u64>>,
    /// Options by the names `--set` knows them by.
    #[serde(default)]
    pub set: BTreeMap<String, serde_json::Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clustering {
    pub codebooks: usize,
    /// Largest number of epochs.
    pub epochs: usize,
    /// Temperature of the soft code.
    pub tau: f64,
    /// Epochs in a row whose loss is not the lowest so far; one more ends the run. Default: all epochs run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<usize>,
    /// Default: the plan's first.
    #[serde(default, skip_serializing)]
    pub seeds: Option<Vec<u64>>,
}

/// Values of one option, everything else as published.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// `prob_weight`, `contrast_temperature`, `tau` or `dropout`.
    pub option: String,
    pub bits: usize,
    /// Default: the plan's.
    #[serde(default)]
    pub pooling: Option<Pooling>,
    pub values: Vec<f64>,
    /// Default: the plan's first.
    #[serde(default)]
    pub seeds: Option<Vec<u64>>,
}

fn device<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Device, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn cls() -> Pooling {
    Pooling::Cls
}

fn dropout() -> f64 {
    0.3
}

fn encoder() -> Input {
    Input::Encoder
}

/// The kind of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Exact search without codes.
    Float,
    /// Codes from elsewhere.
    Codes,
    Method(MethodHandle),
}

impl MethodPlan {
    /// A row of the plan's encoder and pooling, without options of its own.
    pub fn new(method: &str) -> Self {
        MethodPlan {
            method: method.into(),
            input: Input::Encoder,
            encoder: None,
            pooling: None,
            vectors: None,
            codes: None,
            selection: Selection::Labels,
            label: None,
            seeds: None,
            note: None,
            set: BTreeMap::new(),
            at: Vec::new(),
        }
    }

    pub fn kind(&self) -> Result<Kind> {
        Ok(match self.method.as_str() {
            "float" => Kind::Float,
            "codes" => Kind::Codes,
            name => Kind::Method(name.parse()?),
        })
    }

    /// The code length that names its cells: 0 for exact search, which has one cell per corpus.
    pub fn cell_bits(&self, bits: usize) -> usize {
        if self.method == "float" { 0 } else { bits }
    }

    pub fn label(&self, plan: &Plan) -> String {
        if let Some(label) = &self.label {
            return label.clone();
        }
        let mut name = if self.method == "float" { "exact float".to_owned() } else { self.method.clone() };
        let stem = |path: &Path| path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        match (self.input, self.pooling, &self.encoder) {
            (Input::Tfidf, ..) => name += " tfidf",
            (_, pooling, encoder) => {
                if let Some(encoder) = encoder.as_ref().filter(|e| **e != plan.encoder) {
                    name += &format!(" {}", stem(Path::new(encoder)));
                }
                if let Some(pooling) = pooling.filter(|p| *p != plan.pooling) {
                    name += &format!(" {pooling}");
                }
            }
        }
        if let Some(folder) = self.vectors.as_ref().or(self.codes.as_ref()) {
            name += &format!(" {}", stem(folder));
        }
        if self.selection == Selection::NoLabels {
            name += " no labels";
        }
        name
    }

    pub fn pooling(&self, plan: &Plan) -> Pooling {
        self.pooling.unwrap_or(plan.pooling)
    }

    pub fn source(&self, plan: &Plan) -> Source {
        Source {
            encoder: self.encoder.clone().unwrap_or_else(|| plan.encoder.clone()),
            pooling: self.pooling(plan),
            vectors: self.vectors.clone(),
        }
    }

    /// The method with its options for a cell.
    pub fn training(&self, plan: &Plan, corpus: &CorpusPlan, bits: usize, seed: u64) -> Result<Training> {
        let training = Training::new(self.method.parse()?, bits).reading(self.input)?;
        // A published run is one of MICPQ.
        let training = match (&corpus.published, training.micpq()) {
            (Some(name), Some(_)) => training.with_option("preset", format!("paper:{name}").into())?,
            _ => training,
        };
        let mut training = training.with_option("seed", seed.into())?;
        if training.views().is_some() {
            training = training.with_option("views", plan.views.to_string().into())?;
        }
        if let (Some(epochs), true) = (plan.epochs, training.record().get("epochs").is_some()) {
            training = training.with_option("epochs", epochs.into())?;
        }
        let mut options = self.options(corpus, bits);
        let training =
            options.try_fold(training, |training, (name, value)| training.with_option(name, value.clone()))?;
        training.validate()?;
        Ok(training)
    }

    /// MICPQ's options for a cell.
    pub fn micpq(&self, plan: &Plan, corpus: &CorpusPlan, bits: usize, seed: u64) -> Result<TrainConfig> {
        let training = self.training(plan, corpus, bits, seed)?;
        let other = || Error::config(format!("{} is no variant of MICPQ", self.method));
        training.micpq().cloned().ok_or_else(other)
    }

    /// The entries of `at` that apply to a corpus and a code length.
    fn at(&self, corpus: &CorpusPlan, bits: usize) -> impl DoubleEndedIterator<Item = &OptionsAt> {
        self.at.iter().filter(move |at| {
            at.corpus.as_ref().is_none_or(|name| *name == corpus.name) && at.bits.is_none_or(|b| b == bits)
        })
    }

    /// The options set for a cell; later ones replace earlier ones.
    fn options(&self, corpus: &CorpusPlan, bits: usize) -> impl Iterator<Item = (&String, &serde_json::Value)> {
        self.set.iter().chain(self.at(corpus, bits).flat_map(|at| &at.set))
    }

    /// The seeds of a corpus and a code length.
    pub fn seeds<'a>(&'a self, plan: &'a Plan, corpus: &CorpusPlan, bits: usize) -> &'a [u64] {
        let own = self.at(corpus, bits).rev().find_map(|at| at.seeds.as_ref());
        own.or(self.seeds.as_ref()).unwrap_or(&plan.seeds)
    }
}

impl Plan {
    /// The encoders that its rows name.
    pub fn encoders(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .row
            .iter()
            .filter(|row| row.input == Input::Encoder && row.vectors.is_none() && row.codes.is_none())
            .map(|row| row.encoder.as_deref().unwrap_or(&self.encoder))
            .collect();
        if self.clustering.is_some() || !self.sensitivity.is_empty() {
            names.push(&self.encoder);
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Opens the plan `quick`, `full` or `further`, or a TOML file.
    pub fn open(name: &str) -> Result<Self> {
        let (place, text) = match name {
            "quick" => ("plan quick".to_owned(), QUICK.to_owned()),
            "full" => ("plan full".to_owned(), FULL.to_owned()),
            "further" => ("plan further".to_owned(), FURTHER.to_owned()),
            path => (path.to_owned(), std::fs::read_to_string(path).map_err(Error::io(path))?),
        };
        let plan: Plan = toml::from_str(&text).map_err(|e| Error::format(&place, e.to_string()))?;
        plan.validate()?;
        Ok(plan)
    }

    /// Checks everything before a cell runs.
    pub fn validate(&self) -> Result<()> {
        if self.corpus.is_empty() || self.row.is_empty() || self.bits.is_empty() || self.seeds.is_empty() {
            return Err(Error::config("a plan needs at least one corpus, one row, one length in bits and one seed"));
        }
        let mut labels: Vec<String> = self.row.iter().map(|s| s.label(self)).collect();
        labels.sort();
        if let Some(twice) = labels.windows(2).find(|w| w[0] == w[1]) {
            return Err(Error::config(format!("two rows are called '{}'; give one a label of its own", twice[0])));
        }
        for row in &self.row {
            if (row.method == "codes") != row.codes.is_some() {
                return Err(Error::config(format!(
                    "row {}: the method codes and a folder of codes belong together; give both or none",
                    row.label(self)
                )));
            }
            let Kind::Method(method) = row.kind()? else { continue };
            if row.vectors.is_some() && (row.input == Input::Tfidf || method.reads().token_states) {
                return Err(Error::config(format!(
                    "row {} has vectors, but {method} reads {} here; leave vectors out",
                    row.label(self),
                    if row.input == Input::Tfidf { "terms" } else { "token states" }
                )));
            }
            for at in &row.at {
                let known = |name: &String| self.corpus.iter().any(|c| c.name == *name);
                if at.corpus.as_ref().is_some_and(|name| !known(name))
                    || at.bits.is_some_and(|b| !self.bits.contains(&b))
                {
                    return Err(Error::config(format!(
                        "{} has options at {at:?}, which is no corpus or length of this plan",
                        row.label(self)
                    )));
                }
            }
            for (&bits, corpus) in self.bits.iter().flat_map(|bits| self.corpus.iter().map(move |c| (bits, c))) {
                row.training(self, corpus, bits, 0)?;
            }
        }
        for one in &self.sensitivity {
            if !matches!(one.option.as_str(), "prob_weight" | "contrast_temperature" | "tau" | "dropout") {
                return Err(Error::config(format!(
                    "sensitivity: unknown option {}; known: prob_weight, contrast_temperature, tau, dropout",
                    one.option
                )));
            }
        }
        Ok(())
    }
}

/// The path of a corpus file: itself if absolute, otherwise under `data`.
pub fn locate(data: &Path, file: &Path) -> PathBuf {
    if file.is_absolute() { file.to_path_buf() } else { data.join(file) }
}

#[cfg(test)]
mod tests {
    use methods::MethodConfig;

    use super::*;

    #[test]
    fn built_in_plans_are_valid_and_full_has_every_method() {
        let quick = Plan::open("quick").unwrap();
        assert_eq!((quick.corpus.len(), quick.bits.len(), quick.seeds.len()), (2, 2, 1));
        assert_eq!(Plan::open("further").unwrap().corpus.len(), 8);
        let full = Plan::open("full").unwrap();
        assert_eq!(full.bits, [16, 32, 64, 128]);
        // `distilled` is newer than the paper.
        for method in methods::registry().into_iter().filter(|method| method.name() != "distilled") {
            let kind = Kind::Method(method.clone());
            assert!(full.row.iter().any(|s| s.kind().unwrap() == kind), "{method} is missing");
        }
        let of = |plan: &Plan, label: &str| plan.row.iter().find(|s| s.label(plan) == label).unwrap().clone();
        let micpq = of(&full, "micpq").micpq(&full, &full.corpus[0], 16, 2).unwrap();
        assert_eq!((micpq.objective.prob_weight, micpq.objective.tau, micpq.seed), (0.1, 10.0, 2));
        assert_eq!(of(&full, "cl").micpq(&full, &full.corpus[0], 32, 0).unwrap().objective.prob_weight, 0.0);
        assert_eq!(of(&full, "nash tfidf").training(&full, &full.corpus[0], 32, 0).unwrap().input(), Input::Tfidf);
    }

    #[test]
    fn options_at_some_cells_replace_those_of_the_row() {
        let mut plan = Plan::open("quick").unwrap();
        let (one, other, bits) = (plan.corpus[0].name.clone(), plan.corpus[1].name.clone(), plan.bits.clone());
        let row = plan.row.iter_mut().find(|s| s.method == "dhim").unwrap();
        let at = |corpus: Option<&String>, bits, batch: usize| OptionsAt {
            corpus: corpus.cloned(),
            bits,
            seeds: (batch == 19).then(|| vec![4, 5]),
            set: [("batch".to_owned(), batch.into())].into(),
        };
        row.at = vec![at(Some(&one), None, 17), at(None, Some(bits[0]), 18), at(Some(&one), Some(bits[1]), 19)];
        let row = row.clone();
        plan.validate().unwrap();
        let batch = |corpus: usize, b: usize| {
            row.training(&plan, &plan.corpus[corpus], bits[b], 0).unwrap().config().unwrap().batch
        };
        let plain = MethodConfig::named("dhim", 32).unwrap().batch;
        assert_eq!([batch(0, 0), batch(0, 1), batch(1, 0), batch(1, 1)], [18, 19, 18, plain]);
        let seeds = |corpus: usize, b: usize| row.seeds(&plan, &plan.corpus[corpus], bits[b]);
        assert_eq!((seeds(0, 0), seeds(0, 1), seeds(1, 1)), (&plan.seeds[..], &[4, 5][..], &plan.seeds[..]));
        for wrong in [at(Some(&format!("{other}?")), None, 17), at(None, Some(24), 17)] {
            let mut plan = plan.clone();
            plan.row.iter_mut().find(|s| s.method == "dhim").unwrap().at = vec![wrong];
            assert!(plan.validate().unwrap_err().to_string().contains("no corpus or length"));
        }
    }

    #[test]
    fn errors_name_the_wrong_value() {
        let refuse = |change: (&str, &str), word: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), QUICK.replacen(change.0, change.1, 1)).unwrap();
            let error = Plan::open(file.path().to_str().unwrap()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refuse(("title", "tilte"), "tilte");
        refuse(("method = \"micpq\"", "method = \"mipcq\""), "mipcq");
        refuse(("bits = [", "bits = [24, "), "24");
        refuse(("method = \"csh\"", "method = \"micpq\""), "two rows");
    }
}
