//! The choice between the encoder and its distilled copy.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantNames};

use crate::Error;

/// Which encoder reads the texts of a query.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Display, EnumString, VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown)]
pub enum QueryEncoder {
    /// The encoder that read the documents.
    #[default]
    Full,
    /// Its distilled copy, where the index has one.
    Fast,
}

fn unknown(name: &str) -> Error {
    Error::unknown("query encoder", name, QueryEncoder::VARIANTS)
}
