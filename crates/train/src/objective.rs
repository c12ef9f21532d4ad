//! The loss of MICPQ: its terms and their weights.

use serde::{Deserialize, Serialize};

/// The probabilities whose mutual information with the document is maximised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Information {
    /// The soft code `v`, with temperature and noise: the authors' code.
    #[default]
    Code,
    /// `p(codeword | document)` without temperature or noise: the paper's text.
    Posterior,
}

/// The loss to minimise. The defaults are those of the authors' code at 32 bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Objective {
    /// Temperature of the soft code: 10 at 16 bits, 5 for longer codes.
    pub tau: f64,
    /// Added to a probability before its logarithm; 0 leaves the logits unchanged. The paper does not mention it. It bounds how
    /// sharp a code can be in training.
    pub floor: f64,
    /// Whether Gumbel noise is added. Without noise and with `floor` 0 this is the paper's "softmax" ablation.
    pub gumbel: bool,
    pub information: Information,
    /// Weight of the mutual information; 0 is the paper's "w/o MI".
    pub prob_weight: f64,
    /// Weight of the contrastive loss.
    pub code_weight: f64,
    /// Weight of the conditional entropy inside the mutual information.
    pub alpha: f64,
    /// Temperature of the contrastive loss.
    pub contrast_temperature: f64,
}

impl Default for Objective {
    fn default() -> Self {
        Objective {
            tau: 5.0,
            floor: 1e-9,
            gumbel: true,
            information: Information::Code,
            prob_weight: 0.2,
            code_weight: 1.0,
            alpha: 0.1,
            contrast_temperature: 0.3,
        }
    }
}
