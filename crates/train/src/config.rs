//! Every option of training, with its default.

use engine::model::{CodeShape, Distance};
use engine::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::objective::{Information, Objective};
use crate::parameters::Sizes;
use crate::preset::Preset;
use crate::views::ViewChoice;

/// Options of a training run. The defaults are those of the authors' code at 32 bits, with half as many views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainConfig {
    /// Bits per code.
    pub bits: usize,
    /// Codewords per codebook, K: 2, 16 or 256. Older models say `words`.
    #[serde(alias = "words")]
    pub codebook_size: usize,
    /// Dimensions of a codeword.
    pub dim: usize,
    /// Width of the projection's hidden layer.
    pub hidden: usize,
    #[serde(flatten)]
    pub objective: Objective,
    /// Maximum number of epochs.
    pub epochs: usize,
    /// Epochs in a row without improvement that are allowed; one more ends the run.
    pub patience: usize,
    /// Documents per batch.
    pub batch: usize,
    pub learning_rate: f64,
    /// Whether both views of the first epoch are the clean embedding. The authors' encoder starts without dropout.
    pub clean_first_epoch: bool,
    /// Whether the gradient of the very first step is clipped to norm 10. The authors' code clips no later step. Adam's first
    /// step hardly depends on the norm of the gradient, so the default is off.
    pub clip_first_step: bool,
    /// Whether the part of the projection before a codebook reads a slice of the embedding of its own, as the paper's text says
    /// (slice, then refine). The authors' code projects the whole embedding and slices the result.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slices: bool,
    /// Ranks documents in validation and in searches with the model.
    pub distance: Distance,
    pub views: ViewChoice,
    /// Documents held out to validate a run without labels: at most this many, and at most a tenth of the corpus.
    pub held_out: usize,
    pub seed: u64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            bits: 32,
            codebook_size: 16,
            dim: 24,
            hidden: 768,
            objective: Objective::default(),
            epochs: 100,
            patience: 8,
            batch: 64,
            learning_rate: 1e-3,
            clean_first_epoch: true,
            clip_first_step: false,
            slices: false,
            distance: Distance::Norm,
            views: ViewChoice::default(),
            held_out: 1000,
            seed: 0,
        }
    }
}

impl TrainConfig {
    /// The defaults for codes of `bits`. The temperature of the soft code depends on the number of bits.
    pub fn new(bits: usize) -> Self {
        let mut config = TrainConfig { bits, ..TrainConfig::default() };
        config.objective.tau = if bits <= 16 { 10.0 } else { 5.0 };
        config
    }

    /// The training of a published run: `paper:agnews`, `paper:dbpedia` or `paper:nyt` as the authors' code trains, `paper-text:` as
    /// the paper's text says. [`crate::Preset`] has the rest of the run.
    pub fn preset(name: &str, bits: usize) -> Result<Self> {
        let preset: Preset = name.parse()?;
        let column = [16, 32, 64, 128].iter().position(|&b| b == bits);
        let Some(column) = column else {
            return Err(Error::config(format!("{name} was published with 16, 32, 64 and 128 bits, not {bits}")));
        };
        let mut config = TrainConfig { views: ViewChoice::Full(16), clip_first_step: true, ..TrainConfig::new(bits) };
        config.objective.prob_weight = preset.prob_weights()[column];
        if preset.of_text {
            config.slices = true;
            config.clean_first_epoch = false;
            config.clip_first_step = false;
            config.distance = Distance::Squared;
            config.objective.information = Information::Posterior;
            config.objective.floor = 0.0;
            // The text's contrastive loss is the sum over both views, that of the code the mean.
            config.objective.code_weight = 2.0;
        }
        Ok(config)
    }

    /// The options with one of them changed. `name` is the option's recorded name.
    pub fn with_option(&self, name: &str, value: serde_json::Value) -> Result<Self> {
        let mut record = serde_json::to_value(self).expect("options have a JSON form");
        let options = record.as_object_mut().expect("options are an object");
        // It is recorded only if it is true.
        options.entry("slices").or_insert(false.into());
        if !options.contains_key(name) {
            let known: Vec<&str> = options.keys().map(String::as_str).collect();
            return Err(Error::config(format!("unknown option '{name}'; known: {}", known.join(", "))));
        }
        let shown = value.to_string();
        options.insert(name.to_owned(), value);
        serde_json::from_value(record).map_err(|e| Error::config(format!("option {name} cannot be {shown}: {e}")))
    }

    pub fn shape(&self) -> Result<CodeShape> {
        let codeword_bits = match self.codebook_size {
            2 => 1,
            16 => 4,
            256 => 8,
            other => {
                return Err(Error::option(
                    "codebook_size",
                    format!("is {other}; a codebook has 2, 16 or 256 codewords"),
                ));
            }
        };
        if self.bits == 0 || !self.bits.is_multiple_of(codeword_bits) {
            return Err(Error::option(
                "bits",
                format!(
                    "is {}; a codebook of {} codewords takes {codeword_bits} bits, so bits must be a multiple of {codeword_bits}",
                    self.bits, self.codebook_size
                ),
            ));
        }
        CodeShape::new(self.bits / codeword_bits, self.codebook_size, self.dim)
    }

    /// Sizes of the parameters for embeddings of `inputs` values.
    pub fn sizes(&self, inputs: usize) -> Result<Sizes> {
        Ok(Sizes { inputs, hidden: self.hidden, code: self.shape()? })
    }

    /// Returns an error for the first option that is out of its range.
    pub fn validate(&self) -> Result<()> {
        self.shape()?;
        let o = &self.objective;
        let check = |name: &str, value: f64, min: f64, max: f64| {
            if value >= min && value <= max {
                Ok(())
            } else {
                Err(Error::option(name, format!("is {value}; it must lie between {min} and {max}")))
            }
        };
        check("hidden", self.hidden as f64, 1.0, 65_536.0)?;
        check("epochs", self.epochs as f64, 1.0, 1e6)?;
        check("batch", self.batch as f64, 2.0, 65_536.0)?;
        check("held_out", self.held_out as f64, 1.0, 1e6)?;
        check("learning_rate", self.learning_rate, 1e-9, 1.0)?;
        check("tau", o.tau, 1e-3, 1e3)?;
        check("contrast_temperature", o.contrast_temperature, 1e-3, 1e3)?;
        check("floor", o.floor, 0.0, 0.1)?;
        check("prob_weight", o.prob_weight, 0.0, 1e3)?;
        check("code_weight", o.code_weight, 0.0, 1e3)?;
        check("alpha", o.alpha, 0.0, 1e3)?;
        if o.prob_weight == 0.0 && o.code_weight == 0.0 {
            return Err(Error::config(
                "prob_weight and code_weight are both 0, so nothing would be learned; set one of them above 0",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_equal_the_published_table() {
        for (name, bits, weight, tau) in [
            ("paper:agnews", 16, 0.3, 10.0),
            ("paper:agnews", 32, 0.2, 5.0),
            ("paper:dbpedia", 64, 0.3, 5.0),
            ("paper:dbpedia", 128, 0.1, 5.0),
            ("paper:nyt", 32, 0.2, 5.0),
            ("paper:nyt", 64, 0.1, 5.0),
        ] {
            let config = TrainConfig::preset(name, bits).unwrap();
            assert_eq!((config.objective.prob_weight, config.objective.tau), (weight, tau), "{name} {bits}");
            assert_eq!(config.shape().unwrap(), CodeShape::micpq(bits).unwrap());
            config.validate().unwrap();
        }
        let text = TrainConfig::preset("paper-text:agnews", 32).unwrap();
        assert!(text.slices && !text.clean_first_epoch && text.objective.information == Information::Posterior);
        assert_eq!((text.distance, text.objective.floor, text.objective.prob_weight), (Distance::Squared, 0.0, 0.2));
        assert!(TrainConfig::default().with_option("slices", true.into()).unwrap().slices);
        assert!(!serde_json::to_string(&TrainConfig::default()).unwrap().contains("slices"));
        assert!(TrainConfig::preset("paper:imdb", 32).unwrap_err().to_string().contains("paper:dbpedia"));
        assert!(TrainConfig::preset("agnews", 32).is_err());
        assert!(TrainConfig::preset("paper:nyt", 24).unwrap_err().to_string().contains("not 24"));
    }

    #[test]
    fn options_are_equal_after_json_round_trip() {
        let mut config = TrainConfig::preset("paper:nyt", 16).unwrap();
        config.objective.gumbel = false;
        let text = serde_json::to_string(&config).unwrap();
        assert!(text.contains("\"codebook_size\":16"), "{text}");
        assert!(text.contains("\"tau\":10.0") && text.contains("\"views\":\"full:16\""), "{text}");
        assert_eq!(serde_json::from_str::<TrainConfig>(&text).unwrap(), config);
        let older = text.replace("codebook_size", "words");
        assert_eq!(serde_json::from_str::<TrainConfig>(&older).unwrap(), config);
    }

    #[test]
    fn validation_names_the_option_that_is_out_of_range() {
        let refuse = |change: fn(&mut TrainConfig), expected: &str| {
            let mut config = TrainConfig::default();
            change(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refuse(|c| c.bits = 30, "multiple");
        refuse(|c| c.codebook_size = 17, "2, 16 or 256");
        refuse(|c| c.batch = 1, "batch is 1");
        refuse(|c| c.learning_rate = f64::NAN, "learning_rate is NaN");
        refuse(|c| c.objective.tau = 0.0, "tau is 0");
        refuse(|c| c.objective.floor = -1.0, "floor is -1");
        refuse(|c| (c.objective.prob_weight, c.objective.code_weight) = (0.0, 0.0), "nothing would be learned");
        TrainConfig { codebook_size: 2, ..TrainConfig::default() }.validate().unwrap();
        TrainConfig { codebook_size: 256, ..TrainConfig::default() }.validate().unwrap();
    }
}
