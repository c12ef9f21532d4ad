//! `micpq eval`: what the codes gain or lose against exact float search on the same vectors.

use anyhow::Result;
use micpq::Matrix;
use micpq::corpus::{Corpus, CorpusConfig};
use micpq::model::{Distance, Model};
use train::dataset::{Dataset, LabelNames};
use train::evaluate::{self, EvaluateConfig, Evaluation, evaluate};
use train::passes::Passes;

use super::features_of;
use crate::args::Eval;
use crate::output;
use crate::progress::Progress;

pub fn run(args: Eval, json: bool, progress: &Progress) -> Result<()> {
    let model = Model::load(&args.model)?;
    let features = features_of(&model, args.computing, progress)?;
    let config = args.source.config();
    let cache = super::cache_dir(args.cache.as_deref())?;
    let mut names = LabelNames::default();
    let mut read = |path: &std::path::Path| -> Result<(Dataset, Matrix)> {
        let mut corpus = Corpus::open(path, &CorpusConfig { unique_ids: false, ..config.clone() })?;
        let set = Dataset::read(&mut corpus, &mut names, progress)?;
        super::tell_skipped(&corpus, progress);
        let vectors = Passes::new(&features, &set.texts, 0.0, Some(&cache), progress)?.into_clean();
        Ok((set, vectors))
    };
    let (database, documents) = read(&args.database)?;
    let (asked, queries) = read(&args.queries)?;
    let labels = (database.labelled() && asked.labelled()).then_some((&asked.labels, &database.labels));
    let main = args.distance.unwrap_or(model.config.distance);
    let mut distances = vec![main];
    distances.extend([Distance::Norm, Distance::Squared].into_iter().filter(|d| *d != main));
    let corpus = evaluate::Corpus { documents: &documents, queries: &queries, labels };
    let config = EvaluateConfig { distances, float: !args.no_float, seed: args.seed };
    let result = evaluate(model.refine(), model.codebooks(), &corpus, &config, progress)?;
    progress.finish();
    if json { output::json(&result) } else { table(&result, &model, documents.cols()) }
}

fn table(result: &Evaluation, model: &Model, width: usize) -> Result<()> {
    let shape = model.shape();
    let percent = |v: f64| format!("{v:.2}");
    let row = |name: String, bytes: usize, scores: Option<train::metrics::Scores>, fidelity: Option<f64>| {
        let figures = match scores {
            Some(s) => [s.precision.at_1, s.precision.at_10, s.precision.at_100, s.map].map(percent).to_vec(),
            None => vec!["-".to_owned(); 4],
        };
        let fidelity = fidelity.map_or_else(|| "-".to_owned(), percent);
        [vec![name, bytes.to_string()], figures, vec![fidelity]].concat()
    };
    let mut rows: Vec<Vec<String>> = result
        .distances
        .iter()
        .map(|r| row(format!("codes, {}", r.distance), shape.code_bytes(), r.scores, r.fidelity))
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
    output::table(&["", "bytes", "P@1", "P@10", "P@100", "MAP@100", "fidelity"], &rows)?;
    output::line(format!(
        "words in use {:.1} of {} a book, {:.2} bits of entropy of {}; {} distinct codes",
        result.codewords.mean_used(),
        shape.words(),
        result.codewords.entropy.iter().sum::<f64>() / shape.books() as f64,
        shape.word_bits(),
        result.codewords.distinct
    ))?;
    if result.scores.is_none() {
        output::line(
            "no labels on both sides: only fidelity (share of the float top 10 inside the code top 100) is known",
        )?;
    }
    Ok(())
}
