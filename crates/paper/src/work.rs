//! The cells of a plan: every task with the options that decide it, and the order in which they run.

use engine::Result;
use engine::encoder::Pooling;
use methods::{Input, Training, find};
use train::TrainConfig;

use crate::cell::Task;
use crate::plan::{CorpusPlan, Kind, MethodPlan, Plan, Selection, Sensitivity, Source};

/// A task with every option that decides its result.
pub struct Work<'p> {
    pub task: Task,
    /// Number of the corpus in the plan.
    pub corpus: usize,
    pub what: What<'p>,
    /// Part of the name of the cell's file: other options are another cell.
    pub options: serde_json::Value,
    /// Those a cell of format 1 was named by, where there are such cells.
    pub options_1: Option<serde_json::Value>,
}

pub enum What<'p> {
    /// Exact search.
    Float(&'p MethodPlan),
    /// Codes from elsewhere, of so many bits.
    Codes(&'p MethodPlan, usize),
    Train(Train),
    Clustering(TrainConfig),
}

/// A method to train.
pub struct Train {
    pub training: Training,
    pub source: Source,
    /// Rate in the encoder's views.
    pub dropout: f64,
    pub selection: Selection,
}

impl Work<'_> {
    /// Sort key: the first seed of every row, then MICPQ's other seeds, then the rest; the costliest first in each.
    pub fn order(&self) -> (u64, std::cmp::Reverse<u64>) {
        let (bits, first) = match &self.task {
            Task::Row { bits, seed, .. } => (*bits as u64, *seed == 0),
            Task::Clustering { .. } => (32, true),
            Task::Sensitivity { .. } => (32, false),
        };
        // Relative costs as measured.
        let cost = match &self.what {
            What::Float(_) | What::Codes(..) => 30,
            What::Clustering(_) => 60,
            What::Train(Train { training, .. }) => {
                let (method, reads) = (training.method(), training.method().reads());
                match (training.micpq(), training.input()) {
                    (Some(config), _) if config.codebook_size == 2 => 60 + 2 * bits,
                    (Some(_), _) => 50 + bits,
                    _ if reads.token_states => 400,
                    _ if method.name() == "ammi" => 60,
                    (None, Input::Tfidf) => 150 + bits,
                    _ if !reads.validation => 20,
                    _ => 40 + bits / 2,
                }
            }
        };
        let row = matches!(self.task, Task::Row { .. });
        let own = matches!(&self.what, What::Train(train) if row && train.training.method().name() == "micpq");
        let later = match (first, own) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (later, std::cmp::Reverse(cost))
    }
}

impl Plan {
    /// Every cell, in the order of the tables.
    pub fn work(&self) -> Result<Vec<Work<'_>>> {
        let mut all = Vec::new();
        for (number, corpus) in self.corpus.iter().enumerate() {
            for row in &self.row {
                self.row_work(number, row, &mut all)?;
            }
            if let Some(clustering) = &self.clustering {
                for &seed in clustering.seeds.as_deref().unwrap_or(&self.seeds[..1]) {
                    let config = self.published_micpq(corpus, 32, seed)?;
                    let task = Task::Clustering { corpus: corpus.name.clone(), seed };
                    let options = serde_json::json!({ "clustering": clustering, "training": config });
                    let record_1 = serde_json::json!({ "clustering": clustering, "training": unclipped(&config) });
                    let options_1 = Some(self.options_1(corpus, self.pooling, record_1));
                    let deciding = Deciding {
                        source: &self.source(self.pooling),
                        dropout: Some(self.dropout),
                        masks: self.masks(seed),
                        selection: None,
                        revision: 1,
                    };
                    let options = self.cell_options(corpus, &deciding, options);
                    all.push(Work { task, corpus: number, what: What::Clustering(config), options, options_1 });
                }
            }
            for one in &self.sensitivity {
                self.sensitivity_work(number, one, &mut all)?;
            }
        }
        Ok(all)
    }

    /// The options of a method with everything else that decides a cell. Names and order are part of the file's name.
    fn cell_options(&self, corpus: &CorpusPlan, deciding: &Deciding, options: serde_json::Value) -> serde_json::Value {
        let Deciding { source, dropout, masks, selection, revision } = deciding;
        // What is not read does not decide.
        let validation = selection
            .filter(|s| *s == Selection::Labels)
            .map(|_| serde_json::json!({ "file": corpus.validation, "limit": self.validation }));
        serde_json::json!({
            "documents": corpus.documents, "queries": corpus.queries, "label": corpus.label, "sample": corpus.sample,
            "max_tokens": corpus.max_tokens, "clean": self.clean, "encoder": source.encoder, "pooling": source.pooling,
            "vectors": source.vectors, "dropout": dropout, "masks": masks, "selection": selection,
            "validation": validation,
            // Queries and validation queries that have no file are set aside from the documents.
            "set_aside": [corpus.queries.is_none(), corpus.validation.is_none()], "aside": self.aside(corpus),
            "revision": revision, "options": options,
        })
    }

    /// How many validation queries are at most set aside from the documents, which are fewer by so many.
    fn aside(&self, corpus: &CorpusPlan) -> Option<usize> {
        self.validation.filter(|_| corpus.validation.is_none())
    }

    /// The options that the name of a cell of format 1 was made of.
    fn options_1(&self, corpus: &CorpusPlan, pooling: Pooling, options: serde_json::Value) -> serde_json::Value {
        serde_json::json!({
            "documents": corpus.documents, "queries": corpus.queries, "sample": corpus.sample,
            "validation": self.validation, "max_tokens": corpus.max_tokens, "clean": self.clean,
            "encoder": self.encoder, "pooling": pooling, "options": options,
        })
    }

    /// The plan's encoder with a pooling.
    pub fn source(&self, pooling: Pooling) -> Source {
        Source { encoder: self.encoder.clone(), pooling, vectors: None }
    }

    /// The seed of the dropout masks of a run.
    pub fn masks(&self, seed: u64) -> u64 {
        if self.views_per_seed { seed } else { 0 }
    }

    /// The cells of one row on one corpus.
    fn row_work<'p>(&'p self, number: usize, row: &'p MethodPlan, all: &mut Vec<Work<'p>>) -> Result<()> {
        let corpus = &self.corpus[number];
        let (label, source) = (row.label(self), row.source(self));
        let plain = Deciding { source: &source, dropout: None, masks: 0, selection: None, revision: 1 };
        // Cells of format 1 knew neither encoders nor vectors of a row.
        let known_1 =
            source == self.source(source.pooling) && row.selection == Selection::Labels && !self.views_per_seed;
        match row.kind()? {
            Kind::Float => {
                let task = Task::Row { corpus: corpus.name.clone(), row: label, bits: 0, seed: 0 };
                let input = serde_json::json!({ "input": row.input });
                let options_1 = known_1.then(|| self.options_1(corpus, source.pooling, input.clone()));
                let options = self.cell_options(corpus, &plain, input);
                all.push(Work { task, corpus: number, what: What::Float(row), options, options_1 });
            }
            Kind::Codes => {
                for &bits in &self.bits {
                    let task = Task::Row { corpus: corpus.name.clone(), row: label.clone(), bits, seed: 0 };
                    let options = serde_json::json!({ "codes": row.codes, "bits": bits });
                    let options = self.cell_options(corpus, &plain, options);
                    all.push(Work { task, corpus: number, what: What::Codes(row, bits), options, options_1: None });
                }
            }
            Kind::Method(method) => {
                for &bits in &self.bits {
                    for &seed in row.seeds(self, corpus, bits) {
                        let task = Task::Row { corpus: corpus.name.clone(), row: label.clone(), bits, seed };
                        let training = row.training(self, corpus, bits, seed)?;
                        let record_1 = match (training.micpq(), training.record()) {
                            (Some(config), _) => with_dropout(config, self.dropout),
                            // `decoder_init` is newer than format 1. `Map::remove` would change the order.
                            (None, serde_json::Value::Object(options)) => {
                                options.into_iter().filter(|(name, _)| name != "decoder_init").collect()
                            }
                            (None, other) => other,
                        };
                        let reads = method.reads();
                        // Exact neighbours, K-means and the like choose no epoch.
                        let selection = reads.validation.then_some(row.selection);
                        let deciding = Deciding {
                            dropout: reads.views.then_some(self.dropout),
                            masks: if reads.views { self.masks(seed) } else { 0 },
                            selection,
                            revision: method.revision(),
                            ..plain
                        };
                        let options_1 = known_1.then(|| self.options_1(corpus, source.pooling, record_1));
                        let options = self.cell_options(corpus, &deciding, training.record());
                        let (source, dropout) = (source.clone(), self.dropout);
                        let what = What::Train(Train { training, source, dropout, selection: row.selection });
                        all.push(Work { task, corpus: number, what, options, options_1 });
                    }
                }
            }
        }
        Ok(())
    }

    /// The cells of one option of MICPQ on one corpus.
    fn sensitivity_work<'p>(&'p self, number: usize, one: &Sensitivity, all: &mut Vec<Work<'p>>) -> Result<()> {
        let corpus = &self.corpus[number];
        let pooling = one.pooling.unwrap_or(self.pooling);
        let micpq = find("micpq")?;
        let seeds = one.seeds.as_deref().unwrap_or(&self.seeds[..1]);
        for (&value, &seed) in one.values.iter().flat_map(|value| seeds.iter().map(move |seed| (value, seed))) {
            let mut training = MethodPlan::new("micpq").training(self, corpus, one.bits, seed)?;
            let mut dropout = self.dropout;
            match one.option.as_str() {
                option @ ("prob_weight" | "contrast_temperature" | "tau") => {
                    training = training.with_option(option, value.into())?;
                }
                _ => dropout = value,
            }
            training.validate()?;
            let (name, option) = (corpus.name.clone(), one.option.clone());
            let task = Task::Sensitivity { corpus: name, option, value, bits: one.bits, seed };
            let source = self.source(pooling);
            let selection = Selection::Labels;
            let deciding = Deciding {
                source: &source,
                dropout: Some(dropout),
                masks: self.masks(seed),
                selection: Some(selection),
                revision: micpq.revision(),
            };
            let config = training.micpq().expect("the row is MICPQ");
            let options_1 = Some(self.options_1(corpus, pooling, with_dropout(config, dropout)));
            let options = self.cell_options(corpus, &deciding, training.record());
            let what = What::Train(Train { training, source, dropout, selection });
            all.push(Work { task, corpus: number, what, options, options_1 });
        }
        Ok(())
    }

    /// MICPQ as published for a corpus.
    fn published_micpq(&self, corpus: &CorpusPlan, bits: usize, seed: u64) -> Result<TrainConfig> {
        MethodPlan::new("micpq").micpq(self, corpus, bits, seed)
    }
}

/// Everything that decides a cell beside the corpus and the options of its method.
struct Deciding<'a> {
    source: &'a Source,
    /// Rate in views, for methods that read views.
    dropout: Option<f64>,
    /// Seed of the masks of views.
    masks: u64,
    /// For methods with epochs.
    selection: Option<Selection>,
    /// Of the method's implementation.
    revision: u32,
}

/// MICPQ's options as format 1 recorded them: with dropout among them, and a preset that did not clip the first step.
fn with_dropout(config: &TrainConfig, dropout: f64) -> serde_json::Value {
    let mut options = unclipped(config);
    options["dropout"] = dropout.into();
    options
}

fn unclipped(config: &TrainConfig) -> serde_json::Value {
    serde_json::to_value(TrainConfig { clip_first_step: false, ..config.clone() }).expect("options have a JSON form")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{file_name, file_name_1};

    /// The names of all cells of a plan, built in or by path.
    fn names(plan: &Plan) -> Vec<String> {
        plan.work().unwrap().iter().map(|w| file_name(&w.task, &w.options)).collect()
    }

    #[test]
    fn a_cell_has_another_name_if_anything_that_decides_it_changes() {
        let plan = Plan::open("full").unwrap();
        let of = |plan: &Plan, row: &str| -> Vec<String> {
            let work = plan.work().unwrap();
            let own = work.iter().filter(|w| {
                matches!(&w.task, Task::Row { row: label, bits: 0 | 32, corpus, .. } if label == row && corpus == "AGNews")
            });
            own.map(|w| file_name(&w.task, &w.options)).collect()
        };
        let changed = |change: fn(&mut Plan), row: &str| {
            let mut other = plan.clone();
            change(&mut other);
            let (before, after) = (of(&plan, row), of(&other, row));
            assert!(!before.is_empty() && before.len() == after.len(), "{row}");
            before.iter().zip(&after).all(|(a, b)| a != b)
        };
        for row in ["csh", "two-stage", "micpq", "cl"] {
            assert!(changed(|p| p.dropout = 0.2, row), "dropout of {row}");
        }
        for row in ["csh", "aepq", "nash tfidf", "micpq"] {
            assert!(changed(|p| p.corpus[1].validation = Some("other.csv".into()), row), "validation file of {row}");
            assert!(changed(|p| p.validation = Some(10), row), "validation limit of {row}");
            assert!(changed(|p| p.corpus[1].label = Some("kind".into()), row), "label of {row}");
        }
        assert!(changed(|p| p.encoder = "other".into(), "exact float"));
        assert!(changed(|p| p.corpus[1].queries = None, "opq"), "queries set aside are no documents");
        // What a method does not read does not decide it.
        assert!(!changed(|p| p.dropout = 0.2, "nash tfidf") && !changed(|p| p.dropout = 0.2, "opq"));
        assert!(!changed(|p| p.corpus[1].validation = Some("other.csv".into()), "opq"));
        // Seeds after the first have masks of their own.
        let shared = Plan { views_per_seed: false, ..plan.clone() };
        let differ = of(&plan, "micpq").iter().zip(of(&shared, "micpq")).filter(|(a, b)| **a != *b).count();
        assert_eq!(differ, 2);
        // No two cells of a plan share a name.
        let mut all = names(&plan);
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn archived_cells_are_found_by_their_names() {
        // Number and CRC-32 of the names in `cells.tar.xz` beside each plan, sorted and joined by line breaks.
        for (plan, count, sum) in [("bert", 403, 0xbeb9_0061_u32), ("minilm", 320, 0x49b3_620e)] {
            let path = format!("{}/../../benchmarks/paper/{plan}/plan.toml", env!("CARGO_MANIFEST_DIR"));
            let plan = Plan::open(&path).unwrap();
            let work = plan.work().unwrap();
            let mut names: Vec<String> =
                work.iter().filter_map(|w| Some(file_name_1(&w.task, w.options_1.as_ref()?))).collect();
            // NYT is not among our corpora: its cells never ran.
            names.retain(|name| !name.starts_with("nyt"));
            names.sort();
            assert_eq!(names.len(), count, "{path}");
            assert_eq!(
                crc32fast::hash(names.join("\n").as_bytes()),
                sum,
                "{path}: other names, so every cell would run again"
            );
        }
    }
}
