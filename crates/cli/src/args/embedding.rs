//! How texts are encoded.

use clap::Args as Flags;
use engine::Result;
use engine::encoder::{EmbedderConfig, PoolingChoice, Precision};
use engine::text::Clean;
use train::Preset;

/// How texts are encoded.
#[derive(Flags, Clone)]
#[command(next_help_heading = "Encoder")]
pub struct EmbeddingArgs {
    /// Encoder: a name of the hub, a directory of Hugging Face, sentence-transformers or model2vec, or the address of a service
    /// with OpenAI's embeddings API. Default: all-MiniLM-L6-v2, or that of the preset
    #[arg(long, value_name = "NAME|DIR|URL")]
    pub encoder: Option<String>,
    /// Model of the service that --encoder is the address of. OPENAI_API_KEY has the key
    #[arg(long, value_name = "NAME")]
    pub encoder_model: Option<String>,
    /// How token states become one vector: auto (as the encoder's directory says, with its dense layers, normalisation and
    /// prompts), or raw states pooled by cls, mean, max, mean_sqrt_len or lasttoken. Default: auto, or that of the
    /// preset
    #[arg(long, value_name = "auto|cls|mean|...")]
    pub pooling: Option<PoolingChoice>,
    /// Maximum number of tokens of a text, with [CLS] and [SEP]. Default: the encoder's own length, or that of the preset
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Cleaning before tokenisation: none, or that of the paper's authors (faithful). Default: none, or that of the preset
    #[arg(long, value_name = "faithful|none")]
    pub clean: Option<Clean>,
    /// Scale vectors to unit length, also where the encoder does not
    #[arg(long)]
    pub unit_length: bool,
    /// Use only the first N values of a vector; for encoders trained for it (Matryoshka)
    #[arg(long, value_name = "N")]
    pub dimensions: Option<usize>,
    /// Text put in front of every query. Default: the encoder's own; "" for none
    #[arg(long, value_name = "TEXT")]
    pub query_prompt: Option<String>,
    /// Text put in front of every document. Default: the encoder's own; "" for none
    #[arg(long, value_name = "TEXT")]
    pub document_prompt: Option<String>,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

/// How the encoder computes.
#[derive(Flags, Clone, Copy, Default)]
#[command(next_help_heading = "Encoder")]
pub struct ComputingArgs {
    /// Number type of the encoder's matrix products. auto is the fastest that measurably loses nothing. Default: the
    /// model's own; auto for a new model, f32 with a preset of the paper
    #[arg(long, value_name = "f32|bf16|int8|auto")]
    pub precision: Option<Precision>,
}

impl EmbeddingArgs {
    /// The engine's options; what is not given is that of the preset, if one is named.
    pub fn config(&self, preset: Option<&str>) -> Result<EmbedderConfig> {
        let defaults = match preset {
            Some(name) => name.parse::<Preset>()?.embedding(),
            None => EmbedderConfig::default(),
        };
        Ok(EmbedderConfig {
            encoder: self.encoder.clone().unwrap_or(defaults.encoder),
            encoder_model: self.encoder_model.clone(),
            pooling: self.pooling.unwrap_or(defaults.pooling),
            max_tokens: self.max_tokens.or(defaults.max_tokens),
            clean: self.clean.unwrap_or(defaults.clean),
            unit_length: self.unit_length,
            dimensions: self.dimensions,
            query_prompt: self.query_prompt.clone(),
            document_prompt: self.document_prompt.clone(),
            precision: self.computing.precision.unwrap_or(defaults.precision),
            device: super::device(),
        })
    }
}
