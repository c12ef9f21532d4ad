//! `micpq encode`: features or codes of a corpus as `.npy`, in input order, streamed.

use anyhow::Result;
use micpq::Watch;
use micpq::corpus::Corpus;
use micpq::encoder::Features;
use micpq::model::Model;
use micpq::npy::NpyWriter;

use super::{chunks, features_of};
use crate::args::Encode;
use crate::output;
use crate::progress::Progress;

pub fn run(args: Encode, json: bool, progress: &Progress) -> Result<()> {
    let model = args.model.as_deref().map(Model::load).transpose()?;
    let features: Features = match &model {
        Some(model) => features_of(model, args.features.computing, progress)?,
        None => args.features.load(progress)?,
    };
    let mut corpus = Corpus::open(&args.corpus, &args.source.config())?;
    let mut writer = match &model {
        Some(model) => NpyWriter::u8(&args.output, model.shape().code_bytes())?,
        None => NpyWriter::f32(&args.output, features.width())?,
    };
    progress.stage("encoding", None);
    for chunk in chunks(&mut corpus) {
        let texts: Vec<String> = chunk?.into_iter().map(|d| d.text).collect();
        let vectors = features.encode(&texts, progress)?;
        match &model {
            Some(model) => writer.rows_u8(&model.encode(&vectors)?)?,
            None => writer.rows_f32(&vectors)?,
        }
    }
    let rows = writer.finish()?;
    progress.finish();
    let columns = model.as_ref().map_or(features.width(), |m| m.shape().code_bytes());
    super::tell_skipped(&corpus, progress);
    if json {
        return output::json(&serde_json::json!({
            "rows": rows, "columns": columns, "type": if model.is_some() { "u8" } else { "f32" },
            "path": args.output, "skipped": corpus.skipped().count(),
        }));
    }
    output::line(format!(
        "{}: {rows} rows of {columns} {}",
        args.output.display(),
        if model.is_some() { "bytes" } else { "values" }
    ))
}
