//! What is to be run, as a TOML file says it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use micpq::encoder::{Device, Pooling};
use micpq::text::Clean;
use micpq::{Error, Result};
use serde::{Deserialize, Serialize};
use train::TrainConfig;
use train::views::ViewChoice;

use crate::{Input, Method, SystemConfig};

/// The plans that come with the program.
const QUICK: &str = include_str!("quick.toml");
const FULL: &str = include_str!("full.toml");
const FURTHER: &str = include_str!("further.toml");

/// Corpora, systems, lengths, seeds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Heading of the report.
    pub title: String,
    /// Encoder of every system that does not name another.
    pub encoder: String,
    /// Its pooling.
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
    /// How views are made.
    #[serde(default)]
    pub views: ViewChoice,
    /// Lengths of codes.
    pub bits: Vec<usize>,
    /// Seeds of every system that does not name its own.
    pub seeds: Vec<u64>,
    /// Most validation queries of a corpus.
    #[serde(default)]
    pub validation: Option<usize>,
    /// Most epochs of any run.
    #[serde(default)]
    pub epochs: Option<usize>,
    /// What is searched.
    pub corpus: Vec<CorpusPlan>,
    /// What is compared.
    pub system: Vec<SystemPlan>,
    /// Clustering by codebook against K-means.
    #[serde(default)]
    pub clustering: Option<Clustering>,
    /// One option of MICPQ at a time.
    #[serde(default)]
    pub sensitivity: Vec<Sensitivity>,
}

/// A corpus.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusPlan {
    /// Its column.
    pub name: String,
    /// File of the documents, under the data directory unless it is a whole path.
    pub documents: PathBuf,
    /// Labelled queries by which epochs are compared; without a file a tenth of the documents, set aside.
    #[serde(default)]
    pub validation: Option<PathBuf>,
    /// Labelled queries the figures are of; without a file a tenth of the documents, set aside.
    #[serde(default)]
    pub queries: Option<PathBuf>,
    /// Field of the label, where it is none of the usual.
    #[serde(default)]
    pub label: Option<String>,
    /// Most tokens of a text, with `[CLS]` and `[SEP]`.
    pub max_tokens: usize,
    /// Most documents; more are sampled evenly.
    #[serde(default)]
    pub sample: Option<usize>,
    /// Column of the published tables: nyt, agnews or dbpedia. Decides MICPQ's published options too.
    #[serde(default)]
    pub published: Option<String>,
}

/// A row.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemPlan {
    /// A method of `micpq train`, or `float` for exact search.
    pub method: String,
    /// What it is given.
    #[serde(default = "encoder")]
    pub input: Input,
    /// Pooling, where it is another than the plan's.
    #[serde(default)]
    pub pooling: Option<Pooling>,
    /// Name of the row; otherwise made of method, input and pooling.
    #[serde(default)]
    pub label: Option<String>,
    /// Seeds, where they are others than the plan's.
    #[serde(default)]
    pub seeds: Option<Vec<u64>>,
    /// A sentence on the row, for the report.
    #[serde(default)]
    pub note: Option<String>,
    /// Options by the names `--set` knows them by.
    #[serde(default)]
    pub set: BTreeMap<String, serde_json::Value>,
    /// Other options for some of its cells.
    #[serde(default)]
    pub at: Vec<OptionsAt>,
}

/// Options of a row for one corpus, one length, or one length on one corpus, and its seeds there: where several fit, the last
/// one's count.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionsAt {
    /// The corpus' name.
    #[serde(default)]
    pub corpus: Option<String>,
    /// The length.
    #[serde(default)]
    pub bits: Option<usize>,
    /// Seeds, where they are others than the row's.
    #[serde(default)]
    pub seeds: Option<Vec<u64>>,
    /// Options by the names `--set` knows them by.
    #[serde(default)]
    pub set: BTreeMap<String, serde_json::Value>,
}

/// The clustering table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clustering {
    /// Books.
    pub books: usize,
    /// Epochs.
    pub epochs: usize,
    /// Temperature of the soft code.
    pub tau: f64,
}

/// Values of one option, everything else as published.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// `prob_weight`, `contrast_temperature`, `tau` or `dropout`.
    pub option: String,
    /// Length of the codes.
    pub bits: usize,
    /// Pooling, where it is another than the plan's.
    #[serde(default)]
    pub pooling: Option<Pooling>,
    /// What it is set to.
    pub values: Vec<f64>,
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

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Exact search without codes.
    Float,
    /// A system.
    System(Method),
}

impl SystemPlan {
    /// What the row is.
    pub fn kind(&self) -> Result<Kind> {
        if self.method == "float" { Ok(Kind::Float) } else { Ok(Kind::System(self.method.parse()?)) }
    }

    /// The row's name.
    pub fn label(&self, plan: &Plan) -> String {
        if let Some(label) = &self.label {
            return label.clone();
        }
        let name = if self.method == "float" { "exact float".to_owned() } else { self.method.clone() };
        match (self.input, self.pooling) {
            (Input::Tfidf, _) => format!("{name} tfidf"),
            (_, Some(pooling)) if pooling != plan.pooling => format!("{name} {pooling}"),
            _ => name,
        }
    }

    /// Its pooling.
    pub fn pooling(&self, plan: &Plan) -> Pooling {
        self.pooling.unwrap_or(plan.pooling)
    }

    /// MICPQ's options for a cell.
    pub fn micpq(&self, plan: &Plan, corpus: &CorpusPlan, bits: usize, seed: u64) -> Result<TrainConfig> {
        let method: Method = self.method.parse()?;
        let mut config = match &corpus.published {
            Some(name) => TrainConfig::preset(&format!("paper:{name}"), bits)?,
            None => TrainConfig::new(bits),
        };
        (config.views, config.seed) = (plan.views, seed);
        if let Some(epochs) = plan.epochs {
            config.epochs = epochs;
        }
        method.vary(&mut config);
        let mut options = self.options(corpus, bits);
        let config = options.try_fold(config, |config, (name, value)| config.with_option(name, value.clone()))?;
        config.validate()?;
        Ok(config)
    }

    /// What is said of a length on a corpus.
    fn at(&self, corpus: &CorpusPlan, bits: usize) -> impl DoubleEndedIterator<Item = &OptionsAt> {
        self.at.iter().filter(move |at| {
            at.corpus.as_ref().is_none_or(|name| *name == corpus.name) && at.bits.is_none_or(|b| b == bits)
        })
    }

    /// What is set for a cell, the later over the earlier.
    fn options(&self, corpus: &CorpusPlan, bits: usize) -> impl Iterator<Item = (&String, &serde_json::Value)> {
        self.set.iter().chain(self.at(corpus, bits).flat_map(|at| &at.set))
    }

    /// The seeds of its cells for a length on a corpus.
    pub fn seeds<'a>(&'a self, plan: &'a Plan, corpus: &CorpusPlan, bits: usize) -> &'a [u64] {
        let own = self.at(corpus, bits).rev().find_map(|at| at.seeds.as_ref());
        own.or(self.seeds.as_ref()).unwrap_or(&plan.seeds)
    }

    /// The options of another system for a cell.
    pub fn system(&self, plan: &Plan, corpus: &CorpusPlan, bits: usize, seed: u64) -> Result<SystemConfig> {
        let method: Method = self.method.parse()?;
        let mut config =
            SystemConfig { seed, views: plan.views, ..SystemConfig::new(method, bits).reading(self.input) };
        if let Some(epochs) = plan.epochs {
            config.epochs = epochs;
        }
        for (name, value) in self.options(corpus, bits) {
            config = config.with(name, value.clone())?;
        }
        config.validate()?;
        Ok(config)
    }
}

impl Plan {
    /// `quick`, `full`, `further`, or a file.
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

    /// Refuses what cannot be honoured before anything is run.
    pub fn validate(&self) -> Result<()> {
        if self.corpus.is_empty() || self.system.is_empty() || self.bits.is_empty() || self.seeds.is_empty() {
            return Err(Error::config("a plan names at least one corpus, one system, one length and one seed"));
        }
        let mut labels: Vec<String> = self.system.iter().map(|s| s.label(self)).collect();
        labels.sort();
        if let Some(twice) = labels.windows(2).find(|w| w[0] == w[1]) {
            return Err(Error::config(format!("two rows are called '{}'; give one a label of its own", twice[0])));
        }
        for system in &self.system {
            let Kind::System(method) = system.kind()? else { continue };
            for at in &system.at {
                let known = |name: &String| self.corpus.iter().any(|c| c.name == *name);
                if at.corpus.as_ref().is_some_and(|name| !known(name))
                    || at.bits.is_some_and(|b| !self.bits.contains(&b))
                {
                    return Err(Error::config(format!(
                        "{} has options at {at:?}, which is no corpus or length of this plan",
                        system.label(self)
                    )));
                }
            }
            for (&bits, corpus) in self.bits.iter().flat_map(|bits| self.corpus.iter().map(move |c| (bits, c))) {
                if method.is_micpq() {
                    system.micpq(self, corpus, bits, 0)?;
                } else {
                    system.system(self, corpus, bits, 0)?;
                }
            }
        }
        for one in &self.sensitivity {
            if !matches!(one.option.as_str(), "prob_weight" | "contrast_temperature" | "tau" | "dropout") {
                return Err(Error::config(format!(
                    "sensitivity is known of prob_weight, contrast_temperature, tau and dropout, not of {}",
                    one.option
                )));
            }
        }
        Ok(())
    }
}

/// A file of a corpus: under `data` unless it is a whole path.
pub fn locate(data: &Path, file: &Path) -> PathBuf {
    if file.is_absolute() { file.to_path_buf() } else { data.join(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plans_that_come_with_the_program_are_sound() {
        let quick = Plan::open("quick").unwrap();
        assert_eq!((quick.corpus.len(), quick.bits.len(), quick.seeds.len()), (2, 2, 1));
        assert_eq!(Plan::open("further").unwrap().corpus.len(), 8);
        let full = Plan::open("full").unwrap();
        assert_eq!(full.bits, [16, 32, 64, 128]);
        for method in Method::ALL {
            assert!(full.system.iter().any(|s| s.kind().unwrap() == Kind::System(method)), "{method} is missing");
        }
        let of = |plan: &Plan, label: &str| plan.system.iter().find(|s| s.label(plan) == label).unwrap().clone();
        let micpq = of(&full, "micpq").micpq(&full, &full.corpus[0], 16, 2).unwrap();
        assert_eq!((micpq.objective.prob_weight, micpq.objective.tau, micpq.seed), (0.1, 10.0, 2));
        assert_eq!(of(&full, "cl").micpq(&full, &full.corpus[0], 32, 0).unwrap().objective.prob_weight, 0.0);
        assert_eq!(of(&full, "nash tfidf").system(&full, &full.corpus[0], 32, 0).unwrap().input, Input::Tfidf);
    }

    #[test]
    fn a_row_may_have_other_options_at_some_cells() {
        let mut plan = Plan::open("quick").unwrap();
        let (one, other, bits) = (plan.corpus[0].name.clone(), plan.corpus[1].name.clone(), plan.bits.clone());
        let row = plan.system.iter_mut().find(|s| s.method == "dhim").unwrap();
        let at = |corpus: Option<&String>, bits, batch: usize| OptionsAt {
            corpus: corpus.cloned(),
            bits,
            seeds: (batch == 19).then(|| vec![4, 5]),
            set: [("batch".to_owned(), batch.into())].into(),
        };
        row.at = vec![at(Some(&one), None, 17), at(None, Some(bits[0]), 18), at(Some(&one), Some(bits[1]), 19)];
        let row = row.clone();
        plan.validate().unwrap();
        let batch = |corpus: usize, b: usize| row.system(&plan, &plan.corpus[corpus], bits[b], 0).unwrap().batch;
        let plain = SystemConfig::new(Method::Dhim, 32).batch;
        assert_eq!([batch(0, 0), batch(0, 1), batch(1, 0), batch(1, 1)], [18, 19, 18, plain]);
        let seeds = |corpus: usize, b: usize| row.seeds(&plan, &plan.corpus[corpus], bits[b]);
        assert_eq!((seeds(0, 0), seeds(0, 1), seeds(1, 1)), (&plan.seeds[..], &[4, 5][..], &plan.seeds[..]));
        for wrong in [at(Some(&format!("{other}?")), None, 17), at(None, Some(24), 17)] {
            let mut plan = plan.clone();
            plan.system.iter_mut().find(|s| s.method == "dhim").unwrap().at = vec![wrong];
            assert!(plan.validate().unwrap_err().to_string().contains("no corpus or length"));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
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
