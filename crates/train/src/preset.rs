//! Whole runs of the paper by name: which text, encoder, pooling and precision the published figures belong to.

use std::str::FromStr;

use engine::encoder::{EmbedderConfig, Pooling, Precision};
use engine::text::Clean;
use engine::{Error, Result};

use crate::dataset::Dataset;

/// A corpus of the paper, with the settings of its runs.
struct Corpus {
    name: &'static str,
    /// Limit of tokens, `[CLS]` among them: the authors' `max_length` and one more.
    max_tokens: usize,
    classes: usize,
    /// `prob_weight` at 16, 32, 64 and 128 bits, from the authors' `run.sh`.
    prob_weights: [f64; 4],
}

const CORPORA: [Corpus; 3] = [
    Corpus { name: "nyt", max_tokens: 401, classes: 26, prob_weights: [0.1, 0.2, 0.1, 0.1] },
    Corpus { name: "agnews", max_tokens: 51, classes: 4, prob_weights: [0.3, 0.2, 0.2, 0.2] },
    Corpus { name: "dbpedia", max_tokens: 51, classes: 14, prob_weights: [0.3, 0.3, 0.3, 0.1] },
];

/// A run of the paper: `paper:CORPUS` as the authors' code runs it, `paper-text:CORPUS` as the paper's text describes it. They differ
/// in the training alone ([`crate::TrainConfig::preset`]).
pub struct Preset {
    corpus: &'static Corpus,
    pub(crate) of_text: bool,
}

impl FromStr for Preset {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let (of_text, corpus) = match name.split_once(':') {
            Some(("paper", corpus)) => (false, corpus),
            Some(("paper-text", corpus)) => (true, corpus),
            _ => (false, ""),
        };
        let found = CORPORA.iter().find(|c| c.name == corpus).map(|corpus| Preset { corpus, of_text });
        found.ok_or_else(|| {
            let known: Vec<String> =
                CORPORA.iter().flat_map(|c| [format!("paper:{}", c.name), format!("paper-text:{}", c.name)]).collect();
            Error::config(format!("unknown preset '{name}'; known: {}", known.join(", ")))
        })
    }
}

impl Preset {
    /// Rate of dropout in the encoder's views.
    pub const DROPOUT: f64 = 0.3;

    pub(crate) fn prob_weights(&self) -> [f64; 4] {
        self.corpus.prob_weights
    }

    /// How the run encodes its texts: bert-base-uncased in single precision, the raw state of `[CLS]`, the authors' cleaning.
    pub fn embedding(&self) -> EmbedderConfig {
        EmbedderConfig {
            encoder: "bert-base-uncased".into(),
            pooling: Pooling::Cls.into(),
            max_tokens: Some(self.corpus.max_tokens),
            clean: Clean::Faithful,
            precision: Precision::F32,
            ..EmbedderConfig::default()
        }
    }

    /// Differences of a run from the published one.
    pub fn warnings(&self, documents: &Dataset, labelled_validation: bool) -> Vec<String> {
        let mut all = Vec::new();
        if !labelled_validation {
            all.push(
                "the published run chooses its best epoch by labelled validation queries; without them held-out documents choose it"
                    .to_owned(),
            );
        }
        let mut labels: Vec<u32> = (0..documents.labels.len()).flat_map(|i| documents.labels.get(i)).copied().collect();
        labels.sort_unstable();
        labels.dedup();
        if !labels.is_empty() && labels.len() != self.corpus.classes {
            let Corpus { name, classes, .. } = self.corpus;
            let mut text = format!("the corpus has {} labels, and {name} of the paper has {classes}", labels.len());
            if *name == "nyt" {
                text += ". In the public copy of the authors' data (qiuzx2/MICPQ), train.csv and val.csv of NYT are those of DBpedia; \
                         the copies of J-zin/DHIM are NYT";
            }
            all.push(text);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Labels;

    #[test]
    fn presets_are_the_whole_run() {
        for (name, tokens) in [("paper:agnews", 51), ("paper-text:dbpedia", 51), ("paper:nyt", 401)] {
            let embedding = name.parse::<Preset>().unwrap().embedding();
            assert_eq!(embedding.encoder, "bert-base-uncased");
            assert_eq!((embedding.max_tokens, embedding.precision), (Some(tokens), Precision::F32));
            assert_eq!((embedding.pooling, embedding.clean), (Pooling::Cls.into(), Clean::Faithful));
        }
        for name in ["agnews", "paper:imdb", "text:agnews", "paper-text:"] {
            let error = name.parse::<Preset>().err().unwrap().to_string();
            assert!(error.contains("paper:agnews") && error.contains("paper-text:nyt"), "{error}");
        }
    }

    #[test]
    fn wrong_labels_and_missing_validation_are_named() {
        let of = |classes: u32| Dataset {
            texts: vec![String::new(); 60],
            labels: Labels::single((0..60).map(|i| i % classes).collect()),
            ..Dataset::default()
        };
        let nyt: Preset = "paper:nyt".parse().unwrap();
        assert!(nyt.warnings(&of(26), true).is_empty());
        let found = nyt.warnings(&of(14), false);
        assert!(
            found[0].contains("validation") && found[1].contains("14 labels") && found[1].contains("DBpedia"),
            "{found:?}"
        );
        let agnews: Preset = "paper-text:agnews".parse().unwrap();
        assert!(agnews.warnings(&of(14), true)[0].contains("has 4"));
    }
}
