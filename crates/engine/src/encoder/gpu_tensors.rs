//! Tensors as a GPU reads them: those of a `BertModel`, also of encoders that are BERT with other names.
//!
//! RoBERTa's positions begin after the padding's: the rows before are left out. DistilBERT has no token types: its vector of
//! the first type is zero.

use super::config::{Architecture, EncoderConfig};
use super::weights::Weights;
use crate::Result;

/// Whether the encoders of an architecture run on a GPU.
pub fn has_gpu(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Bert | Architecture::Roberta | Architecture::DistilBert)
}

/// In front of all names, in files of models with a task head.
pub fn prefix(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Roberta => "roberta.",
        Architecture::DistilBert => "distilbert.",
        _ => "bert.",
    }
}

/// The tensor that a `BertModel` has as `name`.
pub fn read(config: &EncoderConfig, weights: &Weights, name: &str) -> Result<Vec<f32>> {
    let (hidden, positions) = (config.hidden_size, "embeddings.position_embeddings.weight");
    match config.architecture {
        Architecture::Roberta if name == positions => {
            let mut rows = weights.read(name, &[config.max_position_embeddings, hidden])?;
            rows.drain(..config.first_position() * hidden);
            Ok(rows)
        }
        Architecture::DistilBert if name == "embeddings.token_type_embeddings.weight" => Ok(vec![0.0; hidden]),
        Architecture::DistilBert => weights.read(&distilbert_name(name), &shape(config, name)),
        _ => weights.read(name, &shape(config, name)),
    }
}

fn distilbert_name(name: &str) -> String {
    let mut own = name.replace("encoder.layer.", "transformer.layer.");
    // Longer names first: one ends like another.
    for (of_bert, of_distilbert) in [
        ("attention.self.query", "attention.q_lin"),
        ("attention.self.key", "attention.k_lin"),
        ("attention.self.value", "attention.v_lin"),
        ("attention.output.dense", "attention.out_lin"),
        ("attention.output.LayerNorm", "sa_layer_norm"),
        ("intermediate.dense", "ffn.lin1"),
        ("output.dense", "ffn.lin2"),
        ("output.LayerNorm", "output_layer_norm"),
    ] {
        if own.contains(of_bert) {
            own = own.replace(of_bert, of_distilbert);
            break;
        }
    }
    own
}

/// The shape that a tensor of a `BertModel` must have, by its name.
fn shape(config: &EncoderConfig, name: &str) -> Vec<usize> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    if let Some(table) = name.strip_prefix("embeddings.") {
        match table {
            "word_embeddings.weight" => return vec![config.vocab_size, hidden],
            "position_embeddings.weight" => return vec![config.max_position_embeddings, hidden],
            "token_type_embeddings.weight" => return vec![config.type_vocab_size, hidden],
            _ => {}
        }
    }
    let feed_in = name.contains("intermediate.dense");
    let feed_out = name.contains("output.dense") && !name.contains("attention.output");
    let outputs = if feed_in { inner } else { hidden };
    if name.contains("LayerNorm") || name.ends_with(".bias") {
        vec![outputs]
    } else {
        vec![outputs, if feed_out { inner } else { hidden }]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use safetensors::tensor::{Dtype, TensorView};

    use super::super::recipe::Recipe;
    use super::super::{Encoder, Pooling};
    use super::*;
    use crate::NoProgress;

    /// The names and shapes of a `BertModel` with as many layers.
    fn names(config: &EncoderConfig) -> Vec<(String, Vec<usize>)> {
        let mut names = vec!["embeddings.word_embeddings.weight".to_owned()];
        let parts = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"];
        let rest = ["attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"];
        let of_layer = |l: usize| parts.iter().chain(&rest).map(move |part| format!("encoder.layer.{l}.{part}"));
        let both = (0..config.num_hidden_layers).flat_map(of_layer).chain(["embeddings.LayerNorm".to_owned()]);
        names.extend(both.flat_map(|name| [format!("{name}.weight"), format!("{name}.bias")]));
        let mut all: Vec<_> = names.into_iter().map(|name| (name.clone(), shape(config, &name))).collect();
        all.push(("embeddings.position_embeddings.weight".into(), vec![config.max_tokens(), config.hidden_size]));
        all.push(("embeddings.token_type_embeddings.weight".into(), vec![1, config.hidden_size]));
        all
    }

    #[test]
    fn encoders_with_other_names_give_the_same_vectors_as_bert() {
        for name in ["bert", "roberta", "xlm-roberta", "distilbert"] {
            let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders").join(name);
            let config = EncoderConfig::read(&Recipe::read(&own).unwrap()).unwrap();
            assert!(has_gpu(config.architecture));
            let weights = Weights::open(&own).unwrap().prefixed(prefix(config.architecture));
            let dir = tempfile::tempdir().unwrap();
            let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = names(&config)
                .into_iter()
                .map(|(tensor, shape)| {
                    let mut values = read(&config, &weights, &tensor).unwrap();
                    // Only the first token type is used.
                    values.truncate(shape.iter().product());
                    (tensor, shape, values.into_iter().flat_map(f32::to_le_bytes).collect())
                })
                .collect();
            let views = tensors.iter().map(|(n, s, b)| (n, TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
            std::fs::write(dir.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
            std::fs::copy(own.join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
            let json = serde_json::json!({
                "model_type": "bert", "hidden_size": config.hidden_size, "num_hidden_layers": config.num_hidden_layers,
                "num_attention_heads": config.num_attention_heads, "intermediate_size": config.intermediate_size,
                "vocab_size": config.vocab_size, "max_position_embeddings": config.max_tokens(), "type_vocab_size": 1,
                "hidden_act": config.hidden_act, "layer_norm_eps": config.layer_norm_eps,
            });
            std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();

            let (own, bert) = (Encoder::load(&own).unwrap(), Encoder::load(dir.path()).unwrap());
            let texts = ["The price of crude oil rises.", "", "oil", "a strike in the harbour goes on and on"];
            let ids = own.tokenizer().encode(&texts, own.config().max_tokens()).unwrap();
            let encode = |encoder: &Encoder| encoder.encode(&ids, Pooling::Mean, None, &NoProgress).unwrap();
            assert_eq!(encode(&own), encode(&bert), "{name}");
        }
    }
}
