//! `micpq encoder pull|list|info`.

use anyhow::Result;
use engine::encoder::{Encoder, pull};

use crate::args::EncoderCommand;
use crate::output;
use crate::progress::TerminalProgress;

pub fn run(command: EncoderCommand, json: bool, progress: &TerminalProgress) -> Result<()> {
    match command {
        EncoderCommand::Pull { name } => {
            let dir = pull::pull(&name, progress)?;
            progress.finish();
            info(&dir.to_string_lossy(), json)
        }
        EncoderCommand::List => {
            let encoders = pull::list()?;
            if json {
                return encoders.iter().try_for_each(output::json);
            }
            let rows: Vec<Vec<String>> = encoders
                .iter()
                .map(|e| {
                    let numbers =
                        [e.layers.to_string(), e.width.to_string(), e.max_tokens.to_string(), output::bytes(e.bytes)];
                    std::iter::once(e.name.clone()).chain(numbers).collect()
                })
                .collect();
            if rows.is_empty() {
                return output::line("there is no encoder yet; \"micpq encoder pull\" downloads the default one");
            }
            output::table(&["encoder", "layers", "width", "tokens", "weights"], &rows)
        }
        EncoderCommand::Info { name } => info(&name, json),
    }
}

fn info(name: &str, json: bool) -> Result<()> {
    let encoder = Encoder::load(&pull::locate(name)?)?;
    let (config, recipe) = (encoder.config(), encoder.recipe());
    if json {
        return output::json(&serde_json::json!({
            "path": encoder.dir(), "sha256": encoder.sha256(), "width": config.hidden_size,
            "layers": config.num_hidden_layers, "heads": config.num_attention_heads,
            "intermediate": config.intermediate_size, "vocabulary": config.vocab_size,
            "max_tokens": encoder.default_length(), "positions": config.max_tokens(), "architecture": config.architecture,
            "activation": config.hidden_act, "pooling": recipe.pooling, "steps": recipe.steps,
            "query_prompt": recipe.query_prompt, "document_prompt": recipe.document_prompt,
        }));
    }
    output::line(format!(
        "{}\n  weights      {}\n  layers       {}: {} of {} values, {} heads, {} intermediate ({})\n  vocabulary   {} tokens\n  tokens       {} by default, at most {}\n  embedding    {}",
        encoder.dir().display(),
        encoder.sha256(),
        config.architecture.name(),
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.hidden_act,
        config.vocab_size,
        encoder.default_length(),
        config.max_tokens(),
        recipe.description(),
    ))
}
