//! `config.json` of an encoder: its architecture and its sizes, checked.

use std::path::Path;

use serde_json::Value;

use super::recipe::{Kind, Recipe};
use crate::error::Remedy;
use crate::{Error, Result};

/// A family of encoders whose tensors have the same names and whose layers compute in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    #[strum(serialize = "BERT")]
    Bert,
    /// RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that begin after the padding's.
    #[strum(serialize = "RoBERTa")]
    Roberta,
    /// BERT with a bias of the scores by distance, and no token types.
    #[strum(serialize = "MPNet")]
    MpNet,
    /// BERT without token types.
    #[strum(serialize = "DistilBERT")]
    DistilBert,
    /// Rotary positions, local attention in most layers, gated feed-forward blocks, norms before the blocks.
    #[strum(serialize = "ModernBERT")]
    ModernBert,
    /// A table of token vectors.
    #[strum(serialize = "static embeddings")]
    Static,
}

impl Architecture {
    /// By `model_type` of `config.json`.
    const NAMES: [(&str, Architecture); 8] = [
        ("bert", Architecture::Bert),
        ("roberta", Architecture::Roberta),
        ("xlm-roberta", Architecture::Roberta),
        ("camembert", Architecture::Roberta),
        ("mpnet", Architecture::MpNet),
        ("distilbert", Architecture::DistilBert),
        ("modernbert", Architecture::ModernBert),
        ("model2vec", Architecture::Static),
    ];

    /// Name in messages and records.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Above the longest encoder there is.
const MAX_ROTARY_POSITIONS: usize = 1 << 17;

/// Above the deepest encoder there is.
const MAX_LAYERS: usize = 1024;

/// Sizes and options of an encoder. Names are those of `config.json` of BERT.
#[derive(Clone, Debug)]
pub struct EncoderConfig {
    pub architecture: Architecture,
    /// Width of a token state.
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    /// Width between the two dense layers of a feed-forward block.
    pub intermediate_size: usize,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Positions there are vectors for.
    pub max_position_embeddings: usize,
    /// The token that counts as padding, where positions begin after its number: RoBERTa and MPNet.
    pub padding: Option<usize>,
    /// Token types; only the first is used. 0 where there are none.
    pub type_vocab_size: usize,
    /// `gelu`, `gelu_new` or `relu`.
    pub hidden_act: String,
    pub layer_norm_eps: f32,
    /// Buckets of distances with a bias of their own; MPNet.
    pub relative_buckets: usize,
    pub modern: Option<Modern>,
}

/// Options that only ModernBERT has.
#[derive(Clone, Debug, PartialEq)]
pub struct Modern {
    /// Per layer: whether a token sees only its neighbours.
    pub local: Vec<bool>,
    /// Tokens to either side that it sees then.
    pub window: usize,
    /// Base of the rotary frequencies of global and of local layers.
    pub global_theta: f64,
    pub local_theta: f64,
    pub attention_bias: bool,
    pub feed_bias: bool,
    pub norm_bias: bool,
}

impl EncoderConfig {
    /// Reads and checks the configuration of the network that `recipe` names.
    pub fn read(recipe: &Recipe) -> Result<Self> {
        let dir = &recipe.network;
        if recipe.kind == Kind::Static {
            return super::statics::config(dir);
        }
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                Error::format(dir, "is not an encoder: it has no config.json; pull an encoder, or give the path of one")
                    .remedied(Remedy::PullEncoder(None))
            } else {
                Error::io(&path)(source)
            }
        })?;
        let json: Value = serde_json::from_str(&text)
            .map_err(|e| Error::format(&path, format!("is not valid JSON: {e}; fetch the encoder again")))?;
        let config = Fields { path: &path, json: &json }.config()?;
        config.check(&path)?;
        Ok(config)
    }

    /// Tokens per text at most, with those that mark its ends.
    pub fn max_tokens(&self) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position())
    }

    /// The position of a first token.
    pub fn first_position(&self) -> usize {
        self.padding.map_or(0, |padding| padding.saturating_add(1))
    }

    fn check(&self, path: &Path) -> Result<()> {
        let bad = |problem: String| Error::format(path, problem);
        if !matches!(self.hidden_act.as_str(), "gelu" | "gelu_new" | "relu") {
            return Err(bad(format!("hidden_act is {}, expected gelu, gelu_new or relu", self.hidden_act)));
        }
        let (heads, hidden) = (self.num_attention_heads, self.hidden_size);
        if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
            return Err(bad(format!("hidden_size {hidden} is not a multiple of num_attention_heads {heads}")));
        }
        for (name, value) in [
            ("num_hidden_layers", self.num_hidden_layers),
            ("intermediate_size", self.intermediate_size),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_tokens()),
        ] {
            if value == 0 {
                return Err(bad(format!("{name} is 0")));
            }
        }
        // Rotary positions have no tensor whose shape would refuse an absurd length.
        if self.modern.is_some() && self.max_position_embeddings > MAX_ROTARY_POSITIONS {
            let positions = self.max_position_embeddings;
            return Err(bad(format!(
                "max_position_embeddings is {positions}, expected at most {MAX_ROTARY_POSITIONS}"
            )));
        }
        Ok(())
    }
}

/// The fields of a `config.json`.
struct Fields<'a> {
    path: &'a Path,
    json: &'a Value,
}

impl Fields<'_> {
    fn bad(&self, problem: String) -> Error {
        Error::format(self.path, problem)
    }

    fn config(&self) -> Result<EncoderConfig> {
        let family = self.json["model_type"].as_str().unwrap_or("nothing");
        let known = Architecture::NAMES.iter().find(|(name, _)| *name == family);
        let Some((_, architecture)) = known else {
            let names = Architecture::NAMES.map(|(name, _)| name).join(", ");
            return Err(self.bad(format!(
                "model_type is {family}, which is not read; known: {names}. Use an encoder of one of these kinds, or vectors \
                 that another program computed"
            )));
        };
        match architecture {
            Architecture::DistilBert => self.distilbert(),
            Architecture::ModernBert => self.modernbert(),
            other => self.bert(*other),
        }
    }

    fn bert(&self, architecture: Architecture) -> Result<EncoderConfig> {
        let positions = self.json["position_embedding_type"].as_str().unwrap_or("absolute");
        if positions != "absolute" {
            return Err(self.bad(format!("position_embedding_type is {positions}, expected absolute")));
        }
        if self.json["is_decoder"] == true {
            return Err(self.bad("is_decoder is true: a decoder is not an encoder".into()));
        }
        Ok(EncoderConfig {
            architecture,
            hidden_size: self.size("hidden_size")?,
            num_hidden_layers: self.layers("num_hidden_layers")?,
            num_attention_heads: self.size("num_attention_heads")?,
            intermediate_size: self.size("intermediate_size")?,
            vocab_size: self.size("vocab_size")?,
            max_position_embeddings: self.size("max_position_embeddings")?,
            padding: match architecture {
                Architecture::Roberta => Some(self.size_or("pad_token_id", 1)?),
                // Number 1, whatever its configuration says.
                Architecture::MpNet => Some(1),
                _ => None,
            },
            type_vocab_size: match architecture {
                Architecture::MpNet => 0,
                _ => match self.size("type_vocab_size")? {
                    0 => return Err(self.bad("type_vocab_size is 0".into())),
                    types => types,
                },
            },
            hidden_act: self.text("hidden_act", "gelu")?,
            layer_norm_eps: self.number("layer_norm_eps", 1e-12)? as f32,
            relative_buckets: match architecture {
                Architecture::MpNet => self.size_or("relative_attention_num_buckets", 32)?,
                _ => 0,
            },
            modern: None,
        })
    }

    fn distilbert(&self) -> Result<EncoderConfig> {
        Ok(EncoderConfig {
            architecture: Architecture::DistilBert,
            hidden_size: self.size("dim")?,
            num_hidden_layers: self.layers("n_layers")?,
            num_attention_heads: self.size("n_heads")?,
            intermediate_size: self.size("hidden_dim")?,
            vocab_size: self.size("vocab_size")?,
            max_position_embeddings: self.size("max_position_embeddings")?,
            padding: None,
            type_vocab_size: 0,
            hidden_act: self.text("activation", "gelu")?,
            layer_norm_eps: 1e-12,
            relative_buckets: 0,
            modern: None,
        })
    }

    fn modernbert(&self) -> Result<EncoderConfig> {
        let layers = self.layers("num_hidden_layers")?;
        Ok(EncoderConfig {
            architecture: Architecture::ModernBert,
            hidden_size: self.size("hidden_size")?,
            num_hidden_layers: layers,
            num_attention_heads: self.size("num_attention_heads")?,
            intermediate_size: self.size("intermediate_size")?,
            vocab_size: self.size("vocab_size")?,
            max_position_embeddings: self.size("max_position_embeddings")?,
            padding: None,
            type_vocab_size: 0,
            hidden_act: self.text("hidden_activation", "gelu")?,
            layer_norm_eps: self.number("norm_eps", 1e-5)? as f32,
            relative_buckets: 0,
            modern: Some(Modern {
                local: self.local_layers(layers)?,
                window: self.size_or("local_attention", 128)? / 2,
                global_theta: self.theta("full_attention", "global_rope_theta", 160_000.0)?,
                local_theta: self.theta("sliding_attention", "local_rope_theta", 10_000.0)?,
                attention_bias: self.json["attention_bias"] == true,
                feed_bias: self.json["mlp_bias"] == true,
                norm_bias: self.json["norm_bias"] == true,
            }),
        })
    }

    /// Which layers are local. Newer files list them; older ones make every third layer global.
    fn local_layers(&self, layers: usize) -> Result<Vec<bool>> {
        let Some(types) = self.json["layer_types"].as_array() else {
            let every = self.size_or("global_attn_every_n_layers", 3)?.max(1);
            return Ok((0..layers).map(|i| i % every != 0).collect());
        };
        if types.len() != layers {
            return Err(self.bad(format!("layer_types has {} entries for {layers} layers", types.len())));
        }
        let local = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(self.bad(format!("layer_types has {kind}, expected full_attention or sliding_attention"))),
        };
        types.iter().map(local).collect()
    }

    fn theta(&self, kind: &str, old_name: &str, default: f64) -> Result<f64> {
        let parameters = &self.json["rope_parameters"][kind];
        if let Some(other) = parameters["rope_type"].as_str().filter(|kind| *kind != "default") {
            return Err(self.bad(format!("rope_type is {other}, expected default")));
        }
        if !self.json["rope_scaling"].is_null() {
            return Err(self.bad("rope_scaling is set, and scaled rotary positions are not read".into()));
        }
        match parameters["rope_theta"].as_f64() {
            Some(theta) => Ok(theta),
            None => self.number(old_name, default),
        }
    }

    fn size(&self, name: &str) -> Result<usize> {
        match &self.json[name] {
            Value::Null => Err(self.bad(format!("has no {name}; fetch the encoder again"))),
            value => value.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
                self.bad(format!("{name} is {value}, expected a whole number; fetch the encoder again"))
            }),
        }
    }

    /// A number of layers. What is allocated per layer comes before a weight is looked for, so it is bounded here.
    fn layers(&self, name: &str) -> Result<usize> {
        let layers = self.size(name)?;
        if layers > MAX_LAYERS {
            return Err(self.bad(format!("{name} is {layers}, expected at most {MAX_LAYERS}")));
        }
        Ok(layers)
    }

    fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        if self.json[name].is_null() { Ok(default) } else { self.size(name) }
    }

    fn number(&self, name: &str, default: f64) -> Result<f64> {
        match &self.json[name] {
            Value::Null => Ok(default),
            value => value.as_f64().ok_or_else(|| self.bad(format!("{name} is {value}, expected a number"))),
        }
    }

    fn text(&self, name: &str, default: &str) -> Result<String> {
        match &self.json[name] {
            Value::Null => Ok(default.to_owned()),
            value => {
                value.as_str().map(str::to_owned).ok_or_else(|| self.bad(format!("{name} is {value}, expected a text")))
            }
        }
    }
}
