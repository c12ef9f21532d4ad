//! Every option of every method, each default once.

use engine::encoder::Weighting;
use engine::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use train::TrainConfig;
use train::views::ViewChoice;

use super::Input;
use super::options::MethodOptions;
use super::registry::{MethodHandle, find, registry};
use crate::tfidf::LexiconConfig;

/// Initial values of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecoderInit {
    /// Like `nn.Linear`. Ours: from N(0, 1) 2,000 steps lose 12 to 27 points of P@100 (`benchmarks/results/paper-baselines.md`).
    #[default]
    Linear,
    /// N(0, 1) with a bias of zero, as in the re-implementation the published tables come from.
    Normal,
}

/// The options of a method. Which of them count depends on the method: [`MethodConfig::record`] names them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodConfig {
    pub method: MethodHandle,
    pub bits: usize,
    /// Equal seeds give equal results.
    pub seed: u64,
    pub input: Input,
    /// Largest number of values per codebook.
    pub dim: usize,
    /// Iterations of K-means.
    pub iterations: usize,
    /// Largest number of OPQ's rotations.
    pub rounds: usize,
    /// Documents that rotations and codewords are fitted on; a larger corpus is sampled.
    pub sample: usize,
    /// Whether PQ whitens the embeddings first.
    pub whiten: bool,
    /// Largest number of epochs.
    pub epochs: usize,
    /// Epochs in a row without improvement; one more ends the run.
    pub patience: usize,
    /// Documents per step.
    pub batch: usize,
    pub learning_rate: f64,
    /// Width of the hidden layer.
    pub hidden: usize,
    /// Weight of the divergence from the prior.
    pub kl_weight: f64,
    /// Initial values of the decoder (VDSH, NASH, WISH, CorrSH).
    pub decoder_init: DecoderInit,
    /// Width of the hidden layer that sets the decoder's noise (NASH, BMSH).
    pub noise_hidden: usize,
    pub topics: usize,
    /// Weight of WISH's penalty on topic vectors that are not orthogonal.
    pub orthogonal_weight: f64,
    /// Components of BMSH's mixture.
    pub components: usize,
    /// Rank of CorrSH's correlations.
    pub rank: usize,
    /// Samples in CorrSH's bound.
    pub samples: usize,
    /// Weight of the codes' entropy in AMMI.
    pub entropy_weight: f64,
    /// Steps of AMMI's prior before each step of its encoder.
    pub prior_steps: usize,
    /// Learning rate of that prior.
    pub prior_rate: f64,
    /// Temperature of the contrastive loss.
    pub contrast_temperature: f64,
    /// Temperature of AEPQ's soft code.
    pub tau: f64,
    /// Divisor of DHIM's logits.
    pub sharpness: f64,
    /// Weight of DHIM's agreement with `[CLS]`.
    pub regulariser_weight: f64,
    /// Encoder passes with a dropout of 0.1, whose token states DHIM's epochs after the first read in turn. Each takes as much
    /// memory as the clean states. With 0 every epoch reads the clean states.
    pub passes: usize,
    /// Float neighbours that a query of distillation draws into its pool.
    pub neighbours: usize,
    /// How views are made (CSH, two-stage, distilled).
    pub views: ViewChoice,
    /// Whether both views of the first epoch are the clean vector, as in the authors' code.
    pub clean_first_epoch: bool,
    /// Documents held out to measure a run without labels: at most this many and a tenth of the corpus.
    pub held_out: usize,
    /// Weights of the terms of a text.
    pub weighting: Weighting,
    #[serde(flatten)]
    pub lexicon: LexiconConfig,
    /// Options of the method that have no field here, by name.
    #[serde(skip)]
    pub extra: Map<String, Value>,
}

impl MethodConfig {
    /// The defaults of a method for codes of `bits`: those of the re-implementation the published tables come from.
    pub fn new(method: MethodHandle, bits: usize) -> Self {
        let base = MethodConfig {
            method: method.clone(),
            bits,
            seed: 0,
            input: Input::Encoder,
            dim: 24,
            iterations: 25,
            rounds: 50,
            sample: 20_000,
            whiten: false,
            epochs: 100,
            patience: 6,
            batch: 32,
            learning_rate: 1e-3,
            hidden: 500,
            kl_weight: 1.0,
            decoder_init: DecoderInit::default(),
            noise_hidden: 400,
            topics: 100,
            orthogonal_weight: 1.0,
            components: 20,
            rank: 10,
            samples: 10,
            entropy_weight: 2.0,
            prior_steps: 4,
            prior_rate: 1e-2,
            contrast_temperature: 0.3,
            tau: TrainConfig::new(bits).objective.tau,
            sharpness: if bits <= 16 { 0.3 } else { 0.1 },
            regulariser_weight: 1.0,
            passes: 0,
            neighbours: 8,
            views: ViewChoice::default(),
            clean_first_epoch: true,
            held_out: 1000,
            weighting: Weighting::Presence,
            lexicon: LexiconConfig::default(),
            extra: method.extra_options(),
        };
        method.defaults(base)
    }

    /// The defaults of the method of that name.
    pub fn named(name: &str, bits: usize) -> Result<Self> {
        Ok(MethodConfig::new(find(name)?, bits))
    }

    /// Options of a method that is trained like MICPQ.
    pub(crate) fn like_micpq(self) -> Self {
        let own = TrainConfig::default();
        MethodConfig { batch: own.batch, patience: own.patience, hidden: own.hidden, ..self }
    }

    /// The same for an input: published options were found on terms, and some methods need others on embeddings.
    pub fn reading(self, input: Input) -> Self {
        let config = match input {
            Input::Encoder => self.method.clone().encoder_defaults(self),
            Input::Tfidf => self,
        };
        MethodConfig { input, ..config }
    }

    /// The options that count for the method, as a model records them. Their order is part of the names of the paper's cells.
    pub fn record(&self) -> Value {
        let all = serde_json::to_value(self).expect("options have a JSON form");
        let of_terms: &[&str] = match self.input {
            Input::Tfidf => &["weighting", "vocabulary", "stop_words", "max_share", "min_documents"],
            Input::Encoder => &[],
        };
        let names = [&["method", "bits", "seed", "input"], &self.method.option_names()[..], of_terms].concat();
        let shared = names.into_iter().map(|name| (name.to_owned(), all[name].clone()));
        Value::Object(shared.chain(self.extra.clone()).collect())
    }

    /// The options with one of them changed, by the name it is recorded under.
    pub fn with(&self, name: &str, value: Value) -> Result<Self> {
        let record = self.record();
        let known = record.as_object().expect("options are an object");
        if !known.contains_key(name) {
            let known: Vec<&str> = known.keys().map(String::as_str).collect();
            let micpq = TrainConfig::new(self.bits).with_option(name, value).is_ok();
            return Err(Error::config(format!(
                "{} has no option called {name}; {}known: {}",
                self.method,
                if micpq { "the method micpq has it; " } else { "" },
                known.join(", ")
            )));
        }
        let mut extra = self.extra.clone();
        if let Some(current) = extra.get_mut(name) {
            if std::mem::discriminant(current) != std::mem::discriminant(&value) {
                return Err(Error::option(name, format!("is {value}; give a value of the kind of {current}")));
            }
            *current = value;
            return Ok(MethodConfig { extra, ..self.clone() });
        }
        let mut all = serde_json::to_value(self).expect("options have a JSON form");
        all[name] = value;
        let changed: MethodConfig = serde_json::from_value(all).map_err(|e| Error::config(format!("{name}: {e}")))?;
        Ok(MethodConfig { extra, ..changed })
    }

    pub fn validate(&self) -> Result<()> {
        if !matches!(self.bits, 16 | 32 | 64 | 128) {
            return Err(Error::config(format!("codes have 16, 32, 64 or 128 bits, not {}", self.bits)));
        }
        if self.input == Input::Tfidf && !self.method.reads().terms {
            let all = registry();
            let able: Vec<&str> = all.iter().filter(|m| m.reads().terms).map(|m| m.name()).collect();
            return Err(Error::config(format!(
                "{} reads embeddings and cannot read terms (input is tfidf); those that can: {}",
                self.method,
                able.join(", ")
            )));
        }
        let check = |name: &str, value: f64, min: f64, max: f64| {
            if value >= min && value <= max {
                Ok(())
            } else {
                Err(Error::option(name, format!("is {value}; it must lie between {min} and {max}")))
            }
        };
        for (name, value, min, max) in [
            ("dim", self.dim as f64, 1.0, 1024.0),
            ("iterations", self.iterations as f64, 1.0, 1e4),
            ("rounds", self.rounds as f64, 0.0, 1e4),
            ("sample", self.sample as f64, 16.0, 1e9),
            ("epochs", self.epochs as f64, 1.0, 1e6),
            ("batch", self.batch as f64, 2.0, 65_536.0),
            ("learning_rate", self.learning_rate, 1e-9, 1.0),
            ("hidden", self.hidden as f64, 1.0, 65_536.0),
            ("kl_weight", self.kl_weight, 0.0, 1e3),
            ("noise_hidden", self.noise_hidden as f64, 1.0, 65_536.0),
            ("topics", self.topics as f64, 1.0, 65_536.0),
            ("orthogonal_weight", self.orthogonal_weight, 0.0, 1e3),
            ("components", self.components as f64, 1.0, 10_000.0),
            ("rank", self.rank as f64, 1.0, 1000.0),
            ("samples", self.samples as f64, 1.0, 1000.0),
            ("entropy_weight", self.entropy_weight, 0.0, 1e3),
            ("prior_steps", self.prior_steps as f64, 1.0, 1000.0),
            ("prior_rate", self.prior_rate, 1e-9, 10.0),
            ("contrast_temperature", self.contrast_temperature, 1e-3, 1e3),
            ("tau", self.tau, 1e-3, 1e3),
            ("sharpness", self.sharpness, 1e-3, 1e3),
            ("regulariser_weight", self.regulariser_weight, 0.0, 1e3),
            ("passes", self.passes as f64, 0.0, 1000.0),
            ("neighbours", self.neighbours as f64, 1.0, 200.0),
            ("held_out", self.held_out as f64, 1.0, 1e6),
        ] {
            check(name, value, min, max)?;
        }
        self.lexicon.validate()
    }
}

impl MethodOptions for MethodConfig {
    fn bits(&self) -> usize {
        self.bits
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn input(&self) -> Input {
        self.input
    }

    fn views(&self) -> ViewChoice {
        self.views
    }

    fn with_option(&self, name: &str, value: Value) -> Result<Box<dyn MethodOptions>> {
        Ok(Box::new(self.with(name, value)?))
    }

    fn reading(&self, input: Input) -> Result<Box<dyn MethodOptions>> {
        Ok(Box::new(MethodConfig::new(self.method.clone(), self.bits).reading(input)))
    }

    fn validate(&self) -> Result<()> {
        self.validate()
    }

    fn record(&self) -> Value {
        self.record()
    }

    fn boxed(&self) -> Box<dyn MethodOptions> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::{Matrix, NoProgress, Progress};

    use super::*;
    use crate::method::{Fitted, Method, Prepared, Reads};
    use crate::registry::register;
    use crate::training::Training;

    #[test]
    fn every_method_records_its_options_and_changes_them_by_name() {
        for method in registry() {
            let config = MethodConfig::new(method.clone(), 32);
            config.validate().unwrap();
            let record = config.record();
            assert!(record.as_object().unwrap().values().all(|v| !v.is_null()), "{method}: {record}");
            let other = config.with("seed", 7.into()).unwrap();
            assert_eq!(other, MethodConfig { seed: 7, ..config.clone() });
        }
        let nash = MethodConfig::named("nash", 64).unwrap();
        assert!(nash.with("components", 3.into()).unwrap_err().to_string().contains("noise_hidden"));
        assert_eq!(nash.with("learning_rate", 0.5.into()).unwrap().learning_rate, 0.5);
        assert!(nash.with("batch", "many".into()).is_err());
        let rate = |input| MethodConfig::named("corrsh", 64).unwrap().reading(input).learning_rate;
        assert!(rate(Input::Encoder) < rate(Input::Tfidf));
    }

    #[test]
    fn errors_name_the_wrong_option() {
        let refuse = |config: MethodConfig, word: &str| {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refuse(MethodConfig::named("opq", 24).unwrap(), "not 24");
        refuse(MethodConfig { input: Input::Tfidf, ..MethodConfig::named("csh", 32).unwrap() }, "vdsh");
        refuse(MethodConfig { batch: 1, ..MethodConfig::named("vdsh", 32).unwrap() }, "batch is 1");
        refuse(MethodConfig { learning_rate: f64::NAN, ..MethodConfig::named("vdsh", 32).unwrap() }, "NaN");
    }

    #[test]
    fn options_without_a_field_are_recorded_and_changed_by_name() {
        struct WithAlpha;
        impl Method for WithAlpha {
            fn name(&self) -> &str {
                "with-alpha"
            }

            fn reads(&self) -> Reads {
                Reads::default()
            }

            fn extra_options(&self) -> Map<String, Value> {
                [("alpha".to_owned(), 0.5.into())].into_iter().collect()
            }

            fn fit(&self, training: &Training, _: &Prepared, _: &dyn Progress) -> Result<Fitted> {
                Err(Error::config(format!("alpha is {}", training.config()?.extra["alpha"])))
            }
        }
        register(Arc::new(WithAlpha)).unwrap();
        let config = MethodConfig::named("with-alpha", 32).unwrap();
        assert_eq!(config.record()["alpha"], 0.5);
        let changed = config.with("alpha", 0.25.into()).unwrap().with("seed", 3.into()).unwrap();
        assert_eq!((changed.seed, &changed.record()["alpha"]), (3, &0.25.into()));
        assert!(config.with("alpha", "much".into()).unwrap_err().to_string().contains("the kind of 0.5"));
        assert!(config.with("beta", 1.into()).unwrap_err().to_string().contains("alpha"));
        let vectors = Matrix::from_vec(2, vec![0.0, 1.0, 2.0, 3.0]);
        let error =
            crate::job::of_vectors(&changed, vectors, &train::vectors::VectorViews::Noise(0.5), None, &NoProgress)
                .err()
                .unwrap();
        assert!(error.to_string().contains("alpha is 0.25"), "{error}");
    }
}
