//! `micpq encode`: streams the embeddings or codes of a corpus to an `.npy` file, in input order.

use anyhow::Result;
use engine::Progress;
use engine::corpus::Corpus;
use engine::encoder::{Embedder, Role};
use engine::formats::npy::NpyWriter;
use engine::model::Model;

use super::{chunks, embedder_of};
use crate::args::Encode;
use crate::output;
use crate::progress::TerminalProgress;

pub fn run(args: Encode, json: bool, progress: &TerminalProgress) -> Result<()> {
    let model = args.model.as_deref().map(Model::load).transpose()?;
    let embedder: Embedder = match &model {
        Some(model) => embedder_of(model, args.embedding.computing, progress)?,
        None => Embedder::load(&args.embedding.config(None)?, progress)?,
    };
    let mut corpus = Corpus::open(&args.corpus, &args.source.config())?;
    let mut writer = match &model {
        Some(model) => NpyWriter::u8(&args.output, model.shape().code_bytes())?,
        None => NpyWriter::f32(&args.output, embedder.width())?,
    };
    let role = if args.queries { Role::Query } else { Role::Document };
    let mut cut = 0;
    progress.stage("encoding", None);
    for chunk in chunks(&mut corpus) {
        let texts: Vec<String> = chunk?.into_iter().map(|d| d.text).collect();
        let (tokens, were_cut) = embedder.tokens_and_cut_of(role, &texts)?;
        cut += were_cut.iter().filter(|cut| **cut).count();
        let vectors = embedder.encode_tokens_of(role, &tokens, progress)?;
        match &model {
            Some(model) => writer.rows_u8(&model.encode(&vectors)?)?,
            None => writer.rows_f32(&vectors)?,
        }
    }
    let rows = writer.finish()?;
    progress.finish();
    let columns = model.as_ref().map_or(embedder.width(), |m| m.shape().code_bytes());
    micpq::pipeline::report_skipped(&corpus, progress);
    if cut > 0 {
        let limit = embedder.config().max_tokens;
        progress.warn(&format!(
            "{cut} of {rows} texts are longer than {limit} tokens: only their beginnings are encoded; split them, or raise \
             --max-tokens if the encoder takes more"
        ));
    }
    if json {
        return output::json(&serde_json::json!({
            "rows": rows, "columns": columns, "type": if model.is_some() { "u8" } else { "f32" },
            "path": args.output, "skipped": corpus.skipped().count(), "cut": cut,
        }));
    }
    output::line(format!(
        "{}: {rows} rows of {columns} {}",
        args.output.display(),
        if model.is_some() { "bytes" } else { "values" }
    ))
}
