//! `micpq eval`: compares codes with exact float search on the same vectors.

use anyhow::Result;
use engine::Matrix;
use engine::corpus::{Corpus, CorpusConfig};
use engine::encoder::Role;
use engine::model::{Distance, Model};
use train::dataset::{Dataset, LabelNames};
use train::evaluate::{self, EvaluateConfig, Evaluation, evaluate};
use train::passes::Passes;

use super::embedder_of;
use crate::args::Eval;
use crate::output;
use crate::progress::TerminalProgress;

pub fn run(args: Eval, json: bool, progress: &TerminalProgress) -> Result<()> {
    let model = Model::load(&args.model)?;
    let embedder = embedder_of(&model, args.computing, progress)?;
    let config = args.source.config();
    let cache = micpq::pipeline::cache_dir(args.cache.as_deref())?;
    let mut names = LabelNames::default();
    // Without prompts a query is encoded as a document is, and the cache serves both.
    let prompts = (&embedder.config().query_prompt, &embedder.config().document_prompt);
    let mut read = |path: &std::path::Path, role: Role| -> Result<(Dataset, Matrix)> {
        let mut corpus = Corpus::open(path, &CorpusConfig { unique_ids: false, ..config.clone() })?;
        let set = Dataset::read(&mut corpus, &mut names, progress)?;
        micpq::pipeline::report_skipped(&corpus, progress);
        let vectors = match role {
            Role::Query if prompts.0 != prompts.1 => embedder.encode_as(role, &set.texts, progress)?,
            _ => Passes::new(&embedder, &set.texts, 0.0, Some(&cache), progress)?.into_clean(),
        };
        Ok((set, vectors))
    };
    let (database, documents) = read(&args.database, Role::Document)?;
    let (query_set, queries) = read(&args.queries, Role::Query)?;
    let labels = (database.labelled() && query_set.labelled()).then_some((&query_set.labels, &database.labels));
    let primary = args.distance.unwrap_or(model.config.distance);
    let mut distances = vec![primary];
    distances.extend([Distance::Norm, Distance::Squared].into_iter().filter(|d| *d != primary));
    let corpus = evaluate::Corpus { documents: &documents, queries: &queries, labels };
    let config = EvaluateConfig { distances, float: !args.no_float, seed: args.seed };
    let result = evaluate(&model, &corpus, &config, progress)?;
    progress.finish();
    if json { output::json(&result) } else { table(&result, &model, documents.cols()) }
}

fn table(result: &Evaluation, model: &Model, width: usize) -> Result<()> {
    let shape = model.shape();
    let percent = |v: f64| format!("{v:.2}");
    let row = |name: String, bytes: usize, scores: Option<train::metrics::Scores>, recall_10_at_100: Option<f64>| {
        let figures = match scores {
            Some(s) => [s.precision.at_1, s.precision.at_10, s.precision.at_100, s.map].map(percent).to_vec(),
            None => vec!["-".to_owned(); 4],
        };
        let recall_10_at_100 = recall_10_at_100.map_or_else(|| "-".to_owned(), percent);
        [vec![name, bytes.to_string()], figures, vec![recall_10_at_100]].concat()
    };
    let mut rows: Vec<Vec<String>> = result
        .distances
        .iter()
        .map(|r| row(format!("codes, {}", r.distance), shape.code_bytes(), r.scores, r.recall_10_at_100))
        .collect();
    if let Some(float) = &result.float {
        rows.push(row("exact float, cosine".into(), 4 * width, Some(float.cosine), None));
        rows.push(row("exact float, euclidean".into(), 4 * width, Some(float.euclidean), None));
    }
    output::line(format!(
        "{} queries against {} documents, {} bits, in percent",
        result.queries,
        result.documents,
        shape.bits()
    ))?;
    output::table(&["", "bytes", "P@1", "P@10", "P@100", "MAP@100", "recall 10@100"], &rows)?;
    output::line(format!(
        "codewords in use: {:.1} of {} per codebook, {:.2} of {} bits of entropy; {} distinct codes",
        result.codewords.mean_used(),
        shape.codebook_size(),
        result.codewords.entropy.iter().sum::<f64>() / shape.num_codebooks() as f64,
        shape.codeword_bits(),
        result.codewords.distinct
    ))?;
    if result.scores.is_none() {
        output::line(
            "documents and queries do not both have labels: only recall 10@100 is measured (the share of the float top 10 in the code top 100)",
        )?;
    }
    Ok(())
}
