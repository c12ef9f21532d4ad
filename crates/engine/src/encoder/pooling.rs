//! From token states to one vector.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantNames};

use crate::{Error, Result};

/// How token states become one vector.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_pooling)]
pub enum Pooling {
    /// The state of the first token after the last layer; the tanh pooler is not used.
    Cls,
    /// The mean over all tokens, `[CLS]` and `[SEP]` among them.
    Mean,
    /// The largest value over all tokens, per dimension.
    Max,
    /// The sum over all tokens, divided by the square root of their number.
    #[serde(rename = "mean_sqrt_len")]
    #[strum(serialize = "mean_sqrt_len")]
    MeanSqrtLen,
    /// The state of the last token.
    LastToken,
}

fn unknown_pooling(name: &str) -> Error {
    Error::unknown("pooling", name, Pooling::VARIANTS)
}

impl Pool {
    /// Pools `states [tokens, row.len()]` of one text. Skipped tokens are left out if others follow. A text without tokens, which
    /// only static embeddings have, gets zeros.
    pub(super) fn apply(self, states: &[f32], row: &mut [f32]) {
        if states.is_empty() {
            return row.fill(0.0);
        }
        let (width, skip) = (row.len(), self.skip);
        let tokens = states.len() / width;
        let states = if skip < tokens { &states[skip * width..] } else { states };
        let count = (states.len() / width) as f32;
        match self.pooling {
            Pooling::Cls => row.copy_from_slice(&states[..width]),
            Pooling::LastToken => row.copy_from_slice(&states[states.len() - width..]),
            Pooling::Max => {
                row.fill(f32::NEG_INFINITY);
                for state in states.chunks_exact(width) {
                    row.iter_mut().zip(state).for_each(|(o, v)| *o = o.max(*v));
                }
            }
            Pooling::Mean | Pooling::MeanSqrtLen => {
                row.fill(0.0);
                for state in states.chunks_exact(width) {
                    row.iter_mut().zip(state).for_each(|(o, v)| *o += v);
                }
                let divisor = if self.pooling == Pooling::Mean { count } else { count.sqrt() };
                row.iter_mut().for_each(|v| *v /= divisor);
            }
        }
    }
}

/// A pooling, and how many tokens at the beginning of every text are left out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub pooling: Pooling,
    /// Tokens of a prompt.
    pub skip: usize,
}

impl From<Pooling> for Pool {
    fn from(pooling: Pooling) -> Self {
        Pool { pooling, skip: 0 }
    }
}

/// The pooling that the user chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolingChoice {
    /// As the encoder's directory says: its pooling, dense layers, normalisation and prompts.
    #[default]
    Auto,
    /// Pooled token states as they are, without the dense layers, normalisation and prompts of the directory.
    Raw(Pooling),
}

impl From<Pooling> for PoolingChoice {
    fn from(pooling: Pooling) -> Self {
        PoolingChoice::Raw(pooling)
    }
}

impl fmt::Display for PoolingChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolingChoice::Auto => f.write_str("auto"),
            PoolingChoice::Raw(pooling) => pooling.fmt(f),
        }
    }
}

impl FromStr for PoolingChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if name == "auto" {
            return Ok(PoolingChoice::Auto);
        }
        name.parse().map(PoolingChoice::Raw).map_err(|e: Error| Error::config(format!("{e}, auto")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pooling_equals_a_hand_computation() {
        // Three tokens of two values; the first is a prompt.
        let states = [9.0, -9.0, 1.0, 4.0, 3.0, -2.0];
        for (pooling, all, without_prompt) in [
            (Pooling::Cls, [9.0, -9.0], [1.0, 4.0]),
            (Pooling::Mean, [13.0 / 3.0, -7.0 / 3.0], [2.0, 1.0]),
            (Pooling::Max, [9.0, 4.0], [3.0, 4.0]),
            (Pooling::MeanSqrtLen, [13.0 / 3f32.sqrt(), -7.0 / 3f32.sqrt()], [4.0 / 2f32.sqrt(), 2.0 / 2f32.sqrt()]),
            (Pooling::LastToken, [3.0, -2.0], [3.0, -2.0]),
        ] {
            for (skip, expected) in [(0, all), (1, without_prompt), (3, all)] {
                let mut row = [0.0; 2];
                Pool { pooling, skip }.apply(&states, &mut row);
                assert_eq!(row, expected, "{pooling} without {skip} tokens");
            }
        }
    }

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused_with_the_known() {
        for name in Pooling::VARIANTS {
            let pooling: Pooling = name.parse().unwrap();
            assert_eq!(pooling.to_string(), *name);
            assert_eq!(serde_json::to_value(pooling).unwrap(), *name);
            assert_eq!(name.parse::<PoolingChoice>().unwrap(), PoolingChoice::Raw(pooling));
        }
        assert_eq!("auto".parse::<PoolingChoice>().unwrap(), PoolingChoice::Auto);
        let message = "weightedmean".parse::<PoolingChoice>().unwrap_err().to_string();
        assert!(message.contains("weightedmean") && message.contains("lasttoken, auto"), "{message}");
    }
}
