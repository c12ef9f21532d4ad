//! The cells of a plan: every task with the options that decide it, and the order in which they run.

use std::collections::BTreeMap;

use engine::Result;
use engine::encoder::Pooling;
use methods::{Input, Training, find};
use train::TrainConfig;

use crate::cell::Task;
use crate::plan::{CorpusPlan, Kind, MethodPlan, Plan, Sensitivity};

/// A task with every option that decides its result.
pub struct Work<'p> {
    pub task: Task,
    /// Number of the corpus in the plan.
    pub corpus: usize,
    pub what: What<'p>,
    /// Part of the name of the cell's file: other options are another cell.
    pub options: serde_json::Value,
}

pub enum What<'p> {
    /// Exact search.
    Float(&'p MethodPlan),
    /// `dropout` is the rate in the encoder's views.
    Train {
        training: Training,
        pooling: Pooling,
        dropout: f64,
    },
    Clustering(TrainConfig),
}

impl Work<'_> {
    /// Sort key: the first seed of every row, then MICPQ's other seeds, then the rest; the costliest first in each.
    pub fn order(&self) -> (u64, std::cmp::Reverse<u64>) {
        let (bits, first) = match &self.task {
            Task::System { bits, seed, .. } => (*bits as u64, *seed == 0),
            Task::Clustering { .. } => (32, true),
            Task::Sensitivity { .. } => (32, false),
        };
        // Relative costs as measured.
        let cost = match &self.what {
            What::Float(_) => 30,
            What::Clustering(_) => 60,
            What::Train { training: Training::Micpq(_, config), .. } if config.codebook_size == 2 => 60 + 2 * bits,
            What::Train { training: Training::Micpq(..), .. } => 50 + bits,
            What::Train { training: Training::Other(config), .. } => match (config.method.reads(), config.input) {
                (reads, _) if reads.token_states => 400,
                _ if config.method.name() == "ammi" => 60,
                (_, Input::Tfidf) => 150 + bits,
                (reads, _) if !reads.validation => 20,
                _ => 40 + bits / 2,
            },
        };
        let row = matches!(self.task, Task::System { .. });
        let own = matches!(&self.what, What::Train { training, .. } if row && training.method().name() == "micpq");
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
                let config = self.published_micpq(corpus, 32)?;
                let task = Task::Clustering { corpus: corpus.name.clone(), seed: config.seed };
                let options = serde_json::json!({ "clustering": clustering, "training": config });
                let options = self.cell_options(corpus, self.pooling, options);
                all.push(Work { task, corpus: number, what: What::Clustering(config), options });
            }
            for one in &self.sensitivity {
                self.sensitivity_work(number, one, &mut all)?;
            }
        }
        Ok(all)
    }

    /// The options of a method with everything else that decides a cell. Names and order are part of the file's name.
    fn cell_options(&self, corpus: &CorpusPlan, pooling: Pooling, options: serde_json::Value) -> serde_json::Value {
        serde_json::json!({
            "documents": corpus.documents, "queries": corpus.queries, "sample": corpus.sample,
            "validation": self.validation, "max_tokens": corpus.max_tokens, "clean": self.clean,
            "encoder": self.encoder, "pooling": pooling, "options": options,
        })
    }

    /// The cells of one row on one corpus.
    fn row_work<'p>(&'p self, number: usize, row: &'p MethodPlan, all: &mut Vec<Work<'p>>) -> Result<()> {
        let corpus = &self.corpus[number];
        let (label, pooling) = (row.label(self), row.pooling(self));
        let Kind::Method(_) = row.kind()? else {
            let task = Task::System { corpus: corpus.name.clone(), system: label, bits: 0, seed: 0 };
            let options = self.cell_options(corpus, pooling, serde_json::json!({ "input": row.input }));
            all.push(Work { task, corpus: number, what: What::Float(row), options });
            return Ok(());
        };
        for &bits in &self.bits {
            for &seed in row.seeds(self, corpus, bits) {
                let task = Task::System { corpus: corpus.name.clone(), system: label.clone(), bits, seed };
                let training = row.training(self, corpus, bits, seed)?;
                let options = match &training {
                    Training::Micpq(_, config) => with_dropout(config, self.dropout),
                    Training::Other(config) => config.record(),
                };
                let what = What::Train { training, pooling, dropout: self.dropout };
                let options = self.cell_options(corpus, pooling, options);
                all.push(Work { task, corpus: number, what, options });
            }
        }
        Ok(())
    }

    /// The cells of one option of MICPQ on one corpus.
    fn sensitivity_work<'p>(&'p self, number: usize, one: &Sensitivity, all: &mut Vec<Work<'p>>) -> Result<()> {
        let corpus = &self.corpus[number];
        let pooling = one.pooling.unwrap_or(self.pooling);
        let micpq = find("micpq")?;
        for &value in &one.values {
            let mut config = self.published_micpq(corpus, one.bits)?;
            let mut dropout = self.dropout;
            match one.option.as_str() {
                "prob_weight" => config.objective.prob_weight = value,
                "contrast_temperature" => config.objective.contrast_temperature = value,
                "tau" => config.objective.tau = value,
                _ => dropout = value,
            }
            config.validate()?;
            let (name, option) = (corpus.name.clone(), one.option.clone());
            let task = Task::Sensitivity { corpus: name, option, value, bits: one.bits };
            let options = self.cell_options(corpus, pooling, with_dropout(&config, dropout));
            let training = Training::Micpq(micpq.clone(), Box::new(config));
            all.push(Work { task, corpus: number, what: What::Train { training, pooling, dropout }, options });
        }
        Ok(())
    }

    /// MICPQ as published for a corpus, under the plan's first seed.
    fn published_micpq(&self, corpus: &CorpusPlan, bits: usize) -> Result<TrainConfig> {
        let row = MethodPlan {
            method: "micpq".into(),
            input: Input::Encoder,
            pooling: None,
            label: None,
            seeds: None,
            note: None,
            set: BTreeMap::new(),
            at: Vec::new(),
        };
        row.micpq(self, corpus, bits, self.seeds[0])
    }
}

fn with_dropout(config: &TrainConfig, dropout: f64) -> serde_json::Value {
    let mut options = serde_json::to_value(config).expect("options have a JSON form");
    options["dropout"] = dropout.into();
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::file_name;

    #[test]
    fn committed_cells_are_found_by_their_names() {
        // Number and CRC-32 of the names in `cells.tar.xz` beside each plan, sorted and joined by line breaks.
        for (plan, count, sum) in [("bert", 403, 0xbeb9_0061_u32), ("minilm", 320, 0x49b3_620e)] {
            let path = format!("{}/../../benchmarks/paper/{plan}/plan.toml", env!("CARGO_MANIFEST_DIR"));
            let plan = Plan::open(&path).unwrap();
            let mut names: Vec<String> = plan.work().unwrap().iter().map(|w| file_name(&w.task, &w.options)).collect();
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
