//! How a text becomes an embedding, as a model records it.

use serde::{Deserialize, Serialize};

use super::{Convolution, Pooling, Precision, ServiceConfig, Step, Terms};
use crate::text::Clean;

/// How text becomes the vector the model takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingConfig {
    /// Name or directory of the encoder.
    pub encoder: String,
    /// SHA-256 of its weight file. Another encoder is refused.
    pub encoder_sha256: String,
    pub width: usize,
    /// How token states become one vector.
    pub pooling: Pooling,
    /// Maximum tokens per text, with `[CLS]` and `[SEP]`.
    pub max_tokens: usize,
    pub clean: Clean,
    /// Whether vectors are scaled to unit length.
    #[serde(default)]
    pub unit_length: bool,
    /// Dense layers of the encoder's directory, after pooling.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Only so many values of a vector are used, the first ones (Matryoshka). They are scaled to unit length afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
    /// Put in front of documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_prompt: Option<String>,
    /// Put in front of queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_prompt: Option<String>,
    /// Whether the tokens of a prompt are left out of the pooling.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclude_prompt: bool,
    /// Whether texts are converted to lower case before the tokenizer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lowercase: bool,
    /// The numbers the encoder's products ran in. `f32` is not written, so that models from before there was a choice keep
    /// their fingerprint.
    #[serde(default = "single_precision", skip_serializing_if = "is_single_precision")]
    pub precision: Precision,
    /// The service that computes the vectors; `encoder` is its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceConfig>,
    /// Terms and a learned layer over them, in a model without an encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// Learned pooling of token states, in a model that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convolution: Option<Convolution>,
}

impl EmbeddingConfig {
    /// Raw pooled vectors of an encoder.
    pub fn new(encoder: String, encoder_sha256: String, width: usize, pooling: Pooling, max_tokens: usize) -> Self {
        EmbeddingConfig {
            encoder,
            encoder_sha256,
            width,
            pooling,
            max_tokens,
            clean: Clean::default(),
            unit_length: false,
            steps: Vec::new(),
            dimensions: None,
            document_prompt: None,
            query_prompt: None,
            exclude_prompt: false,
            lowercase: false,
            precision: Precision::F32,
            service: None,
            terms: None,
            convolution: None,
        }
    }

    /// Identifies everything that decides the vector of a document's tokens, apart from the arithmetic. A part of the name of
    /// cached embeddings, so what older programs did not have is only there where it is used.
    pub fn vectors_of_tokens(&self) -> String {
        let mut key = format!("{}|{}|{}", self.encoder_sha256, self.pooling, self.unit_length);
        if let Some(convolution) = &self.convolution {
            key += &format!("|{}", convolution.sha256);
        }
        if !self.steps.is_empty() {
            key += &format!("|{}", serde_json::to_string(&self.steps).expect("plain data has a JSON form"));
        }
        if let Some(dimensions) = self.dimensions {
            key += &format!("|first {dimensions}");
        }
        if let Some(prompt) = self.document_prompt.as_ref().filter(|_| self.exclude_prompt) {
            key += &format!("|without {prompt}");
        }
        key
    }

    /// Whether both give the same vectors, within the precision, for the texts of documents. Lengths are not compared: few texts
    /// are cut.
    pub fn same_vectors(&self, other: &EmbeddingConfig) -> bool {
        let prompts = |config: &EmbeddingConfig| (config.document_prompt.clone(), config.lowercase);
        self.vectors_of_tokens() == other.vectors_of_tokens()
            && prompts(self) == prompts(other)
            && self.terms == other.terms
            && self.convolution == other.convolution
    }
}

fn single_precision() -> Precision {
    Precision::F32
}

fn is_single_precision(precision: &Precision) -> bool {
    *precision == Precision::F32
}
