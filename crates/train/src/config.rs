//! Every option of training, each default once.

use micpq::model::{CodeShape, Distance};
use micpq::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::parameters::Sizes;
use crate::step::Objective;
use crate::views::ViewChoice;

/// How a model is trained. The defaults are what the authors' code does, at 32 bits, with half of its views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainConfig {
    /// Bits of a code.
    pub bits: usize,
    /// Words of a codebook, K: 2, 16 or 256.
    pub words: usize,
    /// Dimensions of a word.
    pub dim: usize,
    /// Width of the refinement's hidden layer.
    pub hidden: usize,
    /// What is minimised.
    #[serde(flatten)]
    pub objective: Objective,
    /// Most epochs.
    pub epochs: usize,
    /// Epochs in a row that may fail to improve; one more ends the run.
    pub patience: usize,
    /// Documents in a batch.
    pub batch: usize,
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Whether both views of the first epoch are the clean vector, as in the authors' code, whose encoder begins without
    /// dropout.
    pub clean_first_epoch: bool,
    /// Whether the gradient of the very first step is clipped to length 10. The authors' clipper runs dry after it; Adam's
    /// first step hardly depends on the gradient's length, so it is off.
    pub clip_first_step: bool,
    /// The distance validation ranks by and the model is searched by.
    pub distance: Distance,
    /// How views are made.
    pub views: ViewChoice,
    /// Documents kept out to measure a run without labels: at most this many and a tenth of the corpus.
    pub held_out: usize,
    /// One seed, one result.
    pub seed: u64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            bits: 32,
            words: 16,
            dim: 24,
            hidden: 768,
            objective: Objective::default(),
            epochs: 100,
            patience: 8,
            batch: 64,
            learning_rate: 1e-3,
            clean_first_epoch: true,
            clip_first_step: false,
            distance: Distance::Norm,
            views: ViewChoice::default(),
            held_out: 1000,
            seed: 0,
        }
    }
}

/// `prob_weight` at 16, 32, 64 and 128 bits, as the authors' `run.sh` has it.
const PAPER: [(&str, [f64; 4]); 3] =
    [("nyt", [0.1, 0.2, 0.1, 0.1]), ("agnews", [0.3, 0.2, 0.2, 0.2]), ("dbpedia", [0.3, 0.3, 0.3, 0.1])];

impl TrainConfig {
    /// The defaults for codes of `bits`: the soft code's temperature depends on them.
    pub fn new(bits: usize) -> Self {
        let mut config = TrainConfig { bits, ..TrainConfig::default() };
        config.objective.tau = if bits <= 16 { 10.0 } else { 5.0 };
        config
    }

    /// The options of a published run: `paper:agnews`, `paper:dbpedia` or `paper:nyt`.
    pub fn preset(name: &str, bits: usize) -> Result<Self> {
        let place = [16, 32, 64, 128].iter().position(|&b| b == bits);
        let row = PAPER.iter().find(|(corpus, _)| name.strip_prefix("paper:") == Some(corpus));
        match (row, place) {
            (None, _) => {
                let known: Vec<String> = PAPER.iter().map(|(corpus, _)| format!("paper:{corpus}")).collect();
                Err(Error::config(format!("unknown preset '{name}'; known: {}", known.join(", "))))
            }
            (_, None) => Err(Error::config(format!("{name} was published with 16, 32, 64 and 128 bits, not {bits}"))),
            (Some((_, weights)), Some(place)) => {
                let mut config = TrainConfig { views: ViewChoice::Full(16), ..TrainConfig::new(bits) };
                config.objective.prob_weight = weights[place];
                Ok(config)
            }
        }
    }

    /// The options with one of them changed, by the name it is recorded under.
    pub fn with_option(&self, name: &str, value: serde_json::Value) -> Result<Self> {
        let mut record = serde_json::to_value(self).expect("options have a JSON form");
        let options = record.as_object_mut().expect("options are an object");
        if !options.contains_key(name) {
            let known: Vec<&str> = options.keys().map(String::as_str).collect();
            return Err(Error::config(format!("no option is called {name}; known: {}", known.join(", "))));
        }
        let told = value.to_string();
        options.insert(name.to_owned(), value);
        serde_json::from_value(record).map_err(|e| Error::config(format!("option {name} cannot be {told}: {e}")))
    }

    /// The shape of the codes.
    pub fn shape(&self) -> Result<CodeShape> {
        let word_bits = match self.words {
            2 => 1,
            16 => 4,
            256 => 8,
            other => return Err(Error::config(format!("words is {other}; a codebook has 2, 16 or 256 words"))),
        };
        if self.bits == 0 || !self.bits.is_multiple_of(word_bits) {
            return Err(Error::config(format!(
                "bits is {}; books of {} words take {word_bits} bits each, so it must be a multiple of that",
                self.bits, self.words
            )));
        }
        CodeShape::new(self.bits / word_bits, self.words, self.dim)
    }

    /// Sizes of the parameters for feature vectors of `inputs` values.
    pub fn sizes(&self, inputs: usize) -> Result<Sizes> {
        Ok(Sizes { inputs, hidden: self.hidden, code: self.shape()? })
    }

    /// Refuses what cannot be honoured.
    pub fn validate(&self) -> Result<()> {
        self.shape()?;
        let o = &self.objective;
        let within = |name: &str, value: f64, least: f64, most: f64| {
            if value >= least && value <= most {
                Ok(())
            } else {
                Err(Error::config(format!("{name} is {value}; it must lie between {least} and {most}")))
            }
        };
        within("hidden", self.hidden as f64, 1.0, 65_536.0)?;
        within("epochs", self.epochs as f64, 1.0, 1e6)?;
        within("batch", self.batch as f64, 2.0, 65_536.0)?;
        within("held_out", self.held_out as f64, 1.0, 1e6)?;
        within("learning_rate", self.learning_rate, 1e-9, 1.0)?;
        within("tau", o.tau, 1e-3, 1e3)?;
        within("contrast_temperature", o.contrast_temperature, 1e-3, 1e3)?;
        within("floor", o.floor, 0.0, 0.1)?;
        within("prob_weight", o.prob_weight, 0.0, 1e3)?;
        within("code_weight", o.code_weight, 0.0, 1e3)?;
        within("alpha", o.alpha, 0.0, 1e3)?;
        if o.prob_weight == 0.0 && o.code_weight == 0.0 {
            return Err(Error::config("prob_weight and code_weight are both 0: nothing would be learned"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_the_published_table() {
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
        assert!(TrainConfig::preset("paper:imdb", 32).unwrap_err().to_string().contains("paper:dbpedia"));
        assert!(TrainConfig::preset("agnews", 32).is_err());
        assert!(TrainConfig::preset("paper:nyt", 24).unwrap_err().to_string().contains("not 24"));
    }

    #[test]
    fn options_survive_their_record() {
        let mut config = TrainConfig::preset("paper:nyt", 16).unwrap();
        config.objective.gumbel = false;
        let text = serde_json::to_string(&config).unwrap();
        assert!(text.contains("\"tau\":10.0") && text.contains("\"views\":\"full:16\""), "{text}");
        assert_eq!(serde_json::from_str::<TrainConfig>(&text).unwrap(), config);
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let refuse = |change: fn(&mut TrainConfig), word: &str| {
            let mut config = TrainConfig::default();
            change(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refuse(|c| c.bits = 30, "multiple");
        refuse(|c| c.words = 17, "2, 16 or 256");
        refuse(|c| c.batch = 1, "batch is 1");
        refuse(|c| c.learning_rate = f64::NAN, "learning_rate is NaN");
        refuse(|c| c.objective.tau = 0.0, "tau is 0");
        refuse(|c| c.objective.floor = -1.0, "floor is -1");
        refuse(|c| (c.objective.prob_weight, c.objective.code_weight) = (0.0, 0.0), "nothing would be learned");
        TrainConfig { words: 2, ..TrainConfig::default() }.validate().unwrap();
        TrainConfig { words: 256, ..TrainConfig::default() }.validate().unwrap();
    }
}
