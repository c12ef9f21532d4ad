//! Services as encoders: their name and what a model records of them.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes of a text at most. Services cut or refuse longer ones themselves.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// A service, as a model records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceConfig {
    /// Name of the model at the service.
    pub model: String,
    /// Asks the service for vectors of so many values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
}

impl ServiceConfig {
    /// Stands in for the checksum of weights.
    pub(super) fn sha256(&self) -> String {
        let dimensions = self.dimensions.map_or_else(String::new, |d| d.to_string());
        hex::encode(Sha256::digest(format!("service|{}|{dimensions}", self.model)))
    }
}

/// Whether the name of an encoder is the address of a service.
pub fn is_address(name: &str) -> bool {
    name.starts_with("https://") || name.starts_with("http://")
}
