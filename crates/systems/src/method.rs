//! The systems by name.

use std::fmt;
use std::str::FromStr;

use micpq::model::Distance;
use micpq::{Error, Result};
use serde::{Deserialize, Serialize};
use train::TrainConfig;

/// A system of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Method {
    /// The paper's.
    Micpq,
    /// MICPQ without the mutual-information term.
    Cl,
    /// MICPQ without Gumbel noise.
    Softmax,
    /// MICPQ with books of two words, Hamming distance.
    MicpqEh,
    /// MICPQ with books of two words, distance of the query's vector.
    MicpqEa,
    /// The same quantizer, trained to reconstruct.
    Aepq,
    /// Contrastive Bernoulli hashing.
    Csh,
    /// Codes of local and global text features that know of each other.
    Dhim,
    /// Gaussian variational autoencoder, cut at the medians.
    Vdsh,
    /// Bernoulli variational autoencoder.
    Nash,
    /// A topic vector for every bit.
    Wish,
    /// A mixture of Bernoulli distributions as prior.
    Bmsh,
    /// Bits that depend on each other.
    Corrsh,
    /// Adversarial mutual information.
    Ammi,
    /// Product quantization.
    Pq,
    /// Its rotation optimised.
    Opq,
    /// Rotations optimised cell by cell.
    Lopq,
    /// A contrastive network first, product quantization after.
    TwoStage,
}

/// What a system is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// Vectors of the encoder.
    Encoder,
    /// Sparse rows of words.
    Tfidf,
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Input::Encoder => "encoder",
            Input::Tfidf => "tfidf",
        })
    }
}

impl FromStr for Input {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "encoder" => Ok(Input::Encoder),
            "tfidf" => Ok(Input::Tfidf),
            _ => Err(Error::config(format!("unknown input '{name}'; known: encoder, tfidf"))),
        }
    }
}

impl Method {
    /// All of them, in the order of the tables.
    pub const ALL: [Method; 18] = [
        Method::Vdsh,
        Method::Nash,
        Method::Wish,
        Method::Bmsh,
        Method::Corrsh,
        Method::Ammi,
        Method::Dhim,
        Method::Pq,
        Method::Opq,
        Method::Lopq,
        Method::TwoStage,
        Method::Aepq,
        Method::Csh,
        Method::MicpqEh,
        Method::MicpqEa,
        Method::Softmax,
        Method::Cl,
        Method::Micpq,
    ];

    /// The name as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Micpq => "micpq",
            Method::Cl => "cl",
            Method::Softmax => "softmax",
            Method::MicpqEh => "micpq-eh",
            Method::MicpqEa => "micpq-ea",
            Method::Aepq => "aepq",
            Method::Csh => "csh",
            Method::Dhim => "dhim",
            Method::Vdsh => "vdsh",
            Method::Nash => "nash",
            Method::Wish => "wish",
            Method::Bmsh => "bmsh",
            Method::Corrsh => "corrsh",
            Method::Ammi => "ammi",
            Method::Pq => "pq",
            Method::Opq => "opq",
            Method::Lopq => "lopq",
            Method::TwoStage => "two-stage",
        }
    }

    /// Whether it is MICPQ or a variant of it, trained by the hand-written step.
    pub fn is_micpq(self) -> bool {
        matches!(self, Method::Micpq | Method::Cl | Method::Softmax | Method::MicpqEh | Method::MicpqEa)
    }

    /// Whether it can be given words instead of an encoder's vectors.
    pub fn takes_words(self) -> bool {
        matches!(self, Method::Vdsh | Method::Nash | Method::Wish | Method::Bmsh | Method::Corrsh | Method::Ammi)
    }

    /// Whether it is fitted at once, without epochs.
    pub fn is_fitted(self) -> bool {
        matches!(self, Method::Pq | Method::Opq | Method::Lopq)
    }

    /// Whether it compares views of a document.
    pub fn takes_views(self) -> bool {
        self.is_micpq() || matches!(self, Method::Csh | Method::TwoStage)
    }

    /// MICPQ's options changed to those of the variant.
    ///
    /// # Panics
    /// When it is no variant of MICPQ.
    pub fn vary(self, config: &mut TrainConfig) {
        match self {
            Method::Micpq => {}
            Method::Cl => config.objective.prob_weight = 0.0,
            Method::Softmax => (config.objective.gumbel, config.objective.floor) = (false, 0.0),
            Method::MicpqEh => (config.words, config.distance) = (2, Distance::Hamming),
            Method::MicpqEa => config.words = 2,
            other => panic!("{other} is no variant of MICPQ"),
        }
    }

    /// What is our reading where the literature is silent, in a sentence a model's record carries.
    pub fn assumptions(self, input: Input) -> String {
        let own = match self {
            Method::Aepq => {
                "decoder of two layers as wide as the encoder's, the clean vector in and out, no mutual information"
            }
            Method::Csh => "threshold drawn uniformly in training and 1/2 in use, no divergence term",
            Method::Dhim => {
                "token states without dropout, padding left out, brought to mean 0 and variance 1; beta weights the agreement with [CLS]"
            }
            Method::Lopq => "16 cells whose number is 4 of the code's bits",
            Method::Opq => "books of at most 24 principal axes",
            Method::TwoStage => {
                "MICPQ's network and views with the contrastive loss alone, then K-means in every slice"
            }
            Method::Vdsh | Method::Nash | Method::Wish | Method::Bmsh | Method::Corrsh | Method::Ammi => {
                "options of the re-implementation the published tables come from"
            }
            _ => "",
        };
        let given = match input {
            Input::Tfidf => "words by presence, the vocabulary of the published tables is unknown",
            Input::Encoder if self.takes_words() && self != Method::Ammi => {
                "vectors scaled to unit variance, decoded by a Gaussian of unit variance"
            }
            Input::Encoder => "",
        };
        [own, given].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// Names of the options that count for it, beside method, bits, seed and input.
    pub(crate) fn options(self) -> Vec<&'static str> {
        if self.is_micpq() {
            return Vec::new();
        }
        let own: &[&str] = match self {
            Method::Pq => &["dim", "iterations", "sample", "whiten"],
            Method::Opq => &["dim", "iterations", "rounds", "sample"],
            Method::Lopq => &["iterations", "sample"],
            Method::TwoStage => &["dim", "iterations", "sample", "hidden"],
            Method::Csh => &["hidden"],
            Method::Aepq => &["dim", "hidden", "tau"],
            Method::Vdsh => &["hidden", "kl_weight"],
            Method::Nash => &["noise_hidden", "kl_weight"],
            Method::Wish => &["topics", "orthogonal_weight", "kl_weight"],
            Method::Bmsh => &["components", "noise_hidden", "kl_weight"],
            Method::Corrsh => &["hidden", "rank", "samples", "kl_weight"],
            Method::Ammi => &["entropy_weight", "prior_steps", "prior_rate"],
            Method::Dhim => &["sample", "sharpness", "regulariser_weight", "passes"],
            Method::Micpq | Method::Cl | Method::Softmax | Method::MicpqEh | Method::MicpqEa => &[],
        };
        let views: &[&str] =
            if self.takes_views() { &["contrast_temperature", "views", "clean_first_epoch"] } else { &[] };
        let epochs: &[&str] =
            if self.is_fitted() { &[] } else { &["epochs", "patience", "batch", "learning_rate", "held_out"] };
        [own, views, epochs].concat()
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Method::ALL.into_iter().find(|m| m.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Method::ALL.iter().map(|m| m.name()).collect();
            Error::config(format!("unknown method '{name}'; known: {}", known.join(", ")))
        })
    }
}

impl TryFrom<String> for Method {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl From<Method> for String {
    fn from(method: Method) -> String {
        method.name().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_variants_change_what_they_say() {
        for method in Method::ALL {
            assert_eq!(method.name().parse::<Method>().unwrap(), method);
        }
        assert!("pqo".parse::<Method>().unwrap_err().to_string().contains("two-stage"));
        let mut config = TrainConfig::new(32);
        Method::MicpqEh.vary(&mut config);
        assert_eq!((config.shape().unwrap().books(), config.distance), (32, Distance::Hamming));
        let mut config = TrainConfig::new(32);
        Method::Cl.vary(&mut config);
        assert_eq!(config.objective.prob_weight, 0.0);
        config.validate().unwrap();
    }
}
