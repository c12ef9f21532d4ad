//! The model card: what a person wants to know before using a model directory.

use std::fmt::Write;

use super::Model;

pub(super) fn write(model: &Model, metrics: &serde_json::Value) -> String {
    let shape = model.shape();
    let mut card = String::new();
    let mut line = |text: String| writeln!(card, "{text}").expect("writing to a string");
    line(format!("# {} model, {} bits\n", model.config.method, shape.bits()));
    line(format!(
        "Turns a document into {} bytes: {} codebooks of {} codewords of {} dimensions. Ranked by the `{}` distance.\n",
        shape.code_bytes(),
        shape.num_codebooks(),
        shape.codebook_size(),
        shape.dim(),
        model.config.distance
    ));
    line("| | |\n|---|---|".into());
    line(format!("| fingerprint | `{}` |", model.fingerprint()));
    match &model.config.embedding {
        Some(f) if f.terms.is_some() => {
            let terms = f.terms.as_ref().expect("it was looked at");
            line(format!("| input | {} terms, weighted by {} |", terms.vocabulary().len(), terms.weighting));
        }
        Some(f) if f.service.is_some() => {
            let service = f.service.as_ref().expect("it was looked at");
            line(format!("| encoder | {} of {} |", service.model, f.encoder));
            line(format!("| cleaning | {} |", f.clean));
        }
        Some(f) => {
            line(format!("| encoder | {} (`{}`) |", f.encoder, f.encoder_sha256));
            line(format!("| pooling | {} |", f.pooling));
            for (name, prompt) in [("queries", &f.query_prompt), ("documents", &f.document_prompt)] {
                if let Some(prompt) = prompt {
                    line(format!("| prompt of {name} | `{prompt}` |"));
                }
            }
            line(format!("| maximum tokens per text | {} |", f.max_tokens));
            line(format!("| cleaning | {} |", f.clean));
        }
        None => line(format!("| embeddings | user vectors of {} values |", model.inputs())),
    }
    if let Some(options) = model.config.training.as_object() {
        line("\n## Training\n\n| option | value |\n|---|---|".into());
        for (name, value) in options {
            line(format!("| {name} | {value} |"));
        }
    }
    if let Some(metrics) = metrics.as_object() {
        line("\n## Measured\n\n| | |\n|---|---|".into());
        for (name, value) in metrics.iter().filter(|(_, v)| !v.is_array()) {
            line(format!("| {name} | {value} |"));
        }
    }
    line(
        "\nUse: `micpq index create INDEX --model THIS_DIRECTORY CORPUS`, then `micpq search INDEX \"a query\"`."
            .into(),
    );
    card
}
